// As many numbers at a time as the processor has room for in a register, in the compiler's own vectors.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
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
typedef int16_t Shorts __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));

template <class Vector> static inline Vector loaded(const void *from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class Vector> static inline void store(void *to, Vector v) { std::memcpy(to, &v, sizeof v); }

// Memory that will soon be read, or written to, is brought near.
template <int WRITES> static inline void fetch(const char *from) {
  __builtin_prefetch(from, WRITES);
  asm volatile("");  // GCC removes loops that do nothing else, as if they did nothing
}

static inline Floats all(float x) { return Floats{} + x; }

// A number of memory in all places: GCC reads it so by itself only where it is told how.
static inline Cells everywhere(const uint32_t *x) {
#if defined(__AVX512F__)
  return (Cells)_mm512_set1_epi32((int)*x);
#else
  return Cells{} + *x;
#endif
}

static inline Floats everywhere(const float *x) {
#if defined(__AVX512F__)
  return (Floats)_mm512_set1_ps(*x);
#else
  return all(*x);
#endif
}

enum Kind { SINGLE, BFLOAT16, EIGHT_BITS };  // precisions, as Python numbers them

// How numbers of a stream are read and written.
struct Single {
  static constexpr Kind KIND = SINGLE;
  typedef float Number;
  static inline Floats read(const Number *x) { return loaded<Floats>(x); }
  static inline void write(Number *y, Floats v) { store(y, v); }
};

struct BFloat16 {
  static constexpr Kind KIND = BFLOAT16;
  typedef uint16_t Number;

  static inline Floats read(const Number *x) { return (Floats)(__builtin_convertvector(loaded<Halves>(x), Cells) << 16); }

  static inline void write(Number *y, Floats v) {
#if defined(__AVX512BF16__)
    store(y, _mm512_cvtneps_pbh((__m512)v));  // as below, but that numbers too small for single precision's own are 0
#else
    store(y, __builtin_convertvector(rounded(v) >> 16, Halves));
#endif
  }

  // To the nearest, of two as near to the even one; what is no number stays none.
  static inline Cells rounded(Floats v) {
    Cells bits = (Cells)v;
    Cells up = bits + 0x7fff + ((bits >> 16) & 1);
    return (v == v) ? up : (bits | 0x400000);
  }
};

// Halves are joined to each other until one number is left.
template <class Join> static inline float joined(Floats v, Join join) {
#if defined(__AVX512F__)
  v = join(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  v = join(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  v = join(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  return join(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14))[0];
#elif defined(__AVX__)
  v = join(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
  v = join(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5));
  return join(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6))[0];
#else
  v = join(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
  return join(v, __builtin_shufflevector(v, v, 1, 0, 3, 2))[0];
#endif
}

// Products of two numbers of 16 bits and their neighbours', of which the second are not negative, added up in 32 bits.
static inline Ints sums_of_pairs(Shorts w, Cells x) {
#if defined(__AVX512BW__)
  return (Ints)_mm512_madd_epi16((__m512i)w, (__m512i)x);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return (Ints)_mm256_madd_epi16((__m256i)w, (__m256i)x);
#elif defined(__SSE2__) && !defined(__AVX__)
  return (Ints)_mm_madd_epi16((__m128i)w, (__m128i)x);
#else
  return (((Ints)w << 16) >> 16) * (Ints)(x & 0xffff) + ((Ints)w >> 16) * (Ints)(x >> 16);
#endif
}

static inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// The larger of a number and x, and the smaller; of an x that is none, x.
static inline Floats at_least(float a, Floats x) {
#if defined(__AVX512F__)
  return (Floats)_mm512_max_ps((__m512)all(a), (__m512)x);
#else
  return x < a ? all(a) : x;
#endif
}

static inline Floats at_most(float a, Floats x) {
#if defined(__AVX512F__)
  return (Floats)_mm512_min_ps((__m512)all(a), (__m512)x);
#else
  return x > a ? all(a) : x;
#endif
}

static inline Floats magnitude(Floats x) { return (Floats)((Cells)x & 0x7fffffffu); }

static inline float sum_of(Floats v) {
  return joined(v, [](Floats a, Floats b) { return a + b; });
}

static inline float largest_of(Floats v) { return joined(v, larger); }

// To the nearest whole number, for numbers below 2^22: what is added pushes the rest out.
static inline Floats whole(Floats x) {
  const Floats pushes = all(12582912.0f);
  return (x + pushes) - pushes;
}

// p 2^n, for whole numbers n.
static inline Floats scaled(Floats p, Floats n) {
#if defined(__AVX512F__)
  return (Floats)_mm512_scalef_ps((__m512)p, (__m512)n);  // any n, also one without end
#else
  return (Floats)((Ints)p + (__builtin_convertvector(n, Ints) << 23));
#endif
}

static inline Floats nearest_whole(Floats x) {
#if defined(__AVX512F__)
  return (Floats)_mm512_roundscale_ps((__m512)x, 8);
#else
  return whole(x);
#endif
}

// e^x = 2^n e^r with |r| at most half of log 2, by Taylor's series up to the term that no longer counts.
static inline Floats exponential(Floats x) {
#if !defined(__AVX512F__)
  const Floats low = all(-87.3f), high = all(88.7f);
  const Ints vanishes = x < low;
  x = x < low ? low : x;
  x = x > high ? high : x;
#endif
  const Floats n = nearest_whole(x * 1.44269504f);
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = all(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
#if defined(__AVX512F__)
  return x == -INFINITY ? Floats{} : scaled(p, n);
#else
  return (Floats)((Ints)scaled(p, n) & ~vanishes);
#endif
}

// 2^x for x from -126 to 127: 2^n 2^r with |r| at most a half, by a polynomial that is off by 2e-9 of it at most, or by
// 8e-5 where what becomes of it is rounded to bfloat16.
template <class Precision> static inline Floats power_of_two(Floats x) {
  const Floats n = nearest_whole(x), r = x - n;
  if constexpr (Precision::KIND == BFLOAT16) {
    Floats p = r * 0.0551716909f + 0.24261117f;
    p = p * r + 0.693260968f;
    p = p * r + 0.999928057f;
    return scaled(p, n);
  }
  Floats p = r * 0.000153533618f + 0.00133988744f;
  p = p * r + 0.00961843736f;
  p = p * r + 0.0555033247f;
  p = p * r + 0.240226479f;
  p = p * r + 0.693147203f;
  p = p * r + 1.0f;
  return scaled(p, n);
}

// Of two rows the first has numbers j, of which j & S is none, where they are, and the second's in the other places.
template <int S, int... J> static inline void exchange(Floats &a, Floats &b, std::integer_sequence<int, J...>) {
  const Floats first = __builtin_shufflevector(a, b, (J & S ? LANES + J - S : J)...);
  b = __builtin_shufflevector(a, b, (J & S ? LANES + J : J + S)...);
  a = first;
}

template <int S> static inline void exchange_all(Floats (&v)[LANES]) {
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++)
    if (!(i & S)) exchange<S>(v[i], v[i + S], std::make_integer_sequence<int, LANES>());
  if constexpr (2 * S < LANES) exchange_all<2 * S>(v);
}

// LANES rows of LANES numbers become columns; of rows and of numbers there are so many, the others are 0.
static inline void transpose(const float *from, long apart, long rows, float *to, long to_apart, long numbers = LANES) {
  Floats v[LANES] = {};
  for (int i = 0; i < LANES && i < rows; i++) {
    if (numbers >= LANES) v[i] = loaded<Floats>(from + i * apart);
    else std::memcpy(&v[i], from + i * apart, 4 * numbers);
  }
  exchange_all<1>(v);
  for (int i = 0; i < LANES && i < numbers; i++) store(to + i * to_apart, v[i]);
}
