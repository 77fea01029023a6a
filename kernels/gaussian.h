/* Verifying a continuous token: the ratio of two diagonal Gaussians, p the target's and q the draft's, and a draw from
 * the residual Norm[p - c q]+ without computing its integral. One source for host and device.
 *
 * The residual by rejection. With r = p/q, a candidate from p is kept with probability [1 - c/r]+ (continuous SD, Eq.
 * 10 and 11). That takes 1 / integral [p - c q]+ candidates on average: a small number if p and q are far apart, any
 * number if they are close. So after the first KERN_PLAIN_CANDIDATES the candidates come from a tilted Gaussian
 * g ~ p r^theta, which has more mass where the residual is. They are kept with probability r^-theta (1 - c/r) / m,
 * where m = c^-theta theta^theta / (1+theta)^(1+theta) is the largest value of the numerator. The law of what is kept
 * is the same. theta is chosen to need the fewest candidates on average.
 *
 * Random numbers. A candidate takes size/4 (rounded up) Philox blocks of normals and one block for its uniform, all of
 * purpose RESIDUAL. An address has 2^16 blocks; when they are used up, the key becomes seed + k * 0x9E3779B97F4A7C15,
 * k = 1, 2, ...
 *
 * Lanes. A warp of 32 lanes works on a token on a GPU, and one lane on a host. Lanes divide the channels of a sum. A
 * candidate depends on its number alone, so each lane tries another one. The kept candidate with the lowest number
 * wins, so the result is the same for any number of lanes. */
#ifndef KERNELS_GAUSSIAN_H
#define KERNELS_GAUSSIAN_H

#include "kernels/ops.h"

#include <math.h>

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)
#define KERN_LANE_FN static __device__ inline
enum { KERN_LANES = 32 };
KERN_LANE_FN int kern_lane(void)
{
    return (int)(threadIdx.x % 32);
}
/* The sum over the lanes, the same in each. */
KERN_LANE_FN double kern_lanes_sum(double x)
{
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
/* Orders memory: what any lane wrote before it is visible to every lane after it. */
KERN_LANE_FN void kern_lanes_meet(void)
{
    __syncwarp();
}
/* The first lane whose `yes` is not 0; KERN_LANES if there is none. */
KERN_LANE_FN int kern_first_lane(int yes)
{
    const unsigned votes = __ballot_sync(0xffffffffu, yes);
    return votes ? __ffs((int)votes) - 1 : KERN_LANES;
}
#else
#define KERN_LANE_FN static inline
enum { KERN_LANES = 1 };
KERN_LANE_FN int kern_lane(void)
{
    return 0;
}
KERN_LANE_FN double kern_lanes_sum(double x)
{
    return x;
}
KERN_LANE_FN void kern_lanes_meet(void) {}
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

/* Where a verification's random numbers come from: Philox addresses (purpose VERIFY or RESIDUAL, image, position,
 * step). */
typedef struct {
    uint64_t seed, image;
    uint32_t position, step;
} kern_address;

/* A uniform in (0, 1) of 52 bits from two words. */
KERN_FN double kern_uniform(const uint32_t words[2])
{
    const uint64_t word = (uint64_t)words[0] << 32 | words[1];
    return ((double)(word >> 12) + 0.5) * 0x1p-52;
}

/* The uniform at an address; `block` is the child's number where several share a position. */
KERN_FN double kern_uniform_at(const kern_address *a, kern_noise purpose, uint32_t block)
{
    uint32_t words[4];
    kern_random_words(a->seed, purpose, a->image, a->position, a->step, block, words);
    return kern_uniform(words);
}

/* --- the criterion ----------------------------------------------------------------------------------------- */

/* log p(x) - log q(x) of one channel. */
KERN_FN double kern_channel_log_ratio(const kern_gaussians *s, int i, double x)
{
    const double p = (x - s->mean_p[i]) * exp(-(double)s->log_std_p[i]);
    const double q = (x - s->mean_q[i]) * exp(-(double)s->log_std_q[i]);
    return (double)s->log_std_q[i] - s->log_std_p[i] + 0.5 * (q * q - p * p);
}

/* log p(x) - log q(x). */
KERN_LANE_FN double kern_gaussian_log_ratio(const kern_gaussians *s, const float *x)
{
    double sum = 0;
    for (int i = kern_lane(); i < s->size; i += KERN_LANES) sum += kern_channel_log_ratio(s, i, x[i]);
    return kern_lanes_sum(sum);
}

/* The log of a rule's acceptance probability of x before it is capped at 1; path = path_q - path_p. */
KERN_LANE_FN double kern_gaussian_log_accept(const kern_gaussian_rule *rule, const kern_gaussians *s, double path,
                                             const float *x)
{
    double a = kern_gaussian_log_ratio(s, x);
    if (rule->temper != 1) {
        double normalisers = 0;
        for (int i = kern_lane(); i < s->size; i += KERN_LANES)
            normalisers += (double)s->log_std_q[i] - s->log_std_p[i];
        normalisers = kern_lanes_sum(normalisers);
        a = (a - normalisers) / rule->temper + normalisers;
    }
    return rule->path_accept == 0 ? a : a + rule->path_accept * path;
}

/* log c of a rule's residual. */
KERN_FN double kern_gaussian_log_scale(const kern_gaussian_rule *rule, double path)
{
    return rule->path_scale == 0 ? 0 : rule->path_scale * path;
}

/* Whether p is a point. */
KERN_LANE_FN int kern_gaussian_is_point(const kern_gaussians *s)
{
    int spread = 0;
    for (int i = kern_lane(); i < s->size; i += KERN_LANES) spread |= s->log_std_p[i] != -INFINITY;
    return kern_first_lane(spread) == KERN_LANES;
}

/* --- the residual ------------------------------------------------------------------------------------------ */

enum { KERN_PLAIN_CANDIDATES = 16 };

/* Mean and standard deviation of channel i of g, and the mean of log r under g. Returns 0 if g has no finite variance.
 */
KERN_FN int kern_tilt(const kern_gaussians *s, int i, double theta, double *mean, double *std, double *log_r)
{
    const double precision_p = exp(-2 * (double)s->log_std_p[i]);
    const double excess = -precision_p * expm1(2 * ((double)s->log_std_p[i] - s->log_std_q[i])); /* 1/p^2 - 1/q^2 */
    const double precision_q = exp(-2 * (double)s->log_std_q[i]), precision = precision_p + theta * excess;
    if (!(precision > 0)) return 0;
    const double gap = (double)s->mean_p[i] - s->mean_q[i];
    const double shift = theta * gap * precision_q / precision; /* g's mean - mean_p */
    *mean = s->mean_p[i] + shift;
    *std = 1 / sqrt(precision);
    *log_r = (double)s->log_std_q[i] - s->log_std_p[i] - 0.5 * excess / precision +
             0.5 * (precision_q * (shift + gap) * (shift + gap) - precision_p * shift * shift);
    return 1;
}

/* The derivative in theta of the log of the expected number of candidates, up to its sign: increasing in theta. */
KERN_LANE_FN double kern_tilt_slope(const kern_gaussians *s, double theta, double log_c)
{
    double sum = kern_lane() == 0 ? -log_c - log1p(1 / theta) : 0;
    int finite = 1;
    for (int i = kern_lane(); i < s->size; i += KERN_LANES) {
        double mean, std, log_r = 0;
        finite &= kern_tilt(s, i, theta, &mean, &std, &log_r);
        sum += log_r;
    }
    sum = kern_lanes_sum(sum);
    return kern_first_lane(!finite) < KERN_LANES ? INFINITY : sum;
}

/* log of (integral of p r^theta) * m(theta), an upper bound of the residual's mass. */
KERN_LANE_FN double kern_log_mass_bound(const kern_gaussians *s, double theta, double log_c)
{
    double sum = kern_lane() == 0 ? -theta * log_c - theta * log1p(1 / theta) - log1p(theta) : 0;
    for (int i = kern_lane(); i < s->size; i += KERN_LANES) {
        double mean = 0, std = 0, log_r;
        kern_tilt(s, i, theta, &mean, &std, &log_r);
        const double p = (mean - s->mean_p[i]) * exp(-(double)s->log_std_p[i]);
        const double q = (mean - s->mean_q[i]) * exp(-(double)s->log_std_q[i]);
        sum += theta * ((double)s->log_std_q[i] - s->log_std_p[i] + 0.5 * q * q) - 0.5 * (1 + theta) * p * p +
               log(std) - s->log_std_p[i];
    }
    return kern_lanes_sum(sum);
}

/* The best theta, by bisection on its logarithm. Returns 0 if the residual is empty, because r never reaches c. A theta
 * above 10^12 would only magnify rounding errors of log r, so it counts as empty, too. */
KERN_LANE_FN double kern_best_tilt(const kern_gaussians *s, double log_c)
{
    double low = -40, high = 27.6;
    if (!(kern_tilt_slope(s, exp(high), log_c) > 0)) return 0;
    for (int i = 0; i < 60; i++) {
        const double middle = 0.5 * (low + high);
        if (kern_tilt_slope(s, exp(middle), log_c) > 0)
            high = middle;
        else
            low = middle;
    }
    return exp(low);
}

/* Whether p and q have a ratio everywhere: no NaN, no infinity, standard deviations that a double can square. */
KERN_LANE_FN int kern_gaussians_proper(const kern_gaussians *s)
{
    int proper = 1;
    for (int i = kern_lane(); i < s->size; i += KERN_LANES)
        proper &= isfinite(s->mean_p[i]) && isfinite(s->mean_q[i]) && fabsf(s->log_std_p[i]) < 300 &&
                  fabsf(s->log_std_q[i]) < 300;
    return kern_first_lane(!proper) == KERN_LANES;
}

/* Number of Philox blocks for the normals of a candidate: one for four channels. */
KERN_FN int kern_channel_blocks(const kern_gaussians *s)
{
    return (s->size + 3) / 4;
}

/* The words of Philox block b of candidate n; the last block is the uniform's. */
KERN_FN void kern_candidate_words(const kern_gaussians *s, const kern_address *a, uint64_t n, int b, uint32_t words[4])
{
    const uint64_t block = n * ((uint64_t)kern_channel_blocks(s) + 1) + (uint64_t)b;
    const uint64_t seed = a->seed + (block >> 16) * 0x9E3779B97F4A7C15u;
    kern_random_words(seed, KERN_NOISE_RESIDUAL, a->image, a->position, a->step, (uint32_t)(block & 0xffff), words);
}

/* Draws channels 4b..4b+3 of candidate n from g, or from p if theta is 0. Returns how many of them exist. */
KERN_FN int kern_candidate_block(const kern_gaussians *s, double theta, const kern_address *a, uint64_t n, int b,
                                 double value[4])
{
    const int first = 4 * b, count = s->size - first < 4 ? s->size - first : 4;
    uint32_t words[4];
    float normal[4];
    kern_candidate_words(s, a, n, b, words);
    kern_normal4(words, normal);
    for (int j = 0; j < count; j++) {
        double mean = s->mean_p[first + j], std = 0, log_r;
        if (theta > 0)
            kern_tilt(s, first + j, theta, &mean, &std, &log_r);
        else
            std = exp((double)s->log_std_p[first + j]);
        value[j] = mean + std * normal[j];
    }
    return count;
}

/* Whether candidate n is kept; log_m is the log of m c^theta. The ratio is taken before the candidate is rounded to
 * floats: where the laws are narrower than the spacing of floats, all rounded candidates are equal. An overflow keeps
 * the candidate, which ends the search: there is no law to draw from. */
KERN_FN int kern_candidate_kept(const kern_gaussians *s, double theta, double log_m, double log_c,
                                const kern_address *a, uint64_t n)
{
    const int blocks = kern_channel_blocks(s);
    double log_ratio = 0;
    for (int b = 0; b < blocks; b++) {
        double value[4];
        const int count = kern_candidate_block(s, theta, a, n, b, value);
        for (int j = 0; j < count; j++) log_ratio += kern_channel_log_ratio(s, 4 * b + j, value[j]);
    }
    uint32_t words[4];
    kern_candidate_words(s, a, n, blocks, words);
    const double log_u = log(kern_uniform(words)), d = log_c - log_ratio; /* log c/r */
    if (isnan(d)) return theta > 0;
    return d < 0 && log_u < (theta > 0 ? theta * d + log1p(-exp(d)) - log_m : log1p(-exp(d)));
}

/* Writes candidate n to x; returns the number of candidates tried. */
KERN_LANE_FN long kern_take_candidate(const kern_gaussians *s, double theta, const kern_address *a, long n, float *x)
{
    kern_lanes_meet(); /* x may be the draft, which every lane has read parts of */
    for (int b = kern_lane(); b < kern_channel_blocks(s); b += KERN_LANES) {
        double value[4];
        const int count = kern_candidate_block(s, theta, a, (uint64_t)n, b, value);
        for (int j = 0; j < count; j++) x[4 * b + j] = (float)value[j];
    }
    return n + 1;
}

/* Draws x [size] from Norm[p - c q]+. Returns the number of candidates tried.
 *
 * With c > 1 the residual can have next to no mass. Below a mass of 1e-6 the replacement is a draw from p. With c <= 1
 * there is no such limit: the mass is the probability of the rejection, if the criterion has the same c. */
KERN_LANE_FN long kern_gaussian_residual(const kern_gaussians *s, double log_c, const kern_address *a, float *x)
{
    const double log_mass_floor = -13.8;
    const int lane = kern_lane();
    for (long n = 0; n < KERN_PLAIN_CANDIDATES; n += KERN_LANES) {
        const int tried = n + lane < KERN_PLAIN_CANDIDATES;
        const int kept = kern_first_lane(tried && kern_candidate_kept(s, 0, 0, log_c, a, (uint64_t)(n + lane)));
        if (kept < KERN_LANES) return kern_take_candidate(s, 0, a, n + kept, x);
    }
    const double theta = kern_gaussians_proper(s) ? kern_best_tilt(s, log_c) : 0;
    if (theta == 0 || (log_c > 0 && kern_log_mass_bound(s, theta, log_c) < log_mass_floor))
        return kern_take_candidate(s, 0, a, KERN_PLAIN_CANDIDATES - 1, x); /* from p */
    const double log_m = -theta * log1p(1 / theta) - log1p(theta);
    for (long n = KERN_PLAIN_CANDIDATES;; n += KERN_LANES) {
        const int kept = kern_first_lane(kern_candidate_kept(s, theta, log_m, log_c, a, (uint64_t)(n + lane)));
        if (kept < KERN_LANES) return kern_take_candidate(s, theta, a, n + kept, x);
    }
}

/* --- the verdict ------------------------------------------------------------------------------------------- */

/* Decides whether a draft is kept, with probability min(1, exp(log_f)). A NaN rejects. */
KERN_FN int kern_gaussian_keeps(double log_f, const kern_address *a)
{
    return log_f >= 0 || log(kern_uniform_at(a, KERN_NOISE_VERIFY, 0)) < log_f;
}

/* Keeps a draft with probability min(1, exp(log_f)), or replaces it by a draw x [size] from Norm[p - c q]+. x is not
 * written if the draft is kept. Where p is a point, the draft is kept if it is that point. A NaN rejects, so the
 * replacement shows it. Returns whether the draft is replaced; *tries counts the candidates. */
KERN_LANE_FN int kern_gaussian_settle(const kern_gaussians *s, double log_f, double log_c, const kern_address *a,
                                      const float *draft, float *x, long *tries)
{
    *tries = 0;
    if (kern_gaussian_is_point(s)) {
        int other = 0;
        for (int i = kern_lane(); i < s->size; i += KERN_LANES) other |= draft[i] != s->mean_p[i];
        if (kern_first_lane(other) == KERN_LANES) return 0;
        for (int i = kern_lane(); i < s->size; i += KERN_LANES) x[i] = s->mean_p[i];
        return 1;
    }
    if (kern_gaussian_keeps(log_f, a)) return 0;
    *tries = kern_gaussian_residual(s, log_c, a, x);
    return 1;
}

/* Verifies row r of a job; the caller fills first_replaced. Returns whether the draft is replaced. */
KERN_LANE_FN int kern_verify_row(const kern_verify_job *job, int r)
{
    const size_t at = (size_t)r * (size_t)job->channels;
    const kern_gaussians s = {job->channels, job->mean_p + at, job->mean_q + at, job->log_std_p + at,
                              job->log_std_q + at};
    const kern_address a = {job->seed, job->image[r], (uint32_t)job->position[r], job->step};
    const double path = job->path_p ? job->path_q[r] - job->path_p[r] : 0;
    const float *draft = job->draft + at;
    float *x = job->x + at;
    long tries;
    const int replaced = kern_gaussian_settle(&s, kern_gaussian_log_accept(&job->rule, &s, path, draft),
                                              kern_gaussian_log_scale(&job->rule, path), &a, draft, x, &tries);
    for (int i = kern_lane(); !replaced && i < s.size; i += KERN_LANES) x[i] = draft[i];
    if (kern_lane() == 0) {
        job->replaced[r] = replaced;
        job->tries[r] = (int)tries;
    }
    return replaced;
}

#endif
