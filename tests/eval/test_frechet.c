/* Compares the Frechet distance with the formulas of ADM and torch-fidelity, for covariances of full and lower rank. */
#include "tests/support/golden_doubles.h"

#include "eval/frechet.h"
#include "eval/moments.h"

#include <math.h>
#include <string.h>

typedef struct {
    int dim;
    double *mean, *covariance;
} gaussian;

static gaussian gaussian_of(const wt_file *f, const char *name, int rows, int dim)
{
    gaussian g = {dim, malloc((size_t)dim * sizeof(double)), malloc((size_t)dim * (size_t)dim * sizeof(double))};
    float *x = golden_f32(f, name, (int64_t)rows * dim);
    eval_moments m;
    assert_non_null(g.mean);
    assert_non_null(g.covariance);
    assert_int_equal(eval_moments_create(dim, &m), MAR_OK);
    eval_moments_add(&m, x, rows);
    eval_moments_finish(&m, g.mean, g.covariance);
    eval_moments_free(&m);
    free(x);
    return g;
}

static void release(gaussian *g)
{
    free(g->mean);
    free(g->covariance);
}

static double distance(const gaussian *a, const gaussian *b)
{
    double d = -1;
    char why[256] = "";
    const eval_gaussian x = {a->mean, a->covariance}, y = {b->mean, b->covariance};
    if (eval_frechet(a->dim, &x, &y, &d, why, sizeof why) != MAR_OK) fail_msg("%s", why);
    return d;
}

TEST_CASE(full_rank)
{
    wt_file *f = golden_open("numbers");
    double *expected = golden_f64(f, "frechet", 3);
    gaussian a = gaussian_of(f, "x", 300, 40), b = gaussian_of(f, "y", 200, 40);
    assert_near(distance(&a, &b), expected[0], 1e-8);
    assert_near(distance(&a, &b), expected[1], 1e-8);
    assert_near(distance(&b, &a), expected[0], 1e-8);
    assert_near(distance(&a, &a), 0, 1e-8);
    release(&a);
    release(&b);
    free(expected);
    wt_close(f);
}

TEST_CASE(fewer_images_than_numbers)
{
    wt_file *f = golden_open("numbers");
    double *expected = golden_f64(f, "frechet.few", 3);
    gaussian few = gaussian_of(f, "few", 30, 96), many = gaussian_of(f, "many", 400, 96);
    gaussian other = gaussian_of(f, "other", 25, 96);
    assert_near(distance(&few, &many), expected[0], 1e-6);
    assert_near(distance(&many, &few), expected[1], 1e-6);
    assert_near(distance(&few, &other), expected[2], 1e-6);
    assert_near(distance(&few, &few), 0, 1e-8);
    release(&few);
    release(&many);
    release(&other);
    free(expected);
    wt_close(f);
}

/* Diagonal covariances: sum of (m - n)^2 + (s - t)^2 over the numbers. */
TEST_CASE(by_hand)
{
    double mean_a[3] = {1, 2, 3}, mean_b[3] = {1, 0, 3.5}, zero[9] = {0};
    double a[9] = {4, 0, 0, 0, 9, 0, 0, 0, 0}, b[9] = {1, 0, 0, 0, 0, 0, 0, 0, 25};
    const gaussian x = {3, mean_a, a}, y = {3, mean_b, b}, constant = {3, mean_b, zero};
    assert_near(distance(&x, &y), 4 + 0.25 + 1 + 9 + 25, 1e-12);
    assert_near(distance(&x, &constant), 4 + 0.25 + 13, 1e-12);
    assert_near(distance(&constant, &constant), 0, 1e-12);
}

TEST_CASE(refused)
{
    double mean[2] = {0}, bad_mean[2] = {0, INFINITY}, good[4] = {1, 0, 0, 1}, bad[4] = {1, NAN, NAN, 1}, d = 0;
    char why[256] = "";
    const eval_gaussian ok = {mean, good};
    assert_int_equal(eval_frechet(2, &ok, &(eval_gaussian){mean, bad}, &d, why, sizeof why), MAR_EARG);
    assert_string_equal(why, "the covariance of the reference is not finite, expected numbers");
    assert_true(isnan(d));
    assert_int_equal(eval_frechet(2, &(eval_gaussian){bad_mean, good}, &ok, &d, why, sizeof why), MAR_EARG);
    assert_string_equal(why, "the mean of the images is not finite, expected numbers");
}
