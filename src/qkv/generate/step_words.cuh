// What blocks tell each other: words in global memory, each a number in float32 whose lowest 8 bits say of which layer
// it is.
//
// Who needs a number asks for its word until it is of now: no fence, no counter, and no more time than a store and
// a load take. All that is asked of the memory is that a word becomes visible whole. Every word is told once in every
// layer, so that those 8 bits need only tell a layer from the one before.
//
// Nobody tells a word of the next layer before all have read that of this one. A block has read all that a phase reads
// before it tells anything of that phase, and in each layer tells some of the stream behind `out` and behind `outer`.
// Who tells hidden units, or the stream behind `outer`, comes after all of the stream behind `out` of that layer; who
// tells queries, shares or the stream behind `out` comes after all of the stream behind `outer` of the layer before;
// itself, or because it needs words of others who do. So when a word is told, each block is past the half of a layer
// in which it read that word's last number.

#pragma once

#include "step_plan.cuh"

constexpr int RECORD = HEAD_WIDTH + 4;  // words of a share: what it attended to, its highest score, its sum

// Where words lie; each part begins in a line of its own.
__device__ constexpr int lined(int words) { return (words + 31) / 32 * 32; }
constexpr int BEHIND_OUT = 0, BEHIND_OUTER = BEHIND_OUT + lined(ROWS * WIDTH);  // the stream
constexpr int PROJECTED = BEHIND_OUTER + lined(ROWS * WIDTH), PARTS = PROJECTED + lined(ROWS * QKV);
constexpr int ACTIVE = PARTS + lined(LINES * SHARES * RECORD);  // hidden units

// Words that others tell, or what v was: without a branch, so that many are asked for before the first is there.
__device__ __forceinline__ void ask(uint4& v, const u32* p, bool if_so) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(p), "r"((u32)if_so)
        : "memory");
}

__device__ __forceinline__ void ask(u32& v, const u32* p, bool if_so) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.relaxed.gpu.global.u32 %0, [%1];\n}\n"
                 : "+r"(v)
                 : "l"(p), "r"((u32)if_so)
                 : "memory");
}

__device__ __forceinline__ void put(u32* p, u32 word) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(word) : "memory");
}

// A number as words hold it, with 16 bits of its fraction's 24
__device__ __forceinline__ u32 shortened(float v) {
    u32 bits = __float_as_uint(v);
    return v == v ? (bits + 127u + (bits >> 8 & 1u)) & ~255u : 0x7fc00000u;
}

__device__ __forceinline__ float number_of(u32 word) { return __uint_as_float(word & ~255u); }
__device__ __forceinline__ float4 numbers_of(uint4 v) {
    return make_float4(number_of(v.x), number_of(v.y), number_of(v.z), number_of(v.w));
}

// Four words whose numbers are bfloat16
__device__ __forceinline__ uint2 pairs_of(uint4 v) {
    return make_uint2(v.x >> 16 | (v.y & 0xffff0000u), v.z >> 16 | (v.w & 0xffff0000u));
}

constexpr u32 LONG_PATIENCE = 1u << 24;  // polls: who waits here may wait for all other blocks

template <class Round>
__device__ __forceinline__ void until(Round round) {
#pragma unroll 1
    for (u32 polls = 0; !round();)
        if (++polls == LONG_PATIENCE) __trap();
}

struct Words {
    u32* all;
    u32 now;  // which of them are of this layer

    __device__ __forceinline__ void tell(int word, float v) { put(all + word, shortened(v) | now); }

    __device__ __forceinline__ bool is_of_now(u32 v) { return ((v ^ now) & 255u) == 0; }
    __device__ __forceinline__ bool is_of_now(uint4 v) {
        return (((v.x ^ now) | (v.y ^ now) | (v.z ^ now) | (v.w ^ now)) & 255u) == 0;
    }

    // All words that a thread needs, asked for together until all are of now: a round takes as long as one of them.
    // `at` gives the place of the p-th, `wanted` whether there is one.
    template <int COUNT, class Asked, class At, class Wanted>
    __device__ __forceinline__ bool ask_for(Asked (&v)[COUNT], At at, Wanted wanted) {
        bool all_are = true;
#pragma unroll
        for (int p = 0; p < COUNT; p++) ask(v[p], at(p), wanted(p) && !is_of_now(v[p]));
#pragma unroll
        for (int p = 0; p < COUNT; p++) all_are = all_are && (!wanted(p) || is_of_now(v[p]));
        return all_are;
    }

    template <int COUNT>
    __device__ __forceinline__ void forget(uint4 (&v)[COUNT]) {
#pragma unroll
        for (int p = 0; p < COUNT; p++) v[p] = make_uint4(~now, ~now, ~now, ~now);
    }

    template <int COUNT>
    __device__ __forceinline__ void forget(u32 (&v)[COUNT]) {
#pragma unroll
        for (int p = 0; p < COUNT; p++) v[p] = ~now;
    }

    template <int COUNT, class At, class Wanted>
    __device__ __forceinline__ void await(uint4 (&v)[COUNT], At at, Wanted wanted) {
        forget(v);
        until([&] { return ask_for(v, at, wanted); });
    }
};
