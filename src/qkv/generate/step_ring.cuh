// The ring of weights, and the warps that do nothing but fill it.
//
// Units are what the ring holds in a slot: four pieces of rows of a matrix, or some slots of keys and of values. One
// warp takes a unit, by its number, and one fills it, in turns. Everyone counts units in the same order: qkv,
// attention, out, inner, outer of each layer, head. Who fills waits for nothing but free room, so that memory is always
// being read. One warp alone is too slow: two waits, a few addresses and a copy take it nearly as long as memory takes
// for a unit.

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

constexpr int FITTING = UNDER_WAY / STAGE;
constexpr int AHEAD = FITTING < 1 ? 1 : FITTING < STAGES / 2 ? FITTING : STAGES / 2;  // units under way

struct Ring {
    u8* slots;           // [STAGES STAGE]
    u64 *full, *empty;   // barriers [STAGES]
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

    // Likewise, which a warp fills
    static_assert(STAGES % FILLERS == 0 && FILLERS <= 2, "what is said of `begin_unit` holds");
    __device__ __forceinline__ int first_for(int filler) { return (filler + FILLERS - unit % FILLERS) % FILLERS; }

    // Few copies at a time: what blocks tell each other waits in the same queues. The unit that is waited for first may
    // be the other filler's, which has not filled its slot a second time yet: before that it waits for a unit of this
    // one that is not before `number`, since AHEAD is at most half of the ring.
    __device__ __forceinline__ void begin_unit(int number, u32 bytes) {
        if (number >= AHEAD) wait(full_of(number - AHEAD), (number - AHEAD) / STAGES);
        wait(empty_of(number), number / STAGES + 1);
        expect(address_of(full_of(number)), bytes);
    }
};

// What this block needs of a matrix with `all` outputs; all that can be known of a unit is, before it is waited for
template <int K, int PIECES, int SIDE>
__device__ __forceinline__ void fill_map(Ring& ring, int filler, const u16* w, int all, int map, u64 policy) {
    constexpr int PIECE = K / PIECES * 2;  // bytes
    Outputs mine = outputs_of(all, turn_of(map));
    int rows = mine.count * SIDE, units = units_of(rows, PIECES);
    for (int i = ring.first_for(filler); i < units; i += FILLERS) {
        int from = i / PIECES * TALL, count = min(TALL, rows - from), piece = i % PIECES, number = ring.unit + i;
        u8* to = ring.slot(number);
        u64* barrier = ring.full_of(number);
        const u16* row[TALL];
#pragma unroll
        for (int j = 0; j < TALL; j++) {
            i64 which = (i64)((from + j) % SIDE) * all + mine.first + (from + j) / SIDE;
            row[j] = w + which * K + piece * (K / PIECES);
        }
        ring.begin_unit(number, count * PIECE);
        constexpr bool AS_ONE = PIECES == 1 && SIDE == 1;
        if (AS_ONE) copy(to, row[0], count * PIECE, barrier, policy);
#pragma unroll
        for (int j = 0; j < TALL; j++)
            if (!AS_ONE && j < count) copy(to + j * PIECE, row[j], PIECE, barrier, policy);
    }
    ring.unit += units;
}

// Its share of earlier keys and values
__device__ __forceinline__ void fill_slots(Ring& ring, int filler, const Given& given, int layer) {
    const u16 *keys = given.of<u16>(layer, KEYS), *values = given.of<u16>(layer, VALUES);
    for (int task = blockIdx.x; task < LINES * SHARES; task += BLOCKS) {
        Share s = share_of(task, given);
        i64 head = (i64)(s.row * GROUPS + s.group) * given.capacity;
        int units = (s.count + KEPT - 1) / KEPT;
        for (int i = ring.first_for(filler); i < units; i += FILLERS) {
            int number = ring.unit + i;
            u32 bytes = min(KEPT, s.count - i * KEPT) * HEAD_WIDTH * 2;
            i64 from = (head + s.begin + i * KEPT) * HEAD_WIDTH;
            ring.begin_unit(number, 2 * bytes);
            copy(ring.slot(number), keys + from, bytes, ring.full_of(number));
            copy(ring.slot(number) + KEPT * HEAD_WIDTH * 2, values + from, bytes, ring.full_of(number));
        }
        ring.unit += units;
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

__device__ void fill(Ring& ring, int filler, const Given& given, int lane) {
    if (filler == 0)
        for (int layer = blockIdx.x; layer < LAYERS; layer += BLOCKS) fetch_small(given, layer, lane);
    if (lane > 0) return;
    u64 policy = first_to_go();
    for (int layer = 0; layer < LAYERS; layer++) {
        fill_map<WIDTH, WIDTH_PIECES, 1>(ring, filler, given.of<u16>(layer, MAP), QKV, 4 * layer, policy);
        fill_slots(ring, filler, given, layer);
        fill_map<ATTENDED, ATTENDED_PIECES, 1>(ring, filler, given.of<u16>(layer, OUT), WIDTH, 4 * layer + 1, policy);
        fill_map<WIDTH, WIDTH_PIECES, SIDES>(ring, filler, given.of<u16>(layer, INNER), HIDDEN, 4 * layer + 2, policy);
        fill_map<HIDDEN, HIDDEN_PIECES, 1>(ring, filler, given.of<u16>(layer, OUTER), WIDTH, 4 * layer + 3, policy);
    }
    fill_map<WIDTH, WIDTH_PIECES, 1>(ring, filler, given.of<u16>(LAYERS, MAP), VOCABULARY, 4 * LAYERS, policy);
}
