// Attention of short rows for Hopper GPUs: o = softmax(scale q kᵀ) v, where all keys of a row are one tile.
//
// Each block has a warpgroup that orders copies and GROUPS that multiply. Keys and values of a head are read once, by
// the copy engine, into a ring of SLOTS, while the heads before are still worked on; so are queries, in tiles of 64.
// Groups take such tiles in turn: all scores of a tile are there at once, so its softmax is made at once, while other
// groups multiply. What a tile's queries have read lies where they lay until it is stored.
//
// Shapes: b rows, h heads, s tokens, 64 numbers of a head; q, k, v and o [b h s 64], each with strides of its own.
//
// By #define: KEYS: room for so many, 160, 208 or 272; HIDDEN: so many of them at the end may be past the last key;
// GROUPS: 2 or 3; SLOTS; Q_SLOTS; KEEPS: log₂ of each softmax's sum is stored too; HALF: numbers are float16, else
// bfloat16.

#include "rows.cuh"

constexpr u32 SLOT = KEYS * 128, OF_Q = 64 * 128, OF_WARP = 16 * 128;  // rows of 128 bytes, which are swizzled

static_assert(SLOTS >= 4 && Q_SLOTS > 2 * GROUPS, "copies wait for no tile that waits for them");

// d [64 KEYS/2] (+)= q [64 16] kᵀ [16 KEYS/2]
__device__ __forceinline__ void multiply_keys(float (&d)[KEYS / 4], u64 q, u64 k, int adds) {
#if KEYS == 160
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %42, 0; wgmma.mma_async.sync.aligned.m64n80k16.f32." NARROW "." NARROW
        " {" FIRST_40 "}, %40, %41, p, 1, 1, 0, 0; }"
        : OWN_32(0), OWN_8(32) : "l"(q), "l"(k), "r"(adds));
#elif KEYS == 208
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %54, 0; wgmma.mma_async.sync.aligned.m64n104k16.f32." NARROW "." NARROW
        " {" FIRST_52 "}, %52, %53, p, 1, 1, 0, 0; }"
        : OWN_32(0), OWN_8(32), OWN_8(40), OWN_4(48) : "l"(q), "l"(k), "r"(adds));
#else
    static_assert(KEYS == 272, "room for keys: 160, 208 or 272");
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %70, 0; wgmma.mma_async.sync.aligned.m64n136k16.f32." NARROW "." NARROW
        " {" FIRST_68 "}, %68, %69, p, 1, 1, 0, 0; }"
        : OWN_32(0), OWN_32(32), OWN_4(64) : "l"(q), "l"(k), "r"(adds));
#endif
}

// Weights of scores, which are still to be divided by their sums. A thread has two rows.
__device__ __forceinline__ void weigh(
    float (&s)[2][KEYS / 4], u32 (&w)[KEYS / 4], float (&sum)[2], float (&level)[2], int keys, float scale, int lane) {
    constexpr int OF_HALF = KEYS / 4;  // a thread's scores of half of the keys
#pragma unroll
    for (int i = (KEYS - HIDDEN) / 2; i < KEYS / 2; i++)
        if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= keys) s[i / OF_HALF][i % OF_HALF] = __int_as_float(0xff800000);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float largest[2] = {s[0][2 * r], s[1][2 * r]};
#pragma unroll
        for (int i = 0; i < OF_HALF; i += 4)
#pragma unroll
            for (int j = 0; j < 2; j++)
                largest[j] = fmaxf(largest[j], fmaxf(s[j][i + 2 * r], s[j][i + 2 * r + 1]));
        level[r] = of_four(fmaxf(largest[0], largest[1])) * scale;
    }
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < KEYS / 2; i += 2) {
        const float* both = &s[i / OF_HALF][i % OF_HALF];
        const float low = power_of_2(fmaf(both[0], scale, -level[i / 2 % 2]));
        const float high = power_of_2(fmaf(both[1], scale, -level[i / 2 % 2]));
        sums[i % 4] += low, sums[i % 4 + 1] += high;
        w[i / 2] = narrowed(low, high);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) sum[r] = sum_of_four(sums[2 * r] + sums[2 * r + 1]);
}

// What a block does at a time: tiles of queries, from `first` on, of one head of one row.
struct Work {
    u32 first, count, head, batch;
};

// As many heads as there are blocks, as often as there are so many; what is left of them is shared out by tiles.
__device__ __forceinline__ bool found(Work& work, u32 wave, u32 lines, u32 heads, u32 tall) {
    const u32 blocks = gridDim.x, before = wave * blocks;
    if (before >= lines) return false;
    u32 line = before + blockIdx.x;
    work.first = 0, work.count = tall;
    if (lines - before < blocks) {
        const u32 left = lines - before, shares = min(tall, blocks / left), share = blockIdx.x / left;
        if (share >= shares) return false;
        line = before + blockIdx.x % left;
        work.first = tall * share / shares, work.count = tall * (share + 1) / shares - work.first;
    }
    work.batch = line / heads, work.head = line - work.batch * heads;
    return true;
}

extern "C" __global__ void __launch_bounds__(128 + 128 * GROUPS, 1) attend(
    const __grid_constant__ Tiles q_tiles, const __grid_constant__ Tiles k_tiles, const __grid_constant__ Tiles v_tiles,
    const __grid_constant__ Tiles o_tiles, float* log_sums, int lines, int queries, int keys, int heads, int shared_by,
    float scale) {
    extern __shared__ unsigned char memory[];
    const u32 slots = (address_of(memory) + 1023u) & ~1023u, q_slots = slots + SLOTS * SLOT;
    const u32 full = q_slots + Q_SLOTS * OF_Q, empty = full + 8 * SLOTS, q_full = empty + 8 * SLOTS,
              q_empty = q_full + 8 * Q_SLOTS, done = q_empty + 8 * Q_SLOTS;

    // So that the compiler sees that the lanes of a warp agree
    const int group = __shfl_sync(THE_FULL, threadIdx.x / 128, 0);
    const int warp = __shfl_sync(THE_FULL, threadIdx.x / 32 % 4, 0), lane = threadIdx.x % 32;
    const int tall = (queries + 63) / 64;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) made(full + 8 * i, 1), made(empty + 8 * i, 4 * tall);
        for (int i = 0; i < Q_SLOTS; i++) made(q_full + 8 * i, 1), made(q_empty + 8 * i, 4);
        made(done, 4 * GROUPS);
        all_are_made();
    }
    __syncthreads();
    asm volatile("griddepcontrol.launch_dependents; griddepcontrol.wait;" ::: "memory");

    Work work;
    u32 turn = 0;  // tiles of this block so far
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) {
            u32 slot = 0, round = 0;
            for (u32 wave = 0; found(work, wave, lines, heads, tall); wave++) {
                const int of_both = work.head / shared_by;
                const auto fill = [&](const Tiles& tiles) {
                    wait_or_fail(empty + 8 * slot, round ^ 1);
                    expect(full + 8 * slot, SLOT);
                    for (int half = 0; half < 2; half++)
                        load(tiles, slots + slot * SLOT + half * (SLOT / 2), 0, half * (KEYS / 2), of_both, work.batch,
                             full + 8 * slot);
                    if (++slot == SLOTS) slot = 0, round ^= 1;
                };
                fill(k_tiles);
                for (u32 tile = 0; tile < work.count; tile++, turn++) {
                    const u32 which = turn % Q_SLOTS;
                    wait_or_fail(q_empty + 8 * which, turn / Q_SLOTS & 1 ^ 1);
                    expect(q_full + 8 * which, OF_Q);
                    load(q_tiles, q_slots + which * OF_Q, 0, 64 * (work.first + tile), work.head, work.batch,
                         q_full + 8 * which);
                    if (tile == 0) fill(v_tiles);
                }
            }
            wait_or_fail(done, 0);  // who multiplies has no register to count its polls
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(GROUPS == 2 ? 240 : 160));
        const int mine = group - 1;
        const u32 corner = warp * OF_WARP + corner_of(lane);
        u32 wave = 0, tile = mine, last = Q_SLOTS;  // where the tile before lay
        bool more = found(work, 0, lines, heads, tall);
        const auto into_work = [&] {  // tiles past the end of one head are the first of the next
            while (more && tile >= work.count) {
                tile -= work.count;
                more = found(work, ++wave, lines, heads, tall);
            }
        };
        turn = mine;
        into_work();

        float s[2][KEYS / 4], o[32];
        const auto begin_scores = [&] {
            const u32 which = turn % Q_SLOTS, slot = 2 * wave % SLOTS;
            if (more) wait(full + 8 * slot, 2 * wave / SLOTS & 1), wait(q_full + 8 * which, turn / Q_SLOTS & 1);
            const u64 q = described(q_slots + which * OF_Q, 16, 1024), k = described(slots + slot * SLOT, 16, 1024);
            begin_products();
#pragma unroll
            for (int i = 0; i < 8; i++)
                multiply_keys(s[i % 2], q + i / 2 * 2, k + (i / 2 * 2 + i % 2 * (SLOT / 2 >> 4)), i > 1);
            end_products();
        };
        const auto end_scores = [&] {
            until_multiplied<0>();
            stay_here(s[0]), stay_here(s[1]);
            if (lane == 0) arrive(empty + 8 * (2 * wave % SLOTS));
        };

        if (mine == GROUPS - 1) give_turn(mine);
        take_turn(mine);
        begin_scores();
        give_turn(mine);
        end_scores();
#pragma unroll 1
        while (more) {
            float sum[2], level[2];
            u32 w[KEYS / 4];
            const u32 which = turn % Q_SLOTS, slot = (2 * wave + 1) % SLOTS, round = (2 * wave + 1) / SLOTS & 1;
            const int row = 64 * (work.first + tile) + 16 * warp, head = work.head, batch = work.batch;
            if (row < queries) {
                weigh(s, w, sum, level, keys, scale, lane);
            } else {  // behind the last query, zeros, which cost least; if the compiler knew them it would spill others
#pragma unroll
                for (int i = 0; i < KEYS / 4; i++) asm volatile("mov.u32 %0, 0;" : "=r"(w[i]));
            }
            const float rate[2] = {__fdividef(1.0f, sum[0]), __fdividef(1.0f, sum[1])};
            if (lane == 0 && last < Q_SLOTS) until_read<0>(), arrive(q_empty + 8 * last);
            last = which;
            tile += GROUPS, turn += GROUPS;
            into_work();

            take_turn(mine);
            wait(full + 8 * slot, round);
            const u64 v = described(slots + slot * SLOT, SLOT, 1024);
            begin_products();
#pragma unroll
            for (int i = 0; i < KEYS / 16; i++) multiply_values(o, w + 4 * i, v + i * (16 * 128 >> 4), i > 0);
            end_products();
            until_multiplied<0>();
            stay_here(o);
            if (lane == 0) arrive(empty + 8 * slot);
            u32 packed[16];
#pragma unroll
            for (int i = 0; i < 16; i++) packed[i] = narrowed(o[2 * i] * rate[i % 2], o[2 * i + 1] * rate[i % 2]);
            put_down(q_slots + which * OF_Q + corner, packed);  // before scores take its registers
            begin_scores();  // behind the last tile too, of whatever lies there: nobody reads them
            give_turn(mine);

            if (row < queries) {
#if KEEPS
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int query = row + lane / 4 + 8 * r;
                    if (lane % 4 == 0 && query < queries)
                        log_sums[(u64)(batch * heads + head) * queries + query] = level[r] + __log2f(sum[r]);
                }
#endif
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                __syncwarp();
                if (lane == 0) {
                    store(o_tiles, q_slots + which * OF_Q + warp * OF_WARP, 0, row, head, batch);
                    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
                }
            }
            end_scores();
        }
        if (lane == 0) {
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
            arrive(done);
        }
    }
}
