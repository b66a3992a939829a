// The ring of weights, and the warp that does nothing but fill it.
//
// Units are what the ring holds in a slot: four pieces of rows of a matrix, or some slots of keys and of values. One
// warp takes a unit, by its number. Everyone counts units in the same order: qkv, attention, out, inner, outer of each
// layer, head. Who fills waits for nothing but free room, so that memory is always being read.

#pragma once

#include "step_words.cuh"

__device__ __forceinline__ u64 first_to_go() {  // of what L2 holds: a weight is read once
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ void copy(void* to, const void* from, u32 bytes, u64* barrier, u64 policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(address_of(to)), "l"(from), "r"(bytes), "r"(address_of(barrier)), "l"(policy)
        : "memory");
}

__device__ __forceinline__ void copy(void* to, const void* from, u32 bytes, u64* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(address_of(to)), "l"(from), "r"(bytes), "r"(address_of(barrier))
        : "memory");
}

__device__ __forceinline__ void fetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

struct Ring {
    u8* slots;           // [STAGES STAGE]
    u64 *full, *empty;   // barriers [STAGES]
    u32* sizes;          // of units whose copies have begun [STAGES]
    u32 under_way = 0;   // bytes of those from the oldest on that may not be there
    int oldest = 0;
    int unit = 0;        // the next
#if TIMED
    i64 idle = 0;        // how long was waited for units
#endif

    __device__ __forceinline__ u8* slot(int number) { return slots + number % STAGES * STAGE; }
    __device__ __forceinline__ u64* full_of(int number) { return full + number % STAGES; }
    __device__ __forceinline__ u64* empty_of(int number) { return empty + number % STAGES; }

    __device__ __forceinline__ void begin() {  // by one thread, before all others
        for (int i = 0; i < STAGES; i++) made(address_of(full + i), 1), made(address_of(empty + i), 1);
        // Not `all_are_made`: that waits for global memory too, which nobody has written.
        asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
    }

    __device__ __forceinline__ void wait(u64* barrier, int passes) {
        u32 parity = passes & 1;
        until([&] { return is_over(address_of(barrier), parity); });
    }

    __device__ __forceinline__ u8* filled(int number) {
#if TIMED
        i64 before = clock64();
#endif
        wait(full_of(number), number / STAGES);
#if TIMED
        idle += clock64() - before;
#endif
        return slot(number);
    }

    // Of the next units, which a warp takes. A slot of the ring is always emptied by the same warp. Otherwise one could
    // ask for what is to come into a slot before another has seen there what comes earlier, and barriers tell only odd
    // from even.
    static_assert(STAGES % TAKERS == 0, "slots of all warps are as many");
    __device__ __forceinline__ int first_of(int warp) {
        return warp < TAKERS ? (warp + TAKERS - unit % TAKERS) % TAKERS : 1 << 30;
    }

    __device__ __forceinline__ void free(int number, int lane) {
        __syncwarp();
        if (lane == 0) arrive(address_of(empty_of(number)));
    }

    __device__ __forceinline__ void begin_unit(u32 bytes) {
        wait(empty_of(unit), unit / STAGES + 1);
        // Few copies at a time: what blocks tell each other waits in the same queues.
        for (; oldest < unit && (under_way + bytes > UNDER_WAY || unit - oldest == STAGES); oldest++) {
            wait(full_of(oldest), oldest / STAGES);
            under_way -= sizes[oldest % STAGES];
        }
        under_way += bytes;
        sizes[unit % STAGES] = bytes;
        expect(address_of(full_of(unit)), bytes);
    }
};

// What this block needs of a matrix with `all` outputs
template <int K, int PIECES, int SIDE>
__device__ __forceinline__ void fill_map(Ring& ring, const u16* w, int all, int map, u64 policy) {
    constexpr int PIECE = K / PIECES * 2;  // bytes
    Outputs mine = outputs_of(all, turn_of(map));
    int rows = mine.count * SIDE, units = units_of(rows, PIECES);
    for (int i = 0; i < units; i++, ring.unit++) {
        int from = i / PIECES * TALL, count = min(TALL, rows - from), piece = i % PIECES;
        ring.begin_unit(count * PIECE);
        u8* to = ring.slot(ring.unit);
        u64* barrier = ring.full_of(ring.unit);
        if (PIECES == 1 && SIDE == 1) {
            copy(to, w + (i64)(mine.first + from) * K, count * PIECE, barrier, policy);
            continue;
        }
        for (int j = 0; j < count; j++) {
            i64 row = (from + j) % SIDE * all + mine.first + (from + j) / SIDE;
            copy(to + j * PIECE, w + row * K + piece * (K / PIECES), PIECE, barrier, policy);
        }
    }
}

// Its share of earlier keys and values
__device__ __forceinline__ void fill_slots(Ring& ring, const Given& given, int layer) {
    const u16 *keys = given.of<u16>(layer, KEYS), *values = given.of<u16>(layer, VALUES);
    for (int task = blockIdx.x; task < LINES * SHARES; task += BLOCKS) {
        Share s = share_of(task, given);
        i64 head = (i64)(s.row * GROUPS + s.group) * given.capacity;
        for (int done = 0; done < s.count; done += KEPT, ring.unit++) {
            u32 bytes = min(KEPT, s.count - done) * HEAD_WIDTH * 2;
            i64 from = (head + s.begin + done) * HEAD_WIDTH;
            ring.begin_unit(2 * bytes);
            copy(ring.slot(ring.unit), keys + from, bytes, ring.full_of(ring.unit));
            copy(ring.slot(ring.unit) + KEPT * HEAD_WIDTH * 2, values + from, bytes, ring.full_of(ring.unit));
        }
    }
}

// Small weights of a layer, into L2, where all blocks will read them.
__device__ __forceinline__ void fetch_small(const Given& given, int layer, int lane) {
    const int columns[] = {GAIN, SHIFT, MAP_BIAS, OUT_BIAS, NEXT_GAIN, NEXT_SHIFT, INNER_BIAS, OUTER_BIAS};
    const int sizes[] = {WIDTH, WIDTH, QKV - (GAP_TO - GAP_FROM), WIDTH, WIDTH, WIDTH, HIDDEN * SIDES, WIDTH};
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
        const u8* p = given.of<u8>(layer, columns[i]);
#pragma unroll 1
        for (int at = lane * 128; p != nullptr && at < sizes[i] * 2; at += 32 * 128) fetch(p + at);
    }
}

__device__ void fill(Ring& ring, const Given& given, int lane) {
    for (int layer = blockIdx.x; layer < LAYERS; layer += BLOCKS) fetch_small(given, layer, lane);
    if (lane > 0) return;
    u64 policy = first_to_go();
    for (int layer = 0; layer < LAYERS; layer++) {
        fill_map<WIDTH, WIDTH_PIECES, 1>(ring, given.of<u16>(layer, MAP), QKV, 4 * layer, policy);
        fill_slots(ring, given, layer);
        fill_map<ATTENDED, ATTENDED_PIECES, 1>(ring, given.of<u16>(layer, OUT), WIDTH, 4 * layer + 1, policy);
        fill_map<WIDTH, WIDTH_PIECES, SIDES>(ring, given.of<u16>(layer, INNER), HIDDEN, 4 * layer + 2, policy);
        fill_map<HIDDEN, HIDDEN_PIECES, 1>(ring, given.of<u16>(layer, OUTER), WIDTH, 4 * layer + 3, policy);
    }
    fill_map<WIDTH, WIDTH_PIECES, 1>(ring, given.of<u16>(LAYERS, MAP), VOCABULARY, 4 * LAYERS, policy);
}
