/* Each element's products are summed in double and rounded once, so w = 1, b = 0 leave the layer unchanged. */
#include "kernels/adaln.h"

#include <stdlib.h>
#include <string.h>

/* Computes the block's rows of shift, scale and gate: weight [3W][W], bias [3W]. */
static void fold_block(const kern_head_block *block, size_t width, float *weight, float *bias)
{
    const float *shift = block->ada_weight, *scale = shift + width * width;
    float *to_shift = weight, *to_scale = weight + width * width;
    for (size_t i = 0; i < width; i++) {
        const double w = (double)block->ln_weight[i], b = (double)block->ln_bias[i];
        for (size_t k = i * width; k < (i + 1) * width; k++) {
            to_shift[k] = (float)(b * (double)scale[k] + (double)shift[k]);
            to_scale[k] = (float)(w * (double)scale[k]);
        }
        const double shift_bias = (double)block->ada_bias[i], scale_bias = (double)block->ada_bias[width + i];
        bias[i] = (float)(b * (1 + scale_bias) + shift_bias);
        bias[width + i] = (float)(w * scale_bias + (w - 1));
    }
    memcpy(weight + 2 * width * width, block->ada_weight + 2 * width * width, width * width * sizeof *weight);
    memcpy(bias + 2 * width, block->ada_bias + 2 * width, width * sizeof *bias);
}

/* Copies the rows of shift, scale and gate: weight [3W][W], bias [3W]. */
static void copy_block(const kern_head_block *block, size_t width, float *weight, float *bias)
{
    memcpy(weight, block->ada_weight, 3 * width * width * sizeof *weight);
    memcpy(bias, block->ada_bias, 3 * width * sizeof *bias);
}

mar_status kern_head_adaln(const kern_head_spec *spec, float **weight, const float **bias, mar_err *err)
{
    const size_t w = (size_t)spec->width, layers = (size_t)spec->ada_layers, rows = 3 * w * layers;
    const size_t blocks = layers ? (size_t)spec->depth / layers : 0; /* of a layer */
    *weight = malloc((rows * w + rows + 1) * sizeof **weight);
    if (!*weight)
        return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes for the head's modulation weights", rows * w * 4);
    float *biases = *weight + rows * w;
    *bias = biases;
    for (size_t i = 0; i < layers; i++)
        (spec->form == KERN_HEAD_MLP ? fold_block : copy_block)(&spec->blocks[i * blocks], w, *weight + i * 3 * w * w,
                                                                biases + i * 3 * w);
    return MAR_OK;
}
