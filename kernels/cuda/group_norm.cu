/* Group normalisation of images in two kernels. The first sums x and x^2 by channel over slices of the pixels. In the
 * second each block adds up its groups' sums and normalises its pixels. Sums are double: the variance then does not
 * cancel where the mean is far from 0. An image's slicing, and so its bits, do not depend on the number of images. Of
 * an image that comes in parts (group_sums) each part's slices are added in order.
 *
 * Floor, per element: 4 bytes read twice (possibly from L2 the second time), 2 or 4 written. */
#include "kernels/cuda/cuda.h"

/* A block takes CHANNELS channels, one a lane; a warp takes every WARPS'th pixel of the block's slice. */
enum { CHANNELS = 32, WARPS = 8 };

typedef struct {
    int pixels, channels, groups; /* pixels: per image */
    int slices;                   /* slices of an image */
    int slice;                    /* pixels of a slice; the last may have fewer */
    const float *cells;           /* kern_norm's, as the next three */
    int width, side, top;
    const double *sums; /* [images][parts][2][channels] of x and of x^2 */
    int parts;
    double count; /* of a group's numbers in the sums */
} norm_shape;

mar_status cuda_group_norm_plan(kern_queue *k, int images, int pixels, int channels, mar_err *err)
{
    (void)images, (void)pixels, (void)channels;
    return cuda_patches(cuda_of(k), err);
}

/* sums[image][slice][0 and 1][channel] = sum of x and of x^2. */
__global__ static void __launch_bounds__(32 * WARPS) norm_sums(norm_shape a, const float *x, double *sums)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, channel = (int)blockIdx.y * CHANNELS + lane;
    const int image = (int)blockIdx.x / a.slices, slice = (int)blockIdx.x % a.slices;
    const int last = min(a.pixels, (slice + 1) * a.slice);
    double *parts = (double *)cuda_shared(); /* [WARPS][2][CHANNELS] */
    double sum = 0, square = 0;
    x += (size_t)image * (size_t)a.pixels * (size_t)a.channels + (size_t)channel;
    if (channel < a.channels)
#pragma unroll 8
        for (int i = slice * a.slice + warp; i < last; i += WARPS) {
            const double v = x[(size_t)i * (size_t)a.channels];
            sum += v;
            square += v * v;
        }
    parts[(2 * warp) * CHANNELS + lane] = sum;
    parts[(2 * warp + 1) * CHANNELS + lane] = square;
    __syncthreads();
    if (warp > 1 || channel >= a.channels) return;
    double total = 0; /* warp 0: of x, warp 1: of x^2 */
    for (int i = 0; i < WARPS; i++) total += parts[(2 * i + warp) * CHANNELS + lane];
    sums[((size_t)blockIdx.x * 2 + (size_t)warp) * (size_t)a.channels + (size_t)channel] = total;
}

/* Computes mean and 1 / sqrt(variance + eps) of a group of an image, by one warp. */
static __device__ inline float2 group_moments(norm_shape a, int image, int group, float eps)
{
    const int size = a.channels / a.groups;
    const double *sums = a.sums + (size_t)(image * a.parts) * 2 * (size_t)a.channels;
    double sum = 0, square = 0;
    for (int i = (int)threadIdx.x % 32; i < a.parts * size; i += 32) {
        const double *at = sums + (size_t)(i / size) * 2 * (size_t)a.channels + (size_t)(group * size + i % size);
        sum += at[0];
        square += at[a.channels];
    }
    const double mean = cuda_warp_sum(sum) / a.count, variance = cuda_warp_sum(square) / a.count - mean * mean;
    return make_float2((float)mean, (float)(1 / sqrt(fmax(variance, 0.0) + (double)eps)));
}

/* Returns the scales and shifts [2][channels] of the cell of a pixel. */
static __device__ inline const float *cell_of(norm_shape a, int image, int pixel)
{
    const int row = pixel / a.width + a.top, column = pixel % a.width, columns = a.width / a.side;
    const int rows = a.pixels / a.width / a.side; /* with several images they are whole */
    return a.cells + (size_t)((image * rows + row / a.side) * columns + column / a.side) * 2 * (size_t)a.channels;
}

template <typename T>
__global__ static void __launch_bounds__(32 * WARPS)
    norm_map(norm_shape a, const float *x, const float *weight, const float *bias, float eps, int silu, T *y)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, size = a.channels / a.groups;
    const int first = (int)blockIdx.y * CHANNELS, channel = first + lane, first_group = first / size;
    const int last_group = (min(first + CHANNELS, a.channels) - 1) / size;
    const int image = (int)blockIdx.x / a.slices, slice = (int)blockIdx.x % a.slices;
    const int last = min(a.pixels, (slice + 1) * a.slice);
    const size_t before = (size_t)image * (size_t)a.pixels * (size_t)a.channels;
    x += before;
    y += before;
    float2 *moments = (float2 *)cuda_shared(); /* [last_group - first_group + 1] */
    for (int g = first_group + warp; g <= last_group; g += WARPS) {
        const float2 m = group_moments(a, image, g, eps);
        if (lane == 0) moments[g - first_group] = m;
    }
    __syncthreads();
    if (channel >= a.channels) return;
    const float2 m = moments[channel / size - first_group];
    float scale = a.cells ? 0 : m.y * weight[channel], shift = a.cells ? 0 : bias[channel];
#pragma unroll 4
    for (int i = slice * a.slice + warp; i < last; i += WARPS) {
        const size_t at = (size_t)i * (size_t)a.channels + (size_t)channel;
        if (a.cells) {
            const float *cell = cell_of(a, image, i);
            scale = m.y * cell[channel], shift = cell[a.channels + channel];
        }
        const float v = (x[at] - m.x) * scale + shift;
        cuda_store(y + at, silu ? cuda_silu(v) : v);
    }
}

/* Adds the parts to sums [n], which begin at 0 if `begins`. */
__global__ static void __launch_bounds__(CHANNELS *WARPS)
    add_parts(const double *parts, int slices, int n, int begins, double *sums)
{
    const int at = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= n) return;
    double sum = begins ? 0 : sums[at];
    for (int i = 0; i < slices; i++) sum += parts[(size_t)i * (size_t)n + (size_t)at];
    sums[at] = sum;
}

/* Divides an image's pixels for two blocks a multiprocessor, but at least a pixel a warp. */
static norm_shape slice(const cuda_queue *c, int pixels, int channels, int groups)
{
    norm_shape a = {};
    a.pixels = pixels, a.channels = channels, a.groups = groups;
    const int parts = (channels + CHANNELS - 1) / CHANNELS, wanted = 2 * c->device->multiprocessors / parts;
    const int most = (pixels + WARPS - 1) / WARPS;
    a.slices = wanted < 1 ? 1 : wanted < most ? wanted : most;
    a.slice = (pixels + a.slices - 1) / a.slices;
    a.slices = (pixels + a.slice - 1) / a.slice;
    return a;
}

/* Returns 1 if there is room for the sums of `slices` slices. */
static int has_room(cuda_queue *c, size_t slices, int channels)
{
    if (2 * sizeof(double) * slices * (size_t)channels <= c->patches_bytes) return 1;
    mar_err err = {};
    kern_fail(&c->base, err_set(&err, MAR_EBACKEND, "group norm of %d channels without a plan", channels), &err);
    return 0;
}

static void launch_sums(cuda_queue *c, const norm_shape &a, const float *x, int images)
{
    cuda_launch(c, norm_sums, dim3((unsigned)(images * a.slices), cuda_blocks((size_t)a.channels, CHANNELS)),
                32 * WARPS, WARPS * 2 * CHANNELS * sizeof(double), a, x, (double *)c->patches);
}

template <typename T>
static void launch_norm(cuda_queue *c, const norm_shape &a, const float *x, int images, const kern_norm *norm, T *y)
{
    cuda_launch(c, norm_map<T>, dim3((unsigned)(images * a.slices), cuda_blocks((size_t)a.channels, CHANNELS)),
                32 * WARPS, (CHANNELS + 1) * sizeof(float2), a, x, norm->weight, norm->bias, norm->eps, norm->silu, y);
}

void cuda_group_norm(kern_queue *k, const kern_norm *norm, const float *x, int images, int pixels, int channels, act *y)
{
    cuda_queue *c = cuda_of(k);
    if (images <= 0 || pixels <= 0) return;
    norm_shape a = slice(c, pixels, channels, norm->groups);
    const double size = channels / norm->groups;
    a.cells = norm->cells, a.width = norm->width, a.side = norm->side, a.top = norm->top;
    a.sums = norm->sums, a.parts = 1, a.count = norm->total * size;
    if (!has_room(c, (size_t)a.slices, channels)) return;
    const size_t fit = c->patches_bytes / (2 * sizeof(double) * (size_t)a.slices * (size_t)channels);
    for (int done = 0, n; done < images; done += n) { /* as many images at a time as have room for their sums */
        n = (size_t)(images - done) < fit ? images - done : (int)fit;
        const size_t at = (size_t)done * (size_t)pixels * (size_t)channels;
        if (a.cells) a.cells = norm->cells + 2 * at / (size_t)(norm->side * norm->side);
        if (!norm->sums) {
            a.sums = (const double *)c->patches, a.parts = a.slices, a.count = pixels * size;
            launch_sums(c, a, x + at, n);
        }
        if (c->device->bf16)
            launch_norm(c, a, x + at, n, norm, (bf16 *)y + at);
        else
            launch_norm(c, a, x + at, n, norm, (float *)y + at);
    }
}

void cuda_group_sums(kern_queue *k, const float *x, int pixels, int channels, int first, int count, double *sums)
{
    (void)pixels;
    cuda_queue *c = cuda_of(k);
    if (count <= 0) return;
    const norm_shape a = slice(c, count, channels, 1);
    const int threads = CHANNELS * WARPS;
    if (!has_room(c, (size_t)a.slices, channels)) return;
    launch_sums(c, a, x, 1);
    cuda_launch(c, add_parts, cuda_blocks(2 * (size_t)channels, threads), threads, 0, (const double *)c->patches,
                a.slices, 2 * channels, first == 0, sums);
}
