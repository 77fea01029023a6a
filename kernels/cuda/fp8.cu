/* FP8 of linear layers (kernels/fp8.h): rounding, and the end of a product whose scales cuBLASLt does not apply. */
#include "kernels/cuda/linear.h"
#include "kernels/cuda/ptx.h"

enum { THREADS = 256, VECTOR = 4, ROW_THREADS = 128, PIECE = 8, EACH = 12, CHUNK = EACH * PIECE * 32 };

template <typename X> using piece_of = cuda_stored<X, PIECE>;

static __device__ inline float greatest(float most, float x) /* NaN above all */
{
    const uint32_t a = kern_fp8_bits(most), b = kern_fp8_bits(x) & 0x7fffffff;
    return kern_fp8_float(a > b ? a : b);
}

/* Loads a lane's pieces of the chunk that begins at x; `left` numbers are left of the row. */
template <typename X> static __device__ inline void load_chunk(const X *x, int left, piece_of<X> v[EACH])
{
    const int first = PIECE * ((int)threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (i * 32 * PIECE >= left) break; /* uniform */
        v[i] = first + i * 32 * PIECE < left ? *(const piece_of<X> *)(x + first + i * 32 * PIECE) : piece_of<X>{};
    }
}

/* A warp takes a row: finds its largest magnitude, then rounds it. A row of up to CHUNK numbers is read once, all of it
 * on its way at once; of a longer one the last chunk stays in registers. Floor: an element is read once, and its byte
 * written. */
template <typename X>
static __global__ void fp8_rows_kernel(const void *from, int rows, int in, uint8_t *to, float *scale)
{
    const int row = (int)(blockIdx.x * (ROW_THREADS / 32) + threadIdx.x / 32), lane = (int)(threadIdx.x % 32);
    float most = 0, inverse;
    piece_of<X> v[EACH];
    if (row >= rows) return;
    const X *const x = (const X *)from + (size_t)row * (size_t)in;
    to += (size_t)row * (size_t)in;
    for (int first = 0; first < in; first += CHUNK) {
        load_chunk(x + first, in - first, v);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (first + i * 32 * PIECE >= in) break;
            const cuda_floats<PIECE> n = cuda_unpack<X>(v[i]);
            for (int j = 0; j < PIECE; j++) most = greatest(most, n.v[j]);
        }
    }
    for (int i = 16; i > 0; i /= 2) most = greatest(most, __shfl_xor_sync(0xffffffffu, most, i));
    const float own = kern_fp8_scale(most, &inverse);
    if (lane == 0) scale[row] = own;
    for (int first = (in - 1) / CHUNK * CHUNK;; first -= CHUNK) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int at = first + (i * 32 + lane) * PIECE;
            if (at >= in) break;
            const cuda_floats<PIECE> n = cuda_unpack<X>(v[i]);
            uint32_t codes[2];
            for (int j = 0; j < 2; j++)
                codes[j] = fast::fp8_pair(n.v[4 * j] * inverse, n.v[4 * j + 1] * inverse) |
                           fast::fp8_pair(n.v[4 * j + 2] * inverse, n.v[4 * j + 3] * inverse) << 16;
            *(uint2 *)(to + at) = make_uint2(codes[0], codes[1]);
        }
        if (first == 0) break;
        load_chunk(x + first - CHUNK, CHUNK, v);
    }
}

void cuda_fp8_rows(cuda_queue *c, const void *x, int f32, int rows, int in, void *to, float *scale)
{
    cuda_launch(c, f32 ? fp8_rows_kernel<float> : fp8_rows_kernel<bf16>, cuda_blocks((size_t)rows, ROW_THREADS / 32),
                ROW_THREADS, 0, x, rows, in, (uint8_t *)to, scale);
}

/* A thread takes a vector of a row. Floor: 4 bytes read and y's written an element, from and to L2 with few rows. */
template <typename Y>
static __global__ void fp8_finish_kernel(kern_linear l, int rows, const float *sum, const float *x_scale, void *y)
{
    const int vectors = l.out / VECTOR, i = (int)(blockIdx.x * THREADS + threadIdx.x);
    const int row = i / vectors, column = i % vectors * VECTOR;
    if (row >= rows) return;
    const cuda_floats<VECTOR> v = cuda_load<VECTOR>(sum + (size_t)row * (size_t)l.out + column);
    const float *scale = (const float *)l.scale + column;
    Y *to = (Y *)y + (size_t)row * (size_t)l.y_stride + column;
    for (int j = 0; j < VECTOR; j++) {
        const float bias = l.bias ? cuda_float(((const bf16 *)l.bias)[column + j]) : 0;
        const float x = cuda_activated(v.v[j] * x_scale[row] * scale[j] + bias, l.activation);
        cuda_store(to + j, l.flags & KERN_OUT_ADD ? cuda_float(to[j]) + x : x);
    }
}

void cuda_fp8_finish(cuda_queue *c, const kern_linear *l, int rows, const float *sum, const float *x_scale, void *y)
{
    cuda_launch(c, l->y_type == MAR_DTYPE_F32 ? fp8_finish_kernel<float> : fp8_finish_kernel<bf16>,
                cuda_blocks((size_t)rows * (size_t)(l->out / VECTOR), THREADS), THREADS, 0, *l, rows, sum, x_scale, y);
}
