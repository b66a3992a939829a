// Activations behind a product, and their slopes. By #define: ACTIVATION: one of those below.
//
// The formulas of `activation_programs`, which says where they come from, no further than 5e-7 from those of
// `feedforward`; and slopes, no further than 1e-5. That of a GELU is d(a) below 0 and 1 − d(a) above, where a = |z| and
// d is an exponential of −a² times a polynomial.

#pragma once

#include "hopper.cuh"

#define NONE 0
#define GELU 1
#define GELU_TANH 2
#define GELU_QUICK 3
#define SILU 4
#define RELU 5

__device__ __forceinline__ float at_most(float x, float limit) {
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(limit));
    return y;
}

__device__ __forceinline__ float at_least(float x, float limit) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(limit));
    return y;
}

__device__ __forceinline__ float quotient(float x, float y) {
    float z;
    asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

__device__ __forceinline__ float activated(float y) {
#if ACTIVATION == GELU
    float a = at_most(fabsf(y), 5.5f);
    float p = fmaf(3.240682781324722e-05f, a, -0.000754765176679939f);
    p = fmaf(p, a, 0.008003950119018555f);
    p = fmaf(p, a, -0.053243488073349f);
    p = fmaf(p, a, -0.4589402675628662f);
    p = fmaf(p, a, -1.1511284112930298f);
    p = fmaf(p, a, -1.0000033378601074f);
    return fmaf(-a, power_of_2(p), at_least(y, 0.0f));
#elif ACTIVATION == GELU_TANH
    float a = at_most(fabsf(y), 5.0f);
    float p = fmaf(-2.201170900661964e-05f, a, 0.00035156458034180105f);
    p = fmaf(p, a, -0.0018074767431244254f);
    p = fmaf(p, a, 0.0015914436662569642f);
    p = fmaf(p, a, 0.007841621525585651f);
    p = fmaf(p, a, -0.053453993052244186f);
    p = fmaf(p, a, -0.45760318636894226f);
    p = fmaf(p, a, -1.1515896320343018f);
    p = fmaf(p, a, -0.9999561309814453f);
    return fmaf(-a, power_of_2(p), at_least(y, 0.0f));
#elif ACTIVATION == GELU_QUICK
    return quotient(y, 1.0f + power_of_2(-2.4554669595930157f * y));  // 1.702 log2(e)
#elif ACTIVATION == SILU
    return quotient(y, 1.0f + power_of_2(-1.4426950408889634f * y));
#elif ACTIVATION == RELU
    return at_least(y, 0.0f);
#else
    return y;
#endif
}

__device__ __forceinline__ float slope(float z) {
#if ACTIVATION == GELU
    float a = at_most(fabsf(z), 9.0f);
    float p = fmaf(-0.00010079752973979339f, a, 0.0017239992739632726f);
    p = fmaf(p, a, -0.01144403126090765f);
    p = fmaf(p, a, 0.033918168395757675f);
    p = fmaf(p, a, -0.04950364679098129f);
    p = fmaf(p, a, 0.1988687664270401f);
    p = fmaf(p, a, -0.7977513670921326f);
    p = fmaf(p, a, 0.49999743700027466f);
    float d = p * power_of_2(-0.5770780163555854f * a * a);  // e^(-0.4 a²)
    return z > 0.0f ? 1.0f - d : d;
#elif ACTIVATION == GELU_TANH
    float a = at_most(fabsf(z), 9.0f);
    float p = fmaf(-0.0004582331166602671f, a, 0.0056281606666743755f);
    p = fmaf(p, a, -0.025348899886012077f);
    p = fmaf(p, a, 0.06558238714933395f);
    p = fmaf(p, a, -0.13585926592350006f);
    p = fmaf(p, a, 0.2518092095851898f);
    p = fmaf(p, a, -0.7981462478637695f);
    p = fmaf(p, a, 0.5000059604644775f);
    float d = p * power_of_2(-0.7213475204444817f * a * a);  // e^(-0.5 a²)
    return z > 0.0f ? 1.0f - d : d;
#elif ACTIVATION == GELU_QUICK
    float share = quotient(1.0f, 1.0f + power_of_2(-2.4554669595930157f * z));
    return fmaf(1.702f * z * share, 1.0f - share, share);
#elif ACTIVATION == SILU
    float share = quotient(1.0f, 1.0f + power_of_2(-1.4426950408889634f * z));
    return fmaf(z * share, 1.0f - share, share);
#elif ACTIVATION == RELU
    return z > 0.0f ? 1.0f : 0.0f;
#else
    return 1.0f;
#endif
}
