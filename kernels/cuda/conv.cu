/* Convolutions as matrix products (im2col). Input patches of a band of output pixels are gathered into rows. cuBLASLt
 * multiplies them, with bias, sum and ReLU fused. It writes rows y_stride elements apart, so several results can share
 * one array's channels. A 1x1 convolution needs no gathering. Bands run across the images of a batch, so that small
 * images fill large products.
 *
 * As on the CPU (kernels/cpu/conv.c), a 3x3 convolution of an upsampled image is one 2x2 convolution of the small
 * image. Its result is one row and column larger. A pixel shuffle distributes its four groups of output channels to the
 * row and column parities. A transposed convolution is done likewise, with a 2x2 or a 1x1 one (kernels/doubling.h).
 *
 * Floor, per output pixel, with t taps (9 of a 3x3 kernel) and c channels in and out: 2 t c^2 flop. The patches are 2 t
 * c bytes in bf16, written and read; at the band size below that happens in L2. */
#include "kernels/cuda/cuda.h"
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

mar_status cuda_conv_plan(kern_queue *k, const kern_conv *conv, int images, int height, int width, mar_err *err)
{
    cuda_queue *c = cuda_of(k);
    mar_status status = is_product(conv) ? MAR_OK : cuda_patches(c, err);
    if (status != MAR_OK) return status;
    const conv_bands p = divide(c, conv, images, height, width);
    if (p.pixels == 0) return MAR_OK;
    if (!p.bands)
        return err_set(err, MAR_EBACKEND, "convolution of %d channels: a patch has more than %zu bytes", conv->in,
                       c->patches_bytes);
    status = cuda_linear_plan(k, conv->product, p.band, err);
    const int rest = p.pixels - (p.bands - 1) * p.band;
    return status == MAR_OK && rest != p.band ? cuda_linear_plan(k, conv->product, rest, err) : status;
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

/* Distributes channel groups to pixels: group (py, px) of pixel (i, j) of a 2x2 convolution is pixel
 * (2i - py, 2j - px) of its image of y, where that exists; of a 1x1 convolution (2i + py, 2j + px). A pixel of y has n
 * channels. A warp takes a pixel. */
__global__ static void __launch_bounds__(32 * WARPS)
    pixel_shuffle(const float *from, conv_pixels p, int n, int first, int count, float *y)
{
    const int i = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    if (i >= count) return;
    const int image = cuda_quotient(first + i, p.image), pixel = first + i - image * p.image.by;
    const int row = cuda_quotient(pixel, p.columns), column = pixel - row * p.columns.by;
    const int height = 2 * p.height, width = 2 * p.width, side = p.taps == 1 ? 1 : -1;
    y += (size_t)image * (size_t)height * (size_t)width * (size_t)n;
    from += (size_t)i * 4 * (size_t)n;
    for (int parity = 0; parity < 4; parity++, from += n) {
        const int r = 2 * row + side * (parity / 2), s = 2 * column + side * (parity % 2);
        if (r < 0 || s < 0 || r >= height || s >= width) continue;
        float *to = y + ((size_t)r * (size_t)width + (size_t)s) * (size_t)n;
        for (int j = (int)threadIdx.x % 32; j < n; j += 32) to[j] = from[j];
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

void cuda_conv(kern_queue *k, const kern_conv *conv, const act *x, int images, int height, int width, void *y)
{
    cuda_queue *c = cuda_of(k);
    const conv_bands p = divide(c, conv, images, height, width);
    const int doubles = kern_conv_doubles(conv->flags);
    const size_t y_size = conv->flags & KERN_OUT_F32 ? sizeof(float) : k->device->act_size;
    if (p.pixels == 0) return;
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
