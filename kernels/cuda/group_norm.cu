/* Group normalisation of images in two kernels. The first sums over slices of the pixels. In the second each block adds
 * up its groups' sums and normalises its pixels. Sums are of x minus one value of the group. The variance then does not
 * cancel where the mean is far from 0. Runs are short enough for f32. An image's slicing, and so its bits, do not
 * depend on the number of images.
 *
 * Floor, per element: 4 bytes read twice (possibly from L2 the second time), 2 or 4 written. */
#include "kernels/cuda/cuda.h"

/* A block takes CHANNELS channels, one a lane; a warp takes every WARPS'th pixel of the block's slice. */
enum { CHANNELS = 32, WARPS = 8, RUN = 64 /* pixels accumulated in f32 */ };

typedef struct {
    int pixels, channels, groups; /* pixels: per image */
    int slices;                   /* slices of an image */
    int slice;                    /* pixels of a slice; the last may have fewer */
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

/* Computes mean and 1 / sqrt(variance + eps) of a group, by one warp. */
static __device__ inline float2 group_moments(norm_shape a, const float *x, const float *sums, int group, float eps)
{
    const int size = a.channels / a.groups;
    double sum = 0, square = 0;
    for (int i = (int)threadIdx.x % 32; i < a.slices * size; i += 32) {
        const float *at = sums + (size_t)(i / size) * 2 * (size_t)a.channels + (size_t)(group * size + i % size);
        sum += at[0];
        square += at[a.channels];
    }
    const double count = (double)a.pixels * size, mean = cuda_warp_sum(sum) / count;
    const double variance = cuda_warp_sum(square) / count - mean * mean;
    return make_float2((float)(group_shift(a, x, group) + mean), (float)(1 / sqrt(fmax(variance, 0.0) + (double)eps)));
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
    const float scale = m.y * weight[channel], shift = bias[channel];
#pragma unroll 4
    for (int i = slice * a.slice + warp; i < last; i += WARPS) {
        const size_t at = (size_t)i * (size_t)a.channels + (size_t)channel;
        const float v = (x[at] - m.x) * scale + shift;
        cuda_store(y + at, silu ? cuda_silu(v) : v);
    }
}

/* Divides an image's pixels for two blocks a multiprocessor, but at least a pixel a warp. */
static norm_shape slice(const cuda_queue *c, int pixels, int channels, int groups)
{
    norm_shape a = {pixels, channels, groups, 0, 0};
    const int parts = (channels + CHANNELS - 1) / CHANNELS, wanted = 2 * c->device->multiprocessors / parts;
    const int most = (pixels + WARPS - 1) / WARPS;
    a.slices = wanted < 1 ? 1 : wanted < most ? wanted : most;
    a.slice = (pixels + a.slices - 1) / a.slices;
    a.slices = (pixels + a.slice - 1) / a.slice;
    return a;
}

template <typename T>
static void launch_norm(cuda_queue *c, norm_shape a, const float *x, int images, const float *weight, const float *bias,
                        float eps, int silu, T *y)
{
    float *sums = (float *)c->patches;
    const dim3 grid((unsigned)images * (unsigned)a.slices, cuda_blocks((size_t)a.channels, CHANNELS));
    cuda_launch(c, norm_sums, grid, 32 * WARPS, WARPS * 2 * CHANNELS * sizeof(double), a, x, sums);
    cuda_launch(c, norm_map<T>, grid, 32 * WARPS, (CHANNELS + 1) * sizeof(float2), a, x, (const float *)sums, weight,
                bias, eps, silu, y);
}

void cuda_group_norm(kern_queue *k, const float *x, int images, int pixels, int channels, int groups,
                     const float *weight, const float *bias, float eps, int silu, act *y)
{
    cuda_queue *c = cuda_of(k);
    if (images <= 0 || pixels <= 0) return;
    const norm_shape a = slice(c, pixels, channels, groups);
    const size_t fit = c->patches_bytes / (2 * sizeof(float) * (size_t)a.slices * (size_t)channels);
    if (fit == 0) {
        mar_err err = {};
        kern_fail(k, err_set(&err, MAR_EBACKEND, "group norm of %d channels without a plan", channels), &err);
        return;
    }
    for (int done = 0, n; done < images; done += n) { /* as many images at a time as have room for their sums */
        n = (size_t)(images - done) < fit ? images - done : (int)fit;
        const size_t at = (size_t)done * (size_t)pixels * (size_t)channels;
        if (c->device->bf16)
            launch_norm(c, a, x + at, n, weight, bias, eps, silu, (bf16 *)y + at);
        else
            launch_norm(c, a, x + at, n, weight, bias, eps, silu, (float *)y + at);
    }
}
