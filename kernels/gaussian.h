/* Verification of a continuous token: the ratio of two diagonal Gaussians, p the target's and q the draft's, and the
 * acceptance probability. kernels/residual.h draws the replacement of a rejected token. One source for host and device.
 *
 * Lanes: a warp of 32 lanes works on a token on a GPU, a single lane on a host. Lanes divide the channels of a sum. */
#ifndef KERNELS_GAUSSIAN_H
#define KERNELS_GAUSSIAN_H

#include "kernels/ops.h"

#include <math.h>

/* KERN_ROLLED precedes a loop that a GPU's compiler must not unroll. KERN_LANE_FN: a function that all lanes of a warp
 * call together. KERN_ONCE_FN: a function that each lane calls for itself. A GPU kernel has a single copy of it,
 * because double arithmetic is much code there. */
#if defined(__CUDACC__) || defined(MAR_CUDAHOST)
#define KERN_LANE_FN static __device__ inline
#ifdef __CUDACC__
#define KERN_ONCE_FN static __device__ __noinline__
#define KERN_ROLLED  _Pragma("unroll 1")
#else
#define KERN_ONCE_FN static inline
#define KERN_ROLLED
#endif
enum { KERN_LANES = 32 };
KERN_LANE_FN int kern_lane(void)
{
    return (int)(threadIdx.x % 32);
}
/* Returns the sum over the lanes, the same in each. */
KERN_ONCE_FN double kern_lanes_sum(double x)
{
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
/* Orders memory: writes of any lane before it are visible to every lane after it. */
KERN_LANE_FN void kern_lanes_sync(void)
{
    __syncwarp();
}
/* Does the same for a crew of `warps` warps; if more than one, they are the whole block. */
KERN_LANE_FN void kern_crew_sync(int warps)
{
    if (warps > 1)
        __syncthreads();
    else
        __syncwarp();
}
/* Returns the first lane whose `yes` is not 0; KERN_LANES if there is none. */
KERN_LANE_FN int kern_first_lane(int yes)
{
    const unsigned votes = __ballot_sync(0xffffffffu, yes);
    return votes ? __ffs((int)votes) - 1 : KERN_LANES;
}
#else
#define KERN_LANE_FN static inline
#define KERN_ONCE_FN static inline
#define KERN_ROLLED
enum { KERN_LANES = 1 };
KERN_LANE_FN int kern_lane(void)
{
    return 0;
}
KERN_LANE_FN double kern_lanes_sum(double x)
{
    return x;
}
KERN_LANE_FN void kern_lanes_sync(void) {}
KERN_LANE_FN void kern_crew_sync(int warps)
{
    (void)warps;
}
KERN_LANE_FN int kern_first_lane(int yes)
{
    return yes ? 0 : KERN_LANES;
}
#endif

typedef struct {
    int size;                     /* channels */
    const float *mean_p, *mean_q; /* [size] */
    const float *log_std_p;       /* [size] log standard deviations; all -INFINITY if p is a point */
    const float *log_std_q;       /* [size] log standard deviations; finite unless p is a point */
} kern_gaussians;

KERN_ONCE_FN double kern_exp(double x)
{
    return exp(x);
}
KERN_ONCE_FN double kern_expm1(double x)
{
    return expm1(x);
}
KERN_ONCE_FN double kern_log(double x)
{
    return log(x);
}
KERN_ONCE_FN double kern_log1p(double x)
{
    return log1p(x);
}
KERN_ONCE_FN double kern_divide(double x, double y)
{
    return x / y;
}

/* Source of a verification's random numbers: Philox addresses (purpose VERIFY or RESIDUAL, image, position, step). */
typedef struct {
    uint64_t seed, image;
    uint32_t position, step;
} kern_address;

/* Returns a uniform in (0, 1) of 52 bits from two words. */
KERN_FN double kern_uniform(const uint32_t words[2])
{
    const uint64_t word = (uint64_t)words[0] << 32 | words[1];
    return ((double)(word >> 12) + 0.5) * 0x1p-52;
}

/* Computes the words at an address with another seed. */
KERN_ONCE_FN void kern_address_words(const kern_address *a, uint64_t seed, kern_noise purpose, uint32_t block,
                                     uint32_t words[4])
{
    kern_random_words(seed, purpose, a->image, a->position, a->step, block, words);
}

/* Returns the uniform at an address; `block` is the child's number where several share a position. */
KERN_LANE_FN double kern_uniform_at(const kern_address *a, kern_noise purpose, uint32_t block)
{
    uint32_t words[4];
    kern_address_words(a, a->seed, purpose, block, words);
    return kern_uniform(words);
}

/* --- the criterion ----------------------------------------------------------------------------------------- */

/* Returns log p(x) - log q(x) of one channel. */
KERN_LANE_FN double kern_channel_log_ratio(const kern_gaussians *s, int i, double x)
{
    const double p = (x - s->mean_p[i]) * kern_exp(-(double)s->log_std_p[i]);
    const double q = (x - s->mean_q[i]) * kern_exp(-(double)s->log_std_q[i]);
    return (double)s->log_std_q[i] - s->log_std_p[i] + 0.5 * (q * q - p * p);
}

/* Returns log p(x) - log q(x). */
KERN_LANE_FN double kern_gaussian_log_ratio(const kern_gaussians *s, const float *x)
{
    double sum = 0;
    KERN_ROLLED
    for (int i = kern_lane(); i < s->size; i += KERN_LANES) sum += kern_channel_log_ratio(s, i, x[i]);
    return kern_lanes_sum(sum);
}

/* Returns the log of a rule's acceptance probability of x before it is capped at 1; path = path_q - path_p. */
KERN_LANE_FN double kern_gaussian_log_accept(const kern_gaussian_rule *rule, const kern_gaussians *s, double path,
                                             const float *x)
{
    double a = kern_gaussian_log_ratio(s, x);
    if (rule->temper != 1) {
        double normalisers = 0;
        KERN_ROLLED
        for (int i = kern_lane(); i < s->size; i += KERN_LANES)
            normalisers += (double)s->log_std_q[i] - s->log_std_p[i];
        normalisers = kern_lanes_sum(normalisers);
        a = kern_divide(a - normalisers, rule->temper) + normalisers;
    }
    return rule->path_accept == 0 ? a : a + rule->path_accept * path;
}

/* Returns 1 if a rule accepts with min(1, p/q) and draws from Norm[p - q]+. */
KERN_FN int kern_gaussian_rule_is_exact(const kern_gaussian_rule *rule)
{
    return rule->temper == 1 && rule->path_accept == 0 && rule->path_scale == 0;
}

/* Returns log c of a rule's residual. */
KERN_FN double kern_gaussian_log_scale(const kern_gaussian_rule *rule, double path)
{
    return rule->path_scale == 0 ? 0 : rule->path_scale * path;
}

/* Returns 1 if p is a point. */
KERN_LANE_FN int kern_gaussian_is_point(const kern_gaussians *s)
{
    int spread = 0;
    for (int i = kern_lane(); i < s->size; i += KERN_LANES) spread |= s->log_std_p[i] != -INFINITY;
    return kern_first_lane(spread) == KERN_LANES;
}

#endif
