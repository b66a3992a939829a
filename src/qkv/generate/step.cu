// One token of each of a few rows by a GPT-like decoder, as one program that stays on all processors of a GPU.
//
// A step takes as long as its weights take to be read, if they are always being read. So each block has two warps
// that do nothing else: they copy, in the order in which they will be used, all weights that this block uses of all
// layers, and its share of earlier keys and values, into a ring in shared memory (step_ring.cuh). The other warps do
// the arithmetic (step_maps.cuh, step_attention.cuh), and wait for the ring and, between two maps, for what all other
// blocks tell (step_words.cuh, step_inputs.cuh). What the ring holds is by then some microseconds of memory's time.
//
// This file is what becomes of a token: of words and places a stream, which each layer reads twice and adds to twice,
// and logits behind the last. Who does what of that is said in step_plan.cuh. Weights are bfloat16.

#include "step_inputs.cuh"
#include "step_maps.cuh"
#include "step_attention.cuh"

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
step(const i64* table, const u16* words, const u16* places, const i64* ids, const i64* positions, const i64* firsts,
     u32* told, u32* clock, float* logits, const int* partners,
     i64* stamps, float epsilon, float word_scale, float head_scale, float score_scale, int capacity) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ u64 full[STAGES], empty[STAGES];
    __shared__ float2 moment[ROWS * WARPS];
    __shared__ float own[ROWS * MINE], by_warp[WARPS * OF_WARP];
    __shared__ i64 pointers[(LAYERS + 1) * COLUMNS];
    __shared__ int position[ROWS], first[ROWS];
    constexpr int NUMBERS = 2 * WIDTH > ATTENDED ? 2 * WIDTH : ATTENDED;
    constexpr int OF_X = (ROWS * (NUMBERS > HIDDEN ? NUMBERS : HIDDEN) * 2 + 127) / 128 * 128;

    Block block;
    block.given = {pointers, position, first, capacity};
    block.ring.slots = memory, block.ring.full = full, block.ring.empty = empty;
    block.words = {told, 0};
    block.x = memory + STAGES * STAGE, block.sums = (float*)(block.x + OF_X);
    block.by_warp = by_warp, block.moment = moment, block.own = own;
    block.thread = threadIdx.x, block.warp = threadIdx.x / 32, block.lane = threadIdx.x % 32;
#if TIMED
    block.stamps = stamps + blockIdx.x * (5 * LAYERS + 1) * 8;
#endif
    for (int i = threadIdx.x; i < (LAYERS + 1) * COLUMNS; i += ALL_THREADS) pointers[i] = table[i];
    if (threadIdx.x < ROWS) position[threadIdx.x] = positions[threadIdx.x], first[threadIdx.x] = firsts[threadIdx.x];
    if (threadIdx.x == 0) block.ring.begin();
    __syncthreads();
    if (block.warp >= WARPS) {
        fill(block.ring, block.warp - WARPS, block.given, block.lane);
        return;
    }

    for (int r = 0; r < ROWS; r++) block.mean[r] = 0.0f;
    u32 begun = *clock;  // layers that were told of; the last write is of the launch before
    auto embedded = [&](float4 (&v)[ROWS][EACH]) {
#pragma unroll
        for (int p = 0; p < ROWS * EACH; p++) {
            int r = p / EACH, i = p % EACH * THREADS + threadIdx.x;
            float4& a = v[r][p % EACH];
            a = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (i >= WIDTH / 4) continue;
            a = widened(((const uint2*)(words + ids[r] * WIDTH))[i]);
            a.x *= word_scale, a.y *= word_scale, a.z *= word_scale, a.w *= word_scale;
            if (PLACED) {
                float4 b = widened(((const uint2*)(places + (i64)position[r] * WIDTH))[i]);
                a.x += b.x, a.y += b.y, a.z += b.z, a.w += b.w;
            }
        }
    };
    Outputs mine = outputs_of(WIDTH, 0);
    for (int i = threadIdx.x; i < ROWS * mine.count; i += THREADS) {
        int r = i / mine.count, n = mine.first + i % mine.count;
        float v = widened(words[ids[r] * WIDTH + n]) * word_scale;
        own[r * MINE + i % mine.count] = v + (PLACED ? widened(places[(i64)position[r] * WIDTH + n]) : 0.0f);
    }
    const u32* stream = told;
    auto streamed = [&](float4 (&v)[ROWS][EACH]) {
        uint4 asked[ROWS * EACH];
        auto four = [&](int p) { return p % EACH * THREADS + (int)threadIdx.x; };
        auto at = [&](int p) { return stream + p / EACH * WIDTH + four(p) * 4; };
        auto wanted = [&](int p) { return four(p) < WIDTH / 4; };
        block.words.await(asked, at, wanted);
#pragma unroll
        for (int p = 0; p < ROWS * EACH; p++)
            v[p / EACH][p % EACH] = wanted(p) ? numbers_of(asked[p]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    };

    for (int layer = 0; layer < LAYERS; layer++) {
        const u16* bias = block.given.of<u16>(layer, MAP_BIAS);
        auto biased = [&](int n, int) {
            bool has = bias != nullptr && (n < GAP_FROM || n >= GAP_TO);
            return make_float2(has ? widened(bias[n < GAP_FROM ? n : n - (GAP_TO - GAP_FROM)]) : 0.0f, 0.0f);
        };
        auto projected = [&](int count) {
            Held<WIDTH, WIDTH_PIECES> held;
            held.begin(block, count);
            stream = told + BEHIND_OUTER;
            if (layer == 0)
                norm(block, layer, GAIN, epsilon, 1.0f, embedded);
            else
                norm(block, layer, GAIN, epsilon, 1.0f, streamed);
            block.words.now = (begun + layer + 1) & 255u;
            multiply<2>(block, count, held);
        };
        map_of(block, QKV, 4 * layer, biased, projected, [&](int n, int i, int r, float2 before) {
            block.words.tell(PROJECTED + r * QKV + n, rounded(product<WIDTH_PIECES>(block, i, r) + before.x));
        });

        attend(block, layer, partners, score_scale);

        bias = block.given.of<u16>(layer, OUT_BIAS);
        auto shift = [&](int n, int) { return make_float2(bias == nullptr ? 0.0f : widened(bias[n]), 0.0f); };
        auto added = [&](int to, int n, int i, int r, float v) {
            v += own[r * MINE + i];
            own[r * MINE + i] = v;
            block.words.tell(to + r * WIDTH + n, v);
        };
        auto attended = [&](int count) {
            Held<ATTENDED, ATTENDED_PIECES> held;  // begun later: to join takes many registers
            join(block);
            multiply<1>(block, count, held);
        };
        map_of(block, WIDTH, 4 * layer + 1, shift, attended, [&](int n, int i, int r, float2 before) {
            added(BEHIND_OUT, n, i, r, before.x + product<ATTENDED_PIECES>(block, i, r));
        });

        bias = block.given.of<u16>(layer, INNER_BIAS);
        auto gated = [&](int n, int) {
            if (bias == nullptr) return make_float2(0.0f, 0.0f);
            return make_float2(widened(bias[n]), GATED ? widened(bias[HIDDEN + n]) : 0.0f);
        };
        auto normed = [&](int count) {
            Held<WIDTH, WIDTH_PIECES> held;
            held.begin(block, count * SIDES);
            stream = told + BEHIND_OUT;
            norm(block, layer, NEXT_GAIN, epsilon, 1.0f, streamed);
            multiply<2>(block, count * SIDES, held);
        };
        map_of(block, HIDDEN, 4 * layer + 2, gated, normed, [&](int n, int i, int r, float2 before) {
            float y = activated(product<WIDTH_PIECES>(block, i * SIDES, r) + before.x);
            if (GATED) y *= product<WIDTH_PIECES>(block, i * SIDES + 1, r) + before.y;
            block.words.tell(ACTIVE + r * HIDDEN + n, rounded(y));
        });

        bias = block.given.of<u16>(layer, OUTER_BIAS);
        auto taken = [&](int count) {
            Held<HIDDEN, HIDDEN_PIECES> held;
            held.begin(block, count);
            take<HIDDEN>(block, ACTIVE);
            multiply<1>(block, count, held);
        };
        map_of(block, WIDTH, 4 * layer + 3, shift, taken, [&](int n, int i, int r, float2 before) {
            added(BEHIND_OUTER, n, i, r, before.x + product<HIDDEN_PIECES>(block, i, r));
        });
    }

    const u16* bias = block.given.of<u16>(LAYERS, MAP_BIAS);
    auto last = [&](int count) {
        Held<WIDTH, WIDTH_PIECES> held;
        held.begin(block, count);
        stream = told + BEHIND_OUTER;
        norm(block, LAYERS, GAIN, epsilon, head_scale, streamed);
        multiply<2>(block, count, held);
    };
    auto shifted = [&](int n, int) { return make_float2(bias == nullptr ? 0.0f : widened(bias[n]), 0.0f); };
    map_of(block, VOCABULARY, 4 * LAYERS, shifted, last, [&](int n, int i, int r, float2 before) {
        logits[(i64)r * VOCABULARY + n] = product<WIDTH_PIECES>(block, i, r) + before.x;
    });

    // All others have read the clock long ago: they have told of the last layer.
    if (blockIdx.x == 0 && threadIdx.x == 0) *clock = begun + LAYERS;
}
