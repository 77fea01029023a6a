/* Row operations of a transformer with RMSNorm and SwiGLU, and its embeddings. All are bound by memory: the floor
 * is the bytes read and written. So lanes move 16 bytes at a time where alignment allows. */
#include "kernels/cuda/ptx.h"
#include "kernels/discrete.h"

enum { THREADS = 256 };

void cuda_rms_norm(kern_queue *k, const float *x, const int *index, int rows, int dim, const float *weight, float eps,
                   void *y, int y_f32)
{
    cuda_layer_norm(k, x, index, rows, dim, weight, NULL, eps, y, y_f32);
}

/* --- gated --------------------------------------------------------------------------------------------------- */

/* Computes N neighbouring results per thread. n: vectors of N a row. */
template <typename X, typename Y, int N>
static __global__ void gated_kernel(const void *x, size_t vectors, cuda_divisor n, kern_activation activation, void *y)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= vectors) return;
    const int row = cuda_quotient((int)i, n), column = ((int)i - row * n.by) * N;
    const X *from = (const X *)x + (size_t)row * 2 * (size_t)n.by * N + column;
    cuda_floats<N> gate = cuda_load<N>(from);
    const cuda_floats<N> up = cuda_load<N>(from + (size_t)n.by * N);
    for (int j = 0; j < N; j++)
        gate.v[j] = (activation == KERN_SILU ? cuda_silu(gate.v[j]) : cuda_gelu_tanh(gate.v[j])) * up.v[j];
    cuda_store((Y *)y + N * i, gate);
}

template <typename X, typename Y>
static void cuda_gated_launch(cuda_queue *c, const void *x, int rows, int hidden, kern_activation activation, void *y)
{
    const int wide = hidden % 8 == 0 && cuda_aligned(x) && cuda_aligned(y), n = wide ? hidden / 8 : hidden;
    const size_t vectors = (size_t)rows * (size_t)n; /* an int numbers them */
    cuda_launch(c, wide ? gated_kernel<X, Y, 8> : gated_kernel<X, Y, 1>, cuda_blocks(vectors, THREADS), THREADS, 0, x,
                vectors, cuda_divide_by(n), activation, y);
}

void cuda_gated(kern_queue *k, const act *x, int rows, int hidden, kern_activation activation, act *y)
{
    cuda_queue *c = cuda_of(k);
    (c->device->bf16 ? cuda_gated_launch<bf16, bf16> : cuda_gated_launch<float, float>)(c, x, rows, hidden, activation,
                                                                                        y);
}

void cuda_swiglu_rows(cuda_queue *c, const float *x, int rows, int hidden, int f16_y, void *y)
{
    (f16_y ? cuda_gated_launch<float, f16> : cuda_gated_launch<float, float>)(c, x, rows, hidden, KERN_SILU, y);
}

/* --- the codebook ------------------------------------------------------------------------------------------------- */

static __global__ void look_up_kernel(const float *table, int size, cuda_divisor dim, const float *x, int n, float *y)
{
    const int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i >= n) return;
    const int r = cuda_quotient(i, dim), token = kern_token_row(x[r], size);
    y[i] = table[(size_t)token * (size_t)dim.by + (size_t)(i - r * dim.by)];
}

void cuda_look_up(kern_queue *k, const float *table, int size, int dim, const float *x, int rows, float *y)
{
    cuda_launch(cuda_of(k), look_up_kernel, cuda_blocks((size_t)rows * (size_t)dim, THREADS), THREADS, 0, table, size,
                cuda_divide_by(dim), x, rows * dim, y);
}

/* --- embeddings of tokens on the device --------------------------------------------------------------------------- */

/* Takes one row per grid row; a thread has N neighbouring numbers. n: vectors of N a row. */
template <int N>
static __global__ void embed_kernel(const float *table, int size, int n, const int *token, const int *place, float *y)
{
    const int i = (int)(blockIdx.y * THREADS + threadIdx.x);
    const size_t r = blockIdx.x, row = (size_t)kern_embedded_row(token, place[r], size), dim = (size_t)n * N;
    fast::start_next();
    if (i < n) cuda_store(y + r * dim + (size_t)i * N, cuda_load<N>(table + row * dim + (size_t)i * N));
}

void cuda_embed(kern_queue *k, const float *table, int size, int dim, const int *token, const int *place, int rows,
                float *y)
{
    cuda_queue *c = cuda_of(k);
    if (rows <= 0) return;
    const int *staged = cuda_stage(c, place, (size_t)rows);
    const int wide = dim % 4 == 0 && cuda_aligned(table) && cuda_aligned(y), n = wide ? dim / 4 : dim;
    cuda_launch(c, wide ? embed_kernel<4> : embed_kernel<1>, dim3((unsigned)rows, cuda_blocks((size_t)n, THREADS)),
                THREADS, 0, table, size, n, token, staged, y);
}
