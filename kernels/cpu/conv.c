/* Convolutions. An image is divided into bands of rows; one thread computes a band in one oneDNN call. The division
 * depends on the image only, so the bits do not depend on the number of threads.
 *
 * A 3x3 convolution of a nearest-neighbour upsampled image reads each input pixel more than once. An output pixel of a
 * given row and column parity depends on 2x2 different input pixels, with sums of weights. So it is one 2x2 convolution
 * with 4*out channels on the small image, with 4/9 of the arithmetic. A pixel shuffle then distributes its four groups
 * of channels to the four parities. */
#include "kernels/cpu/cpu.h"

#include <stdatomic.h>
#include <stdlib.h>

/* Shared by bands of one height and padding; only the bands at the image's edges differ. */
typedef struct {
    int height, pad_top, pad_bottom; /* of the band's input */
    dnn_primitive *conv;
    const dnn_packed *weight; /* kern_conv.weight or `own` */
    dnn_packed *own;          /* weights in another layout, if this size needs one */
} conv_part;

typedef struct conv_plan {
    int height, width; /* of x */
    int rows, columns; /* of the primitive's output: as y, or one more when upsampling */
    int bands;         /* number of bands */
    int band_rows;     /* rows of a band; the last may have fewer */
    int parts;
    conv_part *part; /* [parts] */
    int *part_of;    /* [bands] */
    struct conv_plan *next;
} conv_plan;

/* Plans are only added, at the head of their list and under the device's lock. So the list can be read without it. */
struct kern_conv {
    int out, in, kernel_h, kernel_w, stride, pad_h, pad_w; /* of the primitive; 4*channels and 2x2 when upsampling */
    int flags, y_stride;
    conv_implicit_gemm *implicit_gemm; /* our own kernel, or NULL: oneDNN computes it */
    float *plain;                      /* [out][in][kernel_h][kernel_w], until the first plan packs it */
    dnn_packed *weight;                /* packed by the first plan */
    float *bias;                       /* [out] */
    conv_plan *_Atomic plans;
};

/* Returns 1 if y's pixels are further apart than their channels. oneDNN is slow on strided results, so a band is then
 * computed elsewhere and copied. */
static int is_strided(const kern_conv *c)
{
    return c->y_stride != c->out;
}

static int upsamples(const kern_conv *c)
{
    return (c->flags & KERN_UPSAMPLE) != 0;
}

void cpu_conv_spec(const kern_conv *c, kern_conv_spec *spec)
{
    const int upsample = upsamples(c);
    *spec = (kern_conv_spec){.out = upsample ? c->out / 4 : c->out,
                             .in = c->in,
                             .kernel_h = upsample ? 3 : c->kernel_h,
                             .kernel_w = upsample ? 3 : c->kernel_w,
                             .stride = c->stride,
                             .pad_h = c->pad_h,
                             .pad_w = c->pad_w,
                             .flags = c->flags,
                             .y_stride = upsample ? 0 : c->y_stride};
}

/* Merges w3 [3][3] of one (output, input) pair into w2[parity 2*py+px][2*ky+kx], `stride` floats between parities. Tap
 * ky of parity py sums the 3x3 taps that fall on its input row: {0}, {1,2} for even rows, {0,1}, {2} for odd. */
static void merge_taps(const float *w3, float *w2, size_t stride)
{
    static const int tap_of[2][3] = {{0, 1, 1}, {0, 0, 1}};
    for (int parity = 0; parity < 4; parity++) {
        float *w = w2 + (size_t)parity * stride;
        memset(w, 0, 4 * sizeof *w);
        for (int r = 0; r < 3; r++)
            for (int s = 0; s < 3; s++) w[2 * tap_of[parity / 2][r] + tap_of[parity % 2][s]] += w3[3 * r + s];
    }
}

static void copy_weights(kern_conv *c, const kern_conv_spec *spec)
{
    const size_t n = (size_t)spec->out, pairs = n * (size_t)spec->in;
    if (spec->flags & KERN_UPSAMPLE) {
        for (size_t i = 0; i < pairs; i++) merge_taps(spec->weight + 9 * i, c->plain + 4 * i, 4 * pairs);
        for (size_t parity = 0; parity < 4; parity++) memcpy(c->bias + parity * n, spec->bias, n * sizeof *c->bias);
    } else {
        memcpy(c->plain, spec->weight, pairs * (size_t)(spec->kernel_h * spec->kernel_w) * sizeof *c->plain);
        memcpy(c->bias, spec->bias, n * sizeof *c->bias);
    }
}

/* Copies weights and bias until the first plan packs the weights. */
static mar_status keep_weights(kern_conv *c, const kern_conv_spec *spec, mar_err *err)
{
    const size_t weights = (size_t)c->out * (size_t)c->in * (size_t)(c->kernel_h * c->kernel_w);
    c->plain = malloc(weights * sizeof *c->plain);
    c->bias = malloc((size_t)c->out * sizeof *c->bias);
    if (!c->plain || !c->bias) return err_set(err, MAR_ENOMEM, "out of memory: %zu weights of a convolution", weights);
    copy_weights(c, spec);
    return MAR_OK;
}

mar_status cpu_conv_create(kern_queue *k, const kern_conv_spec *spec, kern_conv **out, mar_err *err)
{
    *out = NULL;
    const int upsample = (spec->flags & KERN_UPSAMPLE) != 0;
    kern_conv *c = calloc(1, sizeof *c);
    if (!c) return err_set(err, MAR_ENOMEM, "out of memory");
    c->out = upsample ? 4 * spec->out : spec->out;
    c->in = spec->in;
    c->kernel_h = upsample ? 2 : spec->kernel_h;
    c->kernel_w = upsample ? 2 : spec->kernel_w;
    c->stride = spec->stride;
    c->pad_h = spec->pad_h;
    c->pad_w = spec->pad_w;
    c->flags = spec->flags;
    c->y_stride = spec->y_stride ? spec->y_stride : c->out;
    const cpu_device *d = cpu_of(k)->d;
    const int ours = d->direct && !(c->flags & (KERN_UPSAMPLE | KERN_OUT_F32));
    const mar_status status =
        ours ? conv_implicit_gemm_create(d, spec, &c->implicit_gemm, err) : keep_weights(c, spec, err);
    if (status != MAR_OK) {
        cpu_conv_free(k->device, c);
        return status;
    }
    *out = c;
    return MAR_OK;
}

static void plan_free(conv_plan *p)
{
    if (!p) return;
    for (int i = 0; i < p->parts; i++) {
        dnn_primitive_free(p->part[i].conv);
        dnn_packed_free(p->part[i].own);
    }
    free(p->part);
    free(p->part_of);
    free(p);
}

void cpu_conv_free(kern_device *d, kern_conv *c)
{
    (void)d;
    if (!c) return;
    for (conv_plan *p = atomic_load_explicit(&c->plans, memory_order_relaxed), *next; p; p = next) {
        next = p->next;
        plan_free(p);
    }
    conv_implicit_gemm_free(c->implicit_gemm);
    dnn_packed_free(c->weight);
    free(c->plain);
    free(c->bias);
    free(c);
}

static const conv_plan *find_plan(const kern_conv *c, int height, int width)
{
    const conv_plan *p = atomic_load_explicit(&c->plans, memory_order_acquire);
    while (p && (p->height != height || p->width != width)) p = p->next;
    return p;
}

/* Divides the rows into bands. A band has at least 32 pixels, or rereading the weights would dominate. A tall image has
 * 64 bands. When upsampling, bands are as small as possible: a band has four times the channels and should stay in L2
 * until the shuffle. */
static void divide(conv_plan *p, int upsample)
{
    int rows = cpu_divide_up(32, p->width);
    if (!upsample && rows < p->rows / 64) rows = p->rows / 64;
    p->bands = cpu_divide_up(p->rows, rows);
    p->band_rows = cpu_divide_up(p->rows, p->bands);
}

static int band_height(const conv_plan *p, int band)
{
    return band + 1 < p->bands ? p->band_rows : p->rows - band * p->band_rows;
}

static mar_status part_create(const cpu_device *d, kern_conv *c, const conv_plan *p, conv_part *part, mar_err *err)
{
    const dnn_conv_spec spec = {
        .out = c->out,
        .in = c->in,
        .kernel_h = c->kernel_h,
        .kernel_w = c->kernel_w,
        .stride = c->stride,
        .height = part->height,
        .width = p->width,
        .pad_top = part->pad_top,
        .pad_bottom = part->pad_bottom,
        .pad_side = c->pad_w,
        .bf16 = d->bf16,
        .y_f32 = (c->flags & KERN_OUT_F32) != 0,
        .accumulate = (c->flags & KERN_OUT_ADD) && !is_strided(c),
    };
    mar_status status = dnn_conv_create(d->dnn, &spec, c->weight, &part->conv, err);
    if (status != MAR_OK) return status;
    if (!c->weight) {
        status = dnn_conv_pack(d->dnn, part->conv, &spec, c->plain, NULL, &c->weight, err);
        if (status != MAR_OK) return status;
        free(c->plain);
        c->plain = NULL;
    }
    part->weight = c->weight;
    if (!dnn_conv_takes(part->conv, c->weight)) {
        status = dnn_conv_pack(d->dnn, part->conv, &spec, NULL, c->weight, &part->own, err);
        part->weight = part->own;
    }
    return status;
}

/* Finds or makes the band's part. */
static mar_status add_part(const cpu_device *d, kern_conv *c, conv_plan *p, int band, mar_err *err)
{
    /* Input rows top .. end-1, possibly outside the image. */
    const int top = band * p->band_rows * c->stride - c->pad_h;
    const int end = top + (band_height(p, band) - 1) * c->stride + c->kernel_h;
    conv_part part = {.pad_top = top < 0 ? -top : 0, .pad_bottom = end > p->height ? end - p->height : 0};
    part.height = end - top - part.pad_top - part.pad_bottom;
    int i = 0;
    while (i < p->parts && (p->part[i].height != part.height || p->part[i].pad_top != part.pad_top ||
                            p->part[i].pad_bottom != part.pad_bottom))
        i++;
    p->part_of[band] = i;
    if (i < p->parts) return MAR_OK;
    p->part[p->parts++] = part;
    return part_create(d, c, p, &p->part[i], err);
}

static mar_status make_parts(const cpu_device *d, kern_conv *c, conv_plan *p, mar_err *err)
{
    p->part = calloc((size_t)p->bands, sizeof *p->part);
    p->part_of = calloc((size_t)p->bands, sizeof *p->part_of);
    if (!p->part || !p->part_of) return err_set(err, MAR_ENOMEM, "out of memory");
    /* A middle band first: most are like it, so the weights are packed in its layout. */
    mar_status status = add_part(d, c, p, p->bands / 2, err);
    for (int band = 0; status == MAR_OK && band < p->bands; band++) status = add_part(d, c, p, band, err);
    return status;
}

/* Makes the plan for an image's size if it is missing. The lock is held. */
static mar_status add_plan(const cpu_device *d, kern_conv *c, int height, int width, mar_err *err)
{
    if (find_plan(c, height, width)) return MAR_OK; /* another thread may have made it */
    conv_plan *p = calloc(1, sizeof *p);
    if (!p) return err_set(err, MAR_ENOMEM, "out of memory");
    p->height = height;
    p->width = width;
    p->rows = (height + 2 * c->pad_h - c->kernel_h) / c->stride + 1;
    p->columns = (width + 2 * c->pad_w - c->kernel_w) / c->stride + 1;
    divide(p, upsamples(c));
    const mar_status status = c->implicit_gemm ? MAR_OK : make_parts(d, c, p, err);
    if (status != MAR_OK) {
        plan_free(p);
        return status;
    }
    p->next = atomic_load_explicit(&c->plans, memory_order_relaxed);
    atomic_store_explicit(&c->plans, p, memory_order_release);
    return MAR_OK;
}

static size_t out_size(const cpu_queue *q, const kern_conv *c)
{
    return c->flags & KERN_OUT_F32 ? sizeof(float) : q->d->base.act_size;
}

/* Returns the bytes of a thread's buffer: a band, or 0 if bands are computed in y. */
static size_t work_bytes(const cpu_queue *q, const kern_conv *c, const conv_plan *p)
{
    if (c->implicit_gemm) return conv_implicit_gemm_bytes(c->implicit_gemm);
    if (!upsamples(c) && !is_strided(c)) return 0;
    return out_size(q, c) * (size_t)p->band_rows * (size_t)p->columns * (size_t)c->out;
}

mar_status cpu_conv_plan(kern_queue *k, const kern_conv *c, int images, int height, int width, mar_err *err)
{
    (void)images; /* any number */
    cpu_queue *q = cpu_of(k);
    mar_status status = MAR_OK;
    if (!find_plan(c, height, width)) {
        pthread_mutex_lock(&q->d->lock);
        status = add_plan(q->d, (kern_conv *)(uintptr_t)c, height, width, err);
        pthread_mutex_unlock(&q->d->lock);
    }
    if (status != MAR_OK) return status;
    const conv_plan *p = find_plan(c, height, width);
    for (int i = 0; status == MAR_OK && i < p->parts; i++) status = cpu_ready(q, p->part[i].conv, err);
    if (status == MAR_OK) status = cpu_grow(q, q->work, &q->work_bytes, work_bytes(q, c, p), err);
    return status;
}

/* Shuffles channels to pixels. Row i of the 2x2 convolution (of height+1 rows) has the even row 2i and the odd row 2i-1
 * of y, where they exist; columns likewise. */
static void pixel_shuffle(const kern_conv *c, const conv_plan *p, int first, int rows, const float *band, float *y)
{
    const size_t n = (size_t)c->out / 4, width = 2 * (size_t)p->width;
    for (int i = first; i < first + rows; i++)
        for (int py = 0; py < 2; py++) {
            if (i - py < 0 || i - py >= p->height) continue;
            float *row = y + (size_t)(2 * (i - py) + py) * width * n;
            const float *in = band + (size_t)(i - first) * (size_t)p->columns * 4 * n + 2 * (size_t)py * n;
            /* Column j has the odd column 2j-1 and the even column 2j. */
            memcpy(row, in, n * sizeof *row);
            for (size_t j = 1; j < (size_t)p->width; j++) {
                memcpy(row + (2 * j - 1) * n, in + (4 * j + 1) * n, n * sizeof *row);
                memcpy(row + 2 * j * n, in + 4 * j * n, n * sizeof *row);
            }
            memcpy(row + (width - 1) * n, in + (4 * (size_t)p->width + 1) * n, n * sizeof *row);
        }
}

/* Copies `pixels` of a band to their place in y, adds them, or writes their ReLU. oneDNN's own ReLU turns NaN into
 * 0. */
static void store_band(const cpu_queue *q, const kern_conv *c, size_t pixels, const char *band, char *y)
{
    const size_t size = out_size(q, c), n = (size_t)c->out, stride = (size_t)c->y_stride * size;
    for (size_t i = 0; i < pixels; i++, band += n * size, y += stride)
        if (c->flags & KERN_RELU)
            q->d->rows->relu(band, n, y, q->d->bf16);
        else if (c->flags & KERN_OUT_ADD)
            q->d->rows->add((float *)(void *)y, (float *)(void *)y, (const float *)(const void *)band, n);
        else
            memcpy(y, band, n * size);
}

typedef struct {
    cpu_queue *q;
    const kern_conv *c;
    const conv_plan *p;
    const char *x;
    char *y;
} conv_call;

/* Computes item i: band i % bands of image i / bands. */
static void run_band(const conv_call *call, int item, int thread)
{
    cpu_queue *q = call->q;
    const kern_conv *c = call->c;
    const conv_plan *p = call->p;
    const int band = item % p->bands, first = band * p->band_rows, rows = band_height(p, band);
    const int top = first * c->stride > c->pad_h ? first * c->stride - c->pad_h : 0;
    const size_t image = (size_t)(item / p->bands), width = (size_t)p->width, columns = (size_t)p->columns;
    const conv_part *part = &p->part[p->part_of[band]];
    const char *x = act_at(&q->d->base, call->x, (image * (size_t)p->height + (size_t)top) * width * (size_t)c->in);
    /* In y: an upsampled image, or the band's first pixel. */
    const size_t at = upsamples(c) ? image * (size_t)p->height * width * (size_t)c->out
                                   : (image * (size_t)p->rows + (size_t)first) * columns * (size_t)c->y_stride;
    char *y = call->y + at * out_size(q, c);
    void *out = upsamples(c) || is_strided(c) ? q->work[thread] : y;
    if (!cpu_ran(q, dnn_conv_run(part->conv, cpu_operands(q, part->conv, thread), x, part->weight, c->bias, out,
                                 q->scratch[thread])))
        return;
    if (upsamples(c))
        pixel_shuffle(c, p, first, rows, out, (float *)(void *)y);
    else if (is_strided(c) || c->flags & KERN_RELU)
        store_band(q, c, (size_t)rows * columns, out, y);
}

static void bands_body(void *arg, int first, int last, int thread)
{
    for (int band = first; band < last; band++) run_band(arg, band, thread);
}

/* Returns 1 if this queue, not just another one, has planned it. */
static int is_planned(const cpu_queue *q, const kern_conv *c, const conv_plan *p)
{
    for (int i = 0; i < p->parts; i++)
        if (!cpu_is_ready(q, p->part[i].conv)) return 0;
    return q->work_bytes >= work_bytes(q, c, p);
}

void cpu_conv(kern_queue *k, const kern_conv *c, const act *x, int images, int height, int width, void *y)
{
    const conv_plan *p = find_plan(c, height, width);
    if (!p || !is_planned(cpu_of(k), c, p)) {
        mar_err err = {0};
        kern_fail(k, err_set(&err, MAR_EBACKEND, "convolution of %dx%d pixels without a plan", height, width), &err);
    }
    if (!kern_live(k)) return;
    if (c->implicit_gemm) {
        conv_implicit_gemm_run(cpu_of(k), c->implicit_gemm, x, images, height, width, y);
        return;
    }
    conv_call call = {cpu_of(k), c, p, x, y};
    const double work = (double)p->rows * p->columns * c->kernel_h * c->kernel_w * c->in * c->out;
    cpu_for(cpu_of(k), images * p->bands, images * work, bands_body, &call);
}
