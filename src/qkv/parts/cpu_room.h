// Memory for what a step makes on its way: kept by the thread that asks for steps, and made larger when it must be.

#pragma once

#include <cstdlib>

struct Room {
  float *next;

  explicit Room(long numbers) {
    static thread_local float *kept = nullptr;
    static thread_local long size = 0;
    if (numbers > size) {
      std::free(kept);
      size = (numbers + numbers / 2) / 16 * 16 + 1024;
      kept = (float *)std::aligned_alloc(64, 4 * size);
      if (kept == nullptr) std::abort();
    }
    next = kept;
  }

  // Places for so many numbers of 32 bits; all sizes, each filled up by `spare`, were told at first.
  template <class Number = float> Number *take(long numbers) {
    float *taken = next;
    next += spare(numbers);
    return (Number *)taken;
  }

  static long spare(long numbers) { return (numbers + 15) / 16 * 16; }
};
