/* int8 and int4 weights: their loading, and their restoring for products of many rows, which read bf16 weights. */
#include "kernels/cuda/low_bit.cuh"

extern "C" {
#include "kernels/int4.h"
#include "kernels/int8.h"
}

#include <stdlib.h>

enum { THREADS = 256 };

/* The 16 bytes of a lane. */
typedef struct {
    size_t row;
    int unit, lane;
} low_bit_place;

/* Returns the place of a thread; units of a row. */
static __device__ inline low_bit_place place_of(int units)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, row = i / (size_t)(4 * units);
    const int in_row = (int)(i - row * (size_t)(4 * units));
    return {row, in_row / 4, in_row % 4};
}

/* Packs rows of integers as in a file: int8 [in], or int4 [in / 2] with the lower input in the low half of a byte. */
template <cuda_weights FORM>
static __global__ void pack_kernel(const uint8_t *q, size_t rows, int in, int units, uint4 *y)
{
    const low_bit_place p = place_of(units);
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
    const low_bit_place p = place_of(units);
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

void cuda_low_bit_restore(cuda_queue *c, const kern_linear *l, int first, int n, bf16 *y)
{
    const int units = (int)(l->row_bytes / 64);
    void (*kernel)(const uint4 *, const void *, int, int, int, int, bf16 *) =
        l->form == CUDA_INT4 ? restore_kernel<CUDA_INT4> : restore_kernel<CUDA_INT8>;
    cuda_launch(c, kernel, cuda_blocks((size_t)n * (size_t)(4 * units), THREADS), THREADS, 0, (const uint4 *)l->weight,
                l->scale, first, n, l->in, units, y);
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

/* Some rows on their way. */
typedef struct {
    int rows;      /* at a time */
    float *weight; /* [rows][in] */
    uint8_t *q;    /* [rows][in] int8, or [rows][in / 2] int4 */
    void *scale;   /* float [rows], or bf16 [rows][in / 32] */
} low_bit_rows;

/* Reads rows first .. first+n-1 of the source, or quantises them. */
static mar_status read(const kern_linear_spec *spec, cuda_weights form, const low_bit_rows *r, int first, int n,
                       mar_err *err)
{
    const kern_linear_rows *rows = spec->rows;
    const float *weight = rows ? r->weight : spec->weight + (size_t)first * (size_t)spec->in;
    if (rows && form == CUDA_INT8 && rows->read_int8)
        return rows->read_int8(rows->user, first, n, (int8_t *)r->q, (float *)r->scale, err);
    if (rows && form == CUDA_INT4 && rows->read_int4)
        return rows->read_int4(rows->user, first, n, r->q, (uint16_t *)r->scale, err);
    const mar_status status = rows ? rows->read(rows->user, first, n, r->weight, err) : MAR_OK;
    if (status != MAR_OK) return status;
    if (form == CUDA_INT8)
        kern_int8_quantise(weight, n, spec->in, (int8_t *)r->q, (float *)r->scale);
    else
        kern_int4_quantise(weight, n, spec->in, r->q, (uint16_t *)r->scale);
    return MAR_OK;
}

/* Packs the rows on the device, which has them in its workspace. */
static mar_status send(cuda_queue *c, const kern_linear *l, const low_bit_rows *r, int first, int n, mar_err *err)
{
    const int units = (int)(l->row_bytes / 64), int4 = l->form == CUDA_INT4;
    const size_t in = (size_t)l->in, to = int4 ? (size_t)units * 4 * sizeof(bf16) : sizeof(float);
    const size_t from = int4 ? in / KERN_INT4_GROUP * sizeof(bf16) : sizeof(float);
    cudaError_t error =
        cudaMemcpyAsync(c->workspace, r->q, (size_t)n * in / (int4 ? 2 : 1), cudaMemcpyHostToDevice, c->stream);
    if (error == cudaSuccess)
        error = cudaMemcpy2DAsync((char *)l->scale + (size_t)first * to, to, r->scale, from, from, (size_t)n,
                                  cudaMemcpyHostToDevice, c->stream);
    if (error == cudaSuccess)
        cuda_launch(c, int4 ? pack_kernel<CUDA_INT4> : pack_kernel<CUDA_INT8>,
                    cuda_blocks((size_t)n * (size_t)(4 * units), THREADS), THREADS, 0, (const uint8_t *)c->workspace,
                    (size_t)n, l->in, units, (uint4 *)((char *)l->weight + (size_t)first * l->row_bytes));
    const cudaError_t idle = cudaStreamSynchronize(c->stream); /* after a failure, too: a copy may still read */
    const mar_status status = cuda_status(error != cudaSuccess ? error : idle, "uploading weights", err);
    return status == MAR_OK ? kern_check(&c->base, err) : status;
}

mar_status cuda_low_bit_create(cuda_queue *c, const kern_linear_spec *spec, kern_linear *l, mar_err *err)
{
    enum { PIECE_BYTES = 4 << 20 }; /* of floats */
    const int int4 = l->form == CUDA_INT4,
              inputs = int4 ? (int)low_bit<CUDA_INT4>::INPUTS : (int)low_bit<CUDA_INT8>::INPUTS;
    const size_t in = (size_t)l->in, out = (size_t)l->out, units = (in + (size_t)inputs - 1) / (size_t)inputs;
    const size_t scales = int4 ? units * 4 * sizeof(bf16) : sizeof(float);
    low_bit_rows r = {};
    r.rows = in * sizeof(float) < PIECE_BYTES ? (int)(PIECE_BYTES / (in * sizeof(float))) : 1;
    l->row_bytes = units * 64;
    mar_status status = kern_check(&c->base, err);
    if (status == MAR_OK) status = cuda_alloc(&c->device->base, out * l->row_bytes, &l->weight, err);
    if (status == MAR_OK) status = cuda_alloc(&c->device->base, out * scales, &l->scale, err);
    if (status != MAR_OK) return status;
    r.weight = (float *)malloc((size_t)r.rows * in * sizeof *r.weight);
    r.q = (uint8_t *)malloc((size_t)r.rows * in);
    r.scale = malloc((size_t)r.rows * (in / 8 + sizeof(float)));
    if (!r.weight || !r.q || !r.scale)
        status = err_set(err, MAR_ENOMEM, "out of memory: %d x %d weights", r.rows, l->in);
    for (int first = 0; first < l->out && status == MAR_OK; first += r.rows) {
        const int n = l->out - first < r.rows ? l->out - first : r.rows;
        status = read(spec, l->form, &r, first, n, err);
        if (status == MAR_OK) status = send(c, l, &r, first, n, err);
    }
    free(r.weight);
    free(r.q);
    free(r.scale);
    return status;
}
