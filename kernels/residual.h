/* The replacement of a rejected draft: a draw from the residual Norm[p - c q]+ of two Gaussians (kernels/gaussian.h)
 * without its integral. One source for host and device.
 *
 * The mirror image. Let z = (x - mean_q) / std_q be the noise of the draft x, and H the reflection in the hyperplane
 * orthogonal to the channels' gaps (mean_p - mean_q) / std_q. The map T x = mean_p + std_p H z carries q to p. With r =
 * p/q, a draft that the exact rule rejects has density q [1 - r]+. So y = T x has density s(y) = p(y) [1 - r(x)]+. The
 * residual is t(y) = p(y) [1 - 1/r(y)]+. Both have the same mass, the rejection probability.
 *
 * With equal deviations r(T x) r(x) = 1, so s = t, and y is the draw (reflection coupling: Bou-Rabee, Eberle and
 * Zimmer, 2020; De Bortoli et al., 2025). Otherwise y is kept with probability a min(1, t/s). Else a candidate from the
 * residual is kept with probability 1 - a min(1, s/t). Together that is a min(s, t) + (t - a min(s, t)) = t. The mean
 * number of such candidates is 1 for any a, and at most 1/(1-a) once y is refused. Hence a < 1.
 *
 * y keeps the draft's noise but for one direction. So it stays near the draft, and work done at the draft stays useful.
 * A rule that is not exact to p has other masses, hence no mirror image.
 *
 * Rejection sampling. A candidate from p is kept with probability [1 - c/r]+ (continuous SD, Eq. 10 and 11). That takes
 * 1 / integral [p - c q]+ candidates on average: few if p and q are far apart, unboundedly many if they are close. So
 * the candidates come from a tilted Gaussian g ~ p r^theta. It has more mass where the residual is. They are kept with
 * probability r^-theta (1 - c/r) / m, where m = c^-theta theta^theta / (1+theta)^(1+theta) is the maximum of the
 * numerator. Kept candidates have the same distribution. theta minimises the expected number of candidates.
 *
 * Random numbers. The mirror image's uniform is the second one of the verdict's block. A candidate takes size/4
 * (rounded up) Philox blocks of normals and one block for its two uniforms, all of purpose RESIDUAL. An address has
 * 2^16 blocks. When they are used up, the key becomes seed + k * 0x9E3779B97F4A7C15, k = 1, 2, ...
 *
 * Machine code. With this the persistent kernels just fit in a GPU's instruction cache (scripts/kernel_resources.sh).
 * So divisions are calls of kern_divide, and a square root is an exponential of half a logarithm.
 *
 * Lanes and crews. A candidate depends only on its number and theta, so each lane tries another one. A crew of several
 * warps tries more at a time. The kept candidate with the lowest number wins. theta comes from a finite set of exact
 * numbers, and the search ends at the same one on every route. The exception is a sum within its rounding error of 0.
 * So the same candidate wins for any number of lanes, up to rounding. Sums are added in the lanes' order, and
 * logarithms of a GPU and a host differ in their last bits. */
#ifndef KERNELS_RESIDUAL_H
#define KERNELS_RESIDUAL_H

#include "kernels/gaussian.h"

#include <string.h>

/* --- channels -------------------------------------------------------------------------------------------------- */

enum {
    KERN_KEPT_CHANNELS = 32, /* as many channels as the persistent kernels support */
};

/* A channel in units of p: x = mean_p + std_p z. With R = 1 + ratio, log r = -log R + ((R z + gap)^2 - z^2) / 2. ratio
 * and gap keep their digits where p and q are close. */
typedef struct {
    double ratio;   /* std_p / std_q - 1 */
    double inverse; /* std_q / std_p */
    double gap;     /* (mean_p - mean_q) / std_q */
} kern_channel;

/* Mean and standard deviation of z in a channel of g. */
typedef struct {
    double center, spread;
} kern_tilted_channel;

/* Mirror image of a rejected draft. */
typedef struct {
    int exists;   /* 0 without a draft, or where a number overflows or is a NaN */
    double scale; /* H z = z - scale (gap z) gap */
    double shift; /* scale (gap z), z of the draft */
    double far;   /* sum of ((mean_p - mean_q) / std_p)^2 */
} kern_mirror;

/* A residual and its precomputed values, shared by all candidates and by the lanes of a warp or the warps of a crew.
 * Channels after the first KERN_KEPT_CHANNELS are recomputed at each use. */
typedef struct {
    kern_gaussians pq;
    const float *draft; /* [size] rejected by an exact rule; NULL: no mirror image */
    kern_mirror mirror;
    int equal; /* 1 if the standard deviations of p and q are equal */
    double log_c;
    double log_scale; /* sum of log std_q/std_p */
    double theta;     /* tilt of g; 0: g is p */
    double log_m;     /* log of m c^theta */
    int empty;        /* 1 if no tilt reaches the residual, or the residual is empty */
    int evaluations;  /* evaluations of the slope in the search for theta */
    kern_channel channel[KERN_KEPT_CHANNELS];
    kern_tilted_channel tilted[KERN_KEPT_CHANNELS];
} kern_residual;

KERN_ONCE_FN kern_channel kern_channel_compare(const kern_gaussians *s, int i)
{
    const double ratio = kern_expm1((double)s->log_std_p[i] - s->log_std_q[i]);
    const kern_channel channel = {ratio, kern_exp((double)s->log_std_q[i] - s->log_std_p[i]),
                                  ((double)s->mean_p[i] - s->mean_q[i]) * kern_exp(-(double)s->log_std_q[i])};
    return channel;
}

/* Returns g's channel. g must have a finite variance there. */
KERN_ONCE_FN kern_tilted_channel kern_channel_tilt(const kern_channel *channel, double theta)
{
    const double precision = 1 - theta * channel->ratio * (channel->ratio + 2); /* precision of z under g */
    kern_tilted_channel tilted = {kern_divide(theta * (1 + channel->ratio) * channel->gap, precision),
                                  kern_exp(-0.5 * kern_log(precision))};
    if (theta == 0) tilted.center = 0, tilted.spread = 1; /* even where the channel has a NaN */
    return tilted;
}

KERN_ONCE_FN kern_channel kern_residual_channel(const kern_residual *r, int i)
{
    return i < KERN_KEPT_CHANNELS ? r->channel[i] : kern_channel_compare(&r->pq, i);
}

KERN_ONCE_FN kern_tilted_channel kern_residual_tilted(const kern_residual *r, int i)
{
    if (i < KERN_KEPT_CHANNELS) return r->tilted[i];
    const kern_channel channel = kern_residual_channel(r, i);
    return kern_channel_tilt(&channel, r->theta);
}

/* --- theta ------------------------------------------------------------------------------------------------- */

/* Grid of theta: floats with KERN_TILT_BITS bits after the point, from 2^-58 to 2^40. A theta above 2^40 would only
 * magnify rounding errors of log r. Number k is 2^(k / 2^KERN_TILT_BITS), with the logarithm linear between powers of
 * 2. */
enum {
    KERN_TILT_BITS = 10,
    KERN_TILT_LEAST = -58 * (1 << KERN_TILT_BITS),
    KERN_TILT_MOST = 40 * (1 << KERN_TILT_BITS),
    KERN_TILT_STEPS = 12, /* maximum number of Newton steps */
    /* Maximum evaluations of the slope: Newton steps, and one for each halving of the grid. */
    KERN_TILT_EVALUATIONS = KERN_TILT_STEPS + 17,
};

KERN_FN double kern_tilt_theta(int k)
{
    const uint64_t bits = (uint64_t)(k + 1023 * (1 << KERN_TILT_BITS)) << (52 - KERN_TILT_BITS);
    double theta;
    memcpy(&theta, &bits, sizeof theta);
    return theta;
}

/* Returns the number of the largest grid value not above a positive theta. */
KERN_FN int kern_tilt_number(double theta)
{
    uint64_t bits;
    memcpy(&bits, &theta, sizeof bits);
    return (int)(bits >> (52 - KERN_TILT_BITS)) - 1023 * (1 << KERN_TILT_BITS);
}

/* Mean and variance of log r under g. With h = 1 - R^2, k = gap^2 and D = 1 + theta h, the precision of z under g, a
 * channel's mean is -log R + (k (1 + theta (2 + theta h)) / D - h) / (2 D). Its derivative in theta is the variance,
 * h^2 / (2 D^2) + k R^2 / D^3. The mean is infinite where g has no finite variance. */
typedef struct {
    double mean, variance;
} kern_moments;

KERN_ONCE_FN kern_moments kern_tilt_moments(const kern_residual *r, double theta)
{
    kern_moments m = {0, 0};
    int finite = 1;
    KERN_ROLLED
    for (int i = kern_lane(); i < r->pq.size; i += KERN_LANES) {
        const kern_channel channel = kern_residual_channel(r, i);
        const double h = -channel.ratio * (channel.ratio + 2), k = channel.gap * channel.gap;
        const double precision = 1 + theta * h, spread = kern_divide(1, precision);
        finite &= precision > 0;
        m.mean += spread * (k * (1 + theta * (2 + theta * h)) * spread - h);
        m.variance += spread * spread * (0.5 * h * h + k * (1 - h) * spread);
    }
    m.mean = 0.5 * kern_lanes_sum(m.mean) + r->log_scale;
    m.variance = kern_lanes_sum(m.variance);
    if (kern_first_lane(!finite) < KERN_LANES) m.mean = INFINITY;
    return m;
}

/* Returns the start of the search: the best theta if the mean of log r under g were linear in theta. */
KERN_LANE_FN double kern_tilt_guess(const kern_residual *r)
{
    const kern_moments m = kern_tilt_moments(r, 0);
    const double mean = m.mean - r->log_c;
    if (mean > 1) return kern_divide(1, kern_expm1(mean < 700 ? mean : 700));
    const double square = mean * mean + 4 * m.variance;
    const double root = kern_exp(0.5 * kern_log(square)); /* solves variance theta^2 + mean theta = 1 */
    return mean >= 0 ? kern_divide(2, mean + root) : kern_divide(root - mean, 2 * m.variance);
}

/* Returns the best theta's number: the largest theta with a slope of at most 0. The slope is the mean of log r under g
 * less log c + log(1 + 1/theta). Up to its sign it is the derivative in theta of the log expected number of candidates;
 * it increases in theta. KERN_TILT_LEAST stands for all smaller numbers. KERN_TILT_MOST stands for an empty residual,
 * where r never reaches c.
 *
 * The slope is at most 0 at `low`, or `low` is the smallest number. It is above 0 at `high`, or `high` is past the
 * largest. Each evaluation lies strictly between them and replaces one of them, so the search ends. The slope
 * increases, so every route ends at the same number. Steps are Newton's in log theta, clamped between the two. A
 * bisection replaces a step that is not a positive number, and all steps after the first KERN_TILT_STEPS. So
 * KERN_TILT_EVALUATIONS suffice. theta is below the best by less than 2^-KERN_TILT_BITS of it. */
KERN_LANE_FN int kern_best_tilt(kern_residual *r)
{
    int low = KERN_TILT_LEAST, high = KERN_TILT_MOST + 1, n = 0;
    double guess = kern_tilt_guess(r);
    KERN_ROLLED
    for (; high - low > 1; n++) {
        int k = low + (high - low) / 2;
        if (n < KERN_TILT_STEPS && guess > 0) {
            k = kern_tilt_number(guess);
            k = k <= low ? low + 1 : k >= high ? high - 1 : k;
        }
        const double theta = kern_tilt_theta(k);
        const kern_moments m = kern_tilt_moments(r, theta);
        const double slope = m.mean - r->log_c - kern_log1p(kern_divide(1, theta));
        if (slope > 0)
            high = k;
        else
            low = k;
        const double step = kern_divide(-slope, theta * m.variance + kern_divide(1, 1 + theta)); /* step in log theta */
        guess = step > 0 ? theta * (1 + step) : kern_divide(theta, 1 - step);
    }
    if (kern_lane() == 0) r->evaluations = n;
    return low;
}

/* Returns log of (integral of p r^theta) * m(theta), an upper bound of the residual's mass. */
KERN_LANE_FN double kern_log_mass_bound(const kern_residual *r, double theta)
{
    double sum = 0;
    KERN_ROLLED
    for (int i = kern_lane(); i < r->pq.size; i += KERN_LANES) {
        const kern_channel channel = kern_residual_channel(r, i);
        const double h = -channel.ratio * (channel.ratio + 2), k = channel.gap * channel.gap;
        sum += kern_divide(k * theta * (1 + theta), 1 + theta * h) - kern_log1p(theta * h);
    }
    return 0.5 * kern_lanes_sum(sum) + theta * (r->log_scale - r->log_c - kern_log1p(kern_divide(1, theta))) -
           kern_log1p(theta);
}

/* Returns 1 if p and q have a ratio everywhere: no NaN, no infinity, standard deviations whose squares a double
 * holds. */
KERN_LANE_FN int kern_gaussians_proper(const kern_gaussians *s)
{
    int proper = 1;
    KERN_ROLLED
    for (int i = kern_lane(); i < s->size; i += KERN_LANES)
        proper &= isfinite(s->mean_p[i]) && isfinite(s->mean_q[i]) && fabsf(s->log_std_p[i]) < 300 &&
                  fabsf(s->log_std_q[i]) < 300;
    return kern_first_lane(!proper) == KERN_LANES;
}

/* Chooses g; called by a whole warp.
 *
 * With c > 1 the residual can have almost no mass. A mass below 1e-6 counts as empty. With c <= 1 there is no such
 * limit: the mass is the rejection probability, if the criterion has the same c. */
KERN_LANE_FN void kern_residual_tilt(kern_residual *r)
{
    const double log_mass_floor = -13.8;
    const int k = kern_gaussians_proper(&r->pq) ? kern_best_tilt(r) : KERN_TILT_MOST;
    double theta = k == KERN_TILT_LEAST ? 0 : kern_tilt_theta(k);
    const int empty =
        k == KERN_TILT_MOST || (theta > 0 && r->log_c > 0 && kern_log_mass_bound(r, theta) < log_mass_floor);
    if (empty) theta = 0; /* the draw is one from p */
    KERN_ROLLED
    for (int i = kern_lane(); i < r->pq.size && i < KERN_KEPT_CHANNELS; i += KERN_LANES)
        r->tilted[i] = kern_channel_tilt(&r->channel[i], theta);
    if (kern_lane() == 0) {
        r->theta = theta;
        r->log_m = theta > 0 ? -theta * kern_log1p(kern_divide(1, theta)) - kern_log1p(theta) : 0;
        r->empty = empty;
    }
    kern_lanes_sync();
}

/* --- the mirror image -------------------------------------------------------------------------------------------- */

/* Sums over the channels of a y = mean_p + std_p z. */
typedef struct {
    double log_r;   /* twice its log r, less log_scale */
    double product; /* of gap and z */
    /* of x, T x = y: H z = z - shift gap gives twice its log r as squares + (1 + shift) (2 cross - (1 + shift) far) */
    double squares, cross;
} kern_mirror_sums;

/* Adds channel i with this z. */
KERN_ONCE_FN void kern_mirror_add(const kern_residual *r, int i, double z, kern_mirror_sums *sums)
{
    const kern_channel channel = kern_residual_channel(r, i);
    const double less = channel.ratio * z + channel.gap, narrow = channel.inverse * z;
    sums->log_r += less * (less + 2 * z);
    sums->product += channel.gap * z;
    sums->squares += channel.ratio * (channel.ratio + 2) * narrow * narrow;
    sums->cross += channel.gap * channel.inverse * narrow;
}

/* Returns 1 with probability a min(s, t) / s at a y, or where it is a candidate from the residual a min(s, t) / t. A
 * refused mirror image takes at most 64 such candidates on average. */
KERN_ONCE_FN int kern_mirror_draws(const kern_residual *r, const kern_mirror *m, const kern_mirror_sums *sums,
                                   int candidate, double uniform)
{
    const double most = 1 - 0x1p-6;
    const double log_r_y = r->log_scale + 0.5 * sums->log_r, reach = 1 + m->scale * sums->product;
    const double log_r_x = r->log_scale + 0.5 * (sums->squares + reach * (2 * sums->cross - reach * m->far));
    const double t = log_r_y > 0 ? -kern_expm1(-log_r_y) : 0, s = log_r_x < 0 ? -kern_expm1(log_r_x) : 0;
    return uniform * (candidate ? t : s) < most * (s < t ? s : t);
}

/* Returns z of channel i of the mirror image; of the draft itself while m->shift is 0. */
KERN_ONCE_FN double kern_mirror_noise(const kern_residual *r, const kern_mirror *m, int i)
{
    const double z = ((double)r->draft[i] - r->pq.mean_q[i]) * kern_exp(-(double)r->pq.log_std_q[i]);
    return z - m->shift * kern_residual_channel(r, i).gap;
}

/* Makes the mirror image of the draft; called by a whole warp. */
KERN_LANE_FN kern_mirror kern_mirror_make(const kern_residual *r)
{
    kern_mirror m = {0, 0, 0, 0};
    if (!r->draft) return m;
    double squares = 0, product = 0, far = 0;
    KERN_ROLLED
    for (int i = kern_lane(); i < r->pq.size; i += KERN_LANES) {
        const kern_channel channel = kern_residual_channel(r, i);
        squares += channel.gap * channel.gap;
        product += channel.gap * kern_mirror_noise(r, &m, i);
        far += channel.gap * channel.inverse * channel.gap * channel.inverse;
    }
    squares = kern_lanes_sum(squares);
    m.far = kern_lanes_sum(far);
    m.scale = squares > 0 ? kern_divide(2, squares) : 0;
    m.shift = m.scale * kern_lanes_sum(product);
    m.exists = isfinite(m.far + m.scale + m.shift) && (squares > 0 || !r->equal);
    return m;
}

/* Returns 1 if the mirror image is kept; called by a whole warp. */
KERN_LANE_FN int kern_mirror_kept(const kern_residual *r, const kern_mirror *m, const kern_address *a)
{
    if (!m->exists || r->equal) return m->exists;
    kern_mirror_sums sums = {0, 0, 0, 0};
    KERN_ROLLED
    for (int i = kern_lane(); i < r->pq.size; i += KERN_LANES) kern_mirror_add(r, i, kern_mirror_noise(r, m, i), &sums);
    sums.log_r = kern_lanes_sum(sums.log_r);
    sums.product = kern_lanes_sum(sums.product);
    sums.squares = kern_lanes_sum(sums.squares);
    sums.cross = kern_lanes_sum(sums.cross);
    uint32_t words[4];
    kern_address_words(a, a->seed, KERN_NOISE_VERIFY, 0, words);
    return kern_mirror_draws(r, m, &sums, 0, kern_uniform(words + 2));
}

/* --- candidates -------------------------------------------------------------------------------------------- */

/* Returns the number of Philox blocks for the normals of a candidate: one for four channels. */
KERN_FN int kern_channel_blocks(const kern_gaussians *s)
{
    return (s->size + 3) / 4;
}

/* Computes the words of Philox block b of candidate n; the last block is the uniforms'. */
KERN_ONCE_FN void kern_candidate_words(const kern_gaussians *s, const kern_address *a, uint64_t n, int b,
                                       uint32_t words[4])
{
    const uint64_t block = n * ((uint64_t)kern_channel_blocks(s) + 1) + (uint64_t)b;
    const uint64_t seed = a->seed + (block >> 16) * 0x9E3779B97F4A7C15u;
    kern_address_words(a, seed, KERN_NOISE_RESIDUAL, (uint32_t)(block & 0xffff), words);
}

/* Draws z of channels 4b..4b+3 of candidate n. Returns how many of them exist. */
KERN_ONCE_FN int kern_candidate_block(const kern_residual *r, const kern_address *a, uint64_t n, int b, double z[4])
{
    const int first = 4 * b, count = r->pq.size - first < 4 ? r->pq.size - first : 4;
    uint32_t words[4];
    float normal[4];
    kern_candidate_words(&r->pq, a, n, b, words);
    kern_normal4(words, normal);
    KERN_ROLLED
    for (int j = 0; j < count; j++) {
        const kern_tilted_channel channel = kern_residual_tilted(r, first + j);
        z[j] = channel.center + channel.spread * normal[j];
    }
    return count;
}

/* Returns 1 if candidate n is kept. The ratio is taken before the candidate is rounded to floats: where the Gaussians
 * are narrower than the spacing of floats, all rounded candidates are equal. A NaN keeps a candidate and so ends the
 * search: no distribution is left to draw from. */
KERN_ONCE_FN int kern_candidate_kept(const kern_residual *r, const kern_address *a, uint64_t n)
{
    const int blocks = kern_channel_blocks(&r->pq);
    kern_mirror_sums sums = {0, 0, 0, 0};
    KERN_ROLLED
    for (int b = 0; b < blocks; b++) {
        double z[4];
        const int count = kern_candidate_block(r, a, n, b, z);
        KERN_ROLLED
        for (int j = 0; j < count; j++) kern_mirror_add(r, 4 * b + j, z[j], &sums);
    }
    uint32_t words[4];
    kern_candidate_words(&r->pq, a, n, blocks, words);
    const double d = r->log_c - r->log_scale - 0.5 * sums.log_r; /* log c/r */
    if (isnan(d)) return 1;
    if (!(d < 0)) return 0;
    const double tilt = r->theta > 0 ? r->theta * d - r->log_m : 0; /* d may be -INFINITY */
    if (!(kern_uniform(words) < -kern_exp(tilt) * kern_expm1(d))) return 0;
    return !r->mirror.exists || !kern_mirror_draws(r, &r->mirror, &sums, 1, kern_uniform(words + 2));
}

/* --- a draw ------------------------------------------------------------------------------------------------ */

/* Warps that draw from a residual together; 1 on a host. */
typedef struct {
    int warp, warps; /* own number, and number of warps: all of the block, or 1 */
    int *lowest;     /* memory [2][warps] of the crew; NULL for one warp */
} kern_crew;

/* Numbers beside the candidates': the mirror image, which comes before them, and none. */
enum { KERN_MIRROR_IMAGE = -1, KERN_NO_CANDIDATE = 0x7fffffff };

/* Returns the lowest of the warps' numbers. Each warp calls it equally often; `call` counts from 0. */
KERN_LANE_FN int kern_crew_lowest(const kern_crew *crew, long call, int number)
{
    if (crew->warps == 1) return number;
    int *lowest = crew->lowest + call % 2 * crew->warps; /* of the other half, warps may still be reading */
    if (kern_lane() == 0) lowest[crew->warp] = number;
    kern_crew_sync(crew->warps);
    KERN_ROLLED
    for (int i = 0; i < crew->warps; i++) number = lowest[i] < number ? lowest[i] : number;
    return number;
}

/* A draw from Norm[p - c q]+ takes three calls by all lanes of the crew: begin, try and end. draft [size] is the one
 * that an exact rule rejected, or NULL. */
KERN_LANE_FN void kern_residual_begin(const kern_crew *crew, kern_residual *r, const kern_gaussians *s, double log_c,
                                      const float *draft)
{
    KERN_ROLLED
    for (int i = crew->warp * KERN_LANES + kern_lane(); i < s->size && i < KERN_KEPT_CHANNELS;
         i += crew->warps * KERN_LANES)
        r->channel[i] = kern_channel_compare(s, i);
    if (crew->warp == 0) {
        double log_scale = 0;
        int differ = 0;
        KERN_ROLLED
        for (int i = kern_lane(); i < s->size; i += KERN_LANES) {
            log_scale += (double)s->log_std_q[i] - s->log_std_p[i];
            differ |= s->log_std_q[i] != s->log_std_p[i];
        }
        log_scale = kern_lanes_sum(log_scale);
        const int equal = kern_first_lane(differ) == KERN_LANES;
        if (kern_lane() == 0) {
            r->pq = *s;
            r->draft = draft;
            r->mirror.exists = 0;
            r->equal = equal;
            r->log_c = log_c;
            r->log_scale = log_scale;
            r->theta = r->log_m = 0;
            r->empty = r->evaluations = 0;
        }
    }
    kern_crew_sync(crew->warps);
}

/* Makes the mirror image, or else chooses g, in the last warp. The other warps may do other work before or after.
 * Returns the argument of `end`. */
KERN_LANE_FN int kern_residual_try(const kern_crew *crew, kern_residual *r, const kern_address *a)
{
    if (crew->warp < crew->warps - 1) return KERN_NO_CANDIDATE;
    const kern_mirror mirror = kern_mirror_make(r);
    if (kern_lane() == 0) r->mirror = mirror;
    kern_lanes_sync();
    const int kept = kern_mirror_kept(r, &mirror, a);
    kern_lanes_sync(); /* all lanes have read the draft, which `end` may overwrite */
    if (kept) return KERN_MIRROR_IMAGE;
    kern_residual_tilt(r);
    return KERN_NO_CANDIDATE;
}

/* Writes candidate n, or the mirror image, to x, which may be the draft's memory. */
KERN_LANE_FN void kern_residual_take(const kern_crew *crew, const kern_residual *r, const kern_address *a, long n,
                                     float *x)
{
    KERN_ROLLED
    for (int b = crew->warp * KERN_LANES + kern_lane(); b < kern_channel_blocks(&r->pq);
         b += crew->warps * KERN_LANES) {
        double z[4];
        if (n != KERN_MIRROR_IMAGE) (void)kern_candidate_block(r, a, (uint64_t)n, b, z);
        KERN_ROLLED
        for (int i = 4 * b; i < 4 * b + 4 && i < r->pq.size; i++) {
            const double noise = n == KERN_MIRROR_IMAGE ? kern_mirror_noise(r, &r->mirror, i) : z[i % 4];
            x[i] = (float)(r->pq.mean_p[i] + kern_exp((double)r->pq.log_std_p[i]) * noise);
        }
    }
}

/* Writes the draw to x [size]; x may be memory the crew read before `begin`, and the draft. Draws from p if the
 * residual is empty. Returns the number of candidates tried, the mirror image included. x is complete, and r reusable,
 * after the crew's next barrier. */
KERN_LANE_FN long kern_residual_end(const kern_crew *crew, const kern_residual *r, const kern_address *a, int kept,
                                    float *x)
{
    const int lanes = crew->warps * KERN_LANES, me = crew->warp * KERN_LANES + kern_lane();
    kept = kern_crew_lowest(crew, 0, kept);
    if (kept == KERN_NO_CANDIDATE && r->empty) kept = 0;
    long first = 0; /* first number of the group of candidates that `kept` belongs to */
    for (long call = 1; kept == KERN_NO_CANDIDATE; call++) {
        const int lane = kern_first_lane(kern_candidate_kept(r, a, (uint64_t)(first + me)));
        kept = kern_crew_lowest(crew, call, lane < KERN_LANES ? me - kern_lane() + lane : KERN_NO_CANDIDATE);
        if (kept == KERN_NO_CANDIDATE) first += lanes;
    }
    kern_residual_take(crew, r, a, first + kept, x);
    return r->mirror.exists + first + kept + 1;
}

/* Makes the draw by one warp, or a host. */
KERN_LANE_FN long kern_gaussian_residual(kern_residual *r, const kern_gaussians *s, double log_c, const float *draft,
                                         const kern_address *a, float *x)
{
    const kern_crew alone = {0, 1, NULL};
    kern_residual_begin(&alone, r, s, log_c, draft);
    return kern_residual_end(&alone, r, a, kern_residual_try(&alone, r, a), x);
}

/* --- the verdict ------------------------------------------------------------------------------------------- */

/* Returns 1 if a draft is kept, with probability min(1, exp(log_f)). A NaN rejects. */
KERN_LANE_FN int kern_gaussian_accepts(double log_f, const kern_address *a)
{
    return log_f >= 0 || kern_log(kern_uniform_at(a, KERN_NOISE_VERIFY, 0)) < log_f;
}

/* Verifies a draft by a rule: keeps it, or writes a draw from Norm[p - c q]+ to x [size], which may be the draft's
 * memory. x is not written if the draft is kept. Where p is a point, the draft is kept if it equals that point. A NaN
 * rejects, so the replacement shows it. r is working memory. Returns 1 if the draft is replaced; *tries gets the number
 * of candidates. */
KERN_LANE_FN int kern_gaussian_verify(kern_residual *r, const kern_gaussian_rule *rule, const kern_gaussians *s,
                                      double path, const kern_address *a, const float *draft, float *x, long *tries)
{
    *tries = 0;
    if (kern_gaussian_is_point(s)) {
        int other = 0;
        for (int i = kern_lane(); i < s->size; i += KERN_LANES) other |= draft[i] != s->mean_p[i];
        if (kern_first_lane(other) == KERN_LANES) return 0;
        for (int i = kern_lane(); i < s->size; i += KERN_LANES) x[i] = s->mean_p[i];
        return 1;
    }
    if (kern_gaussian_accepts(kern_gaussian_log_accept(rule, s, path, draft), a)) return 0;
    *tries = kern_gaussian_residual(r, s, kern_gaussian_log_scale(rule, path),
                                    kern_gaussian_rule_is_exact(rule) ? draft : NULL, a, x);
    return 1;
}

/* Verifies row r of a job; the caller fills first_replaced. Returns 1 if the draft is replaced. */
KERN_LANE_FN int kern_verify_row(const kern_verify_job *job, int r, kern_residual *residual)
{
    const size_t at = (size_t)r * (size_t)job->channels;
    const kern_gaussians s = {job->channels, job->mean_p + at, job->mean_q + at, job->log_std_p + at,
                              job->log_std_q + at};
    const kern_address a = {job->seed[r], job->image[r], (uint32_t)job->position[r], job->step};
    const double path = job->path_p ? job->path_q[r] - job->path_p[r] : 0;
    const float *draft = job->draft + at;
    float *x = job->x + at;
    long tries;
    const int replaced = kern_gaussian_verify(residual, &job->rule, &s, path, &a, draft, x, &tries);
    for (int i = kern_lane(); !replaced && i < s.size; i += KERN_LANES) x[i] = draft[i];
    if (kern_lane() == 0) {
        job->replaced[r] = replaced;
        job->tries[r] = (int)tries;
    }
    return replaced;
}

#endif
