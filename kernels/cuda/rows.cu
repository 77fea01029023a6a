/* Operations on rows. All are bound by memory: the floor is the bytes read and written. So lanes read 16 bytes at a
 * time, several times before they use the first, and a row is read once. */
#include "kernels/cuda/ptx.h"

#include <float.h>
#include <limits.h>

enum { THREADS = 256, LOADS = 4 /* of a thread, on their way at a time */ };

/* --- norms ------------------------------------------------------------------------------------------------ */

enum { NORM_THREADS = 128, NORM_EACH = 40 /* numbers of a row per thread */, NORM_MOST = NORM_THREADS * NORM_EACH };

/* LayerNorm, or RMSNorm if bias is NULL. WARPS warps hold a row in registers, in vectors of N, EACH numbers a thread.
 * All of a row is on its way from memory at once: 3 KB a warp of MAR-B's rows, 100 KB a multiprocessor. The moments
 * take two passes, because the mean of the residual stream can be far from zero. */
template <typename Y, int N, int WARPS, int EACH>
static __global__ void norm_kernel(const float *x, const int *index, int rows, int dim,
                                   const float *__restrict__ weight, const float *__restrict__ bias, float eps, void *y)
{
    const int lanes = 32 * WARPS, first = (int)threadIdx.x % lanes * N, step = lanes * N;
    const int r = (int)blockIdx.x * (NORM_THREADS / lanes) + (int)threadIdx.x / lanes;
    float *part = (float *)cuda_shared(); /* [2][WARPS] */
    fast::start_next();
    fast::wait_for_previous();
    if (r >= rows) return;
    const float *row = x + (size_t)(index ? index[r] : r) * (size_t)dim + first;
    cuda_floats<N> v[EACH / N];
    float sum = 0, square = 0;
#pragma unroll
    for (int i = 0; i < EACH / N; i++) v[i] = first + i * step < dim ? cuda_load<N>(row + i * step) : cuda_floats<N>{};
#pragma unroll
    for (int i = 0; i < EACH / N; i++)
        for (int j = 0; j < N; j++) sum += v[i].v[j];
    const float mean = bias ? cuda_block_sum<WARPS>(sum, part) / (float)dim : 0;
#pragma unroll
    for (int i = 0; i < EACH / N; i++)
        if (first + i * step < dim)
            for (int j = 0; j < N; j++) {
                v[i].v[j] -= mean;
                square += v[i].v[j] * v[i].v[j];
            }
    const float scale = cuda_inverse_deviation(cuda_block_sum<WARPS>(square, part + WARPS) / (float)dim, eps);
    Y *out = (Y *)y + (size_t)r * (size_t)dim + first;
    weight += first, bias += bias ? first : 0;
#pragma unroll
    for (int i = 0; i < EACH / N; i++) {
        if (first + i * step >= dim) break;
        const cuda_floats<N> w = cuda_load<N>(weight + i * step);
        const cuda_floats<N> b = bias ? cuda_load<N>(bias + i * step) : cuda_floats<N>{};
        for (int j = 0; j < N; j++) v[i].v[j] = v[i].v[j] * scale * w.v[j] + b.v[j];
        cuda_store(out + i * step, v[i]);
    }
}

template <typename Y> static auto norm_of(int vectors, int warps, int dim)
{
    return !vectors        ? norm_kernel<Y, 1, 4, NORM_EACH>
           : warps > 1     ? norm_kernel<Y, 4, 4, NORM_EACH>
           : dim > 32 * 24 ? norm_kernel<Y, 4, 1, NORM_EACH>
                           : norm_kernel<Y, 4, 1, 24>;
}

void cuda_layer_norm(kern_queue *k, const float *x, const int *index, int rows, int dim, const float *weight,
                     const float *bias, float eps, void *y, int y_f32)
{
    cuda_queue *c = cuda_of(k);
    if (rows <= 0) return;
    if (dim > NORM_MOST) {
        cuda_fail(c, MAR_EBACKEND, "norm of %d numbers: a GPU takes up to %d", dim, (int)NORM_MOST);
        return;
    }
    const int *staged = cuda_stage(c, index, (size_t)rows);
    const int vectors =
        dim % 4 == 0 && cuda_aligned(x) && cuda_aligned(weight) && cuda_aligned(bias) && cuda_aligned(y);
    const int warps = vectors && dim <= 32 * NORM_EACH ? 1 : NORM_THREADS / 32;
    const auto kernel =
        c->device->bf16 && !y_f32 ? norm_of<bf16>(vectors, warps, dim) : norm_of<float>(vectors, warps, dim);
    cuda_launch_early(c, kernel, cuda_blocks((size_t)rows * (size_t)warps, NORM_THREADS / 32), NORM_THREADS,
                      2 * warps * sizeof(float), x, staged, rows, dim, weight, bias, eps, y);
}

/* --- copies ----------------------------------------------------------------------------------------------- */

/* Copies a row of n vectors of N floats by one row of the block's threads. */
template <int N>
static __global__ void copy_rows_kernel(float *dst, const int *dst_index, const float *src, const int *src_index,
                                        const float *add, const int *add_index, int rows, int n)
{
    const int r = (int)(blockIdx.x * blockDim.y + threadIdx.y);
    fast::start_next();
    if (r >= rows) return;
    const size_t dim = (size_t)n * N;
    float *to = dst + (size_t)(dst_index ? dst_index[r] : r) * dim;
    const float *from = src + (size_t)(src_index ? src_index[r] : r) * dim;
    const float *more = add ? add + (size_t)(add_index ? add_index[r] : r) * dim : NULL;
    const int step = (int)blockDim.x * N;
    for (int first = (int)threadIdx.x * N; first < n * N; first += LOADS * step) {
        cuda_floats<N> x[LOADS] = {}, y[LOADS] = {};
#pragma unroll
        for (int l = 0; l < LOADS; l++) {
            const int i = first + l * step;
            if (i < n * N) x[l] = cuda_load<N>(from + i);
            if (i < n * N && more) y[l] = cuda_load<N>(more + i);
        }
#pragma unroll
        for (int l = 0; l < LOADS; l++) {
            for (int j = 0; j < N && more; j++) x[l].v[j] += y[l].v[j];
            if (first + l * step < n * N) cuda_store(to + first + l * step, x[l]);
        }
    }
}

void cuda_copy_rows(kern_queue *k, float *dst, const int *dst_index, const float *src, const int *src_index,
                    const float *add, const int *add_index, int rows, int dim)
{
    cuda_queue *c = cuda_of(k);
    if (rows <= 0) return;
    const int *dst_at = cuda_stage(c, dst_index, (size_t)rows);
    const int *src_at = cuda_stage(c, src_index, (size_t)rows);
    const int *add_at = cuda_stage(c, add_index, (size_t)rows);
    const int wide = dim % 4 == 0 && cuda_aligned(dst) && cuda_aligned(src) && cuda_aligned(add);
    const int n = wide ? dim / 4 : dim;
    unsigned across = 4;
    while (across < THREADS && across * LOADS < (unsigned)n) across *= 2;
    const unsigned down = THREADS / across;
    cuda_launch(c, wide ? copy_rows_kernel<4> : copy_rows_kernel<1>, cuda_blocks((size_t)rows, down),
                dim3(across, down), 0, dst, dst_at, src, src_at, add, add_at, rows, n);
}

/* --- similarity of rows -------------------------------------------------------------------------------------- */

/* A warp takes a row. */
template <typename T>
static __global__ void similarity_kernel(const act *left, const act *right, int stride, int rows, int heads,
                                         int head_dim, float *y)
{
    const int lane = (int)threadIdx.x % 32, r = (int)(blockIdx.x * (THREADS / 32) + threadIdx.x / 32);
    if (r >= rows) return;
    const T *a = (const T *)left + (size_t)r * (size_t)stride, *b = (const T *)right + (size_t)r * (size_t)stride;
    float total = 0;
    for (int h = 0; h < heads; h++, a += head_dim, b += head_dim) {
        float ab = 0, aa = 0, bb = 0;
        for (int i = lane; i < head_dim; i += 32) {
            const float p = cuda_float(a[i]), q = cuda_float(b[i]);
            ab += p * q;
            aa += p * p;
            bb += q * q;
        }
        ab = cuda_warp_sum(ab);
        aa = cuda_warp_sum(aa);
        bb = cuda_warp_sum(bb);
        total += ab / (fmaxf(sqrtf(aa), 1e-8f) * fmaxf(sqrtf(bb), 1e-8f)) / (float)heads;
    }
    if (lane == 0) y[r] = total;
}

void cuda_similarity(kern_queue *k, const act *a, const act *b, int stride, int rows, int heads, int head_dim, float *y)
{
    cuda_queue *c = cuda_of(k);
    const int most = (int)(c->workspace_bytes / sizeof *y);
    for (int r = 0; r < rows; r += most) {
        const int part = rows - r < most ? rows - r : most;
        const size_t first = (size_t)r * (size_t)stride * k->device->act_size;
        const dim3 grid(cuda_blocks((size_t)part, THREADS / 32));
        float *result = (float *)c->workspace;
        cuda_launch(c, c->device->bf16 ? similarity_kernel<bf16> : similarity_kernel<float>, grid, THREADS, 0,
                    (const char *)a + first, (const char *)b + first, stride, part, heads, head_dim, result);
        k->core->download(k, y + r, result, (size_t)part * sizeof *y);
    }
}

/* --- NaN and infinity ------------------------------------------------------------------------------------------ */

/* Lowers *first to the first row with a NaN or an infinity. A warp takes a row. */
template <typename T>
static __global__ void first_nonfinite_kernel(const void *x, int rows, int width, int stride, int *first)
{
    const int lane = (int)threadIdx.x % 32, r = (int)(blockIdx.x * (THREADS / 32) + threadIdx.x / 32);
    if (r >= rows) return;
    const T *row = (const T *)x + (size_t)r * (size_t)stride;
    int others = 0;
    for (int i = lane; i < width; i += 32) others |= !(fabsf(cuda_float(row[i])) <= FLT_MAX);
    if (others) atomicMin(first, r);
}

int cuda_first_nonfinite(kern_queue *k, const void *x, mar_dtype type, int rows, int width, int stride)
{
    cuda_queue *c = cuda_of(k);
    const dim3 grid(cuda_blocks((size_t)rows, THREADS / 32));
    int found = INT_MAX, *first = (int *)c->workspace;
    if (rows <= 0) return -1;
    k->core->upload(k, first, &found, sizeof found);
    const auto kernel = type == MAR_DTYPE_F16                      ? first_nonfinite_kernel<f16>
                        : c->device->bf16 && type != MAR_DTYPE_F32 ? first_nonfinite_kernel<bf16>
                                                                   : first_nonfinite_kernel<float>;
    cuda_launch(c, kernel, grid, THREADS, 0, x, rows, width, stride, first);
    k->core->download(k, &found, first, sizeof found);
    return k->failed == MAR_OK && found != INT_MAX ? found : -1;
}

/* --- element by element ----------------------------------------------------------------------------------- */

static __global__ void subtract_kernel(const float *a, const float *b, size_t n, float *y)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) y[i] = a[i] - b[i];
}

void cuda_subtract(kern_queue *k, const float *a, const float *b, size_t n, float *y)
{
    cuda_launch(cuda_of(k), subtract_kernel, cuda_blocks(n, THREADS), THREADS, 0, a, b, n, y);
}

/* Converts n vectors, LOADS per thread. */
template <int N, typename T> static __global__ void to_halves_kernel(const float *x, size_t n, uint16_t *y)
{
    const size_t first = (size_t)blockIdx.x * THREADS * LOADS + threadIdx.x;
    cuda_floats<N> v[LOADS] = {};
#pragma unroll
    for (int l = 0; l < LOADS; l++)
        if (first + l * THREADS < n) v[l] = cuda_load<N>(x + N * (first + l * THREADS));
#pragma unroll
    for (int l = 0; l < LOADS; l++)
        if (first + l * THREADS < n) cuda_store((T *)y + N * (first + l * THREADS), v[l]);
}

void cuda_to_halves(cuda_queue *c, const float *x, size_t n, mar_dtype type, void *y)
{
    const auto fours = type == MAR_DTYPE_F16 ? to_halves_kernel<4, f16> : to_halves_kernel<4, bf16>;
    const auto ones = type == MAR_DTYPE_F16 ? to_halves_kernel<1, f16> : to_halves_kernel<1, bf16>;
    const size_t vectors = cuda_aligned(x) && (uintptr_t)y % 8 == 0 ? n / 4 : 0, rest = n - 4 * vectors;
    uint16_t *to = (uint16_t *)y;
    cuda_launch(c, fours, cuda_blocks(vectors, THREADS * LOADS), THREADS, 0, x, vectors, to);
    cuda_launch(c, ones, cuda_blocks(rest, THREADS * LOADS), THREADS, 0, x + 4 * vectors, rest, to + 4 * vectors);
}

void cuda_to_act(kern_queue *k, const float *x, size_t n, act *y)
{
    cuda_queue *c = cuda_of(k);
    if (c->device->bf16)
        cuda_to_halves(c, x, n, MAR_DTYPE_BF16, y);
    else if (n > 0 && cuda_live(c))
        cuda_ok(c, cudaMemcpyAsync(y, x, n * sizeof *x, cudaMemcpyDeviceToDevice, c->stream), "copying operands");
}

/* --- a read of memory ------------------------------------------------------------------------------------------ */

enum { READS = 8, READING = 8 /* vectors of a thread at a time; blocks of a multiprocessor */ };

static __global__ void __launch_bounds__(THREADS) read_kernel(const uint4 *x, size_t n, unsigned *unused)
{
    const size_t step = (size_t)gridDim.x * THREADS * READS;
    unsigned all = 0;
    for (size_t first = (size_t)blockIdx.x * THREADS * READS + threadIdx.x; first < n; first += step) {
        uint4 v[READS] = {};
#pragma unroll
        for (int i = 0; i < READS; i++)
            if (first + i * THREADS < n) v[i] = fast::load_weights(x + first + i * THREADS);
#pragma unroll
        for (int i = 0; i < READS; i++) all |= v[i].x | v[i].y | v[i].z | v[i].w;
    }
    if (all == 1) *unused = all; /* keeps compilers from dropping the reads */
}

void cuda_read(kern_queue *k, const float *x, size_t n)
{
    cuda_queue *c = cuda_of(k);
    cuda_launch(c, read_kernel, (unsigned)(READING * c->device->multiprocessors), THREADS, 0, (const uint4 *)x, n / 4,
                (unsigned *)c->workspace);
}
