#include "kernels/rng.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Known-answer vectors of the Random123 distribution (kat_vectors, philox4x32 10). */
TEST_CASE(philox_known_answers)
{
    static const struct {
        uint64_t key;
        uint32_t counter[4], expected[4];
    } cases[] = {
        {0, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX,
         {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < 3; i++) {
        uint32_t out[4];
        kern_philox(cases[i].key, cases[i].counter, out);
        assert_memory_equal(out, cases[i].expected, sizeof out);
    }
}

/* Compares with the numpy implementation of tests/golden/addressed_noise.py. */
TEST_CASE(matches_numpy)
{
    const uint64_t seed = 0x1234567890ABCDEF;
    wt_file *f = golden_open("mar");
    float *words = golden_f32(f, "philox", 24), *normals = golden_f32(f, "normals", 10);
    float *orders = golden_f32(f, "order", 512);
    const uint32_t counters[3][4] = {{0}, {1, 2, 3, 4}, {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}};
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        kern_philox(seed, counters[i], out);
        for (int j = 0; j < 4; j++) {
            assert_int_equal(out[j] >> 16, (int)words[i * 8 + j]);
            assert_int_equal(out[j] & 0xffff, (int)words[i * 8 + 4 + j]);
        }
    }
    float mine[12];
    for (int b = 0; b < 3; b++) {
        uint32_t w[4];
        kern_random_words(seed, KERN_NOISE_STEP, (uint64_t)7 << 32 | 5, 250, 999, (uint32_t)b, w);
        kern_normal4(w, mine + 4 * b);
    }
    assert_true(max_difference(mine, normals, 10) < 1e-6);
    for (int image = 0; image < 2; image++) {
        int order[256];
        kern_random_order(seed, (uint64_t)image, 256, order);
        for (int i = 0; i < 256; i++) assert_int_equal(order[i], (int)orders[image * 256 + i]);
    }
    free(words), free(normals), free(orders);
    wt_close(f);
}

/* Checks that changing any field of the address changes the numbers. */
TEST_CASE(addresses_are_distinct)
{
    uint32_t w[8][4];
    kern_random_words(1, KERN_NOISE_STEP, 2, 3, 4, 0, w[0]);
    kern_random_words(2, KERN_NOISE_STEP, 2, 3, 4, 0, w[1]);
    kern_random_words(1, KERN_NOISE_INIT, 2, 3, 4, 0, w[2]);
    kern_random_words(1, KERN_NOISE_STEP, 3, 3, 4, 0, w[3]);
    kern_random_words(1, KERN_NOISE_STEP, 2, 4, 4, 0, w[4]);
    kern_random_words(1, KERN_NOISE_STEP, 2, 3, 5, 0, w[5]);
    kern_random_words(1, KERN_NOISE_STEP, 2, 3, 4, 1, w[6]);
    kern_random_words(1, KERN_NOISE_STEP, 2 | (uint64_t)1 << 32, 3, 4, 0, w[7]);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < i; j++) assert_memory_not_equal(w[i], w[j], sizeof w[i]);
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}
/* Returns the Kolmogorov-Smirnov statistic against the normal distribution, times sqrt(n). It exceeds 2.69 once in
 * 10^6. */
static double ks_statistic(float *x, int n)
{
    double worst = 0;
    qsort(x, (size_t)n, sizeof *x, by_value);
    for (int i = 0; i < n; i++) {
        double cdf = 0.5 * erfc(-x[i] / sqrt(2.0));
        worst = fmax(worst, fmax(fabs(cdf - (double)i / n), fabs(cdf - (i + 1.0) / n)));
    }
    return worst * sqrt(n);
}

TEST_CASE(normals_are_normal)
{
    enum { N = 200000 };
    float *x = malloc(N * sizeof *x), *broken = malloc(N * sizeof *x);
    double sum[4][4] = {{0}};
    for (int i = 0; i < N; i += 4) {
        uint32_t w[4];
        kern_random_words(9, KERN_NOISE_STEP, 0, (uint32_t)i / 4, 77, 0, w);
        kern_normal4(w, x + i);
        for (int a = 0; a < 4; a++)
            for (int b = 0; b < 4; b++) sum[a][b] += (double)x[i + a] * x[i + b];
        for (int j = 0; j < 4; j++) broken[i + j] = x[i + j] * 1.03f;
    }
    for (int a = 0; a < 4; a++) /* the four channels of a block are uncorrelated: 5 sigma of 1/sqrt(50000) */
        for (int b = 0; b < a; b++) assert_true(fabs(sum[a][b] / (N / 4)) < 5 / sqrt(N / 4));
    assert_true(ks_statistic(x, N) < 2.69);
    assert_true(ks_statistic(broken, N) > 2.69); /* the test detects an error of 3 % */
    free(x), free(broken);
}

/* Checks a GPU's normals against a host's, at random words and at those where digits could be lost. */
TEST_CASE(floats_make_the_same_normals)
{
    static const uint32_t edges[] = {0,          1,          2,          0x1fffffff, 0x20000000,
                                     0x3fffffff, 0x40000000, 0x7fffffff, 0x80000000, 0xbfffffff,
                                     0xc0000000, 0xdfffffff, 0xe0000000, 0xfffffffe, 0xffffffff};
    enum { EDGES = sizeof edges / sizeof *edges };
    for (uint32_t i = 0; i < 100000; i++) {
        uint32_t w[4];
        float x[2], exact[2];
        kern_random_words(4, KERN_NOISE_STEP, 0, i, 0, 0, w);
        if (i < EDGES * EDGES) w[0] = edges[i / EDGES], w[1] = edges[i % EDGES];
        kern_normal2_float(w, x);
        kern_normal2(w, exact);
        for (int j = 0; j < 2; j++)
            if (!(fabs((double)x[j] - exact[j]) <= 1e-6 * fabs((double)exact[j])))
                fail_msg("words %08x %08x: %.9g, exactly %.9g", w[0], w[1], (double)x[j], (double)exact[j]);
    }
}

TEST_CASE(orders_are_uniform)
{
    enum { N = 5, IMAGES = 48000 };
    int count[N][N] = {{0}};
    for (int i = 0; i < IMAGES; i++) {
        int order[N], seen = 0;
        kern_random_order(3, (uint64_t)i, N, order);
        for (int j = 0; j < N; j++) {
            count[j][order[j]]++;
            seen |= 1 << order[j];
        }
        assert_int_equal(seen, (1 << N) - 1);
    }
    double chi2 = 0;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) chi2 += pow(count[i][j] - IMAGES / (double)N, 2) / (IMAGES / (double)N);
    assert_true(chi2 < 16 + 5.5 * sqrt(2 * 16)); /* 16 degrees of freedom */
}
