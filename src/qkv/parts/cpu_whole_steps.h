// Residual steps of whole rows of an encoder, each of which a thread takes from its first number to its last, so that what
// lies between two maps stays with it: hidden units of a feed-forward; queries, keys and values of an attention.

#pragma once

#include "cpu_residual.h"
#include "cpu_rows.h"

// activation(x W₁ + b₁) W₂ + b₂, or (activation(x W_gate) ⊙ x W_value) W₂ where the first map has both side by side.
struct FeedForward {
  Stream stream;
  Norm before, after;
  Map inner, outer;
  int activation, gated;
};

static void do_together(const FeedForward *step) {
  const Map &inner = step->inner, &outer = step->outer;
  const Stream &stream = step->stream;
  const long rows = stream.rows, hidden = outer.inputs;
  Room room(Places::numbers(rows, inner.inputs, inner.outputs, hidden));
  const Places places(room, stream, inner, outer);
#pragma omp parallel num_threads(stream.threads)
  {
    begin(stream, step->before, inner, places);
    Inputs given = places.cells;
    if (step->gated) {
      make(inner, rows, places, NONE);
#pragma omp for schedule(static)
      for (long row = 0; row < rows; row++) {
        float *made = places.made + row * inner.outputs;
        for (long i = 0; i < hidden; i += LANES)
          store(made + i, activated<Single>(step->activation, loaded<Floats>(made + i)) * loaded<Floats>(made + hidden + i));
        into_cells(outer, made, places.cells, row);
      }
    } else if (outer.kind == BFLOAT16) {
      make<BFloat16>(inner, rows, places, step->activation);
      given = as_read<BFloat16>(outer, places.made, rows, places.cells);
    } else {
      make(inner, rows, places, step->activation);
      given = as_read<Single>(outer, places.made, rows, places.cells);
    }
    end(stream, outer, given, step->after, places);
  }
}

constexpr long ROWS_OF_HIDDEN = 32;  // whose hidden units stay with the thread that makes them

// All threads do few rows together, and each some of many.
static void do_step(const FeedForward *all) {
  const Stream &stream = all->stream;
  const long rows = stream.rows;
  if (rows < ROWS_OF_HIDDEN * stream.threads) return do_together(all);
  const long fair = fair_share(rows, ROWS_OF_HIDDEN, stream.threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(stream.threads)
  for (long first = 0; first < rows; first += fair) {
    FeedForward part = *all;
    part.stream = part_of(stream, all->inner.inputs, first, rows - first < fair ? rows - first : fair, 1);
    do_together(&part);
  }
}

// Attention of whole rows. Queries, keys and values between its maps are in single precision if those are, else in bfloat16.
struct AttendRows {
  Stream stream;
  Norm before, after;
  Map project, out;  // queries, keys and values side by side
  WholeRows of;      // but for the places of q, k, v and o
};

// Neighbouring rows, and where they lie in the stream.
struct SomeRows {
  long first, many, first_slot, slots;

  // From row `first` on: so many that they have enough slots, if there are.
  static SomeRows at(const WholeRows &of, long first, long enough) {
    const auto slot = [&](long row) { return of.bounds == nullptr ? row * of.keys : (long)of.bounds[row]; };
    long last = first + 1;
    while (last < of.rows && slot(last) - slot(first) < enough) last++;
    return {first, last - first, slot(first), slot(last) - slot(first)};
  }
};

template <class Kinds> static void attend_some(const AttendRows &all, SomeRows some, int threads) {
  AttendRows part = all;
  part.stream = part_of(all.stream, all.project.inputs, some.first_slot, some.slots, threads);
  const long heads = all.of.heads, groups = all.of.groups, width = all.of.width, apart = all.project.outputs;
  const long each = Room::spare(HeldHead::numbers(all.of.keys, width));
  WholeRows &of = part.of;
  typedef typename Kinds::Given Given;
  typedef typename Kinds::Answer Answer;
  reading_step<Given, Answer>(part, part.project, threads * each, [&](const Places &places, float *room) {
#pragma omp single
    {  // as if all rows were there
      const typename Given::Number *made = (const typename Given::Number *)places.made - some.first_slot * apart;
      const long row = of.bounds == nullptr ? of.keys * apart : 0;
      of.q = {made, row, width, apart};
      of.k = {made + heads * width, row, width, apart};
      of.v = {made + (heads + groups) * width, row, width, apart};
      of.o = (typename Answer::Number *)places.between - some.first_slot * heads * width;
    }
    HeldHead held(room + omp_get_thread_num() * each, of.keys, width);
#pragma omp for schedule(dynamic, 1)
    for (long task = 0; task < some.many * heads; task++)
      read_head<Kinds>(of, OneRow(of, some.first + task / heads), task % heads, held);
  });
}

constexpr long SLOTS_OF_ONE = 64;  // thread: with fewer it waits for weights
constexpr long SHARES = 4;         // of each thread, so that none waits long for the last

// A thread does neighbouring rows from the first map to the last, where they are many or share out evenly; else all
// threads do all of them together.
template <class Kinds> static void attend_all(const AttendRows *all) {
  const WholeRows &of = all->of;
  const long threads = all->stream.threads, slots = all->stream.rows;
  long parts = 0, most = 0;
  for (long first = 0; first < of.rows; parts++) {
    const SomeRows some = SomeRows::at(of, first, SLOTS_OF_ONE);
    first += some.many, most = some.slots > most ? some.slots : most;
  }
  const bool alone = parts * most == slots && parts % threads == 0;
  if (!alone && most * threads * SHARES > slots) return attend_some<Kinds>(*all, {0, of.rows, 0, slots}, threads);
#pragma omp parallel num_threads(threads)
#pragma omp single
  for (long first = 0; first < of.rows;) {
    const SomeRows some = SomeRows::at(of, first, SLOTS_OF_ONE);
    first += some.many;
#pragma omp task firstprivate(some)
    attend_some<Kinds>(*all, some, 1);
  }
}

static void do_step(const AttendRows *all) {
  if (all->out.kind == SINGLE) attend_all<AllSingle>(all);
  else if (all->out.kind == BFLOAT16) attend_all<BetweenBFloat16>(all);
  else attend_all<BetweenBytes>(all);
}
