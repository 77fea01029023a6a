/* Operations of a convolutional network besides convolutions: pooling, the mean over pixels, channels as floats, and
 * resizing. A thread computes eight neighbouring channels of a pixel where the arrays permit 16-byte accesses, else
 * one. Every sum is by one thread, or by some in a fixed order.
 *
 * Floors, in bf16: pooling reads 2 bytes an element of x and writes 2 an element of y; overlapping windows find their
 * pixels in the L1 and L2 caches. mean_pixels reads 2 bytes an element of x. take_channels reads the 32-byte sectors of
 * its channels, and writes 4 bytes a channel. resize reads 3 bytes a pixel of rgb and writes 6 a pixel of y. */
#include "kernels/cuda/cuda.h"

enum { THREADS = 256, WARPS = 8, WIDE = 8 /* elements of a vector */ };

static int is_wide(int channels, int stride, const void *x, const void *y)
{
    return channels % WIDE == 0 && stride % WIDE == 0 && cuda_aligned(x) && cuda_aligned(y);
}

/* --- pools ------------------------------------------------------------------------------------------------- */

typedef struct {
    int window, stride, pad;
    int height, width;       /* of an image of x */
    int results;             /* vectors of an image of y */
    cuda_divisor columns, n; /* pixels of a row of y, vectors of a pixel */
    int y_stride;            /* elements from one pixel of y to the next */
} pool_shape;

/* A thread has a vector of N channels; blockIdx.y is the image. Every window has pixels inside x, because the padding
 * is less than the window. A NaN among them is the result. */
template <int N, int MEAN, typename T>
static __global__ void __launch_bounds__(THREADS) pool_kernel(pool_shape p, const act *images, act *results)
{
    const int i = (int)blockIdx.x * THREADS + (int)threadIdx.x;
    if (i >= p.results) return;
    const int pixel = cuda_quotient(i, p.n), channel = (i - pixel * p.n.by) * N, channels = p.n.by * N;
    const int row = cuda_quotient(pixel, p.columns), column = pixel - row * p.columns.by;
    const int top = max(row * p.stride - p.pad, 0), bottom = min(row * p.stride - p.pad + p.window, p.height);
    const int left = max(column * p.stride - p.pad, 0), right = min(column * p.stride - p.pad + p.window, p.width);
    const T *x = (const T *)images + (size_t)blockIdx.y * (size_t)(p.height * p.width) * (size_t)channels + channel;
    const size_t to = (size_t)blockIdx.y * (size_t)(p.results / p.n.by) + (size_t)pixel;
    cuda_floats<N> sum;
    for (int j = 0; j < N; j++) sum.v[j] = MEAN ? 0 : -INFINITY;
    for (int r = top; r < bottom; r++) {
        const T *from = x + ((size_t)r * (size_t)p.width + (size_t)left) * (size_t)channels;
        for (int s = left; s < right; s++, from += channels) {
            const cuda_floats<N> v = cuda_load<N>(from);
            for (int j = 0; j < N; j++)
                if (MEAN)
                    sum.v[j] += v.v[j];
                else
                    sum.v[j] = v.v[j] > sum.v[j] || v.v[j] != v.v[j] ? v.v[j] : sum.v[j];
        }
    }
    if (MEAN) {
        const float count = (float)((bottom - top) * (right - left));
        for (int j = 0; j < N; j++) sum.v[j] /= count;
    }
    cuda_store((T *)results + to * (size_t)p.y_stride + channel, sum);
}

template <typename T> static auto pool_of(kern_pool_kind kind, int wide)
{
    const auto mean = wide ? pool_kernel<WIDE, 1, T> : pool_kernel<1, 1, T>;
    const auto greatest = wide ? pool_kernel<WIDE, 0, T> : pool_kernel<1, 0, T>;
    return kind == KERN_POOL_MEAN ? mean : greatest;
}

void cuda_pool(kern_queue *k, const kern_pool *p, const act *x, int images, int height, int width, int channels, act *y,
               int y_stride)
{
    cuda_queue *c = cuda_of(k);
    const int wide = is_wide(channels, y_stride, x, y), n = wide ? channels / WIDE : channels;
    const int rows = cuda_results(height, p->pad, p->window, p->stride);
    const int columns = cuda_results(width, p->pad, p->window, p->stride);
    if (images <= 0 || channels <= 0 || rows == 0 || columns == 0) return;
    const pool_shape s = {
        p->window,         p->stride, p->pad, height, width, rows * columns * n, cuda_divide_by(columns),
        cuda_divide_by(n), y_stride};
    cuda_launch(c, c->device->bf16 ? pool_of<bf16>(p->kind, wide) : pool_of<float>(p->kind, wide),
                dim3(cuda_blocks((size_t)s.results, THREADS), (unsigned)images), THREADS, 0, s, x, y);
}

/* --- the mean over pixels ---------------------------------------------------------------------------------- */

/* A block takes 32 vectors of N channels, one per lane; each of its warps adds up every WARPS'th pixel. blockIdx.y is
 * the image. n: vectors of a pixel. */
template <int N, typename T>
static __global__ void __launch_bounds__(32 * WARPS) mean_kernel(const act *images, int pixels, int n, float *y)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, at = (int)blockIdx.x * 32 + lane;
    const size_t channels = (size_t)n * N;
    cuda_floats<N> *parts = (cuda_floats<N> *)cuda_shared(); /* [WARPS][32] */
    cuda_floats<N> sum = {};
    const T *x = (const T *)images + (size_t)blockIdx.y * (size_t)pixels * channels + (size_t)at * N;
    if (at < n)
#pragma unroll 4
        for (int i = warp; i < pixels; i += WARPS) {
            const cuda_floats<N> v = cuda_load<N>(x + (size_t)i * channels);
            for (int j = 0; j < N; j++) sum.v[j] += v.v[j];
        }
    parts[warp * 32 + lane] = sum;
    __syncthreads();
    if (warp > 0 || at >= n) return;
    for (int w = 1; w < WARPS; w++)
        for (int j = 0; j < N; j++) sum.v[j] += parts[w * 32 + lane].v[j];
    for (int j = 0; j < N; j++) sum.v[j] /= (float)pixels;
    cuda_store(y + (size_t)blockIdx.y * channels + (size_t)at * N, sum);
}

void cuda_mean_pixels(kern_queue *k, const act *x, int images, int pixels, int channels, float *y)
{
    cuda_queue *c = cuda_of(k);
    const int wide = is_wide(channels, channels, x, y), n = wide ? channels / WIDE : channels;
    const auto vectors = c->device->bf16 ? mean_kernel<WIDE, bf16> : mean_kernel<WIDE, float>;
    const auto ones = c->device->bf16 ? mean_kernel<1, bf16> : mean_kernel<1, float>;
    if (images <= 0) return;
    cuda_launch(c, wide ? vectors : ones, dim3(cuda_blocks((size_t)n, 32), (unsigned)images), 32 * WARPS,
                32 * WARPS * (wide ? sizeof(cuda_floats<WIDE>) : sizeof(cuda_floats<1>)), x, pixels, n, y);
}

/* --- channels as floats ------------------------------------------------------------------------------------ */

/* Computes one of the `n` elements of y per thread. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    take_kernel(const act *x, size_t n, int stride, cuda_divisor channels, float *y)
{
    const size_t first = (size_t)blockIdx.x * THREADS, i = first + threadIdx.x;
    if (i >= n) return;
    const size_t row = first / (size_t)channels.by; /* of the block's first element, once for all of them */
    const int from = (int)(first - row * (size_t)channels.by) + (int)threadIdx.x,
              further = cuda_quotient(from, channels);
    const size_t at = (row + (size_t)further) * (size_t)stride + (size_t)(from - further * channels.by);
    y[i] = cuda_float(((const T *)x)[at]);
}

void cuda_take_channels(kern_queue *k, const act *x, int rows, int stride, int channels, float *y)
{
    cuda_queue *c = cuda_of(k);
    if (rows <= 0 || channels <= 0) return;
    const size_t n = (size_t)rows * (size_t)channels;
    cuda_launch(c, c->device->bf16 ? take_kernel<bf16> : take_kernel<float>, cuda_blocks(n, THREADS), THREADS, 0, x, n,
                stride, cuda_divide_by(channels), y);
}

/* --- resize ------------------------------------------------------------------------------------------------ */

/* Position of a row or column of the result among `size`: between `low` and `high`. */
typedef struct {
    int low, high;
    float part; /* weight of high */
} resize_place;

/* Rounds the product before taking its fraction, as TensorFlow and the CPU do. */
static __device__ inline resize_place cuda_pool_place(int at, float scale, int size)
{
    const float place = __fmul_rn((float)at, scale);
    const int low = min((int)place, size - 1);
    return {low, min(low + 1, size - 1), place - (float)low};
}

/* A thread has a value of the result; blockIdx.y is the image. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    resize_kernel(const uint8_t *rgb, int height, int width, float scale_y, float scale_x, cuda_divisor side, act *y)
{
    const int i = (int)blockIdx.x * THREADS + (int)threadIdx.x, values = 3 * side.by * side.by;
    if (i >= values) return;
    const int pixel = i / 3, channel = i - 3 * pixel, row = cuda_quotient(pixel, side);
    const resize_place v = cuda_pool_place(row, scale_y, height),
                       h = cuda_pool_place(pixel - row * side.by, scale_x, width);
    const uint8_t *image = rgb + (size_t)blockIdx.y * 3 * (size_t)height * (size_t)width + channel;
    const uint8_t *low = image + (size_t)v.low * 3 * (size_t)width, *high = image + (size_t)v.high * 3 * (size_t)width;
    const float a = low[3 * h.low], b = low[3 * h.high], c = high[3 * h.low], d = high[3 * h.high];
    const float above = a + (b - a) * h.part, below = c + (d - c) * h.part;
    cuda_store((T *)y + (size_t)blockIdx.y * (size_t)values + (size_t)i,
               (above + (below - above) * v.part - 128.0f) / 128.0f);
}

void cuda_resize(kern_queue *k, const uint8_t *rgb, int images, int height, int width, int side, act *y)
{
    cuda_queue *c = cuda_of(k);
    if (images <= 0 || side <= 0) return;
    const float scale_y = (float)height / (float)side, scale_x = (float)width / (float)side;
    const dim3 grid(cuda_blocks(3 * (size_t)side * (size_t)side, THREADS), (unsigned)images);
    cuda_launch(c, c->device->bf16 ? resize_kernel<bf16> : resize_kernel<float>, grid, THREADS, 0, rgb, height, width,
                scale_y, scale_x, cuda_divide_by(side), y);
}
