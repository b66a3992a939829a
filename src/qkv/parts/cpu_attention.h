// Attention of one new token a row to all that stands before it, or to a memory.

#pragma once

#include "cpu_vectors.h"

#include <cmath>

struct Heads {
  long heads, groups;            // of queries; of keys and values
  long key_width, value_width;   // multiples of LANES
  float scale;
};

// Keys [rows, groups, capacity, key width] and values, of which the first `slots` count.
struct Kept {
  void *keys, *values;
  long capacity, slots;
  const int64_t *documents;  // [rows, slots]: 0 where a slot is hidden; null: none is
};

struct Bias {
  const float *scores;  // [rows, heads, slots], or null
  long row, head;       // from one to the next
};

template <class Precision> static inline Floats product(const float *q, const typename Precision::Number *k, long width) {
  Floats sum = {};
  for (long i = 0; i < width; i += LANES) sum += loaded<Floats>(q + i) * Precision::read(k + i);
  return sum;
}

// What one head of one row reads. q [key width], into o [value width]; `scores` has room for all slots.
template <class Precision>
static inline void read_slots(const Heads &heads, const Kept &kept, const float *bias, long memory, long group,
                              const float *q, float *scores, float *o) {
  typedef typename Precision::Number Number;
  const long first = (memory * heads.groups + group) * kept.capacity;
  const Number *keys = (const Number *)kept.keys + first * heads.key_width;
  const Number *values = (const Number *)kept.values + first * heads.value_width;
  const int64_t *documents = kept.documents == nullptr ? nullptr : kept.documents + memory * kept.slots;
  float largest = -INFINITY;
  for (long s = 0; s < kept.slots; s++) {
    float score = sum_of(product<Precision>(q, keys + s * heads.key_width, heads.key_width)) * heads.scale;
    if (bias != nullptr) score += bias[s];
    if (documents != nullptr && documents[s] == 0) score = -INFINITY;
    scores[s] = score;
    largest = score > largest || score != score ? score : largest;
  }
  const long width = heads.value_width;
  for (long i = 0; i < width; i += LANES) store(o + i, Floats{});
  if (largest == -INFINITY) return;  // a row that sees nothing reads nothing
  for (long s = kept.slots; s % LANES; s++) scores[s] = -INFINITY;
  Floats total = {};
  for (long s = 0; s < kept.slots; s += LANES) {
    const Floats weights = exponential(loaded<Floats>(scores + s) - largest);
    store(scores + s, weights);
    total += weights;
  }
  const float whole_weight = 1 / sum_of(total);
  for (long i = 0; i < width; i += LANES) {
    Floats sum[4] = {};  // so that none waits for another
    long s = 0;
    for (; s + 4 <= kept.slots; s += 4)
      for (int a = 0; a < 4; a++) sum[a] += Precision::read(values + (s + a) * width + i) * scores[s + a];
    for (; s < kept.slots; s++) sum[0] += Precision::read(values + s * width + i) * scores[s];
    store(o + i, ((sum[0] + sum[1]) + (sum[2] + sum[3])) * whole_weight);
  }
}
