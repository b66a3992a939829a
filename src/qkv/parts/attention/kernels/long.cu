// Attention of long rows for Hopper GPUs: o = softmax(scale q kᵀ) v, as FlashAttention-3 does it.
//
// Each block has a warpgroup that orders copies and GROUPS that multiply, each of which has 64 queries; all of them
// meet the same tiles of KEYS keys and values, from the last to the first, which come by the copy engine into a ring of
// SLOTS. A group gives the tensor cores the scores of the next tile together with the values of this one, and while
// they work on the values it makes weights of the scores; groups take turns, so that one multiplies while others make
// weights.
//
// Shapes: b rows, h heads, s tokens, D numbers of a head; q, k, v and o [b h s D], each with strides of its own.
//
// By #define: D: 64 or 128; KEYS; GROUPS: 2 or 3; SLOTS; Q_SLOTS: tiles of queries that are there at once; CAUSAL;
// KEEPS: log₂ of each softmax's sum is stored too; HALF: numbers are float16, else bfloat16; BY_HAND: one of so many
// powers is computed without the unit for them, or 0: none.

#include "rows.cuh"

constexpr int WIDE = D / 64;                  // pieces of 64 numbers, whose rows of 128 bytes are swizzled
constexpr int QUERIES = 64 * GROUPS;          // of a block
constexpr u32 SLOT = KEYS * D * 2, OF_Q = 64 * D * 2, ROOM = 16 * D * 2;

static_assert(!CAUSAL || KEYS % 64 == 0, "only the first tile of keys that a group sees is hidden in part");
static_assert(SLOTS >= 4, "a group holds two slots and waits for two");

// ---------------------------------------------------------------------------------------------------- products
// A thread has of every 8 columns, in rows lane / 4 and 8 below it, those at 2 (lane % 4); each warp has 16 rows.

// d [64 KEYS] (+)= q [64 16] kᵀ [16 KEYS]
__device__ __forceinline__ void multiply_keys(float (&d)[KEYS / 2], u64 q, u64 k, int adds) {
#if KEYS == 112
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %58, 0; wgmma.mma_async.sync.aligned.m64n112k16.f32." NARROW "." NARROW
        " {" FIRST_56 "}, %56, %57, p, 1, 1, 0, 0; }"
        : OWN_32(0), OWN_8(32), OWN_8(40), OWN_8(48) : "l"(q), "l"(k), "r"(adds));
#elif KEYS == 128
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." NARROW "." NARROW
        " {" FIRST_64 "}, %64, %65, p, 1, 1, 0, 0; }"
        : OWN_32(0), OWN_32(32) : "l"(q), "l"(k), "r"(adds));
#else
    static_assert(KEYS == 176, "keys of a tile: 112, 128 or 176");
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %90, 0; wgmma.mma_async.sync.aligned.m64n176k16.f32." NARROW "." NARROW
        " {" FIRST_88 "}, %88, %89, p, 1, 1, 0, 0; }"
        : OWN_32(0), OWN_32(32), OWN_8(64), OWN_8(72), OWN_8(80) : "l"(q), "l"(k), "r"(adds));
#endif
}

// d [64 D] += weights [64 16] v [16 D]. A thread has of the weights what it had of their scores.
__device__ __forceinline__ void multiply_values(float (&d)[D / 2], const u32* w, u64 v) {
#if D == 64
    multiply_values(d, w, v, 1);
#else
    static_assert(D == 128, "numbers of a head: 64 or 128");
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." NARROW "." NARROW
        " {" FIRST_64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : OWN_32(0), OWN_32(32) : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(v));
#endif
}

// ---------------------------------------------------------------------------------------------------- weights

struct Rows {  // of a thread: the one at lane / 4 and that 8 below it
    float largest[2], sum[2];  // score; of this thread's weights
};

// 2ˣ for x ≤ 0, no further off than 8e-5 of it, without the unit that has such powers but only one for 8 other numbers:
// a whole power in the bits of the exponent, times a polynomial of what rounding leaves. What is below 2⁻¹²⁶ is that.
__device__ __forceinline__ float power_by_hand(float x) {
    x = fmaxf(x, -126.0f);
    const float rounded = x + 12582912.0f;  // 1.5 · 2²³: the whole power is in its last bits
    const float rest = x - (rounded - 12582912.0f);
    float p = fmaf(0.0551716648042202f, rest, 0.2426111251115799f);
    p = fmaf(p, rest, 0.6932609677314758f);
    p = fmaf(p, rest, 0.9999280571937561f);
    return __int_as_float(__float_as_int(p) + (int)(__float_as_uint(rounded) << 23));
}

__device__ constexpr bool is_by_hand(int column) { return BY_HAND && column % (BY_HAND ? BY_HAND : 1) == 0; }

// Makes weights of scores, in place; what was gathered before shrinks by what comes back.
template <bool FIRST>
__device__ __forceinline__ void weigh(float (&s)[KEYS / 2], Rows& rows, float (&shrink)[2], float scale) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float largest = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
        for (int i = 4; i < KEYS / 2; i += 4) largest = fmaxf(largest, fmaxf(s[i + 2 * r], s[i + 2 * r + 1]));
        largest = of_four(largest);
        if (!FIRST) largest = fmaxf(largest, rows.largest[r]);
        shrink[r] = FIRST ? 0.0f : power_of_2((rows.largest[r] - largest) * scale);
        rows.largest[r] = largest;
        const float level = largest * scale;
        float sum[2] = {FIRST ? 0.0f : rows.sum[r] * shrink[r], 0.0f};
#pragma unroll
        for (int i = 0; i < KEYS / 2; i += 4)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float& each = s[i + 2 * r + j];
                const float power = fmaf(each, scale, -level);
                each = !FIRST && is_by_hand(i / 4) ? power_by_hand(power) : power_of_2(power);
                sum[j] += each;
            }
        rows.sum[r] = sum[0] + sum[1];
    }
}

__device__ __forceinline__ void narrow(u32 (&w)[KEYS / 4], const float (&s)[KEYS / 2]) {
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) w[i] = narrowed(s[2 * i], s[2 * i + 1]);
}

// ---------------------------------------------------------------------------------------------------- the program

struct Place {
    int row, head, batch;
};

// The longest first; a row's tiles one after the other, so that they find its keys in the cache.
__device__ __forceinline__ Place place_of(int tile, int queries, int heads) {
    const int tall = (queries + QUERIES - 1) / QUERIES, line = tile / tall, part = tile % tall;
    return {(CAUSAL ? tall - 1 - part : part) * QUERIES, line % heads, line / heads};
}

// Forth and back, so that blocks get long and short ones.
__device__ __forceinline__ int tile_of(int wave) {
    return wave * gridDim.x + (wave & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

__device__ __forceinline__ int tiles_seen(int first, int count, int queries, int keys) {  // by so many queries
    if (first >= queries) return 0;
    const int seen = CAUSAL ? min(keys, first + count) : keys;
    return (seen + KEYS - 1) / KEYS;
}

extern "C" __global__ void __launch_bounds__(128 + 128 * GROUPS, 1) attend(
    const __grid_constant__ Tiles q_tiles, const __grid_constant__ Tiles k_tiles, const __grid_constant__ Tiles v_tiles,
    const __grid_constant__ Tiles o_tiles, float* log_sums, int tiles, int queries, int keys, int heads, int shared_by,
    float scale) {
    extern __shared__ unsigned char memory[];
    const u32 slots = (address_of(memory) + 1023u) & ~1023u;
    const u32 q_slots = slots + SLOTS * SLOT, rooms = q_slots + Q_SLOTS * GROUPS * OF_Q;
    const u32 full = rooms + 4 * GROUPS * ROOM, empty = full + 8 * SLOTS, q_full = empty + 8 * SLOTS,
              q_empty = q_full + 8 * Q_SLOTS * GROUPS, done = q_empty + 8 * Q_SLOTS * GROUPS;

    const int group = __shfl_sync(THE_FULL, threadIdx.x / 128, 0);  // so that the compiler sees that warps agree
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) made(full + 8 * i, 1), made(empty + 8 * i, 4 * GROUPS);
        for (int i = 0; i < Q_SLOTS * GROUPS; i++) made(q_full + 8 * i, 1), made(q_empty + 8 * i, 4);
        made(done, 4 * GROUPS);
        all_are_made();
    }
    __syncthreads();

    u32 slot = 0, round = 0, q_slot = 0, q_round = 0;
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) {
            for (int wave = 0, tile; (tile = tile_of(wave)) < tiles; wave++) {
                const Place at = place_of(tile, queries, heads);
                const int head = at.head / shared_by, count = tiles_seen(at.row, QUERIES, queries, keys);
                for (int g = 0; g < GROUPS; g++) {
                    const u32 which = q_slot * GROUPS + g;
                    wait_or_fail(q_empty + 8 * which, q_round ^ 1);
                    expect(q_full + 8 * which, OF_Q);
                    for (int i = 0; i < WIDE; i++)
                        load(q_tiles, q_slots + which * OF_Q + i * (64 * 128), 64 * i, at.row + 64 * g, at.head,
                             at.batch, q_full + 8 * which);
                }
                if (++q_slot == Q_SLOTS) q_slot = 0, q_round ^= 1;
                // k, k v, k v, .., v: as groups ask for them
                for (int step = 0; step < 2 * count; step++) {
                    const bool is_key = step == 0 || (step & 1 && step < 2 * count - 1);
                    const int index = is_key ? (step + 1) / 2 : step == 2 * count - 1 ? count - 1 : step / 2 - 1;
                    wait_or_fail(empty + 8 * slot, round ^ 1);
                    expect(full + 8 * slot, SLOT);
                    for (int i = 0; i < WIDE; i++)
                        load(is_key ? k_tiles : v_tiles, slots + slot * SLOT + i * (KEYS * 128), 64 * i,
                             (count - 1 - index) * KEYS, head, at.batch, full + 8 * slot);
                    if (++slot == SLOTS) slot = 0, round ^= 1;
                }
            }
            wait_or_fail(done, 0);  // who multiplies has no register to count its polls
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(GROUPS == 2 ? 240 : 160));
        const int mine = group - 1;
        const u32 room = rooms + (mine * 4 + warp) * ROOM;
        const u32 corner = room + corner_of(lane);
        auto go_on = [&] {
            if (++slot == SLOTS) slot = 0, round ^= 1;
        };
        auto pass = [&] {  // what no query of this group sees
            wait(full + 8 * slot, round);
            __syncwarp();
            if (lane == 0) arrive(empty + 8 * slot);
            go_on();
        };
        if (mine == GROUPS - 1) give_turn(mine);
        for (int wave = 0, tile; (tile = tile_of(wave)) < tiles; wave++) {
            const Place at = place_of(tile, queries, heads);
            const int row = at.row + 64 * mine, count = tiles_seen(at.row, QUERIES, queries, keys);
            const int seen = tiles_seen(row, 64, queries, keys);
            const u32 which = q_slot * GROUPS + mine;
            if (++q_slot == Q_SLOTS) q_slot = 0;
            int step = 0;
            for (; step < count - seen; step++) {
                pass();
                if (step > 0) pass(), take_turn(mine), give_turn(mine);
            }
            wait(q_full + 8 * which, q_round);
            if (q_slot == 0) q_round ^= 1;
            if (seen == 0) {
                pass();
                if (lane == 0) arrive(q_empty + 8 * which);
                continue;
            }

            const u64 q = described(q_slots + which * OF_Q, 16, 1024);
            float s[KEYS / 2], o[D / 2] = {}, shrink[2];
            u32 w[KEYS / 4];
            Rows rows;
            auto begin_scores = [&] {
                const u64 k = described(slots + slot * SLOT, 16, 1024);
                begin_products();
#pragma unroll
                for (int i = 0; i < D / 16; i++)
                    multiply_keys(s, q + (i / 4 * (64 * 128 >> 4) + i % 4 * 2),
                                  k + (i / 4 * (KEYS * 128 >> 4) + i % 4 * 2), i > 0);
                end_products();
            };
            auto begin_values = [&] {
                const u64 v = described(slots + slot * SLOT, KEYS * 128, 1024);
                begin_products();
#pragma unroll
                for (int i = 0; i < KEYS / 16; i++) multiply_values(o, w + 4 * i, v + i * (16 * 128 >> 4));
                end_products();
            };

            wait(full + 8 * slot, round);
            begin_scores();
            until_multiplied<0>();
            stay_here(s);
            if (lane == 0) arrive(empty + 8 * slot);
            go_on();
            if (step > 0) pass(), take_turn(mine), give_turn(mine);
            {
                const int first = (seen - 1) * KEYS + lane % 4 * 2, query = row + warp * 16 + lane / 4;
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int limit = (CAUSAL ? min(keys, query + 8 * r + 1) : keys) - first;
#pragma unroll
                    for (int i = 0; i < KEYS / 2; i += 4)
#pragma unroll
                        for (int j = 0; j < 2; j++)
                            if (2 * i + j >= limit) s[i + 2 * r + j] = __int_as_float(0xff800000);
                }
            }
            weigh<true>(s, rows, shrink, scale);
            narrow(w, s);

            wait(full + 8 * slot, round);
#pragma unroll 1
            for (step++; step < count; step++) {
                const u32 of_keys = slot;
                take_turn(mine);
                begin_scores();
                go_on();
                const u32 of_values = slot;
                wait(full + 8 * slot, round);
                begin_values();
                go_on();
                give_turn(mine);
                until_multiplied<1>();
                stay_here(s);
                if (lane == 0) arrive(empty + 8 * of_keys);
                weigh<false>(s, rows, shrink, scale);
                stay_here(s);
                wait(full + 8 * slot, round);  // what comes next; here, as the compiler takes no weights behind a loop
                until_multiplied<0>();
                stay_here(o);
                if (lane == 0) arrive(empty + 8 * of_values);
#pragma unroll
                for (int i = 0; i < D / 2; i++) o[i] *= shrink[i / 2 % 2];
                narrow(w, s);
            }
            if (lane == 0) arrive(q_empty + 8 * which);
            begin_values();
            until_multiplied<0>();
            stay_here(o);
            if (lane == 0) arrive(empty + 8 * slot);
            go_on();

#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float sum = sum_of_four(rows.sum[r]);
                shrink[r] = 1.0f / sum;
#if KEEPS
                const int query = row + warp * 16 + lane / 4 + 8 * r;
                if (lane % 4 == 0 && query < queries)
                    log_sums[(u64)(at.batch * heads + at.head) * queries + query] =
                        fmaf(rows.largest[r], scale, __log2f(sum));
#endif
            }
            if (lane == 0) until_read<0>();
            __syncwarp();
#pragma unroll
            for (int i = 0; i < WIDE; i++) {
                u32 packed[16];
#pragma unroll
                for (int j = 0; j < 16; j++) {
                    const float* both = &o[32 * i + 2 * j];
                    packed[j] = narrowed(both[0] * shrink[j % 2], both[1] * shrink[j % 2]);
                }
                put_down(corner + i * (16 * 128), packed);
            }
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (lane == 0) {
                for (int i = 0; i < WIDE; i++)
                    store(o_tiles, room + i * (16 * 128), 64 * i, row + warp * 16, at.head, at.batch);
                asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            }
        }
        if (lane == 0) {
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
            arrive(done);
        }
    }
}
