/* Convolutions as matrix products of input patches. There are two ways.
 *
 * Operands in bf16 with a multiple of 8 channels: a kernel multiplies on tensor cores. It copies the parts of the
 * patches that it needs from the image to shared memory, so patches never reach global memory (implicit GEMM). It
 * writes rows y_stride elements apart, so several results can share one array's channels.
 *
 * Others (im2col): input patches of a band of output pixels are gathered into rows. cuBLASLt multiplies them, with
 * bias, sum and ReLU fused. A 1x1 convolution needs no gathering. Bands run across the images of a batch, so that small
 * images fill large products.
 *
 * As on the CPU (kernels/cpu/conv.c), a 3x3 convolution of an upsampled image is one 2x2 convolution of the small
 * image. Its result is one row and column larger. A pixel shuffle distributes its four groups of output channels to the
 * row and column parities. A transposed convolution is done likewise, with a 2x2 or a 1x1 one (kernels/doubling.h).
 *
 * Floor, per output pixel, with t taps (9 of a 3x3 kernel) and c channels in and out: 2 t c^2 flop. */
#include "kernels/cuda/linear.h"
#include "kernels/cuda/ptx.h"
#include "kernels/doubling.h"

#include <stdlib.h>
#include <string.h>

/* A band gives each multiprocessor a tile of the product, if its patches fit. The patches of KL-16's largest layers at
 * 256x256 pixels take 36 MB on an H100, within its 50 MB of L2. */
enum { PATCH_BYTES = 36 << 20, TILE = 128 * 128, VECTOR = 16, WARPS = 8 };

/* The convolution as computed. One that doubles rows and columns has 4*channels, the window of a parity, stride 1 and
 * padding 1, or 0 if the window is 1x1. */
struct kern_conv {
    int out, in;
    int kernel_h, kernel_w, stride, pad_h, pad_w, pad_end;
    int flags;
    int y_stride; /* elements from one pixel of the result to the next */
    int row;      /* elements of a patch, a multiple of 16 bytes: [kernel_h][kernel_w][in], then zeros */
    kern_linear *product;
};

mar_status cuda_patches(cuda_queue *c, mar_err *err)
{
    if (c->patches) return MAR_OK;
    mar_status status = cuda_alloc(&c->device->base, PATCH_BYTES, &c->patches, err);
    if (status == MAR_OK) c->patches_bytes = PATCH_BYTES;
    return status;
}

/* --- creation ---------------------------------------------------------------------------------------------- */

/* Builds weight [out][row] and bias [out] of the product from the spec's. */
static void lay_out(const kern_conv *conv, const kern_conv_spec *spec, float *weight, float *bias)
{
    const size_t in = (size_t)conv->in, taps = (size_t)(conv->kernel_h * conv->kernel_w);
    for (int o = 0; o < conv->out; o++) {
        const int parity = o / spec->out, channel = o % spec->out;
        float *row = weight + (size_t)o * (size_t)conv->row;
        bias[o] = spec->bias ? spec->bias[channel] : 0;
        for (size_t i = 0; i < in; i++) {
            const float *from = spec->weight + ((size_t)channel * in + i) * (size_t)(spec->kernel_h * spec->kernel_w);
            float merged[4];
            if (kern_conv_doubles(spec->flags)) {
                kern_conv_parity(spec, parity, channel, (int)i, merged);
                from = merged;
            }
            for (size_t tap = 0; tap < taps; tap++) row[tap * in + i] = from[tap];
        }
    }
}

static mar_status create_product(kern_queue *k, kern_conv *conv, const kern_conv_spec *spec, mar_err *err)
{
    const size_t n = (size_t)conv->out, weights = n * (size_t)conv->row;
    float *weight = (float *)calloc(weights + n, sizeof *weight);
    if (!weight) return err_set(err, MAR_ENOMEM, "out of memory: %zu weights of a convolution", weights);
    lay_out(conv, spec, weight, weight + weights);
    kern_linear_spec product = {};
    product.out = conv->out;
    product.in = conv->row;
    product.weight = weight;
    product.bias = weight + weights;
    product.flags = conv->flags & (KERN_OUT_F32 | KERN_OUT_ADD | KERN_RELU);
    product.y_stride = conv->y_stride;
    mar_status status = cuda_linear_create(k, &product, &conv->product, err);
    free(weight);
    return status;
}

mar_status cuda_conv_create(kern_queue *k, const kern_conv_spec *spec, kern_conv **out, mar_err *err)
{
    *out = NULL;
    const int doubles = kern_conv_doubles(spec->flags), unit = VECTOR / (int)k->device->act_size;
    kern_conv *conv = (kern_conv *)calloc(1, sizeof *conv);
    if (!conv) return err_set(err, MAR_ENOMEM, "out of memory");
    conv->out = doubles ? 4 * spec->out : spec->out;
    conv->in = spec->in;
    conv->kernel_h = kern_conv_window(spec->flags, spec->kernel_h);
    conv->kernel_w = kern_conv_window(spec->flags, spec->kernel_w);
    conv->stride = doubles ? 1 : spec->stride;
    conv->pad_h = spec->pad_h;
    conv->pad_w = spec->pad_w;
    conv->pad_end = spec->pad_end;
    conv->flags = spec->flags;
    conv->y_stride = doubles || !spec->y_stride ? conv->out : spec->y_stride;
    conv->row = (conv->kernel_h * conv->kernel_w * conv->in + unit - 1) / unit * unit;
    mar_status status = create_product(k, conv, spec, err);
    if (status != MAR_OK) {
        cuda_conv_free(k->device, conv);
        return status;
    }
    *out = conv;
    return MAR_OK;
}

void cuda_conv_spec(const kern_conv *conv, kern_conv_spec *spec)
{
    const int upsample = (conv->flags & KERN_UPSAMPLE) != 0, transposed = (conv->flags & KERN_TRANSPOSED) != 0;
    *spec = {};
    spec->out = upsample || transposed ? conv->out / 4 : conv->out, spec->in = conv->in;
    spec->kernel_h = upsample ? 3 : transposed ? 2 * conv->kernel_h : conv->kernel_h;
    spec->kernel_w = upsample ? 3 : transposed ? 2 * conv->kernel_w : conv->kernel_w;
    spec->stride = transposed ? 2 : conv->stride, spec->pad_h = conv->pad_h, spec->pad_w = conv->pad_w,
    spec->pad_end = conv->pad_end;
    spec->flags = conv->flags;
}

void cuda_conv_free(kern_device *d, kern_conv *conv)
{
    if (!conv) return;
    cuda_linear_free(d, conv->product);
    free(conv);
}

/* --- bands ------------------------------------------------------------------------------------------------- */

/* The output pixels of all images are the product's rows. With the 2x2 window of a parity, the last row and column of
 * an image are outside x. */
typedef struct {
    int height, width; /* of an image of x */
    int stride, pad_h, pad_w;
    int taps;              /* of the kernel */
    cuda_divisor kernel_w; /* taps of a row of it */
    cuda_divisor columns;  /* output pixels of a row */
    cuda_divisor image;    /* output pixels of an image */
} conv_pixels;

/* Division into equal bands. */
typedef struct {
    conv_pixels of;
    int pixels; /* of all images */
    int bands;  /* 0 if there are no pixels, or a patch does not fit */
    int band;   /* pixels of a band; the last band may have fewer */
} conv_bands;

/* Returns 1 if x itself is the product's operand. */
static int is_product(const kern_conv *conv)
{
    return conv->kernel_h * conv->kernel_w * conv->stride == 1 && conv->row == conv->in &&
           !kern_conv_doubles(conv->flags);
}

static conv_bands divide(const cuda_queue *c, const kern_conv *conv, int images, int height, int width)
{
    const int doubles = kern_conv_doubles(conv->flags);
    conv_bands p = {};
    p.of.height = height;
    p.of.width = width;
    p.of.stride = conv->stride;
    p.of.pad_h = conv->pad_h;
    p.of.pad_w = conv->pad_w;
    p.of.taps = conv->kernel_h * conv->kernel_w;
    p.of.kernel_w = cuda_divide_by(conv->kernel_w);
    const int columns = cuda_results(width + conv->pad_end, conv->pad_w, conv->kernel_w, conv->stride);
    const int image = cuda_results(height + conv->pad_end, conv->pad_h, conv->kernel_h, conv->stride) * columns;
    if (images <= 0 || image == 0) return p;
    p.of.columns = cuda_divide_by(columns);
    p.of.image = cuda_divide_by(image);
    p.pixels = images * image;
    size_t pixel = (size_t)conv->row * c->device->base.act_size;
    if (doubles) pixel += (size_t)conv->out * sizeof(float);
    const int wave = c->device->multiprocessors * TILE / conv->out, fit = (int)(c->patches_bytes / pixel);
    const int most = is_product(conv) ? p.pixels : wave > 0 && wave < fit ? wave : fit;
    p.bands = most > 0 ? (p.pixels + most - 1) / most : 0;
    p.band = p.bands ? (p.pixels + p.bands - 1) / p.bands : 0;
    return p;
}

/* --- kernels ----------------------------------------------------------------------------------------------- */

/* Gathers the patches of `count` output pixels from `first` on: from x [images][height][width][n], vectors of type V,
 * to rows of `row` vectors. A warp takes a pixel. */
template <typename V>
__global__ static void __launch_bounds__(32 * WARPS)
    gather(const V *x, conv_pixels p, cuda_divisor n, int first, int count, int row, V *patches)
{
    const int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    if (i >= count) return;
    const int image = cuda_quotient(first + i, p.image), pixel = first + i - image * p.image.by;
    const int line = cuda_quotient(pixel, p.columns), column = pixel - line * p.columns.by;
    const int top = line * p.stride - p.pad_h, left = column * p.stride - p.pad_w;
    x += (size_t)image * (size_t)p.height * (size_t)p.width * (size_t)n.by;
    V *to = patches + (size_t)i * (size_t)row;
#pragma unroll 4
    for (int j = (int)threadIdx.x % 32; j < row; j += 32) {
        const int tap = cuda_quotient(j, n), tap_row = cuda_quotient(tap, p.kernel_w);
        const int r = top + tap_row, s = left + tap - tap_row * p.kernel_w.by;
        V v = {};
        if (tap < p.taps && (unsigned)r < (unsigned)p.height && (unsigned)s < (unsigned)p.width)
            v = x[((size_t)r * (size_t)p.width + (size_t)s) * (size_t)n.by + (size_t)(j - tap * n.by)];
        to[j] = v;
    }
}

/* Returns the pixel of y of a channel group of a pixel of the result of a convolution that doubles; -1 if it is
 * outside. Group (py, px) of pixel (i, j) of a 2x2 convolution is pixel (2i - py, 2j - px) of its image; of a 1x1
 * convolution (2i + py, 2j + px). */
static __device__ inline long long shuffled(const conv_pixels &p, int result, int parity)
{
    const int image = cuda_quotient(result, p.image), pixel = result - image * p.image.by;
    const int row = cuda_quotient(pixel, p.columns), column = pixel - row * p.columns.by;
    const int height = 2 * p.height, width = 2 * p.width, side = p.taps == 1 ? 1 : -1;
    const int r = 2 * row + side * (parity / 2), s = 2 * column + side * (parity % 2);
    const int inside = r >= 0 && s >= 0 && r < height && s < width;
    return inside ? ((long long)image * height + r) * width + s : -1;
}

/* Distributes channel groups to pixels (shuffled). A pixel of y has n channels. A warp takes a pixel of the result. */
__global__ static void __launch_bounds__(32 * WARPS)
    pixel_shuffle(const float *from, conv_pixels p, int n, int first, int count, float *y)
{
    const int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    if (i >= count) return;
    from += (size_t)i * 4 * (size_t)n;
    for (int parity = 0; parity < 4; parity++, from += n) {
        const long long to = shuffled(p, first + i, parity);
        for (int j = (int)threadIdx.x % 32; to >= 0 && j < n; j += 32) y[(size_t)to * (size_t)n + (size_t)j] = from[j];
    }
}

template <typename V>
static void launch_gather(cuda_queue *c, const kern_conv *conv, const act *x, conv_pixels p, int first, int count)
{
    const int per_vector = (int)(sizeof(V) / c->device->base.act_size);
    cuda_launch(c, gather<V>, cuda_blocks((size_t)count, WARPS), 32 * WARPS, 0, (const V *)x, p,
                cuda_divide_by(conv->in / per_vector), first, count, conv->row / per_vector, (V *)c->patches);
}

static void gather_band(cuda_queue *c, const kern_conv *conv, const act *x, conv_pixels p, int first, int count)
{
    if ((size_t)conv->in * c->device->base.act_size % VECTOR == 0 && (uintptr_t)x % VECTOR == 0)
        launch_gather<uint4>(c, conv, x, p, first, count);
    else if (c->device->bf16)
        launch_gather<uint16_t>(c, conv, x, p, first, count);
    else
        launch_gather<uint32_t>(c, conv, x, p, first, count);
}

/* --- on tensor cores --------------------------------------------------------------------------------------- */

/* A block of 4 warps computes a tile of the product, in steps of DEPTH channels of a tap, with STAGES - 1 steps being
 * copied at any time. All taps of some channels follow each other, so that neighbouring pixels are in the L1 cache
 * still. A row of a stage has 4 pieces of 16 bytes; their order changes with the row, so that 8 rows at a piece are in
 * 32 different banks. */
enum {
    DEPTH = 32,
    STAGES = 4,
    THREADS = 128,
    PIECES = DEPTH / 8,
    PASS = THREADS / PIECES /* rows of a copy of all threads */
};

/* A product of `pixels` rows with weights [out][taps][in]. */
typedef struct {
    conv_pixels of;
    int pixels, out, in;
    cuda_divisor taps;
    int all, steps; /* of the product; of a block: those of one grid.z have the first steps, and so on */
} conv_product;

/* What becomes of the sums. */
typedef struct {
    void *y;
    const void *bias;      /* [out], of y's type; or NULL */
    int doubles;           /* 1: the sums are `shuffled` */
    cuda_divisor channels; /* of a pixel of y */
    int stride;            /* elements from one pixel of y to the next */
    int f32, add, relu;    /* y is float; is added to; is at least 0 */
    int vectors;           /* 1: 4 neighbouring channels are in one pixel and aligned */
} conv_result;

/* Finishes COUNT vectors of N neighbouring sums of a pixel, each from channel[i] on. */
template <int N, int COUNT>
static __device__ inline void finish(const conv_product &p, const conv_result &r, const int *pixel, const int *channel,
                                     cuda_floats<N> *sum)
{
    long long to[COUNT];
    cuda_floats<N> old[COUNT] = {};
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int group = r.doubles ? cuda_quotient(channel[i], r.channels) : 0;
        to[i] = pixel[i] < p.pixels && channel[i] < p.out ? pixel[i] : -1;
        if (r.doubles && to[i] >= 0) to[i] = shuffled(p.of, pixel[i], group);
        if (to[i] >= 0) to[i] = to[i] * r.stride + channel[i] - group * r.channels.by;
        if (r.add && to[i] >= 0) old[i] = cuda_load<N>((const float *)r.y + to[i]);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        if (to[i] < 0) continue;
        cuda_floats<N> bias = {};
        if (r.bias && r.f32) bias = cuda_load<N>((const float *)r.bias + channel[i]);
        if (r.bias && !r.f32) bias = cuda_load<N>((const bf16 *)r.bias + channel[i]);
        for (int j = 0; j < N; j++) {
            sum[i].v[j] += bias.v[j] + old[i].v[j];
            if (r.relu && sum[i].v[j] < 0) sum[i].v[j] = 0;
        }
        if (r.f32)
            cuda_store((float *)r.y + to[i], sum[i]);
        else
            cuda_store((bf16 *)r.y + to[i], sum[i]);
    }
}

/* A thread's copies: piece threadIdx.x % PIECES of every PASS'th row of the tile. */
template <int ROWS> struct conv_source {
    const bf16 *pixel[ROWS / PASS]; /* first of the patch; may be outside of the image */
    int top[ROWS / PASS], left[ROWS / PASS];
};

template <int ROWS> static __device__ inline conv_source<ROWS> find_patches(const conv_product &p, const bf16 *x)
{
    conv_source<ROWS> s;
#pragma unroll
    for (int i = 0; i < ROWS / PASS; i++) {
        const int result = (int)blockIdx.x * ROWS + i * PASS + (int)threadIdx.x / PIECES;
        const int image = cuda_quotient(result, p.of.image), pixel = result - image * p.of.image.by;
        const int row = cuda_quotient(pixel, p.of.columns), column = pixel - row * p.of.columns.by;
        s.top[i] = result < p.pixels ? row * p.of.stride - p.of.pad_h : -(1 << 20); /* outside */
        s.left[i] = column * p.of.stride - p.of.pad_w;
        s.pixel[i] = x + (((long long)image * p.of.height + s.top[i]) * p.of.width + s.left[i]) * p.in;
    }
    return s;
}

/* Copies a step of the patches and the weights to a stage: [ROWS][DEPTH], [COLUMNS][DEPTH]. */
template <int ROWS, int COLUMNS>
static __device__ inline void load_step(const conv_product &p, const conv_source<ROWS> &s, const bf16 *weight, int step,
                                        bf16 *stage)
{
    const int chunk = cuda_quotient(step, p.taps), tap = step - chunk * p.taps.by;
    const int u = cuda_quotient(tap, p.of.kernel_w), v = tap - u * p.of.kernel_w.by;
    const int row = (int)threadIdx.x / PIECES, piece = (int)threadIdx.x % PIECES, channel = chunk * DEPTH + piece * 8;
    const long long offset = (long long)(u * p.of.width + v) * p.in + channel;
    const int first = (int)blockIdx.y * COLUMNS + row;
    weight += ((size_t)first * (size_t)p.taps.by + (size_t)tap) * (size_t)p.in + channel;
    bf16 *to = stage + row * DEPTH + (piece ^ row / 2 % PIECES) * 8;
#pragma unroll
    for (int i = 0; i < ROWS / PASS; i++)
        fast::copy16_if(channel < p.in && (unsigned)(s.top[i] + u) < (unsigned)p.of.height &&
                            (unsigned)(s.left[i] + v) < (unsigned)p.of.width,
                        to + i * PASS * DEPTH, s.pixel[i] + offset);
#pragma unroll
    for (int i = 0; i < (COLUMNS + PASS - 1) / PASS; i++)
        if (COLUMNS % PASS == 0 || row < COLUMNS)
            fast::copy16_if(channel < p.in && first + i * PASS < p.out, to + (ROWS + i * PASS) * DEPTH,
                            weight + (size_t)(i * PASS) * (size_t)(p.taps.by * p.in));
}

/* Returns what the columns of a row of sums [][N] are swapped by, so that rows a lane apart are in different banks. */
template <int N> static __device__ inline int turn_of(int row)
{
    return row % (N < 32 ? N / 8 : 4) * 8;
}

/* sum += a warp's part of a stage: patches from `a` on times weights from `b` on. */
template <int M, int N>
static __device__ inline void multiply_step(const bf16 *a, const bf16 *b, float sum[M / 16][N / 8][4])
{
    const int lane = (int)threadIdx.x % 32, turn = lane / 2 % PIECES;
    uint32_t left[2][M / 16][4], right[2][N / 16][4];
    a += lane % 16 * DEPTH;
    b += (lane / 16 * 8 + lane % 8) * DEPTH;
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int m = 0; m < M / 16; m++)
            fast::load_matrices(left[j][m], a + m * 16 * DEPTH + ((2 * j + lane / 16) ^ turn) * 8);
#pragma unroll
        for (int n = 0; n < N / 16; n++)
            fast::load_matrices(right[j][n], b + n * 16 * DEPTH + ((2 * j + lane / 8 % 2) ^ turn) * 8);
    }
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int m = 0; m < M / 16; m++)
#pragma unroll
            for (int n = 0; n < N / 8; n++) fast::mma<bf16>(sum[m][n], left[j][m], right[j][n / 2] + n % 2 * 2);
}

/* Finishes a warp's sums, M pixels and N channels, which are in shared memory. Vectors of V. */
template <int V, int M, int N>
static __device__ inline void finish_sums(const conv_product &p, const conv_result &r, const float *mine, int pixel,
                                          int channel)
{
    enum { COUNT = 4 };
#pragma unroll 1
    for (int first = (int)threadIdx.x % 32; first < M * N / V; first += 32 * COUNT) {
        int at[COUNT], from[COUNT];
        cuda_floats<V> sum[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int row = (first + 32 * i) / (N / V), column = (first + 32 * i) % (N / V) * V;
            at[i] = pixel + row, from[i] = channel + column;
            sum[i] = cuda_load<V>(mine + row * N + (column ^ turn_of<N>(row)));
        }
        finish<V, COUNT>(p, r, at, from, sum);
    }
}

/* Computes a tile of ROWS pixels and COLUMNS channels, M x N a warp. With several grid.z, y is [grid.z][pixels][out].
 */
template <int ROWS, int COLUMNS, int M, int N>
__global__ static void __launch_bounds__(THREADS, ROWS *COLUMNS > 128 * 64   ? 2
                                                  : ROWS * COLUMNS > 64 * 64 ? 3
                                                                             : 4)
    conv_tile(conv_product p, conv_result r, const bf16 *x, const bf16 *weight)
{
    static_assert(ROWS / M * (COLUMNS / N) * 32 == THREADS, "a warp computes M x N");
    static_assert(ROWS * COLUMNS * sizeof(float) <= STAGES * (ROWS + COLUMNS) * DEPTH * sizeof(bf16),
                  "stages hold sums");
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, size = (ROWS + COLUMNS) * DEPTH;
    const int row = warp % (ROWS / M) * M, column = warp / (ROWS / M) * N;
    const int first = (int)blockIdx.z * p.steps, count = min(p.steps, p.all - first);
    bf16 *stages = (bf16 *)cuda_shared();
    const conv_source<ROWS> source = find_patches<ROWS>(p, x);
    fast::start_next();
    fast::wait_for_previous();
    float sum[M / 16][N / 8][4] = {};
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < count) load_step<ROWS, COLUMNS>(p, source, weight, first + i, stages + i * size);
        fast::copy_commit();
    }
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        fast::copy_wait<STAGES - 2>();
        __syncthreads(); /* step i is loaded; nobody reads the previous one, whose stage is filled next */
        const int next = i + STAGES - 1;
        const bf16 *stage = stages + i % STAGES * size;
        if (next < count) load_step<ROWS, COLUMNS>(p, source, weight, first + next, stages + next % STAGES * size);
        fast::copy_commit();
        multiply_step<M, N>(stage + row * DEPTH, stage + (ROWS + column) * DEPTH, sum);
    }
    __syncthreads();
    float *mine = (float *)stages + warp * M * N;
#pragma unroll
    for (int m = 0; m < M / 8; m++)
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            const int to = m * 8 + lane / 4;
            const float *two = &sum[m / 2][n][m % 2 * 2];
            cuda_store(mine + to * N + ((n * 8 + lane % 4 * 2) ^ turn_of<N>(to)), cuda_floats<2>{{two[0], two[1]}});
        }
    __syncwarp();
    const int pixel = (int)blockIdx.x * ROWS + row, channel = (int)blockIdx.y * COLUMNS + column;
    r.y = (float *)r.y + (size_t)blockIdx.z * (size_t)p.pixels * (size_t)p.out;
    if (r.vectors)
        finish_sums<4, M, N>(p, r, mine, pixel, channel);
    else
        finish_sums<1, M, N>(p, r, mine, pixel, channel);
}

/* Adds `slices` parts of the sums [pixels][out] and finishes them. A thread takes a vector of N. */
template <int N>
__global__ static void __launch_bounds__(THREADS)
    add_slices(conv_product p, conv_result r, const float *parts, int slices, cuda_divisor row)
{
    const int i = (int)(blockIdx.x * THREADS + threadIdx.x), pixel = cuda_quotient(i, row);
    const int channel = (i - pixel * row.by) * N;
    cuda_floats<N> sum = {};
    fast::start_next();
    fast::wait_for_previous();
    if (pixel >= p.pixels) return;
    for (int s = 0; s < slices; s++, parts += (size_t)p.pixels * (size_t)p.out) {
        const cuda_floats<N> part = cuda_load<N>(parts + (size_t)i * N);
        for (int j = 0; j < N; j++) sum.v[j] += part.v[j];
    }
    finish<N, 1>(p, r, &pixel, &channel, &sum);
}

/* From large tiles, which read least and have most products for an instruction, to small ones, which are more. The last
 * is for an image's three channels. */
typedef struct {
    void (*kernel)(conv_product, conv_result, const bf16 *, const bf16 *);
    int rows, columns;
} conv_shape;
static const conv_shape conv_shapes[] = {{conv_tile<128, 128, 64, 64>, 128, 128},
                                         {conv_tile<128, 64, 64, 32>, 128, 64},
                                         {conv_tile<64, 64, 32, 32>, 64, 64},
                                         {conv_tile<128, 16, 32, 16>, 128, 16}};
enum { SMALL = 2, NARROW = 3 };

static size_t stages_bytes(const conv_shape *s)
{
    return (size_t)(STAGES * (s->rows + s->columns) * DEPTH) * sizeof(bf16);
}

static int takes_tiles(const cuda_queue *c, const kern_conv *conv)
{
    return c->device->bf16 && conv->in % 8 == 0;
}

static size_t tiles_of(const conv_shape *s, int pixels, int out)
{
    return cuda_blocks((size_t)pixels, (size_t)s->rows) * (size_t)cuda_blocks((size_t)out, (size_t)s->columns);
}

/* Returns the result of a convolution's sums. */
static conv_result result_of(const kern_conv *conv, void *y)
{
    conv_result r = {};
    r.y = y, r.bias = conv->product->bias;
    r.doubles = kern_conv_doubles(conv->flags);
    const int channels = r.doubles ? conv->out / 4 : conv->out;
    r.channels = cuda_divide_by(channels);
    r.stride = r.doubles ? channels : conv->y_stride;
    r.f32 = (conv->flags & KERN_OUT_F32) != 0, r.add = (conv->flags & KERN_OUT_ADD) != 0;
    r.relu = (conv->flags & KERN_RELU) != 0;
    r.vectors = (channels | r.stride) % 4 == 0 && (uintptr_t)y % (r.f32 ? 16 : 8) == 0;
    return r;
}

/* Divides the steps of a patch among enough blocks for all multiprocessors. */
static void multiply_tiles(cuda_queue *c, const kern_conv *conv, const act *x, const conv_bands &b, void *y)
{
    enum { LEAST_STEPS = 4 };
    const int steps = b.of.taps * (int)cuda_blocks((size_t)conv->in, DEPTH),
              most = steps < LEAST_STEPS ? 1 : steps / LEAST_STEPS;
    const size_t processors = (size_t)c->device->multiprocessors;
    const conv_shape *s = conv_shapes;
    while (s < conv_shapes + SMALL && 2 * tiles_of(s, b.pixels, conv->out) < 3 * processors) s++;
    if (conv->out <= conv_shapes[NARROW].columns) s = conv_shapes + NARROW;
    const size_t fit = 2 * processors / tiles_of(s, b.pixels, conv->out);
    int slices = fit < 1 ? 1 : fit < (size_t)most ? (int)fit : most;
    const conv_product p = {
        b.of, b.pixels, conv->out, conv->in, cuda_divide_by(b.of.taps), steps, (steps + slices - 1) / slices};
    slices = (steps + p.steps - 1) / p.steps;
    const conv_result r = result_of(conv, y);
    conv_result sums = r;
    if (slices > 1) {
        sums = {};
        sums.y = c->patches, sums.stride = conv->out, sums.f32 = 1, sums.vectors = conv->out % 4 == 0;
    }
    cuda_launch_early(c, s->kernel,
                      dim3(cuda_blocks((size_t)b.pixels, (size_t)s->rows),
                           cuda_blocks((size_t)conv->out, (size_t)s->columns), (unsigned)slices),
                      THREADS, stages_bytes(s), p, sums, (const bf16 *)x, (const bf16 *)conv->product->weight);
    const int vector = r.vectors ? 4 : 1, row = conv->out / vector;
    if (slices > 1)
        cuda_launch_early(c, r.vectors ? add_slices<4> : add_slices<1>,
                          cuda_blocks((size_t)b.pixels * (size_t)row, THREADS), THREADS, 0, p, r,
                          (const float *)c->patches, slices, cuda_divide_by(row));
}

/* Raises the kernels' limits of shared memory. */
static mar_status allow_tiles(const cuda_queue *c, mar_err *err)
{
    const CUcontext before = cuda_switch(c->device->context);
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; error == cudaSuccess && i < sizeof conv_shapes / sizeof *conv_shapes; i++)
        error = cudaFuncSetAttribute(conv_shapes[i].kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)stages_bytes(&conv_shapes[i]));
    (void)cuda_switch(before);
    return cuda_status(error, "shared memory for a convolution", err);
}

mar_status cuda_conv_plan(kern_queue *k, const kern_conv *conv, int images, int height, int width, mar_err *err)
{
    cuda_queue *c = cuda_of(k);
    mar_status status = is_product(conv) ? MAR_OK : cuda_patches(c, err);
    if (status != MAR_OK) return status;
    if (!is_product(conv) && takes_tiles(c, conv)) return allow_tiles(c, err);
    const conv_bands p = divide(c, conv, images, height, width);
    if (p.pixels == 0) return MAR_OK;
    if (!p.bands)
        return err_set(err, MAR_EBACKEND, "convolution of %d channels: a patch has more than %zu bytes", conv->in,
                       c->patches_bytes);
    status = cuda_linear_plan(k, conv->product, p.band, err);
    const int rest = p.pixels - (p.bands - 1) * p.band;
    return status == MAR_OK && rest != p.band ? cuda_linear_plan(k, conv->product, rest, err) : status;
}

void cuda_conv(kern_queue *k, const kern_conv *conv, const act *x, int images, int height, int width, void *y)
{
    cuda_queue *c = cuda_of(k);
    const conv_bands p = divide(c, conv, images, height, width);
    const int doubles = kern_conv_doubles(conv->flags);
    const size_t y_size = conv->flags & KERN_OUT_F32 ? sizeof(float) : k->device->act_size;
    if (p.pixels == 0) return;
    if (!is_product(conv) && c->patches && takes_tiles(c, conv) && (uintptr_t)x % VECTOR == 0) {
        multiply_tiles(c, conv, x, p, y);
        return;
    }
    if (!p.bands) {
        mar_err err = {};
        kern_fail(k, err_set(&err, MAR_EBACKEND, "convolution of %dx%d pixels without a plan", height, width), &err);
        return;
    }
    if (is_product(conv)) {
        cuda_linear(k, conv->product, x, p.pixels, y);
        return;
    }
    float *result = (float *)((char *)c->patches + (size_t)p.band * (size_t)conv->row * k->device->act_size);
    for (int first = 0; first < p.pixels && cuda_live(c); first += p.band) {
        const int count = p.pixels - first < p.band ? p.pixels - first : p.band;
        void *to = (char *)y + (size_t)first * (size_t)conv->y_stride * y_size;
        gather_band(c, conv, x, p.of, first, count);
        if (doubles) to = result;
        cuda_linear(k, conv->product, c->patches, count, to);
        if (doubles)
            cuda_launch(c, pixel_shuffle, cuda_blocks((size_t)count, WARPS), 32 * WARPS, 0, (const float *)result, p.of,
                        conv->out / 4, first, count, (float *)y);
    }
}
