// Sizes of a step, what it is given, and who does what of it.
//
// Nobody hands work out: each warp, whether it fills the ring or empties it, counts by itself what its block does of a
// map or of attention, so all of them must count alike, and do so here.
//
// Given by #define: ROWS WIDTH HEADS GROUPS HEAD_WIDTH HIDDEN VOCABULARY LAYERS BLOCKS; WIDTH_PIECES
// ATTENDED_PIECES HIDDEN_PIECES (of a row of each width); STAGE (bytes of a slot) STAGES UNDER_WAY (bytes that are
// waited for at a time) KEPT (slots of a cache in a unit) SHARES (of a head's slots, at most) LEAST (slots of a share,
// where there are several) WARPS (that do arithmetic) FILLERS (warps that fill the ring); RMS GATED ACTIVATION ROTARY
// PLACED GAP_FROM GAP_TO; TIMED (whether blocks note when they do what).

#pragma once

#include "hopper.cuh"

typedef unsigned char u8;
typedef unsigned short u16;
typedef long long i64;

constexpr int THREADS = 32 * WARPS;                      // that do arithmetic
constexpr int ALL_THREADS = THREADS + 32 * FILLERS;
constexpr int TAKERS = STAGES < WARPS ? STAGES : WARPS;  // warps that take units; see `Ring::first_of`
constexpr int TALL = 4;                                  // pieces of rows in a unit
constexpr int HELD = 26;                                 // eights of weights that a lane may hold while it waits
constexpr int ATTENDED = HEADS * HEAD_WIDTH, QKV = (HEADS + 2 * GROUPS) * HEAD_WIDTH;
constexpr int LINES = ROWS * HEADS;
constexpr int SIDES = GATED ? 2 : 1;                 // rows of a matrix for an output of the inner map
constexpr int MINE = (WIDTH + BLOCKS - 1) / BLOCKS;  // numbers of a row of the stream that a block adds to

static_assert(WIDTH >= BLOCKS, "each block tells some of the stream");
static_assert(LEAST >= SHARES, "no share is empty");

// What the table of pointers holds of a layer; behind the last, GAIN to MAP_BIAS are of the head.
enum {
    GAIN, SHIFT, MAP, MAP_BIAS, OUT, OUT_BIAS, NEXT_GAIN, NEXT_SHIFT, INNER, INNER_BIAS, OUTER, OUTER_BIAS,
    KEYS, VALUES, COS, SIN, COLUMNS
};

struct Given {
    const i64* table;                // [LAYERS + 1, COLUMNS]
    const int *positions, *firsts;   // [ROWS]
    int capacity;                    // slots of a row of the cache

    template <class T>
    __device__ __forceinline__ const T* of(int layer, int column) const {
        return (const T*)table[layer * COLUMNS + column];
    }
};

// Maps ---------------------------------------------------------------------------------------------------------------

struct Outputs {
    int first, count;
};

// Of a map's outputs, those of this block. Who has one more than others is not the same in all maps; but whoever adds
// to a number of the stream keeps it, so both maps that do have one `turn`.
__device__ __forceinline__ Outputs outputs_of(int all, u32 turn) {
    u32 me = (blockIdx.x + turn) % BLOCKS;
    int first = (u32)all * me / BLOCKS;
    return {first, (int)((u32)all * (me + 1) / BLOCKS) - first};
}

__device__ __forceinline__ u32 turn_of(int map) { return map % 2 == 0 ? map * 37u : 0u; }

__device__ __forceinline__ int units_of(int rows, int pieces) { return (rows + TALL - 1) / TALL * pieces; }

// Attention ----------------------------------------------------------------------------------------------------------

struct Share {
    int line, row, group, number, begin, count;  // of slots before the newest
    bool any;
};

__device__ __forceinline__ int shares_of(int position) { return max(1, min(SHARES, (position + LEAST - 1) / LEAST)); }

__device__ __forceinline__ Share share_of(int task, const Given& given) {
    Share s;
    s.line = task % LINES, s.number = task / LINES, s.row = s.line / HEADS;
    s.group = s.line % HEADS / (HEADS / GROUPS);
    int position = given.positions[s.row], shares = shares_of(position), each = (position + shares - 1) / shares;
    int before = s.number * each;
    s.any = s.number < shares;
    s.begin = given.firsts[s.row] + before;
    s.count = s.any ? min(each, position - before) : 0;
    return s;
}
