/* Verification on the device: the decisions and replacements of the CPU, and the target's law. */
#include "specdec/verifier.h"
#include "tests/support/device.h"
#include "tests/support/statistics.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t seed = 0xFEED5EED12345678;
enum { STEP = 1000, GROUPS = 7, ORDERS = 5 };

/* Drafts from q, their laws and lists: host memory, shapes as in kern_verify_job. */
typedef struct {
    int rows, channels;
    float *draft, *mean_p, *log_std_p, *mean_q, *log_std_q;
    double *path_p, *path_q;
    uint64_t *image;
    int *position, *group, *order;
} batch;

/* The results. */
typedef struct {
    float *x;
    int *replaced, *tries, *first_replaced;
} outcome;

static void *memory(size_t count, size_t size)
{
    void *p = calloc(count + 1, size);
    assert_non_null(p);
    return p;
}

static batch new_batch(int rows, int channels)
{
    const size_t n = (size_t)rows, values = n * (size_t)channels;
    batch b = {.rows = rows, .channels = channels};
    float **arrays[] = {&b.draft, &b.mean_p, &b.log_std_p, &b.mean_q, &b.log_std_q};
    for (int i = 0; i < 5; i++) *arrays[i] = random_floats(values, 1, seed + (uint64_t)(16 * channels + i));
    b.path_p = memory(n, sizeof *b.path_p), b.path_q = memory(n, sizeof *b.path_q);
    b.image = memory(n, sizeof *b.image), b.position = memory(n, sizeof *b.position);
    b.group = memory(n, sizeof *b.group), b.order = memory(n, sizeof *b.order);
    for (int r = 0; r < rows; r++) {
        b.image[r] = (uint64_t)(r % 5) << 33 | (uint64_t)r;
        b.position[r] = r % 64;
        b.group[r] = r * 3 % (GROUPS - 1); /* the last has no rows */
        b.order[r] = r / 2 % ORDERS;
    }
    return b;
}

static void free_batch(batch *b)
{
    free(b->draft), free(b->mean_p), free(b->log_std_p), free(b->mean_q), free(b->log_std_q);
    free(b->path_p), free(b->path_q), free(b->image), free(b->position), free(b->group), free(b->order);
}

/* Turns row r's standard normals into laws `gap` standard deviations apart, whose deviations differ by a factor of
 * exp(spread) or so, and a draft from q. */
static void set_row(batch *b, int r, double gap, double spread)
{
    for (int i = r * b->channels; i < (r + 1) * b->channels; i++) {
        b->log_std_p[i] = 0.5f * b->log_std_p[i] - 2;
        const double std = exp((double)b->log_std_p[i]);
        b->mean_q[i] = (float)(b->mean_p[i] + gap * std * (b->mean_q[i] > 0 ? 1 : -1) / sqrt(b->channels));
        b->log_std_q[i] = (float)(b->log_std_p[i] + spread * b->log_std_q[i]);
        b->draft[i] = (float)(b->mean_q[i] + exp((double)b->log_std_q[i]) * b->draft[i]);
    }
}

/* Makes some laws broken and some points; one draft is its point. */
static void set_odd_row(batch *b, int r, int kind)
{
    const int first = r * b->channels, last = first + b->channels - 1;
    set_row(b, r, 0.5, 0.1);
    switch (kind) {
    case 0:
    case 1:
        for (int i = first; i <= last; i++) {
            b->log_std_p[i] = b->log_std_q[i] = -INFINITY;
            b->draft[i] = b->mean_p[i];
        }
        if (kind) b->draft[last] = nextafterf(b->draft[last], 10);
        break;
    case 2:
        b->mean_p[last] = NAN;
        break;
    case 3:
        b->log_std_q[first] = NAN;
        break;
    case 4:
        b->mean_p[first] = INFINITY;
        break;
    case 5:
        b->mean_q[last] = -INFINITY;
        break;
    case 6:
        b->log_std_p[last] = -800;
        break;
    default:
        b->log_std_q[last] = 3e38f;
        break;
    }
}

/* log u - log f of a row. Negative: it is accepted. Near 0: rounding decides. */
static double excess(const batch *b, kern_gaussian_rule rule, int r)
{
    const size_t at = (size_t)r * (size_t)b->channels;
    const kern_gaussians s = {b->channels, b->mean_p + at, b->mean_q + at, b->log_std_p + at, b->log_std_q + at};
    const kern_address a = {seed, b->image[r], (uint32_t)b->position[r], STEP};
    const double log_f = kern_gaussian_log_accept(&rule, &s, b->path_q[r] - b->path_p[r], b->draft + at);
    return log(kern_uniform_at(&a, KERN_NOISE_VERIFY, 0)) - log_f;
}

/* Close laws reject seldom. This makes a draft that q would hardly draw, and finds an image number that rejects it. */
static void provoke_rejection(batch *b, int r)
{
    const kern_gaussian_rule exact = {1, 0, 0};
    for (int i = r * b->channels; i < (r + 1) * b->channels; i++)
        b->draft[i] += (float)(copysign(4, (double)b->mean_q[i] - b->mean_p[i]) * exp((double)b->log_std_p[i]));
    for (int i = 0; i < 100000 && excess(b, exact, r) < 0; i++) b->image[r] += 1u << 20;
}

static outcome verify(kern_queue *k, const batch *b, kern_gaussian_rule rule, int in_place)
{
    const size_t n = (size_t)b->rows, values = n * (size_t)b->channels * sizeof(float), ints = n * sizeof(int);
    const float *laws[] = {b->draft, b->mean_p, b->log_std_p, b->mean_q, b->log_std_q};
    outcome o = {.x = memory(values, 1), .replaced = memory(n, sizeof(int)), .tries = memory(n, sizeof(int))};
    o.first_replaced = memory(GROUPS, sizeof(int));
    void *on[11];
    for (int i = 0; i < 5; i++) on[i] = to_device(k, laws[i], values);
    on[5] = to_device(k, b->path_p, n * sizeof(double));
    on[6] = to_device(k, b->path_q, n * sizeof(double));
    on[7] = to_device(k, NULL, values);
    on[8] = to_device(k, NULL, ints);
    on[9] = to_device(k, NULL, ints);
    on[10] = to_device(k, NULL, GROUPS * sizeof(int));
    const int paths = rule.path_accept != 0 || rule.path_scale != 0;
    const kern_verify_job job = {.rows = b->rows,
                                 .channels = b->channels,
                                 .draft = on[0],
                                 .mean_p = on[1],
                                 .log_std_p = on[2],
                                 .mean_q = on[3],
                                 .log_std_q = on[4],
                                 .path_p = paths ? on[5] : NULL,
                                 .path_q = paths ? on[6] : NULL,
                                 .rule = rule,
                                 .seed = seed,
                                 .step = STEP,
                                 .image = b->image,
                                 .position = b->position,
                                 .group = b->group,
                                 .order = b->order,
                                 .groups = GROUPS,
                                 .x = on[in_place ? 0 : 7],
                                 .replaced = on[8],
                                 .tries = on[9],
                                 .first_replaced = on[10]};
    k->head->verify(k, &job);
    from_device(k, o.x, job.x, values);
    from_device(k, o.replaced, on[8], ints);
    from_device(k, o.tries, on[9], ints);
    from_device(k, o.first_replaced, on[10], GROUPS * sizeof(int));
    for (int i = 0; i < 11; i++) k->core->free(k->device, on[i]);
    return o;
}

static void free_outcome(outcome *o)
{
    free(o->x), free(o->replaced), free(o->tries), free(o->first_replaced);
}

static int close_enough(float a, float b)
{
    return (isnan(a) && isnan(b)) || a == b || fabs((double)a - b) <= 1e-6 * fabs((double)b);
}

static void compare(const batch *b, kern_gaussian_rule rule, const outcome *got, const outcome *want)
{
    for (int r = 0; r < b->rows; r++) {
        if (got->replaced[r] != want->replaced[r]) { /* two roundings of one sum */
            if (!(fabs(excess(b, rule, r)) < 1e-9)) fail_msg("row %d: replaced %d", r, got->replaced[r]);
            continue;
        }
        if (got->tries[r] != want->tries[r])
            fail_msg("row %d: %d tries, expected %d", r, got->tries[r], want->tries[r]);
        for (int c = 0; c < b->channels; c++) {
            const int i = r * b->channels + c;
            if (!close_enough(got->x[i], want->x[i])) fail_msg("row %d: %.9g, not %.9g", r, got->x[i], want->x[i]);
            if (!got->replaced[r]) assert_memory_equal(&got->x[i], &b->draft[i], sizeof(float));
        }
    }
}

/* The first replaced of each group, counted from the rows. */
static void check_scan(const batch *b, const outcome *o)
{
    int first[GROUPS];
    for (int g = 0; g < GROUPS; g++) first[g] = INT_MAX;
    for (int r = 0; r < b->rows; r++)
        if (o->replaced[r] && b->order[r] < first[b->group[r]]) first[b->group[r]] = b->order[r];
    assert_memory_equal(first, o->first_replaced, sizeof first);
    assert_int_equal(first[GROUPS - 1], INT_MAX);
}

static kern_gaussian_rule rule_of(int method)
{
    static const char *const names[] = {"conditional", "paper", "cspd"};
    const double temperature = 5;
    return spec_method_find(names[method])->rule(&temperature);
}

/* From equal laws to disjoint ones. If they are close, the replacements are tilted candidates. */
static void same_as_the_cpu(void **state)
{
    (void)state;
    static const struct {
        double gap, spread;
    } cases[] = {{0, 0}, {1e-4, 0}, {0.02, 1e-3}, {0.7, 0.2}, {8, 0}};
    enum { CASES = sizeof cases / sizeof *cases, ODD = 8, TILTED = 16 };
    kern_queue *cpu = open_cpu(), *cuda = open_cuda(MAR_DTYPE_AUTO);
    int replaced = 0, accepted = 0, tilted = 0;
    for (int channels = 1; channels <= 64; channels *= 4) {
        const int regular = 75 * CASES * cuda_test_scale(), rows = regular + ODD;
        batch b = new_batch(rows, channels);
        for (int r = 0; r < regular; r++) {
            set_row(&b, r, cases[r % CASES].gap, cases[r % CASES].spread);
            b.path_p[r] = 0.3 * sin(r), b.path_q[r] = 0.3 * cos(2 * r);
            if (r % 3 == 0 && cases[r % CASES].gap > 0) provoke_rejection(&b, r);
        }
        for (int i = 0; i < ODD; i++) set_odd_row(&b, regular + i, i);
        for (int method = 0; method < 3; method++) {
            const kern_gaussian_rule rule = rule_of(method);
            outcome want = verify(cpu, &b, rule, 0), got = verify(cuda, &b, rule, method != 1);
            compare(&b, rule, &got, &want);
            check_scan(&b, &got);
            check_scan(&b, &want);
            for (int r = 0; r < regular; r++) {
                replaced += got.replaced[r], accepted += !got.replaced[r];
                tilted += got.tries[r] > TILTED;
            }
            assert_int_equal(got.replaced[regular], 0); /* the points */
            assert_int_equal(got.replaced[regular + 1], 1);
            assert_int_equal(got.tries[regular + 1], 0);
            assert_int_equal(got.replaced[regular + 2], 1); /* the NaN, which shows */
            assert_true(isnan(got.x[(regular + 3) * channels - 1]));
            free_outcome(&got), free_outcome(&want);
        }
        free_batch(&b);
    }
    print_message("%d accepted, %d replaced, %d of them by a tilted candidate\n", accepted, replaced, tilted);
    assert_true(accepted > 300 && replaced > 300 && tilted > 100);
    close_queue(cpu);
    close_queue(cuda);
}

/* Without rows each group still gets a result. */
static void nothing_to_verify(void **state)
{
    (void)state;
    kern_queue *cuda = open_cuda(MAR_DTYPE_AUTO);
    batch b = new_batch(0, 4);
    outcome o = verify(cuda, &b, rule_of(0), 0);
    check_scan(&b, &o);
    free_outcome(&o), free_batch(&b);
    close_queue(cuda);
}

/* The smallest KS p-value of the channels and the energy distance's, of one law's verified drafts. The job's p and q
 * are those of the rows, or each other's. */
static void law_p_values(kern_queue *cuda, kern_gaussian_rule rule, int swapped, double *ks, double *energy)
{
    enum { C = 4 };
    const int rows = 8000 * cuda_test_scale();
    static const double mean[C] = {-1, 0.3, 2, 0}, log_std[C] = {-2, -1, -0.3, 0.2};
    batch b = new_batch(rows, C);
    float *plain = memory((size_t)rows * C, sizeof *plain), *channel = memory((size_t)rows, sizeof *channel);
    for (int r = 0; r < rows; r++) {
        b.path_q[r] = 0.3;
        for (int c = 0; c < C; c++) {
            const int i = r * C + c;
            plain[i] = (float)(mean[c] + exp(log_std[c]) * b.mean_p[i]); /* still a normal */
            b.mean_p[i] = (float)mean[c], b.log_std_p[i] = (float)log_std[c];
            b.mean_q[i] = (float)(mean[c] + 0.5 * exp(log_std[c])), b.log_std_q[i] = (float)log_std[c] - 0.1f;
            b.draft[i] = (float)(b.mean_q[i] + exp((double)b.log_std_q[i]) * b.draft[i]);
        }
    }
    batch job = b;
    if (swapped) {
        job.mean_p = b.mean_q, job.mean_q = b.mean_p;
        job.log_std_p = b.log_std_q, job.log_std_q = b.log_std_p;
    }
    outcome o = verify(cuda, &job, rule, 1);
    *ks = 1;
    for (int c = 0; c < C; c++) {
        for (int r = 0; r < rows; r++) channel[r] = o.x[r * C + c];
        *ks = fmin(*ks, stat_ks_normal_p(channel, rows, mean[c], exp(log_std[c])));
    }
    *energy = stat_energy_p(o.x, plain, rows, C, 0, 5);
    free(plain), free(channel), free_outcome(&o), free_batch(&b);
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
    kern_queue *cuda = open_cuda(MAR_DTYPE_AUTO);
    double ks, energy;
    law_p_values(cuda, exact, 0, &ks, &energy);
    if (!(ks > 1e-4 && energy > 0.015)) fail_msg("exact: KS p %g, energy p %g", ks, energy);
    for (size_t i = 0; i < sizeof mutants / sizeof *mutants; i++) {
        law_p_values(cuda, mutants[i].rule, mutants[i].swapped, &ks, &energy);
        if (ks > 1e-4 && energy > 0.015) fail_msg("%s: KS p %g, energy p %g", mutants[i].name, ks, energy);
    }
    close_queue(cuda);
}

/* Rows of paths go to their places as pairs of floats, bit by bit. */
static void paths_keep_their_bits(void **state)
{
    (void)state;
    enum { N = 65 };
    kern_queue *cuda = open_cuda(MAR_DTYPE_AUTO);
    double from[N], to[N];
    int index[N];
    for (int i = 0; i < N; i++) {
        from[i] = i ? -1e3 * sin(i) / i : -NAN;
        index[i] = (i * 7 + 3) % N;
    }
    void *a = to_device(cuda, from, sizeof from), *b = to_device(cuda, NULL, sizeof to);
    cuda->core->copy_rows(cuda, b, index, a, NULL, NULL, NULL, N, 2);
    from_device(cuda, to, b, sizeof to);
    for (int i = 0; i < N; i++) assert_memory_equal(&to[index[i]], &from[i], sizeof *to);
    cuda->core->free(cuda->device, a), cuda->core->free(cuda->device, b);
    close_queue(cuda);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_the_cpu),
        cmocka_unit_test(nothing_to_verify),
        cmocka_unit_test(law_is_the_target),
        cmocka_unit_test(paths_keep_their_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
