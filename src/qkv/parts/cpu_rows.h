// Attention of whole rows, short enough that a core holds the keys and values of a head: [dao2022 alg.1] without blocks of
// keys, since scores of a few queries to all keys fit into the nearest cache.

#pragma once

#include "cpu_room.h"
#include "cpu_vectors.h"

#include <cmath>
#include <omp.h>

#if defined(__AVX512F__)
constexpr int TALL = 8;  // queries whose sums fit into registers, beside each other WIDE numbers
#else
constexpr int TALL = 4;
#endif
constexpr int WIDE = 2 * LANES;

// sums [TALL, WIDE] of x [TALL, deep] by w [deep, WIDE]; rows of both lie so far apart.
static inline void multiply(const float *x, long x_apart, const float *w, long w_apart, long deep, Floats (&sums)[TALL][2]) {
  for (int r = 0; r < TALL; r++) sums[r][0] = sums[r][1] = Floats{};
  for (long i = 0; i < deep; i++) {
    const Floats first = loaded<Floats>(w + i * w_apart), second = loaded<Floats>(w + i * w_apart + LANES);
#pragma GCC unroll 8
    for (int r = 0; r < TALL; r++) {
      const Floats one = everywhere(x + r * x_apart + i);
      sums[r][0] += one * first, sums[r][1] += one * second;
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

// The weights of one query: from scores [keys] to exponentials, 0 where a key is hidden. Given back is one over their sum.
static inline float weigh(const WholeRows &of, const OneRow &row, long query, long padded, float *scores) {
  const int64_t *documents = of.documents == nullptr ? nullptr : of.documents + row.held * of.keys;
  const long seen = of.causal && query + 1 < row.keys ? query + 1 : row.keys;
  for (long i = seen; i < padded; i++) scores[i] = -INFINITY;
  if (documents != nullptr)
    for (long i = 0; i < seen; i++) scores[i] = documents[i] == 0 ? -INFINITY : scores[i];
  Floats high = all(-INFINITY), odd = {};
  for (long i = 0; i < padded; i += LANES) {
    const Floats v = loaded<Floats>(scores + i);
    high = larger(v, high);
    odd += v != v ? v : Floats{};
  }
  const float largest = largest_of(high) + sum_of(odd);  // no number where one of them was none
  if (largest == -INFINITY) {  // a query that sees nothing reads nothing
    std::memset(scores, 0, 4 * padded);
    return 0;
  }
  Floats total = {};
  for (long i = 0; i < padded; i += LANES) {
    const Floats weights = exponential(loaded<Floats>(scores + i) - largest);
    store(scores + i, weights);
    total += weights;
  }
  return 1 / sum_of(total);
}

// Rows of numbers as columns [width, padded]: LANES of them at a time; behind the last are zeros.
template <class Precision>
static inline void columns(const typename Precision::Number *from, long apart, long rows, long width, float *to, long padded) {
  for (long s = 0; s < padded; s += LANES)
    for (long i = 0; i < width; i += LANES) {
      float block[LANES * LANES];
      for (long r = 0; r < LANES && s + r < rows; r++)
        store(block + r * LANES, Precision::read(from + (s + r) * apart + i));
      transpose(block, LANES, rows - s, to + i * padded + s, padded);
    }
}

template <class Precision> static void whole_rows(const WholeRows *of) {
  typedef typename Precision::Number Number;
  const long width = of->width, most = (of->keys + WIDE - 1) / WIDE * WIDE;
  const long each = 2 * most * width + TALL * most + TALL * width;
  Room room(of->threads * each);
#pragma omp parallel num_threads(of->threads)
  {
    float *keys = room.next + omp_get_thread_num() * each, *values = keys + most * width;  // [width, padded], [padded, width]
    float *scores = values + most * width, *q = scores + TALL * most;                     // [TALL, padded], [TALL, width]
    const Number *known = nullptr;  // the head whose keys are there
#pragma omp for schedule(dynamic, 1)
    for (long task = 0; task < of->rows * of->heads; task++) {
      const OneRow row(*of, task / of->heads);
      const long head = task % of->heads, group = head / (of->heads / of->groups);
      const long padded = (row.keys + WIDE - 1) / WIDE * WIDE;
      if (known != of->k.at<Number>(row.held, group, row.first)) {
        known = of->k.at<Number>(row.held, group, row.first);
        columns<Precision>(known, of->k.slot, row.keys, width, keys, padded);
        const Number *from = of->v.at<Number>(row.held, group, row.first);
        for (long s = 0; s < padded; s++)
          for (long i = 0; i < width; i += LANES)
            store(values + s * width + i, s < row.keys ? Precision::read(from + s * of->v.slot + i) : Floats{});
      }
      for (long first = 0; first < row.queries; first += TALL) {
        const long many = row.queries - first < TALL ? row.queries - first : TALL;
        for (long r = 0; r < TALL; r++)
          for (long i = 0; i < width; i += LANES) {
            const Number *from = of->q.at<Number>(row.held, head, row.first + first + r) + i;
            store(q + r * width + i, r < many ? Precision::read(from) * of->scale : Floats{});
          }
        const long last = of->causal && first + many < row.keys ? first + many : row.keys;  // beyond, nobody sees a key
        const long seen = (last + WIDE - 1) / WIDE * WIDE;
        Floats sums[TALL][2];
        for (long s = 0; s < seen; s += WIDE) {
          multiply(q, width, keys + s, padded, width, sums);
          for (int r = 0; r < TALL; r++)
            for (int h = 0; h < 2; h++) store(scores + r * padded + s + h * LANES, sums[r][h]);
        }
        float shares[TALL];
        for (long r = 0; r < many; r++) shares[r] = weigh(*of, row, first + r, seen, scores + r * padded);
        for (long i = 0; i < width; i += WIDE) {
          multiply(scores, padded, values + i, width, last, sums);
          for (long r = 0; r < many; r++)
            for (int h = 0; h < 2; h++) {
              const long slot = row.held * of->queries + row.first + first + r;
              Number *to = (Number *)of->o + (slot * of->heads + head) * width + i + h * LANES;
              Precision::write(to, sums[r][h] * shares[r]);
            }
        }
      }
    }
  }
}

extern "C" void qkv_whole_rows(const WholeRows *of) {
  if (of->kind == SINGLE) whole_rows<Single>(of);
  else whole_rows<BFloat16>(of);
}
