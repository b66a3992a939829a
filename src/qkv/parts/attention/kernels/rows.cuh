// What programs that attend to rows of queries, keys and values on Hopper GPUs share.
//
// By #define: GROUPS: of warps that multiply; and what `hopper.cuh` asks for.

#pragma once

#include "hopper.cuh"

constexpr u32 THE_FULL = 0xffffffffu;

// ---------------------------------------------------------------------------------------------------- copies
// Of tensors [b h s D], which are named from the innermost on.

__device__ __forceinline__ void load(
    const Tiles& tiles, u32 to, int column, int row, int head, int batch, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3, %4, %5}], [%6];"
        ::"r"(to), "l"(&tiles), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier) : "memory");
}

__device__ __forceinline__ void store(const Tiles& tiles, u32 from, int column, int row, int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];"
        ::"l"(&tiles), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(from) : "memory");
}

// ---------------------------------------------------------------------------------------------------- products
// A thread has of every 8 columns, in rows lane / 4 and 8 below it, those at 2 (lane % 4); each warp has 16 rows.

template <int COUNT>
__device__ __forceinline__ void stay_here(float (&d)[COUNT]) {  // what makes d stays before this, what reads it behind
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// d [64 64] (+)= weights [64 16] v [16 64]. A thread has of the weights what it had of their scores.
__device__ __forceinline__ void multiply_values(float (&d)[32], const u32* w, u64 v, int adds) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." NARROW "." NARROW
        " {" FIRST_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1; }"
        : OWN_32(0) : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(v), "r"(adds));
}

// ---------------------------------------------------------------------------------------------------- turns

__device__ __forceinline__ void take_turn(int group) {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
}

__device__ __forceinline__ void give_turn(int group) {  // to the one that comes behind this group
    asm volatile("bar.arrive %0, 256;" ::"r"(group + 1 == GROUPS ? 1 : 2 + group) : "memory");
}

// ---------------------------------------------------------------------------------------------------- rows of scores

__device__ __forceinline__ float of_four(float x) {  // the largest of the lanes that share a row
    x = fmaxf(x, __shfl_xor_sync(THE_FULL, x, 1));
    return fmaxf(x, __shfl_xor_sync(THE_FULL, x, 2));
}

__device__ __forceinline__ float sum_of_four(float x) {
    x += __shfl_xor_sync(THE_FULL, x, 1);
    return x + __shfl_xor_sync(THE_FULL, x, 2);
}

// Where in a room, whose rows of 128 bytes are swizzled, a lane puts its part: matrices of 8 by 8, two below each other
// and two beside, of which it names the row lane % 8 of matrix lane / 8.
__device__ __forceinline__ u32 corner_of(int lane) { return lane % 16 * 128 + (lane / 16 ^ lane % 8) * 16; }

// What a warp has made of its 16 rows, 64 narrow numbers of each.
__device__ __forceinline__ void put_down(u32 corner, const u32 (&packed)[16]) {
#pragma unroll
    for (int j = 0; j < 4; j++)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(corner ^ j * 32),
                     "r"(packed[4 * j]), "r"(packed[4 * j + 1]), "r"(packed[4 * j + 2]), "r"(packed[4 * j + 3])
                     : "memory");
}
