/* Continuous tokens: the ratio of two diagonal Gaussians, and the residual Norm[p - c q]+ without an integral.
 *
 * With r = p/q a candidate from p is kept with probability [1 - c/r]+ (continuous SD, Eq. 10 and 11). That takes
 * 1 / integral [p - c q]+ candidates on average: few if p and q are far apart, any number if they are close. So after
 * PLAIN of them the candidates come from a tilted Gaussian g ~ p r^theta instead, which leans to where the residual
 * is, and are kept with probability r^-theta (1 - c/r) / m, where m = c^-theta theta^theta / (1+theta)^(1+theta) is
 * the largest value of the numerator. The law is the same; theta is chosen to need the fewest candidates.
 *
 * Normals and uniforms come from purpose RESIDUAL, size/4 blocks (rounded up) of normals and one for the uniform per
 * candidate. When the 2^16 blocks of an address are used up, the next key is seed + k * 0x9E3779B97F4A7C15, k = 1, 2,
 * ... */
#include "specdec/laws.h"

enum { PLAIN = 16 };

/* A residual with c > 1 is not what a rejection left over, and can have next to no mass: nothing that p would ever
 * draw. Below this mass the replacement is a draw from p. With c <= 1 there is no such limit:
 * where the criterion is that of c, the mass is the probability of the rejection. */
static const double log_mass_floor = -13.8; /* log 1e-6 */

static double channel_log_ratio(const spec_site *s, int i, double x)
{
    const double p = (x - s->mean_p[i]) * exp(-(double)s->log_std_p[i]);
    const double q = (x - s->mean_q[i]) * exp(-(double)s->log_std_q[i]);
    return (double)s->log_std_q[i] - s->log_std_p[i] + 0.5 * (q * q - p * p);
}

double spec_gaussian_log_ratio(const spec_site *s, const float *x)
{
    double sum = 0;
    for (int i = 0; i < s->size; i++) sum += channel_log_ratio(s, i, x[i]);
    return sum;
}

int spec_gaussian_is_point(const spec_site *s)
{
    int i = 0;
    while (i < s->size && s->log_std_p[i] == -INFINITY) i++;
    return i == s->size;
}

/* Mean and standard deviation of channel i of g, and the mean of log r there. 0 if g has no finite spread. */
static int tilt(const spec_site *s, int i, double theta, double *mean, double *std, double *log_r)
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
static double slope(const spec_site *s, double theta, double log_c)
{
    double sum = -log_c - log1p(1 / theta);
    for (int i = 0; i < s->size; i++) {
        double mean, std, log_r;
        if (!tilt(s, i, theta, &mean, &std, &log_r)) return INFINITY;
        sum += log_r;
    }
    return sum;
}

/* log of (integral of p r^theta) * m(theta), an upper bound of the residual's mass. */
static double log_mass_bound(const spec_site *s, double theta, double log_c)
{
    double sum = -theta * log_c - theta * log1p(1 / theta) - log1p(theta);
    for (int i = 0; i < s->size; i++) {
        double mean, std, log_r;
        tilt(s, i, theta, &mean, &std, &log_r);
        const double p = (mean - s->mean_p[i]) * exp(-(double)s->log_std_p[i]);
        const double q = (mean - s->mean_q[i]) * exp(-(double)s->log_std_q[i]);
        sum += theta * ((double)s->log_std_q[i] - s->log_std_p[i] + 0.5 * q * q) - 0.5 * (1 + theta) * p * p +
               log(std) - s->log_std_p[i];
    }
    return sum;
}

/* The best theta, by bisection on its logarithm; 0 if there is none: r never reaches c, and the residual is empty. A
 * theta of 10^12 would magnify differences of log r that are its rounding: empty, too. */
static double best_theta(const spec_site *s, double log_c)
{
    double low = -40, high = 27.6;
    if (!(slope(s, exp(high), log_c) > 0)) return 0;
    for (int i = 0; i < 60; i++) {
        const double middle = 0.5 * (low + high);
        if (slope(s, exp(middle), log_c) > 0)
            high = middle;
        else
            low = middle;
    }
    return exp(low);
}

/* Block b of an address, counted on over as many keys as it takes. */
static void residual_words(const spec_address *a, uint64_t b, uint32_t words[4])
{
    const uint64_t seed = a->seed + (b >> 16) * 0x9E3779B97F4A7C15u;
    kern_random_words(seed, KERN_NOISE_RESIDUAL, a->image, a->position, a->step, (uint32_t)(b & 0xffff), words);
}

/* Candidate number n from g (theta 0: p) into x, and its log p/q before x is rounded: where the laws are narrower than
 * the spacing of floats all candidates look alike. Returns the log of its uniform. */
static double candidate(const spec_site *s, double theta, const spec_address *a, uint64_t n, float *x,
                        double *log_ratio)
{
    const uint64_t blocks = (uint64_t)(s->size + 3) / 4;
    uint32_t words[4];
    float normal[4];
    *log_ratio = 0;
    for (int i = 0; i < s->size; i++) {
        double mean = s->mean_p[i], std = 0, log_r;
        if (i % 4 == 0) {
            residual_words(a, n * (blocks + 1) + (uint64_t)i / 4, words);
            kern_normal4(words, normal);
        }
        if (theta > 0)
            tilt(s, i, theta, &mean, &std, &log_r);
        else
            std = exp((double)s->log_std_p[i]);
        const double value = mean + std * normal[i % 4];
        *log_ratio += channel_log_ratio(s, i, value);
        x[i] = (float)value;
    }
    residual_words(a, n * (blocks + 1) + blocks, words);
    return log(spec_uniform(words));
}

/* Laws with a ratio everywhere: no NaN, no infinity, standard deviations that a double can square. */
static int proper(const spec_site *s)
{
    for (int i = 0; i < s->size; i++)
        if (!isfinite(s->mean_p[i]) || !isfinite(s->mean_q[i]) || !(fabsf(s->log_std_p[i]) < 300) ||
            !(fabsf(s->log_std_q[i]) < 300))
            return 0;
    return 1;
}

long spec_gaussian_residual(const spec_site *s, double log_c, const spec_address *a, float *x)
{
    double log_ratio;
    long n = 0;
    while (n < PLAIN) {
        const double log_u = candidate(s, 0, a, (uint64_t)n++, x, &log_ratio);
        const double d = log_c - log_ratio; /* log c/r */
        if (d < 0 && log_u < log1p(-exp(d))) return n;
    }
    const double theta = proper(s) ? best_theta(s, log_c) : 0;
    if (theta == 0 || (log_c > 0 && log_mass_bound(s, theta, log_c) < log_mass_floor)) return n; /* x is from p */
    const double log_m = -theta * log1p(1 / theta) - log1p(theta);                               /* of m c^theta */
    for (;;) {
        const double log_u = candidate(s, theta, a, (uint64_t)n++, x, &log_ratio);
        const double d = log_c - log_ratio;
        if (d < 0 && log_u < theta * d + log1p(-exp(d)) - log_m) return n;
        if (isnan(d)) return n; /* overflow: no law to draw from */
    }
}
