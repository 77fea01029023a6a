/* Steps of the diffusion chain and verification of continuous drafts: addressed noise, DDPM and solver steps, a step's
 * distributions, drafts against the target's distributions, whole paths under two distributions. */
#include "kernels/path.h"
#include "specdec/verifier.h"
#include "tests/ops/ops.h"
#include "tests/support/statistics.h"

#include <limits.h>

static const uint64_t seed = 0xC0FFEE1234567890;

/* Host arrays of the noise addresses and the guidance. */
typedef struct {
    uint64_t *seed, *image;
    int *position, *group, *order;
    float *cfg;
    const kern_chain_coef **coef;
} lists;

static lists *make_lists(ops_call *c, int rows)
{
    lists *l = c->data = ops_host(c, sizeof *l);
    l->seed = ops_host(c, (size_t)rows * sizeof *l->seed);
    l->image = ops_host(c, (size_t)rows * sizeof *l->image), l->position = ops_host(c, (size_t)rows * sizeof(int));
    l->coef = ops_host(c, (size_t)rows * sizeof *l->coef), l->cfg = ops_floats(c, (size_t)rows, 2);
    for (int r = 0; r < rows; r++) {
        l->seed[r] = seed + (uint64_t)(r % 4 + 4 * c->other) * 0x100000001; /* both words of the key differ */
        l->image[r] = (uint64_t)(r % 3 + c->other) << 32 | (uint64_t)((long)r * r);
        l->position[r] = (int)((long)r * 7919 % (1 << 24));
    }
    return l;
}

static double normal_at(const lists *l, int r, int channel, kern_noise purpose, int step)
{
    uint32_t words[4];
    float four[4];
    kern_random_words(l->seed[r], purpose, l->image[r], (uint32_t)l->position[r], (uint32_t)step, (uint32_t)channel / 4,
                      words);
    kern_normal4(words, four);
    return (double)four[channel % 4];
}

/* --- noise -------------------------------------------------------------------------------------------------------- */

/* rows, channels, purpose, step */
static const int normals[][4] = {{30, 16, KERN_NOISE_STEP, 65535}, {300, 16, KERN_NOISE_INIT, 0},
                                 {300, 6, KERN_NOISE_STEP, 65535}, {300, 6, KERN_NOISE_INIT, 0},
                                 {300, 1, KERN_NOISE_STEP, 65535}, {300, 1, KERN_NOISE_INIT, 0}};

static void build_normal(ops_call *c)
{
    const int rows = c->rows = c->n[0] * ops_scale(), channels = c->n[1];
    const lists *l = make_lists(c, rows);
    double *x = ops_output(c, OPS_FLOAT, (size_t)(rows * channels), (size_t)channels, 1, 1);
    ops_last(c)->each = 1e-6;
    for (int i = 0; i < rows * channels; i++)
        x[i] = normal_at(l, i / channels, i % channels, (kern_noise)c->n[2], c->n[3]);
}

static void run_normal(kern_queue *k, const ops_call *c, void *const *a)
{
    const lists *l = c->data;
    k->head->normal(k, a[0], c->rows, c->n[1], l->seed + c->first, (kern_noise)c->n[2], l->image + c->first,
                    l->position + c->first, c->n[3]);
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

static const kern_chain_coef coefs[] = {
    {1.25f, 0.75f, 0.3f, 0.65f, -5, -1, 1},
    {90, 89.99f, 0.01f, 0.97f, -0.1f, -0.02f, 0.9f}, /* like the chain's beginning */
    {1.0001f, 0.01f, 1, 0, -9, -9, 0},               /* like its end: no noise */
    {1.5f, 1.1f, 0.2f, 0.75f, -3, -2, 1},
};
static const kern_ode_coef odes[] = {{1.25f, 0.75f, 0.9f, 0.2f, 0}, {1.1f, 0.6f, 0.8f, 0.5f, -0.25f}};

enum { ROWS, CHANNELS, COEF, GUIDED };
static const int steps[][4] = {{20, 16, 0, 1}, {150, 16, 0, 0}, {150, 16, 1, 1}, {150, 16, 2, 0},
                               {150, 6, 1, 0}, {150, 6, 2, 1},  {150, 6, 0, 1}};

/* Adds x and the head's output. Only unguided calls can be divided by rows. */
static lists *step_arrays(ops_call *c)
{
    const int rows = c->n[ROWS] * (c->n[ROWS] < 1000 ? ops_scale() : 1), guided = c->n[GUIDED];
    const size_t channels = (size_t)c->n[CHANNELS], n = (size_t)rows * channels;
    c->n[ROWS] = rows, c->rows = guided ? 0 : rows;
    ops_input(c, OPS_FLOAT, n, channels, 1);
    ops_input(c, OPS_FLOAT, (guided ? 4 : 2) * n, 2 * channels, 1);
    return make_lists(c, rows);
}

static int row_count(const ops_call *c)
{
    return c->n[GUIDED] ? c->n[ROWS] : c->rows;
}

static const float *cfg_of(const ops_call *c)
{
    return c->n[GUIDED] ? ((const lists *)c->data)->cfg : NULL;
}

static double eps_of(const ops_call *c, int r, int channel)
{
    const int channels = c->n[CHANNELS], at = r * 2 * channels + channel;
    const double *out = c->array[1].x, with = out[at];
    if (!c->n[GUIDED]) return with;
    const double without = out[at + c->n[ROWS] * 2 * channels];
    return without + (double)((const lists *)c->data)->cfg[r] * (with - without);
}

static double mean_of(const kern_chain_coef *coef, double x, double eps)
{
    const double x0 = (double)coef->x0_x * x - (double)coef->x0_prediction * eps;
    return (double)coef->coef_x0 * x0 + (double)coef->coef_xt * x;
}

/* Returns the log deviation at temperature 1. v is the head's output. */
static double log_std_of(const kern_chain_coef *coef, double v)
{
    const double fraction = (v + 1) / 2;
    return 0.5 * (fraction * (double)coef->log_var_max + (1 - fraction) * (double)coef->log_var_min);
}

static void build_step(ops_call *c)
{
    const lists *l = step_arrays(c);
    const int channels = c->n[CHANNELS];
    const kern_chain_coef *coef = &coefs[c->n[COEF]];
    const double *x = c->array[0].x;
    ops_array *a = &c->array[0];
    a->want = ops_host(c, a->n * sizeof(double)), a->allowed = 1e-6;
    for (int i = 0; i < (int)a->n; i++) {
        const int r = i / channels, j = i % channels;
        const double v = c->array[1].x[r * 2 * channels + channels + j];
        a->want[i] = mean_of(coef, x[i], eps_of(c, r, j)) +
                     exp(log_std_of(coef, v)) * (double)coef->noise * normal_at(l, r, j, KERN_NOISE_STEP, 7);
    }
}

static void run_step(kern_queue *k, const ops_call *c, void *const *a)
{
    const lists *l = c->data;
    k->head->chain_step(k, a[0], a[1], row_count(c), c->n[CHANNELS], cfg_of(c), &coefs[c->n[COEF]], l->seed + c->first,
                        l->image + c->first, l->position + c->first, 7);
}

static const int ode_steps[][4] = {{20, 6, 1, 1}, {150, 6, 0, 0}, {150, 6, 0, 1}, {150, 6, 1, 0}, {150, 16, 1, 1}};

static void build_ode_step(ops_call *c)
{
    step_arrays(c);
    const int channels = c->n[CHANNELS];
    const kern_ode_coef *coef = &odes[c->n[COEF]];
    ops_array *a = &c->array[0];
    a->want = ops_host(c, a->n * sizeof(double)), a->allowed = 1e-6;
    double *before = ops_input(c, OPS_FLOAT, a->n, (size_t)channels, 1), *x0 = ops_written(c, 1e-6, 1e-6);
    for (int i = 0; i < (int)a->n; i++) {
        const double x = a->x[i], eps = eps_of(c, i / channels, i % channels);
        x0[i] = (double)coef->x0_x * x - (double)coef->x0_prediction * eps;
        a->want[i] = (double)coef->coef_x * x + (double)coef->coef_x0 * x0[i];
        if (coef->coef_previous != 0) a->want[i] += (double)coef->coef_previous * before[i];
        if (coef->coef_previous == 0) before[i] = NAN; /* it is not read */
    }
}

static void run_ode_step(kern_queue *k, const ops_call *c, void *const *a)
{
    k->head->chain_ode_step(k, a[0], a[2], a[1], row_count(c), c->n[CHANNELS], cfg_of(c), &odes[c->n[COEF]]);
}

/* The last case's host arrays exceed the initial size of a queue's staging area. */
static const int chain_laws[][4] = {{20, 6, 9, 1}, {150, 6, 9, 0}, {150, 6, 0, 1}, {150, 6, 0, 0}, {12000, 1, 9, 1}};

/* COEF: temperature in tenths. Results: means, log deviations and their sums. */
static void build_law(ops_call *c)
{
    lists *l = step_arrays(c);
    const int channels = c->n[CHANNELS];
    const size_t n = c->array[0].n;
    double *mean = ops_output(c, OPS_FLOAT, n, (size_t)channels, 1e-6, 1e-6);
    double *log_std = ops_output(c, OPS_FLOAT, n, (size_t)channels, 1e-6, 1e-6);
    double *path = ops_output(c, OPS_DOUBLE, (size_t)c->n[ROWS], 1, 1e-6, 1e-6);
    for (int r = 0; r < c->n[ROWS]; r++) l->coef[r] = &coefs[(r + c->other) % 2 * 3];
    for (int i = 0; i < (int)n; i++) {
        const int r = i / channels, j = i % channels;
        mean[i] = mean_of(l->coef[r], c->array[0].x[i], eps_of(c, r, j));
        log_std[i] = c->n[COEF] == 0 ? -INFINITY
                                     : log_std_of(l->coef[r], c->array[1].x[r * 2 * channels + channels + j]) +
                                           log((double)(float)(c->n[COEF] / 10.0));
        path[r] = (j == 0 ? c->array[4].x[r] : path[r]) + log_std[i];
    }
}

static void run_law(kern_queue *k, const ops_call *c, void *const *a)
{
    const lists *l = c->data;
    k->head->chain_gaussian(k, a[0], a[1], row_count(c), c->n[CHANNELS], cfg_of(c), l->coef + c->first,
                            (float)(c->n[COEF] / 10.0), a[2], a[3]);
    k->head->add_log_std(k, a[4], a[3], row_count(c), c->n[CHANNELS]);
}

/* Checks that the sums equal those of the same numbers in the same order. */
static void check_law(const ops_call *c, double *const *got)
{
    const int channels = c->n[CHANNELS];
    for (int r = 0; r < c->n[ROWS]; r++) {
        double sum = c->array[4].x[r];
        for (int j = 0; j < channels; j++) sum += got[3][r * channels + j];
        assert_true(sum == got[4][r]);
    }
}

/* --- verification of drafts --------------------------------------------------------------------------------------- */

enum { STEP = 1000, GROUPS = 7, ORDERS = 5, ODD_ROWS = 8 };
enum { DRAFT, MEAN_P, LOG_STD_P, MEAN_Q, LOG_STD_Q, PATH_P, PATH_Q, X, REPLACED, TRIES, FIRST }; /* the arrays */

/* Pairs from equal distributions to disjoint ones: gap of the means in standard deviations, and spread of the log
 * deviations. Close distributions have tilted candidates as replacements. */
static const struct {
    double gap, spread;
} law_pairs[] = {{0, 0}, {1e-4, 0}, {0.02, 1e-3}, {0.7, 0.2}, {8, 0}};
enum { PAIRS = sizeof law_pairs / sizeof *law_pairs };

/* rows, channels, method, in place */
static const int verifications[][4] = {{58, 4, 0, 1},   {383, 1, 0, 1},  {383, 1, 1, 0},  {383, 4, 2, 1},
                                       {383, 4, 0, 0},  {383, 16, 1, 0}, {383, 16, 0, 1}, {383, 64, 2, 1},
                                       {383, 64, 0, 1}, {0, 4, 0, 0}};

static kern_gaussian_rule rule_of(int method)
{
    static const char *const names[] = {"conditional", "paper", "cspd"};
    const double temperature = 5;
    return spec_method_find(names[method])->rule(&temperature);
}

/* Turns a row's standard normals into two distributions and a draft from q. */
static void set_row(const ops_call *c, int r, double gap, double spread)
{
    const int channels = c->n[CHANNELS];
    for (int i = r * channels; i < (r + 1) * channels; i++) {
        double *log_std_p = &c->array[LOG_STD_P].x[i], *mean_q = &c->array[MEAN_Q].x[i];
        double *log_std_q = &c->array[LOG_STD_Q].x[i], *draft = &c->array[DRAFT].x[i];
        *log_std_p = (double)(float)(0.5 * *log_std_p - 2);
        *mean_q =
            (double)(float)(c->array[MEAN_P].x[i] + gap * exp(*log_std_p) * (*mean_q > 0 ? 1 : -1) / sqrt(channels));
        *log_std_q = (double)(float)(*log_std_p + spread * *log_std_q);
        *draft = (double)(float)(*mean_q + exp(*log_std_q) * *draft);
    }
}

/* Makes distributions non-finite or points. One draft equals its point. */
static void set_odd_row(const ops_call *c, int r, int kind)
{
    const int first = r * c->n[CHANNELS], last = first + c->n[CHANNELS] - 1;
    set_row(c, r, 0.5, 0.1);
    for (int i = first; i <= last && kind < 2; i++) {
        c->array[LOG_STD_P].x[i] = c->array[LOG_STD_Q].x[i] = -INFINITY;
        c->array[DRAFT].x[i] = c->array[MEAN_P].x[i];
    }
    if (kind == 1) c->array[DRAFT].x[last] = (double)nextafterf((float)c->array[DRAFT].x[last], 10);
    if (kind == 2) c->array[MEAN_P].x[last] = NAN;
    if (kind == 3) c->array[LOG_STD_Q].x[first] = NAN;
    if (kind == 4) c->array[MEAN_P].x[first] = INFINITY;
    if (kind == 5) c->array[MEAN_Q].x[last] = -INFINITY;
    if (kind == 6) c->array[LOG_STD_P].x[last] = -800;
    if (kind == 7) c->array[LOG_STD_Q].x[last] = (double)3e38f;
}

/* Makes the job with host arrays of floats. */
static kern_verify_job host_job(ops_call *c, const lists *l)
{
    float *f[5];
    const size_t n = c->array[DRAFT].n, rows = (size_t)c->n[ROWS];
    double *path[2];
    for (int i = 0; i < 5; i++) f[i] = ops_host(c, n * sizeof(float));
    for (size_t i = 0; i < 5 * n; i++) f[i / n][i % n] = (float)c->array[i / n].x[i % n];
    for (int i = 0; i < 2; i++) path[i] = c->array[PATH_P + i].x;
    const kern_gaussian_rule rule = rule_of(c->n[2]);
    const int paths = rule.path_accept != 0 || rule.path_scale != 0;
    return (kern_verify_job){.rows = c->n[ROWS],
                             .channels = c->n[CHANNELS],
                             .draft = f[DRAFT],
                             .mean_p = f[MEAN_P],
                             .log_std_p = f[LOG_STD_P],
                             .mean_q = f[MEAN_Q],
                             .log_std_q = f[LOG_STD_Q],
                             .path_p = paths ? path[0] : NULL,
                             .path_q = paths ? path[1] : NULL,
                             .rule = rule,
                             .step = STEP,
                             .seed = l->seed,
                             .image = l->image,
                             .position = l->position,
                             .group = l->group,
                             .order = l->order,
                             .groups = GROUPS,
                             .x = ops_host(c, n * sizeof(float)),
                             .replaced = ops_host(c, rows * sizeof(int)),
                             .tries = ops_host(c, rows * sizeof(int))};
}

/* Returns log u - log f of a row. Negative: accepted. Near 0: rounding decides. */
static double excess(const kern_verify_job *job, int r)
{
    const size_t at = (size_t)r * (size_t)job->channels;
    const kern_gaussians s = {job->channels, job->mean_p + at, job->mean_q + at, job->log_std_p + at,
                              job->log_std_q + at};
    const kern_address a = {job->seed[r], job->image[r], (uint32_t)job->position[r], STEP};
    const double path = job->path_p ? job->path_q[r] - job->path_p[r] : 0;
    return log(kern_uniform_at(&a, KERN_NOISE_VERIFY, 0)) -
           kern_gaussian_log_accept(&job->rule, &s, path, job->draft + at);
}

/* Provokes a rejection, which is rare for close distributions. Makes a draft that q would hardly draw, and finds an
 * image number that rejects it. */
static void provoke_rejection(const ops_call *c, const lists *l, int r)
{
    const int channels = c->n[CHANNELS];
    for (int i = r * channels; i < (r + 1) * channels; i++) {
        const double gap = c->array[MEAN_Q].x[i] - c->array[MEAN_P].x[i];
        c->array[DRAFT].x[i] = (double)(float)(c->array[DRAFT].x[i] + copysign(4, gap) * exp(c->array[LOG_STD_P].x[i]));
    }
    float f[5][64];
    for (int i = 0; i < 5 * channels; i++)
        f[i / channels][i % channels] = (float)c->array[i / channels].x[r * channels + i % channels];
    const kern_verify_job one = {.channels = channels,
                                 .draft = f[DRAFT],
                                 .mean_p = f[MEAN_P],
                                 .log_std_p = f[LOG_STD_P],
                                 .mean_q = f[MEAN_Q],
                                 .log_std_q = f[LOG_STD_Q],
                                 .rule = {1, 0, 0},
                                 .seed = l->seed + r,
                                 .image = l->image + r,
                                 .position = l->position + r};
    for (int i = 0; i < 100000 && excess(&one, 0) < 0; i++) l->image[r] += 1u << 20;
}

static void build_verify(ops_call *c)
{
    const int rows = c->n[ROWS], channels = c->n[CHANNELS], regular = rows ? rows - ODD_ROWS : 0;
    const size_t n = (size_t)(rows * channels), row = (size_t)channels;
    lists *l = make_lists(c, rows);
    l->group = ops_host(c, (size_t)rows * sizeof(int)), l->order = ops_host(c, (size_t)rows * sizeof(int));
    for (int i = 0; i < 5; i++) ops_input(c, OPS_FLOAT, n, row, 1);
    for (int i = 0; i < 2; i++) ops_input(c, OPS_DOUBLE, (size_t)rows, 1, 1);
    for (int r = 0; r < rows; r++) {
        l->image[r] = (uint64_t)(r % 5 + c->other) << 33 | (uint64_t)r, l->position[r] = r % 64;
        l->group[r] = r * 3 % (GROUPS - 1), l->order[r] = r / 2 % ORDERS; /* the last group has no rows */
        c->array[PATH_P].x[r] = 0.3 * sin(r), c->array[PATH_Q].x[r] = 0.3 * cos(2 * r);
        if (r >= regular) set_odd_row(c, r, r - regular);
        if (r < regular) set_row(c, r, law_pairs[r % PAIRS].gap, law_pairs[r % PAIRS].spread);
        if (r < regular && r % 3 == 0 && law_pairs[r % PAIRS].gap > 0) provoke_rejection(c, l, r);
    }
    const kern_verify_job job = host_job(c, l);
    double *x = c->n[3] ? NULL : ops_output(c, OPS_FLOAT, n, row, 1, 1);
    if (c->n[3]) c->array[DRAFT].want = x = ops_host(c, n * sizeof *x), ops_output(c, OPS_FLOAT, 1, 0, 0, 0);
    c->array[c->n[3] ? DRAFT : X].each = 1e-6;
    double *replaced = ops_output(c, OPS_INT, (size_t)rows, 1, 0, 0);
    double *tries = ops_output(c, OPS_INT, (size_t)rows, 1, 0, 0), *first = ops_output(c, OPS_INT, GROUPS, 0, 0, 0);
    for (int g = 0; g < GROUPS; g++) first[g] = INT_MAX;
    for (int r = 0; r < rows; r++) {
        kern_residual residual;
        kern_verify_row(&job, r, &residual);
        const int decided = !(fabs(excess(&job, r)) < 1e-9); /* two roundings of one sum */
        if (decided && r < regular) assert_int_equal(job.replaced[r], excess(&job, r) > 0); /* the row's own address */
        replaced[r] = decided ? job.replaced[r] : ops_any, tries[r] = decided ? job.tries[r] : ops_any;
        for (int j = 0; j < channels; j++) x[r * channels + j] = decided ? (double)job.x[r * channels + j] : ops_any;
        if (job.replaced[r] && l->order[r] < first[l->group[r]]) first[l->group[r]] = l->order[r];
    }
}

static void run_verify(kern_queue *k, const ops_call *c, void *const *a)
{
    const lists *l = c->data;
    const kern_gaussian_rule rule = rule_of(c->n[2]);
    const int paths = rule.path_accept != 0 || rule.path_scale != 0;
    const kern_verify_job job = {.rows = c->n[ROWS],
                                 .channels = c->n[CHANNELS],
                                 .draft = a[DRAFT],
                                 .mean_p = a[MEAN_P],
                                 .log_std_p = a[LOG_STD_P],
                                 .mean_q = a[MEAN_Q],
                                 .log_std_q = a[LOG_STD_Q],
                                 .path_p = paths ? a[PATH_P] : NULL,
                                 .path_q = paths ? a[PATH_Q] : NULL,
                                 .rule = rule,
                                 .step = STEP,
                                 .seed = l->seed,
                                 .image = l->image,
                                 .position = l->position,
                                 .group = l->group,
                                 .order = l->order,
                                 .groups = GROUPS,
                                 .x = a[c->n[3] ? DRAFT : X],
                                 .replaced = a[REPLACED],
                                 .tries = a[TRIES],
                                 .first_replaced = a[FIRST]};
    k->head->verify(k, &job);
}

/* Checks that accepted drafts keep their bits, points are compared exactly, and NaN shows. */
static void check_verify(const ops_call *c, double *const *got)
{
    const int rows = c->n[ROWS], channels = c->n[CHANNELS], regular = rows - ODD_ROWS;
    const double *x = got[c->n[3] ? DRAFT : X];
    int replaced = 0, refused = 0; /* refused mirror images */
    assert_true(got[FIRST][GROUPS - 1] == INT_MAX);
    if (rows == 0) return;
    for (int r = 0; r < rows; r++) {
        replaced += got[REPLACED][r] != 0, refused += r < regular && got[TRIES][r] > 1;
        for (int i = r * channels; i < (r + 1) * channels && got[REPLACED][r] == 0; i++)
            assert_true(x[i] == c->array[DRAFT].x[i] || isnan(c->array[DRAFT].x[i]));
    }
    assert_true(got[REPLACED][regular] == 0 && got[REPLACED][regular + 1] == 1 && got[TRIES][regular + 1] == 0);
    assert_true(got[REPLACED][regular + 2] == 1 && isnan(x[(regular + 3) * channels - 1]));
    if (rows > 300 && !(replaced > 60 && rows - replaced > 60 && (refused > 5 || c->n[2] != 0)))
        fail_msg("case %d: %d of %d rows replaced, %d mirror images refused", c->index, replaced, rows, refused);
}

/* --- whole paths -------------------------------------------------------------------------------------------------- */

/* paths, channels, conditions, steps, floats between paths, temperature in tenths, whether the distributions are equal
 */
enum { PATHS, P_CHANNELS, CONDITIONS, STEPS, SPARE, TEMPERATURE, EQUAL };
static const int path_ratios[][7] = {
    {5, 8, 2, 20, 7, 10, 0},   {1, 1, 1, 2, 0, 10, 0},   {7, 8, 2, 20, 5, 10, 0},  {3, 16, 2, 100, 48, 9, 0},
    {2, 16, 1, 400, 0, 10, 0}, {40, 33, 2, 5, 1, 10, 0}, {4, 300, 1, 3, 0, 10, 0}, {6, 8, 2, 12, 0, 0, 0},
    {0, 8, 2, 12, 0, 10, 0},   {90, 33, 1, 6, 1, 10, 0}, {12, 8, 1, 30, 0, 10, 1}, {12, 8, 2, 30, 0, 8, 1},
    {12, 8, 1, 30, 0, 0, 1},   {12, 8, 2, 30, 0, 10, 1},
};

typedef struct {
    kern_chain_coef *coef;
    float *cfg;
    int stride;
} path_lists;

/* Return an entry of a path's record, and the head's output for it under a condition: eps, then v. */
static double *record_of(const ops_call *c, int path, int index, int entry)
{
    const path_lists *l = c->data;
    return c->array[0].x + path * l->stride + (index * KERN_EVALUATED + entry) * c->n[P_CHANNELS];
}

static double *word_of(const ops_call *c, int condition, int path, int index)
{
    return c->array[1].x + ((condition * c->n[PATHS] + path) * c->n[STEPS] + index) * 2 * c->n[P_CHANNELS];
}

static double path_mean(const ops_call *c, int path, int index, int j)
{
    const path_lists *l = c->data;
    const double with = word_of(c, 0, path, index)[j], without = word_of(c, c->n[CONDITIONS] - 1, path, index)[j];
    const double eps = c->n[CONDITIONS] == 2 ? without + (double)l->cfg[path] * (with - without) : with;
    return mean_of(&l->coef[index], record_of(c, path, index, KERN_EVALUATED_STATE)[j], eps);
}

/* Returns the log density without its constant. */
static double log_density(double x, double mean, double log_std)
{
    const double y = (x - mean) / exp(log_std);
    return -0.5 * y * y - log_std;
}

static double plain_ratio(const ops_call *c, int path)
{
    const path_lists *l = c->data;
    double sum = 0;
    for (int i = 1; i < c->n[STEPS]; i++)
        for (int j = 0; j < c->n[P_CHANNELS]; j++) {
            const kern_chain_coef *coef = &l->coef[i];
            const double x = record_of(c, path, i, KERN_EVALUATED_STATE)[j];
            const double after = record_of(c, path, i - 1, KERN_EVALUATED_STATE)[j];
            const double own =
                (double)coef->coef_x0 * record_of(c, path, i, KERN_EVALUATED_X0)[j] + (double)coef->coef_xt * x;
            const double part = record_of(c, path, i, KERN_EVALUATED_FRACTION)[j];
            const double other = path_mean(c, path, i, j), temper = log(c->n[TEMPERATURE] / 10.0);
            if (c->n[TEMPERATURE] == 0) {
                sum += isnan(own + other) ? NAN : own == other ? 0 : -INFINITY;
                continue;
            }
            const double v = word_of(c, 0, path, i)[c->n[P_CHANNELS] + j];
            sum += log_density(after, other, log_std_of(coef, v) + temper) -
                   log_density(after, own, log_std_of(coef, 2 * part - 1) + temper);
        }
    return sum;
}

/* Stores the head's outputs in the record of a path. */
static void store_words(const ops_call *c, int path)
{
    const path_lists *l = c->data;
    const int channels = c->n[P_CHANNELS];
    for (int i = 0; i < c->n[STEPS]; i++)
        for (int j = 0; j < channels; j++) {
            const float x = (float)record_of(c, path, i, KERN_EVALUATED_STATE)[j];
            const float with = (float)word_of(c, 0, path, i)[j];
            const float without = (float)word_of(c, c->n[CONDITIONS] - 1, path, i)[j];
            const float eps = kern_chain_eps(with, without, c->n[CONDITIONS] == 2 ? l->cfg[path] : 1);
            const float x0 = kern_speculation_x0(&l->coef[i], x, kern_chain_mean(&l->coef[i], x, eps));
            record_of(c, path, i, KERN_EVALUATED_X0)[j] = (double)x0;
            record_of(c, path, i, KERN_EVALUATED_FRACTION)[j] =
                (double)kern_chain_fraction((float)word_of(c, 0, path, i)[channels + j]);
        }
}

/* Changes some outputs of equal distributions. The log ratio must be exactly 0. A different output shows, at
 * temperature 0 as a different point. A NaN also shows. */
static void change_equal_laws(const ops_call *c, double *ratio)
{
    const int channels = c->n[P_CHANNELS], points = c->n[TEMPERATURE] == 0;
    double *eps = &word_of(c, 0, 3, 7)[2], *v = &word_of(c, 0, 4, 7)[channels + 2];
    for (int r = 0; r < c->n[PATHS]; r++) ratio[r] = 0;
    *eps = (double)(float)(*eps + 0.01), *v = (double)(float)(*v + 0.01);
    word_of(c, 0, 5, 7)[1] = NAN;
    double *unused = word_of(c, 0, 6, 0);
    *unused = (double)(float)(*unused + 1); /* index 0 does not enter the ratio */
    ratio[3] = points ? -INFINITY : plain_ratio(c, 3);
    ratio[4] = points ? 0 : plain_ratio(c, 4); /* a point has no variance */
    ratio[5] = NAN;
}

static void build_path_ratio(ops_call *c)
{
    const int paths = c->n[PATHS], channels = c->n[P_CHANNELS], count = c->n[STEPS];
    path_lists *l = c->data = ops_host(c, sizeof *l);
    l->coef = ops_host(c, (size_t)count * sizeof *l->coef), l->cfg = ops_floats(c, (size_t)paths, 0.5);
    l->stride = (count + 1) * KERN_EVALUATED * channels + c->n[SPARE];
    for (int i = 0; i < count; i++) { /* steps about as wide as the gap of the means */
        const float way = (float)(i + 1) / (float)(count + 1);
        l->coef[i] = (kern_chain_coef){1 / sqrtf(1 - way), sqrtf(way / (1 - way)), 1 - way, way, -3 - way, -1, i > 0};
    }
    c->rows = c->n[CONDITIONS] == 1 ? paths : 0;
    ops_input(c, OPS_FLOAT, (size_t)(paths * l->stride), (size_t)l->stride, 1);
    ops_input(c, OPS_FLOAT, (size_t)(c->n[CONDITIONS] * paths * count * 2 * channels), (size_t)(count * 2 * channels),
              0.5);
    double *ratio = ops_output(c, OPS_DOUBLE, (size_t)paths, 1, 1, 1);
    ops_last(c)->each = 1e-4;
    double *last = ops_output(c, OPS_FLOAT, (size_t)(paths * channels), (size_t)channels, 1, 1);
    ops_last(c)->each = 1e-5;
    for (int r = 0; r < paths && c->n[EQUAL]; r++) store_words(c, r);
    if (c->n[EQUAL]) change_equal_laws(c, ratio);
    if (paths > 2 && !c->n[EQUAL]) record_of(c, 2, 1, KERN_EVALUATED_STATE)[0] = NAN;
    for (int r = 0; r < paths; r++) {
        if (!c->n[EQUAL]) ratio[r] = plain_ratio(c, r);
        for (int j = 0; j < channels; j++) last[r * channels + j] = path_mean(c, r, 0, j);
    }
}

static void run_path_ratio(kern_queue *k, const ops_call *c, void *const *a)
{
    const path_lists *l = c->data;
    const kern_path_job job = {.paths = c->n[CONDITIONS] == 1 ? c->rows : c->n[PATHS],
                               .channels = c->n[P_CHANNELS],
                               .conditions = c->n[CONDITIONS],
                               .steps = c->n[STEPS],
                               .stride = l->stride,
                               .path = a[0],
                               .out = a[1],
                               .coef = l->coef,
                               .cfg = c->n[CONDITIONS] == 2 ? l->cfg : NULL,
                               .log_temperature = logf((float)(c->n[TEMPERATURE] / 10.0)),
                               .log_ratio = a[2],
                               .last = a[3]};
    k->head->path_ratio(k, &job);
}

/* Checks that a log ratio of 0 is exact. */
static void check_path_ratio(const ops_call *c, double *const *got)
{
    for (int r = 0; r < c->n[PATHS] && c->n[EQUAL]; r++)
        if (c->array[2].want[r] == 0) assert_true(got[2][r] == 0);
    if (c->n[EQUAL] && c->n[TEMPERATURE]) assert_true(got[2][3] != 0 && got[2][4] != 0);
}

/* rows, whether they are candidates */
static const int path_verdicts[][2] = {{100, 0}, {100, 1}, {700, 0}, {700, 1}, {0, 0}};
enum { PATH_GROUPS = 9 };

/* Sets P/Q, or Q/P, slightly above or below the uniform, or to a special value. */
static void build_path_decide(ops_call *c)
{
    static const struct {
        double log_ratio;
        int replaced, kept;
    } odd[] = {{NAN, 1, 1},     {INFINITY, 0, 0}, {-INFINITY, 1, 1}, {0, 0, 0},    {1e-300, 0, 0},
               {-1e-300, 0, 0}, {-1e-17, 0, 0},   {800, 0, 0},       {-800, 1, 1}, {-1e300, 1, 1}};
    const int rows = c->n[0], candidates = c->n[1];
    lists *l = make_lists(c, rows);
    l->group = ops_host(c, (size_t)rows * sizeof(int)), l->order = ops_host(c, (size_t)rows * sizeof(int));
    double *ratio = ops_input(c, OPS_DOUBLE, (size_t)rows, 0, 1);
    double *marked = ops_output(c, OPS_INT, (size_t)rows, 0, 0, 0),
           *first = ops_output(c, OPS_INT, PATH_GROUPS, 0, 0, 0);
    for (int g = 0; g < PATH_GROUPS; g++) first[g] = INT_MAX;
    for (int r = 0; r < rows; r++) {
        const kern_address a = {l->seed[r], l->image[r], (uint32_t)(l->position[r] = r % 64), 3};
        const double u = kern_uniform_at(&a, KERN_NOISE_VERIFY, 0) * (r % 2 ? 1 + 1e-9 : 1 - 1e-9);
        l->group[r] = (r * 5 + c->other) % (PATH_GROUPS - 1), l->order[r] = rows - r / 2; /* the last has no rows */
        ratio[r] = r < 10 ? odd[r].log_ratio : candidates ? log1p(-u) : log(u);
        marked[r] = r < 10 ? (candidates ? odd[r].kept : odd[r].replaced) : (r % 2 == 1) == candidates;
        if (marked[r] != 0 && l->order[r] < first[l->group[r]]) first[l->group[r]] = l->order[r];
    }
}

static void run_path_decide(kern_queue *k, const ops_call *c, void *const *a)
{
    const lists *l = c->data;
    const kern_path_verdict job = {.rows = c->n[0],
                                   .candidates = c->n[1],
                                   .log_ratio = a[0],
                                   .step = 3,
                                   .seed = l->seed,
                                   .image = l->image,
                                   .position = l->position,
                                   .group = l->group,
                                   .order = l->order,
                                   .groups = PATH_GROUPS,
                                   .marked = a[1],
                                   .first = a[2]};
    k->head->path_decide(k, &job);
}

static const ops_entry table[] = {
    {"normal", "rows channels purpose step", OPS_CASES(normals), OPS_ALONE | OPS_NOT_ISAS, build_normal, run_normal,
     NULL, NULL, NULL},
    {"chain_step", "rows channels coef guided", OPS_CASES(steps), OPS_ALONE | OPS_NOT_ISAS, build_step, run_step, NULL,
     NULL, NULL},
    {"chain_ode_step", "rows channels coef guided", OPS_CASES(ode_steps), OPS_ALONE | OPS_NOT_ISAS, build_ode_step,
     run_ode_step, NULL, NULL, NULL},
    {"chain_gaussian, add_log_std", "rows channels temperature guided", OPS_CASES(chain_laws), OPS_ALONE | OPS_NOT_ISAS,
     build_law, run_law, NULL, NULL, check_law},
    {"verify", "rows channels method in_place", OPS_CASES(verifications), OPS_NOT_ISAS, build_verify, run_verify, NULL,
     NULL, check_verify},
    {"path_ratio", "paths channels conditions steps spare temperature equal", OPS_CASES(path_ratios),
     OPS_ALONE | OPS_NOT_ISAS, build_path_ratio, run_path_ratio, NULL, NULL, check_path_ratio},
    {"path_decide", "rows candidates", OPS_CASES(path_verdicts), OPS_NOT_ISAS, build_path_decide, run_path_decide, NULL,
     NULL, NULL},
};

/* --- the distribution of verified drafts
 * ----------------------------------------------------------------------------------- */

/* Computes p-values of verified drafts: the smallest KS p-value of the channels, and that of the energy distance.
 * `swapped` swaps the job's p and q. */
static void law_p_values(kern_queue *k, kern_gaussian_rule rule, int swapped, double *ks, double *energy)
{
    enum { C = 4 };
    const int rows = (ops_brief() ? 3000 : 8000) * ops_scale(), values = rows * C;
    static const double mean[C] = {-1, 0.3, 2, 0}, log_std[C] = {-2, -1, -0.3, 0.2};
    const size_t bytes = (size_t)values * sizeof(float);
    ops_call c = {.stream = 77};
    lists *l = make_lists(&c, rows);
    int *zero = ops_host(&c, (size_t)rows * sizeof *zero);
    for (int r = 0; r < rows; r++) l->seed[r] = seed;
    float *x = ops_floats(&c, (size_t)values, 1), *plain = ops_floats(&c, (size_t)values, 1);
    float *channel = ops_floats(&c, (size_t)rows, 1), *moments[4];
    double *path = ops_host(&c, (size_t)rows * sizeof *path);
    for (int i = 0; i < 4; i++) moments[i] = ops_host(&c, bytes);
    for (int i = 0; i < values; i++) {
        const int j = i % C;
        moments[0][i] = (float)mean[j], moments[1][i] = (float)log_std[j];
        moments[2][i] = (float)(mean[j] + 0.5 * exp(log_std[j])), moments[3][i] = (float)log_std[j] - 0.1f;
        plain[i] = (float)(mean[j] + exp(log_std[j]) * (double)plain[i]);
        x[i] = (float)((double)moments[2][i] + exp((double)moments[3][i]) * (double)x[i]);
        path[i / C] = 0.3;
    }
    void *on[10];
    for (int i = 0; i < 4; i++) on[i] = to_device(k, moments[swapped ? (i + 2) % 4 : i], bytes);
    on[4] = to_device(k, x, bytes), on[5] = to_device(k, path, (size_t)rows * sizeof *path);
    for (int i = 6; i < 10; i++) on[i] = to_device(k, NULL, (size_t)rows * sizeof(double));
    const kern_verify_job job = {.rows = rows,
                                 .channels = C,
                                 .draft = on[4],
                                 .mean_p = on[0],
                                 .log_std_p = on[1],
                                 .mean_q = on[2],
                                 .log_std_q = on[3],
                                 .path_p = on[6], /* zeros */
                                 .path_q = on[5],
                                 .rule = rule,
                                 .step = STEP,
                                 .seed = l->seed,
                                 .image = l->image,
                                 .position = l->position,
                                 .group = zero,
                                 .order = zero,
                                 .groups = 1,
                                 .x = on[4],
                                 .replaced = on[7],
                                 .tries = on[8],
                                 .first_replaced = on[9]};
    k->head->verify(k, &job);
    from_device(k, x, on[4], bytes);
    for (int i = 0; i < 10; i++) k->core->free(k->device, on[i]);
    *ks = 1;
    for (int j = 0; j < C; j++) {
        for (int r = 0; r < rows; r++) channel[r] = x[r * C + j];
        *ks = fmin(*ks, stat_ks_normal_p(channel, rows, mean[j], exp(log_std[j])));
    }
    *energy = stat_energy_p(x, plain, rows, C, 0, 5);
    for (int i = 0; i < c.hosts; i++) free(c.host[i]);
}

/* With another seed the exact rule would be called biased about once in 100. */
static void law_is_the_target(void **state)
{
    (void)state;
    const kern_gaussian_rule exact = rule_of(0);
    const struct {
        const char *name;
        kern_gaussian_rule rule;
        int swapped;
    } mutants[] = {{"Sigma put back", rule_of(1), 0},
                   {"released code", rule_of(2), 0},
                   {"p and q swapped", exact, 1},
                   {"swapped in the criterion", {-1, 0, 0}, 0},
                   {"half a residual", {1, 0, log(0.5) / 0.3}, 0},
                   {"always accepted", {1, 1e9, 0}, 0}};
    if (!ops_on_cuda()) skip(); /* tests/specdec/test_gaussian.c tests the CPU */
    kern_queue *k = ops_open(MAR_DTYPE_AUTO);
    double ks, energy;
    law_p_values(k, exact, 0, &ks, &energy);
    if (!(ks > 1e-4 && energy > 0.015)) fail_msg("exact: KS p %g, energy p %g", ks, energy);
    for (size_t i = 0; i < sizeof mutants / sizeof *mutants; i += ops_brief() ? 3 : 1) {
        law_p_values(k, mutants[i].rule, mutants[i].swapped, &ks, &energy);
        if (ks > 1e-4 && energy > 0.015) fail_msg("%s: KS p %g, energy p %g", mutants[i].name, ks, energy);
    }
    close_queue(k);
}

int main(void)
{
    const struct CMUnitTest others[] = {cmocka_unit_test(law_is_the_target)};
    return ops_main_and(table, others);
}
