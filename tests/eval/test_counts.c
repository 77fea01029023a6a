/* Counts of discrete tokens and their neighbours in two runs. Checks numbers counted by hand and by a direct program.
 * p-values must be uniform where two runs have one distribution. The test must have power where only the neighbours
 * differ. */
#include "tests/support/support.h"

#include "eval/counts.h"
#include "kernels/gaussian.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 3, CELLS = SIDE * SIDE, VOCABULARY = 5, PERMUTATIONS = 199 };

/* Returns a uniform number 0..n-1. `set` selects the array. */
static int whole(uint64_t set, int at, int n)
{
    const kern_address a = {29, set, (uint32_t)at, 0};
    return (int)(kern_uniform_at(&a, KERN_NOISE_INIT, 0) * n);
}

TEST_CASE(by_hand)
{
    /* Two images of 2x2 tokens a run. */
    const float a[] = {0, 1, 1, 1, 0, 0, 2, 1}, b[] = {0, 1, 0, 1, 0, 0, 2, 2};
    const eval_token_pairs x = {2, 2, 2, a, b};
    eval_counts_test tokens, places, neighbours;
    assert_int_equal(eval_token_counts(&x, 999, &tokens, &places, &neighbours), MAR_OK);
    /* Tokens: a has 3, 4 and 1 of tokens 0, 1 and 2; b has 4, 2 and 2. */
    assert_int_equal(tokens.cells, 3);
    assert_float_equal(tokens.chi2, 1.0 / 7 + 4.0 / 6 + 1.0 / 3, 1e-6);
    assert_float_equal(tokens.tv, (1 + 2 + 1) / 16.0, 1e-6);
    /* Positions: the third has 1, 2 in a and 0, 2 in b. The last has 1, 1 in a and 1, 2 in b. The first two are equal.
     */
    assert_int_equal(places.cells, 1 + 2 + 3 + 2);
    assert_float_equal(places.chi2, 1 + 1 + 1.0 / 3 + 1, 1e-6);
    assert_float_equal(places.tv, 4 / 16.0, 1e-6);
    /* right: 01 11 | 00 21 in a, 01 01 | 00 22 in b; below: 01 11 | 02 01 in a, 00 11 | 02 02 in b */
    assert_float_equal(neighbours.chi2, (1.0 / 3 + 1 + 0 + 1 + 1) + (4.0 / 2 + 0 + 1 + 1.0 / 3), 1e-6);
    assert_float_equal(neighbours.tv, (4 + 4) / 16.0, 1e-6);
    /* Two pairs have four arrangements, equal in twos: no test has power. */
    assert_true(tokens.p > 0.2);
}

TEST_CASE(identical_runs)
{
    float a[20 * CELLS];
    for (int i = 0; i < 20 * CELLS; i++) a[i] = (float)whole(1, i, VOCABULARY);
    const eval_token_pairs x = {20, SIDE, SIDE, a, a};
    eval_counts_test t[3];
    assert_int_equal(eval_token_counts(&x, PERMUTATIONS, &t[0], &t[1], &t[2]), MAR_OK);
    for (int i = 0; i < 3; i++) {
        assert_true(t[i].cells > 0);
        assert_true(t[i].chi2 == 0 && t[i].tv == 0 && t[i].p == 1 && t[i].tv_95 == 0);
    }
}

/* Makes a run of N images. The first token is uniform. Each other one copies its left neighbour with probability
 * `stay`. */
static void make_run(uint64_t set, int images, double stay, float *out)
{
    for (int i = 0; i < images * CELLS; i++) {
        const kern_address a = {31, set, (uint32_t)i, 0};
        const int copies = i % SIDE > 0 && kern_uniform_at(&a, KERN_NOISE_INIT, 0) < stay;
        out[i] = copies ? out[i - 1] : (float)whole(set + 1, i, VOCABULARY);
    }
}

/* Checks that under one distribution p is nearly uniform. Of 200 repeats, the count of p < 0.05 exceeds 5 % by at most
 * 3 standard deviations. */
TEST_CASE(level)
{
    enum { N = 30, REPEATS = 200 };
    float a[N * CELLS], b[N * CELLS];
    int low[3] = {0};
    for (int r = 0; r < REPEATS; r++) {
        eval_counts_test t[3];
        make_run(1000 + 10 * (uint64_t)r, N, 0.4, a);
        make_run(1005 + 10 * (uint64_t)r, N, 0.4, b);
        const eval_token_pairs x = {N, SIDE, SIDE, a, b};
        assert_int_equal(eval_token_counts(&x, 99, &t[0], &t[1], &t[2]), MAR_OK);
        for (int i = 0; i < 3; i++) low[i] += t[i].p <= 0.05;
    }
    for (int i = 0; i < 3; i++) assert_in_range(low[i], 1, 10 + 9);
}

/* Tokens are uniform in both runs, but their neighbours differ. Only the test of neighbours may detect it. */
TEST_CASE(neighbours_alone)
{
    enum { N = 200 };
    float *a = malloc(N * CELLS * sizeof *a), *b = malloc(N * CELLS * sizeof *b);
    eval_counts_test t[3];
    assert_true(a && b);
    make_run(7, N, 0.5, a);
    make_run(17, N, 0.2, b);
    const eval_token_pairs x = {N, SIDE, SIDE, a, b};
    assert_int_equal(eval_token_counts(&x, PERMUTATIONS, &t[0], &t[1], &t[2]), MAR_OK);
    assert_true(t[2].p <= 0.01);
    assert_true(t[2].tv > t[2].tv_95);
    assert_true(t[0].p > 0.01 && t[1].p > 0.01);
    free(a);
    free(b);
}
