/* Arithmetic and bytes of the diffusion head, from its shape: width W, depth, channels C of a token. */
#ifndef KERNELS_HEAD_WORK_H
#define KERNELS_HEAD_WORK_H

/* Multiply-adds of a row's evaluation, without its modulation. */
static inline double kern_head_macs(int width, int depth, int channels)
{
    return (double)width * (3.0 * channels + 2.0 * depth * width);
}
/* Multiply-adds of a modulation row. */
static inline double kern_modulation_macs(int width, int depth)
{
    return (double)width * width * (3.0 * depth + 2);
}
/* Bytes of a weight of the blocks, of act_size bytes or int8 with a scale for each output channel: those of the steps
 * in int8, which are most. */
static inline double kern_head_weight_size(int width, int int8, double act_size)
{
    return int8 ? 1 + 4.0 / width : act_size;
}
/* Bytes of the weights that an evaluation reads, of act_size bytes; into and out of the head they are f32. */
static inline double kern_head_weight_bytes(int width, int depth, int channels, double act_size)
{
    return 2.0 * depth * width * width * act_size + 12.0 * channels * width;
}
/* Bytes that an evaluation must at least read and write: weights, modulation rows, states and outputs. */
static inline double kern_head_bytes(double weight_bytes, double mod_bytes, int channels, int rows)
{
    return weight_bytes + rows * (mod_bytes + 12.0 * channels);
}

#endif
