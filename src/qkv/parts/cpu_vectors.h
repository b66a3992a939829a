// As many numbers at a time as the processor has room for in a register, in the compiler's own vectors.

#pragma once

#include <cstdint>
#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Cells __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));

template <class Vector> static inline Vector loaded(const void *from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class Vector> static inline void store(void *to, Vector v) { std::memcpy(to, &v, sizeof v); }

static inline Floats all(float x) { return Floats{} + x; }

// A number of memory in all places: GCC reads it so by itself only where it is told how.
static inline Floats everywhere(const float *x) {
#if defined(__AVX512F__)
  return (Floats)_mm512_set1_ps(*x);
#else
  return all(*x);
#endif
}

// Precisions of a stream, as Python numbers them: how numbers of each are read and written.
struct Single {
  typedef float Number;
  static inline Floats read(const Number *x) { return loaded<Floats>(x); }
  static inline void write(Number *y, Floats v) { store(y, v); }
};

struct BFloat16 {
  typedef uint16_t Number;

  static inline Floats read(const Number *x) { return (Floats)(__builtin_convertvector(loaded<Halves>(x), Cells) << 16); }

  static inline void write(Number *y, Floats v) {
    store(y, __builtin_convertvector(rounded(v) >> 16, Halves));
  }

  // To the nearest, of two as near to the even one; what is no number stays none.
  static inline Cells rounded(Floats v) {
    Cells bits = (Cells)v;
    Cells up = bits + 0x7fff + ((bits >> 16) & 1);
    return (v == v) ? up : (bits | 0x400000);
  }
};

// Halves are added to each other until one number is left.
static inline float sum_of(Floats v) {
#if defined(__AVX512F__)
  v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
#elif defined(__AVX__)
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
#else
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1);
#endif
  return v[0] + v[1];
}

static inline float largest_of(Floats v) {
  float largest = v[0];
  for (int i = 1; i < LANES; i++) largest = v[i] > largest ? v[i] : largest;
  return largest;
}

// To the nearest whole number, for numbers below 2^22: what is added pushes the rest out.
static inline Floats whole(Floats x) {
  const Floats pushes = all(12582912.0f);
  return (x + pushes) - pushes;
}

// e^x = 2^n e^r with |r| at most half of log 2, by Taylor's series up to the term that no longer counts.
static inline Floats exponential(Floats x) {
  const Floats low = all(-87.3f), high = all(88.7f);
  const Ints vanishes = x < low;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Floats n = whole(x * 1.44269504f);
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = all(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Ints power = __builtin_convertvector(n, Ints) << 23;
  return (Floats)(((Ints)p + power) & ~vanishes);
}
