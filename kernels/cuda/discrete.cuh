/* What the kernels on laws of discrete tokens are made of: a block works on a row of up to some hundred thousand
 * tokens. Its threads have the tokens threadIdx.x, threadIdx.x + blockDim.x, ...; where the order of tokens
 * counts, each warp has a part of the row that lies together. All threads of the block call these functions together
 * and get the same result. They begin with a barrier: they see what the threads have written before.
 *
 * Sums are in double, in another order than the CPU's: a draw may be another token only where its uniform and a sum
 * agree to about the 15th digit. */
#ifndef KERNELS_CUDA_DISCRETE_CUH
#define KERNELS_CUDA_DISCRETE_CUH

#include "kernels/cuda/cuda.h"

extern "C" {
#include "kernels/discrete.h"
}

enum {
    DISCRETE_THREADS = 1024,
    DISCRETE_WARPS = DISCRETE_THREADS / 32
}; /* at most; as many warps as a warp has lanes */

/* Threads of a block for rows of this size: each has 16 tokens, or all the block can have. */
static inline unsigned discrete_threads(int size)
{
    const int warps = (size + 511) / 512;
    return 32 * (unsigned)(warps < 2 ? 2 : warps < DISCRETE_WARPS ? warps : DISCRETE_WARPS);
}

/* A block's shared memory. */
typedef struct {
    double part[DISCRETE_WARPS]; /* one number of each warp */
    double before;
    int at, passes;
} discrete_scratch;

/* exp(x), 0 below exp(-87), as on the CPU. */
static __device__ inline float discrete_exp(float x)
{
    return x < -87 ? 0 : expf(x);
}

/* Hands lane w of each warp what warp w has; `none` if there is no such warp. */
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

/* The largest number; NaNs do not count. */
static __device__ inline float warp_max(float x)
{
    for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}
static __device__ inline float discrete_max(float x, discrete_scratch *s)
{
    return warp_max((float)discrete_share((double)warp_max(x), -INFINITY, s));
}

/* The sums of lanes 0 .. the caller's. */
static __device__ inline double discrete_running_sum(double x)
{
    for (int i = 1; i < 32; i *= 2) {
        const double lower = __shfl_up_sync(0xffffffffu, x, (unsigned)i);
        if ((int)threadIdx.x % 32 >= i) x += lower;
    }
    return x;
}

/* Where a running sum over a row passes a limit. */
typedef struct {
    int at;        /* the entry; if none does, the last one with a weight, or -1 */
    int passes;    /* 1: it does */
    double before; /* the sum in front of that entry; if none passes, the whole sum */
} discrete_found;

/* What a sum must do to pass: exceed the limit, at an entry with a weight; or not be less than it. */
enum { DISCRETE_EXCEEDS, DISCRETE_REACHES };

template <int RULE> static __device__ inline int discrete_passes(double sum, double weight, double limit)
{
    return RULE == DISCRETE_EXCEEDS ? sum > limit && weight > 0 : !(sum < limit);
}

/* The first lane of `votes` that has a 1; the last. */
static __device__ inline int discrete_first(unsigned votes)
{
    return __ffs((int)votes) - 1;
}
static __device__ inline int discrete_last(unsigned votes)
{
    return 31 - __clz((int)votes);
}

/* A warp's search of entries first .. end - 1, in front of which the sum is `before`. */
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
    if (RULE == DISCRETE_REACHES) f.at = end, f.passes = 1; /* the part's sum had reached it, up to rounding */
    return f;
}

/* Searches entries 0 .. n - 1 with weights weight(i). The limit is limit * (the sum of all) with `relative`; if that
 * sum is not positive, at is -1 then. */
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
    const double sum = discrete_share(cuda_warp_sum(mine), 0, s); /* of warp number `lane` */
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

/* Floats as whole numbers in their order, and back; -0 is 0. */
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
