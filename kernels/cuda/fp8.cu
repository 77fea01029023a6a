/* FP8 of linear layers (kernels/fp8.h): rounding, and the end of a product whose scales cuBLASLt does not apply. */
#include "kernels/cuda/linear.h"

extern "C" {
#include "kernels/fp8.h"
}

enum { THREADS = 256, WARPS = THREADS / 32, VECTOR = 4 };

static __device__ inline float greatest(float most, float x) /* NaN above all */
{
    const uint32_t a = kern_fp8_bits(most), b = kern_fp8_bits(x) & 0x7fffffff;
    return kern_fp8_float(a > b ? a : b);
}

/* A warp takes a row: finds its largest magnitude, then rounds it. The second reading finds it in the cache. Floor: an
 * element is read once, and its byte written. */
template <typename X> static __global__ void fp8_rows_kernel(const X *x, int rows, int in, uint8_t *to, float *scale)
{
    const int row = (int)(blockIdx.x * WARPS + threadIdx.x / 32), lane = (int)(threadIdx.x % 32);
    float most = 0, inverse;
    if (row >= rows) return;
    x += (size_t)row * (size_t)in;
    for (int i = VECTOR * lane; i < in; i += VECTOR * 32) {
        const cuda_floats<VECTOR> v = cuda_load<VECTOR>(x + i);
        for (int j = 0; j < VECTOR; j++) most = greatest(most, v.v[j]);
    }
    for (int i = 16; i > 0; i /= 2) most = greatest(most, __shfl_xor_sync(0xffffffffu, most, i));
    const float own = kern_fp8_scale(most, &inverse);
    if (lane == 0) scale[row] = own;
    for (int i = VECTOR * lane; i < in; i += VECTOR * 32) {
        const cuda_floats<VECTOR> v = cuda_load<VECTOR>(x + i);
        uint32_t codes = 0;
        for (int j = 0; j < VECTOR; j++) codes |= (uint32_t)kern_fp8_code(kern_fp8_round(v.v[j] * inverse)) << (8 * j);
        *(uint32_t *)(to + (size_t)row * (size_t)in + i) = codes;
    }
}

void cuda_fp8_rows(cuda_queue *c, const void *x, int f32, int rows, int in, void *to, float *scale)
{
    const dim3 grid = cuda_blocks((size_t)rows, WARPS);
    if (f32)
        cuda_launch(c, fp8_rows_kernel<float>, grid, THREADS, 0, (const float *)x, rows, in, (uint8_t *)to, scale);
    else
        cuda_launch(c, fp8_rows_kernel<bf16>, grid, THREADS, 0, (const bf16 *)x, rows, in, (uint8_t *)to, scale);
}

/* A thread takes a vector of a row. Floor: 4 bytes read and y's written an element, from and to L2 with few rows. */
template <typename Y>
static __global__ void fp8_finish_kernel(kern_linear l, int rows, const float *sum, const float *x_scale, Y *y)
{
    const int vectors = l.out / VECTOR, i = (int)(blockIdx.x * THREADS + threadIdx.x);
    const int row = i / vectors, column = i % vectors * VECTOR;
    if (row >= rows) return;
    const cuda_floats<VECTOR> v = cuda_load<VECTOR>(sum + (size_t)row * (size_t)l.out + column);
    const float *scale = (const float *)l.scale + column;
    Y *to = y + (size_t)row * (size_t)l.y_stride + column;
    for (int j = 0; j < VECTOR; j++) {
        const float bias = l.bias ? cuda_float(((const bf16 *)l.bias)[column + j]) : 0;
        const float x = cuda_activated(v.v[j] * x_scale[row] * scale[j] + bias, l.activation);
        cuda_store(to + j, l.flags & KERN_OUT_ADD ? cuda_float(to[j]) + x : x);
    }
}

void cuda_fp8_finish(cuda_queue *c, const kern_linear *l, int rows, const float *sum, const float *x_scale, void *y)
{
    const dim3 grid = cuda_blocks((size_t)rows * (size_t)(l->out / VECTOR), THREADS);
    if (l->y_type == MAR_DTYPE_F32)
        cuda_launch(c, fp8_finish_kernel<float>, grid, THREADS, 0, *l, rows, sum, x_scale, (float *)y);
    else
        cuda_launch(c, fp8_finish_kernel<bf16>, grid, THREADS, 0, *l, rows, sum, x_scale, (bf16 *)y);
}
