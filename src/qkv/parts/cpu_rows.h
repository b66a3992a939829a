// Attention of whole rows, short enough that a core holds the keys and values of a head: [dao2022 alg.1] without blocks of
// keys, since scores of a few queries to all keys fit into the nearest cache.

#pragma once

#include "cpu_maps.h"
#include "cpu_room.h"
#include "cpu_threads.h"
#include "cpu_vectors.h"

#include <cmath>

#if defined(__AVX512F__)
constexpr int TALL = 8;  // queries whose sums fit into registers, beside each other WIDE numbers
#else
constexpr int TALL = 4;
#endif
constexpr int WIDE = 2 * LANES;

// sums [TALL, WIDE] of x [TALL, deep] by w [deep, WIDE], in cells; rows of both lie so far apart.
template <class Of>
static inline void multiply(const uint32_t *x, long x_apart, const uint32_t *w, long w_apart, long deep,
                            Floats (&sums)[TALL][2]) {
#pragma GCC unroll 8
  for (int r = 0; r < TALL; r++) sums[r][0] = sums[r][1] = Floats{};
  for (long i = 0; i < deep; i++) {
    const Cells first = loaded<Cells>(w + i * w_apart), second = loaded<Cells>(w + i * w_apart + LANES);
#pragma GCC unroll 8
    for (int r = 0; r < TALL; r++) {
      const Cells one = everywhere(x + r * x_apart + i);
      sums[r][0] = Of::plus(sums[r][0], first, one), sums[r][1] = Of::plus(sums[r][1], second, one);
    }
  }
}

// With fewer, torch's kernel is as quick.
extern "C" int qkv_numbers_at_a_time() { return LANES; }

struct InMemory {  // where lies what is [rows, heads, slots, width], whose last numbers lie together
  const void *begin;
  long row, head, slot;

  template <class Number> const Number *at(long r, long h, long s) const {
    return (const Number *)begin + r * row + h * head + s * slot;
  }
};

struct WholeRows {
  InMemory q, k, v;
  void *o;                   // [rows, queries, heads, width]
  const int64_t *documents;  // [rows, keys]: 0 where a key is hidden; null: none is
  const int32_t *bounds;     // [rows + 1]: where each row begins, if they stand in line; else null
  long rows, heads, groups, queries, keys, width;  // in line, at most so many queries and keys
  float scale;
  int causal;  // whether a query sees no key behind its own place
  int threads;
  int kind;  // of all numbers
};

// Where one row lies: its slots begin at `first` of the row that is `held` in memory.
struct OneRow {
  long held, first, queries, keys;

  OneRow(const WholeRows &of, long row) : held(row), first(0), queries(of.queries), keys(of.keys) {
    if (of.bounds == nullptr) return;
    held = 0, first = of.bounds[row], queries = keys = of.bounds[row + 1] - first;
  }
};

// How numbers stand in the cells that are multiplied: one in a cell, or two where the processor multiplies such pairs.
struct OneEach {
  typedef Single Precision;
  typedef OfSingle Of;
  static constexpr int NUMBERS = 1;
};

struct Pairs {
  typedef BFloat16 Precision;
  typedef OfBFloat16 Of;
  static constexpr int NUMBERS = 2;
};

#if defined(__AVX512BF16__)
typedef Pairs PairsIfQuick;
#else
typedef OneEach PairsIfQuick;
#endif

// In which precision things stand: what is given, queries and keys as they are multiplied, weights and values, answers.
struct AllSingle {
  typedef Single Given, Answer;
  typedef OneEach Keys, Values;
};

// What is given is multiplied without a loss; weights are rounded nowhere, and an answer once.
struct AllBFloat16 {
  typedef BFloat16 Given, Answer;
  typedef PairsIfQuick Keys;
  typedef OneEach Values;
};

// Weights and values as coarse as keys: for what comes out of maps in bfloat16, and goes into one.
struct BetweenBFloat16 {
  typedef BFloat16 Given, Answer;
  typedef PairsIfQuick Keys, Values;
};

// The same between maps in 8 bits.
struct BetweenBytes {
  typedef BFloat16 Given;
  typedef Single Answer;
  typedef PairsIfQuick Keys, Values;
};

// e^x for x up to 0, as exact as a weight is written. Below -110 it is 0.
template <class Precision> static inline Floats weight_of(Floats x) {
  if constexpr (Precision::KIND == SINGLE) return exponential(x);
  else return power_of_two<Precision>(at_least(-160.0f, x * 1.44269504f));
}

// The weights of one query: from scores [keys] to exponentials, 0 where a key is hidden, in the same place. Given back is
// one over their sum.
template <class Kept>
static inline float weigh(const WholeRows &of, const OneRow &row, long query, long padded, float *scores) {
  typedef typename Kept::Precision Precision;
  typename Precision::Number *weights = (typename Precision::Number *)scores;
  const int64_t *documents = of.documents == nullptr ? nullptr : of.documents + row.held * of.keys;
  const long seen = of.causal && query + 1 < row.keys ? query + 1 : row.keys;
  for (long i = seen; i < padded; i++) scores[i] = -INFINITY;
  if (documents != nullptr)
    for (long i = 0; i < seen; i++) scores[i] = documents[i] == 0 ? -INFINITY : scores[i];
  Floats high = all(-INFINITY);
  for (long i = 0; i < padded; i += LANES) high = larger(loaded<Floats>(scores + i), high);
  const float largest = largest_of(high);
  bool odd = false;  // whether one is no number: beside others its exponential tells of it
  if (largest == -INFINITY)
    for (long i = 0; i < seen; i++) odd = odd || scores[i] != scores[i];
  if (largest == -INFINITY && !odd) {  // a query that sees nothing reads nothing
    std::memset(scores, 0, 4 * padded);
    return 0;
  }
  Floats total = {};
  for (long i = 0; i < padded; i += LANES) {
    const Floats each = weight_of<Precision>(loaded<Floats>(scores + i) - largest);
    Precision::write(weights + i, each);
    total += each;
  }
  return 1 / sum_of(total);
}

// Rows of numbers as columns of cells [width / numbers of a cell, padded]: LANES of them at a time; behind the last are
// zeros.
template <class Given, class Kept>
static inline void columns(const typename Given::Number *from, long apart, long rows, long width, uint32_t *to, long padded) {
  typedef typename Kept::Precision Precision;
  constexpr long EACH = LANES * Kept::NUMBERS;  // numbers that stand in LANES cells
  for (long s = 0; s < padded; s += LANES)
    for (long i = 0; i < width; i += EACH) {
      float *there = (float *)to + i / Kept::NUMBERS * padded + s;
      if (Given::KIND == Precision::KIND && apart % Kept::NUMBERS == 0) {  // whole cells already
        transpose((const float *)(from + s * apart + i), apart / Kept::NUMBERS, rows - s, there, padded);
      } else {
        alignas(64) typename Precision::Number block[LANES * EACH];
        for (long r = 0; r < LANES && s + r < rows; r++)
          for (long n = 0; n < EACH; n += LANES)
            Precision::write(block + r * EACH + n, Given::read(from + (s + r) * apart + i + n));
        transpose((const float *)block, LANES, rows - s, there, padded);
      }
    }
}

// LANES numbers of neighbouring rows in cells: of one row, or of two that stand beside each other.
static inline Cells in_cells(OneEach, const Floats (&rows)[1]) { return (Cells)rows[0]; }

static inline Cells in_cells(Pairs, const Floats (&rows)[2]) {  // whose numbers are of bfloat16 already
  return ((Cells)rows[0] >> 16) | (Cells)rows[1];
}

// Rows of numbers as they are, [padded / numbers of a cell, width]; behind the last are zeros.
template <class Given, class Kept>
static inline void stacked(const typename Given::Number *from, long apart, long rows, long width, uint32_t *to, long padded) {
  for (long s = 0; s < padded; s += Kept::NUMBERS)
    for (long i = 0; i < width; i += LANES) {
      Floats numbers[Kept::NUMBERS];
      for (int n = 0; n < Kept::NUMBERS; n++)
        numbers[n] = s + n < rows ? Given::read(from + (s + n) * apart + i) : Floats{};
      store(to + s / Kept::NUMBERS * width + i, in_cells(Kept{}, numbers));
    }
}

// What a thread holds of the head that it reads, in cells.
struct HeldHead {
  uint32_t *keys, *values;  // of `padded` slots
  float *scores;            // [TALL, padded]
  uint32_t *q;              // [TALL, width]
  const void *known;        // the keys that are there

  static long padded(long keys) { return (keys + WIDE - 1) / WIDE * WIDE; }
  static long numbers(long most, long width) { return 2 * padded(most) * width + TALL * padded(most) + TALL * width; }

  HeldHead(float *room, long most, long width) {
    keys = (uint32_t *)room, values = keys + padded(most) * width;
    scores = (float *)values + padded(most) * width, q = (uint32_t *)scores + TALL * padded(most);
    known = nullptr;
  }
};

// What all queries of one head of a row read.
template <class Kinds> static inline void read_head(const WholeRows &of, const OneRow &row, long head, HeldHead &held) {
  typedef typename Kinds::Given Given;
  typedef typename Kinds::Answer::Number Answer;
  typedef typename Given::Number Number;
  typedef typename Kinds::Keys Keys;
  typedef typename Kinds::Values Values;
  typedef typename Keys::Precision::Number Query;
  const long width = of.width, group = head / (of.heads / of.groups), padded = HeldHead::padded(row.keys);
  const long deep = width / Keys::NUMBERS;
  const Number *keys = of.k.at<Number>(row.held, group, row.first);
  if (held.known != keys) {
    held.known = keys;
    columns<Given, Keys>(keys, of.k.slot, row.keys, width, held.keys, padded);
    stacked<Given, Values>(of.v.at<Number>(row.held, group, row.first), of.v.slot, row.keys, width, held.values, padded);
  }
  for (long first = 0; first < row.queries; first += TALL) {
    const long many = row.queries - first < TALL ? row.queries - first : TALL;
    for (long r = 0; r < TALL; r++)
      for (long i = 0; i < width; i += LANES) {
        const Number *from = of.q.at<Number>(row.held, head, row.first + first + r) + i;
        Keys::Precision::write((Query *)held.q + r * width + i, r < many ? Given::read(from) : Floats{});
      }
    const long last = of.causal && first + many < row.keys ? first + many : row.keys;  // beyond, nobody sees a key
    const long seen = HeldHead::padded(last);
    Floats sums[TALL][2];
    for (long s = 0; s < seen; s += WIDE) {
      multiply<typename Keys::Of>(held.q, deep, held.keys + s, padded, deep, sums);
#pragma GCC unroll 8
      for (int r = 0; r < TALL; r++)
        for (int h = 0; h < 2; h++) store(held.scores + r * padded + s + h * LANES, sums[r][h] * of.scale);
    }
    float shares[TALL];
    for (long r = 0; r < many; r++) shares[r] = weigh<Values>(of, row, first + r, seen, held.scores + r * padded);
    for (long i = 0; i < width; i += WIDE) {
      const long cells = (last + Values::NUMBERS - 1) / Values::NUMBERS;
      multiply<typename Values::Of>((const uint32_t *)held.scores, padded, held.values + i, width, cells, sums);
      Answer *to = (Answer *)of.o + ((row.held * of.queries + row.first + first) * of.heads + head) * width + i;
#pragma GCC unroll 8
      for (int r = 0; r < TALL; r++) {
        if (r == many) break;
        Kinds::Answer::write(to, sums[r][0] * shares[r]);
        Kinds::Answer::write(to + LANES, sums[r][1] * shares[r]);
        to += of.heads * width;
      }
    }
  }
}

template <class Kinds> static void whole_rows(const WholeRows *of) {
  const long each = HeldHead::numbers(of->keys, of->width);
  Room room(of->threads * each);
#pragma omp parallel num_threads(of->threads)
  {
    HeldHead held(room.next + omp_get_thread_num() * each, of->keys, of->width);
#pragma omp for schedule(dynamic, 1)
    for (long task = 0; task < of->rows * of->heads; task++)
      read_head<Kinds>(*of, OneRow(*of, task / of->heads), task % of->heads, held);
  }
}

extern "C" void qkv_whole_rows(const WholeRows *of) {
  if (of->kind == SINGLE) whole_rows<AllSingle>(of);
  else whole_rows<AllBFloat16>(of);
}
