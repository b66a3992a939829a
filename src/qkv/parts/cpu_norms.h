// Norms of a row: mean 0 and variance 1, or root mean square 1, then a gain and a shift.

#pragma once

#include "cpu_vectors.h"

#include <cmath>

struct Norm {
  const float *gain;   // null: there is no norm
  const float *shift;  // or null
  float epsilon;
  int rms;  // whether no mean is taken off
};

// From x to y, which may be the same.
static inline void norm_row(const Norm &norm, const float *x, float *y, long width) {
  if (norm.gain == nullptr) {
    if (x != y) std::memcpy(y, x, 4 * width);
    return;
  }
  Floats sum = {};
  if (!norm.rms)
    for (long i = 0; i < width; i += LANES) sum += loaded<Floats>(x + i);
  const float mean = sum_of(sum) / width;
  Floats squares = {};
  for (long i = 0; i < width; i += LANES) {
    const Floats v = loaded<Floats>(x + i) - mean;
    squares += v * v;
  }
  const float scale = 1 / std::sqrt(sum_of(squares) / width + norm.epsilon);
  for (long i = 0; i < width; i += LANES) {
    Floats v = (loaded<Floats>(x + i) - mean) * scale * loaded<Floats>(norm.gain + i);
    if (norm.shift != nullptr) v += loaded<Floats>(norm.shift + i);
    store(y + i, v);
  }
}
