/* Loading of a layer's weights: some rows at a time are read, quantised if they are not, and sent. */
#include "kernels/cuda/linear.h"

extern "C" {
#include "kernels/int4.h"
#include "kernels/int8.h"
}

#include <stdlib.h>

enum { PIECE_BYTES = 4 << 20 /* of floats */ };

/* Rows on their way. */
typedef struct {
    int rows;      /* at a time */
    float *weight; /* [rows][in] of a source */
    void *scale;   /* int8: float [rows]; int4: bf16 [rows][in/32] */
    void *q;       /* int8 [rows][in], or int4 [rows][in/2] */
} piece;

/* Reads rows first .. first+n-1. *weight gets their floats, unless the source has the layer's integers. */
static mar_status read(const kern_linear_spec *spec, cuda_weights form, const piece *p, int first, int n,
                       const float **weight, mar_err *err)
{
    const kern_linear_rows *rows = spec->rows;
    if (rows && form == CUDA_INT8 && rows->read_int8)
        return rows->read_int8(rows->user, first, n, (int8_t *)p->q, (float *)p->scale, err);
    if (rows && form == CUDA_INT4 && rows->read_int4)
        return rows->read_int4(rows->user, first, n, (uint8_t *)p->q, (uint16_t *)p->scale, err);
    *weight = rows ? p->weight : spec->weight + (size_t)first * (size_t)spec->in;
    const mar_status status = rows ? rows->read(rows->user, first, n, p->weight, err) : MAR_OK;
    if (status == MAR_OK && form == CUDA_INT8)
        kern_int8_quantise(*weight, n, spec->in, (int8_t *)p->q, (float *)p->scale);
    if (status == MAR_OK && form == CUDA_INT4)
        kern_int4_quantise(*weight, n, spec->in, (uint8_t *)p->q, (uint16_t *)p->scale);
    return status;
}

/* Sends them. The device converts floats or packs integers. Other queues may read them then. */
static mar_status send(cuda_queue *c, const kern_linear *l, const piece *p, const float *weight, int first, int n,
                       mar_err *err)
{
    const int int4 = l->form == CUDA_INT4;
    const size_t in = (size_t)l->in, numbers = (size_t)n * in;
    char *const to = (char *)l->weight + (size_t)first * l->row_bytes;
    if (l->form < CUDA_INT8) return cuda_upload_floats(c, weight, numbers, cuda_operands(l->form), to, err);
    const size_t row = int4 ? in / KERN_INT4_GROUP * sizeof(bf16) : sizeof(float), pitch = cuda_scale_bytes(l);
    cudaError_t error =
        cudaMemcpyAsync(c->workspace, p->q, numbers / (int4 ? 2 : 1), cudaMemcpyHostToDevice, c->stream);
    if (error == cudaSuccess)
        error = cudaMemcpy2DAsync((char *)l->scale + (size_t)first * pitch, pitch, p->scale, row, row, (size_t)n,
                                  cudaMemcpyHostToDevice, c->stream);
    if (error == cudaSuccess) cuda_low_bit_pack(c, l, c->workspace, n, to);
    const cudaError_t idle = cudaStreamSynchronize(c->stream); /* after a failure, too: a copy may still read */
    const mar_status status = cuda_status(error != cudaSuccess ? error : idle, "uploading weights", err);
    return status == MAR_OK ? kern_check(&c->base, err) : status;
}

/* Allocates weight and scale. cuda_alloc clears them: int4 groups behind the last input have the scale 0. */
static mar_status cuda_weights_allocate(cuda_queue *c, kern_linear *l, mar_err *err)
{
    const size_t in = (size_t)l->in, out = (size_t)l->out, unit = l->form == CUDA_INT4 ? 128 : 64; /* inputs */
    const size_t size = l->form == CUDA_F32 ? sizeof(float) : sizeof(bf16);
    kern_device *const d = &c->device->base;
    l->row_bytes = l->form < CUDA_INT8 ? in * size : (in + unit - 1) / unit * 64;
    const mar_status status = cuda_alloc(d, out * l->row_bytes, &l->weight, err);
    return status != MAR_OK || l->form < CUDA_INT8 ? status : cuda_alloc(d, out * cuda_scale_bytes(l), &l->scale, err);
}

/* Puts the norm in front of a layer into n rows of its weights, from `weight` to `to`, which may be the same, and into
 * their bias (product.cu). */
static void fold_norm(const kern_linear_spec *spec, const float *weight, int n, float *to, float *bias)
{
    for (int r = 0; r < n; r++, weight += spec->in, to += spec->in) {
        double sum = 0, shift = 0;
        for (int i = 0; i < spec->in; i++) {
            if (spec->norm_bias) shift += (double)weight[i] * spec->norm_bias[i];
            to[i] = weight[i] * spec->norm[i];
            sum += (double)to[i];
        }
        if (!spec->norm_bias) continue;
        for (int i = 0; i < spec->in; i++) to[i] -= (float)(sum / spec->in);
        bias[r] += (float)shift;
    }
}

mar_status cuda_load_weights(cuda_queue *c, const kern_linear_spec *spec, kern_linear *l, float *bias, mar_err *err)
{
    const size_t in = (size_t)l->in, fit = PIECE_BYTES / (in * sizeof(float));
    piece p = {fit < 1 ? 1 : fit < (size_t)l->out ? (int)fit : l->out, NULL, NULL, NULL};
    const size_t rows = (size_t)p.rows, scales = rows * (sizeof(float) + in / KERN_INT4_GROUP * sizeof(bf16));
    (void)cuda_outside_recording(c, "a load");
    mar_status status = kern_check(&c->base, err);
    if (status == MAR_OK) status = cuda_weights_allocate(c, l, err);
    if (status != MAR_OK) return status;
    p.weight = (float *)malloc(rows * in * (sizeof *p.weight + 1) + scales);
    if (!p.weight) return err_set(err, MAR_ENOMEM, "out of memory: %d x %d weights", p.rows, l->in);
    p.scale = p.weight + rows * in, p.q = (char *)p.scale + scales;
    for (int first = 0; first < l->out && status == MAR_OK; first += p.rows) {
        const int n = l->out - first < p.rows ? l->out - first : p.rows;
        const float *weight = NULL;
        status = read(spec, l->form, &p, first, n, &weight, err);
        if (status == MAR_OK && l->unit) {
            fold_norm(spec, weight, n, p.weight, bias + first);
            weight = p.weight;
        }
        if (status == MAR_OK) status = send(c, l, &p, weight, first, n, err);
    }
    free(p.weight);
    return status;
}
