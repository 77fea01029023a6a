/* CUDA C++ on the CPU: the device functions of a kernel. Threads of a block are fibres (fibres.cpp). One runs at a
 * time, until it waits for others. Default arguments pass each wait its source line. Threads that meet at different
 * lines are reported. */
#ifndef CUDAHOST_DEVICE_H
#define CUDAHOST_DEVICE_H

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef MAR_CUDAHOST_TSAN /* ThreadSanitizer watches the program's threads; only one of these runs kernels at a time */
#define __global__ __attribute__((no_sanitize_thread))
#define __device__ __attribute__((no_sanitize_thread))
#else
#define __global__
#define __device__
#endif
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

/* --- vectors --------------------------------------------------------------------------------------------------- */

#define CUDAHOST_VECTORS(T, name)                                                                                      \
    struct alignas(8) name##2                                                                                          \
    {                                                                                                                  \
        T x, y;                                                                                                        \
    };                                                                                                                 \
    struct name##3                                                                                                     \
    {                                                                                                                  \
        T x, y, z;                                                                                                     \
    };                                                                                                                 \
    struct alignas(16) name##4                                                                                         \
    {                                                                                                                  \
        T x, y, z, w;                                                                                                  \
    };                                                                                                                 \
    static inline name##2 make_##name##2(T x, T y)                                                                     \
    {                                                                                                                  \
        return {x, y};                                                                                                 \
    }                                                                                                                  \
    static inline name##3 make_##name##3(T x, T y, T z)                                                                \
    {                                                                                                                  \
        return {x, y, z};                                                                                              \
    }                                                                                                                  \
    static inline name##4 make_##name##4(T x, T y, T z, T w)                                                           \
    {                                                                                                                  \
        return {x, y, z, w};                                                                                           \
    }
CUDAHOST_VECTORS(unsigned, uint)
CUDAHOST_VECTORS(float, float)
#undef CUDAHOST_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

/* --- position of a thread ---------------------------------------------------------------------------------------- */

struct cudahost_block;
/* The public part of a thread's state; fibres.h has the rest. */
struct cudahost_thread {
    uint3 index;
    struct cudahost_block *block;
    void *shared; /* shared memory of the block */
};
extern __thread cudahost_thread *cudahost_now; /* the running thread; NULL in host code */
extern uint3 threadIdx, blockIdx;              /* of the running thread */
extern dim3 blockDim, gridDim;

/* Returns the block's dynamic shared memory. It has exactly the launch's size, and is initialized with NaNs. */
static inline void *cudahost_shared()
{
    return cudahost_now->shared;
}

/* --- waiting for others ---------------------------------------------------------------------------------------- */

#define CUDAHOST_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

enum cudahost_wait {
    CUDAHOST_RUNS,
    CUDAHOST_SYNCTHREADS,
    CUDAHOST_SYNCTHREADS_OR,
    CUDAHOST_CLUSTER,
    CUDAHOST_SYNCWARP,
    CUDAHOST_SHUFFLE,
    CUDAHOST_VOTE,
    CUDAHOST_YIELDS,
    CUDAHOST_TEAM,
};
/* Waits for all threads of the block. Returns how many passed a nonzero `value`. */
int cudahost_sync_block(cudahost_wait kind, int value, const char *file, int line);
/* bar.sync of a part of the block's threads, number 1 to CUDAHOST_TEAMS - 1. */
enum { CUDAHOST_TEAMS = 16 };
void cudahost_sync_team(unsigned team, unsigned threads, CUDAHOST_HERE);
/* Waits for the lanes of mask. Returns the values they passed, by lane, valid until the thread waits again. */
const uint64_t *cudahost_sync_warp(cudahost_wait kind, unsigned mask, uint64_t value, const char *file, int line);
/* Returns the value passed by lane `source` of mask. */
uint64_t cudahost_shuffle(unsigned mask, uint64_t value, int source, const char *file, int line);
/* Computes plain::mma of kernels/cuda/ptx.h, to the bit, with two waits instead of its 32 shuffles. T is __nv_bfloat16
 * or __half. */
template <typename T> void cudahost_mma(float d[4], const uint32_t a[4], const uint32_t b[2], CUDAHOST_HERE);
/* cp.async of 16 bytes, its groups, and the wait until at most `open` groups are open: it writes the copies of the
 * others. Copies nobody waits for are an error. */
void cudahost_copy16(void *shared, const void *global, CUDAHOST_HERE);
void cudahost_copy_commit();
void cudahost_copy_wait(unsigned open);
/* Barriers of shared memory, copies of tiles and products of a warpgroup, as kernels/cuda/hopper.h has them. A tile
 * comes at once, or while somebody waits at a barrier (MAR_CUDAHOST_ORDER). A product is made at its wait. */
void cudahost_barrier_create(uint64_t *barrier, unsigned arrivals);
void cudahost_barriers_created();
void cudahost_barrier_arrive(uint64_t *barrier, unsigned bytes);
void cudahost_barrier_wait(uint64_t *barrier, unsigned parity, CUDAHOST_HERE);
void cudahost_tile_copy(void *shared, const struct CUtensorMap *map, int column, int row, uint64_t *barrier,
                        unsigned blocks);
enum cudahost_product { CUDAHOST_COLUMNS, CUDAHOST_ROWS }; /* B is the tile's rows turned into columns, or its rows */
void cudahost_multiply_later(cudahost_product kind, int n, float *d, const uint32_t *a, const void *x, const void *tile,
                             int k, int add);
void cudahost_multiply_begin();
void cudahost_multiply_end();
void cudahost_multiply_now(CUDAHOST_HERE);
void cudahost_tiles_written();
void cudahost_wait_for_previous(); /* griddepcontrol.wait: each thread of a launch that began early must call it */
void cudahost_yield(const char *file, int line);
extern unsigned cudahost_patience; /* polls (cudahost_give_up_after) */
void cudahost_sync_cluster(const char *file, int line);
unsigned cudahost_cluster_rank(), cudahost_cluster_blocks();
void *cudahost_cluster_map(const void *shared, unsigned rank, const char *file, int line);
[[noreturn]] void cudahost_trap(const char *file, int line);
/* A store of a word that other blocks poll, made during the object's life. With MAR_CUDAHOST_ORDER=shuffled half of the
 * words come later, in any order: at others' polls, and at the latest at a fence. */
struct cudahost_late_store {
    void *const to;
    const size_t bytes; /* up to 16 */
    unsigned char before[16];
    cudahost_late_store(void *p, size_t n);
    ~cudahost_late_store();
};
void cudahost_fence(); /* all words come */

static inline void __syncthreads(CUDAHOST_HERE)
{
    cudahost_sync_block(CUDAHOST_SYNCTHREADS, 0, file, line);
}
static inline int __syncthreads_or(int value, CUDAHOST_HERE)
{
    return cudahost_sync_block(CUDAHOST_SYNCTHREADS_OR, value, file, line) != 0;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, CUDAHOST_HERE)
{
    cudahost_sync_warp(CUDAHOST_SYNCWARP, mask, 0, file, line);
}
static inline void __nanosleep(unsigned, CUDAHOST_HERE)
{
    cudahost_yield(file, line);
}
static inline void __trap(CUDAHOST_HERE)
{
    cudahost_trap(file, line);
}
static inline void __threadfence()
{
    cudahost_fence();
}

static inline int cudahost_lane()
{
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    return (int)(thread % 32);
}
template <typename T>
static inline T cudahost_shuffle_of(unsigned mask, T value, int source, const char *file, int line)
{
    static_assert(sizeof(T) <= 8, "shuffles take up to 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, (void *)&value, sizeof(T));
    bits = cudahost_shuffle(mask, bits, source, file, line);
    memcpy((void *)&value, &bits, sizeof(T));
    return value;
}
template <typename T> static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUDAHOST_HERE)
{
    const int lane = cudahost_lane();
    return cudahost_shuffle_of(mask, value, (lane & -width) | (source & (width - 1)), file, line);
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, CUDAHOST_HERE)
{
    const int lane = cudahost_lane(), source = lane ^ bits;
    return cudahost_shuffle_of(mask, value, (source & -width) <= (lane & -width) ? source : lane, file, line);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDAHOST_HERE)
{
    const int lane = cudahost_lane(), source = lane - (int)delta;
    return cudahost_shuffle_of(mask, value, source >= (lane & -width) ? source : lane, file, line);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDAHOST_HERE)
{
    const int lane = cudahost_lane(), source = lane + (int)delta;
    return cudahost_shuffle_of(mask, value, source < (lane & -width) + width ? source : lane, file, line);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, CUDAHOST_HERE)
{
    const uint64_t *all = cudahost_sync_warp(CUDAHOST_VOTE, mask, predicate != 0, file, line);
    unsigned votes = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1 && all[i]) votes |= 1u << i;
    return votes;
}

/* --- atomics: not inline, as the check for races exempts them from each other ------------------------------------ */

#define CUDAHOST_ATOMICS(T)                                                                                            \
    T atomicAdd(T *p, T v);                                                                                            \
    T atomicMax(T *p, T v);                                                                                            \
    T atomicMin(T *p, T v);
CUDAHOST_ATOMICS(int)
CUDAHOST_ATOMICS(unsigned)
CUDAHOST_ATOMICS(unsigned long long)
#undef CUDAHOST_ATOMICS
float atomicAdd(float *p, float v);
int atomicSub(int *p, int v);
int atomicOr(int *p, int v);
unsigned atomicOr(unsigned *p, unsigned v);

/* --- loads, stores, numbers ------------------------------------------------------------------------------------ */

#define CUDAHOST_LOAD(name)                                                                                            \
    template <typename T> static inline T name(const T *p)                                                             \
    {                                                                                                                  \
        return *p;                                                                                                     \
    }
CUDAHOST_LOAD(__ldg)
CUDAHOST_LOAD(__ldcg)
CUDAHOST_LOAD(__ldcs)
#undef CUDAHOST_LOAD

template <typename To, typename From> static inline To cudahost_bits(From from)
{
    To to;
    static_assert(sizeof(to) == sizeof(from), "the same bits");
    memcpy(&to, &from, sizeof(to));
    return to;
}
#define CUDAHOST_BITS(name, To, From)                                                                                  \
    static inline To name(From x)                                                                                      \
    {                                                                                                                  \
        return cudahost_bits<To>(x);                                                                                   \
    }
CUDAHOST_BITS(__float_as_uint, unsigned, float)
CUDAHOST_BITS(__uint_as_float, float, unsigned)
#undef CUDAHOST_BITS

#define CUDAHOST_FN(T, name, arguments, result)                                                                        \
    static inline T name arguments                                                                                     \
    {                                                                                                                  \
        return result;                                                                                                 \
    }
CUDAHOST_FN(int, __popc, (unsigned x), __builtin_popcount(x))
CUDAHOST_FN(int, __ffs, (int x), __builtin_ffs(x))
CUDAHOST_FN(int, __clz, (int x), x ? __builtin_clz((unsigned)x) : 32)
CUDAHOST_FN(unsigned, __umulhi, (unsigned a, unsigned b), (unsigned)((uint64_t)a *b >> 32))
CUDAHOST_FN(float, rsqrtf, (float x), (float)(1 / sqrt((double)x)))
CUDAHOST_FN(double, rsqrt, (double x), 1 / sqrt(x))
CUDAHOST_FN(float, __fdividef, (float x, float y), x / y)
CUDAHOST_FN(float, __fdiv_rn, (float x, float y), x / y)
CUDAHOST_FN(float, __fadd_rn, (float x, float y), x + y)
CUDAHOST_FN(float, __fsub_rn, (float x, float y), x - y)
CUDAHOST_FN(float, __fmul_rn, (float x, float y), x *y)
CUDAHOST_FN(int, __float2int_rn, (float x), (int)rintf(x))
/* The C library has its own functions of these names. */
#define __expf(x) expf(x)
#define CUDAHOST_MINMAX(T)                                                                                             \
    CUDAHOST_FN(T, min, (T a, T b), b < a ? b : a)                                                                     \
    CUDAHOST_FN(T, max, (T a, T b), a < b ? b : a)
CUDAHOST_MINMAX(int)
CUDAHOST_MINMAX(unsigned)
CUDAHOST_MINMAX(long)
CUDAHOST_MINMAX(unsigned long)
CUDAHOST_MINMAX(long long)
CUDAHOST_MINMAX(unsigned long long)
#undef CUDAHOST_MINMAX
CUDAHOST_FN(unsigned, min, (unsigned a, int b), min(a, (unsigned)b))
CUDAHOST_FN(unsigned, min, (int a, unsigned b), min((unsigned)a, b))
CUDAHOST_FN(unsigned, max, (unsigned a, int b), max(a, (unsigned)b))
CUDAHOST_FN(unsigned, max, (int a, unsigned b), max((unsigned)a, b))
CUDAHOST_FN(float, min, (float a, float b), fminf(a, b))
CUDAHOST_FN(float, max, (float a, float b), fmaxf(a, b))
CUDAHOST_FN(double, min, (double a, double b), fmin(a, b))
CUDAHOST_FN(double, max, (double a, double b), fmax(a, b))
CUDAHOST_FN(long long, clock64, (), 0)
#undef CUDAHOST_FN

#endif
