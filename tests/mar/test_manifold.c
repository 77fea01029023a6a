/* Tests mar_precision_recall in two ways. One uses all distances in double, on points whose distances are exact in f32.
 * The other uses the formulas of ADM's evaluator. Compares mar_kernel_distance with torch-fidelity. */
#include "kernels/rng.h"

#include "mar_eval.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static mar *handle;

static int open_handle(void **unused)
{
    (void)unused;
    const mar_options options = {.size = sizeof options, .backend = MAR_BACKEND_CPU, .threads = 2};
    return mar_open(&options, &handle) == MAR_OK ? 0 : -1;
}

static int close_handle(void **unused)
{
    (void)unused;
    mar_close(handle);
    return 0;
}

/* --- all distances in double -------------------------------------------------------------------------------------- */

static double distance(const float *a, const float *b, int dim)
{
    double sum = 0;
    for (int i = 0; i < dim; i++) sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sum;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the radii as ADM's evaluator defines them: a point's k-th smallest distance to its set. The point itself is
 * number 0. */
static double *radii(const float *x, int n, int dim, int k)
{
    double *radius = malloc((size_t)n * sizeof *radius), *all = malloc((size_t)n * sizeof *all);
    assert_true(radius && all);
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) all[j] = distance(x + (size_t)i * (size_t)dim, x + (size_t)j * (size_t)dim, dim);
        qsort(all, (size_t)n, sizeof *all, ascending);
        radius[i] = all[k];
    }
    free(all);
    return radius;
}

/* Returns the fraction of b's points that lie in a ball of a. */
static double fraction(const float *a, int n, const double *radius, const float *b, int m, int dim)
{
    int inside = 0;
    for (int j = 0; j < m; j++) {
        int i = 0;
        while (i < n && !(distance(a + (size_t)i * (size_t)dim, b + (size_t)j * (size_t)dim, dim) <= radius[i])) i++;
        inside += i < n;
    }
    return (double)inside / m;
}

static void check(const float *a, int n, const float *b, int m, int dim, int k)
{
    double precision = -1, recall = -1, *radius_a = radii(a, n, dim, k), *radius_b = radii(b, m, dim, k);
    assert_library(handle, mar_precision_recall(handle, a, n, b, m, dim, k, &precision, &recall));
    const double want[2] = {fraction(a, n, radius_a, b, m, dim), fraction(b, m, radius_b, a, n, dim)};
    if (precision != want[0] || recall != want[1])
        fail_msg("%d and %d points of %d numbers, k %d: %.9g and %.9g, expected %.9g and %.9g", n, m, dim, k, precision,
                 recall, want[0], want[1]);
    free(radius_a), free(radius_b);
}

/* --- points ------------------------------------------------------------------------------------------------------- */

static uint32_t word(uint64_t image, int block, int i)
{
    uint32_t words[4];
    kern_random_words(17, KERN_NOISE_INIT, image, 0, 0, (uint32_t)block, words);
    return words[i];
}

/* Makes points in clusters; the numbers are multiples of 1/4 up to `spread`. Their distances are exact in f32, and many
 * are equal. Some points occur more than once. */
static float *cluster_points(int n, int dim, int clusters, int spread, int seed)
{
    float *x = malloc((size_t)n * (size_t)dim * sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < n; i++) {
        const int like =
            i > 10 && word((uint64_t)seed, i, 0) % 8 == 0 ? (int)(word((uint64_t)seed, i, 1) % (unsigned)i) : i;
        float *point = x + (size_t)i * (size_t)dim;
        for (int d = 0; d < dim; d++)
            point[d] = (float)((int)(word(1000 + (uint64_t)(like % clusters), d, 0) % 64) +
                               (int)(word(10000 * (uint64_t)(seed + 1) + (uint64_t)like, d, 0) % (unsigned)spread)) /
                       4;
    }
    return x;
}

TEST_CASE(points_are_judged_as_in_double)
{
    static const int cases[][6] = {
        /* n, m, dim, clusters, spread, k */
        {4, 4, 3, 1, 9, 3},     {5, 40, 1, 2, 30, 3},  {60, 7, 17, 3, 50, 1},     {130, 200, 5, 8, 6, 3},
        {65, 64, 33, 4, 40, 3}, {200, 90, 2, 5, 3, 5}, {100, 100, 64, 7, 60, 99},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int *c = cases[i];
        float *a = cluster_points(c[0], c[2], c[3], c[4], 1), *b = cluster_points(c[1], c[2], c[3] + 1, c[4], 2);
        check(a, c[0], b, c[1], c[2], c[5]);
        check(b, c[1], a, c[0], c[2], c[5] < c[0] ? c[5] : 1);
        free(a), free(b);
    }
}

/* Tests more points than one block compares: many points, or large ones. */
TEST_CASE(points_of_several_squares)
{
    float *a = cluster_points(2300, 4, 40, 20, 1), *b = cluster_points(2049, 4, 50, 20, 2);
    check(a, 2300, b, 2049, 4, 3);
    check(a, 2300, b, 20, 4, 3);
    free(a), free(b);
    enum { LARGE = 600000 }; /* six points fit in a block */
    a = malloc(13 * LARGE * sizeof *a);
    assert_non_null(a);
    for (int i = 0; i < 13 * LARGE; i++) a[i] = (float)(i % 7 == 0 ? i / LARGE * (i / LARGE) : i % 5) / 4;
    check(a, 9, a + 5 * LARGE, 8, LARGE, 3);
    free(a);
}

/* Tests features far from 0 that differ little between images. There |u|^2 + |v|^2 - 2 u v in f32 would be mostly
 * rounding. */
TEST_CASE(near_points_far_from_zero)
{
    enum { N = 90, M = 70, DIM = 300 };
    float *a = cluster_points(N, DIM, 3, 5, 1), *b = cluster_points(M, DIM, 3, 5, 2);
    for (int i = 0; i < N * DIM; i++) a[i] = a[i] / 64 + 1000;
    for (int i = 0; i < M * DIM; i++) b[i] = b[i] / 64 + 1000;
    check(a, N, b, M, DIM, 3);
    free(a), free(b);
}

/* Checks that images of the reference are inside it, whatever their features. Their distances are 0, or have equal
 * bits. */
TEST_CASE(the_same_images)
{
    enum { N = 150, DIM = 77 };
    float *a = malloc(2 * N * DIM * sizeof *a);
    double precision, recall;
    assert_non_null(a);
    for (int i = 0; i < 2 * N * DIM; i++)
        a[i] = 3 + expf((float)(word((uint64_t)(i / DIM), i % DIM, 2) >> 8) / 1e7f) / 3;
    assert_library(handle, mar_precision_recall(handle, a, N, a, N, DIM, 3, &precision, &recall));
    assert_true(precision == 1 && recall == 1);
    assert_library(handle, mar_precision_recall(handle, a, 2 * N, a + N * DIM, N, DIM, 3, &precision, &recall));
    assert_true(precision == 1);
    for (int i = 0; i < 5; i++) memcpy(a + i * DIM, a, DIM * sizeof *a); /* five copies of one image: a point */
    for (int i = 0; i < 4; i++) memcpy(a + (N + i) * DIM, a, DIM * sizeof *a);
    for (int i = 4; i < N; i++)
        for (int d = 0; d < DIM; d++) a[(N + i) * DIM + d] = a[d] * (1 + (float)i * 1e-6f) + 1e-5f;
    assert_library(handle, mar_precision_recall(handle, a, 5, a + N * DIM, N, DIM, 3, &precision, &recall));
    assert_true(precision == 4.0 / N && recall == 1);
    free(a);
}

/* --- ADM's formulas ----------------------------------------------------------------------------------------------- */

enum { DIM = 2048, CLUSTERS = 24 };

/* Returns byte d of the random words at an image's addresses. */
static int octet(uint64_t image, int d)
{
    return (int)(word(image, d / 16, d / 4 % 4) >> 8 * (d % 4) & 255);
}

/* Makes the features of tests/golden/make_manifold.py. */
static float *features(int which, int n, int shift)
{
    float *x = malloc((size_t)n * DIM * sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < n; i++)
        for (int d = 0; d < DIM; d++) {
            const int sum = 2 * octet((uint64_t)(1000000 + (i + shift) % CLUSTERS), d) +
                            (2 + i % 3) * octet((uint64_t)(which * 100000 + i), d) - 500;
            x[(size_t)i * DIM + (size_t)d] = (float)(sum > 0 ? sum : 0) * 0.0021f;
        }
    return x;
}

/* Precision and recall by ADM's formulas in f32 and in fp16, which its evaluator uses. The two differ by up to 4 of 500
 * points. (Two implementations on tens of thousands of images have differed by 0.001.) */
static const struct {
    int n, m, k, shift;
    double f32[2], fp16[2];
} golden[] = {
    {300, 400, 3, 0, {0.87, 0.84666666666666668}, {0.875, 0.84666666666666668}},
    {700, 500, 3, 5, {0.47799999999999998, 0.66714285714285715}, {0.48599999999999999, 0.66714285714285715}},
    {500, 700, 5, 0, {0.94999999999999996, 0.91200000000000003}, {0.95428571428571429, 0.91400000000000003}},
};

TEST_CASE(images_are_judged_as_by_adm)
{
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        double got[2];
        float *a = features(1, golden[i].n, 0), *b = features(2, golden[i].m, golden[i].shift);
        assert_library(
            handle, mar_precision_recall(handle, a, golden[i].n, b, golden[i].m, DIM, golden[i].k, &got[0], &got[1]));
        for (int j = 0; j < 2; j++) {
            if (got[j] != golden[i].f32[j]) fail_msg("%zu: %.17g, expected %.17g", i, got[j], golden[i].f32[j]);
            assert_true(fabs(got[j] - golden[i].fp16[j]) <= 0.0081);
        }
        free(a), free(b);
    }
}

/* --- torch-fidelity's KID ----------------------------------------------------------------------------------------- */

/* Mean and deviation of torch-fidelity 0.4 from features in f32, which it uses, and in f64 (make_manifold.py). */
static const struct {
    int n, m, subsets, size, shift;
    double f32[2], f64[2];
} kernel_golden[] = {
    {300,
     400,
     5,
     100,
     0,
     {-0.0024211406707763672, 0.0037846704025946516},
     {-0.0024212571472507884, 0.0037846907817509598}},
    {330,
     300,
     2,
     300,
     5,
     {0.00063169002532958984, 5.9604644775390625e-07},
     {0.0006316934060646151, 5.3543258915489389e-07}},
    {40, 50, 100, 20, 1, {-0.019898512363433839, 0.01138176772597644}, {-0.0198985191817873, 0.011381752787730513}},
};

TEST_CASE(kernel_distances_are_those_of_torch_fidelity)
{
    for (size_t i = 0; i < sizeof kernel_golden / sizeof *kernel_golden; i++) {
        const int n = kernel_golden[i].n, m = kernel_golden[i].m, size = kernel_golden[i].size;
        double got[2];
        float *a = features(1, n, 0), *b = features(2, m, kernel_golden[i].shift);
        assert_library(handle,
                       mar_kernel_distance(handle, b, m, a, n, DIM, kernel_golden[i].subsets, size, &got[0], &got[1]));
        for (int j = 0; j < 2; j++) {
            if (fabs(got[j] - kernel_golden[i].f64[j]) > 2e-8 || fabs(got[j] - kernel_golden[i].f32[j]) > 3e-7)
                fail_msg("%zu: %.17g, expected %.17g and in f32 %.17g", i, got[j], kernel_golden[i].f64[j],
                         kernel_golden[i].f32[j]);
        }
        free(a), free(b);
    }
}

/* A subset of all of one vector is without chance: with x = 1, 1 and y = 2, 2 the kernels are 8, 125 and 27. */
TEST_CASE(kernel_distances_by_hand)
{
    const float x[2] = {1, 1}, y[3] = {2, 2, 2};
    double mean, deviation;
    assert_library(handle, mar_kernel_distance(handle, y, 3, x, 2, 1, 7, 2, &mean, &deviation));
    assert_true(mean == 8 + 125 - 2 * 27 && deviation == 0);
}

/* --- errors ------------------------------------------------------------------------------------------------------- */

TEST_CASE(distances_beyond_f32_are_refused)
{
    float x[8] = {0, 1, 2, 3, 4, 5, 6, 3e38f};
    double p = 7, r = 7;
    assert_int_equal(mar_precision_recall(handle, x, 4, x, 8, 1, 3, &p, &r), MAR_EARG);
    assert_string_equal(mar_error(handle),
                        "images: vector 7 is so far from its neighbours that the squared distance is beyond f32");
    assert_true(p == 0 && r == 0);
    assert_library(handle, mar_precision_recall(handle, x, 4, x, 7, 1, 3, &p, &r));
    assert_true(p == 1 && r == 1);
}

TEST_CASE(kernels_beyond_f32_are_refused)
{
    const float x[4] = {0, 1, 2, 3}, y[4] = {0, 1, 2, 3e38f};
    double mean = 7, deviation = 7;
    assert_int_equal(mar_kernel_distance(handle, x, 4, y, 4, 1, 1, 4, &mean, &deviation), MAR_EARG);
    assert_string_equal(mar_error(handle), "the vectors are so large that a squared distance is beyond f32");
    assert_true(mean == 0 && deviation == 0);
}

TEST_GROUP(open_handle, close_handle)
