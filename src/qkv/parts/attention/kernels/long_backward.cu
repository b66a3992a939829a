// The way back of attention over long rows for Hopper GPUs: gradients of q, k and v by that of
// o = softmax(scale q kᵀ) v. [dao2022 alg.4] [shah2024 §3.1]
//
// A block has a head of a row at a time. For each tile of 128 keys, whose gradients stay in registers meanwhile, it
// meets all tiles of 128 queries that see them. Scores stand upright, keys by queries: so what is made of them lies in
// registers just as the products for keys and values want it, and only the product for queries reads it from shared
// memory, where both groups of warps put it. The gradient of a tile of queries is gathered in a place of the block's
// own, which stays in L2, by the thread that has it in its registers: in the same order each time.
//
// While the tensor cores make the scores of the next tile, a group stores what they made of the last.
//
// Shapes: b rows, h heads, s tokens, 64 numbers of a head; all but o's sums [b h s 64], each with strides of its own.
//
// By #define: CAUSAL; HALF: numbers are float16, else bfloat16.

#define GROUPS 2
#include "rows.cuh"

constexpr int SIDE = 128;                                                  // keys and queries of a tile
constexpr u32 TILE = SIDE * 128, OF_GROUP = 64 * 128, OF_WARP = 16 * 128;  // bytes; rows of 128, which are swizzled
constexpr u32 STAGE = 2 * TILE;                                            // queries and the gradient above them
constexpr int APART = SIDE / 4 + 4, OF_ROWS = 4 * APART;                   // a number for each query, a lane's together
constexpr int STAGES = 2, KINDS = 3;                                       // gradients: of queries, keys and values

// ---------------------------------------------------------------------------------------------------- products

// d [64 128] (+)= a [64 16] bᵀ [16 128]
__device__ __forceinline__ void multiply_upright(float (&d)[64], u64 a, u64 b, int adds) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." NARROW "." NARROW
        " {" FIRST_64 "}, %64, %65, p, 1, 1, 0, 0; }"
        : OWN_32(0), OWN_32(32) : "l"(a), "l"(b), "r"(adds));
}

// d [64 64] (+)= aᵀ [64 16] b [16 64], both in shared memory, where rows are what is summed over
__device__ __forceinline__ void multiply_across(float (&d)[32], u64 a, u64 b, int adds) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." NARROW "." NARROW
        " {" FIRST_32 "}, %32, %33, p, 1, 1, 1, 1; }"
        : OWN_32(0) : "l"(a), "l"(b), "r"(adds));
}

// ---------------------------------------------------------------------------------------------------- copies

// What passes once leaves L2 first, so that what comes again stays.
__device__ __forceinline__ u64 passing() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ void load_once(
    const Tiles& tiles, u32 to, int column, int row, int head, int batch, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%2, %3, %4, %5}], [%6], %7;"
        ::"r"(to), "l"(&tiles), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier), "l"(passing()) : "memory");
}

__device__ __forceinline__ void store_once(
    const Tiles& tiles, u32 from, int column, int row, int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%1, %2, %3, %4}], [%5], %6;"
        ::"l"(&tiles), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(from), "l"(passing()) : "memory");
}

// ---------------------------------------------------------------------------------------------------- sums

__device__ __forceinline__ float4 four_at(u32 place) {
    float4 four;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w) : "r"(place));
    return four;
}

__device__ __forceinline__ float2 both_at(u32 place) {
    float2 both;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(both.x), "=f"(both.y) : "r"(place));
    return both;
}

// Of sums over rows that lanes have in part, a lane hands half of its columns on and takes the other's part of the rest.
template <int REST>
__device__ __forceinline__ void share_columns(float (&held)[16], int lane) {
    const bool upper = lane & 2 * REST;
#pragma unroll
    for (int i = 0; i < REST; i++) {
        const float given = upper ? held[i] : held[REST + i], kept = upper ? held[REST + i] : held[i];
        held[i] = kept + __shfl_xor_sync(THE_FULL, given, 2 * REST);
    }
}

// Adds to the sums of a warp, 64 numbers of which each lane has two, those of its 16 rows.
__device__ __forceinline__ void add_rows(u32 sums, const float (&d)[32], int lane) {
    float held[16];
#pragma unroll
    for (int i = 0; i < 16; i++) held[i] = d[i / 2 * 4 + i % 2] + d[i / 2 * 4 + 2 + i % 2];
    share_columns<8>(held, lane), share_columns<4>(held, lane), share_columns<2>(held, lane);
    const u32 place = sums + (lane / 4 * 8 + lane % 4 * 2) * 4;
    const float2 before = both_at(place);
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(place), "f"(before.x + held[0]), "f"(before.y + held[1])
                 : "memory");
}

// ---------------------------------------------------------------------------------------------------- the place in L2

__device__ __forceinline__ void put_first(float4* place, const float (&d)[32]) {
#pragma unroll
    for (int i = 0; i < 8; i++) __stcg(place + i * 128, make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]));
}

__device__ __forceinline__ void put_more(float4* place, const float (&d)[32]) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(place + i * 128), "f"(d[4 * i]),
                     "f"(d[4 * i + 1]), "f"(d[4 * i + 2]), "f"(d[4 * i + 3])
                     : "memory");
}

__device__ __forceinline__ void begin_taking(float4 (&more)[8], const float4* place) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(more[i].x), "=f"(more[i].y), "=f"(more[i].z), "=f"(more[i].w) : "l"(place + i * 128)
                     : "memory");
}

// ---------------------------------------------------------------------------------------------------- the programs

// For each query, what all its scores' gradients are lowered by, and log₂ of its softmax's sum, both negated; behind
// the last query such that no weight is left. Eight threads have a query of a head.
extern "C" __global__ void __launch_bounds__(256) attend_levels(
    const uint4* o, const uint4* above, const float* log_sums, float* levels, int queries, int heads, int rounded_up,
    int row_of_o, int batch_of_o, int head_of_o, int row_of_above, int batch_of_above, int head_of_above) {
    const int query = blockIdx.y * 32 + threadIdx.x / 8, part = threadIdx.x % 8;
    const int line = blockIdx.x, batch = line / heads, head = line - batch * heads;
    float sum = 0.0f;
    if (query < queries) {
        const uint4 mine = o[(u64)batch * batch_of_o + (u64)query * row_of_o + head * head_of_o + part];
        const uint4 given = above[(u64)batch * batch_of_above + (u64)query * row_of_above + head * head_of_above + part];
        const u32 a[4] = {mine.x, mine.y, mine.z, mine.w}, b[4] = {given.x, given.y, given.z, given.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum = fmaf(widened(a[i] & 0xffff), widened(b[i] & 0xffff), sum);
            sum = fmaf(widened(a[i] >> 16), widened(b[i] >> 16), sum);
        }
    }
    sum = sum_of_four(sum);
    sum += __shfl_xor_sync(THE_FULL, sum, 4);
    if (part == 0 && query < rounded_up) {
        const int within = query % SIDE, lane = within % 8 / 2;
        float* level = levels + ((u64)line * rounded_up / SIDE + query / SIDE) * (2 * OF_ROWS) + lane * APART +
                       within / 8 * 2 + within % 2;
        level[0] = query < queries ? -log_sums[(u64)line * queries + query] : __int_as_float(0xff800000);
        level[OF_ROWS] = query < queries ? -sum : 0.0f;
    }
}

// What is to be known of a tile, told by the warp that orders its copies.
struct Tile {
    int line;       // which head of which row
    int key_query;  // which 128 keys, and above 16 bits which 128 queries
    u32 is;

    __device__ __forceinline__ int key() const { return key_query & 0xffff; }
    __device__ __forceinline__ int query() const { return key_query >> 16; }
};

// Of its keys or queries, of the head, and of all that the block has, it may be the first (STARTS) or the last (ENDS).
constexpr u32 STARTS_KEYS = 1, ENDS_KEYS = 2, STARTS_QUERIES = 4, ENDS_QUERIES = 8, ENDS_LINE = 16, ENDS_ALL = 32,
              HIDES = 64,               // some of its scores are of no weight
              SLOT = 128, ROUND = 256;  // where its keys are, and in which round of that slot's barrier

__device__ __forceinline__ u32 slot_of(const Tile& tile) { return tile.is & SLOT ? 1 : 0; }

// Tiles in the order in which they are met. Queries go forth and back, so that many of them are still in L2.
struct Order {
    int tall, wide, lines, keys, line, key, query;
    u32 column;  // tiles of keys so far

    __device__ __forceinline__ int lowest() const { return CAUSAL ? key : 0; }
    __device__ __forceinline__ int first_query() const { return key & 1 ? tall - 1 : lowest(); }
    __device__ __forceinline__ int last_query() const { return key & 1 ? lowest() : tall - 1; }
    __device__ __forceinline__ Tile tile() const {
        const bool ends = query == last_query();
        u32 is = (query == first_query() ? STARTS_KEYS : 0) | (ends ? ENDS_KEYS : 0);
        is |= (key == 0 ? STARTS_QUERIES : 0) | (key == (CAUSAL ? query : wide - 1) ? ENDS_QUERIES : 0);
        if (ends && key == wide - 1) is |= ENDS_LINE | (line + (int)gridDim.x >= lines ? ENDS_ALL : 0);
        is |= (CAUSAL ? query == key : (key + 1) * SIDE > keys) ? HIDES : 0;
        return {line, key | query << 16, is | (column & 1 ? SLOT : 0) | (column & 2 ? ROUND : 0)};
    }
    __device__ __forceinline__ void go_on() {
        if (query != last_query()) {
            query += key & 1 ? -1 : 1;
            return;
        }
        if (++key == wide) key = 0, line += gridDim.x;
        query = first_query(), column++;
    }
};

extern "C" __global__ void __launch_bounds__(384, 1) attend_back(
    const __grid_constant__ Tiles q_tiles, const __grid_constant__ Tiles k_tiles, const __grid_constant__ Tiles v_tiles,
    const __grid_constant__ Tiles above_tiles, const __grid_constant__ Tiles dq_tiles,
    const __grid_constant__ Tiles dk_tiles, const __grid_constant__ Tiles dv_tiles, const float* levels, float4* gathered,
    float* kept, int lines, int queries, int keys, int heads, float scale, float scale_of_powers) {
    extern __shared__ unsigned char memory[];
    const u32 slots = (address_of(memory) + 1023u) & ~1023u;  // two of keys, then two of values
    const u32 stages = slots + 4 * TILE, upright = stages + STAGES * STAGE, rooms = upright + 4 * TILE;
    const u32 rows = rooms + 8 * OF_WARP, sums = rows + STAGES * 8 * OF_ROWS, told = sums + 8 * KINDS * 256;
    const u32 full = told + STAGES * 16, empty = full + 8 * STAGES, kv_full = empty + 8 * STAGES,
              kv_empty = kv_full + 16, done = kv_empty + 16;

    const int group = __shfl_sync(THE_FULL, threadIdx.x / 128, 0);  // so that the compiler sees that warps agree
    const int warp = __shfl_sync(THE_FULL, threadIdx.x / 32 % 4, 0), lane = threadIdx.x % 32;
    const int tall = (queries + SIDE - 1) / SIDE, wide = (keys + SIDE - 1) / SIDE;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) made(full + 8 * i, 1), made(empty + 8 * i, 8);
        for (int i = 0; i < 2; i++) made(kv_full + 8 * i, 1), made(kv_empty + 8 * i, 8);
        made(done, 8);
        all_are_made();
    }
    __syncthreads();

    u32 turn = 0;  // tiles so far
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) {
            Order order = {tall, wide, lines, keys, (int)blockIdx.x, 0, 0, 0};
            for (; order.line < lines; order.go_on(), turn++) {
                const Tile tile = order.tile();
                const int batch = tile.line / heads, head = tile.line - batch * heads;
                if (tile.is & STARTS_KEYS) {
                    const u32 slot = order.column % 2, barrier = kv_full + 8 * slot;
                    wait_or_fail(kv_empty + 8 * slot, order.column / 2 & 1 ^ 1);
                    expect(barrier, 2 * TILE);
                    load_once(k_tiles, slots + slot * TILE, 0, order.key * SIDE, head, batch, barrier);
                    load_once(v_tiles, slots + (2 + slot) * TILE, 0, order.key * SIDE, head, batch, barrier);
                }
                const u32 stage = turn % STAGES, barrier = full + 8 * stage;
                wait_or_fail(empty + 8 * stage, turn / STAGES & 1 ^ 1);
                asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %3};" ::"r"(told + stage * 16), "r"(tile.line),
                             "r"(tile.key_query), "r"(tile.is) : "memory");
                expect(barrier, STAGE + 8 * OF_ROWS);
                load(q_tiles, stages + stage * STAGE, 0, order.query * SIDE, head, batch, barrier);
                load(above_tiles, stages + stage * STAGE + TILE, 0, order.query * SIDE, head, batch, barrier);
                asm volatile(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%3], %1, [%2];"
                    ::"r"(rows + stage * (8 * OF_ROWS)), "r"(8 * OF_ROWS), "r"(barrier),
                      "l"(levels + ((u64)tile.line * tall + order.query) * (2 * OF_ROWS)) : "memory");
            }
            wait_or_fail(done, 0);  // who multiplies has no register to count its polls
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        const int mine = group - 1, thread = threadIdx.x % 128;
        const u32 room = rooms + (mine * 4 + warp) * OF_WARP, own_sums = sums + (mine * 4 + warp) * KINDS * 256;
        float4* place = gathered + ((u64)blockIdx.x * tall * 2 + mine) * 1024 + thread;  // of this thread's share
        float s[64], dp[64], dk[32], dv[32], dq[32];
        Tile tile, last = {0, 0, 0};  // the one before, whose queries' gradient comes one tile later
        bool more = blockIdx.x < lines;

        const auto begin_scores = [&] {
            const u32 stage = turn % STAGES;
            if (more) {
                wait(full + 8 * stage, turn / STAGES & 1);
                asm volatile("ld.shared.v4.u32 {%0, %1, %2, %2}, [%3];"
                             : "=r"(tile.line), "=r"(tile.key_query), "=r"(tile.is) : "r"(told + stage * 16));
                if (tile.is & STARTS_KEYS) wait(kv_full + 8 * slot_of(tile), tile.is & ROUND ? 1 : 0);
            }
            const u32 slot = slot_of(tile);
            const u64 k = described(slots + slot * TILE + mine * OF_GROUP, 16, 1024);
            const u64 q = described(stages + stage * STAGE, 16, 1024);
            begin_products();
#pragma unroll
            for (int i = 0; i < 4; i++) multiply_upright(s, k + 2 * i, q + 2 * i, i > 0);
            end_products();
        };
        const auto begin_queries = [&](u32 buffer) {
            begin_products();
#pragma unroll
            for (int i = 0; i < 8; i++)
                multiply_across(dq, described(buffer + mine * TILE, TILE, 1024) + i * (16 * 128 >> 4),
                                described(slots + slot_of(last) * TILE, TILE, 1024) + i * (16 * 128 >> 4), i > 0);
            end_products();
        };
        // What a warp has of a gradient, 16 rows by 64 numbers.
        const auto give_out = [&](const Tiles& tiles, float (&d)[32], int kind, float factor, int row, int line) {
            u32 packed[16];
#pragma unroll
            for (int i = 0; i < 32; i++) d[i] *= factor;
#pragma unroll
            for (int i = 0; i < 16; i++) packed[i] = narrowed(d[2 * i], d[2 * i + 1]);
            if (lane == 0) until_read<0>();
            __syncwarp();
            put_down(room + corner_of(lane), packed);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (lane == 0) {
                store_once(tiles, room, 0, row + mine * 64 + warp * 16, line % heads, line / heads);
                asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            }
            add_rows(own_sums + kind * 256, d, lane);
        };
        const auto begin_ending = [&](float4 (&before)[8]) {  // what was gathered of queries that no further keys meet
#pragma unroll
            for (int i = 0; i < 8; i++) before[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if ((last.is & (ENDS_QUERIES | STARTS_QUERIES)) == ENDS_QUERIES)
                begin_taking(before, place + last.query() * 2048);
        };
        const auto give_queries = [&](const float4 (&before)[8]) {
            float4* own = place + last.query() * 2048;
            if (last.is & ENDS_QUERIES) {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    dq[4 * i] += before[i].x, dq[4 * i + 1] += before[i].y, dq[4 * i + 2] += before[i].z,
                        dq[4 * i + 3] += before[i].w;
                give_out(dq_tiles, dq, 0, scale, last.query() * SIDE, last.line);
            } else if (last.is & STARTS_QUERIES) {
                put_first(own, dq);
            } else {
                put_more(own, dq);
            }
            if (!(last.is & ENDS_LINE)) return;
            const int batch = last.line / heads, head = last.line - batch * heads;
#pragma unroll
            for (int kind = 0; kind < KINDS; kind++) {
                const u32 sum = own_sums + kind * 256 + lane * 8;
                const float2 both = both_at(sum);
                asm volatile("st.shared.v2.f32 [%0], {%1, %1};" ::"r"(sum), "f"(0.0f) : "memory");
                float* out = kept + (((u64)(batch * 8 + mine * 4 + warp) * KINDS + kind) * heads + head) * 64;
                ((float2*)out)[lane] = both;
            }
        };
        const auto tell = [&](u32 parity) {  // the other group that scores are there, and those before are read
            asm volatile("bar.arrive %0, 256;" ::"r"(3 + 2 * mine + parity) : "memory");
        };
        const auto until_told = [&](u32 parity) {
            asm volatile("bar.sync %0, 256;" ::"r"(3 + 2 * (mine ^ 1) + parity) : "memory");
        };

        for (int i = lane; i < KINDS * 64; i += 32)
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(own_sums + 4 * i), "f"(0.0f) : "memory");
        __syncwarp();
        tell(1);
        if (mine == 1) give_turn(mine);
        begin_scores();
        until_multiplied<0>();
        stay_here(s);
#pragma unroll 1
        while (more) {
            const u32 stage = turn % STAGES, slot = slot_of(tile), buffer = upright + turn % 2 * (2 * TILE);
            const u32 q_stage = stages + stage * STAGE, above_stage = q_stage + TILE;
            const u32 level = rows + stage * (8 * OF_ROWS) + lane % 4 * (4 * APART);
            const bool starts_keys = tile.is & STARTS_KEYS;

            {
                const u64 v = described(slots + (2 + slot) * TILE + mine * OF_GROUP, 16, 1024);
                const u64 above = described(above_stage, 16, 1024);
                begin_products();
#pragma unroll
                for (int i = 0; i < 4; i++) multiply_upright(dp, v + 2 * i, above + 2 * i, i > 0);
                end_products();
            }
            take_turn(mine);  // to raise powers: meanwhile the tensor cores work for the other group
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float4 four = four_at(level + i * 16);
                const float of_column[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int j = 0; j < 8; j++)
                    s[8 * i + j] = power_of_2(fmaf(s[8 * i + j], scale_of_powers, of_column[j / 4 * 2 + j % 2]));
            }
            if (tile.is & HIDES) {
                const int key = mine * 64 + warp * 16 + lane / 4;  // within the tile
#pragma unroll
                for (int i = 0; i < 64; i++) {
                    const int query = i / 4 * 8 + lane % 4 * 2 + i % 2, own = key + i / 2 % 2 * 8;
                    if (CAUSAL ? own > query : tile.key() * SIDE + own >= keys) s[i] = 0.0f;
                }
            }
            give_turn(mine);
            until_multiplied<0>();
            stay_here(dp);
            u32 weights[32], slopes[2][16];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float4 four = four_at(level + 4 * OF_ROWS + i * 16);
                const float of_column[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float low = s[8 * i + 2 * j], high = s[8 * i + 2 * j + 1];
                    weights[4 * i + j] = narrowed(low, high);
                    slopes[i / 4][i % 4 * 4 + j] = narrowed(low * (dp[8 * i + 2 * j] + of_column[j / 2 * 2]),
                                                            high * (dp[8 * i + 2 * j + 1] + of_column[j / 2 * 2 + 1]));
                }
            }
            begin_products();
#pragma unroll
            for (int i = 0; i < 8; i++)
                multiply_values(dv, weights + 4 * i, described(above_stage, TILE, 1024) + i * (16 * 128 >> 4),
                                i > 0 || !starts_keys);
#pragma unroll
            for (int i = 0; i < 8; i++)
                multiply_values(dk, slopes[i / 4] + i % 4 * 4, described(q_stage, TILE, 1024) + i * (16 * 128 >> 4),
                                i > 0 || !starts_keys);
            end_products();

            float4 before[8];
            begin_ending(before);
            until_told(turn & 1 ^ 1);
            const u32 corner = buffer + mine * OF_GROUP + warp * OF_WARP + corner_of(lane);
            put_down(corner, slopes[0]);
            put_down(corner + TILE, slopes[1]);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");

            begin_queries(upright + (turn & 1 ^ 1) * (2 * TILE));  // of the last tile; before the first, of nothing
            until_multiplied<1>();
            stay_here(dv), stay_here(dk);
            if (lane == 0) arrive(empty + 8 * stage);
            const Tile at = tile;
            const bool ends_keys = at.is & ENDS_KEYS, leaves = last.is & ENDS_KEYS, second = turn > 0;
            // The next keys come where the last were, if these are met by one tile alone.
            if (leaves && ends_keys) {
                until_multiplied<0>();
                if (lane == 0) arrive(kv_empty + 8 * slot_of(last));
            }
            more = !(at.is & ENDS_ALL);
            turn++;
            begin_scores();  // behind the last tile too, of whatever lies there: nobody reads them
            until_multiplied<1>();
            stay_here(dq);
            if (leaves && !ends_keys && lane == 0) arrive(kv_empty + 8 * slot_of(last));
            tell(turn & 1 ^ 1);
            if (second) give_queries(before);
            last = at;
            if (ends_keys) {
                give_out(dk_tiles, dk, 1, scale, at.key() * SIDE, at.line);
                give_out(dv_tiles, dv, 2, 1.0f, at.key() * SIDE, at.line);
            }
            until_multiplied<0>();
            stay_here(s);
        }
        if (turn > 0) {
            float4 before[8];
            begin_ending(before);
            until_told(turn & 1 ^ 1);
            begin_queries(upright + (turn & 1 ^ 1) * (2 * TILE));
            until_multiplied<0>();
            stay_here(dq);
            give_queries(before);
        }
        if (lane == 0) {
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
            arrive(done);
        }
    }
}
