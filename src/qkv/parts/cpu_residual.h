// What residual steps share: y = after(x + mixer(before(x))), of which either norm may be absent. Pieces of a step are done
// by all threads of a team, which wait for each other behind each.

#pragma once

#include "cpu_maps.h"
#include "cpu_norms.h"
#include "cpu_room.h"

enum Activation { NONE, GELU, GELU_TANH, GELU_QUICK, SILU, RELU };  // as Python numbers them

// By polynomials that are as exact as the precision which the answer is written in.
template <class Precision> static inline Floats activated(int activation, Floats x) {
  switch (activation) {
    case GELU: {  // max(x, 0) - a P(a), for P, the share of a normal distribution beyond a = |x|
      const Floats near = at_most(6.0f, magnitude(x));
      Floats p;  // log₂ P
      if constexpr (Precision::KIND == BFLOAT16) {  // the answer is off by 1.2e-4 of it
        p = near * 2.29900616e-05f - 0.000611100171f;
        p = p * near + 0.00719556771f;
        p = p * near - 0.0511853471f;
        p = p * near - 0.461271912f;
        p = p * near - 1.15017426f;
        p = p * near - 1.00006473f;
      } else {  // by 5e-8
        p = near * -1.69044762e-06f + 2.50838674e-05f;
        p = p * near - 0.00011446543f;
        p = p * near - 0.000323335052f;
        p = p * near + 0.00733337384f;
        p = p * near - 0.0527141926f;
        p = p * near - 0.459115422f;
        p = p * near - 1.1511232f;
        p = p * near - 0.999998874f;
      }
      return at_least(0.0f, x) - near * power_of_two<Precision>(p);
    }
    case GELU_TANH:  // x σ(2u), for tanh u = 2 σ(2u) - 1
      return x / (1.0f + exponential((x + 0.044715f * x * x * x) * -1.5957691216f));
    case GELU_QUICK:
      return x / (1.0f + exponential(x * -1.702f));
    case SILU:
      return x / (1.0f + exponential(-x));
    case RELU:
      return at_least(0.0f, x);
    default:
      return x;
  }
}

struct Stream {
  const void *x;
  void *y;
  long rows;
  int kind;
  int threads;
};

// LANES numbers, or as many as there are up to the end of a row.
template <class Precision> static inline void write_until(typename Precision::Number *to, Floats v, long left) {
  if (left >= LANES) return Precision::write(to, v);
  typename Precision::Number all[LANES];
  Precision::write(all, v);
  if (left > 0) std::memcpy(to, all, left * sizeof *to);
}

static inline void read_row(const Stream &stream, long row, long width, float *to) {
  if (stream.kind == SINGLE) {
    const float *x = (const float *)stream.x + row * width;
    if (to != x) std::memcpy(to, x, 4 * width);
    return;
  }
  const uint16_t *x = (const uint16_t *)stream.x + row * width;
  for (long i = 0; i < width; i += LANES) store(to + i, BFloat16::read(x + i));
}

static inline void write_row(const Stream &stream, long row, long width, const float *from) {
  if (stream.kind == SINGLE) {
    float *y = (float *)stream.y + row * width;
    if (y != from) std::memcpy(y, from, 4 * width);
    return;
  }
  uint16_t *y = (uint16_t *)stream.y + row * width;
  for (long i = 0; i < width; i += LANES) BFloat16::write(y + i, loaded<Floats>(from + i));
}

// What becomes of outputs [rows, width]: where they are written, and what they are added to, is fetched meanwhile.
template <class Number, class Added, class Do> struct Outputs {
  Number *to;
  const Added *added;  // or null
  long width;
  Do write;  // to a place, LANES numbers or as many as are left of the row

  void comes(long row, long output) const {
    const long at = row * width + output;
    for (unsigned long i = 0; i < PANEL * sizeof(Number); i += 64) fetch<1>((const char *)(to + at) + i);
    if (added != nullptr)
      for (unsigned long i = 0; i < PANEL * sizeof(Added); i += 64) fetch<0>((const char *)(added + at) + i);
  }
  void is(long row, long output, Floats v) const { write(to + row * width + output, v, width - output); }
};

template <class Number, class Do> static inline Outputs<Number, Number, Do> outputs(Number *to, long width, Do write) {
  return {to, nullptr, width, write};
}

template <class Number, class Added, class Do>
static inline Outputs<Number, Added, Do> outputs(Number *to, const Added *added, long width, Do write) {
  return {to, added, width, write};
}

// What maps of a step read and write on the way.
struct Places {
  float *x;        // [rows, width]: the stream, to which mixers add
  float *normed;   // [rows, width]
  Inputs cells;    // of any map
  float *made;     // [rows, outputs] of the first map
  float *between;  // [rows, inputs] of the last map

  static long numbers(long rows, long width, long made, long between) {
    const long widest = width > between ? width : between;
    return 2 * Room::spare(rows * width) + Room::spare(rows * widest) + Room::spare(rows * made) +
           Room::spare(rows * between) + 2 * Room::spare(rows);
  }

  // Those of a residual step, whose sums are made where they go, if that has room for them.
  Places(Room &room, const Stream &stream, const Map &first, const Map &last)
      : Places(room, stream.rows, first.inputs, first.outputs, last.inputs) {
    if (stream.kind == SINGLE) x = (float *)stream.y;
  }

  Places(Room &room, long rows, long width, long made_wide, long between_wide) {
    const long widest = width > between_wide ? width : between_wide;
    x = room.take(rows * width);
    normed = room.take(rows * width);
    cells = {room.take<uint32_t>(rows * widest), room.take(rows), room.take(rows), nullptr};
    made = room.take(rows * made_wide);
    between = room.take(rows * between_wide);
  }
};

static inline void begin(const Stream &stream, const Norm &before, const Map &map, const Places &places) {
#pragma omp for schedule(static)
  for (long row = 0; row < stream.rows; row++) {
    float *x = places.x + row * map.inputs, *read = x;
    read_row(stream, row, map.inputs, x);
    if (before.gain != nullptr) {
      read = places.normed + row * map.inputs;
      norm_row(before, x, read, map.inputs);
    }
    into_cells(map, read, places.cells, row);
  }
}

template <class Precision = Single>
static inline void make(const Map &map, long rows, const Places &places, int activation) {
  typedef typename Precision::Number Number;
  map_rows(map, places.cells, rows, outputs((Number *)places.made, map.outputs, [&](Number *to, Floats v, long left) {
    write_until<Precision>(to, activated<Precision>(activation, v), left);
  }));
}

// Rows of numbers in a precision as a map reads them: where they lie, if it reads numbers of that precision; else in cells.
template <class Precision>
static inline Inputs as_read(const Map &map, float *numbers, long rows, const Inputs &cells) {
  if (map.kind == Precision::KIND) return {(uint32_t *)numbers, nullptr, nullptr, nullptr};
#pragma omp for schedule(static)
  for (long row = 0; row < rows; row++) into_cells(map, numbers + row * map.inputs, cells, row);
  return cells;
}

// x += map(given), then the norm behind it, and out.
static inline void end(const Stream &stream, const Map &map, const Inputs &given, const Norm &after,
                       const Places &places) {
  map_rows(map, given, stream.rows, outputs(places.x, map.outputs, [&](float *x, Floats v, long left) {
    if (left >= LANES) store(x, loaded<Floats>(x) + v);
  }));
#pragma omp for schedule(static)
  for (long row = 0; row < stream.rows; row++) {
    float *x = places.x + row * map.outputs;
    norm_row(after, x, x, map.outputs);
    write_row(stream, row, map.outputs, x);
  }
}

// Some rows of a stream `width` wide, done by so many threads.
static Stream part_of(const Stream &all, long width, long first, long rows, int threads) {
  const long begin = first * width * (all.kind == SINGLE ? 4 : 2);
  return {(const char *)all.x + begin, (char *)all.y + begin, rows, all.kind, threads};
}

// Rows in parts of at most so many each for so many at once, as large as each other.
static long fair_share(long rows, long most, long at_once) {
  const long parts = (rows + most * at_once - 1) / (most * at_once) * at_once;
  return ((rows + parts - 1) / parts + MOST_ROWS - 1) / MOST_ROWS * MOST_ROWS;
}

// A step whose mixer reads keys and values, that its first map has made in some precision: `read(places, scores)` does,
// with room for so many `numbers`, and answers in some precision, which is single or that of the last map.
template <class Made = Single, class Answer = Single, class Step, class Read>
static void reading_step(const Step &step, const Map &first, long numbers, Read read) {
  const Map &out = step.out;
  const Stream &stream = step.stream;
  const long rows = stream.rows;
  Room room(Places::numbers(rows, first.inputs, first.outputs, out.inputs) + Room::spare(numbers));
  const Places places(room, stream, first, out);
  float *scores = room.take(numbers);
#pragma omp parallel num_threads(stream.threads)
  {
    begin(stream, step.before, first, places);
    make<Made>(first, rows, places, NONE);
    read(places, scores);
    end(stream, out, as_read<Answer>(out, places.between, rows, places.cells), step.after, places);
  }
}
