/* Group normalisation of images in two kernels. The first sums x and x^2 by channel over slices of the pixels. In the
 * second each block adds up its groups' sums and normalises its pixels. Sums are double: the variance then does not
 * cancel where the mean is far from 0. An image's slicing, and so its bits, do not depend on the number of images. Of
 * an image that comes in parts (group_sums) each part's slices are added in order.
 *
 * Floor, per element: 4 bytes read twice (possibly from L2 the second time), 2 or 4 written. */
#include "kernels/cuda/ptx.h"

/* A block takes CHANNELS channels, in vectors of V: V neighbouring pixels a warp. */
enum { CHANNELS = 32, WARPS = 8, LOADS = 4 /* that a thread has on their way */ };

typedef struct {
    int pixels, channels; /* pixels: per image */
    cuda_divisor size;    /* channels of a group */
    int slices;           /* slices of an image */
    int slice;            /* pixels of a slice; the last may have fewer */
    const float *cells;   /* kern_norm's, as the next three */
    int width, side, top;
    const double *sums; /* [images][parts][2][channels] of x and of x^2 */
    int parts;
    double each; /* 1 / a group's numbers in the sums */
} norm_shape;

/* A thread's part of the image: V channels of every `step`th pixel from `first` to the end of the slice. */
typedef struct {
    int image, channel, first, last, step;
} norm_place;

template <int V> static __device__ inline norm_place place_of(const norm_shape &a)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int image = (int)blockIdx.x / a.slices, slice = (int)blockIdx.x % a.slices;
    const int first = slice * a.slice + warp * V + lane / (CHANNELS / V);
    return {image, (int)blockIdx.y * CHANNELS + lane % (CHANNELS / V) * V, first, min(a.pixels, (slice + 1) * a.slice),
            WARPS * V};
}

/* Loads a thread's next LOADS vectors, from pixel i on; zeros behind its last. x is at its channel of the image. */
template <int V>
static __device__ inline void load_pixels(const norm_shape &a, const norm_place &p, const float *x, int i,
                                          cuda_floats<V> v[LOADS])
{
#pragma unroll
    for (int n = 0; n < LOADS; n++, i += p.step)
        v[n] = i < p.last ? cuda_load<V>(x + (size_t)i * (size_t)a.channels) : cuda_floats<V>{};
}

mar_status cuda_group_norm_plan(kern_queue *k, int images, int pixels, int channels, mar_err *err)
{
    (void)images, (void)pixels, (void)channels;
    return cuda_working_memory(cuda_of(k), err);
}

/* sums[image][slice][0 and 1][channel] = sum of x and of x^2. */
template <int V>
__global__ static void __launch_bounds__(32 * WARPS, 4) norm_sums(norm_shape a, const float *x, double *sums)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const norm_place p = place_of<V>(a);
    double *parts = (double *)cuda_shared(); /* [WARPS][2][CHANNELS] */
    double sum[V] = {}, square[V] = {};
    fast::start_next();
    fast::wait_for_previous();
    x += (size_t)p.image * (size_t)a.pixels * (size_t)a.channels + (size_t)p.channel;
    if (p.channel < a.channels)
        for (int i = p.first; i < p.last; i += LOADS * p.step) {
            cuda_floats<V> v[LOADS];
            load_pixels<V>(a, p, x, i, v);
#pragma unroll
            for (int n = 0; n < LOADS * V; n++) {
                const double one = v[n / V].v[n % V];
                sum[n % V] += one;
                square[n % V] += one * one;
            }
        }
    for (int j = 0; j < V; j++) {
        for (int i = CHANNELS / V; i < 32; i *= 2) {
            sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], i);
            square[j] += __shfl_xor_sync(0xffffffffu, square[j], i);
        }
        if (lane < CHANNELS / V) {
            parts[2 * warp * CHANNELS + lane * V + j] = sum[j];
            parts[(2 * warp + 1) * CHANNELS + lane * V + j] = square[j];
        }
    }
    __syncthreads();
    const int channel = (int)blockIdx.y * CHANNELS + lane;
    if (warp > 1 || channel >= a.channels) return;
    double total = 0; /* warp 0: of x, warp 1: of x^2 */
    for (int i = 0; i < WARPS; i++) total += parts[(2 * i + warp) * CHANNELS + lane];
    sums[((size_t)blockIdx.x * 2 + (size_t)warp) * (size_t)a.channels + (size_t)channel] = total;
}

/* Computes mean and 1 / sqrt(variance + eps) of a group of an image, by one warp. */
static __device__ inline float2 group_moments(const norm_shape &a, int image, int group, float eps)
{
    const double *sums = a.sums + (size_t)(image * a.parts) * 2 * (size_t)a.channels + (size_t)(group * a.size.by);
    double sum = 0, square = 0;
#pragma unroll 4
    for (int i = (int)threadIdx.x % 32; i < a.parts * a.size.by; i += 32) {
        const int part = cuda_quotient(i, a.size);
        const double *at = sums + (size_t)part * 2 * (size_t)a.channels + (size_t)(i - part * a.size.by);
        sum += at[0];
        square += at[a.channels];
    }
    const double mean = cuda_warp_sum(sum) * a.each, variance = cuda_warp_sum(square) * a.each - mean * mean;
    return make_float2((float)mean, (float)rsqrt(fmax(variance, 0.0) + (double)eps));
}

/* Returns the scales and shifts [2][channels] of the cell of a pixel. */
static __device__ inline const float *cuda_cell_of(const norm_shape &a, int image, int pixel)
{
    const int row = pixel / a.width + a.top, column = pixel % a.width, columns = a.width / a.side;
    const int rows = a.pixels / a.width / a.side; /* with several images they are whole */
    return a.cells + (size_t)((image * rows + row / a.side) * columns + column / a.side) * 2 * (size_t)a.channels;
}

static __device__ inline float silu_as(float x, const float *)
{
    return cuda_silu(x);
}
static __device__ inline float silu_as(float x, const bf16 *)
{
    return cuda_fast_silu(x);
}

template <int V, typename T>
__global__ static void __launch_bounds__(32 * WARPS, 4)
    norm_map(norm_shape a, const float *x, const float *weight, const float *bias, float eps, int silu, act *images)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, first = (int)blockIdx.y * CHANNELS;
    const int first_group = cuda_quotient(first, a.size);
    const int last_group = cuda_quotient(min(first + CHANNELS, a.channels) - 1, a.size);
    const norm_place p = place_of<V>(a);
    const size_t before = (size_t)p.image * (size_t)a.pixels * (size_t)a.channels + (size_t)p.channel;
    T *const y = (T *)images + before;
    x += before;
    fast::start_next();
    fast::wait_for_previous();
    float2 *moments = (float2 *)cuda_shared(); /* [last_group - first_group + 1] */
    for (int g = first_group + warp; g <= last_group; g += WARPS) {
        const float2 m = group_moments(a, p.image, g, eps);
        if (lane == 0) moments[g - first_group] = m;
    }
    __syncthreads();
    if (p.channel >= a.channels) return;
    float mean[V], inverse[V];
    cuda_floats<V> scale = {}, shift = {};
    for (int j = 0; j < V; j++) {
        const float2 m = moments[cuda_quotient(p.channel + j, a.size) - first_group];
        mean[j] = m.x, inverse[j] = m.y;
        if (!a.cells) scale.v[j] = weight[p.channel + j], shift.v[j] = bias[p.channel + j];
    }
    for (int i = p.first; i < p.last; i += LOADS * p.step) {
        cuda_floats<V> v[LOADS];
        load_pixels<V>(a, p, x, i, v);
#pragma unroll
        for (int n = 0; n < LOADS; n++) {
            const int pixel = i + n * p.step;
            if (pixel >= p.last) break;
            if (a.cells) {
                const float *cell = cuda_cell_of(a, p.image, pixel) + p.channel;
                scale = cuda_load<V>(cell), shift = cuda_load<V>(cell + a.channels);
            }
            for (int j = 0; j < V; j++) {
                v[n].v[j] = (v[n].v[j] - mean[j]) * (inverse[j] * scale.v[j]) + shift.v[j];
                if (silu) v[n].v[j] = silu_as(v[n].v[j], y);
            }
            cuda_store(y + (size_t)pixel * (size_t)a.channels, v[n]);
        }
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

/* Divides an image's pixels for two blocks a multiprocessor, but at least the pixels that a block takes at a time. */
static norm_shape slice(const cuda_queue *c, int pixels, int channels, int groups)
{
    norm_shape a = {};
    a.pixels = pixels, a.channels = channels, a.size = cuda_divide_by(channels / groups);
    const int parts = (channels + CHANNELS - 1) / CHANNELS, wanted = 2 * c->device->multiprocessors / parts;
    const int each = WARPS * (channels % 4 ? 1 : 4), most = (pixels + each - 1) / each;
    a.slices = wanted < 1 ? 1 : wanted < most ? wanted : most;
    a.slice = (pixels + a.slices - 1) / a.slices;
    a.slices = (pixels + a.slice - 1) / a.slice;
    return a;
}

/* Returns 1 if vectors of 4 channels are aligned. */
static int in_fours(const norm_shape &a, const void *x, const void *y)
{
    return a.channels % 4 == 0 && ((uintptr_t)x | (uintptr_t)y | (uintptr_t)a.cells) % 16 == 0;
}

/* Returns 1 if there is room for the sums of `slices` slices. */
static int cuda_group_norm_has_room(cuda_queue *c, size_t slices, int channels)
{
    if (2 * sizeof(double) * slices * (size_t)channels <= c->working_bytes) return 1;
    cuda_fail(c, MAR_EBACKEND, "group norm of %d channels without a plan", channels);
    return 0;
}

static void launch_sums(cuda_queue *c, const norm_shape &a, const float *x, int images)
{
    cuda_launch_early(c, in_fours(a, x, NULL) ? norm_sums<4> : norm_sums<1>,
                      dim3((unsigned)(images * a.slices), cuda_blocks((size_t)a.channels, CHANNELS)), 32 * WARPS,
                      WARPS * 2 * CHANNELS * sizeof(double), a, x, (double *)c->working);
}

void cuda_group_norm(kern_queue *k, const kern_norm *norm, const float *x, int images, int pixels, int channels, act *y)
{
    cuda_queue *c = cuda_of(k);
    if (images <= 0 || pixels <= 0) return;
    norm_shape a = slice(c, pixels, channels, norm->groups);
    const double size = channels / norm->groups;
    a.cells = norm->cells, a.width = norm->width, a.side = norm->side, a.top = norm->top;
    a.sums = norm->sums, a.parts = 1, a.each = 1 / ((norm->sums ? norm->total : pixels) * size);
    if (!cuda_group_norm_has_room(c, (size_t)a.slices, channels)) return;
    const size_t fit = c->working_bytes / (2 * sizeof(double) * (size_t)a.slices * (size_t)channels);
    for (int done = 0, n; done < images; done += n) { /* as many images at a time as have room for their sums */
        n = (size_t)(images - done) < fit ? images - done : (int)fit;
        const size_t at = (size_t)done * (size_t)pixels * (size_t)channels;
        if (a.cells) a.cells = norm->cells + 2 * at / (size_t)(norm->side * norm->side);
        if (!norm->sums) {
            a.sums = (const double *)c->working, a.parts = a.slices;
            launch_sums(c, a, x + at, n);
        }
        act *const to = (char *)y + at * k->device->act_size;
        const auto fours = c->device->bf16 ? norm_map<4, bf16> : norm_map<4, float>;
        const auto ones = c->device->bf16 ? norm_map<1, bf16> : norm_map<1, float>;
        cuda_launch_early(c, in_fours(a, x + at, to) ? fours : ones,
                          dim3((unsigned)(n * a.slices), cuda_blocks((size_t)channels, CHANNELS)), 32 * WARPS,
                          (CHANNELS + 1) * sizeof(float2), a, x + at, norm->weight, norm->bias, norm->eps, norm->silu,
                          to);
    }
}

void cuda_group_sums(kern_queue *k, const float *x, int pixels, int channels, int first, int count, double *sums)
{
    (void)pixels;
    cuda_queue *c = cuda_of(k);
    if (count <= 0) return;
    const norm_shape a = slice(c, count, channels, 1);
    const int threads = CHANNELS * WARPS;
    if (!cuda_group_norm_has_room(c, (size_t)a.slices, channels)) return;
    launch_sums(c, a, x, 1);
    cuda_launch(c, add_parts, cuda_blocks(2 * (size_t)channels, threads), threads, 0, (const double *)c->working,
                a.slices, 2 * channels, first == 0, sums);
}
