/* Squared distances between all rows of two matrices: a product with terms (a - b)^2 in place of a b. A block computes
 * SIDE x SIDE of them, a thread 8 x 8. DEPTH numbers of each row are in shared memory, transposed, while the next ones
 * load into registers.
 *
 * Floor, per distance: 2 dim f32 instructions, a subtraction and a fused multiply-add; GPUs have no faster unit for
 * them. A block reads 8 SIDE dim bytes, a byte for 16 terms, mostly from L2. */
#include "kernels/cuda/cuda.h"

enum {
    SIDE = 128,
    DEPTH = 8,
    THREADS = 256,
    LOADS = SIDE * DEPTH / THREADS, /* numbers of a and of b a thread loads */
    PITCH = SIDE + 4,               /* floats of a row of shared memory; a warp's stores go to 32 banks */
};

/* Loads a thread's part of SIDE rows from `first` on, DEPTH numbers from `k` on, in vectors of N. Numbers outside are
 * 0. */
template <int N>
static __device__ inline void distances_fetch(const float *x, int first, int rows, int dim, int k, float part[LOADS])
{
#pragma unroll
    for (int i = 0; i < LOADS / N; i++) {
        const int e = i * THREADS + (int)threadIdx.x, row = first + e / (DEPTH / N), at = k + e % (DEPTH / N) * N;
        cuda_floats<N> v = {};
        if (row < rows && at < dim) v = cuda_load<N>(x + (size_t)row * (size_t)dim + (size_t)at);
        for (int j = 0; j < N; j++) part[i * N + j] = v.v[j];
    }
}

/* Stores them to shared memory [DEPTH][PITCH]. */
template <int N> static __device__ inline void put(const float part[LOADS], float *shared)
{
#pragma unroll
    for (int i = 0; i < LOADS / N; i++) {
        const int e = i * THREADS + (int)threadIdx.x, row = e / (DEPTH / N), at = e % (DEPTH / N) * N;
        for (int j = 0; j < N; j++) shared[(at + j) * PITCH + row] = part[i * N + j];
    }
}

/* Returns a thread's i-th row or column. Its eight are two groups of four, half a side apart, so that a warp reads
 * neighbours. */
static __device__ inline int distances_place(int thread, int i)
{
    return i / 4 * (SIDE / 2) + 4 * thread + i % 4;
}

template <int N>
static __global__ void __launch_bounds__(THREADS, N == 4 ? 2 : 1)
    distances_kernel(const float *a, int rows, const float *b, int columns, int dim, float *y)
{
    float *left = (float *)cuda_shared(), *right = left + DEPTH * PITCH;
    const int first = (int)blockIdx.y * SIDE, first_column = (int)blockIdx.x * SIDE;
    const int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
    float sum[8][8] = {}, from_a[LOADS], from_b[LOADS];
    distances_fetch<N>(a, first, rows, dim, 0, from_a);
    distances_fetch<N>(b, first_column, columns, dim, 0, from_b);
    for (int k = 0; k < dim; k += DEPTH) {
        put<N>(from_a, left);
        put<N>(from_b, right);
        __syncthreads();
        if (k + DEPTH < dim) {
            distances_fetch<N>(a, first, rows, dim, k + DEPTH, from_a);
            distances_fetch<N>(b, first_column, columns, dim, k + DEPTH, from_b);
        }
#pragma unroll
        for (int j = 0; j < DEPTH; j++) {
            cuda_floats<4> u[2], v[2];
            for (int h = 0; h < 2; h++) {
                u[h] = cuda_load<4>(left + j * PITCH + distances_place(ty, 4 * h));
                v[h] = cuda_load<4>(right + j * PITCH + distances_place(tx, 4 * h));
            }
#pragma unroll
            for (int r = 0; r < 8; r++)
#pragma unroll
                for (int c = 0; c < 8; c++) {
                    const float difference = u[r / 4].v[r % 4] - v[c / 4].v[c % 4];
                    sum[r][c] = fmaf(difference, difference, sum[r][c]);
                }
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const int row = first + distances_place(ty, r);
        if (row >= rows) continue;
#pragma unroll
        for (int c = 0; c < 8; c++) {
            const int column = first_column + distances_place(tx, c);
            if (column < columns) y[(size_t)row * (size_t)columns + (size_t)column] = sum[r][c];
        }
    }
}

void cuda_distances(kern_queue *k, const float *a, int rows, const float *b, int columns, int dim, float *y)
{
    if (rows <= 0 || columns <= 0) return;
    const int vectors = dim % 4 == 0 && cuda_aligned(a) && cuda_aligned(b);
    cuda_launch(cuda_of(k), vectors ? distances_kernel<4> : distances_kernel<1>,
                dim3(cuda_blocks((size_t)columns, SIDE), cuda_blocks((size_t)rows, SIDE)), THREADS,
                2 * DEPTH * PITCH * sizeof(float), a, rows, b, columns, dim, y);
}
