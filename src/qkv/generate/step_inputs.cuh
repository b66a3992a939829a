// What maps are applied to, laid down in shared memory as bfloat16: the stream behind a norm, numbers of other blocks as
// they are, or what shares of heads have attended to, joined. Each begins with words that others tell.

#pragma once

#include "step_block.cuh"
#include "step_numbers.cuh"

constexpr int EACH = (WIDTH / 4 + THREADS - 1) / THREADS;  // fours of a row that a thread reads

// x = scale · norm(stream); `read` gives all fours of this thread, of row p / EACH.
template <class Read>
__device__ __forceinline__ void norm(Block& block, int layer, int gain_at, float epsilon, float scale, Read read) {
    const uint2* gains = block.given.of<uint2>(layer, gain_at);
    const uint2* shifts = block.given.of<uint2>(layer, gain_at + 1);
    uint2 gain[EACH], shift[EACH];
    float4 v[ROWS][EACH];
    block.stamp(0);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int i = e * THREADS + block.thread;
        gain[e] = shift[e] = make_uint2(0, 0);
        if (i < WIDTH / 4) {
            gain[e] = gains[i];
            if (shifts != nullptr) shift[e] = shifts[i];
        }
    }
    read(v);
    block.stamp(1);
    // Sums and squares around the last norm's mean, which is not far: they need not wait for this one's.
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float total = 0.0f, square = 0.0f, near = RMS ? 0.0f : block.mean[r];
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (e * THREADS + block.thread < WIDTH / 4) {
                float4 a = v[r][e];
                a.x -= near, a.y -= near, a.z -= near, a.w -= near;
                total += (a.x + a.y) + (a.z + a.w);
                square += (a.x * a.x + a.y * a.y) + (a.z * a.z + a.w * a.w);
            }
#pragma unroll
        for (int far = 16; far > 0; far /= 2) {
            if (!RMS) total += __shfl_xor_sync(~0u, total, far);
            square += __shfl_xor_sync(~0u, square, far);
        }
        if (block.lane == 0) block.moment[r * WARPS + block.warp] = make_float2(total, square);
    }
    together();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float2 sum[WARPS];
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum[w] = block.moment[r * WARPS + w];
#pragma unroll
        for (int far = WARPS / 2; far > 0; far /= 2)
#pragma unroll
            for (int w = 0; w < far; w++) sum[w].x += sum[w + far].x, sum[w].y += sum[w + far].y;
        float mean = 0.0f, square = sum[0].y * (1.0f / WIDTH);
        if (!RMS) {
            float off = sum[0].x * (1.0f / WIDTH);
            mean = block.mean[r] += off;
            square = fmaxf(square - off * off, 0.0f);
        }
        float rate = rsqrtf(square + epsilon);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int i = e * THREADS + block.thread;
            if (i >= WIDTH / 4) continue;
            float4 a = v[r][e], g = widened(gain[e]), s = widened(shift[e]);
            a.x = ((a.x - mean) * rate * g.x + s.x) * scale, a.y = ((a.y - mean) * rate * g.y + s.y) * scale;
            a.z = ((a.z - mean) * rate * g.z + s.z) * scale, a.w = ((a.w - mean) * rate * g.w + s.w) * scale;
            uint2 most = make_uint2(narrowed(a.x, a.y), narrowed(a.z, a.w));
            float4 m = widened(most);
            block.lay(r * (WIDTH / 4) + i, most);
            block.lay((ROWS + r) * (WIDTH / 4) + i,
                      make_uint2(narrowed(a.x - m.x, a.y - m.y), narrowed(a.z - m.z, a.w - m.w)));
        }
    }
    together();
    block.stamp(2);
}

// x = numbers [ROWS K] that are bfloat16 already
template <int K>
__device__ __forceinline__ void take(Block& block, int from) {
    constexpr int FOURS = ROWS * K / 4, PASSES = (FOURS + THREADS - 1) / THREADS, AT_ONCE = PASSES < 8 ? PASSES : 8;
    const u32* told = block.words.all + from;
    block.stamp(0);
#pragma unroll 1
    for (int begin = block.thread; begin < FOURS; begin += AT_ONCE * THREADS) {
        uint4 v[AT_ONCE];
        auto at = [&](int p) { return told + (begin + p * THREADS) * 4; };
        auto wanted = [&](int p) { return begin + p * THREADS < FOURS; };
        block.words.await(v, at, wanted);
#pragma unroll
        for (int p = 0; p < AT_ONCE; p++)
            if (wanted(p)) block.lay(begin + p * THREADS, pairs_of(v[p]));
    }
    block.stamp(1);
    together();
    block.stamp(2);
}

// x = what all shares of all heads have attended to, joined
__device__ __forceinline__ void join(Block& block) {
    constexpr int FOURS = LINES * HEAD_WIDTH / 4, PASSES = (FOURS + THREADS - 1) / THREADS;
    constexpr int MOST = SHARES > 10 ? 1 : 10 / SHARES, AT_ONCE = PASSES < MOST ? PASSES : MOST;
    constexpr int IN_LINE = HEAD_WIDTH / 4;
    block.stamp(0);
#pragma unroll 1
    for (int begin = block.thread; begin < FOURS; begin += AT_ONCE * THREADS) {
        uint4 v[AT_ONCE * SHARES * 2];  // of each four and share: what it attended to; its highest score, its sum
        int count[AT_ONCE];
#pragma unroll
        for (int p = 0; p < AT_ONCE; p++) {
            int i = begin + p * THREADS;
            count[p] = i < FOURS ? shares_of(block.given.positions[i / IN_LINE / HEADS]) : 0;
        }
        auto at = [&](int k) {
            int i = begin + k / 2 / SHARES * THREADS, share = k / 2 % SHARES;
            const u32* record = block.words.all + PARTS + (i / IN_LINE * SHARES + share) * RECORD;
            return record + (k % 2 ? IN_LINE : i % IN_LINE) * 4;
        };
        block.words.await(v, at, [&](int k) { return k / 2 % SHARES < count[k / 2 / SHARES]; });
#pragma unroll
        for (int p = 0; p < AT_ONCE; p++) {
            int i = begin + p * THREADS;
            if (i >= FOURS) break;
            const uint4* mine = v + p * SHARES * 2;
            float most = -1e30f, total = 0.0f, a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
#pragma unroll
            for (int s = 0; s < SHARES; s++)
                if (s < count[p]) most = fmaxf(most, number_of(mine[2 * s + 1].x));
#pragma unroll
            for (int s = 0; s < SHARES; s++) {
                if (s >= count[p]) break;
                float weight = exponential(number_of(mine[2 * s + 1].x) - most);
                float4 y = numbers_of(mine[2 * s]);
                total += weight * number_of(mine[2 * s + 1].y);
                a += weight * y.x, b += weight * y.y, c += weight * y.z, d += weight * y.w;
            }
            float rate = 1.0f / total;
            block.lay(i, make_uint2(narrowed(a * rate, b * rate), narrowed(c * rate, d * rate)));
        }
    }
    block.stamp(1);
    together();
    block.stamp(2);
}
