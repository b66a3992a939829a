// Steps one behind the other, each in parts of neighbouring rows that one thread does. A part waits for those of the step
// before that made its rows, and for no others: nobody waits for the last of a step, but once behind the last step.

#pragma once

#include <atomic>
#include <thread>
#include <vector>

struct Part {
  long first, rows;

  bool shares_rows_with(Part other) const { return first < other.first + other.rows && other.first < first + rows; }
};

typedef std::vector<Part> Parts;  // of all rows, in their order

struct StepInParts {
  const void *step;
  void (*work)(const void *step, Part part);
  Parts parts;
  std::vector<std::atomic<bool>> done;

  template <class Step>
  StepInParts(const Step *step, Parts parts)
      : step(step),
        work([](const void *step, Part part) { do_part(*(const Step *)step, part); }),
        parts(parts),
        done(parts.size()) {}

  void wait_for(Part rows) const {
    for (size_t i = 0; i < parts.size() && parts[i].first < rows.first + rows.rows; i++)
      for (long asked = 1; parts[i].shares_rows_with(rows) && !done[i].load(std::memory_order_acquire); asked++)
        if (asked % 1024 == 0) std::this_thread::yield();  // whoever makes them may need this very core
  }
};

// Parts are taken in order, so that whoever makes what a part waits for has begun.
static void do_in_parts(std::vector<StepInParts> &steps, int threads) {
  std::atomic<long> taken{0};
#pragma omp parallel num_threads(threads)
  {
    size_t at = 0;
    long before = 0;  // parts of steps before that
    for (long number = taken++; at < steps.size(); number = taken++) {
      for (; at < steps.size() && number - before >= (long)steps[at].parts.size(); at++) before += steps[at].parts.size();
      if (at == steps.size()) break;
      StepInParts &step = steps[at];
      const Part part = step.parts[number - before];
      if (at > 0) steps[at - 1].wait_for(part);
      step.work(step.step, part);
      step.done[number - before].store(true, std::memory_order_release);
    }
  }
}
