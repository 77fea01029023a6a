/* Steps of the chain and addressed noise, against the CPU. */
#include "tests/support/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t seed = 0xC0FFEE1234567890;

typedef struct {
    kern_queue *cpu, *cuda;
    int rows, channels;
    float *x, *out, *cfg; /* host [rows][C], [2*rows][2C], [rows] */
    uint64_t *image;
    int *position;
} fixture;

static void open_fixture(fixture *f, int rows, int channels)
{
    const size_t n = (size_t)rows * (size_t)channels;
    *f = (fixture){.cpu = open_cpu(), .cuda = open_cuda(MAR_DTYPE_AUTO), .rows = rows, .channels = channels};
    f->x = random_floats(n, 1, seed + 1);
    f->out = random_floats(4 * n, 1, seed + 2);
    f->cfg = random_floats((size_t)rows, 2, seed + 3);
    f->image = malloc((size_t)rows * sizeof *f->image);
    f->position = malloc((size_t)rows * sizeof *f->position);
    assert_non_null(f->image);
    assert_non_null(f->position);
    for (int r = 0; r < rows; r++) {
        f->image[r] = (uint64_t)(r % 3) << 32 | (uint64_t)(r * r);
        f->position[r] = (r * 7919) % (1 << 24);
    }
}

static void close_fixture(fixture *f)
{
    check_kern(f->cuda);
    close_queue(f->cpu);
    close_queue(f->cuda);
    free(f->x), free(f->out), free(f->cfg), free(f->image), free(f->position);
}

/* The largest |a - b|, each in units of max(1, |b|). */
static double worst(const float *a, const float *b, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - b[i]) / fmax(1, fabs((double)b[i]));
        if (!(d <= most)) most = isnan(d) ? INFINITY : d;
    }
    return most;
}

static void normals(void **state)
{
    (void)state;
    const int channels[] = {16, 6, 1}, rows = 300 * cuda_test_scale();
    for (int c = 0; c < 3; c++) {
        fixture f;
        open_fixture(&f, rows, channels[c]);
        const size_t n = (size_t)rows * (size_t)channels[c];
        float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
        assert_non_null(want);
        assert_non_null(got);
        float *device = to_device(f.cuda, f.x, n * sizeof *got);
        for (int purpose = KERN_NOISE_INIT; purpose <= KERN_NOISE_STEP; purpose++) {
            const int step = purpose == KERN_NOISE_INIT ? 0 : 65535;
            f.cpu->head->normal(f.cpu, want, rows, channels[c], seed, (kern_noise)purpose, f.image, f.position, step);
            f.cuda->head->normal(f.cuda, device, rows, channels[c], seed, (kern_noise)purpose, f.image, f.position,
                                 step);
            from_device(f.cuda, got, device, n * sizeof *got);
            assert_true(worst(got, want, n) < 1e-6);
        }
        f.cuda->core->free(f.cuda->device, device);
        free(want), free(got);
        close_fixture(&f);
    }
}

static void ddpm_steps(void **state)
{
    (void)state;
    const kern_chain_coef coefs[] = {
        {1.25f, 0.75f, 0.3f, 0.65f, -5, -1, 1},
        {90, 89.99f, 0.01f, 0.97f, -0.1f, -0.02f, 0.9f}, /* as at the chain's beginning */
        {1.0001f, 0.01f, 1, 0, -9, -9, 0},               /* at its end: no noise */
    };
    const int channels[] = {16, 6};
    for (int c = 0; c < 2; c++) {
        fixture f;
        open_fixture(&f, 150 * cuda_test_scale(), channels[c]);
        const size_t n = (size_t)f.rows * (size_t)f.channels;
        float *x = to_device(f.cuda, f.x, n * sizeof *x), *out = to_device(f.cuda, f.out, 4 * n * sizeof *out);
        float *got = malloc(n * sizeof *got);
        assert_non_null(got);
        for (int i = 0; i < 6; i++) {
            const float *cfg = i % 2 ? f.cfg : NULL;
            const kern_chain_coef *coef = &coefs[i / 2];
            f.cuda->core->upload(f.cuda, x, f.x, n * sizeof *x);
            f.cuda->head->chain_step(f.cuda, x, out, f.rows, f.channels, cfg, coef, seed, f.image, f.position, 7 + i);
            from_device(f.cuda, got, x, n * sizeof *x);
            f.cpu->head->chain_step(f.cpu, f.x, f.out, f.rows, f.channels, cfg, coef, seed, f.image, f.position, 7 + i);
            assert_close(got, f.x, n, 1e-6);
        }
        f.cuda->core->free(f.cuda->device, x), f.cuda->core->free(f.cuda->device, out);
        free(got);
        close_fixture(&f);
    }
}

static void solver_steps(void **state)
{
    (void)state;
    const kern_ode_coef coefs[] = {{1.25f, 0.75f, 0.9f, 0.2f, 0}, {1.1f, 0.6f, 0.8f, 0.5f, -0.25f}};
    fixture f;
    open_fixture(&f, 150 * cuda_test_scale(), 6);
    const size_t n = (size_t)f.rows * (size_t)f.channels;
    float *x0 = random_floats(n, NAN, seed), *got = malloc(n * sizeof *got); /* the first step does not read x0 */
    assert_non_null(got);
    float *x = to_device(f.cuda, f.x, n * sizeof *x), *out = to_device(f.cuda, f.out, 4 * n * sizeof *out);
    float *before = to_device(f.cuda, x0, n * sizeof *x0);
    for (int i = 0; i < 4; i++) {
        const float *cfg = i % 2 ? f.cfg : NULL;
        f.cuda->head->chain_ode_step(f.cuda, x, before, out, f.rows, f.channels, cfg, &coefs[i > 0]);
        f.cpu->head->chain_ode_step(f.cpu, f.x, x0, f.out, f.rows, f.channels, cfg, &coefs[i > 0]);
        from_device(f.cuda, got, x, n * sizeof *x);
        assert_close(got, f.x, n, 1e-6);
        from_device(f.cuda, got, before, n * sizeof *x0);
        assert_close(got, x0, n, 1e-6);
    }
    float *arrays[] = {x, out, before};
    for (int i = 0; i < 3; i++) f.cuda->core->free(f.cuda->device, arrays[i]);
    free(x0), free(got);
    close_fixture(&f);
}

static void laws(void **state)
{
    (void)state;
    const kern_chain_coef coefs[] = {{1.25f, 0.75f, 0.3f, 0.65f, -5, -1, 1}, {1.5f, 1.1f, 0.2f, 0.75f, -3, -2, 1}};
    fixture f;
    open_fixture(&f, 150 * cuda_test_scale(), 6);
    const size_t n = (size_t)f.rows * (size_t)f.channels;
    const kern_chain_coef **coef = malloc((size_t)f.rows * sizeof *coef);
    float *want = malloc(2 * n * sizeof *want), *got = malloc(2 * n * sizeof *got);
    assert_non_null(coef);
    assert_non_null(want);
    assert_non_null(got);
    for (int r = 0; r < f.rows; r++) coef[r] = &coefs[r % 2];
    float *x = to_device(f.cuda, f.x, n * sizeof *x), *out = to_device(f.cuda, f.out, 4 * n * sizeof *out);
    float *law = to_device(f.cuda, NULL, 2 * n * sizeof *law);
    double *path = to_device(f.cuda, NULL, (size_t)f.rows * sizeof *path);
    double *want_path = calloc((size_t)f.rows, sizeof *want_path), *got_path = calloc((size_t)f.rows, sizeof *path);
    assert_non_null(want_path);
    assert_non_null(got_path);
    for (int i = 0; i < 3; i++) {
        const float *cfg = i % 2 ? f.cfg : NULL, temperature = i == 2 ? 0 : 0.9f;
        f.cuda->head->chain_law(f.cuda, x, out, f.rows, f.channels, cfg, coef, temperature, law, law + n);
        f.cpu->head->chain_law(f.cpu, f.x, f.out, f.rows, f.channels, cfg, coef, temperature, want, want + n);
        from_device(f.cuda, got, law, 2 * n * sizeof *law);
        assert_close(got, want, n, 1e-6);
        if (i == 2) { /* no noise at all */
            for (size_t j = 0; j < n; j++) assert_true(got[n + j] == -INFINITY && want[n + j] == -INFINITY);
            continue;
        }
        assert_close(got + n, want + n, n, 1e-6);
        f.cuda->head->add_log_std(f.cuda, path, law + n, f.rows, f.channels);
        from_device(f.cuda, got_path, path, (size_t)f.rows * sizeof *path);
        for (int r = 0; r < f.rows; r++) { /* the same numbers in the same order: the same sum */
            for (int c = 0; c < f.channels; c++) want_path[r] += (double)got[n + (size_t)(r * f.channels + c)];
            assert_true(want_path[r] == got_path[r] && want_path[r] != 0);
        }
    }
    void *arrays[] = {x, out, law, path};
    for (int i = 0; i < 4; i++) f.cuda->core->free(f.cuda->device, arrays[i]);
    free(want), free(got), free(want_path), free(got_path), free(coef);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normals),
        cmocka_unit_test(ddpm_steps),
        cmocka_unit_test(solver_steps),
        cmocka_unit_test(laws),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
