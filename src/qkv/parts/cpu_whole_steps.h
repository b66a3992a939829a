// Residual steps of whole rows of an encoder. Where there are many, they are in parts, each of which a thread takes from its
// first number to its last, so that what lies between two maps stays with it: hidden units of a feed-forward; queries, keys
// and values of an attention.

#pragma once

#include "cpu_in_parts.h"
#include "cpu_residual.h"
#include "cpu_rows.h"

// activation(x W₁ + b₁) W₂ + b₂, or (activation(x W_gate) ⊙ x W_value) W₂ where the first map has both side by side.
struct FeedForward {
  Stream stream;
  Norm before, after;
  Map inner, outer;
  int activation, gated;
};

static void do_together(const FeedForward &step) {
  const Map &inner = step.inner, &outer = step.outer;
  const Stream &stream = step.stream;
  const long rows = stream.rows, hidden = outer.inputs;
  Room room(Places::numbers(rows, inner.inputs, inner.outputs, hidden));
  const Places places(room, stream, inner, outer);
#pragma omp parallel num_threads(stream.threads)
  {
    begin(stream, step.before, inner, places);
    Inputs given = places.cells;
    if (step.gated) {
      make(inner, rows, places, NONE);
#pragma omp for schedule(static)
      for (long row = 0; row < rows; row++) {
        float *made = places.made + row * inner.outputs;
        for (long i = 0; i < hidden; i += LANES)
          store(made + i, activated<Single>(step.activation, loaded<Floats>(made + i)) * loaded<Floats>(made + hidden + i));
        into_cells(outer, made, places.cells, row);
      }
    } else if (outer.kind == BFLOAT16) {
      make<BFloat16>(inner, rows, places, step.activation);
      given = as_read<BFloat16>(outer, places.made, rows, places.cells);
    } else {
      make(inner, rows, places, step.activation);
      given = as_read<Single>(outer, places.made, rows, places.cells);
    }
    end(stream, outer, given, step.after, places);
  }
}

constexpr long ROWS_OF_HIDDEN = 32;  // whose hidden units stay with the thread that makes them

// None, where all threads do few rows together.
static Parts parts_of(const FeedForward &all) {
  const long rows = all.stream.rows, threads = all.stream.threads;
  if (rows < ROWS_OF_HIDDEN * threads) return {};
  const long fair = fair_share(rows, ROWS_OF_HIDDEN, threads);
  Parts parts;
  for (long first = 0; first < rows; first += fair) parts.push_back({first, rows - first < fair ? rows - first : fair});
  return parts;
}

static void do_part(const FeedForward &all, Part some) {
  FeedForward part = all;
  part.stream = part_of(all.stream, all.inner.inputs, some.first, some.rows, 1);
  do_together(part);
}

// Attention of whole rows. Queries, keys and values between its maps are in single precision if those are, else in bfloat16.
struct AttendRows {
  Stream stream;
  Norm before, after;
  Map project, out;  // queries, keys and values side by side
  WholeRows of;      // but for the places of q, k, v and o
};

// Neighbouring texts, and where they lie in the stream.
struct Texts {
  long first, many;
  Part rows;

  // From text `first` on: so many that they have enough rows, if there are.
  static Texts at(const WholeRows &of, long first, long enough) {
    long last = first + 1;
    while (last < of.rows && row(of, last) - row(of, first) < enough) last++;
    return {first, last - first, {row(of, first), row(of, last) - row(of, first)}};
  }

  // Those that lie there.
  static Texts in(const WholeRows &of, Part rows) {
    long first = 0;
    while (row(of, first) < rows.first) first++;
    return at(of, first, rows.rows);
  }

  static long row(const WholeRows &of, long text) { return of.bounds == nullptr ? text * of.keys : (long)of.bounds[text]; }
};

template <class Kinds> static void attend(const AttendRows &all, Texts texts, int threads) {
  AttendRows part = all;
  part.stream = part_of(all.stream, all.project.inputs, texts.rows.first, texts.rows.rows, threads);
  const long heads = all.of.heads, groups = all.of.groups, width = all.of.width, apart = all.project.outputs;
  const long each = Room::spare(HeldHead::numbers(all.of.keys, width));
  WholeRows &of = part.of;
  typedef typename Kinds::Given Given;
  typedef typename Kinds::Answer Answer;
  reading_step<Given, Answer>(part, part.project, threads * each, [&](const Places &places, float *room) {
#pragma omp single
    {  // as if all rows were there
      const typename Given::Number *made = (const typename Given::Number *)places.made - texts.rows.first * apart;
      const long row = of.bounds == nullptr ? of.keys * apart : 0;
      of.q = {made, row, width, apart};
      of.k = {made + heads * width, row, width, apart};
      of.v = {made + (heads + groups) * width, row, width, apart};
      of.o = (typename Answer::Number *)places.between - texts.rows.first * heads * width;
    }
    HeldHead held(room + omp_get_thread_num() * each, of.keys, width);
#pragma omp for schedule(dynamic, 1)
    for (long task = 0; task < texts.many * heads; task++)
      read_head<Kinds>(of, OneRow(of, texts.first + task / heads), task % heads, held);
  });
}

static void attend(const AttendRows &all, Texts texts, int threads) {
  if (all.out.kind == SINGLE) attend<AllSingle>(all, texts, threads);
  else if (all.out.kind == BFLOAT16) attend<BetweenBFloat16>(all, texts, threads);
  else attend<BetweenBytes>(all, texts, threads);
}

constexpr long ROWS_OF_TEXTS = 64;  // that a thread does: with fewer it waits for weights
constexpr long SHARES = 4;          // of each thread, so that none waits long for the last

// Texts in parts, where they are many or share out evenly; none, where all threads do all of them together.
static Parts parts_of(const AttendRows &all) {
  const WholeRows &of = all.of;
  const long threads = all.stream.threads, rows = all.stream.rows;
  Parts parts;
  long most = 0;
  for (long first = 0; first < of.rows;) {
    const Texts texts = Texts::at(of, first, ROWS_OF_TEXTS);
    first += texts.many, most = texts.rows.rows > most ? texts.rows.rows : most;
    parts.push_back(texts.rows);
  }
  const bool even = (long)parts.size() * most == rows && parts.size() % threads == 0;
  return even || most * threads * SHARES <= rows ? parts : Parts{};
}

static void do_part(const AttendRows &all, Part part) { attend(all, Texts::in(all.of, part), 1); }

static void do_together(const AttendRows &all) {
  attend(all, {0, all.of.rows, {0, all.stream.rows}}, all.stream.threads);
}
