/* All PTX of the backend. Each instruction has a plain twin in CUDA C. The host runs the twins (tests/cudahost), and a
 * test on a GPU compares them with the instructions (tests/gpu). Callers use `fast::`: PTX on a GPU, plain on the
 * host. */
#ifndef KERNELS_CUDA_PTX_H
#define KERNELS_CUDA_PTX_H

#include "kernels/cuda/cuda.h"

#include <cooperative_groups.h>

/* A wait for other blocks gives up after so many polls, which take 0.2 to 1 us each. It counts polls because a clock
 * also runs while the whole launch is preempted. */
#ifdef MAR_CUDAHOST
#define GRID_PATIENCE cudahost_patience
#else
enum { GRID_PATIENCE = 1 << 23 };
#endif
enum { GRID_GAVE_UP = 1 << 30 };

namespace plain
{

/* d += A B for the warp: mma.sync.m16n8k16, operands T, bf16 or f16, f32 sums, in the instruction's layout. Lane l with
 * g = l/4, t = l%4 has
 *   a[0] A[g][2t..], a[1] A[g+8][2t..], a[2] A[g][2t+8..], a[3] A[g+8][2t+8..], two values each, the lower index in the
 *   low half;
 *   b[0] B[2t..][g], b[1] B[2t+8..][g];
 *   d[0..1] D[g][2t..2t+1], d[2..3] D[g+8][2t..2t+1]. */
template <typename T> static __device__ inline void mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    const unsigned all = 0xffffffffu;
    const int lane = (int)(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    for (int quad = 0; quad < 4; quad++) {
        uint32_t row[4], column[2][2];
        for (int i = 0; i < 4; i++) row[i] = __shfl_sync(all, a[i], 4 * g + quad);
        for (int j = 0; j < 2; j++)
            for (int i = 0; i < 2; i++) column[j][i] = __shfl_sync(all, b[i], 4 * (2 * t + j) + quad);
        for (int half = 0; half < 2; half++)
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 2; j++) {
                    const float2 x = cuda_two<T>(row[2 * half + i]), y = cuda_two<T>(column[j][half]);
                    d[2 * i + j] += x.x * y.x;
                    d[2 * i + j] += x.y * y.y;
                }
    }
}

/* Loads four 8x8 matrices of 16-bit elements from shared memory: ldmatrix.x4. Lane l passes the address of row l % 8 of
 * matrix l / 8, 16-byte aligned. It receives in r[i] the elements 2(l%4) and 2(l%4) + 1 of row l / 4 of matrix i, or of
 * column l / 4 if transposed. */
static __device__ inline void load_matrices(uint32_t r[4], const void *row)
{
    const int lane = (int)(threadIdx.x % 32);
    for (int i = 0; i < 4; i++) {
        const unsigned long long at = __shfl_sync(0xffffffffu, (unsigned long long)row, 8 * i + lane / 4);
        r[i] = ((const uint32_t *)at)[lane % 4];
    }
}
static __device__ inline void load_matrices_transposed(uint32_t r[4], const void *row)
{
    const int lane = (int)(threadIdx.x % 32);
    for (int i = 0; i < 4; i++) {
        uint32_t element[2];
        for (int j = 0; j < 2; j++) {
            const int from = 8 * i + lane % 4 * 2 + j;
            const unsigned long long at = __shfl_sync(0xffffffffu, (unsigned long long)row, from);
            element[j] = ((const uint16_t *)at)[lane / 4];
        }
        r[i] = element[0] | element[1] << 16;
    }
}

/* Returns a * b + c of two pairs of bf16, each rounded once. */
static __device__ inline uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c)
{
    return cuda_pack(fmaf(cuda_low(a), cuda_low(b), cuda_low(c)), fmaf(cuda_high(a), cuda_high(b), cuda_high(c)));
}

/* Returns x & mask | bits in one instruction, where nvcc takes two for a mask and bits that are constants. */
static __device__ inline uint32_t mask_and_set(uint32_t x, uint32_t mask, uint32_t bits)
{
    return (x & mask) | bits;
}

/* Returns 2^x to about 2e-7 relative; subnormal results are 0. */
static __device__ inline float exp2(float x)
{
    return exp2f(x);
}

/* Starts a copy of 16 bytes from global to shared memory. copy_wait completes it for this thread. */
static __device__ inline void copy16(void *shared, const void *global)
{
    *(uint4 *)shared = *(const uint4 *)global;
}
/* The same through the L1 cache, for data that the multiprocessor reads again soon. If !given, writes zeros. */
static __device__ inline void copy16_if(int given, void *shared, const void *global)
{
    *(uint4 *)shared = given ? *(const uint4 *)global : make_uint4(0, 0, 0, 0);
}
/* Closes a group of copies. */
static __device__ inline void copy_commit() {}
/* Waits until at most N groups are open. */
template <int N> static __device__ inline void copy_wait() {}

/* Prefetches the 128 bytes around an address into the L2 cache. */
static __device__ inline void prefetch_l2(const void *) {}

/* Loads 16 bytes that are read once: they take no place in the L1 cache. It stays before wait_for_previous, where
 * ptxas moves a load of constant memory (ld.global.nc) behind it. */
static __device__ inline uint4 load_weights(const void *p)
{
    return *(const uint4 *)p;
}

/* Programmatic dependent launch, which begins with compute capability 9. start_next permits the next kernel of the
 * stream to begin once all blocks have come here; it does so at their end otherwise. A kernel launched by
 * cuda_launch_early begins so. Each of its threads calls wait_for_previous before it touches what another kernel writes
 * or reads: all kernels before are finished then, and their writes visible. */
static __device__ inline void start_next() {}
static __device__ inline void wait_for_previous() {}

/* Loads a number another block may be writing. Orders nothing: a fence must follow before that block's other writes are
 * read. */
static __device__ inline unsigned load_relaxed(const unsigned *p)
{
    return *(const volatile unsigned *)p;
}
/* The same, and what its writer, or those that added to it, wrote before is visible after it. */
static __device__ inline unsigned load_acquire(const unsigned *p)
{
    const unsigned x = load_relaxed(p);
    __threadfence();
    return x;
}

/* Words of 64 bits, a datum and behind it a number, that other blocks poll: a word is written at once, so a block that
 * sees the number sees the datum. They order no other accesses. `two` of them are 16 bytes: datum, number, datum,
 * number. */
static __device__ inline void store_word(uint2 *to, unsigned datum, unsigned number)
{
    *(volatile unsigned long long *)to = (unsigned long long)number << 32 | datum;
}
static __device__ inline void store_two_words(uint4 *to, unsigned datum, unsigned second, unsigned number)
{
    store_word((uint2 *)to, datum, number);
    store_word((uint2 *)to + 1, second, number);
}
static __device__ inline uint4 load_two_words(const uint4 *from)
{
    const unsigned long long a = ((const volatile unsigned long long *)from)[0];
    const unsigned long long b = ((const volatile unsigned long long *)from)[1];
    return make_uint4((unsigned)a, (unsigned)(a >> 32), (unsigned)b, (unsigned)(b >> 32));
}
/* A wide word has 14 bytes of data, and the number in the low half of w. It, too, is written and read at once: b128 is
 * a scalar type, of which libcu++ makes its atomic loads and stores of 16 bytes (NVIDIA/cccl#3440), though PTX's memory
 * model names no scalar above 64 bits. Elements of a vector may be torn from each other. tests/gpu/test_ptx.cu looks
 * for torn words. */
static __device__ inline void store_wide_word(uint4 *to, const uint4 &word)
{
    ((volatile unsigned long long *)to)[0] = (unsigned long long)word.y << 32 | word.x;
    ((volatile unsigned long long *)to)[1] = (unsigned long long)word.w << 32 | word.z;
}
static __device__ inline uint4 load_wide_word(const uint4 *from)
{
    return load_two_words(from);
}
/* Between two polls: lets other blocks run where they need it. */
static __device__ inline void poll_again()
{
    __nanosleep(20);
}

/* A grid barrier; all blocks must be resident. One thread of each block calls both functions, with __syncthreads()
 * before and after. grid_arrive adds 1 to *count; grid_wait waits until *count reaches `target`. Writes of the grid
 * before the barrier are visible after it.
 *
 * A wait of GRID_PATIENCE polls means that some blocks are not resident. The block then adds GRID_GAVE_UP to *count,
 * which is above all targets: from there on no block waits. */
static __device__ inline void grid_arrive(unsigned *count)
{
    __threadfence();
    atomicAdd(count, 1u);
}
static __device__ inline void grid_wait(unsigned *count, unsigned target)
{
    for (unsigned polls = 1; (int)(load_relaxed(count) - target) < 0; polls++) {
        __nanosleep(20);
        if (polls == GRID_PATIENCE) atomicOr(count, GRID_GAVE_UP);
    }
    __threadfence();
}

/* Clusters of blocks. cluster_rank is the block's number in its cluster. cluster_store writes a float4 or float2 to
 * block `rank`, at the address of `shared` in that block's shared memory. cluster_sync is a barrier of all threads of
 * the cluster; stores before it are visible after it. cluster_meet is one that orders no stores, without their fence:
 * all threads have come to it, and what they had read before they have. Below compute capability 9 each block is its
 * own cluster. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
static __device__ inline unsigned cluster_rank()
{
    return 0;
}
template <typename T> static __device__ inline void cluster_store(T *shared, unsigned, const T &x)
{
    *shared = x;
}
static __device__ inline void cluster_sync()
{
    __syncthreads();
}
static __device__ inline void cluster_meet()
{
    __syncthreads();
}
#else
static __device__ inline unsigned cluster_rank()
{
    return cooperative_groups::this_cluster().block_rank();
}
template <typename T> static __device__ inline void cluster_store(T *shared, unsigned rank, const T &x)
{
    *cooperative_groups::this_cluster().map_shared_rank(shared, rank) = x;
}
static __device__ inline void cluster_sync()
{
    cooperative_groups::this_cluster().sync();
}
static __device__ inline void cluster_meet()
{
    cooperative_groups::this_cluster().sync();
}
#endif

} // namespace plain

#ifdef MAR_CUDAHOST
namespace fast
{
using namespace plain;
template <typename T> static inline void mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    cudahost_mma<T>(d, a, b); /* same result as the twin, without its 32 shuffles */
}
/* These write at the wait, as late as the instructions may. */
static inline void copy16(void *shared, const void *global)
{
    cudahost_copy16(shared, global);
}
static inline void copy16_if(int given, void *shared, const void *global)
{
    if (given)
        cudahost_copy16(shared, global);
    else
        plain::copy16_if(0, shared, global);
}
static inline void copy_commit()
{
    cudahost_copy_commit();
}
template <int N> static inline void copy_wait()
{
    cudahost_copy_wait(N);
}
static inline void wait_for_previous()
{
    cudahost_wait_for_previous();
}
static inline void store_word(uint2 *to, unsigned datum, unsigned number)
{
    const cudahost_late_store late(to, sizeof *to);
    plain::store_word(to, datum, number);
}
static inline void store_two_words(uint4 *to, unsigned datum, unsigned second, unsigned number)
{
    store_word((uint2 *)to, datum, number);
    store_word((uint2 *)to + 1, second, number);
}
static inline void store_wide_word(uint4 *to, const uint4 &word)
{
    const cudahost_late_store late(to, sizeof *to);
    plain::store_wide_word(to, word);
}
/* Synchronises a team of `threads` threads of a block, whole warps; teams of a block are number 1, 2, ... CUDA C has no
 * such barrier, so it has no plain twin. */
static inline void team_sync(int team, int threads)
{
    cudahost_sync_team((unsigned)team, (unsigned)threads);
}
} // namespace fast
#else
namespace ptx
{
using namespace plain; /* what an architecture has no instruction for */

template <typename T> static __device__ inline void mma(float d[4], const uint32_t a[4], const uint32_t b[2]);
#define PTX_MMA(T, name)                                                                                               \
    template <> __device__ inline void mma<T>(float d[4], const uint32_t a[4], const uint32_t b[2])                    \
    {                                                                                                                  \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "      \
                     "{%8,%9}, {%0,%1,%2,%3};"                                                                         \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                              \
    }
PTX_MMA(bf16, "bf16")
PTX_MMA(f16, "f16")
#undef PTX_MMA

static __device__ inline void load_matrices(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}
static __device__ inline void load_matrices_transposed(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

static __device__ inline uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

static __device__ inline uint32_t mask_and_set(uint32_t x, uint32_t mask, uint32_t bits)
{
    uint32_t y;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
    return y;
}

static __device__ inline float exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ inline void copy16(void *shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(__cvta_generic_to_global(global))
                 : "memory");
}
static __device__ inline void copy16_if(int given, void *shared, const void *global)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(given ? 16 : 0)
                 : "memory");
}
static __device__ inline void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> static __device__ inline void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

static __device__ inline void prefetch_l2(const void *global)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(global)));
}

static __device__ inline uint4 load_weights(const void *p)
{
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(__cvta_generic_to_global(p)));
    return x;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
static __device__ inline void start_next()
{
    asm volatile("griddepcontrol.launch_dependents;");
}
static __device__ inline void wait_for_previous()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
#endif

static __device__ inline void grid_arrive(unsigned *count)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(__cvta_generic_to_global(count)) : "memory");
}
static __device__ inline unsigned load_relaxed(const unsigned *p)
{
    unsigned x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(__cvta_generic_to_global(p)) : "memory");
    return x;
}
static __device__ inline unsigned load_acquire(const unsigned *p)
{
    unsigned x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(__cvta_generic_to_global(p)) : "memory");
    return x;
}

static __device__ inline void store_word(uint2 *to, unsigned datum, unsigned number)
{
    asm volatile("{\n\t.reg .b64 word;\n\tmov.b64 word, {%1, %2};\n\tst.relaxed.gpu.global.b64 [%0], word;\n\t}" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(datum), "r"(number)
                 : "memory");
}
static __device__ inline void store_two_words(uint4 *to, unsigned datum, unsigned second, unsigned number)
{
    asm volatile("{\n\t.reg .b64 a, b;\n\tmov.b64 a, {%1, %3};\n\tmov.b64 b, {%2, %3};\n\t"
                 "st.relaxed.gpu.global.v2.b64 [%0], {a, b};\n\t}" ::"l"(__cvta_generic_to_global(to)),
                 "r"(datum), "r"(second), "r"(number)
                 : "memory");
}
static __device__ inline uint4 load_two_words(const uint4 *from)
{
    uint4 x;
    asm volatile("{\n\t.reg .b64 a, b;\n\tld.relaxed.gpu.global.v2.b64 {a, b}, [%4];\n\t"
                 "mov.b64 {%0, %1}, a;\n\tmov.b64 {%2, %3}, b;\n\t}"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return x;
}
static __device__ inline void store_wide_word(uint4 *to, const uint4 &word)
{
    asm volatile(
        "{\n\t.reg .b64 a, b;\n\t.reg .b128 word;\n\tmov.b64 a, {%1, %2};\n\tmov.b64 b, {%3, %4};\n\t"
        "mov.b128 word, {a, b};\n\tst.relaxed.gpu.global.b128 [%0], word;\n\t}" ::"l"(__cvta_generic_to_global(to)),
        "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w)
        : "memory");
}
static __device__ inline uint4 load_wide_word(const uint4 *from)
{
    uint4 x;
    asm volatile("{\n\t.reg .b64 a, b;\n\t.reg .b128 word;\n\tld.relaxed.gpu.global.b128 word, [%4];\n\t"
                 "mov.b128 {a, b}, word;\n\tmov.b64 {%0, %1}, a;\n\tmov.b64 {%2, %3}, b;\n\t}"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return x;
}
static __device__ inline void poll_again() {}

static __device__ inline void team_sync(int team, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(team), "r"(threads) : "memory");
}

/* An acquiring load empties the L1 cache, so the polling loads are relaxed, with a fence after the last. A kernel has
 * many waits: one copy keeps it in the instruction cache. */
static __device__ __noinline__ void grid_wait(unsigned *count, unsigned target)
{
    for (unsigned polls = 1; (int)(load_relaxed(count) - target) < 0; polls++)
        if (polls == GRID_PATIENCE) atomicOr(count, GRID_GAVE_UP);
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
static __device__ inline unsigned cluster_rank()
{
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
static __device__ inline void cluster_store(float4 *shared, unsigned rank, const float4 &x)
{
    asm volatile(
        "{\n\t.reg .u32 there;\n\t"
        "mapa.shared::cluster.u32 there, %0, %1;\n\t"
        "st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5};\n\t}" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
        "r"(rank), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
        : "memory");
}
static __device__ inline void cluster_store(float2 *shared, unsigned rank, const float2 &x)
{
    asm volatile("{\n\t.reg .u32 there;\n\t"
                 "mapa.shared::cluster.u32 there, %0, %1;\n\t"
                 "st.shared::cluster.v2.f32 [there], {%2, %3};\n\t}" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "r"(rank), "f"(x.x), "f"(x.y)
                 : "memory");
}
static __device__ inline void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release;\n\t" /* not .aligned: a warp's threads may have diverged */
                 "barrier.cluster.wait.acquire;" ::
                     : "memory");
}
static __device__ inline void cluster_meet()
{
    asm volatile("barrier.cluster.arrive.relaxed;\n\t"
                 "barrier.cluster.wait;" ::
                     : "memory");
}
#endif

} // namespace ptx
namespace fast = ptx;
#endif

#endif
