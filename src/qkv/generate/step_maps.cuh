// Maps: rows of matrices as they come out of the ring, by what lies in shared memory, and what becomes of the outputs.

#pragma once

#include "step_block.cuh"

// Shared memory, or what v was: without a branch
__device__ __forceinline__ void load_if(uint4& v, const void* p, bool if_so) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "r"(address_of(p)), "r"((u32)if_so));
}

// c [16 8] += a [16 16] · b [16 8], of bfloat16: lane 4 m + q has, as pairs, 2 q and 2 q + 8 of rows m and m + 8 of a,
// 2 q and 2 q + 8 of column m of b, and columns 2 q and 2 q + 1 of rows m and m + 8 of c.
__device__ __forceinline__ void multiply_add(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// sums[row, piece, r] = W[row] · x[r], of all rows of W that are this block's; x is the sum of PARTS_OF_X
//
// By matrix units, which take 8 columns of 16 numbers: the 4 rows of a unit, each in two halves of every 64. Lane
// 8 j + i has the i-th eight of row j, so none waits for a bank. Of the other matrix's 16 rows, row 4 r + 2 part + half
// (and + 8 for r + 2) is that half of that part of x[r]; lanes read eights alike. Products of a half with the other one
// are of no use, and nobody looks at them.
template <int K, int PIECES, int PARTS_OF_X>
__device__ __forceinline__ void multiply(Block& block, int rows) {
    Ring& ring = block.ring;
    constexpr int EIGHTS = K / PIECES / 8, TURNS = (EIGHTS + 7) / 8, BATCHES = (TURNS + 7) / 8;
    constexpr int BATCH = (TURNS + BATCHES - 1) / BATCHES;
    static_assert(ROWS <= 4 && TALL == 4, "rows of the matrices are all taken");
    int units = units_of(rows, PIECES), part = block.lane / 8 % 2, r = block.lane / 16, eight = block.lane % 8;
    bool has = part < PARTS_OF_X && r < ROWS, has_more = part < PARTS_OF_X && r + 2 < ROWS;
#pragma unroll 1
    for (int i = ring.first_of(block.warp); i < units; i += TAKERS) {
        int piece = i % PIECES;
        const uint4* w = (const uint4*)ring.filled(ring.unit + i) + block.lane / 8 * EIGHTS + eight;
        const uint4* of_x = (const uint4*)block.x + (part * ROWS + r) * (K / 8) + piece * EIGHTS + eight;
        const uint4 zero = make_uint4(0, 0, 0, 0);
        uint4 weights[BATCH], a[BATCH], more[BATCH];
        float sum[4][4];
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) sum[j][k] = 0.0f;
#pragma unroll
        for (int t = 0; t < BATCH; t++) a[t] = more[t] = zero;
#pragma unroll(ROWS <= 2 ? 8 : 1)
        for (int batch = 0; batch < BATCHES; batch++) {
#pragma unroll
            for (int t = 0; t < BATCH; t++) {
                int at = (batch * BATCH + t) * 8;
                bool inside = EIGHTS % 8 == 0 ? at < EIGHTS : at + eight < EIGHTS;
                weights[t] = inside ? w[at] : zero;  // 0 · something need not be 0
                load_if(a[t], of_x + at, has && inside);
                if (ROWS > 2) load_if(more[t], of_x + 2 * (K / 8) + at, has_more && inside);
            }
#pragma unroll
            for (int t = 0; t < BATCH; t++) {
                if ((batch * BATCH + t) * 8 >= EIGHTS) break;
                multiply_add(sum[t % 2 * 2], a[t].x, more[t].x, a[t].y, more[t].y, weights[t].x, weights[t].y);
                multiply_add(sum[t % 2 * 2 + 1], a[t].z, more[t].z, a[t].w, more[t].w, weights[t].z, weights[t].w);
            }
        }
        ring.free(ring.unit + i, block.lane);
#pragma unroll
        for (int further = 0; further < ROWS; further += 2) {  // lane 16 r + j gets row j of r + further
            bool second = block.lane & 4;  // half
            float y = 0.0f;
#pragma unroll
            for (int j = 0; j < 4; j++) y += second ? sum[j][further + 1] : sum[j][further];
            y += __shfl_xor_sync(~0u, y, 4);
            if (PARTS_OF_X == 2) y += __shfl_xor_sync(~0u, y, 8);
            int row = i / PIECES * TALL + block.lane % 4;
            if (block.lane % 16 < 4 && r + further < ROWS && row < rows)
                block.sums[(row * PIECES + piece) * ROWS + r + further] = y;
        }
    }
    ring.unit += units;
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
