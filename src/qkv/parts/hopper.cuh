// What programs for Hopper GPUs share: barriers, copies by the copy engine, products by warpgroups.
//
// By #define: HALF: narrow numbers are float16, else bfloat16; CLUSTER: blocks of one, where there are clusters.

#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(64) Tiles {  // as the copy engine reads them
    u64 words[16];
};

constexpr u32 PATIENCE = 1u << 22;  // polls: a mistake shall be an error, not a wait without end

// Of something in shared memory, what instructions for it take
__device__ __forceinline__ u32 address_of(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ---------------------------------------------------------------------------------------------------- numbers

#if HALF
#define NARROW "f16"
#else
#define NARROW "bf16"
#endif

__device__ __forceinline__ u32 narrowed(float low, float high) {
    u32 both;
    asm("cvt.rn." NARROW "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ __forceinline__ float widened(unsigned short x) {
    float y;
#if HALF
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
#else
    y = __uint_as_float((u32)x << 16);
#endif
    return y;
}

__device__ __forceinline__ float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---------------------------------------------------------------------------------------------------- barriers

__device__ __forceinline__ void made(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void all_are_made() {  // from here on the copy engine and other blocks know them
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async;" ::: "memory");
}

__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ bool is_over(u32 barrier, u32 parity) {  // the phase of that parity
    u32 over;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
    return over;
}

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    while (!is_over(barrier, parity)) {}
}

__device__ __forceinline__ void wait_or_fail(u32 barrier, u32 parity) {
    for (u32 polls = 0; !is_over(barrier, parity); polls++)
        if (polls == PATIENCE) __trap();
}

// ---------------------------------------------------------------------------------------------------- clusters

#ifdef CLUSTER
__device__ __forceinline__ int rank() {  // of this block in its cluster; asked anew, where a register would be kept
    int found = 0;
    if (CLUSTER > 1) asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(found));
    return found;
}

__device__ __forceinline__ void whole_cluster() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
#else
    __syncthreads();
#endif
}
#endif

// ---------------------------------------------------------------------------------------------------- copies

__device__ __forceinline__ void load(const Tiles& tiles, u32 to, int column, int row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(to), "l"(&tiles), "r"(column), "r"(row), "r"(barrier) : "memory");
}

__device__ __forceinline__ void store(const Tiles& tiles, u32 from, int column, int row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
        ::"l"(&tiles), "r"(column), "r"(row), "r"(from) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void until_read() {  // until all but PENDING stores of this thread have left their rooms
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// ---------------------------------------------------------------------------------------------------- tensor cores

__device__ __forceinline__ u64 described(u32 place, u32 leading, u32 stride) {  // bytes; swizzled by 128
    return (u64)((place & 0x3ffffu) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | 1ull << 62;
}

#define OWN_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OWN_8(i) OWN_4(i), OWN_4(i + 4)
#define OWN_32(i) OWN_8(i), OWN_8(i + 8), OWN_8(i + 16), OWN_8(i + 24)
#define FIRST_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FIRST_40 \
    FIRST_32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FIRST_52 \
    FIRST_40 \
    ", %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51"
#define FIRST_56 \
    FIRST_52 \
    ", %52, %53, %54, %55"
#define FIRST_64 \
    FIRST_56 \
    ", %56, %57, %58, %59, %60, %61, %62, %63"
#define FIRST_68 \
    FIRST_64 \
    ", %64, %65, %66, %67"
#define FIRST_88 \
    FIRST_68 \
    ", %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87"
#define FIRST_96 \
    FIRST_88 \
    ", %88, %89, %90, %91, %92, %93, %94, %95"

template <int PENDING>
__device__ __forceinline__ void until_multiplied() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
