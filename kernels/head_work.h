/* Arithmetic and bytes of the diffusion head, from its shape: width W, depth, channels C of a token, hidden H. */
#ifndef KERNELS_HEAD_WORK_H
#define KERNELS_HEAD_WORK_H

#include "kernels/ops.h"

/* Returns the bytes of an operand of a head's products: F32, F16, or AUTO, the device's. */
static inline size_t kern_act_size(const kern_device *d, mar_dtype type)
{
    return type == MAR_DTYPE_F32 ? sizeof(float) : type == MAR_DTYPE_F16 ? sizeof(uint16_t) : d->act_size;
}
/* Returns the weights of a block's products. */
static inline double kern_head_block_weights(const kern_head_spec *s)
{
    return (double)s->width * s->hidden * (s->form == KERN_HEAD_SWIGLU ? 3 : 2);
}
/* Returns the multiply-adds of one row's evaluation, without its modulation. */
static inline double kern_head_macs(const kern_head_spec *s)
{
    return 3.0 * s->channels * s->width + s->depth * kern_head_block_weights(s);
}
/* Returns the multiply-adds of a modulation row. */
static inline double kern_modulation_macs(const kern_head_spec *s)
{
    return (double)s->width * s->width * (3.0 * s->ada_layers + 2);
}
/* Returns the bytes of one block weight: act_size, or 1 plus a share of the output channel's scale with int8. Steps
 * computed without int8 are ignored. */
static inline double kern_head_weight_size(int width, int int8, double act_size)
{
    return int8 ? 1 + 4.0 / width : act_size;
}
/* Returns the bytes of the weights an evaluation reads. Block weights have act_size bytes; input and output layers are
 * f32. */
static inline double kern_head_weight_bytes(const kern_head_spec *s, double act_size)
{
    return s->depth * kern_head_block_weights(s) * act_size + 12.0 * s->channels * s->width;
}
/* Returns the minimum bytes an evaluation reads and writes: weights, modulation rows, states and outputs. */
static inline double kern_head_bytes(double weight_bytes, double mod_bytes, int channels, int rows)
{
    return weight_bytes + rows * (mod_bytes + 12.0 * channels);
}

#endif
