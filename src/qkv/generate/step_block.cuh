// What a thread that does arithmetic knows of its block: the ring, words of others, and the room for what lies between
// two phases. A phase is a map or attention; where steps are TIMED a block notes when it has come how far in each.

#pragma once

#include "step_ring.cuh"

struct Block {
    u8* x;           // what a map is applied to: bfloat16 [1 or 2, ROWS K], two whose sum it is behind a norm; pairs of
                     // every eight numbers lie as 0, 2, 1, 3, as matrix units take them
    float* sums;     // of a map [rows pieces ROWS]
    float* by_warp;  // what warps have attended to [WARPS HEAD_WIDTH + 2]
    float2* moment;  // [ROWS WARPS]
    float* own;      // of the stream, what this block adds to [ROWS MINE]
    float mean[ROWS];  // of the stream, as this thread's last norm found it
    Ring ring;
    int warp, lane, thread;
    Given given;
    Words words;
#if TIMED
    i64* stamps;     // of this block [phases 8]
    int phase = 0;
#endif

    // The i-th four of x
    __device__ __forceinline__ void lay(int i, uint2 four) {
        u32* to = (u32*)x + i / 2 * 4 + i % 2;
        to[0] = four.x, to[2] = four.y;
    }

    __device__ __forceinline__ void stamp(int which) {
#if TIMED
        // Behind a barrier only what reads memory waits for it; no position is less than 0.
        if (thread == 0 && *(const volatile int*)given.positions >= 0)
            stamps[phase * 8 + which] = clock64();
#endif
    }

    __device__ __forceinline__ void end_phase() {
        stamp(5);
#if TIMED
        if (thread == 0) stamps[phase * 8 + 6] = ring.idle;
        ring.idle = 0, phase++;
#endif
    }
};

__device__ __forceinline__ void together() {  // all threads but those that fill the ring
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}
