/* int4 weights: the error of their groups, and groups that are special. tests/ops/test_linear.c tests the products. */
#include "kernels/int4.h"
#include "kernels/rng.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { OUT = 64, IN = 1024, N = OUT * IN };

static float random_float(uint32_t i)
{
    uint32_t w[4];
    double sum = 0;
    kern_random_words(5, KERN_NOISE_INIT, 0, 0, 0, i, w);
    for (int j = 0; j < 4; j++) sum += w[j] / 4294967296.0 - 0.5; /* nearly normal */
    return (float)(sum * sqrt(3));
}

/* Checks the error, and that restored weights quantise to themselves. */
TEST_CASE(error_of_groups)
{
    float *w = malloc(N * sizeof *w), *restored = malloc(N * sizeof *restored), *again = malloc(N * sizeof *again);
    uint8_t *q = malloc(N / 2);
    uint16_t *scale = malloc(N / KERN_INT4_GROUP * sizeof *scale);
    for (int i = 0; i < N; i++) w[i] = random_float((uint32_t)i);
    kern_int4_quantise(w, OUT, IN, q, scale);
    kern_int4_restore(q, scale, OUT, IN, restored);
    const double error = relative_error(restored, w, N);
    print_message("relative error %.4f\n", error);
    assert_true(error < 0.081); /* without the search 0.086 on normal numbers */
    kern_int4_quantise(restored, OUT, IN, q, scale);
    kern_int4_restore(q, scale, OUT, IN, again);
    for (int i = 0; i < N; i++) assert_true(again[i] == restored[i]);
    free(w), free(restored), free(again), free(q), free(scale);
}

TEST_CASE(special_groups)
{
    float w[5 * KERN_INT4_GROUP], restored[5 * KERN_INT4_GROUP];
    uint8_t q[5 * KERN_INT4_BYTES];
    uint16_t scale[5];
    for (int i = 0; i < 5 * KERN_INT4_GROUP; i++) w[i] = i % 2 ? 1e-31f : 0;
    w[KERN_INT4_GROUP + 3] = NAN, w[2 * KERN_INT4_GROUP + 3] = -INFINITY;
    for (int i = 0; i < KERN_INT4_GROUP; i++) w[3 * KERN_INT4_GROUP + i] = -1e30f, w[4 * KERN_INT4_GROUP + i] = 7;
    kern_int4_quantise(w, 1, 5 * KERN_INT4_GROUP, q, scale);
    kern_int4_restore(q, scale, 1, 5 * KERN_INT4_GROUP, restored);
    for (int i = 0; i < KERN_INT4_GROUP; i++) {
        assert_true(restored[i] == 0);
        assert_true(isnan(restored[KERN_INT4_GROUP + i]) && isnan(restored[2 * KERN_INT4_GROUP + i]));
        assert_true(fabsf(restored[3 * KERN_INT4_GROUP + i] / -1e30f - 1) < 4e-3f);
        assert_true(restored[4 * KERN_INT4_GROUP + i] == 7);
    }
}
