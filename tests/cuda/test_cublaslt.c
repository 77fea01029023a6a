/* The choice of a product's algorithm, and products that cuBLASLt cannot compute. */
#include "mar.h"
#include "mar_measure.h"
#include "tests/cudahost/control.h"
#include "tests/support/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static float *product_of_64(int *status, mar_err *err)
{
    enum { SIDE = 64, ROWS = 40 };
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    float *w = random_floats(SIDE * SIDE, 0.125f, 5), *x = random_floats(ROWS * SIDE, 1, 7);
    float *y = malloc(ROWS * SIDE * sizeof *y);
    const kern_linear_spec spec = {.out = SIDE, .in = SIDE, .weight = w};
    kern_linear *l = NULL;
    assert_non_null(y);
    assert_ok(k->core->linear_create(k, &spec, &l, err), err);
    void *dx = to_device(k, x, ROWS * SIDE * sizeof *x), *dy = to_device(k, NULL, ROWS * SIDE * sizeof *y);
    assert_ok(k->core->linear_plan(k, l, ROWS, err), err);
    k->core->linear(k, l, dx, ROWS, dy);
    *status = kern_check(k, err);
    if (*status == MAR_OK) from_device(k, y, dy, ROWS * SIDE * sizeof *y);
    k->core->linear_free(k->device, l);
    k->core->free(k->device, dx), k->core->free(k->device, dy);
    close_queue(k);
    free(w), free(x);
    return y;
}

/* Checks that the simple kernel computes if cuBLASLt offers no algorithm. If the algorithm fails to run, the product
 * reports it. */
static void without_an_algorithm(void **state)
{
    int status;
    mar_err err = {0};
    (void)state;
    if (!cudahost_algorithms) return;
    float *expected = product_of_64(&status, &err);
    assert_ok(status, &err);
    cudahost_algorithms(CUDAHOST_NO_ALGORITHM);
    float *y = product_of_64(&status, &err);
    assert_ok(status, &err);
    assert_close(y, expected, 40 * 64, 1e-5);
    cudahost_algorithms(CUDAHOST_BROKEN_ALGORITHM);
    free(y), free(expected), free(product_of_64(&status, &err));
    assert_int_equal(status, MAR_EBACKEND);
    assert_non_null(strstr(err.text, "cuBLASLt: a product of 40 x 64 by 64 x 64"));
    cudahost_algorithms(CUDAHOST_ALGORITHM);
}

/* Checks that 9 to 16 rows need four choices, one for each two numbers of rows. An algorithm that refuses fewer rows
 * than it was chosen for is not used for them. */
static void rows_share_algorithms(void **state)
{
    enum { SIDE = 64, MOST = 16 };
    mar_err err = {0};
    (void)state;
    float *w = random_floats(SIDE * SIDE, 0.125f, 5), *x = random_floats(MOST * SIDE, 1, 7);
    float expected[MOST * SIDE], y[MOST * SIDE];
    for (int exact = 0; exact < (cudahost_algorithms ? 2 : 1); exact++) {
        kern_queue *k = open_cuda(MAR_DTYPE_F32);
        const kern_linear_spec spec = {.out = SIDE, .in = SIDE, .weight = w};
        kern_linear *l = NULL;
        if (exact) cudahost_algorithms(CUDAHOST_EXACT_ALGORITHM);
        assert_ok(k->core->linear_create(k, &spec, &l, &err), &err);
        void *dx = to_device(k, x, sizeof expected), *dy = to_device(k, NULL, sizeof expected);
        const long before = cudahost_choices ? cudahost_choices(NULL) : 0;
        for (int rows = MOST; rows > 8; rows--) {
            assert_ok(k->core->linear_plan(k, l, rows, &err), &err);
            k->core->linear(k, l, dx, rows, dy);
            from_device(k, y, dy, (size_t)rows * SIDE * sizeof *y);
            if (rows == MOST && !exact) memcpy(expected, y, sizeof y);
            assert_close(y, expected, (size_t)rows * SIDE, 1e-5);
            k->core->upload(k, dy, x, sizeof y);
        }
        if (cudahost_choices) assert_int_equal(cudahost_choices(NULL) - before, 4);
        k->core->linear_free(k->device, l);
        k->core->free(k->device, dx), k->core->free(k->device, dy);
        close_queue(k);
    }
    if (cudahost_algorithms) cudahost_algorithms(CUDAHOST_ALGORITHM);
    free(w), free(x);
}

/* Makes n images of the demo. */
static void generate(const mar_options *options, const char *text, int n)
{
    static const int labels[] = {3, 7};
    mar *m = NULL;
    mar_model *model = NULL;
    mar_session *s = NULL;
    const mar_params p = params_with(text);
    const mar_status status = mar_open(options, &m);
    assert_library(m, status);
    assert_library(m, mar_model_load(m, "demo", 0, &model));
    assert_library(m, mar_session_create(model, NULL, &p, n, &s));
    assert_session(s, mar_session_begin(s, 0, labels, n));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    mar_session_free(s);
    mar_model_free(model);
    mar_close(m);
}

#define SHORT "cfg 1, diff_annealing linear, diff_upper_steps 2, diff_lower_steps 2, "

/* Checks that a generation tries out no algorithm of a product. */
static void generation_tries_nothing(void **state)
{
    static const struct {
        int n;
        const char *params;
    } runs[] = {{2, SHORT "num_iter 1"}, {1, SHORT "num_iter 3, spec path, gamma 1"}, {1, SHORT "num_iter 1"}};
    const mar_options options = {.size = sizeof options, .backend = MAR_BACKEND_CUDA, .dtype = MAR_DTYPE_F32};
    long before = 0, candidates = 0;
    (void)state;
    if (!cudahost_choices) return;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const long choices = cudahost_choices(&before);
        generate(&options, runs[i].params, runs[i].n);
        assert_true(cudahost_choices(&candidates) > choices);
        assert_int_equal(candidates - before, 0);
    }
}

/* --- choices on file ----------------------------------------------------------------------------------------- */

/* Multiplies with `file` read before, and with `time` written. Returns the algorithms tried out, and the description
 * after reading. */
static long tuned_product(const char *file, int time, int rows, char description[256])
{
    enum { SIDE = 64 };
    static const float w[SIDE * SIDE];
    mar_err err = {0};
    long before = 0, after = 0;
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    const kern_linear_spec spec = {.out = SIDE, .in = SIDE, .weight = w};
    kern_linear *l = NULL;
    assert_ok(kern_cuda_tuning(k->device, file, time, &err), &err);
    snprintf(description, 256, "%s", k->device->unit);
    if (cudahost_choices) (void)cudahost_choices(&before);
    assert_ok(k->core->linear_create(k, &spec, &l, &err), &err);
    assert_ok(k->core->linear_plan(k, l, rows, &err), &err);
    if (cudahost_choices) (void)cudahost_choices(&after);
    k->core->linear_free(k->device, l);
    close_queue(k);
    return after - before;
}

/* Opens a device with the file and expects an error. */
static void refused(const char *file, int time, mar_status status, const char *why)
{
    mar_err err = {0};
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    assert_int_equal(kern_cuda_tuning(k->device, file, time, &err), status);
    if (!strstr(err.text, why)) fail_msg("%s, expected %s", err.text, why);
    close_queue(k);
}

/* Checks that a product is timed once, that the fastest algorithm is kept, and that other handles only read it. Lines
 * of other GPUs do not count; a damaged one of this GPU is refused. */
static void products_are_tuned_once(void **state)
{
    char line[512] = "", *last, description[256], file[] = "/tmp/mar_tuning_XXXXXX";
    (void)state;
    const int fd = mkstemp(file);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    assert_int_equal(unlink(file), 0);
    refused(file, 0, MAR_EIO, "cannot open");
    refused("/proc/none/x", 1, MAR_EIO, "cannot open");
    if (cudahost_algorithms) cudahost_algorithms(CUDAHOST_SLOW_ALGORITHM);
    const long tried = tuned_product(file, 1, 10, description);
    if (cudahost_algorithms) cudahost_algorithms(CUDAHOST_ALGORITHM);
    if (cudahost_choices) assert_int_equal(tried, CUDAHOST_CANDIDATES - 1);
    assert_non_null(strstr(description, " of 0 products"));
    assert_int_equal(tuned_product(file, 1, 9, description), 0);
    assert_non_null(strstr(description, ", tuning "));
    assert_non_null(strstr(description, " of 1 products"));
    assert_int_equal(tuned_product(file, 0, 20, description), 0);

    const mar_options options = {.size = sizeof options, .backend = MAR_BACKEND_CUDA, .tuning = file, .tune = 1};
    mar *m = NULL;
    const mar_status opened = mar_open(&options, &m);
    assert_library(m, opened);
    assert_non_null(strstr(mar_backend_description(m), " of 1 products)"));
    mar_close(m);

    FILE *f = fopen(file, "r+");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    last = strrchr(line, ' ');
    if (cudahost_choices) assert_int_equal(strtoull(last, NULL, 16) >> 48, CUDAHOST_FASTEST);
    assert_int_equal(fgetc(f), EOF);
    assert_true(fprintf(f, "x%.*s\n", (int)(last - line), line) > 0); /* another GPU */
    assert_int_equal(fflush(f), 0);
    assert_int_equal(tuned_product(file, 0, 10, description), 0);
    assert_non_null(strstr(description, " of 1 products"));
    assert_true(fprintf(f, "%.*s", (int)(last - line) + 2, line) > 0); /* the last number is incomplete */
    assert_int_equal(fclose(f), 0);
    refused(file, 0, MAR_EFORMAT, "line 3 is not one of mar bench --tune");
    assert_int_equal(unlink(file), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(without_an_algorithm), cmocka_unit_test(rows_share_algorithms),
                                       cmocka_unit_test(generation_tries_nothing),
                                       cmocka_unit_test(products_are_tuned_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
