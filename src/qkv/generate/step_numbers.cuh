// Numbers of a step: bfloat16 where memory is read, float32 where there is arithmetic; and activations.

#pragma once

#include "step_plan.cuh"

// As product.cu has them for float16 too, the compiler makes other code of what follows: each has its own.
__device__ __forceinline__ float low_of(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ u16 narrowed(float v) { return (u16)narrowed(v, 0.0f); }
__device__ __forceinline__ float rounded(float v) { return widened(narrowed(v)); }
__device__ __forceinline__ float exponential(float x) { return power_of_2(x * 1.4426950408889634f); }

__device__ __forceinline__ void widen(uint4 v, float* to) {
    to[0] = low_of(v.x), to[1] = high_of(v.x), to[2] = low_of(v.y), to[3] = high_of(v.y);
    to[4] = low_of(v.z), to[5] = high_of(v.z), to[6] = low_of(v.w), to[7] = high_of(v.w);
}

__device__ __forceinline__ float4 widened(uint2 v) {
    return make_float4(low_of(v.x), high_of(v.x), low_of(v.y), high_of(v.y));
}

enum { NONE, GELU, GELU_TANH, GELU_QUICK, SILU, RELU };

// As in parts/activation_programs.py. Those of product.cu, which has thousands to do at a time, divide less exactly.
__device__ __forceinline__ float activated(float y) {
    if (ACTIVATION == GELU) {
        float a = fminf(fabsf(y), 5.5f);
        float p = 3.240682781324722e-05f * a - 0.000754765176679939f;
        p = p * a + 0.008003950119018555f;
        p = p * a - 0.053243488073349f;
        p = p * a - 0.4589402675628662f;
        p = p * a - 1.1511284112930298f;
        p = p * a - 1.0000033378601074f;
        return y == y ? fmaxf(y, 0.0f) - a * power_of_2(p) : y;  // what is no number stays none
    }
    if (ACTIVATION == GELU_TANH) {
        float a = fminf(fabsf(y), 5.0f);
        float p = -2.201170900661964e-05f * a + 0.00035156458034180105f;
        p = p * a - 0.0018074767431244254f;
        p = p * a + 0.0015914436662569642f;
        p = p * a + 0.007841621525585651f;
        p = p * a - 0.053453993052244186f;
        p = p * a - 0.45760318636894226f;
        p = p * a - 1.1515896320343018f;
        p = p * a - 0.9999561309814453f;
        return y == y ? fmaxf(y, 0.0f) - a * power_of_2(p) : y;
    }
    if (ACTIVATION == GELU_QUICK) return y / (1.0f + power_of_2(-2.4554669595930157f * y));
    if (ACTIVATION == SILU) return y / (1.0f + power_of_2(-1.4426950408889634f * y));
    if (ACTIVATION == RELU) return y == y ? fmaxf(y, 0.0f) : y;
    return y;
}
