// Maps: rows of matrices as they come out of the ring, by what lies in shared memory, and what becomes of the outputs.

#pragma once

#include "step_block.cuh"

// c [16 8] += a [16 16] · b [16 8], of bfloat16: lane 4 m + q has, as pairs, 2 q of rows m and m + 8 of a and then
// 2 q + 8 of both, 2 q and 2 q + 8 of column m of b, and columns 2 q and 2 q + 1 of row m and then of row m + 8 of c.
__device__ __forceinline__ void multiply_add(float (&c)[4], uint4 a, uint2 b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

// The weights of a unit, in registers. Lane 8 j + i has the i-th of every eight eights of row j: none waits for a bank.
template <int K, int PIECES>
struct Held {
    static constexpr int EIGHTS = K / PIECES / 8, TURNS = (EIGHTS + 7) / 8;
    uint4 weights[TURNS];
    int unit;            // of this map
    bool begun = false;  // by `begin`; otherwise `multiply` does

    __device__ __forceinline__ void load(const u8* slot, int lane) {
        const uint4* w = (const uint4*)slot + lane / 8 * EIGHTS + lane % 8;
#pragma unroll
        for (int t = 0; t < TURNS; t++)  // 0 · something need not be 0
            weights[t] = t * 8 + 8 <= EIGHTS || t * 8 + lane % 8 < EIGHTS ? w[t * 8] : make_uint4(0, 0, 0, 0);
    }

    __device__ __forceinline__ void take(Block& block) {
        load(block.ring.filled(block.ring.unit + unit), block.lane);
        block.ring.free(block.ring.unit + unit, block.lane);
    }

    // A warp's first unit of a map of so many rows, while it would only wait for what to multiply it by: so its slot is
    // free again the sooner, and shared memory is read when nobody is in a hurry. Not where registers do not suffice.
    // Who has no unit loads something too: if it did not, the compiler would keep weights in memory.
    __device__ __forceinline__ void begin(Block& block, int rows) {
        if (ROWS * TURNS > HELD) return;
        begun = true, unit = block.ring.first_of(block.warp);
        bool any = unit < units_of(rows, PIECES);
        int number = any ? block.ring.unit + unit : 0;
        if (any) block.ring.filled(number);
        load(block.ring.slot(number), block.lane);
        if (any) block.ring.free(number, block.lane);
    }
};

// sums[row, piece, r] = W[row] · x[r], of all rows of W that are this block's; x is the sum of PARTS_OF_X
//
// By matrix units, which take 16 rows of 16 numbers: rows 2 j + half are the two halves of every eight eights of row
// j, of which they have pairs 0 and 2 of each eight, and the 8 rows behind them pairs 1 and 3. So what a lane has of a
// row is what they take. Column 4 part + 2 odd + half of the other matrix is the same of that part of x. Products of
// what does not belong together are of no use, and nobody looks at them.
template <int PARTS_OF_X, int K, int PIECES>
__device__ __forceinline__ void multiply(Block& block, int rows, Held<K, PIECES>& held) {
    constexpr int EIGHTS = Held<K, PIECES>::EIGHTS, TURNS = Held<K, PIECES>::TURNS, ACROSS = K / 8;
    constexpr int CHAINS = ROWS == 1 ? 4 : 2;  // of products that do not wait for each other
    static_assert(TALL == 4, "rows of the matrices are all taken");
    int units = units_of(rows, PIECES), column = block.lane / 4, q = block.lane % 4;
    int part = column / 4 % PARTS_OF_X, odd = column / 2 % 2, half = column % 2, eight = 4 * half + q;
    if (!held.begun) held.unit = block.ring.first_of(block.warp);
    if (held.unit < units) {
        if (!held.begun) held.take(block);
#pragma unroll 1
        while (true) {
            int piece = held.unit % PIECES, row = held.unit / PIECES * TALL + block.lane / 8;
            const uint2* of_x = (const uint2*)block.x + (part * ROWS * ACROSS + piece * EIGHTS + eight) * 2 + odd;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float sum[CHAINS][4];
#pragma unroll
                for (int j = 0; j < CHAINS; j++)
#pragma unroll
                    for (int k = 0; k < 4; k++) sum[j][k] = 0.0f;
#pragma unroll
                for (int t = 0; t < TURNS; t++) {
                    bool inside = t * 8 + 8 <= EIGHTS || t * 8 + eight < EIGHTS;
                    uint2 x = inside ? of_x[(r * ACROSS + t * 8) * 2] : make_uint2(0, 0);
                    multiply_add(sum[t % CHAINS], held.weights[t], x);
                }
                bool second = block.lane & 4, behind = block.lane & 1;  // half and odd of what this lane has
                float y = 0.0f;
#pragma unroll
                for (int j = 0; j < CHAINS; j++)
                    y += behind ? (second ? sum[j][3] : sum[j][2]) : (second ? sum[j][1] : sum[j][0]);
                y += __shfl_xor_sync(~0u, y, 1);
                if (PARTS_OF_X == 2) y += __shfl_xor_sync(~0u, y, 2);
                y += __shfl_xor_sync(~0u, y, 4);
                if (block.lane % 8 == 0 && row < rows) block.sums[(row * PIECES + piece) * ROWS + r] = y;
            }
            held.unit += TAKERS;
            if (held.unit >= units) break;
            held.take(block);
        }
    }
    block.ring.unit += units;
    block.stamp(3);
    together();
    block.stamp(4);
}

template <int PIECES>
__device__ __forceinline__ float product(const Block& block, int row, int r) {
    float y = 0.0f;
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) y += block.sums[(row * PIECES + piece) * ROWS + r];
    return y;
}

// Outputs of a map: `known` gives what is known of an output before its product is, `end` what becomes of it. Thread i
// has output i % count of row i / count.
template <class Known, class Work, class End>
__device__ __forceinline__ void map_of(Block& block, int all, int map, Known known, Work work, End end) {
    Outputs mine = outputs_of(all, turn_of(map));
    auto row = [&](int i) { return ROWS == 1 ? 0 : i / mine.count; };
    auto output = [&](int i) { return ROWS == 1 ? i : i % mine.count; };
    int i = block.thread, outputs = mine.count * ROWS;
    float2 before = make_float2(0.0f, 0.0f);
    if (i < outputs) before = known(mine.first + output(i), row(i));
    work(mine.count);
#pragma unroll 1
    while (i < outputs) {
        end(mine.first + output(i), output(i), row(i), before);
        i += THREADS;
        if (i < outputs) before = known(mine.first + output(i), row(i));
    }
    block.end_phase();
}
