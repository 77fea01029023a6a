/* The head on the CPU: the layer norm folded into adaLN, element by element and against the official formulas, which do
 * not fold; and what is rounded to bf16. */
#include "kernels/adaln.h"
#include "tests/support/head_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 128, DEPTH = 3, CHANNELS = 8, ROWS = 48 };

static void an_element_is_folded(void **state)
{
    (void)state;
    enum { W = 24 };
    head_case h = make_head_case(W, 2, 4, 700);
    float *weight;
    const float *bias;
    mar_err err = {0};
    assert_ok(kern_head_adaln(&h.spec, &weight, &bias, &err), &err);
    for (int b = 0; b < 2; b++) {
        const kern_head_block *from = &h.blocks[b];
        const float *shift = weight + b * 3 * W * W, *scale = shift + W * W;
        for (int i = 0; i < W; i++) {
            const double lw = (double)from->ln_weight[i], lb = (double)from->ln_bias[i];
            for (int k = 0; k < W; k++) {
                const double s = (double)from->ada_weight[(W + i) * W + k], t = (double)from->ada_weight[i * W + k];
                assert_float_equal(scale[i * W + k], lw * s, 1e-7);
                assert_float_equal(shift[i * W + k], lb * s + t, 1e-7);
            }
            const double s = (double)from->ada_bias[W + i], t = (double)from->ada_bias[i];
            assert_float_equal(bias[b * 3 * W + W + i], lw * (1 + s) - 1, 1e-6);
            assert_float_equal(bias[b * 3 * W + i], lb * (1 + s) + t, 1e-6);
        }
        assert_memory_equal(scale + W * W, from->ada_weight + 2 * W * W, W * W * sizeof *weight); /* gates */
        assert_memory_equal(bias + b * 3 * W + 2 * W, from->ada_bias + 2 * W, W * sizeof *bias);
    }
    free(weight);
    free_head_case(&h);
}

static void a_norm_without_affine_changes_no_bit(void **state)
{
    (void)state;
    head_case h = make_head_case(WIDTH, 1, 4, 800);
    float ones[WIDTH], zeros[WIDTH] = {0}, *weight;
    for (int i = 0; i < WIDTH; i++) ones[i] = 1;
    h.blocks[0].ln_weight = ones, h.blocks[0].ln_bias = zeros;
    const float *bias;
    mar_err err = {0};
    assert_ok(kern_head_adaln(&h.spec, &weight, &bias, &err), &err);
    assert_memory_equal(weight, h.blocks[0].ada_weight, 3 * WIDTH * WIDTH * sizeof *weight);
    assert_memory_equal(bias, h.blocks[0].ada_bias, 3 * WIDTH * sizeof *bias);
    free(weight);
    free_head_case(&h);
}

/* `bound`: the error allowed in bf16, in units of the official form's own rounding. */
static void expect_official(const head_case *h, uint64_t seed, double bound)
{
    const double rounding = head_rounding(h, ROWS, seed);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        kern_queue *k = open_queue(bf16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32, 2);
        if (!k) continue;
        const double error = head_error(k, h, ROWS, 0, seed), allowed = bf16 ? bound * rounding : 2e-6;
        if (!(error <= allowed))
            fail_msg("%s, seed %d: relative error %.3g, allowed %.3g", bf16 ? "bf16" : "f32", (int)seed, error,
                     allowed);
        close_queue(k);
    }
}

/* In bf16 the folded modulation must not cost more than the rounding that the official form has anyhow. */
static void a_head_is_the_official_one(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        head_case h = make_head_case(WIDTH, DEPTH, CHANNELS, 1000 * seed);
        expect_official(&h, seed, 1.3);
        free_head_case(&h);
    }
}

/* Where the norms' weights are much below 1 it costs more (kernels/adaln.h): here at most twice as much. */
static void faint_norms_lose_some_digits(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        head_case h = make_faint_case(WIDTH, DEPTH, CHANNELS, 1000 * seed);
        expect_official(&h, seed, 2);
        free_head_case(&h);
    }
}

/* SiLU takes fc1's f32 sums, and is rounded once. */
static void silu_is_rounded_once(void **state)
{
    (void)state;
    for (int rows = 1; rows <= 70; rows += 69) {
        kern_queue *k = open_queue(MAR_DTYPE_BF16, 2);
        if (!k) continue;
        head_case h = make_rounding_case(96, CHANNELS, 40);
        const double error = head_error(k, &h, rows, 1, 41);
        if (!(error <= 2e-5)) fail_msg("%d rows: relative error %.3g", rows, error);
        close_queue(k);
        free_head_case(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_element_is_folded),       cmocka_unit_test(a_norm_without_affine_changes_no_bit),
        cmocka_unit_test(a_head_is_the_official_one), cmocka_unit_test(faint_norms_lose_some_digits),
        cmocka_unit_test(silu_is_rounded_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
