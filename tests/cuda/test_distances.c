/* Squared distances on both backends: against sums in double, and what precision and recall rely on: equal rows have
 * distance 0, and a pair's bits depend on nothing but its two rows. */
#include "tests/support/device.h"

#include "mar.h"

#include <stdlib.h>
#include <string.h>

static float *run(kern_queue *k, const float *a, int rows, const float *b, int columns, int dim, size_t offset)
{
    const size_t n = (size_t)rows * (size_t)columns;
    float *y = malloc(n * sizeof *y);
    assert_non_null(y);
    float *left = to_device(k, NULL, ((size_t)rows * (size_t)dim + offset) * sizeof *a);
    float *right = to_device(k, b, (size_t)columns * (size_t)dim * sizeof *b);
    float *to = to_device(k, NULL, n * sizeof *y);
    k->core->upload(k, left + offset, a, (size_t)rows * (size_t)dim * sizeof *a);
    k->core->distances(k, left + offset, rows, right, columns, dim, to);
    from_device(k, y, to, n * sizeof *y);
    k->core->free(k->device, left), k->core->free(k->device, right), k->core->free(k->device, to);
    return y;
}

static void check(kern_queue *k, int rows, int columns, int dim, size_t offset)
{
    float *a = random_floats((size_t)(rows * dim), 1, 1), *b = random_floats((size_t)(columns * dim), 1, 2);
    memcpy(b + (columns - 1) * dim, a, (size_t)dim * sizeof *a);
    for (int i = 0; i < rows * dim; i++) a[i] += 1000;
    for (int i = 0; i < columns * dim; i++) b[i] += 1000;
    float *got = run(k, a, rows, b, columns, dim, offset), *back = run(k, b, columns, a, rows, dim, offset);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            double want = 0;
            for (int d = 0; d < dim; d++) {
                const double difference = (double)a[i * dim + d] - b[j * dim + d];
                want += difference * difference;
            }
            const float y = got[i * columns + j];
            if (!((double)y >= want * (1 - 1e-5) && (double)y <= want * (1 + 1e-5)))
                fail_msg("%dx%d rows of %d: %d and %d: %.9g, expected %.9g", rows, columns, dim, i, j, (double)y, want);
            assert_memory_equal(&y, &back[j * rows + i], sizeof y);
        }
    assert_true(got[columns - 1] == 0); /* of a's first row and what was made of it */
    /* Of a few rows alone the bits are the same. */
    const int row = rows / 2, column = columns / 3;
    float *alone = run(k, a + row * dim, rows - row, b + column * dim, 1, dim, offset);
    for (int i = row; i < rows; i++) assert_memory_equal(&alone[i - row], &got[i * columns + column], sizeof *got);
    free(a), free(b), free(got), free(back), free(alone);
}

static void check_all(kern_queue *k)
{
    check(k, 1, 1, 1, 0);
    check(k, 3, 2, 64, 0);
    check(k, 130, 131, 24, 0); /* more than one block */
    check(k, 17, 140, 37, 0);  /* no vectors */
    check(k, 9, 5, 36, 1);     /* nor here */
    check(k, 2, 3, 2048, 0);
    if (cuda_test_scale() > 1) check(k, 700, 600, 2048, 0);
    k->core->distances(k, NULL, 0, NULL, 0, 5, NULL);
    check_kern(k);
}

static void distances_of_cuda(void **unused)
{
    (void)unused;
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    check_all(k);
    close_queue(k);
}

static void distances_of_the_cpu(void **unused)
{
    (void)unused;
    static const char *const isas[] = {"generic", "avx2", "avx512"};
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        setenv("MAR_ISA", isas[i], 1);
        kern_queue *k = open_cpu();
        check_all(k);
        close_queue(k);
    }
    unsetenv("MAR_ISA");
}

/* The public call. */
static void precision_and_recall_are_the_cpus(void **unused)
{
    (void)unused;
    enum { N = 150, M = 140, DIM = 20 };
    float *a = random_floats(N * DIM, 1, 3), *b = random_floats(M * DIM, 0.8f, 4);
    double got[2][2];
    for (int i = 0; i < 2; i++) {
        const mar_options options = {.backend = i ? MAR_BACKEND_CUDA : MAR_BACKEND_CPU, .dtype = MAR_DTYPE_F32};
        mar *m = NULL;
        assert_int_equal(mar_open(&options, &m), MAR_OK);
        const mar_status status = mar_precision_recall(m, a, N, b, M, DIM, 3, &got[i][0], &got[i][1]);
        if (status != MAR_OK) fail_msg("%s", mar_error(m));
        mar_close(m);
    }
    assert_memory_equal(got[0], got[1], sizeof got[0]);
    assert_true(got[0][0] > 0.5 && got[0][0] < 1 && got[0][1] > 0.2 && got[0][1] < 1);
    free(a), free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distances_of_cuda),
        cmocka_unit_test(distances_of_the_cpu),
        cmocka_unit_test(precision_and_recall_are_the_cpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
