/* Compares sums of vectors with NumPy. Their bits are the same for any division into calls and any instruction set. */
#include "tests/support/golden_doubles.h"

#include "eval/moments.h"

#include <math.h>
#include <string.h>

enum { DIM = 40, ROWS = 300 };

static eval_moments moments_of(int dim)
{
    eval_moments m;
    assert_int_equal(eval_moments_create(dim, &m), MAR_OK);
    return m;
}

static size_t pairs(int dim)
{
    return (size_t)dim * (size_t)(dim + 1) / 2;
}

static void assert_same_bits(const eval_moments *a, const eval_moments *b)
{
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->sum, b->sum, (size_t)a->dim * sizeof(double));
    assert_memory_equal(a->products, b->products, pairs(a->dim) * sizeof(double));
}

TEST_CASE(against_numpy)
{
    wt_file *f = golden_open("numbers");
    float *x = golden_f32(f, "x", ROWS * DIM);
    double *mean = golden_f64(f, "mean", DIM), *covariance = golden_f64(f, "covariance", DIM * DIM);
    double got_mean[DIM], got_covariance[DIM * DIM];
    eval_moments m = moments_of(DIM);
    eval_moments_add(&m, x, ROWS);
    assert_int_equal(m.count, ROWS);
    eval_moments_finish(&m, got_mean, got_covariance);
    for (int i = 0; i < DIM; i++) assert_near(got_mean[i], mean[i], 1e-13 * (1 + fabs(mean[i])));
    for (int i = 0; i < DIM * DIM; i++)
        assert_near(got_covariance[i], covariance[i], 1e-13 * (1 + fabs(covariance[i])));
    eval_moments_free(&m);
    free(x);
    free(mean);
    free(covariance);
    wt_close(f);
}

/* Makes n numbers that are not sums of few powers of 2. */
static float *numbers(size_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    uint32_t word = 1;
    for (size_t i = 0; i < n; i++) {
        word = word * 1664525u + 1013904223u;
        x[i] = (float)(word >> 8) / 1677721.6f - 3.3f;
    }
    return x;
}

/* Adds one product after another, in the order of the rows. Every other method must give this result. */
static eval_moments plain_sums(const float *x, int rows, int dim)
{
    eval_moments m = moments_of(dim);
    m.count = (uint64_t)rows;
    for (int k = 0; k < rows; k++) {
        const float *row = x + (size_t)k * (size_t)dim;
        double *products = m.products;
        for (int i = 0; i < dim; i++) {
            m.sum[i] += (double)row[i];
            for (int j = 0; j <= i; j++) *products++ += (double)row[i] * (double)row[j];
        }
    }
    return m;
}

TEST_CASE(bits)
{
    static const int dims[] = {1, 5, 24, 64, 131}, calls[] = {1, 7, 128, 300};
    static const char *const isas[] = {"generic", "avx2", "avx512"};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
        const int dim = dims[d];
        float *x = numbers((size_t)ROWS * (size_t)dim);
        eval_moments expected = plain_sums(x, ROWS, dim);
        for (int isa = 0; isa < 3; isa++) {
            setenv("MAR_ISA", isas[isa], 1);
            for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
                eval_moments m = moments_of(dim);
                for (int first = 0; first < ROWS; first += calls[c])
                    eval_moments_add(&m, x + (size_t)first * (size_t)dim,
                                     ROWS - first < calls[c] ? ROWS - first : calls[c]);
                assert_same_bits(&m, &expected);
                eval_moments_free(&m);
            }
        }
        unsetenv("MAR_ISA");
        eval_moments_free(&expected);
        free(x);
    }
}

TEST_CASE(merging)
{
    float *x = numbers((size_t)ROWS * DIM);
    eval_moments a = moments_of(DIM), b = moments_of(DIM);
    eval_moments_add(&a, x, 100);
    eval_moments_add(&b, x + 100 * DIM, ROWS - 100);
    const double sum = a.sum[3] + b.sum[3], product = a.products[17] + b.products[17];
    eval_moments_merge(&a, &b);
    assert_int_equal(a.count, ROWS);
    assert_true(a.sum[3] == sum && a.products[17] == product);
    eval_moments_free(&a);
    eval_moments_free(&b);
    eval_moments_free(&b); /* freeing {0} is allowed */
    free(x);
}
