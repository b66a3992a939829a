// A product of few rows, for Hopper GPUs: y = x Wᵀ, with a bias, an activation or a sum, in a step of decoding.
//
// Few rows take as long as their weights take to be read. So a block keeps as many weights under way as its memory
// holds, and it begins with them before the program before it has ended, whose rows it then waits for. A cluster makes
// some outputs of all rows: each of its blocks takes a stretch of their inputs, a warp that orders copies and four that
// multiply; then each block sums up what all of them have for some of the rows, in the order of the blocks, so that sums
// have the same bits each time.
//
// Shapes: r rows, at most ROWS of them; K inputs, N outputs; x [r K], W [N K], y [r N].
//
// By #define: ROWS: 16, 32 or 64; STAGES: inputs on their way, 64 at a time; CLUSTER: blocks of one, of which none has no
// inputs; HALF: numbers are float16, else bfloat16; BIASED; ACTIVATION; GATED: W is [2N K], y the activation of the first
// N outputs times the others; ADDS: y is float32, and the product is added to it.

#include "activations.cuh"

constexpr int BK = 64;                                     // inputs of a stage: rows of 128 bytes, which are swizzled
constexpr int OUTPUTS = 64, TALL = GATED ? 2 : 1;          // of a cluster; rows of W for each of them
constexpr u32 OF_64 = OUTPUTS * BK * 2, OF_W = TALL * OF_64, OF_X = ROWS * BK * 2, STAGE = OF_W + OF_X;
constexpr int PITCH = 64 * TALL + 4;                       // from a row of sums to the next, so that lanes do not collide
static_assert(ROWS * PITCH * 4 <= STAGES * STAGE, "sums lie where the stages were");

#define FIRST_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FIRST_16 FIRST_8 ", %8, %9, %10, %11, %12, %13, %14, %15"

// d [64 ROWS] (+)= W [64 16] xᵀ [16 ROWS]. A thread has of every 8 rows those at 2 (lane % 4), of the outputs
// lane / 4 and 8 below it; each warp has 16 outputs.
__device__ __forceinline__ void multiply(float (&d)[ROWS / 2], u64 w, u64 x, int adds) {
#if ROWS == 64
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." NARROW "." NARROW
        " {" FIRST_32 "}, %32, %33, p, 1, 1, 0, 0; }"
        : OWN_32(0) : "l"(w), "l"(x), "r"(adds));
#elif ROWS == 32
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32." NARROW "." NARROW
        " {" FIRST_16 "}, %16, %17, p, 1, 1, 0, 0; }"
        : OWN_8(0), OWN_8(8) : "l"(w), "l"(x), "r"(adds));
#else
    static_assert(ROWS == 16, "rows of a product: 16, 32 or 64");
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32." NARROW "." NARROW
        " {" FIRST_8 "}, %8, %9, p, 1, 1, 0, 0; }"
        : OWN_8(0) : "l"(w), "l"(x), "r"(adds));
#endif
}

__device__ __forceinline__ void after_the_last_program() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void load_weights(const Tiles& w_tiles, u32 stage, int first, int N, int k, u32 barrier) {
    expect(barrier, STAGE);
#pragma unroll
    for (int m = 0; m < TALL; m++) load(w_tiles, stage + m * OF_64, k, m * N + first, barrier);
}

// What all blocks of the cluster have for four outputs of a row.
__device__ __forceinline__ float4 summed(u32 sums, int row, int output) {
    const u32 place = sums + 4 * (row * PITCH + output);
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int block = 0; block < CLUSTER; block++) {
        float4 one;
        asm volatile(
            "{ .reg .b32 there; mapa.shared::cluster.u32 there, %4, %5; ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
            : "=f"(one.x), "=f"(one.y), "=f"(one.z), "=f"(one.w) : "r"(place), "r"(block) : "memory");
        total.x += one.x, total.y += one.y, total.z += one.z, total.w += one.w;
    }
    return total;
}

// Outputs from `from` to before `to` have no bias, nor a place among the biases.
__device__ __forceinline__ float bias_of(const unsigned short* bias, int n, int N, int from, int to) {
    if (!BIASED || n >= N || (n >= from && n < to)) return 0.0f;
    return widened(bias[n < from ? n : n - (to - from)]);
}

extern "C" __global__ void __launch_bounds__(160) step_product(
    const __grid_constant__ Tiles w_tiles, const __grid_constant__ Tiles x_tiles, const unsigned short* bias, void* y,
    int r, int N, int K, int apart, int gap_from, int gap_to) {
    extern __shared__ unsigned char memory[];
    const u32 stages = (address_of(memory) + 1023u) & ~1023u, full = stages + STAGES * STAGE, empty = full + 8 * STAGES;
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int first = blockIdx.x / CLUSTER * OUTPUTS, chunks = (K + BK - 1) / BK;
    const int begin = chunks * rank() / CLUSTER, count = chunks * (rank() + 1) / CLUSTER - begin;

    if (threadIdx.x == 128) {
        for (int i = 0; i < STAGES; i++) made(full + 8 * i, 1), made(empty + 8 * i, 4);
        all_are_made();
    }
    __syncthreads();
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");

    if (warp == 4) {
        if (lane == 0) {
            const int ahead = min(count, STAGES);
            for (int i = 0; i < ahead; i++)
                load_weights(w_tiles, stages + i * STAGE, first, N, (begin + i) * BK, full + 8 * i);
            after_the_last_program();
            for (int i = 0; i < ahead; i++)
                load(x_tiles, stages + i * STAGE + OF_W, (begin + i) * BK, 0, full + 8 * i);
            for (int i = ahead; i < count; i++) {
                const u32 stage = i % STAGES, place = stages + stage * STAGE;
                wait_or_fail(empty + 8 * stage, i / STAGES - 1 & 1);
                load_weights(w_tiles, place, first, N, (begin + i) * BK, full + 8 * stage);
                load(x_tiles, place + OF_W, (begin + i) * BK, 0, full + 8 * stage);
            }
        }
        __syncwarp();
    } else {
        after_the_last_program();
        float d[TALL][ROWS / 2];
        for (int i = 0; i < count; i++) {
            const u32 stage = i % STAGES, place = stages + stage * STAGE;
            const u64 w = described(place, 16, 1024), x = described(place + OF_W, 16, 1024);
            wait(full + 8 * stage, i / STAGES & 1);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int k = 0; k < BK / 16; k++)
#pragma unroll
                for (int m = 0; m < TALL; m++) multiply(d[m], w + m * (OF_64 >> 4) + 2 * k, x + 2 * k, k > 0 ? 1 : i);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            until_multiplied<1>();
            if (i > 0 && lane == 0) arrive(empty + 8 * ((i - 1) % STAGES));
        }
        until_multiplied<0>();
#pragma unroll
        for (int m = 0; m < TALL; m++)
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++) asm volatile("" : "+f"(d[m][i])::"memory");
        asm volatile("bar.sync 1, 128;" ::: "memory");  // all have read the stages
#pragma unroll
        for (int m = 0; m < TALL; m++)
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++) {
                const int row = i / 4 * 8 + lane % 4 * 2 + i % 2, output = m * 64 + warp * 16 + lane / 4 + i % 4 / 2 * 8;
                asm volatile("st.shared.f32 [%0], %1;" ::"r"(stages + 4 * (row * PITCH + output)), "f"(d[m][i]) : "memory");
            }
    }
    whole_cluster();

    if (warp < 4) {
        constexpr int LANES = OUTPUTS / 4;  // that have a row
        const int output = threadIdx.x % LANES * 4, n = first + output, last = r * (rank() + 1) / CLUSTER;
        float shift[4], next_shift[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            shift[i] = bias_of(bias, n + i, N, gap_from, gap_to);
            next_shift[i] = GATED ? bias_of(bias + N, n + i, N, 0, 0) : 0.0f;
        }
        for (int row = r * rank() / CLUSTER + threadIdx.x / LANES; row < last; row += 128 / LANES) {
            const float4 total = summed(stages, row, output);
            float v[4] = {total.x + shift[0], total.y + shift[1], total.z + shift[2], total.w + shift[3]};
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = activated(v[i]);
            if (GATED) {
                const float4 other = summed(stages, row, output + 64);
                v[0] *= other.x + next_shift[0], v[1] *= other.y + next_shift[1];
                v[2] *= other.z + next_shift[2], v[3] *= other.w + next_shift[3];
            }
#if ADDS
            float4* to = (float4*)((float*)y + (u64)row * apart + n);
            if (n < N) {  // a multiple of 4
                const float4 before = *to;
                *to = make_float4(before.x + v[0], before.y + v[1], before.z + v[2], before.w + v[3]);
            }
#else
            unsigned short* to = (unsigned short*)y + (u64)row * apart + n;
            const uint2 made = make_uint2(narrowed(v[0], v[1]), narrowed(v[2], v[3]));
            if (n + 3 < N) *(uint2*)to = made;
            else
                for (int i = 0; n + i < N; i++) to[i] = (unsigned short)((i < 2 ? made.x : made.y) >> 16 * (i % 2));
#endif
        }
    }
    whole_cluster();  // before none reads another's sums any more, none leaves
}
