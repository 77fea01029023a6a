/* Convolutions as matrix products of input patches. A kernel copies the parts of the patches that it needs from the
 * image to shared memory, so patches never reach global memory (implicit GEMM). It multiplies bf16 on tensor cores, f32
 * by plain instructions. It writes rows y_stride elements apart, so several results can share one array's channels. A
 * 1x1 convolution of whole vectors is a product of the image itself, by cuBLASLt.
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

enum { VECTOR = 16 /* bytes */ };

/* One that doubles rows and columns is computed with 4 * channels and the window of a parity. */
struct kern_conv {
    kern_conv_spec spec;                 /* as given, without weight and bias */
    int out, kernel_h, kernel_w, stride; /* as computed */
    int y_stride;                        /* elements from one pixel of the result to the next */
    int row;              /* elements of a patch, a multiple of 16 bytes: [kernel_h][kernel_w][in], then zeros */
    kern_linear *product; /* of patches with the weights [out][row] */
};

/* --- creation ---------------------------------------------------------------------------------------------- */

/* Builds weight [out][row] and bias [out] of the product from the spec's. */
static void cuda_conv_lay_out(const kern_conv *conv, const kern_conv_spec *spec, float *weight, float *bias)
{
    const size_t in = (size_t)spec->in, taps = (size_t)(conv->kernel_h * conv->kernel_w);
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
    cuda_conv_lay_out(conv, spec, weight, weight + weights);
    kern_linear_spec product = {};
    product.out = conv->out, product.in = conv->row, product.y_stride = conv->y_stride;
    product.weight = weight, product.bias = weight + weights;
    product.flags = spec->flags & (KERN_OUT_F32 | KERN_OUT_ADD | KERN_RELU);
    mar_status status = cuda_linear_create(k, &product, &conv->product, err);
    free(weight);
    return status;
}

mar_status cuda_conv_create(kern_queue *k, const kern_conv_spec *spec, kern_conv **out, mar_err *err)
{
    const int doubles = kern_conv_doubles(spec->flags), unit = VECTOR / (int)k->device->act_size;
    kern_conv *conv = *out = (kern_conv *)calloc(1, sizeof *conv);
    if (!conv) return err_set(err, MAR_ENOMEM, "out of memory");
    conv->spec = *spec, conv->spec.weight = conv->spec.bias = NULL;
    conv->out = doubles ? 4 * spec->out : spec->out;
    conv->kernel_h = kern_conv_window(spec->flags, spec->kernel_h);
    conv->kernel_w = kern_conv_window(spec->flags, spec->kernel_w);
    conv->stride = doubles ? 1 : spec->stride;
    conv->y_stride = doubles || !spec->y_stride ? conv->out : spec->y_stride;
    conv->row = (conv->kernel_h * conv->kernel_w * spec->in + unit - 1) / unit * unit;
    const mar_status status = create_product(k, conv, spec, err);
    if (status == MAR_OK) return MAR_OK;
    cuda_conv_free(k->device, conv);
    *out = NULL;
    return status;
}

void cuda_conv_spec(const kern_conv *conv, kern_conv_spec *spec)
{
    *spec = conv->spec;
}

void cuda_conv_free(kern_device *d, kern_conv *conv)
{
    if (!conv) return;
    cuda_linear_free(d, conv->product);
    free(conv);
}

/* --- the product ------------------------------------------------------------------------------------------- */

/* A product of `pixels` rows, the output pixels of all images, with weights [out][row]. With the 2x2 window of a
 * parity, the last row and column of an image are outside x. */
typedef struct {
    int height, width; /* of an image of x */
    int stride, pad_h, pad_w;
    cuda_divisor kernel_w; /* taps of a row of the kernel */
    cuda_divisor columns;  /* output pixels of a row */
    cuda_divisor image;    /* output pixels of an image */
    cuda_divisor taps, in; /* of the kernel; channels */
    int pixels, out, row;
    int all, steps; /* of the product; of a block: those of one grid.z have the first steps, and so on */
} conv_product;

/* Returns 1 if x itself is the product's operand. */
static int is_product(const kern_conv *conv)
{
    return conv->kernel_h * conv->kernel_w * conv->stride == 1 && conv->row == conv->spec.in &&
           !kern_conv_doubles(conv->spec.flags);
}

/* Returns the product of some images, without its steps. There are no pixels if the window does not fit. */
static conv_product product_of(const kern_conv *conv, int images, int height, int width)
{
    conv_product p = {};
    const int columns = cuda_results(width + conv->spec.pad_end, conv->spec.pad_w, conv->kernel_w, conv->stride);
    const int image =
        cuda_results(height + conv->spec.pad_end, conv->spec.pad_h, conv->kernel_h, conv->stride) * columns;
    if (images <= 0 || image == 0) return p;
    p.height = height, p.width = width;
    p.stride = conv->stride, p.pad_h = conv->spec.pad_h, p.pad_w = conv->spec.pad_w;
    p.kernel_w = cuda_divide_by(conv->kernel_w);
    p.columns = cuda_divide_by(columns), p.image = cuda_divide_by(image);
    p.taps = cuda_divide_by(conv->kernel_h * conv->kernel_w), p.in = cuda_divide_by(conv->spec.in);
    p.pixels = images * image, p.out = conv->out, p.row = conv->row;
    return p;
}

/* Returns the pixel of y of a channel group of a pixel of the result of a convolution that doubles; -1 if it is
 * outside. Group (py, px) of pixel (i, j) of a 2x2 convolution is pixel (2i - py, 2j - px) of its image; of a 1x1
 * convolution (2i + py, 2j + px). */
static __device__ inline long long shuffled(const conv_product &p, int result, int parity)
{
    const int image = cuda_quotient(result, p.image), pixel = result - image * p.image.by;
    const int row = cuda_quotient(pixel, p.columns), column = pixel - row * p.columns.by;
    const int height = 2 * p.height, width = 2 * p.width, side = p.taps.by == 1 ? 1 : -1;
    const int r = 2 * row + side * (parity / 2), s = 2 * column + side * (parity % 2);
    const int inside = r >= 0 && s >= 0 && r < height && s < width;
    return inside ? ((long long)image * height + r) * width + s : -1;
}

/* A block of 4 warps computes a tile of the product, in steps of DEPTH elements of the patches, with STAGES - 1 steps
 * being copied at any time. A step is some channels of a tap; all taps of them follow each other, so that neighbouring
 * pixels are in the L1 cache still. Where pixels are no vectors, it is neighbouring elements of the patch. A row of a
 * stage has 4 pieces of 16 bytes; their order changes with the row, so that 8 rows at a piece are in 32 different
 * banks. */
enum {
    STAGES = 4,
    THREADS = 128,
    PIECES = 4,
    PASS = THREADS / PIECES /* rows of a copy of all threads */
};
template <typename T> struct conv_sizes {
    enum { PIECE = VECTOR / (int)sizeof(T), DEPTH = PIECES * PIECE };
};

/* Epilogue of the product. */
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
static __device__ inline void conv_finish(const conv_product &p, const conv_result &r, const int *pixel,
                                          const int *channel, cuda_floats<N> *sum)
{
    long long to[COUNT];
    cuda_floats<N> old[COUNT] = {};
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int group = r.doubles ? cuda_quotient(channel[i], r.channels) : 0;
        to[i] = pixel[i] < p.pixels && channel[i] < p.out ? pixel[i] : -1;
        if (r.doubles && to[i] >= 0) to[i] = shuffled(p, pixel[i], group);
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
template <typename T, int ROWS> struct conv_source {
    const T *pixel[ROWS / PASS]; /* first of the patch; may be outside of the image */
    int top[ROWS / PASS], left[ROWS / PASS];
};

template <typename T, int ROWS>
static __device__ inline conv_source<T, ROWS> find_patches(const conv_product &p, const T *x)
{
    conv_source<T, ROWS> s;
#pragma unroll
    for (int i = 0; i < ROWS / PASS; i++) {
        const int result = (int)blockIdx.x * ROWS + i * PASS + (int)threadIdx.x / PIECES;
        const int image = cuda_quotient(result, p.image), pixel = result - image * p.image.by;
        const int row = cuda_quotient(pixel, p.columns), column = pixel - row * p.columns.by;
        s.top[i] = result < p.pixels ? row * p.stride - p.pad_h : -(1 << 20); /* outside */
        s.left[i] = column * p.stride - p.pad_w;
        s.pixel[i] = x + (((long long)image * p.height + s.top[i]) * p.width + s.left[i]) * p.in.by;
    }
    return s;
}

/* A tap of the kernel. */
typedef struct {
    int u, v;         /* row, column */
    long long offset; /* elements of x from the patch's first pixel to this one */
} conv_tap;

static __device__ inline conv_tap tap_at(const conv_product &p, int tap)
{
    const int u = cuda_quotient(tap, p.kernel_w), v = tap - u * p.kernel_w.by;
    return {u, v, (long long)(u * p.width + v) * p.in.by};
}

/* Returns 1 if the pixel of a tap is inside the image of a patch. */
static __device__ inline int is_inside(const conv_product &p, int top, int left, const conv_tap &tap)
{
    return (unsigned)(top + tap.u) < (unsigned)p.height && (unsigned)(left + tap.v) < (unsigned)p.width;
}

/* Copies a step of the patches and the weights to a stage: [ROWS][DEPTH], [COLUMNS][DEPTH]. Without VECTORS element by
 * element. */
template <typename T, int VECTORS, int ROWS, int COLUMNS>
static __device__ inline void load_step(const conv_product &p, const conv_source<T, ROWS> &s, const T *weight, int step,
                                        T *stage)
{
    enum { PIECE = conv_sizes<T>::PIECE, DEPTH = conv_sizes<T>::DEPTH };
    const int row = (int)threadIdx.x / PIECES, piece = (int)threadIdx.x % PIECES;
    const int first = (int)blockIdx.y * COLUMNS + row;
    T *to = stage + row * DEPTH + (piece ^ row / 2 % PIECES) * PIECE;
    int at, given; /* of the patch's elements: number of the first; 1: exists */
    if (VECTORS) {
        const int chunk = cuda_quotient(step, p.taps), number = step - chunk * p.taps.by;
        const int channel = chunk * DEPTH + piece * PIECE;
        const conv_tap tap = tap_at(p, number);
        at = number * p.in.by + channel, given = channel < p.in.by;
#pragma unroll
        for (int i = 0; i < ROWS / PASS; i++)
            fast::copy16_if(given && is_inside(p, s.top[i], s.left[i], tap), to + i * PASS * DEPTH,
                            s.pixel[i] + tap.offset + channel);
    } else {
        at = step * DEPTH + piece * PIECE, given = at < p.row;
#pragma unroll 1
        for (int j = 0; j < PIECE; j++) {
            const int number = cuda_quotient(at + j, p.in), channel = at + j - number * p.in.by;
            const conv_tap tap = tap_at(p, number);
            for (int i = 0; i < ROWS / PASS; i++) {
                const int inside = number < p.taps.by && is_inside(p, s.top[i], s.left[i], tap);
                to[i * PASS * DEPTH + j] = inside ? s.pixel[i][tap.offset + channel] : T{};
            }
        }
    }
    weight += (size_t)first * (size_t)p.row + at;
#pragma unroll
    for (int i = 0; i < (COLUMNS + PASS - 1) / PASS; i++)
        if (COLUMNS % PASS == 0 || row < COLUMNS)
            fast::copy16_if(given && first + i * PASS < p.out, to + (ROWS + i * PASS) * DEPTH,
                            weight + (size_t)(i * PASS) * (size_t)p.row);
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
    enum { DEPTH = conv_sizes<bf16>::DEPTH };
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

/* The same in f32; a lane has the sums that it has of mma. */
template <int M, int N>
static __device__ inline void multiply_step(const float *a, const float *b, float sum[M / 16][N / 8][4])
{
    enum { DEPTH = conv_sizes<float>::DEPTH };
    const int lane = (int)threadIdx.x % 32;
    a += lane / 4 * DEPTH;
    b += lane % 4 * 2 * DEPTH;
#pragma unroll 1
    for (int piece = 0; piece < PIECES; piece++) {
        cuda_floats<4> left[M / 8];
#pragma unroll
        for (int m = 0; m < M / 8; m++) left[m] = cuda_load<4>(a + m * 8 * DEPTH + (piece ^ lane / 8) * 4);
#pragma unroll
        for (int n = 0; n < N / 4; n++) {
            const cuda_floats<4> right = cuda_load<4>(b + (n / 2 * 8 + n % 2) * DEPTH + (piece ^ lane % 4) * 4);
#pragma unroll
            for (int m = 0; m < M / 8; m++)
                for (int i = 0; i < 4; i++) sum[m / 2][n / 2][m % 2 * 2 + n % 2] += left[m].v[i] * right.v[i];
        }
    }
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
        conv_finish<V, COUNT>(p, r, at, from, sum);
    }
}

/* Computes a tile of ROWS pixels and COLUMNS channels, M x N a warp. With several grid.z y is [grid.z][pixels][out]. */
template <typename T, int VECTORS, int ROWS, int COLUMNS, int M, int N>
__global__ static void __launch_bounds__(THREADS, ROWS *COLUMNS > 128 * 64   ? 2
                                                  : ROWS * COLUMNS > 64 * 64 ? 3
                                                                             : 4)
    conv_tile(conv_product p, conv_result r, const void *x, const void *weight)
{
    enum { DEPTH = conv_sizes<T>::DEPTH, SIZE = (ROWS + COLUMNS) * DEPTH };
    static_assert(ROWS / M * (COLUMNS / N) * 32 == THREADS, "a warp computes M x N");
    static_assert(ROWS * COLUMNS * sizeof(float) <= STAGES * SIZE * sizeof(T), "stages hold sums");
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int row = warp % (ROWS / M) * M, column = warp / (ROWS / M) * N;
    const int first = (int)blockIdx.z * p.steps, count = min(p.steps, p.all - first);
    T *stages = (T *)cuda_shared();
    const conv_source<T, ROWS> source = find_patches<T, ROWS>(p, (const T *)x);
    const auto load = [&](int i) {
        if (i < count)
            load_step<T, VECTORS, ROWS, COLUMNS>(p, source, (const T *)weight, first + i, stages + i % STAGES * SIZE);
        fast::copy_commit();
    };
    fast::start_next();
    fast::wait_for_previous();
    float sum[M / 16][N / 8][4] = {};
    for (int i = 0; i < STAGES - 1; i++) load(i);
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        fast::copy_wait<STAGES - 2>();
        __syncthreads(); /* step i is loaded; nobody reads the previous one, whose stage is filled next */
        load(i + STAGES - 1);
        const T *stage = stages + i % STAGES * SIZE;
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

/* Adds `slices` parts of the sums [pixels][out] and finishes them. A thread takes a vector of 4. */
__global__ static void __launch_bounds__(THREADS)
    add_slices(conv_product p, conv_result r, const float *parts, int slices, cuda_divisor row)
{
    const int i = (int)(blockIdx.x * THREADS + threadIdx.x), pixel = cuda_quotient(i, row);
    const int channel = (i - pixel * row.by) * 4;
    cuda_floats<4> sum = {};
    fast::start_next();
    fast::wait_for_previous();
    if (pixel >= p.pixels) return;
    for (int s = 0; s < slices; s++, parts += (size_t)p.pixels * (size_t)p.out) {
        const cuda_floats<4> part = cuda_load<4>(parts + (size_t)i * 4);
        for (int j = 0; j < 4; j++) sum.v[j] += part.v[j];
    }
    conv_finish<4, 1>(p, r, &pixel, &channel, &sum);
}

/* --- launches ---------------------------------------------------------------------------------------------- */

/* From large tiles, which read least and have most products for an instruction, to small ones, which are more. Then one
 * for an image's three channels, and one for pixels that are no vectors. */
typedef struct {
    void (*kernel)(conv_product, conv_result, const void *, const void *);
    int rows, columns;
} conv_shape;
template <typename T>
static const conv_shape conv_shapes[] = {{conv_tile<T, 1, 128, 128, 64, 64>, 128, 128},
                                         {conv_tile<T, 1, 128, 64, 64, 32>, 128, 64},
                                         {conv_tile<T, 1, 64, 64, 32, 32>, 64, 64},
                                         {conv_tile<T, 1, 128, 16, 32, 16>, 128, 16},
                                         {conv_tile<T, 0, 64, 64, 32, 32>, 64, 64}};
enum { SMALL = 2, NARROW, ODD, SHAPES };

static const conv_shape *shapes_of(const cuda_queue *c)
{
    return c->device->bf16 ? conv_shapes<bf16> : conv_shapes<float>;
}

static size_t stages_bytes(const conv_shape *s)
{
    return (size_t)(STAGES * (s->rows + s->columns) * PIECES * VECTOR);
}

static size_t tiles_of(const conv_shape *s, const conv_product &p)
{
    return cuda_blocks((size_t)p.pixels, (size_t)s->rows) * (size_t)cuda_blocks((size_t)p.out, (size_t)s->columns);
}

static const conv_shape *choose_shape(const cuda_queue *c, const conv_product &p, int vectors)
{
    const conv_shape *const shapes = shapes_of(c), *s = shapes;
    if (!vectors) return shapes + ODD;
    if (p.out <= shapes[NARROW].columns) return shapes + NARROW;
    while (s < shapes + SMALL && 2 * tiles_of(s, p) < 3 * (size_t)c->device->multiprocessors) s++;
    return s;
}

/* Returns the result of a convolution's sums. */
static conv_result result_of(const cuda_queue *c, const kern_conv *conv, void *y)
{
    conv_result r = {};
    r.y = y, r.bias = conv->product->bias;
    r.doubles = kern_conv_doubles(conv->spec.flags);
    const int channels = r.doubles ? conv->out / 4 : conv->out;
    r.channels = cuda_divide_by(channels);
    r.stride = r.doubles ? channels : conv->y_stride;
    r.f32 = (conv->spec.flags & KERN_OUT_F32) || !c->device->bf16, r.add = (conv->spec.flags & KERN_OUT_ADD) != 0;
    r.relu = (conv->spec.flags & KERN_RELU) != 0;
    r.vectors = (channels | r.stride) % 4 == 0 && (uintptr_t)y % (r.f32 ? 16 : 8) == 0;
    return r;
}

/* Divides the steps of a patch among enough blocks for all multiprocessors, where the result has vectors. */
static void multiply_tiles(cuda_queue *c, const kern_conv *conv, const act *x, conv_product p, void *y)
{
    enum { LEAST_STEPS = 4 };
    const int piece = VECTOR / (int)c->device->base.act_size, depth = PIECES * piece;
    const int vectors = conv->spec.in % piece == 0 && cuda_aligned(x);
    p.all = vectors ? p.taps.by * (int)cuda_blocks((size_t)conv->spec.in, (size_t)depth)
                    : (int)cuda_blocks((size_t)conv->row, (size_t)depth);
    const conv_shape *s = choose_shape(c, p, vectors);
    const conv_result r = result_of(c, conv, y);
    const size_t fit = 2 * (size_t)c->device->multiprocessors / tiles_of(s, p);
    const int most = !r.vectors || p.all < LEAST_STEPS ? 1 : p.all / LEAST_STEPS;
    int slices = fit < 1 ? 1 : fit < (size_t)most ? (int)fit : most;
    p.steps = (p.all + slices - 1) / slices;
    slices = (p.all + p.steps - 1) / p.steps;
    conv_result sums = r;
    if (slices > 1) {
        sums = {};
        sums.y = c->working, sums.stride = conv->out, sums.f32 = sums.vectors = 1;
    }
    cuda_launch_early(c, s->kernel,
                      dim3(cuda_blocks((size_t)p.pixels, (size_t)s->rows),
                           cuda_blocks((size_t)p.out, (size_t)s->columns), (unsigned)slices),
                      THREADS, stages_bytes(s), p, sums, x, conv->product->weight);
    if (slices > 1)
        cuda_launch_early(c, add_slices, cuda_blocks((size_t)p.pixels * (size_t)(conv->out / 4), THREADS), THREADS, 0,
                          p, r, (const float *)c->working, slices, cuda_divide_by(conv->out / 4));
}

mar_status cuda_conv_plan(kern_queue *k, const kern_conv *conv, int images, int height, int width, mar_err *err)
{
    cuda_queue *c = cuda_of(k);
    if (is_product(conv))
        return cuda_linear_plan(k, conv->product, product_of(conv, images, height, width).pixels, err);
    const CUcontext before = cuda_switch(c->device->context);
    const conv_shape *const s = shapes_of(c);
    cudaError_t error = cudaSuccess;
    for (int i = 0; error == cudaSuccess && i < SHAPES; i++)
        error =
            cudaFuncSetAttribute(s[i].kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)stages_bytes(&s[i]));
    (void)cuda_switch(before);
    const mar_status status = cuda_status(error, "shared memory for a convolution", err);
    return status == MAR_OK ? cuda_working_memory(c, err) : status;
}

void cuda_conv(kern_queue *k, const kern_conv *conv, const act *x, int images, int height, int width, void *y)
{
    cuda_queue *c = cuda_of(k);
    const conv_product p = product_of(conv, images, height, width);
    if (p.pixels == 0) return;
    if (is_product(conv))
        cuda_linear(k, conv->product, x, p.pixels, y);
    else if (c->working)
        multiply_tiles(c, conv, x, p, y);
    else
        cuda_fail(c, MAR_EBACKEND, "convolution of %dx%d pixels without a plan", height, width);
}
