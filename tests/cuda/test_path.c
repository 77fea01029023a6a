/* Whole paths on the device: the CPU's ratios and decisions, and paths that are drawn and judged here. */
#include "diffusion/paths.h"
#include "tests/support/device.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t seed = 20260714;

/* --- the operations ------------------------------------------------------------------------------------------ */

/* The coefficients of a chain whose steps are about as wide as its means are far apart. */
static kern_chain_coef *make_coef(int steps)
{
    kern_chain_coef *coef = malloc((size_t)steps * sizeof *coef);
    assert_non_null(coef);
    for (int i = 0; i < steps; i++) {
        const float way = (float)(i + 1) / (float)(steps + 1);
        coef[i] = (kern_chain_coef){1 / sqrtf(1 - way), sqrtf(way / (1 - way)), 1 - way, way, -3, -1, i ? 1.0f : 0};
    }
    return coef;
}

/* Runs path_ratio of host arrays. */
static void ratio(kern_queue *k, kern_path_job job, double *log_ratio, float *last)
{
    const size_t paths = (size_t)job.paths, channels = (size_t)job.channels;
    void *path = to_device(k, job.path, paths * (size_t)job.stride * sizeof(float));
    void *out =
        to_device(k, job.out, (size_t)job.conditions * paths * (size_t)job.steps * 2 * channels * sizeof(float));
    void *on_ratio = to_device(k, NULL, paths * sizeof(double)), *on_last = to_device(k, NULL, paths * channels * 4);
    job.path = path, job.out = out, job.log_ratio = on_ratio, job.last = on_last;
    k->head->path_ratio(k, &job);
    from_device(k, log_ratio, on_ratio, paths * sizeof *log_ratio);
    from_device(k, last, on_last, paths * channels * sizeof *last);
    void *arrays[] = {path, out, on_ratio, on_last};
    for (int i = 0; i < 4; i++) k->core->free(k->device, arrays[i]);
}

static void ratios_are_the_cpus(void **state)
{
    (void)state;
    static const struct {
        int paths, channels, conditions, steps, spare;
        float temperature;
    } cases[] = {{1, 1, 1, 2, 0, 1},   {5, 8, 2, 20, 7, 1},  {3, 16, 2, 100, 48, 0.9f}, {2, 16, 1, 1000, 0, 1},
                 {40, 33, 2, 5, 1, 1}, {4, 300, 1, 3, 0, 1}, {6, 8, 2, 12, 0, 0},       {0, 8, 2, 12, 0, 1}};
    kern_queue *cpu = open_cpu(), *k = open_cuda(MAR_DTYPE_F32);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int paths = cases[i].paths, channels = cases[i].channels, steps = cases[i].steps;
        const int stride = (steps + 1) * KERN_EVALUATED * channels + cases[i].spare;
        const size_t words = (size_t)(cases[i].conditions * paths * steps * 2 * channels);
        float *path = random_floats((size_t)(paths * stride), 1, seed + i),
              *out = random_floats(words, 1, seed + i + 50);
        float *cfg = random_floats((size_t)paths, 0.5f, seed + i + 70), last[2][40 * 33 + 300];
        kern_chain_coef *coef = make_coef(steps);
        double log_ratio[2][40];
        for (size_t n = 0; n < words; n++) out[n] *= n / (size_t)channels % 2 ? 0.3f : 1;
        const kern_path_job job = {.paths = paths,
                                   .channels = channels,
                                   .conditions = cases[i].conditions,
                                   .steps = steps,
                                   .stride = stride,
                                   .path = path,
                                   .out = out,
                                   .coef = coef,
                                   .cfg = cases[i].conditions == 2 ? cfg : NULL,
                                   .log_temperature = logf(cases[i].temperature)};
        if (paths > 2) path[2 * stride + KERN_EVALUATED * channels] = NAN; /* a state */
        ratio(cpu, job, log_ratio[0], last[0]);
        ratio(k, job, log_ratio[1], last[1]);
        for (int r = 0; r < paths; r++) {
            const double is = log_ratio[1][r], expected = log_ratio[0][r];
            if (r == 2 || !isfinite(expected))
                assert_true(isnan(expected) ? isnan(is) : is == expected);
            else
                assert_true(fabs(is - expected) <= 1e-4 * (1 + fabs(expected)));
        }
        assert_true(paths <= 2 || isnan(log_ratio[1][2]));
        assert_close(last[1], last[0], (size_t)(paths * channels), 1e-5);
        free(path), free(out), free(cfg), free(coef);
    }
    close_queue(k);
    close_queue(cpu);
}

/* Runs path_decide of host arrays. */
static void decide(kern_queue *k, kern_path_verdict job, int *marked, int *first)
{
    const size_t rows = (size_t)job.rows, groups = (size_t)job.groups;
    void *log_ratio = to_device(k, job.log_ratio, rows * sizeof *job.log_ratio);
    void *on_marked = to_device(k, NULL, rows * sizeof *marked), *on_first = to_device(k, NULL, groups * sizeof *first);
    job.log_ratio = log_ratio, job.marked = on_marked, job.first = on_first;
    k->head->path_decide(k, &job);
    from_device(k, marked, on_marked, rows * sizeof *marked);
    from_device(k, first, on_first, groups * sizeof *first);
    void *arrays[] = {log_ratio, on_marked, on_first};
    for (int i = 0; i < 3; i++) k->core->free(k->device, arrays[i]);
}

static void decisions_are_the_cpus(void **state)
{
    (void)state;
    enum { ROWS = 700, GROUPS = 9 };
    kern_queue *cpu = open_cpu(), *k = open_cuda(MAR_DTYPE_F32);
    float *normal = random_floats(ROWS, 3, seed);
    double log_ratio[ROWS];
    uint64_t image[ROWS];
    int position[ROWS], group[ROWS], order[ROWS], marked[2][ROWS], first[2][GROUPS], count = 0;
    const double odd[] = {NAN, INFINITY, -INFINITY, 0, -1e-20, 1e-20, -700};
    for (int r = 0; r < ROWS; r++) {
        log_ratio[r] = r < 7 ? odd[r] : normal[r];
        image[r] = (uint64_t)(r % 3 + 1) << 40 | (uint64_t)r;
        position[r] = r % 64;
        group[r] = r * 5 % (GROUPS - 1); /* the last has no rows */
        order[r] = ROWS - r / 2;
    }
    for (int candidates = 0; candidates < 2; candidates++)
        for (int rows = 0; rows <= ROWS; rows += ROWS) {
            const kern_path_verdict job = {.rows = rows,
                                           .candidates = candidates,
                                           .log_ratio = log_ratio,
                                           .seed = seed,
                                           .step = 3,
                                           .image = image,
                                           .position = position,
                                           .group = group,
                                           .order = order,
                                           .groups = GROUPS};
            decide(cpu, job, marked[0], first[0]);
            decide(k, job, marked[1], first[1]);
            for (int r = 0; r < rows; r++) count += marked[0][r];
            assert_memory_equal(marked[1], marked[0], sizeof(int) * (size_t)rows);
            assert_memory_equal(first[1], first[0], sizeof first[0]);
            assert_int_equal(first[1][GROUPS - 1], INT_MAX);
        }
    assert_in_range(count, ROWS / 4, 2 * ROWS - ROWS / 4);
    free(normal);
    close_queue(k);
    close_queue(cpu);
}

/* --- paths of a head ----------------------------------------------------------------------------------------- */

enum { C = 8, Z = 32, STEPS = 20, TOKENS = 9, SOURCES = 4 };
static const int sources[TOKENS] = {0, 0, 0, 1, 2, 2, 3, 3, 3};

/* Paths of the demo draft's head, on conditions at random. Two conditions a token. */
typedef struct {
    kern_queue *k;
    diff_head head;
    diff_chain chain;
    diff_paths paths;
    void *memory[2], *z, *other_z, *each_z, *x, *path, *log_ratio, *last;
    uint64_t image[TOKENS];
    int position[TOKENS];
    float cfg[TOKENS];
} fixture;

static void open_fixture(fixture *f, kern_queue *k, int window)
{
    mar_err err = {0};
    wt_file *file;
    float *z = random_floats(2 * SOURCES * Z, 1, seed), *other = random_floats(2 * SOURCES * Z, 0.05f, seed + 1);
    float each[2 * TOKENS * Z];
    memset(f, 0, sizeof *f);
    f->k = k;
    assert_ok(wt_open("weights/demo/draft.safetensors", &file, &err), &err);
    assert_ok(diff_head_load(k, file, 48, 1, C, Z, 0, 0, &f->head, &err), &err);
    wt_close(file);
    assert_ok(diff_chain_create(k, &f->head, STEPS, 1, TOKENS, 1, &f->chain, &err), &err);
    f->memory[0] = to_device(k, NULL, diff_chain_lay_out(&f->chain, NULL));
    diff_chain_lay_out(&f->chain, f->memory[0]);
    assert_ok(diff_paths_create(&f->chain, window, TOKENS, &f->paths, &err), &err);
    f->memory[1] = to_device(k, NULL, diff_paths_lay_out(&f->paths, NULL));
    diff_paths_lay_out(&f->paths, f->memory[1]);
    for (int i = 0; i < 2 * SOURCES * Z; i++) other[i] += z[i];
    for (int r = 0; r < 2 * TOKENS; r++)
        memcpy(each + r * Z, z + (r / TOKENS * SOURCES + sources[r % TOKENS]) * Z, Z * sizeof *z);
    f->z = to_device(k, z, 2 * SOURCES * Z * sizeof *z);
    f->other_z = to_device(k, other, 2 * SOURCES * Z * sizeof *z);
    f->each_z = to_device(k, each, sizeof each);
    f->x = to_device(k, NULL, TOKENS * C * sizeof(float));
    f->path = to_device(k, NULL, TOKENS * (size_t)f->paths.stride * sizeof(float));
    f->log_ratio = to_device(k, NULL, TOKENS * sizeof(double));
    f->last = to_device(k, NULL, TOKENS * C * sizeof(float));
    for (int i = 0; i < TOKENS; i++) f->image[i] = (uint64_t)i, f->position[i] = 5, f->cfg[i] = 2.5f;
    free(z), free(other);
}

static void close_fixture(fixture *f)
{
    kern_device *d = f->k->device;
    void *arrays[] = {f->memory[0], f->memory[1], f->z, f->other_z, f->each_z, f->x, f->path, f->log_ratio, f->last};
    check_kern(f->k);
    diff_paths_free(&f->paths);
    diff_chain_free(&f->chain);
    diff_head_free(&f->head);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) d->core->free(d, arrays[i]);
    close_queue(f->k);
}

static diff_tokens tokens_of(const fixture *f, const float *z, int shared)
{
    return (diff_tokens){
        TOKENS, shared ? SOURCES : TOKENS, shared ? sources : NULL, z, NULL, f->cfg, seed, f->image, f->position};
}

static void draw(fixture *f, int shared, float *x)
{
    diff_speculation_stats stats = {0};
    const diff_tokens t = tokens_of(f, shared ? f->z : f->each_z, shared);
    diff_paths_draw(&f->paths, &t, f->x, f->path, &stats);
    from_device(f->k, x, f->x, TOKENS * C * sizeof *x);
}

static void judge(fixture *f, const diff_tokens *t, double *log_ratio)
{
    diff_speculation_stats stats = {0};
    diff_paths_judge(&f->paths, t, f->path, f->log_ratio, f->last, &stats);
    from_device(f->k, log_ratio, f->log_ratio, TOKENS * sizeof *log_ratio);
}

/* What the CPU has drawn is judged on both, in f32: in bf16 the head is another, and the chain's last steps are narrow.
 * What the device has drawn has a ratio near 0 under its own law, whether its conditions are shared or not, and however
 * few paths a call judges. */
static void judgements_are_the_cpus(void **state)
{
    (void)state;
    static const struct {
        mar_dtype dtype;
        int window, most;
        double own; /* how near to 0 the ratios of a path's own law must be */
    } cases[] = {{MAR_DTYPE_F32, 1, 100, 1e-3}, {MAR_DTYPE_F32, 8, 2, 1e-3}, {MAR_DTYPE_BF16, 8, 4, 0.5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture cpu, f;
        float x[TOKENS * C], last[TOKENS * C];
        double expected[TOKENS], is[TOKENS];
        if (cuda_test_brief() && i == 0) continue;
        open_fixture(&cpu, open_cpu(), cases[i].window);
        open_fixture(&f, open_cuda(cases[i].dtype), cases[i].window);
        f.paths.most = cases[i].most;
        draw(&cpu, 1, x);
        const diff_tokens on_cpu = tokens_of(&cpu, cpu.other_z, 1), other = tokens_of(&f, f.other_z, 1);
        judge(&cpu, &on_cpu, expected);
        f.k->core->upload(f.k, f.path, cpu.path, TOKENS * (size_t)f.paths.stride * sizeof(float));
        judge(&f, &other, is);
        for (int r = 0; r < TOKENS; r++)
            if (cases[i].dtype == MAR_DTYPE_F32 && !(fabs(is[r] - expected[r]) <= 2e-3 * (1 + fabs(expected[r]))))
                fail_msg("case %zu, path %d: ratio %g, the CPU's %g", i, r, is[r], expected[r]);
        for (int shared = 0; shared < 2; shared++) {
            mar_err err = {0};
            const diff_tokens own = tokens_of(&f, shared ? f.z : f.each_z, shared);
            assert_ok(diff_paths_plan(&f.paths, TOKENS, TOKENS, &err), &err);
            draw(&f, shared, x);
            judge(&f, &own, is);
            for (int r = 0; r < TOKENS; r++)
                if (!(fabs(is[r]) <= cases[i].own)) fail_msg("case %zu, path %d: own ratio %g", i, r, is[r]);
            from_device(f.k, last, f.last, sizeof last);
            assert_close(last, x, TOKENS * C, cases[i].dtype == MAR_DTYPE_F32 ? 1e-5 : 1e-2);
        }
        close_fixture(&f);
        close_fixture(&cpu);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ratios_are_the_cpus),
        cmocka_unit_test(decisions_are_the_cpus),
        cmocka_unit_test(judgements_are_the_cpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
