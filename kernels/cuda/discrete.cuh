/* Building blocks for kernels on distributions of discrete tokens: a block works on a row of up to some hundred
 * thousand tokens. Its threads have tokens threadIdx.x, threadIdx.x + blockDim.x, ... Where token order matters, each
 * warp has a contiguous part of the row. All threads of the block call these functions together and get the same
 * result. Each begins with a barrier, so it sees earlier writes of all threads.
 *
 * Sums are in double, in another order than the CPU's. A draw can differ from the CPU's only where its uniform and a
 * sum agree to about the 15th digit. */
#ifndef KERNELS_CUDA_DISCRETE_CUH
#define KERNELS_CUDA_DISCRETE_CUH

#include "kernels/cuda/cuda.h"

extern "C" {
#include "kernels/discrete.h"
}

enum {
    DISCRETE_THREADS = 1024,
    DISCRETE_WARPS = DISCRETE_THREADS / 32
}; /* maximum; as many warps as a warp has lanes */

/* Returns the threads of a block for rows of this size: 16 tokens each, or the block's maximum. */
static inline unsigned discrete_threads(int size)
{
    const int warps = (size + 511) / 512;
    return 32 * (unsigned)(warps < 2 ? 2 : warps < DISCRETE_WARPS ? warps : DISCRETE_WARPS);
}

/* A block's shared memory. */
typedef struct {
    double part[DISCRETE_WARPS]; /* one number per warp */
    double before;
    int at, passes;
} discrete_scratch;

/* Returns exp(x), 0 below exp(-87), as on the CPU. */
static __device__ inline float discrete_exp(float x)
{
    return x < -87 ? 0 : expf(x);
}

/* Gives lane w of each warp the value of warp w; `none` if there is no such warp. */
static __device__ inline double discrete_share(double x, double none, discrete_scratch *s)
{
    __syncthreads();
    if (threadIdx.x % 32 == 0) s->part[threadIdx.x / 32] = x;
    __syncthreads();
    return threadIdx.x % 32 < blockDim.x / 32 ? s->part[threadIdx.x % 32] : none;
}

static __device__ inline double discrete_sum(double x, discrete_scratch *s)
{
    return cuda_warp_sum(discrete_share(cuda_warp_sum(x), 0, s));
}

/* Returns the largest number, ignoring NaNs. */
static __device__ inline float discrete_max(float x, discrete_scratch *s)
{
    return cuda_warp_max((float)discrete_share((double)cuda_warp_max(x), -INFINITY, s));
}

/* Returns the sum of lanes 0 .. the caller's. */
static __device__ inline double discrete_running_sum(double x)
{
    for (int i = 1; i < 32; i *= 2) {
        const double lower = __shfl_up_sync(0xffffffffu, x, (unsigned)i);
        if ((int)threadIdx.x % 32 >= i) x += lower;
    }
    return x;
}

/* The point where a running sum over a row passes a limit. */
typedef struct {
    int at;        /* entry that passes; if none does, the last one with a weight, or -1 */
    int passes;    /* 1: some entry passes */
    double before; /* sum before that entry; if none passes, the whole sum */
} discrete_found;

/* Condition for passing: exceed the limit at an entry with a weight, or reach it. */
enum { DISCRETE_EXCEEDS, DISCRETE_REACHES };

template <int RULE> static __device__ inline int discrete_passes(double sum, double weight, double limit)
{
    return RULE == DISCRETE_EXCEEDS ? sum > limit && weight > 0 : !(sum < limit);
}

/* Return the first and the last lane with a 1 in `votes`. */
static __device__ inline int discrete_first(unsigned votes)
{
    return __ffs((int)votes) - 1;
}
static __device__ inline int discrete_last(unsigned votes)
{
    return 31 - __clz((int)votes);
}

/* Searches entries first .. end - 1 by one warp; the sum before them is `before`. */
template <int RULE, typename W>
static __device__ inline discrete_found discrete_find_in_part(const W &weight, int first, int end, double before,
                                                              double limit)
{
    const int lane = (int)threadIdx.x % 32;
    discrete_found f = {-1, 0, before};
    for (int from = first; from < end; from += 32) {
        const double w = from + lane < end ? (double)weight(from + lane) : 0;
        const double sum = discrete_running_sum(w);
        const unsigned weighty = __ballot_sync(0xffffffffu, w > 0);
        const unsigned passed =
            __ballot_sync(0xffffffffu, from + lane < end && discrete_passes<RULE>(f.before + sum, w, limit));
        if (passed) {
            const int at = discrete_first(passed);
            f.before += __shfl_sync(0xffffffffu, sum - w, at);
            f.at = from + at, f.passes = 1;
            return f;
        }
        f.before += __shfl_sync(0xffffffffu, sum, 31);
        if (weighty) f.at = from + discrete_last(weighty);
    }
    if (RULE == DISCRETE_REACHES) f.at = end, f.passes = 1; /* the part's sum had reached the limit, up to rounding */
    return f;
}

/* Searches entries 0 .. n - 1 with weights weight(i). With `relative` the limit is limit * (sum of all); at is -1 if
 * that sum is not positive. */
template <int RULE, typename W>
static __device__ inline discrete_found discrete_find(const W &weight, int n, double limit, int relative,
                                                      discrete_scratch *s)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int part = (n + (int)blockDim.x - 1) / (int)blockDim.x * 32, first = min(warp * part, n);
    const int end = min(first + part, n);
    double mine = 0;
    __syncthreads();
    for (int i = first + lane; i < end; i += 32) mine += (double)weight(i);
    const double sum = discrete_share(cuda_warp_sum(mine), 0, s); /* sum of warp number `lane` */
    const double until = discrete_running_sum(sum), total = __shfl_sync(0xffffffffu, until, 31);
    const double before = __shfl_up_sync(0xffffffffu, until, 1);
    if (relative) limit *= total;
    const unsigned passed = __ballot_sync(0xffffffffu, lane * part < n && discrete_passes<RULE>(until, sum, limit));
    const unsigned weighty = __ballot_sync(0xffffffffu, RULE == DISCRETE_EXCEEDS && sum > 0);
    if ((!passed && !weighty) || (relative && !(total > 0))) return {-1, 0, total};
    const int chosen = passed ? discrete_first(passed) : discrete_last(weighty);
    const double start = __shfl_sync(0xffffffffu, lane > 0 ? before : 0, chosen);
    if (warp == chosen) {
        const discrete_found f = discrete_find_in_part<RULE>(weight, first, end, start, limit);
        if (lane == 0) s->at = f.at, s->passes = f.passes, s->before = f.before;
    }
    __syncthreads();
    return {s->at, s->passes, s->before};
}

/* Map floats to integers in their order, and back; -0 maps to 0. */
static __device__ inline unsigned discrete_key(float x)
{
    const unsigned bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
static __device__ inline float discrete_of_key(unsigned key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

#endif
