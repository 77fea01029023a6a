/* int8 and int4 weights: packing, and restoring for products of many rows, which read bf16 weights. */
#include "kernels/cuda/low_bit.cuh"

enum { THREADS = 256 };

/* The 16 bytes of a lane. */
typedef struct {
    size_t row;
    int unit, lane;
} low_bit_place;

/* Returns the place of a thread; units of a row. */
static __device__ inline low_bit_place low_bit_find_place(int units)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, row = i / (size_t)(4 * units);
    const int in_row = (int)(i - row * (size_t)(4 * units));
    return {row, in_row / 4, in_row % 4};
}

template <cuda_weights FORM>
static __global__ void pack_kernel(const uint8_t *q, size_t rows, int in, int units, uint4 *y)
{
    const low_bit_place p = low_bit_find_place(units);
    if (p.row >= rows) return;
    uint32_t word[4] = {};
    for (int step = 0; step < low_bit<FORM>::STEPS; step++)
        for (int i = 0; i < 8; i++) {
            const int k = (p.unit * low_bit<FORM>::STEPS + step) * 32 + 8 * p.lane + i;
            if (k >= in) continue;
            const size_t at = p.row * (size_t)in + (size_t)k;
            if (FORM == CUDA_INT4)
                word[step] |= (uint32_t)(q[at / 2] >> k % 2 * 4 & 15) << (i / 2 + i % 2 * 4) * 4;
            else
                word[2 * step + i / 4] |= (uint32_t)q[at] << (i % 4 / 2 + i % 2 * 2) * 8;
        }
    for (int step = 0; FORM == CUDA_INT4 && step < 4; step++) word[step] = word[step] << 3 | word[step] >> 29;
    y[(p.row * (size_t)units + (size_t)p.unit) * 4 + (size_t)p.lane] = make_uint4(word[0], word[1], word[2], word[3]);
}

/* y [rows][in] = integers times scales, of rows from `first` on. */
template <cuda_weights FORM>
static __global__ void restore_kernel(const uint4 *weight, const void *scale, int first, int rows, int in, int units,
                                      bf16 *y)
{
    const low_bit_place p = low_bit_find_place(units);
    if (p.row >= (size_t)rows) return;
    const size_t row = p.row + (size_t)first, unit = row * (size_t)units + (size_t)p.unit;
    const uint4 packed = weight[unit * 4 + (size_t)p.lane];
    for (int step = 0; step < low_bit<FORM>::STEPS; step++) {
        const int k = (p.unit * low_bit<FORM>::STEPS + step) * 32 + 8 * p.lane;
        uint32_t pair[4];
        if (k >= in) return;
        low_bit_integers<FORM>(packed, step, pair);
        const float s = FORM == CUDA_INT4 ? cuda_float(((const bf16 *)scale)[unit * 4 + (size_t)step])
                                          : ((const float *)scale)[row];
        cuda_floats<8> x;
        for (int i = 0; i < 8; i++)
            x.v[i] = ((i % 2 ? cuda_high(pair[i / 2]) : cuda_low(pair[i / 2])) - low_bit<FORM>::OFFSET) * s;
        cuda_store(y + p.row * (size_t)in + k, x);
    }
}

void cuda_low_bit_pack(cuda_queue *c, const kern_linear *l, const void *q, int n, void *to)
{
    const int units = (int)(l->row_bytes / 64);
    cuda_launch(c, l->form == CUDA_INT4 ? pack_kernel<CUDA_INT4> : pack_kernel<CUDA_INT8>,
                cuda_blocks((size_t)n * (size_t)(4 * units), THREADS), THREADS, 0, (const uint8_t *)q, (size_t)n, l->in,
                units, (uint4 *)to);
}

void cuda_low_bit_restore(cuda_queue *c, const kern_linear *l, int first, int n, bf16 *y)
{
    const int units = (int)(l->row_bytes / 64);
    cuda_launch(c, l->form == CUDA_INT4 ? restore_kernel<CUDA_INT4> : restore_kernel<CUDA_INT8>,
                cuda_blocks((size_t)n * (size_t)(4 * units), THREADS), THREADS, 0, (const uint4 *)l->weight, l->scale,
                first, n, l->in, units, y);
}
