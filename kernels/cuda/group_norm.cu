/* Group normalisation of images in two kernels. The first sums over slices of the pixels. In the second each block adds
 * up its groups' sums and normalises its pixels. Sums are of x minus one value of the group. The variance then does not
 * cancel where the mean is far from 0. Runs are short enough for f32. An image's slicing, and so its bits, do not
 * depend on the number of images.
 *
 * Sums of an image that comes in parts (group_sums) are double, as the mean is unknown to the first part: of x and of
 * x^2, by channel, each part's slices added in order.
 *
 * Floor, per element: 4 bytes read twice (possibly from L2 the second time), 2 or 4 written. */
#include "kernels/cuda/cuda.h"

/* A block takes CHANNELS channels, one a lane; a warp takes every WARPS'th pixel of the block's slice. */
enum { CHANNELS = 32, WARPS = 8, RUN = 64 /* pixels accumulated in f32 */ };

typedef struct {
    int pixels, channels, groups; /* pixels: per image */
    int slices;                   /* slices of an image */
    int slice;                    /* pixels of a slice; the last may have fewer */
    const float *cells;           /* kern_norm's, as the next three */
    int width, side, top;
    const double *totals; /* kern_norm's sums, [2][channels], or NULL */
    int total;
} norm_shape;

mar_status cuda_group_norm_plan(kern_queue *k, int images, int pixels, int channels, mar_err *err)
{
    (void)images, (void)pixels, (void)channels;
    return cuda_patches(cuda_of(k), err);
}

/* Returns the value subtracted before a group's sums: its first channel at the middle pixel. */
static __device__ inline float group_shift(norm_shape a, const float *x, int group)
{
    return x[(size_t)(a.pixels / 2) * (size_t)a.channels + (size_t)(group * (a.channels / a.groups))];
}

/* sums[image][slice][0 and 1][channel] = sum of d and of d^2, d = x - group_shift. */
__global__ static void __launch_bounds__(32 * WARPS) norm_sums(norm_shape a, const float *x, float *sums)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, channel = (int)blockIdx.y * CHANNELS + lane;
    const int image = (int)blockIdx.x / a.slices, slice = (int)blockIdx.x % a.slices;
    const int last = min(a.pixels, (slice + 1) * a.slice);
    x += (size_t)image * (size_t)a.pixels * (size_t)a.channels;
    double *parts = (double *)cuda_shared(); /* [WARPS][2][CHANNELS] */
    double sum = 0, square = 0;
    if (channel < a.channels) {
        const float shift = group_shift(a, x, channel / (a.channels / a.groups));
        x += channel;
        for (int i = slice * a.slice + warp; i < last;) {
            float s = 0, q = 0;
            const int end = min(last, i + RUN * WARPS);
#pragma unroll 8
            for (; i < end; i += WARPS) {
                const float d = x[(size_t)i * (size_t)a.channels] - shift;
                s += d;
                q += d * d;
            }
            sum += s;
            square += q;
        }
    }
    parts[(2 * warp) * CHANNELS + lane] = sum;
    parts[(2 * warp + 1) * CHANNELS + lane] = square;
    __syncthreads();
    if (warp > 1 || channel >= a.channels) return;
    double total = 0; /* warp 0: of d, warp 1: of d^2 */
    for (int i = 0; i < WARPS; i++) total += parts[(2 * i + warp) * CHANNELS + lane];
    sums[((size_t)blockIdx.x * 2 + (size_t)warp) * (size_t)a.channels + (size_t)channel] = (float)total;
}

static __device__ inline float2 moments_of(double shift, double sum, double square, double count, float eps)
{
    const double mean = cuda_warp_sum(sum) / count, variance = cuda_warp_sum(square) / count - mean * mean;
    return make_float2((float)(shift + mean), (float)(1 / sqrt(fmax(variance, 0.0) + (double)eps)));
}

/* Computes mean and 1 / sqrt(variance + eps) of a group, by one warp. */
static __device__ inline float2 group_moments(norm_shape a, const float *x, const float *sums, int group, float eps)
{
    const int size = a.channels / a.groups;
    double sum = 0, square = 0;
    if (a.totals) {
        for (int i = group * size + (int)threadIdx.x % 32; i < (group + 1) * size; i += 32) {
            sum += a.totals[i];
            square += a.totals[a.channels + i];
        }
        return moments_of(0, sum, square, (double)a.total * size, eps);
    }
    for (int i = (int)threadIdx.x % 32; i < a.slices * size; i += 32) {
        const float *at = sums + (size_t)(i / size) * 2 * (size_t)a.channels + (size_t)(group * size + i % size);
        sum += at[0];
        square += at[a.channels];
    }
    return moments_of(group_shift(a, x, group), sum, square, (double)a.pixels * size, eps);
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
    norm_map(norm_shape a, const float *x, const float *sums, const float *weight, const float *bias, float eps,
             int silu, T *y)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, size = a.channels / a.groups;
    const int first = (int)blockIdx.y * CHANNELS, channel = first + lane, first_group = first / size;
    const int last_group = (min(first + CHANNELS, a.channels) - 1) / size;
    const int image = (int)blockIdx.x / a.slices, slice = (int)blockIdx.x % a.slices;
    const int last = min(a.pixels, (slice + 1) * a.slice);
    const size_t before = (size_t)image * (size_t)a.pixels * (size_t)a.channels;
    x += before;
    y += before;
    sums += (size_t)image * (size_t)a.slices * 2 * (size_t)a.channels;
    float2 *moments = (float2 *)cuda_shared(); /* [last_group - first_group + 1] */
    for (int g = first_group + warp; g <= last_group; g += WARPS) {
        const float2 m = group_moments(a, x, sums, g, eps);
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

/* parts[slice][0 and 1][channel] = sum of x and of x^2 over a slice of `count` pixels. A thread takes a channel. */
__global__ static void __launch_bounds__(CHANNELS *WARPS)
    part_sums(const float *x, int count, int channels, int slice, double *parts)
{
    const int channel = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    const int first = (int)blockIdx.x * slice, last = min(count, first + slice);
    double sum = 0, square = 0;
    if (channel >= channels) return;
#pragma unroll 4
    for (int i = first; i < last; i++) {
        const double v = x[(size_t)i * (size_t)channels + (size_t)channel];
        sum += v;
        square += v * v;
    }
    parts[(size_t)blockIdx.x * 2 * (size_t)channels + (size_t)channel] = sum;
    parts[((size_t)blockIdx.x * 2 + 1) * (size_t)channels + (size_t)channel] = square;
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

template <typename T>
static void launch_norm(cuda_queue *c, norm_shape a, const float *x, int images, const kern_norm *norm, T *y)
{
    float *sums = (float *)c->patches;
    const dim3 grid((unsigned)images * (unsigned)a.slices, cuda_blocks((size_t)a.channels, CHANNELS));
    if (!a.totals) cuda_launch(c, norm_sums, grid, 32 * WARPS, WARPS * 2 * CHANNELS * sizeof(double), a, x, sums);
    cuda_launch(c, norm_map<T>, grid, 32 * WARPS, (CHANNELS + 1) * sizeof(float2), a, x, (const float *)sums,
                norm->weight, norm->bias, norm->eps, norm->silu, y);
}

void cuda_group_norm(kern_queue *k, const kern_norm *norm, const float *x, int images, int pixels, int channels, act *y)
{
    cuda_queue *c = cuda_of(k);
    if (images <= 0 || pixels <= 0) return;
    norm_shape a = slice(c, pixels, channels, norm->groups);
    a.cells = norm->cells, a.width = norm->width, a.side = norm->side, a.top = norm->top;
    a.totals = norm->sums, a.total = norm->total;
    const size_t fit = c->patches_bytes / (2 * sizeof(float) * (size_t)a.slices * (size_t)channels);
    if (fit == 0) {
        mar_err err = {};
        kern_fail(k, err_set(&err, MAR_EBACKEND, "group norm of %d channels without a plan", channels), &err);
        return;
    }
    for (int done = 0, n; done < images; done += n) { /* as many images at a time as have room for their sums */
        n = (size_t)(images - done) < fit ? images - done : (int)fit;
        const size_t at = (size_t)done * (size_t)pixels * (size_t)channels;
        if (a.cells) a.cells = norm->cells + 2 * at / (size_t)(norm->side * norm->side);
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
    const int threads = CHANNELS * WARPS;
    const size_t pair = 2 * sizeof(double) * (size_t)channels;
    const int wanted = min(8 * c->device->multiprocessors, (int)(c->patches_bytes / pair));
    if (count <= 0) return;
    if (wanted < 1) {
        mar_err err = {};
        kern_fail(k, err_set(&err, MAR_EBACKEND, "group norm of %d channels without a plan", channels), &err);
        return;
    }
    const int slice = (count + wanted - 1) / wanted, slices = (count + slice - 1) / slice;
    double *parts = (double *)c->patches;
    cuda_launch(c, part_sums, dim3((unsigned)slices, cuda_blocks((size_t)channels, threads)), threads, 0, x, count,
                channels, slice, parts);
    cuda_launch(c, add_parts, cuda_blocks(2 * (size_t)channels, threads), threads, 0, (const double *)parts, slices,
                2 * channels, first == 0, sums);
}
