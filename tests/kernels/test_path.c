/* path_ratio and path_decide: the ratio against the formulas in double, laws that are equal and laws that are points,
 * and decisions beside their thresholds. */
#include "kernels/path.h"
#include "kernels/trace.h"
#include "tests/support/support.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t seed = 20261122;

/* --- the ratio ----------------------------------------------------------------------------------------------- */

/* A job with arrays of its own. */
typedef struct {
    kern_path_job job;
    float *path, *out, *cfg, *last;
    kern_chain_coef *coef;
    double *log_ratio;
} batch;

static float normal(uint64_t image, size_t n)
{
    uint32_t words[4];
    float x[4];
    kern_random_words(seed, KERN_NOISE_INIT, image, (uint32_t)(n >> 18), (uint32_t)(n / 4 >> 8 & 0xff),
                      (uint32_t)(n / 4 & 0xff), words);
    kern_normal4(words, x);
    return x[n % 4];
}

static void *memory(size_t n, size_t size)
{
    void *p = calloc(n + 1, size);
    assert_non_null(p);
    return p;
}

static batch open_batch(int paths, int channels, int conditions, int steps, int stride, float temperature)
{
    const size_t words = (size_t)(conditions * paths * steps * 2 * channels), floats = (size_t)(paths * stride);
    batch b = {.path = memory(floats, sizeof(float)),
               .out = memory(words, sizeof(float)),
               .cfg = memory((size_t)paths, sizeof(float)),
               .last = memory((size_t)(paths * channels), sizeof(float)),
               .coef = memory((size_t)steps, sizeof(kern_chain_coef)),
               .log_ratio = memory((size_t)paths, sizeof(double))};
    for (size_t i = 0; i < floats; i++) b.path[i] = normal(0, i);
    for (size_t i = 0; i < words; i++) b.out[i] = 0.7f * normal(1, i);
    for (int r = 0; r < paths; r++) b.cfg[r] = 1 + 0.5f * (float)(r % 5);
    for (int i = 0; i < steps; i++) {
        const float way = (float)(i + 1) / (float)(steps + 1);
        b.coef[i] = (kern_chain_coef){1 / sqrtf(1 - way), sqrtf(way / (1 - way)), 1 - way, way, -3 - way, -1, i > 0};
    }
    b.job = (kern_path_job){.paths = paths,
                            .channels = channels,
                            .conditions = conditions,
                            .steps = steps,
                            .stride = stride,
                            .path = b.path,
                            .out = b.out,
                            .coef = b.coef,
                            .cfg = conditions == 2 ? b.cfg : NULL,
                            .log_temperature = logf(temperature),
                            .log_ratio = b.log_ratio,
                            .last = b.last};
    return b;
}

static void close_batch(batch *b)
{
    free(b->path), free(b->out), free(b->cfg), free(b->last), free(b->coef), free(b->log_ratio);
}

/* An entry of a path's record. */
static float *record_of(const batch *b, int path, int index, int entry)
{
    return b->path + path * b->job.stride + (index * KERN_EVALUATED + entry) * b->job.channels;
}

/* The head's words on a path at an index, with guidance: eps, and v. */
static double eps_of(const batch *b, int path, int index, int c)
{
    const kern_path_job *job = &b->job;
    const float *cond = b->out + (path * job->steps + index) * 2 * job->channels;
    const float *uncond = cond + job->paths * job->steps * 2 * job->channels;
    if (job->conditions == 1) return cond[c];
    return uncond[c] + (double)b->cfg[path] * ((double)cond[c] - uncond[c]);
}

static double mean_of(const batch *b, int path, int index, int c)
{
    const kern_chain_coef *coef = &b->coef[index];
    const double x = record_of(b, path, index, KERN_EVALUATED_STATE)[c];
    const double x0 = coef->sqrt_recip_abar * x - coef->sqrt_recipm1_abar * eps_of(b, path, index, c);
    return coef->coef_x0 * x0 + coef->coef_xt * x;
}

/* log N(x; mean, exp(log_std)^2) */
static double log_density(double x, double mean, double log_std)
{
    const double y = (x - mean) / exp(log_std);
    return -0.5 * y * y - log_std - 0.9189385332046727;
}

static double expected_ratio(const batch *b, int path)
{
    double sum = 0;
    for (int i = 1; i < b->job.steps; i++)
        for (int c = 0; c < b->job.channels; c++) {
            const kern_chain_coef *coef = &b->coef[i];
            const double x = record_of(b, path, i, KERN_EVALUATED_STATE)[c];
            const double after = record_of(b, path, i - 1, KERN_EVALUATED_STATE)[c];
            const double own = coef->coef_x0 * record_of(b, path, i, KERN_EVALUATED_X0)[c] + coef->coef_xt * x;
            const double part = record_of(b, path, i, KERN_EVALUATED_FRACTION)[c];
            const double v = b->out[((path * b->job.steps + i) * 2 + 1) * b->job.channels + c], other = (v + 1) / 2;
            const double least = coef->log_var_min, width = coef->log_var_max - least;
            sum += log_density(after, mean_of(b, path, i, c), 0.5 * (least + other * width) + b->job.log_temperature) -
                   log_density(after, own, 0.5 * (least + part * width) + b->job.log_temperature);
        }
    return sum;
}

/* By threads and number of paths, too, to the bit. */
static void ratios_are_the_formulas(void **state)
{
    (void)state;
    static const struct {
        int paths, channels, conditions, steps, spare;
        float temperature;
    } cases[] = {{1, 1, 1, 2, 0, 1},    {7, 8, 2, 20, 5, 1},  {3, 16, 1, 100, 48, 0.9f},
                 {2, 16, 2, 400, 0, 1}, {90, 33, 2, 6, 1, 1}, {0, 8, 2, 4, 0, 1}};
    for (int threads = 1; threads <= 3; threads += 2)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            const int channels = cases[i].channels,
                      stride = cases[i].steps * KERN_EVALUATED * channels + cases[i].spare;
            kern_queue *k = open_queue(MAR_DTYPE_F32, threads);
            batch b =
                open_batch(cases[i].paths, channels, cases[i].conditions, cases[i].steps, stride, cases[i].temperature);
            k->head->path_ratio(k, &b.job);
            for (int r = 0; r < cases[i].paths; r++) {
                const double expected = expected_ratio(&b, r);
                if (!(fabs(b.log_ratio[r] - expected) <= 1e-5 * (1 + fabs(expected))))
                    fail_msg("case %zu, path %d: %.9g, expected %.9g", i, r, b.log_ratio[r], expected);
                for (int c = 0; c < channels; c++)
                    assert_true(fabs(b.last[r * channels + c] - mean_of(&b, r, 0, c)) < 1e-5);
            }
            for (int r = 0; r < cases[i].paths && cases[i].conditions == 1; r++) {
                kern_path_job one = b.job;
                double alone;
                float last[33];
                one.paths = 1;
                one.path = b.path + r * stride;
                one.out = b.out + r * cases[i].steps * 2 * channels;
                one.log_ratio = &alone, one.last = last;
                k->head->path_ratio(k, &one);
                assert_true(alone == b.log_ratio[r]);
                assert_memory_equal(last, b.last + r * channels, (size_t)channels * sizeof *last);
            }
            close_batch(&b);
            close_queue(k);
        }
}

/* Makes the record of a path the one that the head's words are stored as. */
static void store_words(const batch *b, int path)
{
    const kern_path_job *job = &b->job;
    for (int i = 0; i < job->steps; i++)
        for (int c = 0; c < job->channels; c++) {
            const float x = record_of(b, path, i, KERN_EVALUATED_STATE)[c];
            const float *cond = b->out + (path * job->steps + i) * 2 * job->channels;
            const float *uncond = job->conditions == 2 ? cond + job->paths * job->steps * 2 * job->channels : cond;
            const float eps = kern_chain_eps(cond[c], uncond[c], job->conditions == 2 ? job->cfg[path] : 1);
            const float mean = kern_chain_mean(&b->coef[i], x, eps);
            record_of(b, path, i, KERN_EVALUATED_X0)[c] = kern_speculation_x0(&b->coef[i], x, mean);
            record_of(b, path, i, KERN_EVALUATED_FRACTION)[c] = kern_chain_fraction(cond[job->channels + c]);
        }
}

enum { PATHS = 12, CHANNELS = 8, STEPS = 30, STRIDE = STEPS * KERN_EVALUATED * CHANNELS };

/* 0, not nearly 0; a word that differs in its last bit shows, at temperature 0 as a point that differs; a NaN, too. */
static void equal_laws_have_ratio_0(void **state)
{
    (void)state;
    static const float temperatures[] = {1, 0.8f, 0};
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    for (int conditions = 1; conditions <= 2; conditions++)
        for (size_t i = 0; i < sizeof temperatures / sizeof *temperatures; i++) {
            batch b = open_batch(PATHS, CHANNELS, conditions, STEPS, STRIDE, temperatures[i]);
            for (int r = 0; r < PATHS; r++) store_words(&b, r);
            k->head->path_ratio(k, &b.job);
            for (int r = 0; r < PATHS; r++) assert_true(b.log_ratio[r] == 0);
            const double points = temperatures[i] == 0 ? -INFINITY : 0;
            float *words = b.out + (3 * STEPS + 7) * 2 * CHANNELS; /* of path 3 at index 7 */
            words[2] += 0.01f;
            words += STEPS * 2 * CHANNELS; /* of path 4: the variance */
            words[CHANNELS + 2] += 0.01f;
            words += STEPS * 2 * CHANNELS; /* of path 5 */
            words[1] = NAN;
            b.out[6 * STEPS * 2 * CHANNELS] += 1; /* index 0 of path 6 has no part in it */
            k->head->path_ratio(k, &b.job);
            for (int r = 0; r < PATHS; r++) {
                if (r == 3)
                    assert_true(points != 0 ? b.log_ratio[r] == points
                                            : isfinite(b.log_ratio[r]) && b.log_ratio[r] != 0);
                else if (r == 4) /* a point has no variance */
                    assert_true(points != 0 ? b.log_ratio[r] == 0 : isfinite(b.log_ratio[r]) && b.log_ratio[r] != 0);
                else if (r == 5)
                    assert_true(isnan(b.log_ratio[r]));
                else
                    assert_true(b.log_ratio[r] == 0);
            }
            close_batch(&b);
        }
    close_queue(k);
}

/* --- the decision -------------------------------------------------------------------------------------------- */

enum { ROWS = 400, GROUPS = 6 };

typedef struct {
    double log_ratio[ROWS];
    uint64_t image[ROWS];
    int position[ROWS], group[ROWS], order[ROWS], marked[ROWS], first[GROUPS];
    kern_path_verdict job;
} verdict;

static void open_verdict(verdict *v, int candidates)
{
    memset(v, 0, sizeof *v);
    for (int r = 0; r < ROWS; r++) {
        v->image[r] = ((uint64_t)(r % 3) << 40) + (uint64_t)r;
        v->position[r] = r % 64;
        v->group[r] = r * 7 % (GROUPS - 1); /* the last has no rows */
        v->order[r] = 1000 - r;
    }
    v->job = (kern_path_verdict){.rows = ROWS,
                                 .candidates = candidates,
                                 .log_ratio = v->log_ratio,
                                 .seed = seed,
                                 .step = 5,
                                 .image = v->image,
                                 .position = v->position,
                                 .group = v->group,
                                 .order = v->order,
                                 .groups = GROUPS,
                                 .marked = v->marked,
                                 .first = v->first};
}

/* The uniform of a row. */
static double uniform_of(const verdict *v, int r)
{
    uint32_t words[4];
    kern_random_words(seed, KERN_NOISE_VERIFY, v->image[r], (uint32_t)v->position[r], 5, 0, words);
    return kern_uniform(words);
}

/* P/Q, or Q/P, is a little above and below where u decides. */
static void decisions_are_at_the_threshold(void **state)
{
    (void)state;
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    for (int candidates = 0; candidates < 2; candidates++) {
        verdict v;
        open_verdict(&v, candidates);
        for (int r = 0; r < ROWS; r++) {
            const double u = uniform_of(&v, r) * (r % 2 ? 1 + 1e-9 : 1 - 1e-9);
            v.log_ratio[r] = candidates ? log1p(-u) : log(u);
        }
        k->head->path_decide(k, &v.job);
        int first[GROUPS];
        for (int g = 0; g < GROUPS; g++) first[g] = INT_MAX;
        for (int r = 0; r < ROWS; r++) {
            const int expected = candidates ? r % 2 : !(r % 2); /* odd rows have the larger probability */
            assert_int_equal(v.marked[r], expected);
            if (expected && v.order[r] < first[v.group[r]]) first[v.group[r]] = v.order[r];
        }
        assert_memory_equal(v.first, first, sizeof first);
        assert_int_equal(v.first[GROUPS - 1], INT_MAX);
    }
    close_queue(k);
}

static void odd_ratios(void **state)
{
    (void)state;
    static const struct {
        double log_ratio;
        int replaced, kept;
    } cases[] = {{NAN, 1, 1},     {INFINITY, 0, 0}, {-INFINITY, 1, 1}, {0, 0, 0},    {1e-300, 0, 0},
                 {-1e-300, 0, 0}, {-1e-17, 0, 0},   {800, 0, 0},       {-800, 1, 1}, {-1e300, 1, 1}};
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    for (int candidates = 0; candidates < 2; candidates++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            verdict v;
            open_verdict(&v, candidates);
            for (int r = 0; r < ROWS; r++) v.log_ratio[r] = cases[i].log_ratio;
            k->head->path_decide(k, &v.job);
            for (int r = 0; r < ROWS; r++)
                assert_int_equal(v.marked[r], candidates ? cases[i].kept : cases[i].replaced);
        }
    close_queue(k);
}

/* Nothing is written where the queue has failed. */
static void a_failed_queue_does_nothing(void **state)
{
    (void)state;
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    mar_err err = {0};
    batch b = open_batch(2, CHANNELS, 1, 3, 3 * KERN_EVALUATED * CHANNELS, 1);
    verdict v;
    open_verdict(&v, 0);
    v.marked[3] = v.first[0] = b.log_ratio[1] = 77;
    kern_fail(k, err_set(&err, MAR_EBACKEND, "injected"), &err);
    k->head->path_ratio(k, &b.job);
    k->head->path_decide(k, &v.job);
    assert_true(v.marked[3] == 77 && v.first[0] == 77 && b.log_ratio[1] == 77);
    close_batch(&b);
    close_queue(k);
}

static void traced(void **state)
{
    (void)state;
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    kern_trace *trace;
    mar_err err = {0};
    int count;
    batch b = open_batch(PATHS, CHANNELS, 2, STEPS, STRIDE, 1);
    verdict v;
    open_verdict(&v, 0);
    assert_ok(kern_trace_begin(k, &trace, &err), &err);
    k->head->path_ratio(k, &b.job);
    k->head->path_ratio(k, &b.job);
    k->head->path_decide(k, &v.job);
    kern_trace_end(trace);
    const kern_traced *rows = kern_trace_rows(trace, &count);
    assert_int_equal(count, 2);
    assert_string_equal(rows[0].name, "path ratio, 30 steps");
    assert_int_equal(rows[0].rows, PATHS);
    assert_int_equal(rows[0].calls, 2);
    /* state, x0 and fraction; eps and v of two conditions */
    assert_true(rows[0].bytes == 2 * 4.0 * PATHS * STEPS * CHANNELS * (3 + 2 * 2));
    assert_string_equal(rows[1].name, "path verdict");
    assert_int_equal(rows[1].rows, ROWS);
    kern_trace_free(trace);
    close_batch(&b);
    close_queue(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ratios_are_the_formulas),        cmocka_unit_test(equal_laws_have_ratio_0),
        cmocka_unit_test(decisions_are_at_the_threshold), cmocka_unit_test(odd_ratios),
        cmocka_unit_test(a_failed_queue_does_nothing),    cmocka_unit_test(traced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
