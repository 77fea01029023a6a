/* The head's layer norm folded into adaLN, element by element. */
#include "kernels/adaln.h"
#include "tests/support/head_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 128 };

TEST_CASE(an_element_is_folded)
{
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

TEST_CASE(a_norm_without_affine_changes_no_bit)
{
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
