// What cores multiply at best: sums and factors that stay in registers, so that nothing is ever waited for.

#include "cpu_maps.h"

constexpr int SUMS = 12;  // enough that none waits for the one before it

template <class Of> static void multiply(long times) {
  typename Of::Sum sums[SUMS] = {};
  Cells w = Cells{} + 0x3c003c00u, x = w;
  for (long i = 0; i < times; i++) {
#pragma GCC unroll 12
    for (int s = 0; s < SUMS; s++) {
      sums[s] = Of::plus(sums[s], w, x);
      asm volatile("" : "+v"(sums[s]));  // which the compiler must not foresee
    }
  }
}

// Operations of LANES cells that each of so many threads does: each is a product and a sum of every number in a cell.
extern "C" long qkv_registers(int kind, long times, int threads) {
#pragma omp parallel num_threads(threads)
  {
    if (kind == SINGLE) multiply<OfSingle>(times);
    else if (kind == BFLOAT16) multiply<OfBFloat16>(times);
    else multiply<OfEightBits>(times);
  }
  const long numbers = kind == SINGLE ? 1 : kind == BFLOAT16 ? 2 : 4;
  return 2 * numbers * LANES * SUMS * times * threads;
}
