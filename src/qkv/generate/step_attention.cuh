// Attention of the newest token of each row. A head's earlier slots are cut into shares, so that all blocks have some;
// a block tells of its share what it attended to, its highest score and its sum, and who needs a head joins its shares
// (`join`). The newest key and value are no slots yet: the last warp of a head's first share takes them from words, and
// puts them into the cache.

#pragma once

#include "step_block.cuh"
#include "step_numbers.cuh"

constexpr int LANES = HEAD_WIDTH / 8;  // for a slot: each has 8 numbers of it
constexpr int OF_WARP = HEAD_WIDTH + 2;  // what a warp has attended to, its highest score, its sum

struct Read {
    float most, sum, out[8];
};

// Some slots at once, so that only the highest score is waited for; `at`: where one begins, `inside`: if it is one.
template <int COUNT, class At, class Inside>
__device__ __forceinline__ void take_in(
    Read& a, const float* q, const u8* keys, const u8* values, At at, Inside inside) {
    float score[COUNT], higher = a.most;
#pragma unroll
    for (int t = 0; t < COUNT; t++) {
        float k[8];
        widen(*(const uint4*)(keys + at(t)), k);
        score[t] = 0.0f;
#pragma unroll
        for (int e = 0; e < 8; e++) score[t] += q[e] * k[e];
    }
#pragma unroll
    for (int far = LANES / 2; far > 0; far /= 2)
#pragma unroll
        for (int t = 0; t < COUNT; t++) score[t] += __shfl_xor_sync(~0u, score[t], far);
#pragma unroll
    for (int t = 0; t < COUNT; t++)
        if (inside(t)) higher = fmaxf(higher, score[t]);
    float shrink = exponential(a.most - higher);
    a.most = higher, a.sum *= shrink;
#pragma unroll
    for (int e = 0; e < 8; e++) a.out[e] *= shrink;
#pragma unroll
    for (int t = 0; t < COUNT; t++) {
        float v[8], p = inside(t) ? exponential(score[t] - higher) : 0.0f;
        widen(*(const uint4*)(values + at(t)), v);
        a.sum += p;
#pragma unroll
        for (int e = 0; e < 8; e++) a.out[e] += p * v[e];
    }
}

// All lanes that have the same numbers of different slots get what all of them have read.
__device__ __forceinline__ void join_lanes(Read& a) {
#pragma unroll
    for (int far = LANES; far < 32; far *= 2) {
        float most = __shfl_xor_sync(~0u, a.most, far), higher = fmaxf(a.most, most);
        float shrink = exponential(a.most - higher), weight = exponential(most - higher);
        a.sum = a.sum * shrink + __shfl_xor_sync(~0u, a.sum, far) * weight;
#pragma unroll
        for (int e = 0; e < 8; e++)
            a.out[e] = a.out[e] * shrink + __shfl_xor_sync(~0u, a.out[e], far) * weight;
        a.most = higher;
    }
}

// Eight numbers of a head, turned to its position; `other`: those they are turned with
__device__ __forceinline__ void turn(uint4 head, const u32* other, const float* cos, const float* sin, float* v) {
    widen(head, v);
    if (ROTARY) {
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] = rounded(v[e] * cos[e] + number_of(other[e]) * sin[e]);
    }
}

// What all warps together have attended to
__device__ __forceinline__ void tell_share(Block& block, int record) {
    for (int i = block.thread; i < HEAD_WIDTH; i += THREADS) {
        float most = -1e30f, sum = 0.0f, out = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) most = fmaxf(most, block.by_warp[w * OF_WARP + HEAD_WIDTH]);
        most = number_of(shortened(most));  // as others will know it
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float* from = block.by_warp + w * OF_WARP;
            float weight = exponential(from[HEAD_WIDTH] - most);
            sum += weight * from[HEAD_WIDTH + 1];
            out += weight * from[i];
        }
        block.words.tell(record + i, out);
        if (i < 4) block.words.tell(record + HEAD_WIDTH + i, i == 0 ? most : sum);
    }
}

__device__ __forceinline__ void attend(Block& block, int layer, const int* partners, float scale) {
    constexpr int AT_ONCE = 32 / LANES, TURNS = (KEPT + AT_ONCE - 1) / AT_ONCE, MOST = ROTARY ? 4 : 8;
    constexpr int BATCH = TURNS < MOST ? TURNS : MOST;
    const Given& given = block.given;
    Ring& ring = block.ring;
    Words& words = block.words;
    int mine = block.lane / LANES, d = block.lane % LANES * 8;
    bool first = true;
    for (int task = blockIdx.x; task < LINES * SHARES; task += BLOCKS) {
        Share s = share_of(task, given);
        int record = PARTS + (s.line * SHARES + s.number) * RECORD;
        if (!s.any) {  // that words are told in each layer is what their times rest on
            for (int i = block.thread; i < RECORD; i += THREADS) words.tell(record + i, 0.0f);
            continue;
        }
        int position = given.positions[s.row], head = s.line % HEADS;
        float cos[8], sin[8];
        int partner[8];
        if (ROTARY) {
#pragma unroll
            for (int e = 0; e < 8; e++) {
                cos[e] = given.of<float>(layer, COS)[position * HEAD_WIDTH + d + e];
                sin[e] = given.of<float>(layer, SIN)[position * HEAD_WIDTH + d + e];
                partner[e] = partners[d + e];
            }
        }
        if (first) block.stamp(0);
        const u32* row = words.all + PROJECTED + s.row * QKV;
        bool newest = s.number == 0 && block.warp == WARPS - 1;
        // Of query, key and value
        auto begin = [&](int which) {
            return row + (which == 0 ? head : (which == 1 ? HEADS : HEADS + GROUPS) + s.group) * HEAD_WIDTH;
        };
        uint4 projected[6];
        u32 other[ROTARY ? 16 : 1];
        words.forget(projected);
        words.forget(other);
        until([&] {
            auto wanted = [&](int which) { return which == 0 || newest; };
            bool all = words.ask_for(
                projected, [&](int p) { return begin(p / 2) + d + p % 2 * 4; }, [&](int p) { return wanted(p / 2); });
            if (ROTARY)
                all &= words.ask_for(
                    other, [&](int p) { return begin(p / 8) + partner[p % 8]; }, [&](int p) { return wanted(p / 8); });
            return all;
        });
        auto eight = [&](int which) {
            uint2 a = pairs_of(projected[2 * which]), b = pairs_of(projected[2 * which + 1]);
            return make_uint4(a.x, a.y, b.x, b.y);
        };
        float q[8];
        turn(eight(0), other, cos, sin, q);
        if (first) block.stamp(1), block.stamp(2);
#pragma unroll
        for (int e = 0; e < 8; e++) q[e] *= scale;
        Read a = {-1e30f, 0.0f, {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}};
        if (newest) {
            float v[8];
            turn(eight(1), other + (ROTARY ? 8 : 0), cos, sin, v);
            uint4 key =
                make_uint4(narrowed(v[0], v[1]), narrowed(v[2], v[3]), narrowed(v[4], v[5]), narrowed(v[6], v[7]));
            uint4 value = eight(2);
            take_in<1>(
                a, q, (const u8*)&key, (const u8*)&value, [](int) { return 0; }, [&](int) { return mine == 0; });
            if (mine == 0 && head % (HEADS / GROUPS) == 0) {
                i64 slot = (i64)(s.row * GROUPS + s.group) * given.capacity + given.firsts[s.row] + position;
                i64 to = slot * HEAD_WIDTH + d;
                *(uint4*)(given.of<u16>(layer, KEYS) + to) = key;
                *(uint4*)(given.of<u16>(layer, VALUES) + to) = value;
            }
        }
        int units = (s.count + KEPT - 1) / KEPT;
        for (int i = ring.first_of(block.warp); i < units; i += TAKERS) {
            const u8* keys = ring.filled(ring.unit + i);
            const u8* values = keys + KEPT * HEAD_WIDTH * 2;
            int count = min(KEPT, s.count - i * KEPT);
#pragma unroll 1
            for (int from = mine; from - mine < count; from += BATCH * AT_ONCE) {
                auto inside = [&](int t) { return from + t * AT_ONCE < count; };
                auto at = [&](int t) { return ((inside(t) ? from + t * AT_ONCE : 0) * HEAD_WIDTH + d) * 2; };
                take_in<BATCH>(a, q, keys, values, at, inside);
            }
            ring.free(ring.unit + i, block.lane);
        }
        ring.unit += units;
        join_lanes(a);
        if (!first) together();  // what the share before has left is read
        first = false;
        if (mine == 0) {
            float* to = block.by_warp + block.warp * OF_WARP;
#pragma unroll
            for (int e = 0; e < 8; e++) to[d + e] = a.out[e];
            if (block.lane == 0) to[HEAD_WIDTH] = a.most, to[HEAD_WIDTH + 1] = a.sum;
        }
        block.stamp(3);
        together();
        block.stamp(4);
        tell_share(block, record);
    }
    block.end_phase();
}
