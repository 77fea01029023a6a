/* The two-sample statistics. Compares them with numpy and scipy. p-values must be uniform when two runs have one
 * distribution, with shared noise or without. Checks their power, and why pairs must be swapped. Every seed is fixed.
 */
#include "tests/support/support.h"

#include "eval/statistics.h"
#include "kernels/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 40, S = 4, C = 3, SIZE = N * S * C, PERMUTATIONS = 99 };

/* Fills x with n standard normals. `set` selects the array. */
static void normals(uint64_t set, float *x, int n)
{
    for (int i = 0; i < n; i += 4) {
        uint32_t words[4];
        float four[4];
        kern_random_words(17, KERN_NOISE_INIT, set, (uint32_t)i, 0, 0, words);
        kern_normal4(words, four);
        for (int j = 0; j < 4 && i + j < n; j++) x[i + j] = four[j];
    }
}

TEST_CASE(against_numpy)
{
    wt_file *f = golden_open("statistics");
    const eval_pairs x = {10, 3, 4, golden_f32(f, "a", 120), golden_f32(f, "b", 120)};
    float *energy = golden_f32(f, "energy", 2), *energy_p = golden_f32(f, "energy_p", 2);
    float *ks = golden_f32(f, "ks", 4), *ks_p = golden_f32(f, "ks_p", 4), *gaps = golden_f32(f, "gaps", 2);
    eval_energy_test image, token;
    assert_int_equal(eval_energy(&x, 20000, &image, &token), MAR_OK);
    assert_float_equal(image.distance, energy[0], 1e-5);
    assert_float_equal(token.distance, energy[1], 1e-5);
    /* The golden p-values enumerate all 1024 swaps. Four standard deviations of 20000 draws are 0.009. */
    assert_float_equal(image.p, energy_p[0], 0.009);
    assert_float_equal(token.p, energy_p[1], 0.009);
    double d[4], p[4], mean, covariance;
    assert_int_equal(eval_ks(&x, 20000, d, p), MAR_OK);
    for (int c = 0; c < 4; c++) {
        assert_float_equal(d[c], ks[c], 1e-6);
        assert_float_equal(p[c], ks_p[c], 0.0126);
    }
    assert_int_equal(eval_moment_gaps(&x, &mean, &covariance), MAR_OK);
    assert_float_equal(mean, gaps[0], 1e-5);
    assert_float_equal(covariance, gaps[1], 1e-5);
    free((void *)(uintptr_t)x.a);
    free((void *)(uintptr_t)x.b);
    free(energy);
    free(energy_p);
    free(ks);
    free(ks_p);
    free(gaps);
    wt_close(f);
}

TEST_CASE(identical_runs)
{
    static float a[SIZE];
    normals(1, a, SIZE);
    const eval_pairs x = {N, S, C, a, a};
    eval_energy_test image, token;
    assert_int_equal(eval_energy(&x, PERMUTATIONS, &image, &token), MAR_OK);
    assert_true(image.distance == 0 && image.p == 1 && image.null_95 == 0);
    assert_true(token.distance == 0 && token.p == 1);
    double d[C], p[C], mean, covariance;
    assert_int_equal(eval_ks(&x, PERMUTATIONS, d, p), MAR_OK);
    for (int c = 0; c < C; c++) assert_true(d[c] == 0 && p[c] == 1);
    assert_int_equal(eval_moment_gaps(&x, &mean, &covariance), MAR_OK);
    assert_true(mean == 0 && covariance == 0);
}

/* Dependence between two runs of one distribution */
typedef enum {
    INDEPENDENT,
    SHARED,   /* a common part in each pair, as from one seed and class */
    MIRRORED, /* b = -a: one distribution, as distant as possible */
    LAGGED,   /* b is a's sequence shifted by one number: one distribution, far from exchangeable */
} coupling;

static void make_runs(coupling how, uint64_t set, float shift, float *a, float *b)
{
    static float shared[SIZE + 1];
    normals(3 * set, a, SIZE);
    normals(3 * set + 1, b, SIZE);
    normals(3 * set + 2, shared, SIZE + 1);
    for (int i = 0; i < SIZE; i++) {
        if (how == SHARED) {
            a[i] = shared[i] + 0.3f * a[i];
            b[i] = shared[i] + 0.3f * b[i];
        } else if (how == MIRRORED) {
            b[i] = -a[i];
        } else if (how == LAGGED) {
            a[i] = shared[i];
            b[i] = shared[i + 1];
        }
        b[i] += shift;
    }
}

typedef struct {
    int image, token, ks; /* trials with p <= 0.05 */
} rejections;

static rejections count_rejections(coupling how, float shift, int trials)
{
    static float a[SIZE], b[SIZE];
    const eval_pairs x = {N, S, C, a, b};
    rejections r = {0};
    for (int t = 0; t < trials; t++) {
        eval_energy_test image, token;
        double d[C], p[C], least = 1;
        make_runs(how, (uint64_t)t, shift, a, b);
        assert_int_equal(eval_energy(&x, PERMUTATIONS, &image, &token), MAR_OK);
        assert_int_equal(eval_ks(&x, PERMUTATIONS, d, p), MAR_OK);
        for (int c = 0; c < C; c++) least = fmin(least, p[c]);
        r.image += image.p <= 0.05;
        r.token += token.p <= 0.05;
        r.ks += least <= 0.05;
    }
    return r;
}

/* 200 trials at level 0.05: mean 10, standard deviation 3.1. A correct test leaves 1..21 once in 2000. The KS tests of
 * C channels together have the level 0.05, too. Ties make them slightly conservative. */
TEST_CASE(false_positives)
{
    for (coupling how = INDEPENDENT; how <= LAGGED; how++) {
        const rejections r = count_rejections(how, 0, 200);
        print_message("coupling %d: p <= 0.05 in %d, %d, %d of 200\n", how, r.image, r.token, r.ks);
        assert_in_range(r.image, 1, 21);
        assert_in_range(r.token, 1, 21);
        assert_in_range(r.ks, 1, 21);
    }
}

TEST_CASE(power)
{
    const rejections r = count_rejections(SHARED, 0.15f, 40), far = count_rejections(INDEPENDENT, 0.6f, 40);
    print_message("shifted by 0.15: %d, %d, %d of 40\n", r.image, r.token, r.ks);
    assert_in_range(r.image, 36, 40);
    assert_in_range(r.token, 36, 40);
    assert_in_range(r.ks, 30, 40);
    assert_in_range(far.image, 40, 40);
    assert_in_range(far.token, 40, 40);
    assert_in_range(far.ks, 40, 40);
}

/* The mutant: the same distance, permuted over all 2N images as if they were independent. */
static double unpaired_p(const float *a, const float *b, uint64_t set)
{
    enum { D = S * C };
    static double distance[2 * N][2 * N];
    for (int i = 0; i < 2 * N; i++)
        for (int j = 0; j < 2 * N; j++) {
            const float *x = i < N ? a + i * D : b + (i - N) * D, *y = j < N ? a + j * D : b + (j - N) * D;
            double square = 0;
            for (int k = 0; k < D; k++) square += ((double)x[k] - (double)y[k]) * ((double)x[k] - (double)y[k]);
            distance[i][j] = sqrt(square);
        }
    double observed = 0;
    int above = 0;
    for (int k = 0; k <= PERMUTATIONS; k++) {
        int order[2 * N];
        kern_random_order(5, set * 1000 + (uint64_t)k, 2 * N, order);
        double energy = 0;
        for (int i = 0; i < 2 * N; i++)
            for (int j = 0; j < 2 * N; j++) {
                const int u = k ? order[i] : i, v = k ? order[j] : j;
                energy += ((i < N) == (j < N) ? -1 : 1) * distance[u][v];
            }
        if (k == 0) observed = energy;
        above += k > 0 && energy >= observed;
    }
    return (1 + above) / (1.0 + PERMUTATIONS);
}

/* The runs share noise and truly differ. Swapping within pairs detects it; permuting everything does not. */
TEST_CASE(pairs_must_be_swapped)
{
    static float a[SIZE], b[SIZE];
    const eval_pairs x = {N, S, C, a, b};
    int paired = 0, unpaired = 0, crowded = 0;
    for (uint64_t t = 0; t < 20; t++) {
        eval_energy_test image, token;
        make_runs(SHARED, t, 0.12f, a, b);
        assert_int_equal(eval_energy(&x, PERMUTATIONS, &image, &token), MAR_OK);
        const double p = unpaired_p(a, b, t);
        paired += image.p <= 0.05;
        unpaired += p <= 0.05;
        crowded += p >= 0.95;
    }
    assert_in_range(paired, 18, 20);
    assert_int_equal(unpaired, 0);
    assert_in_range(crowded, 15, 20);
}

TEST_CASE(holm)
{
    double p[] = {0.04, 0.01, 0.03, 0.5}; /* sorted: 0.01*4, 0.03*3, then 0.04*2 raised to 0.09, 0.5 */
    eval_holm(p, 4);
    assert_float_equal(p[0], 0.09, 1e-12);
    assert_float_equal(p[1], 0.04, 1e-12);
    assert_float_equal(p[2], 0.09, 1e-12);
    assert_float_equal(p[3], 0.5, 1e-12);
    double one[] = {0.7, 0.9};
    eval_holm(one, 2);
    assert_true(one[0] == 1 && one[1] == 1);
}
