// A product of matrices and what comes behind it, for Hopper GPUs: y = x W, with a bias, an activation, a sum.
//
// Each block has a warpgroup that orders copies and two that multiply, each of which makes whole tiles of y, in turns:
// while one has the tensor cores, the other does what comes behind the product and stores its tile. Tiles of x and W
// come by the copy engine into a ring of stages, STAGES of them ahead; two blocks of a cluster, which make tiles below
// each other, get each half of W's tile and hand it to both. Where whole rows are normed behind the product, blocks of a
// cluster make tiles beside each other, which have all columns: there it is x's tile of which each gets a part for all.
// Where a product makes queries, keys and values of rows as long as a tile, a tile is one head of one row, and what
// comes behind it is attention: only what the queries read is stored.
//
// Shapes: M rows, K inputs, N outputs; x [M K], W [N K], or [K N] if ACROSS, y [M N].
//
// By #define: BM, BN: rows and columns of a tile; STAGES; CLUSTER: blocks of one, 1 or 2; GROUP: tiles (of a cluster)
// below each other that come one after the other; ROOMS: stores that each warp has on the way; HALF: numbers are
// float16, else bfloat16; ACROSS; BIAS: 0 none, 1 narrow, 2 float32; ACTIVATION: one of those below; KEEPS: z, which is
// activated, is stored too; READS: 1: what is added to y, 2: z, whose slope y is multiplied with, and sums over rows;
// GAIN: 0 rows are not normed, 1 with a narrow gain, 2 with one in float32, and then CLUSTER is N / BN, 2 to 8; SHIFT: of
// the norm, as BIAS; RMS: the norm takes no mean off; ATTENDS: y [M N/3] is what queries read, W has rows for all
// queries, then keys, then values, 64 for a head.
//
// What adds to a stream goes from the last rows to the first, all else from the first to the last: it begins with what
// the product before it has stored last, which the L2 cache still has.
//
// It may begin while the program before it still runs, and waits for its end before it reads or writes: whoever is
// launched early does, so what is there behind that wait was written by any program before.

#include "activations.cuh"

constexpr int BK = 64;                       // inputs of a stage: rows of 128 bytes, which are swizzled
constexpr int TALL = BM / 64;                // products below each other in a tile
constexpr u32 OF_X = BM * BK * 2, OF_W = BN * BK * 2, STAGE = OF_X + OF_W;
constexpr u32 ROOM = 16 * 64 * 2;            // what a warp stores at once: 16 rows of 64 columns
constexpr int UNITS = TALL * (BN / 64);      // of those in a tile
constexpr bool BEGUN = READS == 1 || BIAS;   // whether something is there before the product
constexpr bool BACKWARDS = READS == 1;       // from the last rows to the first
#if GAIN
constexpr u32 TOLD = 16 * TALL * 8;                            // what a warp tells of its rows: two numbers of each
constexpr u32 BESIDE = BN * 8 + 8 * 2 * CLUSTER * TOLD;        // gain and shift; what each warp is told, in two rooms
constexpr bool WHOLE = true;                                   // tiles have no column past the last
#elif ATTENDS
constexpr u32 BESIDE = 0;
constexpr bool WHOLE = true;
constexpr u32 OF_HEAD = BM * 128;                              // keys of a tile, or values
static_assert(BM == 128 && BN == 192, "the queries, keys and values of a head are a tile");
static_assert(4 * ROOMS * ROOM == 2 * OF_HEAD, "keys and values fill the rooms of a warpgroup");
#else
constexpr u32 BESIDE = 8 * BN * 4;                             // sums of each warp
constexpr bool WHOLE = false;
#endif

static_assert(ATTENDS || (UNITS * (KEEPS ? 2 : 1) % ROOMS == 0 && ROOMS > 1), "rooms come round with the tiles");

// ---------------------------------------------------------------------------------------------------- numbers

__device__ __forceinline__ float low_of(u32 both) { return widened((unsigned short)(both & 0xffffu)); }
__device__ __forceinline__ float high_of(u32 both) { return widened((unsigned short)(both >> 16)); }

// ---------------------------------------------------------------------------------------------------- barriers

__device__ __forceinline__ void arrive_at(u32 barrier, u32 block) {  // of the cluster
    if (CLUSTER == 1) return arrive(barrier);
    asm volatile(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [there]; }"
        ::"r"(barrier), "r"(block) : "memory");
}

// ---------------------------------------------------------------------------------------------------- copies

__device__ __forceinline__ void at_hand(const Tiles& tiles) {  // before the first copy
    asm volatile("prefetch.tensormap [%0];" ::"l"(&tiles) : "memory");
}

__device__ __forceinline__ void load_for_all(const Tiles& tiles, u32 to, int column, int row, u32 barrier) {
#if CLUSTER > 1
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;"
        ::"r"(to), "l"(&tiles), "r"(column), "r"(row), "r"(barrier), "h"((unsigned short)((1 << CLUSTER) - 1))
        : "memory");
#else
    load(tiles, to, column, row, barrier);
#endif
}

// ---------------------------------------------------------------------------------------------------- tensor cores

#if ACROSS
#define ORDER "1, 1, 0, 1"
#else
#define ORDER "1, 1, 0, 0"
#endif

// d [64 BN] (+)= x [64 16] W [16 BN]. A thread has of every 8 columns, in rows lane / 4 and 8 below it, those at
// 2 (lane % 4); each warp has 16 rows.
__device__ __forceinline__ void multiply(float (&d)[BN / 2], u64 x, u64 w, int adds) {
#if BN == 192
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %98, 0; wgmma.mma_async.sync.aligned.m64n192k16.f32." NARROW "." NARROW
        " {" FIRST_96 "}, %96, %97, p, " ORDER "; }"
        : OWN_32(0), OWN_32(32), OWN_32(64) : "l"(x), "l"(w), "r"(adds));
#else
    static_assert(BN == 128, "columns of a tile: 128 or 192");
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." NARROW "." NARROW
        " {" FIRST_64 "}, %64, %65, p, " ORDER "; }"
        : OWN_32(0), OWN_32(32) : "l"(x), "l"(w), "r"(adds));
#endif
}

// ---------------------------------------------------------------------------------------------------- the program

struct Place {
    int row, column;
};

// Of four lanes beside each other, each gets one number of every lane: the first the first, the second the second.
__device__ __forceinline__ void turned(u32 (&v)[4], int lane) {
#pragma unroll
    for (int i = 0; i < 2; i++) {  // 0 with 1, 2 with 3
        const u32 got = __shfl_xor_sync(0xffffffffu, lane & 1 ? v[2 * i] : v[2 * i + 1], 1);
        if (lane & 1) v[2 * i] = got;
        else v[2 * i + 1] = got;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {  // 0 with 2, 1 with 3
        const u32 got = __shfl_xor_sync(0xffffffffu, lane & 2 ? v[i] : v[i + 2], 2);
        if (lane & 2) v[i] = got;
        else v[i + 2] = got;
    }
}

// d [BM BN] = what is added to the product: it lies in registers that are free until there is something to multiply.
// A lane reads 8 columns at once, of 32 that it shares with three others.
__device__ __forceinline__ void begin_with(
    float (&d)[TALL][BN / 2], const unsigned short* added, int apart, Place at, int M, int N, int warp, int lane) {
    u32 read[TALL][2][BN / 32][4];
#pragma unroll
    for (int m = 0; m < TALL; m++)
#pragma unroll
        for (int below = 0; below < 2; below++)
#pragma unroll
            for (int c = 0; c < BN / 32; c++) {
                u32(&v)[4] = read[m][below][c];
                const int row = at.row + m * 64 + warp * 16 + lane / 4 + 8 * below;
                const int column = at.column + c * 32 + lane % 4 * 8;
                v[0] = v[1] = v[2] = v[3] = 0;
                if (row < M && (WHOLE || column < N))
                    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"(added + (u64)row * apart + column));
            }
#pragma unroll
    for (int m = 0; m < TALL; m++)
#pragma unroll
        for (int below = 0; below < 2; below++)
#pragma unroll
            for (int c = 0; c < BN / 32; c++) {
                u32(&v)[4] = read[m][below][c];
                turned(v, lane);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float* both = &d[m][(c * 4 + j) * 4 + 2 * below];
                    both[0] = low_of(v[j]), both[1] = high_of(v[j]);
                }
            }
}

// d [BM BN] = the bias in every row, so that nothing is to be added behind the product; or added to what is there.
__device__ __forceinline__ void with_bias(float (&d)[TALL][BN / 2], const void* bias, int first, int N, int lane) {
#pragma unroll
    for (int c = 0; c < BN / 8; c++) {
        const int within = c * 8 + lane % 4 * 2;
        const int column = ATTENDS ? within / 64 * (N / 3) + first / 3 + within % 64 : first + within;
        float low = 0.0f, high = 0.0f;
        if (WHOLE || column < N) {
#if BIAS == 2
            asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(low), "=f"(high) : "l"((const float*)bias + column));
#else
            u32 both;
            asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(both) : "l"((const unsigned short*)bias + column));
            low = low_of(both), high = high_of(both);
#endif
        }
#pragma unroll
        for (int i = 0; i < 2 * TALL; i++) {
            float* both = &d[i / 2][c * 4 + i % 2 * 2];
            both[0] = READS == 1 ? both[0] + low : low, both[1] = READS == 1 ? both[1] + high : high;
        }
    }
}

// 16 rows of 16 columns, of which each lane has 8 numbers.
__device__ __forceinline__ void put(u32 place, const float* v) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(place),
                 "r"(narrowed(v[0], v[1])), "r"(narrowed(v[2], v[3])), "r"(narrowed(v[4], v[5])), "r"(narrowed(v[6], v[7]))
                 : "memory");
}

// All of them are known from here on: nothing that makes them comes later, nothing that reads them earlier.
template <int COUNT>
__device__ __forceinline__ void settled(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}

template <int COUNT>
__device__ __forceinline__ void settled(float (&d)[TALL][COUNT]) {
#pragma unroll
    for (int m = 0; m < TALL; m++) settled(d[m]);
}

// Of 2 COUNT numbers, COUNT stay with a lane: those that it has in common with its partner, who keeps the others.
template <int COUNT>
__device__ __forceinline__ void gather(float (&sum)[16], int lane) {
    const bool upper = lane & 2 * COUNT;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const float given = upper ? sum[i] : sum[i + COUNT], kept = upper ? sum[i + COUNT] : sum[i];
        sum[i] = kept + __shfl_xor_sync(0xffffffffu, given, 2 * COUNT);
    }
}

#if GAIN
__device__ __forceinline__ int tiles_of(int M, int N) { return (M + BM - 1) / BM; }

__device__ __forceinline__ Place place_of(int tile, int M, int N) {
    return {(BACKWARDS ? tiles_of(M, N) - 1 - tile : tile) * BM, rank() * BN};
}
#else
__device__ __forceinline__ int tiles_of(int M, int N) {  // of a cluster
    return (M + BM * CLUSTER - 1) / (BM * CLUSTER) * ((N + BN - 1) / BN);
}

// Column by column of GROUP tiles, so that neighbours in time share inputs.
__device__ __forceinline__ Place place_of(int tile, int M, int N) {
    int rows = (M + BM * CLUSTER - 1) / (BM * CLUSTER), columns = (N + BN - 1) / BN;
    int first = tile / (GROUP * columns) * GROUP, within = tile % (GROUP * columns);
    int tall = min(rows - first, GROUP), row = first + within % tall;
    return {((BACKWARDS ? rows - 1 - row : row) * CLUSTER + rank()) * BM, within / tall * BN};
}
#endif

__device__ __forceinline__ float of_four(float x) {  // lanes beside each other: their sum
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// ---------------------------------------------------------------------------------------------------- norms

#if GAIN
__device__ __forceinline__ u32 in_block(u32 place, u32 block) {  // of the cluster: where that place is in its memory
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place), "r"(block));
    return there;
}

template <int KIND>
__device__ __forceinline__ float number_of(const void* numbers, int i) {
    if (KIND == 1) return widened(((const unsigned short*)numbers)[i]);
    return ((const float*)numbers)[i];
}

// Of two columns beside each other, gain and gain, shift and shift.
__device__ __forceinline__ void lay_down(u32 gains, const void* gain, const void* shift) {
    for (int i = threadIdx.x; i < BN; i += 384) {
        const float first = number_of<GAIN>(gain, rank() * BN + i);
        const float second = SHIFT ? number_of<SHIFT>(shift, rank() * BN + i) : 0.0f;
        asm volatile("st.shared.f32 [%0], %1; st.shared.f32 [%0 + 8], %2;"
                     ::"r"(gains + i / 2 * 16 + i % 2 * 4), "f"(first), "f"(second) : "memory");
    }
}

// d [BM BN] = the norm of its rows, which go on in the other blocks of the cluster.
//
// Each warp tells those of other blocks that have the same rows their mean over its own columns, and the sum of squares
// of what is left; from those of equally many columns follow those of all. Rooms, and their barriers, come in turns:
// who tells of a tile has been told of the one before by all others, who had then read what was in this room.
__device__ __forceinline__ void norm(
    float (&d)[TALL][BN / 2], u32 told, u32 all_told, u32 gains, int count, float epsilon, int lane) {
    float mean[2 * TALL], rate[2 * TALL];
#pragma unroll
    for (int i = 0; i < 2 * TALL; i++) {
        float sum = 0.0f;
#pragma unroll
        for (int c = 0; c < BN / 8; c++) sum += d[i / 2][c * 4 + i % 2 * 2] + d[i / 2][c * 4 + i % 2 * 2 + 1];
        sum = of_four(sum);
        const float nearly = sum * (1.0f / BN), rest = fmaf(-nearly, (float)BN, sum);  // which is none of rows all alike
        mean[i] = RMS ? 0.0f : fmaf(rest, 1.0f / BN, nearly);
    }
#pragma unroll
    for (int i = 0; i < 2 * TALL; i++) {
        float squares = 0.0f;
#pragma unroll
        for (int j = 0; j < BN / 4; j++) {
            float& left = d[i / 2][j / 2 * 4 + i % 2 * 2 + j % 2];
            left -= mean[i], squares = fmaf(left, left, squares);
        }
        rate[i] = of_four(squares);
    }
    all_told += 8 * (count & 1), told += (count & 1) * (CLUSTER * TOLD) + lane / 4 * 8;
    if (lane == 0) expect(all_told, CLUSTER * TOLD);
#pragma unroll
    for (int first = 0; first < CLUSTER; first += 4) {
        const u32 block = first + lane % 4;
        if (CLUSTER % 4 && block >= CLUSTER) continue;
        const u32 there = in_block(told + rank() * TOLD, block), barrier = in_block(all_told, block);
#pragma unroll
        for (int i = 0; i < 2 * TALL; i++)
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                         ::"r"(there + i * 64), "f"(mean[i]), "f"(rate[i]), "r"(barrier) : "memory");
    }
    __syncwarp();
    wait(all_told, count / 2 & 1);
#pragma unroll
    for (int i = 0; i < 2 * TALL; i++) {
        float means[CLUSTER], apart = 0.0f, squares = 0.0f;
#pragma unroll
        for (int block = 0; block < CLUSTER; block++) {
            float one;
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(means[block]), "=f"(one)
                         : "r"(told + block * TOLD + i * 64) : "memory");
            apart += means[block] - means[0], squares += one;
        }
        const float total = fmaf(apart, 1.0f / CLUSTER, means[0]);
#pragma unroll
        for (int block = 0; block < CLUSTER; block++)
            squares = fmaf(BN * (means[block] - total), means[block] - total, squares);
        rate[i] = rsqrtf(fmaf(squares, 1.0f / (BN * CLUSTER), epsilon));
        mean[i] = (mean[i] - total) * rate[i];
    }
#pragma unroll
    for (int c = 0; c < BN / 8; c++) {
        float gain[2], shift[2];
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(gain[0]), "=f"(gain[1]), "=f"(shift[0]), "=f"(shift[1])
                     : "r"(gains + (c * 4 + lane % 4) * 16) : "memory");
#pragma unroll
        for (int i = 0; i < 4 * TALL; i++) {
            float& y = d[i / 4][c * 4 + i % 4];
            y = fmaf(fmaf(y, rate[i / 2], mean[i / 2]), gain[i % 2], shift[i % 2]);
        }
    }
}
#endif

// ---------------------------------------------------------------------------------------------------- attention

#if ATTENDS
// s [64 128] (+)= q [64 16] k [128 16]ᵀ. A thread has of the queries what the product left it.
__device__ __forceinline__ void multiply_keys(float (&d)[64], const u32 (&q)[4], u64 k, int adds) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." NARROW "." NARROW
        " {" FIRST_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0; }"
        : OWN_32(0), OWN_32(32) : "r"(q[0]), "r"(q[1]), "r"(q[2]), "r"(q[3]), "l"(k), "r"(adds));
}

// d [64 64] (+)= weights [64 16] v [16 64]. A thread has of the weights what it had of their scores.
__device__ __forceinline__ void multiply_values(float (&d)[32], const u32 (&w)[4], u64 v, int adds) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." NARROW "." NARROW
        " {" FIRST_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1; }"
        : OWN_32(0) : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(v), "r"(adds));
}

// Weights of scores s [64 128], which are still to be divided by their sums: `rate` is one over those of a lane's rows.
__device__ __forceinline__ void weigh(const float (&s)[64], u32 (&weights)[8][4], float (&rate)[2], float scale) {
    float level[2], total[2] = {};
#pragma unroll
    for (int below = 0; below < 2; below++) {
        float largest = s[2 * below];
#pragma unroll
        for (int c = 0; c < 16; c++) largest = fmaxf(largest, fmaxf(s[4 * c + 2 * below], s[4 * c + 2 * below + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        level[below] = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2)) * scale;
    }
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const float low = power_of_2(fmaf(s[2 * i], scale, -level[i % 2]));
        const float high = power_of_2(fmaf(s[2 * i + 1], scale, -level[i % 2]));
        total[i % 2] += low + high, weights[i / 4][i % 4] = narrowed(low, high);
    }
#pragma unroll
    for (int below = 0; below < 2; below++) rate[below] = 1.0f / of_four(total[below]);
}

// Stores what the queries of a tile read: d has 64 columns of queries, of keys and of values. Keys and values lie in the
// rooms of the warpgroup from one of its barriers to the next; then each warp lays what it has read where its keys were.
__device__ __forceinline__ void attend(
    float (&d)[TALL][BN / 2], u32 keys, float scale, const Tiles& y_tiles, Place at, int group, int warp, int lane) {
    const u32 rows = keys + warp * ROOM, corner = rows + lane % 16 * 128 + (lane / 16 ^ lane % 8) * 16;
    u32 q[TALL][4][4];
    if (lane == 0) until_read<0>();
    __syncwarp();
#pragma unroll
    for (int m = 0; m < TALL; m++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            put(corner + m * (4 * ROOM) ^ j * 32, &d[m][32 + 8 * j]);
            put(corner + m * (4 * ROOM) + OF_HEAD ^ j * 32, &d[m][64 + 8 * j]);
        }
#pragma unroll
        for (int i = 0; i < 16; i++) q[m][i / 4][i % 4] = narrowed(d[m][2 * i], d[m][2 * i + 1]);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory");

    float s[TALL][64], read[TALL][32], rate[TALL][2];
    u32 weights[TALL][8][4];
    const u64 k = described(keys, 16, 1024), v = described(keys + OF_HEAD, OF_HEAD, 1024);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int m = 0; m < TALL; m++) {
#pragma unroll
        for (int i = 0; i < 4; i++) multiply_keys(s[m], q[m][i], k + i * 2, i);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }
#pragma unroll
    for (int m = 0; m < TALL; m++) {
        until_multiplied<1>();
        settled(s[m]);
        weigh(s[m], weights[m], rate[m], scale * 1.4426950408889634f);  // log2(e)
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int i = 0; i < 8; i++) multiply_values(read[m], weights[m][i], v + i * (16 * 128 >> 4), i);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }
    until_multiplied<0>();
    settled(read);
    asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory");

#pragma unroll
    for (int m = 0; m < TALL; m++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float y[8];
#pragma unroll
            for (int i = 0; i < 8; i++) y[i] = read[m][8 * j + i] * rate[m][i / 2 % 2];
            put(corner + m * (4 * ROOM) ^ j * 32, y);
        }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane == 0)
        for (int m = 0; m < TALL; m++)
            store(y_tiles, rows + m * (4 * ROOM), at.column / 3, at.row + m * 64 + warp * 16);
}
#endif

extern "C" __global__ void __launch_bounds__(384, 1) product(
    const __grid_constant__ Tiles x_tiles, const __grid_constant__ Tiles w_tiles, const __grid_constant__ Tiles y_tiles,
    const __grid_constant__ Tiles z_tiles,  // z, which is read or kept
    const void* bias, float* __restrict__ sums, const unsigned short* added, int M, int N, int K, int apart
#if GAIN
    , const void* gain, const void* shift, float epsilon
#elif ATTENDS
    , float scale
#endif
) {
    extern __shared__ unsigned char memory[];
    const u32 stages = (address_of(memory) + 1023u) & ~1023u;
    const u32 rooms = stages + STAGES * STAGE, beside = rooms + 8 * ROOMS * ROOM, barriers = beside + BESIDE;
    const u32 full = barriers, empty = full + 8 * STAGES, turns = empty + 8 * STAGES, reads = turns + 8 * 2,
              done = reads + 8 * 8 * ROOMS;
#if GAIN
    const u32 gains = beside, told = gains + BN * 8, all_told = done + 8;
#endif

    const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);  // so that the compiler sees that warps agree
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) made(full + 8 * i, 1), made(empty + 8 * i, 4 * CLUSTER);
        for (int i = 0; i < 2; i++) made(turns + 8 * i, 4);
        for (int i = 0; i < 8 * ROOMS; i++) made(reads + 8 * i, 1);
        made(done, 8);
#if GAIN
        for (int i = 0; i < 8 * 2; i++) made(all_told + 8 * i, 1);
#endif
        all_are_made();
        at_hand(x_tiles), at_hand(w_tiles), at_hand(y_tiles);
        if (KEEPS || READS == 2) at_hand(z_tiles);
    }
    whole_cluster();
    asm volatile("griddepcontrol.launch_dependents; griddepcontrol.wait;" ::: "memory");
#if GAIN
    lay_down(gains, gain, shift);
    __syncthreads();
#endif

    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) {
            u32 stage = 0, round = 0;
            for (int tile = blockIdx.x / CLUSTER; tile < tiles_of(M, N); tile += gridDim.x / CLUSTER) {
                const Place at = place_of(tile, M, N);
                for (int k = 0; k < K; k += BK) {
                    const u32 x = stages + stage * STAGE, w = x + OF_X, barrier = full + 8 * stage;
                    wait_or_fail(empty + 8 * stage, round ^ 1);
                    expect(barrier, STAGE);
#if GAIN
                    const int part = rank() * (BM / CLUSTER);  // rows of x that this block gets for all
                    load_for_all(x_tiles, x + part * 128, k, at.row + part, barrier);
                    load(w_tiles, w, k, at.column, barrier);
#else
                    load(x_tiles, x, k, at.row, barrier);
#if ACROSS
                    for (int i = 0; i < BN / 64; i++) {
                        const int part = rank() * (BK / CLUSTER);  // rows of W that this block gets for all
                        load_for_all(
                            w_tiles, w + i * (BK * 128) + part * 128, at.column + 64 * i, k + part, barrier);
                    }
#elif ATTENDS
                    for (int i = 0; i < 3; i++) {  // queries, keys, values
                        const int part = rank() * (64 / CLUSTER);
                        load_for_all(
                            w_tiles, w + (i * 64 + part) * 128, k, i * (N / 3) + at.column / 3 + part, barrier);
                    }
#else
                    const int part = rank() * (BN / CLUSTER);
                    load_for_all(w_tiles, w + part * 128, k, at.column + part, barrier);
#endif
#endif
                    if (++stage == STAGES) stage = 0, round ^= 1;
                }
            }
            wait_or_fail(done, 0);  // who multiplies has no register to count its polls
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        const int turn = group - 1, mine = turn * 4 + warp;
        const u32 own = beside + mine * (BN * 4), own_rooms = rooms + mine * (ROOMS * ROOM);
        const u32 own_reads = reads + 8 * mine * ROOMS;
        // Matrices of 8 by 8, two below each other and two beside: a lane names the row lane % 8 of matrix lane / 8.
        const u32 corner = own_rooms + lane % 16 * 128 + (lane / 16 ^ lane % 8) * 16;
        const int steps = (K + BK - 1) / BK, clusters = gridDim.x / CLUSTER;
        u32 position = turn * steps;  // in the row of all stages
        int count = 0;
        for (int tile = blockIdx.x / CLUSTER + turn * clusters; tile < tiles_of(M, N); tile += 2 * clusters, count++) {
            const Place at = place_of(tile, M, N);
            const auto fill = [&](int unit) {  // a room with z, by one lane
                const u32 room = unit % ROOMS, barrier = own_reads + 8 * room;
                expect(barrier, ROOM);
                load(z_tiles, own_rooms + room * ROOM, at.column + unit / TALL * 64,
                     at.row + unit % TALL * 64 + warp * 16, barrier);
            };
            if (READS == 2 && lane == 0) {
                until_read<0>();
                for (int unit = 0; unit < ROOMS; unit++) fill(unit);
            }
            float d[TALL][BN / 2];
#if READS == 1
            begin_with(d, added, apart, at, M, N, warp, lane), settled(d);
#elif BIAS
            with_bias(d, bias, at.column, N, lane), settled(d);
#endif
            u32 stage = position % STAGES, round = position / STAGES & 1, last = stage;
            wait(turns + 8 * turn, (count & 1) ^ (turn == 0));
#pragma unroll 1
            for (int k = 0; k < steps; k++) {
                const u32 place = stages + stage * STAGE;
                const u64 x = described(place, 16, 1024);
                const u64 w = ACROSS ? described(place + OF_X, BK * 128, 1024) : described(place + OF_X, 16, 1024);
                wait(full + 8 * stage, round);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int i = 0; i < BK / 16; i++)
#pragma unroll
                    for (int m = 0; m < TALL; m++)
                        multiply(d[m], x + i * 2 + m * (64 * 128 >> 4), w + i * (ACROSS ? 16 * 128 >> 4 : 2),
                                 i > 0 || BEGUN ? 1 : k);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                until_multiplied<1>();
                if (k > 0 && lane < CLUSTER) arrive_at(empty + 8 * last, lane);
                last = stage;
                if (++stage == STAGES) stage = 0, round ^= 1;
            }
            if (lane == 0) arrive(turns + 8 * (turn ^ 1));
            until_multiplied<0>();
            settled(d);
            if (lane < CLUSTER) arrive_at(empty + 8 * last, lane);
            position += 2 * steps;
#if READS == 1 && BIAS
            with_bias(d, bias, at.column, N, lane);  // two sums before the product would take longer than a turn comes
#endif
#if GAIN
            norm(d, told + mine * (2 * CLUSTER * TOLD), all_told + 8 * 2 * mine, gains, count, epsilon, lane);
#endif

#if ATTENDS
            attend(d, rooms + turn * (2 * OF_HEAD), scale, y_tiles, at, group, warp, lane);
#else
#pragma unroll
            for (int c = 0; c < BN / 64; c++) {
#if READS == 2
                float sums_of_two[2] = {};
#endif
#pragma unroll
                for (int m = 0; m < TALL; m++) {
                    const int unit = c * TALL + m;
                    const int row = at.row + m * 64 + warp * 16, column = at.column + c * 64;
                    const float* own_part = &d[m][c * 32];
#if READS == 2
                    const u32 room = unit % ROOMS * ROOM;
                    __syncwarp();
                    wait(own_reads + 8 * (unit % ROOMS), count * (UNITS / ROOMS) + unit / ROOMS & 1);
                    u32 z[4][4];  // all at once: while others multiply, shared memory takes its time
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                                     : "=r"(z[j][0]), "=r"(z[j][1]), "=r"(z[j][2]), "=r"(z[j][3])
                                     : "r"(room + (corner ^ j * 32)) : "memory");
                    float sum[16];
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        float v[8];
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            v[2 * i] = own_part[8 * j + 2 * i] * slope(low_of(z[j][i]));
                            v[2 * i + 1] = own_part[8 * j + 2 * i + 1] * slope(high_of(z[j][i]));
                        }
#pragma unroll
                        for (int i = 0; i < 4; i++) sum[4 * j + i] = v[i / 2 * 4 + i % 2] + v[i / 2 * 4 + i % 2 + 2];
                        put(room + (corner ^ j * 32), v);
                    }
#else
#if KEEPS
                    const u32 kept = 2 * unit % ROOMS * ROOM, room = (2 * unit + 1) % ROOMS * ROOM;
                    if (lane == 0) until_read<ROOMS - 1>();
                    __syncwarp();
#pragma unroll
                    for (int j = 0; j < 4; j++) put(kept + (corner ^ j * 32), own_part + 8 * j);
                    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                    __syncwarp();
                    if (lane == 0) store(z_tiles, own_rooms + kept, column, row);
#else
                    const u32 room = unit % ROOMS * ROOM;
#endif
                    if (lane == 0) until_read<ROOMS - 1>();
                    __syncwarp();
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        float v[8];
#pragma unroll
                        for (int i = 0; i < 8; i++) v[i] = activated(own_part[8 * j + i]);
                        put(room + (corner ^ j * 32), v);
                    }
#endif
                    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                    __syncwarp();
                    if (lane == 0) {
                        store(y_tiles, own_rooms + room, column, row);
                        if (READS == 2 && unit > 0 && unit - 1 + ROOMS < UNITS) until_read<1>(), fill(unit - 1 + ROOMS);
                    }
#if READS == 2
                    // Of 16 columns' sums over 2 rows, 2 over 16 remain with each lane: those at 2 · lane.
                    gather<8>(sum, lane), gather<4>(sum, lane), gather<2>(sum, lane);
                    sums_of_two[0] += sum[0], sums_of_two[1] += sum[1];
#endif
                }
#if READS == 2
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(own + 4 * (c * 64 + 2 * lane)), "f"(sums_of_two[0]),
                             "f"(sums_of_two[1]) : "memory");
#endif
            }
#if READS == 2
            asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory");
            for (int i = threadIdx.x % 128; i < BN && at.row < M; i += 128) {
                float total = 0.0f;
                for (int w = 0; w < 4; w++) {
                    float one;
                    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(one)
                                 : "r"(beside + (turn * 4 + w) * (BN * 4) + 4 * i) : "memory");
                    total += one;
                }
                if (at.column + i < N) sums[(u64)(at.row / BM) * N + at.column + i] = total;
            }
            asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory");
#endif
#endif
        }
        if (lane == 0) {
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
            arrive(done);
        }
    }
#if CLUSTER > 1
    __syncwarp();
    whole_cluster();  // before none of its blocks arrives at another's barriers any more, none leaves
#endif
}
