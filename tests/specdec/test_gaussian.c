/* Continuous tokens: compares the verifier's output with the target's Gaussian, for distributions from identical to
 * disjoint. */
#include "specdec/verifier.h"
#include "tests/support/brief.h"
#include "tests/support/statistics.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 16, SOME = 24000, DRAWS = test_all && !test_brief ? 100000 : SOME, BLOCK = 8 };

/* --- the verifier on the host: kernels/gaussian.h verifies here as in every backend ------------------------------- */

/* The two distributions of a continuous token at one position: diagonal Gaussians. */
typedef struct {
    int size; /* channels */
    /* [size] means and log standard deviations. All of log_std_p is -INFINITY if p is a point; log_std_q is finite
     * unless p is a point. */
    const float *mean_p, *mean_q, *log_std_p, *log_std_q;
    /* Sum of (log|std_q| - log|std_p|) over the noisy steps above: the log of the paper's Sigma (Eq. 4). 0 if the
     * method does not use it. */
    double path_log_ratio;
} spec_site;

static kern_gaussians gaussians(const spec_site *s)
{
    return (kern_gaussians){s->size, s->mean_p, s->mean_q, s->log_std_p, s->log_std_q};
}

/* Returns log p(x) - log q(x) at a site. */
static double spec_log_ratio(const spec_site *s, const float *x)
{
    const kern_gaussians laws = gaussians(s);
    return kern_gaussian_log_ratio(&laws, x);
}

/* Verifies one continuous draft with a method that does not decide on paths. Writes a replacement to `replacement`
 * [size]. Returns SPEC_ACCEPTED or SPEC_REPLACED. *tries is the number of candidates drawn for the residual, without a
 * limit. It is 0 for an accepted draft.
 *   - If p is a point (temperature 0), a draft is accepted if it is that point.
 *   - If an inexact criterion leaves almost no residual, the replacement is a draw from p (kernels/gaussian.h).
 *   - If a distribution has a NaN, the draft is rejected, and the replacement shows the NaN. */
static spec_verdict spec_verify_one(const spec_method *m, const double *parameter, const spec_site *s,
                                    const float *draft, const kern_address *address, float *replacement, long *tries)
{
    const kern_gaussian_rule rule = m->rule(parameter);
    const kern_gaussians laws = gaussians(s);
    kern_residual residual;
    const int replaced =
        kern_gaussian_verify(&residual, &rule, &laws, s->path_log_ratio, address, draft, replacement, tries);
    return replaced ? SPEC_REPLACED : SPEC_ACCEPTED;
}

typedef struct {
    float mean_p[MOST], mean_q[MOST], log_std_p[MOST], log_std_q[MOST];
    spec_site site;
} laws;

/* Sets means `gap` standard deviations apart in all. In every other channel the draft's deviation is `ratio` times the
 * target's. */
static void set_laws(laws *l, int dim, double gap, double ratio, double path)
{
    for (int i = 0; i < dim; i++) {
        l->mean_p[i] = (float)(0.3 * i - 1);
        l->log_std_p[i] = (float)(0.1 * i - 2);
        l->mean_q[i] = (float)(l->mean_p[i] + gap / sqrt(dim) * exp((double)l->log_std_p[i]));
        l->log_std_q[i] = l->log_std_p[i] + (i % 2 ? 0 : (float)log(ratio));
    }
    l->site = (spec_site){.size = dim,
                          .mean_p = l->mean_p,
                          .mean_q = l->mean_q,
                          .log_std_p = l->log_std_p,
                          .log_std_q = l->log_std_q,
                          .path_log_ratio = path};
}

static void draw(const float *mean, const float *log_std, int dim, uint64_t seed, uint64_t image, uint32_t position,
                 float *x)
{
    float normal[4];
    for (int i = 0; i < dim; i++) {
        uint32_t w[4];
        if (i % 4 == 0) {
            kern_random_words(seed, KERN_NOISE_STEP, image, position, 3, (uint32_t)i / 4, w);
            kern_normal4(w, normal);
        }
        x[i] = (float)(mean[i] + exp((double)log_std[i]) * normal[i % 4]);
    }
}

typedef struct {
    double acceptance, tries, ks_p, energy_p; /* tries per rejection; ks_p is the least of all channels */
} result;

/* Verifies drafts one by one. Tests each channel against p by KS, and all against draws of p by energy distance. */
static result verify(const spec_method *m, const double *parameter, const laws *l, int draws)
{
    const int dim = l->site.size;
    float *x = malloc(sizeof *x * (size_t)draws * (size_t)dim),
          *plain = malloc(sizeof *x * (size_t)draws * (size_t)dim);
    float *channel = malloc(sizeof *x * (size_t)draws);
    result r = {.ks_p = 1};
    for (int n = 0; n < draws; n++) {
        float draft[MOST], *token = x + (size_t)n * (size_t)dim;
        const uint64_t image = (uint64_t)(n - n % BLOCK);
        const uint32_t position = (uint32_t)(n % BLOCK);
        const kern_address a = {3, image, position, 3};
        long tries;
        draw(l->mean_q, l->log_std_q, dim, 1, image, position, draft);
        draw(l->mean_p, l->log_std_p, dim, 2, image, position, plain + (size_t)n * (size_t)dim);
        if (spec_verify_one(m, parameter, &l->site, draft, &a, token, &tries) == SPEC_ACCEPTED) {
            memcpy(token, draft, (size_t)dim * sizeof *token);
            r.acceptance++;
        }
        r.tries += (double)tries;
    }
    r.tries /= fmax(1, draws - r.acceptance);
    r.acceptance /= draws;
    for (int i = 0; i < dim; i++) {
        for (int n = 0; n < draws; n++) channel[n] = x[(size_t)n * (size_t)dim + (size_t)i];
        r.ks_p = fmin(r.ks_p, stat_ks_normal_p(channel, draws, l->mean_p[i], exp((double)l->log_std_p[i])));
    }
    r.energy_p = stat_energy_p(x, plain, draws, dim, 0, 5);
    free(x), free(plain), free(channel);
    return r;
}

/* Returns whether the tests reject a sample. A correct sample fails KS once in 10^5 and energy distance once in 100. */
static int differs(const result *r)
{
    return r->ks_p < 1e-5 || r->energy_p < 0.015;
}

static const struct {
    double gap, ratio;
} cases[] = {{0, 1}, {0.02, 1}, {0.5, 0.8}, {1, 1.5}, {8, 1}};
enum { CASES = sizeof cases / sizeof *cases };

/* Returns the acceptance at dimension 1: integral min(p, q), by midpoints. */
static double overlap(const laws *l)
{
    double sum = 0;
    for (double x = -10; x < 10; x += 1e-3) { /* in standard deviations of p */
        const double ratio = exp((double)l->log_std_p[0] - l->log_std_q[0]);
        const double gap = (l->mean_q[0] - l->mean_p[0]) * exp(-(double)l->log_std_p[0]), z = (x - gap) * ratio;
        sum += fmin(exp(-0.5 * x * x), ratio * exp(-0.5 * z * z)) * 1e-3;
    }
    return sum / sqrt(2 * 3.14159265358979323846);
}

/* 15 cases. With other seeds about one run in seven would have a false alarm of the energy distance. */
TEST_CASE(conditional_is_exact)
{
    static const int dims[] = {1, 4, 16};
    for (int d = 0; d < 3; d++)
        for (int c = 0; c < CASES; c++) {
            laws l;
            set_laws(&l, dims[d], cases[c].gap, cases[c].ratio, 1.5); /* the path's factor must not matter */
            const result r = verify(spec_method_find("conditional"), NULL, &l, DRAWS);
            if (differs(&r))
                fail_msg("dim %d, gap %g: KS p %g, energy p %g", dims[d], cases[c].gap, r.ks_p, r.energy_p);
            if (d == 0 && !(fabs(r.acceptance - overlap(&l)) < 2.5 / sqrt(DRAWS))) /* 5 sigma at most */
                fail_msg("gap %g: acceptance %g, expected %g", cases[c].gap, r.acceptance, overlap(&l));
            assert_true(r.tries < 25);
        }
}

/* Planted faults, for a path of PATH. */
#define PATH 0.3

static kern_gaussian_rule swapped(const double *parameter)
{
    (void)parameter;
    return (kern_gaussian_rule){.temper = -1};
}

static kern_gaussian_rule no_residual(const double *parameter)
{
    (void)parameter;
    return (kern_gaussian_rule){.temper = 1, .path_scale = -INFINITY};
}

static kern_gaussian_rule half_residual(const double *parameter)
{
    (void)parameter;
    return (kern_gaussian_rule){.temper = 1, .path_scale = log(0.5) / PATH};
}

static kern_gaussian_rule always(const double *parameter)
{
    (void)parameter;
    return (kern_gaussian_rule){.temper = 1, .path_accept = 1e9};
}

static kern_gaussian_rule flat(const double *parameter)
{
    (void)parameter;
    return (kern_gaussian_rule){.temper = 4};
}

TEST_CASE(mutants_are_caught)
{
    static const int dims[] = {1, 4, 16};
    const spec_method exact = *spec_method_find("conditional");
    spec_method mutants[7];
    const char *names[] = {"p and q swapped", "exponents tempered", "residual dropped", "half a residual",
                           "always accepted", "Sigma put back",     "released code"};
    const double parameter[] = {42};
    for (int i = 0; i < 5; i++) mutants[i] = exact;
    mutants[0].rule = swapped;
    mutants[1].rule = flat;
    mutants[2].rule = no_residual;
    mutants[3].rule = half_residual;
    mutants[4].rule = always;
    mutants[5] = *spec_method_find("paper");
    mutants[6] = *spec_method_find("cspd");
    for (int i = 0; i < 7; i++)
        for (int d = 0; d < 3; d++) {
            laws l;
            set_laws(&l, dims[d], 0.7, 0.9, PATH);
            const result r = verify(&mutants[i], parameter, &l, SOME);
            if (!differs(&r)) fail_msg("%s, dim %d: KS p %g, energy p %g", names[i], dims[d], r.ks_p, r.energy_p);
        }
}

/* --- the mirror image, with planted faults in its working memory -------------------------------------------------- */

typedef enum { EXACT, NO_REFLECTION, WRONG_SIGN, NO_TEST, PLAIN_RESIDUAL, MIRRORS } mirror_fault;

static long replace(const laws *l, mirror_fault fault, const float *draft, const kern_address *a, float *x)
{
    const kern_crew alone = {0, 1, NULL};
    const kern_gaussians g = gaussians(&l->site);
    kern_residual r;
    kern_residual_begin(&alone, &r, &g, 0, draft);
    if (fault == NO_TEST) r.equal = 1;
    const int kept = kern_residual_try(&alone, &r, a);
    if (fault == NO_REFLECTION) r.mirror.shift = 0;
    if (fault == WRONG_SIGN) r.mirror.shift = -r.mirror.shift;
    if (fault == PLAIN_RESIDUAL) r.mirror.exists = 0;
    return kern_residual_end(&alone, &r, a, kept, x);
}

/* Verifies drafts. Returns the least p-value of x against the target: of the projections on the gap and on some random
 * directions, and of the sum of squares along the gap's channels by the same test on two samples. */
static double mirror_p(const laws *l, mirror_fault fault, double *tries, long *most)
{
    enum { N = 20000, PROJECTIONS = 8 };
    const int dim = l->site.size;
    const kern_gaussians g = gaussians(&l->site);
    float *z = malloc(sizeof *z * N * (MOST + 3)), *projected = z + N * MOST, *squares = projected + N,
          *expected = squares + N;
    long rejected = 0;
    double least = 1;
    assert_non_null(z);
    *tries = 0, *most = 0;
    for (int n = 0; n < N; n++) {
        float x[MOST], plain[MOST];
        const kern_address a = {61, (uint64_t)n, 7, 3};
        draw(l->mean_q, l->log_std_q, dim, 62, (uint64_t)n, 7, x);
        draw(l->mean_p, l->log_std_p, dim, 63, (uint64_t)n, 7, plain);
        if (!kern_gaussian_accepts(kern_gaussian_log_ratio(&g, x), &a)) {
            const long t = replace(l, fault, x, &a, x);
            *tries += (double)t, rejected++;
            if (t > *most) *most = t;
        }
        squares[n] = expected[n] = 0;
        for (int i = 0; i < dim; i++) {
            const double spread = exp((double)l->log_std_p[i]), other = (plain[i] - l->mean_p[i]) / spread;
            z[n * dim + i] = (float)((x[i] - l->mean_p[i]) / spread);
            if (i % 2 == 0) squares[n] += z[n * dim + i] * z[n * dim + i], expected[n] += (float)(other * other);
        }
    }
    *tries /= fmax(1, (double)rejected);
    for (int k = 0; k < PROJECTIONS; k++) {
        float direction[MOST], zero[MOST] = {0};
        double length = 0;
        draw(zero, zero, dim, 64, (uint64_t)k, 0, direction);
        for (int i = 0; i < dim; i++) {
            if (k == 0) direction[i] = (l->mean_p[i] - l->mean_q[i]) * expf(-l->log_std_q[i]);
            length += direction[i] * direction[i];
        }
        if (length == 0) continue;
        for (int n = 0; n < N; n++) {
            double sum = 0;
            for (int i = 0; i < dim; i++) sum += z[n * dim + i] * direction[i];
            projected[n] = (float)(sum / sqrt(length));
        }
        least = fmin(least, stat_ks_normal_p(projected, N, 0, 1));
    }
    least = fmin(least, stat_ks_two_sample_p(squares, N, expected, N));
    free(z);
    return least;
}

/* gap and ratio as in set_laws; at 1 + 1e-6 the test of the mirror image is a test of its rounding errors. */
static const struct {
    double gap, ratio;
} mirrors[] = {{0.5, 1}, {2, 1}, {1, 1 + 1e-6}, {0.7, 0.8}, {0.7, 1.25}, {0, 0.9}, {0.05, 1.1}};

/* 21 cases of 9 p-values: with other seeds about one run in five would fall below 0.001. */
TEST_CASE(mirror_images_have_the_targets_law)
{
    static const int dims[] = {1, 8, 16};
    for (int d = 0; d < 3; d++)
        for (size_t i = 0; i < sizeof mirrors / sizeof *mirrors; i++) {
            laws l;
            double tries;
            long most;
            set_laws(&l, dims[d], mirrors[i].gap, mirrors[i].ratio, 0);
            const double p = mirror_p(&l, EXACT, &tries, &most);
            print_message("dim %2d, gap %g, ratio %g: p %.2g, %.2f tries, at most %ld\n", dims[d], mirrors[i].gap,
                          mirrors[i].ratio, p, tries, most);
            if (!(p > 1e-3)) fail_msg("dim %d, gap %g, ratio %g: p %g", dims[d], mirrors[i].gap, mirrors[i].ratio, p);
            if (mirrors[i].ratio == 1) assert_true(tries == 1 && most == 1);
            assert_true(tries < 30);
        }
}

TEST_CASE(mirror_mutants_are_caught)
{
    static const int dims[] = {1, 8, 16};
    for (int d = 0; d < 3; d++)
        for (mirror_fault fault = NO_REFLECTION; fault < MIRRORS; fault++) {
            laws l;
            double tries;
            long most;
            set_laws(&l, dims[d], 0.7, fault == NO_TEST || fault == PLAIN_RESIDUAL ? 0.8 : 1, 0);
            const double p = mirror_p(&l, fault, &tries, &most);
            print_message("dim %2d, fault %d: p %.2g\n", dims[d], (int)fault, p);
            if (!(p < 1e-5)) fail_msg("dim %d, fault %d: p %g", dims[d], (int)fault, p);
        }
}

/* Checks that a mirror image with equal deviations moves along the gap only. */
TEST_CASE(mirror_images_keep_the_other_noise)
{
    laws l;
    set_laws(&l, MOST, 1, 1, 0);
    const kern_gaussians g = gaussians(&l.site);
    int rejected = 0;
    for (uint64_t n = 0; n < 1000; n++) {
        float x[MOST], y[MOST];
        const kern_address a = {65, n, 7, 3};
        double length = 0, along = 0;
        draw(l.mean_q, l.log_std_q, MOST, 66, n, 7, x);
        if (kern_gaussian_accepts(kern_gaussian_log_ratio(&g, x), &a)) continue;
        rejected++;
        assert_int_equal(replace(&l, EXACT, x, &a, y), 1);
        for (int i = 0; i < MOST; i++) { /* all channels have the same gap */
            const double moved = (y[i] - x[i]) * exp(-(double)l.log_std_p[i]);
            length += moved * moved, along += moved / sqrt(MOST);
        }
        assert_true(length > 0 && fabs(length - along * along) < 1e-4 * length);
    }
    assert_true(rejected > 200);
}

/* --- the residual alone, in one dimension, against its density integrated numerically ----------------------------- */

static double density(const laws *l, double x, double log_c)
{
    const double p = (x - l->mean_p[0]) * exp(-(double)l->log_std_p[0]),
                 q = (x - l->mean_q[0]) * exp(-(double)l->log_std_q[0]);
    return fmax(0, exp(-0.5 * p * p - l->log_std_p[0]) - exp(log_c - 0.5 * q * q - l->log_std_q[0]));
}

static double residual_p(const laws *l, double log_c, double *tries)
{
    enum { CELLS = 40, FINE = 2000, N = 50000 };
    double probability[CELLS + 2] = {0}, low = 1e30, high = -1e30;
    long count[CELLS + 2] = {0};
    float *x = malloc(N * sizeof *x);
    const kern_gaussians g = gaussians(&l->site);
    kern_residual r;
    *tries = 0;
    for (int i = 0; i < N; i++) {
        const kern_address a = {21, (uint64_t)i, 4, 5};
        *tries += (double)kern_gaussian_residual(&r, &g, log_c, NULL, &a, &x[i]) / N;
        low = fmin(low, x[i]), high = fmax(high, x[i]);
    }
    const double width = (high - low) / CELLS;
    for (int i = 0; i < N; i++) count[(int)fmin(CELLS - 1, (x[i] - low) / width)]++;
    for (int c = 0; c < CELLS; c++)
        for (int k = 0; k < FINE; k++) probability[c] += density(l, low + width * (c + (k + 0.5) / FINE), log_c);
    free(x);
    return stat_chi2_p(count, probability, CELLS);
}

/* Includes gaps at which candidates from p alone would take 10^3 to 10^6 tries. */
TEST_CASE(residual_has_its_density)
{
    static const struct {
        double gap, ratio, log_c;
    } residuals[] = {{1, 1, 0},    {1, 1.3, 0},    {1, 0.7, 0},      {0.001, 1, 0}, {1e-6, 1, 0},
                     {0, 1.01, 0}, {0, 0.99, 0},   {0.3, 1, 0.7},    {0.3, 1, 1.2}, {0.2, 0.8, 0.5},
                     {2, 1, -1},   {0.5, 1.2, -3}, {0.05, 1.1, 0.05}};
    for (size_t i = 0; i < sizeof residuals / sizeof *residuals; i++) {
        laws l;
        double tries;
        set_laws(&l, 1, residuals[i].gap, residuals[i].ratio, 0);
        const double p = residual_p(&l, residuals[i].log_c, &tries);
        if (!(p > 1e-5)) fail_msg("case %zu: p = %g", i, p);
        if (!(tries < 40)) fail_msg("case %zu: %g tries", i, tries);
    }
}

/* Checks that the test above detects a residual for another c. */
TEST_CASE(residual_test_has_power)
{
    laws l, other;
    double tries;
    set_laws(&l, 1, 0.3, 1, 0);
    set_laws(&other, 1, 0.25, 1, 0);
    other.site.mean_q = l.mean_q;
    assert_true(residual_p(&l, 0, &tries) > 1e-5);
    memcpy(other.mean_p, l.mean_p, sizeof l.mean_p);
    other.site.mean_q = other.mean_q;
    enum { N = 50000 };
    assert_true(residual_p(&other, 0, &tries) > 1e-5);
    l.site = other.site; /* draws of one residual, density of another */
    assert_true(residual_p(&l, 0, &tries) < 1e-5);
}

/* --- the tilt, against a long double bisection with the Gaussians' formulas in another form ---------------------- */

typedef struct {
    long double candidates, slope; /* log of the mean number of tilted candidates; its derivative up to sign */
} tilt;

/* Both results are infinite where g has no finite variance. */
static tilt tilt_at(const kern_gaussians *g, double log_c, long double theta)
{
    tilt t = {-theta * log_c - theta * log1pl(1 / theta) - log1pl(theta), -log_c - log1pl(1 / theta)};
    for (int i = 0; i < g->size; i++) {
        const long double p = expl(-2 * (long double)g->log_std_p[i]), q = expl(-2 * (long double)g->log_std_q[i]);
        const long double gap = (long double)g->mean_p[i] - g->mean_q[i];
        const long double difference = -p * expm1l(2 * ((long double)g->log_std_p[i] - g->log_std_q[i])); /* p - q */
        const long double precision = p + theta * difference, shift = theta * gap * q / precision;
        if (!(precision > 0)) return (tilt){INFINITY, INFINITY};
        const long double scale = (long double)g->log_std_q[i] - g->log_std_p[i];
        const long double squares = q * (shift + gap) * (shift + gap) - p * shift * shift;
        t.slope += scale - difference / (2 * precision) + squares / 2;
        t.candidates += theta * (scale + squares / 2) - p * shift * shift / 2 - log1pl(theta * difference / p) / 2;
    }
    return t;
}

/* Returns the best theta between the same bounds, or 0 if the residual is empty. */
static long double best_theta(const kern_gaussians *g, double log_c)
{
    long double low = ldexpl(1, -58), high = ldexpl(1, 40);
    if (!(tilt_at(g, log_c, high).slope > 0)) return 0;
    for (int i = 0; i < 100; i++) {
        const long double middle = sqrtl(low * high);
        *(tilt_at(g, log_c, middle).slope > 0 ? &high : &low) = middle;
    }
    return low;
}

/* Returns a uniform number in (-1, 1), by address. */
static double spread_at(uint64_t family, uint64_t n, uint32_t i)
{
    const kern_address a = {51, n, i, (uint32_t)family};
    return 2 * kern_uniform_at(&a, KERN_NOISE_VERIFY, 0) - 1;
}

enum { FAMILIES = 8, TILTS = 1000, WIDEST = 40 };

/* Makes distributions of many kinds: close and far, narrow and wide, few channels and more than are stored. Returns log
 * c. */
static double set_family(int family, uint64_t n, float values[4][WIDEST], kern_gaussians *g)
{
    float *mean_p = values[0], *mean_q = values[1], *log_std_p = values[2], *log_std_q = values[3];
    const double close = pow(10, -3.5 + 3.5 * spread_at((uint64_t)family, n, 1000)); /* 1e-7 to 1 */
    const double wide = family == 4 ? 80 : family == 5 ? 2 : 1;
    *g = (kern_gaussians){n % 7 == 0 ? WIDEST : 1 + (int)(n % 16), mean_p, mean_q, log_std_p, log_std_q};
    for (int i = 0; i < g->size; i++) {
        const double a = spread_at((uint64_t)family, n, (uint32_t)i),
                     b = spread_at((uint64_t)family, n, 100 + (uint32_t)i);
        const double level = spread_at((uint64_t)family, n, 200 + (uint32_t)i) * wide - 2;
        log_std_p[i] = log_std_q[i] = (float)level;
        mean_p[i] = (float)(0.1 * i), mean_q[i] = mean_p[i];
        if (family != 1) mean_q[i] += (float)((family == 3 ? 30 : close) * a * exp(level)); /* 1: equal means */
        if (family != 2) log_std_q[i] += (float)((family == 3 ? 3 : family == 4 ? 90 : close) * b);
        if (family == 5) log_std_q[i] = log_std_p[i] + (float)fabs(close * b); /* q is wider */
        if (family == 6) log_std_q[i] = log_std_p[i] - (float)fabs(close * b); /* q is narrower */
    }
    return family == 7 ? 3 * spread_at(7, n, 2000) : n % 3 ? 0 : close * spread_at((uint64_t)family, n, 2000);
}

/* Checks that theta needs at most 1 in 1000 more candidates than the best theta, and takes few evaluations. */
TEST_CASE(tilts_are_the_best)
{
    long searches = 0, evaluations = 0, tilted = 0, empty = 0, most = 0;
    for (int family = 0; family < FAMILIES; family++)
        for (uint64_t n = 0; n < TILTS; n++) {
            float values[4][WIDEST];
            kern_gaussians g;
            kern_residual r;
            const kern_crew alone = {0, 1, NULL};
            const double log_c = set_family(family, n, values, &g);
            kern_residual_begin(&alone, &r, &g, log_c, NULL);
            kern_residual_tilt(&r);
            if (r.evaluations < 1 || r.evaluations > KERN_TILT_EVALUATIONS)
                fail_msg("family %d, case %d: %d evaluations", family, (int)n, r.evaluations);
            searches++, evaluations += r.evaluations;
            if (r.evaluations > most) most = r.evaluations;
            const long double best = best_theta(&g, log_c);
            if (best == 0 || (log_c > 0 && tilt_at(&g, log_c, best).candidates < -13.7)) {
                empty += r.empty;
                if (best == 0) assert_true(r.empty);
                continue;
            }
            assert_false(r.empty);
            if (best < ldexpl(1, -57)) continue; /* p itself is as good */
            tilted++;
            const long double loss = tilt_at(&g, log_c, r.theta).candidates - tilt_at(&g, log_c, best).candidates;
            if (!(loss < 1e-3) || !(fabsl(r.theta / best - 1) < 2e-3L))
                fail_msg("family %d, case %d: theta %.9g, not %.9Lg: %Lg times the candidates", family, (int)n, r.theta,
                         best, expl(loss));
        }
    print_message("%ld searches, %.2f evaluations each, at most %ld; %ld tilts, %ld empty\n", searches,
                  (double)evaluations / (double)searches, most, tilted, empty);
    assert_true(tilted > searches / 3 && empty > 300);
    assert_true(2 * evaluations < 11 * searches);
}

/* Checks that the replacement is a draw from p where [p - c q]+ is empty, or holds only values that p would never draw.
 */
TEST_CASE(empty_residuals_end)
{
    static const struct {
        double gap, ratio, log_c;
    } empty[] = {{0, 1, 0}, {0, 1, 2}, {0, 1.5, 5}, {1e-9, 1, 1e-3}, {0.01, 1, 3}, {0, 0.999, 5}, {1, 1, 300}};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        laws l;
        float *x = malloc(SOME * sizeof *x);
        set_laws(&l, 1, empty[i].gap, empty[i].ratio, 0);
        const kern_gaussians g = gaussians(&l.site);
        kern_residual r;
        for (int n = 0; n < SOME; n++) {
            const kern_address a = {22, (uint64_t)n, 0, 0};
            assert_true(kern_gaussian_residual(&r, &g, empty[i].log_c, NULL, &a, &x[n]) < 100);
        }
        assert_true(stat_ks_normal_p(x, SOME, l.mean_p[0], exp((double)l.log_std_p[0])) > 1e-5);
        free(x);
    }
}

/* Methods for a state at one step */
static const char *const one_step[] = {"conditional", "paper", "cspd"};

/* Checks that a chain with infinite values gets no endless loop and no invented numbers. */
TEST_CASE(broken_laws_end)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    for (int field = 0; field < 3; field++)
        for (int i = 0; i < 4; i++)
            for (int n = 0; n < 3; n++) {
                laws l;
                float x[4] = {0, 1, 2, 3}, y[4];
                long tries;
                const kern_address a = {23, 0, 0, 0};
                set_laws(&l, 4, 1, 1, 0);
                (field == 0 ? l.mean_p : field == 1 ? l.mean_q : l.log_std_q)[1] = bad[i];
                spec_verify_one(spec_method_find(one_step[n]), (const double[]){42}, &l.site, x, &a, y, &tries);
                assert_true(tries < 100);
            }
}

/* In all but the NaN case p is wider in the first channel, so that a tilt exists there. The cases: a mean at infinity;
 * a spread that overflows when squared; a NaN, which is rejected and shows. The last has distributions narrower than
 * the spacing of floats: q makes every possible float more often than p does. */
TEST_CASE(hopeless_laws_end)
{
    static const struct {
        float mean_p[2], mean_q[2], log_std_p[2], log_std_q[2];
    } hopeless[] = {
        {{0, INFINITY}, {0, 0}, {0.5f, 0}, {0, 0}},
        {{0, 0}, {0, 0}, {0.5f, -800}, {0, 0}},
        {{NAN, 0}, {0, 0}, {0, 0}, {0, 0}},
        {{1e6f, 1e6f}, {1e6f, 1e6f}, {-5, -5}, {-5.2f, -5.2f}},
    };
    for (size_t i = 0; i < sizeof hopeless / sizeof *hopeless; i++)
        for (uint64_t n = 0; n < 100; n++) {
            const spec_site site = {.size = 2,
                                    .mean_p = hopeless[i].mean_p,
                                    .mean_q = hopeless[i].mean_q,
                                    .log_std_p = hopeless[i].log_std_p,
                                    .log_std_q = hopeless[i].log_std_q};
            float draft[2] = {hopeless[i].mean_q[0], hopeless[i].mean_q[1]}, y[2] = {0};
            long tries;
            const kern_address a = {25, n, 0, 0};
            const spec_verdict v = spec_verify_one(spec_method_find("conditional"), NULL, &site, draft, &a, y, &tries);
            assert_true(tries < 1000);
            if (i == 2) assert_true(v == SPEC_REPLACED && isnan(y[0]));
        }
}

/* Temperature 0: the target is a point. */
TEST_CASE(points)
{
    laws l;
    float y[4], same[4], other[4];
    long tries;
    const kern_address a = {24, 0, 0, 0};
    set_laws(&l, 4, 1, 1, 0);
    for (int i = 0; i < 4; i++) l.log_std_p[i] = l.log_std_q[i] = -INFINITY;
    memcpy(same, l.mean_p, sizeof same);
    memcpy(other, l.mean_p, sizeof other);
    other[2] = nextafterf(other[2], 10);
    for (int n = 0; n < 3; n++) {
        const spec_method *m = spec_method_find(one_step[n]);
        const double parameter[] = {42};
        assert_int_equal(spec_verify_one(m, parameter, &l.site, same, &a, y, &tries), SPEC_ACCEPTED);
        assert_int_equal(spec_verify_one(m, parameter, &l.site, other, &a, y, &tries), SPEC_REPLACED);
        assert_memory_equal(y, l.mean_p, sizeof y);
        assert_int_equal(tries, 0);
    }
}

/* Compares paper and cspd with their equations, evaluated naively. */
TEST_CASE(criteria_of_the_papers)
{
    laws l;
    const double path = 0.4, temperature = 3;
    set_laws(&l, 4, 2, 1.2, path);
    const kern_gaussians g = gaussians(&l.site);
    const kern_gaussian_rule paper = spec_method_find("paper")->rule(NULL);
    const kern_gaussian_rule cspd = spec_method_find("cspd")->rule(&temperature);
    for (int n = 0; n < 200; n++) {
        float x[4];
        double p = 1, q = 1, tempered_p = 1, tempered_q = 1, std_p = 1, std_q = 1;
        draw(l.mean_q, l.log_std_q, 4, 31, (uint64_t)n, 0, x);
        for (int i = 0; i < 4; i++) {
            const double sp = exp((double)l.log_std_p[i]), sq = exp((double)l.log_std_q[i]);
            const double zp = ((double)x[i] - l.mean_p[i]) / sp, zq = ((double)x[i] - l.mean_q[i]) / sq;
            p *= exp(-0.5 * zp * zp) / sp, q *= exp(-0.5 * zq * zq) / sq;
            tempered_p *= exp(-0.5 * zp * zp / (temperature * temperature));
            tempered_q *= exp(-0.5 * zq * zq / (temperature * temperature));
            std_p *= sp, std_q *= sq;
        }
        const double ratio = spec_log_ratio(&l.site, x), fixed_term = exp(-path);
        assert_true(fabs(ratio - log(p / q)) < 1e-9);
        assert_true(fabs(kern_gaussian_log_accept(&paper, &g, path, x) - log(exp(path) * p / q)) < 1e-9);
        assert_true(fabs(kern_gaussian_log_accept(&cspd, &g, path, x) -
                         log(tempered_p * fixed_term * std_q / (tempered_q * std_p))) < 1e-9);
    }
    assert_true(kern_gaussian_log_scale(&paper, path) == -path);
    assert_true(kern_gaussian_log_scale(&cspd, path) == path);
    assert_true(spec_method_find("cspd")->last_index && !spec_method_find("paper")->last_index);
}
