// One token of each of a few rows by a GPT-like decoder, as one program that stays on all processors of a GPU.
//
// A step takes as long as its weights take to be read, if they are always being read. So each block has a warp that
// does nothing else: it copies, in the order in which they will be used, all weights that this block uses of all
// layers, and its share of earlier keys and values, into a ring in shared memory. It waits for nothing but free room
// there. The other warps do the arithmetic, and wait for the ring and, between two maps, for all other blocks. What the
// ring holds is by then some microseconds of memory's time.
//
// Units are what the ring holds in a slot: four pieces of rows of a matrix, or some slots of keys and of values. One
// warp takes a unit, by its number. Everyone counts units in the same order: qkv, attention, out, inner, outer of each
// layer, head.
//
// What blocks tell each other are words in global memory: a number in float32 whose lowest 8 bits say of which layer it
// is. Who needs a number asks for its word until it is of now: no fence, no counter, and no more time than a store and
// a load take. All that is asked of the memory is that a word becomes visible whole. Every word is told once in every
// layer, so that those 8 bits need only tell a layer from the one before.
//
// Nobody tells a word of the next layer before all have read that of this one. A block has read all that a phase reads
// before it tells anything of that phase, and in each layer tells some of the stream behind `out` and behind `outer`.
// Who tells hidden units, or the stream behind `outer`, comes after all of the stream behind `out` of that layer; who
// tells queries, shares or the stream behind `out` comes after all of the stream behind `outer` of the layer before;
// itself, or because it needs words of others who do. So when a word is told, each block is past the half of a layer
// in which it read that word's last number. Weights are bfloat16.
//
// Given by #define: ROWS WIDTH HEADS GROUPS HEAD_WIDTH HIDDEN VOCABULARY LAYERS BLOCKS; WIDTH_PIECES
// ATTENDED_PIECES HIDDEN_PIECES (of a row of each width); STAGE (bytes of a slot) STAGES UNDER_WAY (bytes that are
// waited for at a time) KEPT (slots of a cache in a unit) SHARES (of a head's slots, at most) LEAST (slots of a share,
// where there are several) WARPS; RMS GATED ACTIVATION ROTARY PLACED GAP_FROM GAP_TO; TIMED (0, or 1 + the block that
// notes when it does what).

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr u32 PATIENCE = 1u << 24;  // polls after which something has gone wrong
constexpr int THREADS = 32 * WARPS;  // that do arithmetic
constexpr int TAKERS = STAGES < WARPS ? STAGES : WARPS;  // warps that take units; see `first_of_mine`
constexpr int TALL = 4;              // pieces of rows in a unit
constexpr int ATTENDED = HEADS * HEAD_WIDTH, QKV = (HEADS + 2 * GROUPS) * HEAD_WIDTH;
constexpr int LINES = ROWS * HEADS;
constexpr int SIDES = GATED ? 2 : 1;  // rows of a matrix for an output of the inner map
constexpr int EACH = (WIDTH / 4 + THREADS - 1) / THREADS;  // fours of a row that a thread reads
constexpr int MINE = (WIDTH + BLOCKS - 1) / BLOCKS;        // numbers of a row of the stream that a block adds to
constexpr int RECORD = HEAD_WIDTH + 4;  // words of a share: what it attended to, its highest score, its sum

// Where words lie; each part begins in a line of its own.
__device__ constexpr int lined(int words) { return (words + 31) / 32 * 32; }
constexpr int BEHIND_OUT = 0, BEHIND_OUTER = BEHIND_OUT + lined(ROWS * WIDTH);  // the stream
constexpr int PROJECTED = BEHIND_OUTER + lined(ROWS * WIDTH), PARTS = PROJECTED + lined(ROWS * QKV);
constexpr int ACTIVE = PARTS + lined(LINES * SHARES * RECORD);  // hidden units

static_assert(WIDTH >= BLOCKS, "each block tells some of the stream");
static_assert(LEAST >= SHARES, "no share is empty");

// What the table of pointers holds of a layer; behind the last, GAIN to MAP_BIAS are of the head.
enum {
    GAIN, SHIFT, MAP, MAP_BIAS, OUT, OUT_BIAS, NEXT_GAIN, NEXT_SHIFT, INNER, INNER_BIAS, OUTER, OUTER_BIAS,
    KEYS, VALUES, COS, SIN, COLUMNS
};

// The machine --------------------------------------------------------------------------------------------------------

__device__ __forceinline__ u32 place(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void begin_barrier(u64* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(place(barrier)) : "memory");
}

__device__ __forceinline__ void barriers_are_seen() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place(barrier)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(place(barrier)) : "memory");
}

__device__ __forceinline__ bool has_passed(u64* barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(place(barrier)), "r"(parity)
        : "memory");
    return done;
}

__device__ __forceinline__ u64 first_to_go() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ void copy(void* to, const void* from, u32 bytes, u64* barrier, u64 policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(place(to)), "l"(from), "r"(bytes), "r"(place(barrier)), "l"(policy)
        : "memory");
}

__device__ __forceinline__ void copy(void* to, const void* from, u32 bytes, u64* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(place(to)),
        "l"(from), "r"(bytes), "r"(place(barrier))
        : "memory");
}

__device__ __forceinline__ void fetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

__device__ __forceinline__ void together() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

// Words that others tell, or what v was: without a branch, so that many are asked for before the first is there.
__device__ __forceinline__ void ask(uint4& v, const u32* p, bool if_so) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
        : "l"(p), "r"((u32)if_so)
        : "memory");
}

__device__ __forceinline__ void ask(u32& v, const u32* p, bool if_so) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.relaxed.gpu.global.u32 %0, [%1];\n}\n"
                 : "+r"(v)
                 : "l"(p), "r"((u32)if_so)
                 : "memory");
}

__device__ __forceinline__ void put(u32* p, u32 word) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(word) : "memory");
}

// Shared memory, or what v was: without a branch
__device__ __forceinline__ void load_if(uint4& v, const void* p, bool if_so) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "r"(place(p)), "r"((u32)if_so));
}

// c [16 8] += a [16 16] · b [16 8], of bfloat16: lane 4 m + q has, as pairs, 2 q and 2 q + 8 of rows m and m + 8 of a,
// 2 q and 2 q + 8 of column m of b, and columns 2 q and 2 q + 1 of rows m and m + 8 of c.
__device__ __forceinline__ void multiply_add(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 narrowed(float low, float high) {
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}

__device__ __forceinline__ float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Numbers ------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ float widened(u16 v) { return __uint_as_float((u32)v << 16); }
__device__ __forceinline__ u16 narrowed(float v) { return (u16)narrowed(v, 0.0f); }
__device__ __forceinline__ float rounded(float v) { return widened(narrowed(v)); }
__device__ __forceinline__ float exponential(float x) { return power_of_2(x * 1.4426950408889634f); }

__device__ __forceinline__ void widen(uint4 v, float* to) {
    to[0] = low(v.x), to[1] = high(v.x), to[2] = low(v.y), to[3] = high(v.y);
    to[4] = low(v.z), to[5] = high(v.z), to[6] = low(v.w), to[7] = high(v.w);
}

__device__ __forceinline__ float4 widened(uint2 v) { return make_float4(low(v.x), high(v.x), low(v.y), high(v.y)); }

// A number as words hold it, with 16 bits of its fraction's 24
__device__ __forceinline__ u32 shortened(float v) {
    u32 bits = __float_as_uint(v);
    return v == v ? (bits + 127u + (bits >> 8 & 1u)) & ~255u : 0x7fc00000u;
}

__device__ __forceinline__ float number_of(u32 word) { return __uint_as_float(word & ~255u); }
__device__ __forceinline__ float4 numbers_of(uint4 v) {
    return make_float4(number_of(v.x), number_of(v.y), number_of(v.z), number_of(v.w));
}

// Four words whose numbers are bfloat16
__device__ __forceinline__ uint2 pairs_of(uint4 v) {
    return make_uint2(v.x >> 16 | (v.y & 0xffff0000u), v.z >> 16 | (v.w & 0xffff0000u));
}

enum { NONE, GELU, GELU_TANH, GELU_QUICK, SILU, RELU };

// As in parts/activation_programs.py.
__device__ __forceinline__ float activated(float y) {
    if (ACTIVATION == GELU) {
        float a = fminf(fabsf(y), 5.5f);
        float p = 3.240682781324722e-05f * a - 0.000754765176679939f;
        p = p * a + 0.008003950119018555f;
        p = p * a - 0.053243488073349f;
        p = p * a - 0.4589402675628662f;
        p = p * a - 1.1511284112930298f;
        p = p * a - 1.0000033378601074f;
        return y == y ? fmaxf(y, 0.0f) - a * power_of_2(p) : y;  // what is no number stays none
    }
    if (ACTIVATION == GELU_TANH) {
        float a = fminf(fabsf(y), 5.0f);
        float p = -2.201170900661964e-05f * a + 0.00035156458034180105f;
        p = p * a - 0.0018074767431244254f;
        p = p * a + 0.0015914436662569642f;
        p = p * a + 0.007841621525585651f;
        p = p * a - 0.053453993052244186f;
        p = p * a - 0.45760318636894226f;
        p = p * a - 1.1515896320343018f;
        p = p * a - 0.9999561309814453f;
        return y == y ? fmaxf(y, 0.0f) - a * power_of_2(p) : y;
    }
    if (ACTIVATION == GELU_QUICK) return y / (1.0f + power_of_2(-2.4554669595930157f * y));
    if (ACTIVATION == SILU) return y / (1.0f + power_of_2(-1.4426950408889634f * y));
    if (ACTIVATION == RELU) return y == y ? fmaxf(y, 0.0f) : y;
    return y;
}

// Who does what ------------------------------------------------------------------------------------------------------

struct Outputs {
    int first, count;
};

// Of a map's outputs, those of this block. Who has one more than others is not the same in all maps; but whoever adds
// to a number of the stream keeps it, so both maps that do have one `turn`.
__device__ __forceinline__ Outputs outputs_of(int all, u32 turn) {
    u32 me = (blockIdx.x + turn) % BLOCKS;
    int first = (u32)all * me / BLOCKS;
    return {first, (int)((u32)all * (me + 1) / BLOCKS) - first};
}

__device__ __forceinline__ u32 turn_of(int map) { return map % 2 == 0 ? map * 37u : 0u; }

__device__ __forceinline__ int units_of(int rows, int pieces) { return (rows + TALL - 1) / TALL * pieces; }

struct Share {
    int line, row, group, number, begin, count;  // of slots before the newest
    bool any;
};

__device__ __forceinline__ int shares_of(int position) { return max(1, min(SHARES, (position + LEAST - 1) / LEAST)); }

__device__ __forceinline__ Share share_of(int task, const int* positions, const int* firsts) {
    Share s;
    s.line = task % LINES, s.number = task / LINES, s.row = s.line / HEADS;
    s.group = s.line % HEADS / (HEADS / GROUPS);
    int position = positions[s.row], shares = shares_of(position), each = (position + shares - 1) / shares;
    int before = s.number * each;
    s.any = s.number < shares;
    s.begin = firsts[s.row] + before;
    s.count = s.any ? min(each, position - before) : 0;
    return s;
}

// A block ------------------------------------------------------------------------------------------------------------

struct Block {
    u8* ring;      // [STAGES STAGE]
    u8* x;         // what a map is applied to: bfloat16 [1 or 2, ROWS K], two whose sum it is behind a norm
    u8* scratch;   // sums of a map [rows pieces ROWS]
    float* read;   // what warps have attended to [WARPS HEAD_WIDTH + 2]
    float2* moment;  // [ROWS WARPS]
    float* own;      // of the stream, what this block adds to [ROWS MINE]
    const i64* table;                // [LAYERS + 1, COLUMNS]
    const int *positions, *firsts;   // [ROWS]
    u64 *full, *empty;               // [STAGES]
    u32* sizes;                      // of units whose copies have begun [STAGES]
    u32 under_way;                   // bytes of those from the oldest on that may not be there
    int oldest;
    int unit, warp, lane, thread, capacity;
    u32* words;
    u32 now;  // which words are of this layer
#if TIMED
    i64* stamps;
    i64 idle;
    int phase;
#endif

    template <class T>
    __device__ __forceinline__ const T* of(int layer, int column) const {
        return (const T*)table[layer * COLUMNS + column];
    }

    __device__ __forceinline__ void stamp(int which) {
#if TIMED
        // Behind a barrier only what reads memory waits for it; no position is less than 0.
        if (blockIdx.x == TIMED - 1 && thread == 0 && *(const volatile int*)positions >= 0)
            stamps[phase * 8 + which] = clock64();
#endif
    }

    __device__ __forceinline__ void wait(u64* barrier, int passes) {
        for (u32 polls = 0; !has_passed(barrier, passes & 1);)
            if (++polls == PATIENCE) __trap();
    }

    __device__ __forceinline__ u8* slot(int number) { return ring + number % STAGES * STAGE; }

    __device__ __forceinline__ u8* filled(int number) {
#if TIMED
        i64 before = clock64();
#endif
        wait(full + number % STAGES, number / STAGES);
#if TIMED
        idle += clock64() - before;
#endif
        return slot(number);
    }

    // A slot of the ring is always emptied by the same warp. Otherwise one could ask for what is to come into a slot
    // before another has seen there what comes earlier, and barriers tell only odd from even.
    static_assert(STAGES % TAKERS == 0, "slots of all warps are as many");
    __device__ __forceinline__ int first_of_mine() {
        return warp < TAKERS ? (warp + TAKERS - unit % TAKERS) % TAKERS : 1 << 30;
    }

    __device__ __forceinline__ void free(int number) {
        __syncwarp();
        if (lane == 0) arrive(empty + number % STAGES);
    }

    // Words that this block tells, and those it waits for

    __device__ __forceinline__ void tell(int word, float v) { put(words + word, shortened(v) | now); }

    __device__ __forceinline__ bool is_of_now(u32 v) { return ((v ^ now) & 255u) == 0; }
    __device__ __forceinline__ bool is_of_now(uint4 v) {
        return (((v.x ^ now) | (v.y ^ now) | (v.z ^ now) | (v.w ^ now)) & 255u) == 0;
    }

    // All words that a thread needs, asked for together until all are of now: a round takes as long as one of them.
    // `at` gives the place of the p-th, `wanted` whether there is one.
    template <int COUNT, class Words, class At, class Wanted>
    __device__ __forceinline__ bool ask_for(Words (&v)[COUNT], At at, Wanted wanted) {
        bool all = true;
#pragma unroll
        for (int p = 0; p < COUNT; p++) ask(v[p], at(p), wanted(p) && !is_of_now(v[p]));
#pragma unroll
        for (int p = 0; p < COUNT; p++) all = all && (!wanted(p) || is_of_now(v[p]));
        return all;
    }

    template <class Round>
    __device__ __forceinline__ void until(Round round) {
#pragma unroll 1
        for (u32 polls = 0; !round();)
            if (++polls == PATIENCE) __trap();
    }

    template <int COUNT>
    __device__ __forceinline__ void forget(uint4 (&v)[COUNT]) {
#pragma unroll
        for (int p = 0; p < COUNT; p++) v[p] = make_uint4(~now, ~now, ~now, ~now);
    }

    template <int COUNT, class At, class Wanted>
    __device__ __forceinline__ void await(uint4 (&v)[COUNT], At at, Wanted wanted) {
        forget(v);
        until([&] { return ask_for(v, at, wanted); });
    }

    __device__ __forceinline__ void end_phase() {
        stamp(5);
#if TIMED
        if (blockIdx.x == TIMED - 1 && thread == 0) stamps[phase * 8 + 6] = idle;
        idle = 0, phase++;
#endif
    }

    // What fills the ring ------------------------------------------------------------------------------------------

    __device__ __forceinline__ void begin_unit(u32 bytes) {
        wait(empty + unit % STAGES, unit / STAGES + 1);
        // Few copies at a time: what blocks tell each other waits in the same queues.
        for (; oldest < unit && (under_way + bytes > UNDER_WAY || unit - oldest == STAGES); oldest++) {
            wait(full + oldest % STAGES, oldest / STAGES);
            under_way -= sizes[oldest % STAGES];
        }
        under_way += bytes;
        sizes[unit % STAGES] = bytes;
        expect(full + unit % STAGES, bytes);
    }

    template <int K, int PIECES, int SIDE>
    __device__ __forceinline__ void fill_map(const u16* w, int all, int map, u64 policy) {
        constexpr int PIECE = K / PIECES * 2;  // bytes
        Outputs mine = outputs_of(all, turn_of(map));
        int rows = mine.count * SIDE, units = units_of(rows, PIECES);
        for (int i = 0; i < units; i++, unit++) {
            int from = i / PIECES * TALL, count = min(TALL, rows - from), piece = i % PIECES;
            begin_unit(count * PIECE);
            u8* to = slot(unit);
            u64* barrier = full + unit % STAGES;
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

    __device__ __forceinline__ void fill_slots(int layer) {
        const u16 *keys = of<u16>(layer, KEYS), *values = of<u16>(layer, VALUES);
        for (int task = blockIdx.x; task < LINES * SHARES; task += BLOCKS) {
            Share s = share_of(task, positions, firsts);
            i64 head = (i64)(s.row * GROUPS + s.group) * capacity;
            for (int done = 0; done < s.count; done += KEPT, unit++) {
                u32 bytes = min(KEPT, s.count - done) * HEAD_WIDTH * 2;
                i64 from = (head + s.begin + done) * HEAD_WIDTH;
                begin_unit(2 * bytes);
                copy(slot(unit), keys + from, bytes, full + unit % STAGES);
                copy(slot(unit) + KEPT * HEAD_WIDTH * 2, values + from, bytes, full + unit % STAGES);
            }
        }
    }

    // Small weights of a layer, into L2, where all blocks will read them.
    __device__ __forceinline__ void fetch_small(int layer) {
        const int columns[] = {GAIN, SHIFT, MAP_BIAS, OUT_BIAS, NEXT_GAIN, NEXT_SHIFT, INNER_BIAS, OUTER_BIAS};
        const int sizes[] = {WIDTH, WIDTH, QKV - (GAP_TO - GAP_FROM), WIDTH, WIDTH, WIDTH, HIDDEN * SIDES, WIDTH};
#pragma unroll 1
        for (int i = 0; i < 8; i++) {
            const u8* p = of<u8>(layer, columns[i]);
#pragma unroll 1
            for (int at = lane * 128; p != nullptr && at < sizes[i] * 2; at += 32 * 128) fetch(p + at);
        }
    }

    __device__ void fill() {
        for (int layer = blockIdx.x; layer < LAYERS; layer += BLOCKS) fetch_small(layer);
        if (lane > 0) return;
        u64 policy = first_to_go();
        for (int layer = 0; layer < LAYERS; layer++) {
            fill_map<WIDTH, WIDTH_PIECES, 1>(of<u16>(layer, MAP), QKV, 4 * layer, policy);
            fill_slots(layer);
            fill_map<ATTENDED, ATTENDED_PIECES, 1>(of<u16>(layer, OUT), WIDTH, 4 * layer + 1, policy);
            fill_map<WIDTH, WIDTH_PIECES, SIDES>(of<u16>(layer, INNER), HIDDEN, 4 * layer + 2, policy);
            fill_map<HIDDEN, HIDDEN_PIECES, 1>(of<u16>(layer, OUTER), WIDTH, 4 * layer + 3, policy);
        }
        fill_map<WIDTH, WIDTH_PIECES, 1>(of<u16>(LAYERS, MAP), VOCABULARY, 4 * LAYERS, policy);
    }

    // What maps are applied to -------------------------------------------------------------------------------------

    // Numbers of a row that the threads of a warp have
    __device__ static constexpr int numbers_with(int warp) {
        int found = 0;
        for (int e = 0; e < EACH; e++) {
            int left = WIDTH / 4 - e * THREADS - warp * 32;
            found += left < 0 ? 0 : left > 32 ? 128 : left * 4;
        }
        return found;
    }

    __device__ __forceinline__ float sum_of_warp(float v) {
#pragma unroll
        for (int far = 16; far > 0; far /= 2) v += __shfl_xor_sync(~0u, v, far);
        return v;
    }

    // x = scale · norm(stream); `read` gives all fours of this thread, of row p / EACH.
    template <class Read>
    __device__ __forceinline__ void norm(int layer, int gain_at, float epsilon, float scale, Read read) {
        const uint2 *gains = of<uint2>(layer, gain_at), *shifts = of<uint2>(layer, gain_at + 1);
        uint2 gain[EACH], shift[EACH];
        float4 v[ROWS][EACH];
        stamp(0);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int i = e * THREADS + thread;
            gain[e] = shift[e] = make_uint2(0, 0);
            if (i < WIDTH / 4) {
                gain[e] = gains[i];
                if (shifts != nullptr) shift[e] = shifts[i];
            }
        }
        read(v);
        stamp(1);
        // Each warp has a mean and squares around it; together they are those of all, at the cost of one barrier.
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float total = 0.0f, square = 0.0f, mean = 0.0f;
            if (!RMS) {
#pragma unroll
                for (int e = 0; e < EACH; e++) total += (v[r][e].x + v[r][e].y) + (v[r][e].z + v[r][e].w);
                mean = sum_of_warp(total) / max(1, numbers_with(warp));
            }
#pragma unroll
            for (int e = 0; e < EACH; e++)
                if (e * THREADS + thread < WIDTH / 4) {
                    float4 a = v[r][e];
                    a.x -= mean, a.y -= mean, a.z -= mean, a.w -= mean;
                    square += (a.x * a.x + a.y * a.y) + (a.z * a.z + a.w * a.w);
                }
            square = sum_of_warp(square);
            if (lane == 0) moment[r * WARPS + warp] = make_float2(mean, square);
        }
        together();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float mean = 0.0f, square = 0.0f;
            float2 of_warp[WARPS];
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                of_warp[w] = moment[r * WARPS + w];
                mean += of_warp[w].x * (numbers_with(w) * (1.0f / WIDTH));
            }
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                float off = of_warp[w].x - mean;
                square += of_warp[w].y + off * off * numbers_with(w);
            }
            float rate = rsqrtf(square * (1.0f / WIDTH) + epsilon);
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                int i = e * THREADS + thread;
                if (i >= WIDTH / 4) continue;
                float4 a = v[r][e], g = widened(gain[e]), s = widened(shift[e]);
                a.x = ((a.x - mean) * rate * g.x + s.x) * scale, a.y = ((a.y - mean) * rate * g.y + s.y) * scale;
                a.z = ((a.z - mean) * rate * g.z + s.z) * scale, a.w = ((a.w - mean) * rate * g.w + s.w) * scale;
                uint2 most = make_uint2(narrowed(a.x, a.y), narrowed(a.z, a.w));
                float4 m = widened(most);
                ((uint2*)x)[r * (WIDTH / 4) + i] = most;
                ((uint2*)x)[(ROWS + r) * (WIDTH / 4) + i] =
                    make_uint2(narrowed(a.x - m.x, a.y - m.y), narrowed(a.z - m.z, a.w - m.w));
            }
        }
        together();
        stamp(2);
    }

    // x = numbers [ROWS K] that are bfloat16 already
    template <int K>
    __device__ __forceinline__ void take(int from) {
        constexpr int FOURS = ROWS * K / 4, PASSES = (FOURS + THREADS - 1) / THREADS, AT_ONCE = PASSES < 8 ? PASSES : 8;
        const u32* given = words + from;
        stamp(0);
#pragma unroll 1
        for (int begin = thread; begin < FOURS; begin += AT_ONCE * THREADS) {
            uint4 v[AT_ONCE];
            auto at = [&](int p) { return given + (begin + p * THREADS) * 4; };
            auto wanted = [&](int p) { return begin + p * THREADS < FOURS; };
            await(v, at, wanted);
#pragma unroll
            for (int p = 0; p < AT_ONCE; p++)
                if (wanted(p)) ((uint2*)x)[begin + p * THREADS] = pairs_of(v[p]);
        }
        stamp(1);
        together();
        stamp(2);
    }

    // x = what all shares of all heads have attended to, joined
    __device__ __forceinline__ void join() {
        constexpr int FOURS = LINES * HEAD_WIDTH / 4, PASSES = (FOURS + THREADS - 1) / THREADS;
        constexpr int MOST = SHARES > 10 ? 1 : 10 / SHARES, AT_ONCE = PASSES < MOST ? PASSES : MOST;
        constexpr int IN_LINE = HEAD_WIDTH / 4;
        stamp(0);
#pragma unroll 1
        for (int begin = thread; begin < FOURS; begin += AT_ONCE * THREADS) {
            uint4 v[AT_ONCE * SHARES * 2];  // of each four and share: what it attended to; its highest score, its sum
            int count[AT_ONCE];
#pragma unroll
            for (int p = 0; p < AT_ONCE; p++) {
                int i = begin + p * THREADS;
                count[p] = i < FOURS ? shares_of(positions[i / IN_LINE / HEADS]) : 0;
            }
            auto at = [&](int k) {
                int i = begin + k / 2 / SHARES * THREADS, share = k / 2 % SHARES;
                return words + PARTS + (i / IN_LINE * SHARES + share) * RECORD + (k % 2 ? IN_LINE : i % IN_LINE) * 4;
            };
            await(v, at, [&](int k) { return k / 2 % SHARES < count[k / 2 / SHARES]; });
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
                ((uint2*)x)[i] = make_uint2(narrowed(a * rate, b * rate), narrowed(c * rate, d * rate));
            }
        }
        stamp(1);
        together();
        stamp(2);
    }

    // Maps ---------------------------------------------------------------------------------------------------------

    // scratch[row, piece, r] = W[row] · x[r], of all rows of W that are this block's; x is the sum of PARTS_OF_X
    //
    // By matrix units, which take 8 columns of 16 numbers: the 4 rows of a unit, each in two halves of every 64. Lane
    // 8 j + i has the i-th eight of row j, so none waits for a bank. Of the other matrix's 16
    // rows, row 4 r + 2 part + half (and + 8 for r + 2) is that half of that part of x[r]; lanes read eights alike.
    // Products of a half with the other one are of no use, and nobody looks at them.
    template <int K, int PIECES, int PARTS_OF_X>
    __device__ __forceinline__ void multiply(int rows) {
        constexpr int EIGHTS = K / PIECES / 8, TURNS = (EIGHTS + 7) / 8, BATCHES = (TURNS + 7) / 8;
        constexpr int BATCH = (TURNS + BATCHES - 1) / BATCHES;
        static_assert(ROWS <= 4 && TALL == 4, "rows of the matrices are all taken");
        int units = units_of(rows, PIECES), part = lane / 8 % 2, r = lane / 16, eight = lane % 8;
        bool has = part < PARTS_OF_X && r < ROWS, has_more = part < PARTS_OF_X && r + 2 < ROWS;
#pragma unroll 1
        for (int i = first_of_mine(); i < units; i += TAKERS) {
            int piece = i % PIECES;
            const uint4* w = (const uint4*)filled(unit + i) + lane / 8 * EIGHTS + eight;
            const uint4* of_x = (const uint4*)x + (part * ROWS + r) * (K / 8) + piece * EIGHTS + eight;
            const uint4 zero = make_uint4(0, 0, 0, 0);
            uint4 weights[BATCH], a[BATCH], more[BATCH];
            float sum[4][4];
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int k = 0; k < 4; k++) sum[j][k] = 0.0f;
#pragma unroll
            for (int t = 0; t < BATCH; t++) a[t] = more[t] = zero;
#pragma unroll(ROWS <= 2 ? 8 : 1)
            for (int batch = 0; batch < BATCHES; batch++) {
#pragma unroll
                for (int t = 0; t < BATCH; t++) {
                    int at = (batch * BATCH + t) * 8;
                    bool inside = EIGHTS % 8 == 0 ? at < EIGHTS : at + eight < EIGHTS;
                    weights[t] = inside ? w[at] : zero;  // 0 · something need not be 0
                    load_if(a[t], of_x + at, has && inside);
                    if (ROWS > 2) load_if(more[t], of_x + 2 * (K / 8) + at, has_more && inside);
                }
#pragma unroll
                for (int t = 0; t < BATCH; t++) {
                    if ((batch * BATCH + t) * 8 >= EIGHTS) break;
                    multiply_add(sum[t % 2 * 2], a[t].x, more[t].x, a[t].y, more[t].y, weights[t].x, weights[t].y);
                    multiply_add(sum[t % 2 * 2 + 1], a[t].z, more[t].z, a[t].w, more[t].w, weights[t].z, weights[t].w);
                }
            }
            free(unit + i);
#pragma unroll
            for (int further = 0; further < ROWS; further += 2) {  // lane 16 r + j gets row j of r + further
                bool second = lane & 4;  // half
                float y = 0.0f;
#pragma unroll
                for (int j = 0; j < 4; j++) y += second ? sum[j][further + 1] : sum[j][further];
                y += __shfl_xor_sync(~0u, y, 4);
                if (PARTS_OF_X == 2) y += __shfl_xor_sync(~0u, y, 8);
                int row = i / PIECES * TALL + lane % 4;
                if (lane % 16 < 4 && r + further < ROWS && row < rows)
                    ((float*)scratch)[(row * PIECES + piece) * ROWS + r + further] = y;
            }
        }
        unit += units;
        stamp(3);
        together();
        stamp(4);
    }

    template <int PIECES>
    __device__ __forceinline__ float product(int row, int r) {
        float y = 0.0f;
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) y += ((const float*)scratch)[(row * PIECES + piece) * ROWS + r];
        return y;
    }

    // Attention ----------------------------------------------------------------------------------------------------

    static constexpr int LANES = HEAD_WIDTH / 8;  // for a slot: each has 8 numbers of it

    struct Read {
        float most, sum, out[8];
    };

    // Some slots at once, so that only the highest score is waited for; `at`: where one begins, `inside`: if it is one.
    template <int COUNT, class At, class Inside>
    __device__ __forceinline__ void take_in(Read& a, const float* q, const u8* keys, const u8* values, At at,
                                            Inside inside) {
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

    // Eight numbers of a head, turned to its position; `other`: those they are turned with
    __device__ __forceinline__ void turn(uint4 head, const u32* other, const float* cos, const float* sin, float* v) {
        widen(head, v);
        if (ROTARY) {
#pragma unroll
            for (int e = 0; e < 8; e++) v[e] = rounded(v[e] * cos[e] + number_of(other[e]) * sin[e]);
        }
    }

    __device__ __forceinline__ void attend(int layer, const int* partners, float scale) {
        constexpr int AT_ONCE = 32 / LANES, TURNS = (KEPT + AT_ONCE - 1) / AT_ONCE, MOST = ROTARY ? 4 : 8;
        constexpr int BATCH = TURNS < MOST ? TURNS : MOST;
        int mine = lane / LANES, d = lane % LANES * 8;
        bool first = true;
        for (int task = blockIdx.x; task < LINES * SHARES; task += BLOCKS) {
            Share s = share_of(task, positions, firsts);
            int record = PARTS + (s.line * SHARES + s.number) * RECORD;
            if (!s.any) {  // that words are told in each layer is what their times rest on
                for (int i = thread; i < RECORD; i += THREADS) tell(record + i, 0.0f);
                continue;
            }
            int position = positions[s.row], head = s.line % HEADS;
            float cos[8], sin[8];
            int partner[8];
            if (ROTARY) {
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    cos[e] = of<float>(layer, COS)[position * HEAD_WIDTH + d + e];
                    sin[e] = of<float>(layer, SIN)[position * HEAD_WIDTH + d + e];
                    partner[e] = partners[d + e];
                }
            }
            if (first) stamp(0);
            const u32* row = words + PROJECTED + s.row * QKV;
            bool newest = s.number == 0 && warp == WARPS - 1;
            // Of query, key and value
            auto begin = [&](int which) {
                return row + (which == 0 ? head : (which == 1 ? HEADS : HEADS + GROUPS) + s.group) * HEAD_WIDTH;
            };
            uint4 given[6];
            u32 other[ROTARY ? 16 : 1];
            forget(given);
#pragma unroll
            for (int e = 0; e < (ROTARY ? 16 : 1); e++) other[e] = ~now;
            until([&] {
                bool all = ask_for(
                    given, [&](int p) { return begin(p / 2) + d + p % 2 * 4; }, [&](int p) { return p < 2 || newest; });
                if (ROTARY)
                    all &= ask_for(
                        other, [&](int p) { return begin(p / 8) + partner[p % 8]; },
                        [&](int p) { return p < 8 || newest; });
                return all;
            });
            auto eight = [&](int which) {
                uint2 a = pairs_of(given[2 * which]), b = pairs_of(given[2 * which + 1]);
                return make_uint4(a.x, a.y, b.x, b.y);
            };
            float q[8];
            turn(eight(0), other, cos, sin, q);
            if (first) stamp(1), stamp(2);
#pragma unroll
            for (int e = 0; e < 8; e++) q[e] *= scale;
            Read a = {-1e30f, 0.0f, {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}};
            if (newest) {
                float v[8];
                turn(eight(1), other + (ROTARY ? 8 : 0), cos, sin, v);
                uint4 key = make_uint4(
                    narrowed(v[0], v[1]), narrowed(v[2], v[3]), narrowed(v[4], v[5]), narrowed(v[6], v[7]));
                uint4 value = eight(2);
                take_in<1>(
                    a, q, (const u8*)&key, (const u8*)&value, [](int) { return 0; }, [&](int) { return mine == 0; });
                if (mine == 0 && head % (HEADS / GROUPS) == 0) {
                    i64 to = ((i64)(s.row * GROUPS + s.group) * capacity + firsts[s.row] + position) * HEAD_WIDTH + d;
                    *(uint4*)(of<u16>(layer, KEYS) + to) = key;
                    *(uint4*)(of<u16>(layer, VALUES) + to) = value;
                }
            }
            int units = (s.count + KEPT - 1) / KEPT;
            for (int i = first_of_mine(); i < units; i += TAKERS) {
                const u8* keys = filled(unit + i);
                const u8* values = keys + KEPT * HEAD_WIDTH * 2;
                int count = min(KEPT, s.count - i * KEPT);
#pragma unroll 1
                for (int from = mine; from - mine < count; from += BATCH * AT_ONCE) {
                    auto inside = [&](int t) { return from + t * AT_ONCE < count; };
                    auto at = [&](int t) { return ((inside(t) ? from + t * AT_ONCE : 0) * HEAD_WIDTH + d) * 2; };
                    take_in<BATCH>(a, q, keys, values, at, inside);
                }
                free(unit + i);
            }
            unit += units;
            join_lanes(a);
            if (!first) together();  // what the share before has left is read
            first = false;
            if (mine == 0) {
                float* to = read + warp * (HEAD_WIDTH + 2);
#pragma unroll
                for (int e = 0; e < 8; e++) to[d + e] = a.out[e];
                if (lane == 0) to[HEAD_WIDTH] = a.most, to[HEAD_WIDTH + 1] = a.sum;
            }
            stamp(3);
            together();
            stamp(4);
            for (int i = thread; i < HEAD_WIDTH; i += THREADS) {
                float most = -1e30f, sum = 0.0f, out = 0.0f;
#pragma unroll
                for (int w = 0; w < WARPS; w++) most = fmaxf(most, read[w * (HEAD_WIDTH + 2) + HEAD_WIDTH]);
                most = number_of(shortened(most));  // as others will know it
#pragma unroll
                for (int w = 0; w < WARPS; w++) {
                    const float* from = read + w * (HEAD_WIDTH + 2);
                    float weight = exponential(from[HEAD_WIDTH] - most);
                    sum += weight * from[HEAD_WIDTH + 1];
                    out += weight * from[i];
                }
                tell(record + i, out);
                if (i < 4) tell(record + HEAD_WIDTH + i, i == 0 ? most : sum);
            }
        }
        end_phase();
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
};

// Outputs of a map: `known` gives what is known of an output before its product is, `end` what becomes of it. Thread i
// has output i % count of row i / count.
template <class Known, class Work, class End>
__device__ __forceinline__ void map_of(Block& block, int all, int map, Known known, Work work, End end) {
    Outputs mine = outputs_of(all, turn_of(map));
    auto row = [&](int i) { return ROWS == 1 ? 0 : i / mine.count; };
    auto output = [&](int i) { return ROWS == 1 ? i : i % mine.count; };
    int i = block.thread, outputs = mine.count * ROWS;
    float2 before = make_float2(0.0f, 0.0f);
    if (i < outputs) before = known(mine.first + output(i), row(i));
    work(mine.count);
#pragma unroll 1
    while (i < outputs) {
        end(mine.first + output(i), output(i), row(i), before);
        i += THREADS;
        if (i < outputs) before = known(mine.first + output(i), row(i));
    }
    block.end_phase();
}

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1)
step(const i64* table, const u16* words, const u16* places, const i64* ids, const i64* positions, const i64* firsts,
     u32* told, u32* clock, float* logits, const int* partners,
     i64* stamps, float epsilon, float word_scale, float head_scale, float score_scale, int capacity) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ u64 full[STAGES], empty[STAGES];
    __shared__ u32 sizes[STAGES];
    __shared__ float2 moment[ROWS * WARPS];
    __shared__ float own[ROWS * MINE], read[WARPS * (HEAD_WIDTH + 2)];
    __shared__ i64 pointers[(LAYERS + 1) * COLUMNS];
    __shared__ int position[ROWS], first[ROWS];
    constexpr int NUMBERS = 2 * WIDTH > ATTENDED ? 2 * WIDTH : ATTENDED;
    constexpr int OF_X = (ROWS * (NUMBERS > HIDDEN ? NUMBERS : HIDDEN) * 2 + 127) / 128 * 128;

    Block block;
    block.ring = memory, block.x = memory + STAGES * STAGE, block.scratch = block.x + OF_X;
    block.moment = moment, block.table = pointers, block.positions = position, block.firsts = first;
    block.full = full, block.empty = empty, block.sizes = sizes, block.under_way = 0, block.oldest = 0;
    block.unit = 0, block.words = told, block.now = 0;
    block.own = own, block.read = read;
    block.capacity = capacity;
    block.thread = threadIdx.x, block.warp = threadIdx.x / 32, block.lane = threadIdx.x % 32;
#if TIMED
    block.stamps = stamps, block.idle = 0, block.phase = 0;
#endif
    for (int i = threadIdx.x; i < (LAYERS + 1) * COLUMNS; i += THREADS + 32) pointers[i] = table[i];
    if (threadIdx.x < ROWS) position[threadIdx.x] = positions[threadIdx.x], first[threadIdx.x] = firsts[threadIdx.x];
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) begin_barrier(full + i), begin_barrier(empty + i);
        barriers_are_seen();
    }
    __syncthreads();
    if (block.warp == WARPS) {
        block.fill();
        return;
    }

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
        block.await(asked, at, wanted);
#pragma unroll
        for (int p = 0; p < ROWS * EACH; p++)
            v[p / EACH][p % EACH] = wanted(p) ? numbers_of(asked[p]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    };

    for (int layer = 0; layer < LAYERS; layer++) {
        const u16* bias = block.of<u16>(layer, MAP_BIAS);
        auto biased = [&](int n, int) {
            bool has = bias != nullptr && (n < GAP_FROM || n >= GAP_TO);
            return make_float2(has ? widened(bias[n < GAP_FROM ? n : n - (GAP_TO - GAP_FROM)]) : 0.0f, 0.0f);
        };
        auto projected = [&](int count) {
            stream = told + BEHIND_OUTER;
            if (layer == 0)
                block.norm(layer, GAIN, epsilon, 1.0f, embedded);
            else
                block.norm(layer, GAIN, epsilon, 1.0f, streamed);
            block.now = (begun + layer + 1) & 255u;
            block.multiply<WIDTH, WIDTH_PIECES, 2>(count);
        };
        map_of(block, QKV, 4 * layer, biased, projected, [&](int n, int i, int r, float2 before) {
            block.tell(PROJECTED + r * QKV + n, rounded(block.product<WIDTH_PIECES>(i, r) + before.x));
        });

        block.attend(layer, partners, score_scale);

        bias = block.of<u16>(layer, OUT_BIAS);
        auto shift = [&](int n, int) { return make_float2(bias == nullptr ? 0.0f : widened(bias[n]), 0.0f); };
        auto added = [&](int to, int n, int i, int r, float v) {
            v += own[r * MINE + i];
            own[r * MINE + i] = v;
            block.tell(to + r * WIDTH + n, v);
        };
        auto attended = [&](int count) {
            block.join();
            block.multiply<ATTENDED, ATTENDED_PIECES, 1>(count);
        };
        map_of(block, WIDTH, 4 * layer + 1, shift, attended, [&](int n, int i, int r, float2 before) {
            added(BEHIND_OUT, n, i, r, before.x + block.product<ATTENDED_PIECES>(i, r));
        });

        bias = block.of<u16>(layer, INNER_BIAS);
        auto gated = [&](int n, int) {
            if (bias == nullptr) return make_float2(0.0f, 0.0f);
            return make_float2(widened(bias[n]), GATED ? widened(bias[HIDDEN + n]) : 0.0f);
        };
        auto normed = [&](int count) {
            stream = told + BEHIND_OUT;
            block.norm(layer, NEXT_GAIN, epsilon, 1.0f, streamed);
            block.multiply<WIDTH, WIDTH_PIECES, 2>(count * SIDES);
        };
        map_of(block, HIDDEN, 4 * layer + 2, gated, normed, [&](int n, int i, int r, float2 before) {
            float y = activated(block.product<WIDTH_PIECES>(i * SIDES, r) + before.x);
            if (GATED) y *= block.product<WIDTH_PIECES>(i * SIDES + 1, r) + before.y;
            block.tell(ACTIVE + r * HIDDEN + n, rounded(y));
        });

        bias = block.of<u16>(layer, OUTER_BIAS);
        auto taken = [&](int count) {
            block.take<HIDDEN>(ACTIVE);
            block.multiply<HIDDEN, HIDDEN_PIECES, 1>(count);
        };
        map_of(block, WIDTH, 4 * layer + 3, shift, taken, [&](int n, int i, int r, float2 before) {
            added(BEHIND_OUTER, n, i, r, before.x + block.product<HIDDEN_PIECES>(i, r));
        });
    }

    const u16* bias = block.of<u16>(LAYERS, MAP_BIAS);
    auto last = [&](int count) {
        stream = told + BEHIND_OUTER;
        block.norm(LAYERS, GAIN, epsilon, head_scale, streamed);
        block.multiply<WIDTH, WIDTH_PIECES, 2>(count);
    };
    auto shifted = [&](int n, int) { return make_float2(bias == nullptr ? 0.0f : widened(bias[n]), 0.0f); };
    map_of(block, VOCABULARY, 4 * LAYERS, shifted, last, [&](int n, int i, int r, float2 before) {
        logits[(i64)r * VOCABULARY + n] = block.product<WIDTH_PIECES>(i, r) + before.x;
    });

    // All others have read the clock long ago: they have told of the last layer.
    if (blockIdx.x == 0 && threadIdx.x == 0) *clock = begun + LAYERS;
}
