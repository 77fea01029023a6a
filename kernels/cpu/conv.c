/* Convolutions as implicit matrix products (gemm/gemm.h): [pixels][taps * in] times the weights, whose left side is
 * never stored. A row of a result's window is contiguous in x. So it is one part of a product's row, and only taps
 * inside the image are multiplied: results whose windows have the same taps inside are multiplied together. The rows of
 * results of all images are divided into chunks whose input stays in L2. Each block of weights is used for a whole
 * chunk. A result's bits depend on its own inputs only.
 *
 * A 3x3 convolution of a nearest-neighbour upsampled image reads each input pixel more than once. An output pixel of a
 * given row and column parity depends on 2x2 different input pixels, with sums of weights. So it is four 2x2
 * convolutions of the small image, one a parity, with 4/9 of the arithmetic. A transposed convolution of stride two is
 * four convolutions as well, of a quarter of its taps each (kernels/doubling.h).
 *
 * Few output channels would leave most of a vector empty. Then the product's columns are the taps of each: it computes
 * an input pixel's terms, which are then added to the results around the pixel. */
#include "kernels/cpu/cpu.h"
#include "kernels/doubling.h"

#include <stdlib.h>

enum {
    CHUNK_BYTES = 384 << 10,      /* input read by a chunk: part of a common L2, the rest is for the weights */
    CHUNK_PIXELS = 8 * GEMM_ROWS, /* maximum rows of a product */
    FEW_OUT = 4,                  /* output channels that are computed from terms */
    TERM_COLS = 16,               /* a multiple of every vector's floats */
    TERM_LINES = 16 /* rows of results from terms: each chunk computes the terms of tap_h - 1 rows again */
};

struct kern_conv {
    gemm_type type;
    const gemm_kernel *kernel;
    int out, in, kernel_h, kernel_w, stride, pad_h, pad_w, pad_end, flags, y_stride; /* of the spec */
    int parities, tap_h, tap_w; /* products a pixel of x has results of: 4 if it doubles, or 1; and their windows */
    int step;                   /* pixels of x from a product's result to the next: stride, or 1 if it doubles */
    int size;                   /* bytes of an element of x */
    int plain;                  /* 1: a result's inputs are a pixel, so x is the product's rows */
    int terms;                  /* 1: results are sums of terms */
    int gathers;                /* 1: a pixel's inputs are gathered into one part */
    int row;                    /* elements of a pixel's inputs, padded to whole words */
    int words;                  /* of a tap, or of gathered inputs */
    int pixels;                 /* maximum pixels of a chunk, if it has several rows of results */
    int blocks;                 /* of each parity */
    size_t block_bytes;
    char *block; /* [parities][blocks] of block_bytes; the columns of terms: [out][taps] */
    float *bias; /* [blocks][GEMM_COLS] */
};

void cpu_conv_spec(const kern_conv *c, kern_conv_spec *spec)
{
    *spec = (kern_conv_spec){.out = c->out,
                             .in = c->in,
                             .kernel_h = c->kernel_h,
                             .kernel_w = c->kernel_w,
                             .stride = c->stride,
                             .pad_h = c->pad_h,
                             .pad_w = c->pad_w,
                             .pad_end = c->pad_end,
                             .flags = c->flags,
                             .y_stride = c->y_stride};
}

/* --- weights -------------------------------------------------------------------------------------------------------
 */

/* Writes the weights of one output channel of a parity to row[tap][in]. */
static void conv_lay_out(const kern_conv_spec *spec, const kern_conv *c, int parity, int out, float *row)
{
    const int taps = c->tap_h * c->tap_w;
    for (int i = 0; i < c->in; i++) {
        const float *w = spec->weight + ((size_t)out * (size_t)c->in + (size_t)i) * (size_t)taps;
        float merged[4];
        if (c->parities == 4) {
            kern_conv_parity(spec, parity, out, i, merged);
            w = merged;
        }
        for (int tap = 0; tap < taps; tap++) row[tap * c->in + i] = w[tap];
    }
}

/* Returns the words of a block. */
static int words_of(const kern_conv *c)
{
    return (int)(c->block_bytes / (4 * GEMM_COLS));
}

static mar_status conv_pack(const cpu_device *d, kern_conv *c, const kern_conv_spec *spec, mar_err *err)
{
    const size_t blocks = (size_t)c->blocks, bytes = (size_t)c->parities * blocks * c->block_bytes;
    const size_t row = (size_t)c->row;
    const int words = words_of(c), terms = c->terms ? c->tap_h * c->tap_w : 1;
    mar_status status = cpu_pages(d, bytes, "a convolution's weights", (void **)&c->block, err);
    if (status == MAR_OK) status = cpu_zeros(d, blocks * GEMM_COLS, &c->bias, err);
    if (status != MAR_OK) return status;
    float *rows = malloc(row * GEMM_COLS * sizeof *rows);
    if (!rows) return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes of a convolution's weights", bytes);
    char *block = c->block;
    for (int parity = 0; parity < c->parities; parity++)
        for (int first = 0; first < c->out; first += GEMM_COLS, block += c->block_bytes) {
            const int cols = cpu_lesser(c->out - first, GEMM_COLS);
            memset(rows, 0, row * GEMM_COLS * sizeof *rows);
            for (int o = 0; o < cols; o++) conv_lay_out(spec, c, parity, first + o, rows + (size_t)o * row);
            gemm_pack(c->kernel, c->type, rows, cols * terms, c->row / terms, words, block);
        }
    if (spec->bias) memcpy(c->bias, spec->bias, (size_t)c->out * sizeof *c->bias);
    free(rows);
    return MAR_OK;
}

mar_status cpu_conv_create(kern_queue *k, const kern_conv_spec *spec, kern_conv **out, mar_err *err)
{
    *out = NULL;
    const cpu_device *d = cpu_of(k)->d;
    const int doubles = kern_conv_doubles(spec->flags), step = doubles ? 1 : spec->stride,
              tap_h = kern_conv_window(spec->flags, spec->kernel_h),
              tap_w = kern_conv_window(spec->flags, spec->kernel_w), inputs = tap_h * tap_w * spec->in;
    kern_conv *c = calloc(1, sizeof *c);
    if (!c) return err_set(err, MAR_ENOMEM, "out of memory");
    *c = (kern_conv){.type = d->bf16 ? GEMM_BF16 : GEMM_F32,
                     .out = spec->out,
                     .in = spec->in,
                     .kernel_h = spec->kernel_h,
                     .kernel_w = spec->kernel_w,
                     .stride = spec->stride,
                     .pad_h = spec->pad_h,
                     .pad_w = spec->pad_w,
                     .pad_end = spec->pad_end,
                     .flags = spec->flags,
                     .y_stride = spec->y_stride ? spec->y_stride : spec->out,
                     .parities = doubles ? 4 : 1,
                     .tap_h = tap_h,
                     .tap_w = tap_w,
                     .step = step,
                     .size = d->bf16 ? 2 : 4,
                     .row = d->bf16 ? (inputs + 1) / 2 * 2 : inputs,
                     .blocks = cpu_divide_up(spec->out, GEMM_COLS)};
    c->kernel = d->gemm[c->type];
    const int whole = !d->bf16 || spec->in % 2 == 0; /* 1: a pixel fills whole words */
    c->plain = c->row == spec->in && step == 1 && spec->pad_h == 0 && spec->pad_w == 0;
    c->terms = whole && !c->plain && !doubles && spec->out <= FEW_OUT && tap_h * tap_w * spec->out <= GEMM_COLS &&
               spec->stride == 1 && (spec->flags & (KERN_OUT_F32 | KERN_OUT_ADD | KERN_RELU)) == KERN_OUT_F32;
    c->gathers = !c->plain && !c->terms && (!c->kernel->takes_parts || !whole);
    c->words = gemm_words(c->type, c->gathers ? c->row : c->in, 1);
    c->block_bytes = gemm_block_bytes(c->type, gemm_words(c->type, c->terms ? c->in : c->row, c->kernel->step));
    const int fit = CHUNK_BYTES / (c->in * c->size * step * step) / GEMM_ROWS * GEMM_ROWS;
    c->pixels = fit < GEMM_ROWS ? GEMM_ROWS : cpu_lesser(fit, CHUNK_PIXELS);
    const mar_status status = conv_pack(d, c, spec, err);
    if (status != MAR_OK) {
        cpu_conv_free(k->device, c);
        return status;
    }
    *out = c;
    return MAR_OK;
}

void cpu_conv_free(kern_device *d, kern_conv *c)
{
    if (!c) return;
    cpu_pages_free((const cpu_device *)d, c->block);
    cpu_pages_free((const cpu_device *)d, c->bias);
    free(c);
}

/* --- a call --------------------------------------------------------------------------------------------------------
 */

/* Returns the terms of a pixel, [out][taps] and zeros: their number fills vectors. */
static int term_columns(const kern_conv *c)
{
    return cpu_divide_up(c->out * c->tap_h * c->tap_w, TERM_COLS) * TERM_COLS;
}

/* Returns the bytes of a thread's buffer: gathered inputs of a chunk, or terms [tap_h][width][term_columns]. */
static size_t conv_work_bytes(const kern_conv *c, int width)
{
    if (c->gathers) return (size_t)c->pixels * (size_t)c->row * (size_t)c->size;
    if (c->terms) return (size_t)c->tap_h * (size_t)width * (size_t)term_columns(c) * sizeof(float);
    return 1; /* not 0, so that a queue without a plan fails */
}

mar_status cpu_conv_plan(kern_queue *k, const kern_conv *c, int images, int height, int width, mar_err *err)
{
    (void)images, (void)height; /* any */
    return cpu_work_room(cpu_of(k), conv_work_bytes(c, width), err);
}

typedef struct {
    cpu_queue *q;
    const kern_conv *c;
    const char *x;
    char *y;
    int height, width;  /* of x */
    int rows, columns;  /* of a parity's results in an image */
    int lines;          /* rows of results in all images; pixels, if their inputs are equally spaced */
    int chunks, groups; /* parts of the lines, parts of the weight blocks */
} conv_call;

/* Results from .. to-1 along an axis, whose taps first .. last-1 are inside the image. Near an end of the image it is
 * one result. */
typedef struct {
    int from, to, first, last;
    int at; /* place of tap 0 of result `from` */
} span;

/* Returns the span that begins at result `from`, of `results`, for an image of `size` pixels. The padding of an end is
 * less than taps, so every result has taps inside. */
static span span_at(int from, int results, int size, int taps, int stride, int pad)
{
    const int at = from * stride - pad;
    span s = {from, from + 1, at < 0 ? -at : 0, cpu_lesser(taps, size - at), at};
    if (s.first == 0 && s.last == taps) s.to = cpu_lesser((size + pad - taps) / stride + 1, results);
    return s;
}

/* Returns the pixels in front of a result's own that its window begins at; odd: the parity of its row or column. */
static int pad_of(const kern_conv *c, int odd, int taps, int pad)
{
    return c->parities == 4 ? (taps == 2 && !odd) : pad;
}

/* Returns the span of rows, or of columns, that begins at result `from`. */
static span rows_at(const conv_call *call, int parity, int from)
{
    const kern_conv *c = call->c;
    return span_at(from, call->rows, call->height, c->tap_h, c->step, pad_of(c, parity / 2, c->tap_h, c->pad_h));
}

static span columns_at(const conv_call *call, int parity, int from)
{
    const kern_conv *c = call->c;
    return span_at(from, call->columns, call->width, c->tap_w, c->step, pad_of(c, parity % 2, c->tap_w, c->pad_w));
}

/* Returns the pixel of x at a row and column of an image. */
static const char *x_at(const conv_call *call, int image, int row, int column)
{
    const size_t pixel = ((size_t)image * (size_t)call->height + (size_t)row) * (size_t)call->width + (size_t)column;
    return call->x + pixel * (size_t)(call->c->in * call->c->size);
}

/* Gathers the inputs of a result; those outside the image are 0. */
static void conv_gather(const conv_call *call, int parity, int pixel, char *copy)
{
    const kern_conv *c = call->c;
    const size_t bytes = (size_t)(c->in * c->size);
    const int row = pixel / call->columns;
    const span v = rows_at(call, parity, row % call->rows), h = columns_at(call, parity, pixel % call->columns);
    memset(copy, 0, (size_t)c->row * (size_t)c->size);
    for (int i = v.first; i < v.last; i++)
        memcpy(copy + (size_t)(i * c->tap_w + h.first) * bytes, x_at(call, row / call->rows, v.at + i, h.at + h.first),
               (size_t)(h.last - h.first) * bytes);
}

/* A part of the results that a block of weights is multiplied for: lines first .. last-1 of a parity. */
typedef struct {
    int parity, first, last;
    const char *block;
    const char *rows; /* inputs of the first line's pixels, equally spaced, or NULL */
    gemm_out out;     /* y is pixel 0 of the parity's, the block's first column */
} conv_part;

/* Returns the offset in y of a result; rows are those of all images. */
static ptrdiff_t offset_of(const conv_call *call, int parity, int row, int column)
{
    const int scale = call->c->parities == 4 ? 2 : 1;
    const ptrdiff_t at = (ptrdiff_t)(scale * row + parity / 2) * scale * call->columns + scale * column + parity % 2;
    return at * call->c->y_stride;
}

/* Multiplies lines of one pixel each, whose inputs are equally spaced. */
static void multiply_pixels(const conv_call *call, const conv_part *p)
{
    const kern_conv *c = call->c;
    const gemm_rows x = {.base = p->rows,
                         .stride = (size_t)c->row * (size_t)c->size,
                         .parts = 1,
                         .words = c->words,
                         .w_words = words_of(c)};
    ptrdiff_t at[CHUNK_PIXELS];
    gemm_out out = p->out;
    if (c->parities == 4) { /* results are every other pixel */
        for (int pixel = p->first; pixel < p->last; pixel++)
            at[pixel - p->first] = offset_of(call, p->parity, pixel / call->columns, pixel % call->columns);
        out.y_at = at;
    } else {
        out.y = (char *)out.y + (size_t)p->first * out.y_stride * (out.y_bf16 ? 2 : 4);
    }
    c->kernel->product(&x, p->last - p->first, p->block, NULL, &out);
}

/* Multiplies the results of lines that are in a span of rows and a span of columns. */
static void multiply_spans(const conv_call *call, const conv_part *p, const span *v, const span *h)
{
    const kern_conv *c = call->c;
    const size_t pixel_bytes = (size_t)(c->in * c->size), x_stride = (size_t)c->step * pixel_bytes;
    const ptrdiff_t y_stride = (c->parities == 4 ? 2 : 1) * c->y_stride;
    int row[CHUNK_PIXELS], rows = 0;
    for (int line = p->first; line < p->last; line++)
        if (line % call->rows >= v->from && line % call->rows < v->to) row[rows++] = line;
    const int width = h->to - h->from, count = rows * width, tiles = cpu_divide_up(count, CHUNK_PIXELS);
    for (int i = 0; i < tiles; i++) {
        const int from = parallel_part(count, tiles, i), n = parallel_part(count, tiles, i + 1) - from;
        const char *pixel[CHUNK_PIXELS];
        ptrdiff_t at[CHUNK_PIXELS];
        for (int r = 0, line = from / width, column = from % width; r < n; line++, column = 0) {
            const int image = row[line] / call->rows, down = row[line] % call->rows - v->from;
            const char *x = x_at(call, image, v->at + down * c->step + v->first, h->at + h->first);
            const ptrdiff_t y = offset_of(call, p->parity, row[line], h->from);
            for (; column < width && r < n; r++, column++) {
                pixel[r] = x + (size_t)column * x_stride;
                at[r] = y + column * y_stride;
            }
        }
        const gemm_rows x = {.row = pixel,
                             .parts = v->last - v->first,
                             .words = (h->last - h->first) * c->words,
                             .x_step = (size_t)call->width * pixel_bytes,
                             .w_words = words_of(c),
                             .w_first = (v->first * c->tap_w + h->first) * c->words,
                             .w_step = c->tap_w * c->words};
        gemm_out out = p->out;
        out.y_at = at;
        c->kernel->product(&x, n, p->block, NULL, &out);
    }
}

/* Multiplies lines that are rows of results, span by span. */
static void multiply_rows(const conv_call *call, const conv_part *p)
{
    for (int row = 0; row < call->rows;) {
        const span v = rows_at(call, p->parity, row);
        for (int column = 0; column < call->columns;) {
            const span h = columns_at(call, p->parity, column);
            multiply_spans(call, p, &v, &h);
            column = h.to;
        }
        row = v.to;
    }
}

/* Computes item i: group i % groups of the weight blocks, for chunk i / groups % chunks of parity i / groups / chunks.
 */
static void run_item(const conv_call *call, int item, int thread)
{
    const kern_conv *c = call->c;
    const int group = item % call->groups, chunk = item / call->groups % call->chunks;
    const int y_f32 = c->size == 4 || c->flags & KERN_OUT_F32;
    const size_t row_bytes = (size_t)c->row * (size_t)c->size;
    conv_part p = {.parity = item / call->groups / call->chunks,
                   .first = parallel_part(call->lines, call->chunks, chunk),
                   .last = parallel_part(call->lines, call->chunks, chunk + 1),
                   .out = {.relu = (c->flags & KERN_RELU) != 0,
                           .y_stride = (size_t)c->y_stride,
                           .y_bf16 = !y_f32,
                           .add = (c->flags & KERN_OUT_ADD) != 0}};
    if (c->plain) p.rows = call->x + (size_t)p.first * row_bytes;
    if (c->gathers) p.rows = call->q->work[thread];
    for (int i = p.first; i < p.last && c->gathers; i++)
        conv_gather(call, p.parity, i, (char *)call->q->work[thread] + (size_t)(i - p.first) * row_bytes);
    const int end = parallel_part(c->blocks, call->groups, group + 1);
    for (int b = parallel_part(c->blocks, call->groups, group); b < end; b++) {
        p.block = c->block + ((size_t)p.parity * (size_t)c->blocks + (size_t)b) * c->block_bytes;
        p.out.bias = c->bias + (size_t)b * GEMM_COLS;
        p.out.cols = cpu_lesser(GEMM_COLS, c->out - b * GEMM_COLS);
        p.out.y = call->y + (size_t)b * GEMM_COLS * (y_f32 ? 4 : 2);
        if (p.rows)
            multiply_pixels(call, &p);
        else
            multiply_rows(call, &p);
    }
    if (c->kernel->end) c->kernel->end();
}

static void items_body(void *arg, int first, int last, int thread)
{
    for (int i = first; i < last; i++) run_item(arg, i, thread);
}

/* --- results from terms --------------------------------------------------------------------------------------------
 */

/* Adds up the results of a line from the terms of the rows of x; row r is in place r % tap_h. */
static void add_terms(const conv_call *call, int line, const span *v, const float *terms)
{
    const kern_conv *c = call->c;
    const int taps = c->tap_h * c->tap_w, cols = term_columns(c);
    float *y = (float *)(void *)call->y + (size_t)line * (size_t)call->columns * (size_t)c->y_stride;
    for (int column = 0; column < call->columns; column++, y += c->y_stride) {
        const span h = columns_at(call, 0, column);
        for (int o = 0; o < c->out; o++) {
            float sum = c->bias[o];
            for (int i = v->first; i < v->last; i++) {
                const size_t pixel = (size_t)((v->at + i) % c->tap_h * call->width + h.at + h.first);
                const float *term = terms + pixel * (size_t)cols + o * taps + i * c->tap_w + h.first;
                for (int j = h.first; j < h.last; j++, term += cols + 1) sum += *term;
            }
            y[o] = sum;
        }
    }
}

/* Computes a chunk of the lines. The terms of tap_h rows of x are kept; row `done` is the next. */
static void run_terms(const conv_call *call, int chunk, int thread)
{
    const kern_conv *c = call->c;
    const int first = parallel_part(call->lines, call->chunks, chunk),
              last = parallel_part(call->lines, call->chunks, chunk + 1);
    const int cols = term_columns(c);
    float *terms = call->q->work[thread];
    for (int line = first, done = 0; line < last; line++) {
        const span v = rows_at(call, 0, line % call->rows);
        if (line == first || line % call->rows == 0) done = v.at + v.first;
        for (; done < v.at + v.last; done++) {
            const gemm_rows x = {.base = x_at(call, line / call->rows, done, 0),
                                 .stride = (size_t)(c->in * c->size),
                                 .parts = 1,
                                 .words = c->words,
                                 .w_words = words_of(c)};
            const gemm_out out = {.bias = gemm_no_bias,
                                  .cols = cols,
                                  .y = terms + (size_t)(done % c->tap_h * call->width) * (size_t)cols,
                                  .y_stride = (size_t)cols};
            c->kernel->product(&x, call->width, c->block, c->block, &out);
        }
        add_terms(call, line, &v, terms);
    }
    if (c->kernel->end) c->kernel->end();
}

static void terms_body(void *arg, int first, int last, int thread)
{
    for (int i = first; i < last; i++) run_terms(arg, i, thread);
}

void cpu_conv(kern_queue *k, const kern_conv *c, const act *x, int images, int height, int width, void *y)
{
    cpu_queue *q = cpu_of(k);
    const int doubles = c->parities == 4, threads = q->d->threads;
    conv_call call = {.q = q,
                      .c = c,
                      .x = (const char *)x,
                      .y = y,
                      .height = height,
                      .width = width,
                      .rows = doubles ? height : (height + 2 * c->pad_h + c->pad_end - c->kernel_h) / c->stride + 1,
                      .columns = doubles ? width : (width + 2 * c->pad_w + c->pad_end - c->kernel_w) / c->stride + 1};
    if (!cpu_planned(q, conv_work_bytes(c, width) <= q->work_bytes, "convolution of %dx%d pixels", height, width))
        return;
    if (!kern_live(k) || images <= 0 || call.rows <= 0 || call.columns <= 0) return;
    const int pixels = images * call.rows * call.columns;
    const double work = (double)c->parities * pixels * c->row * c->out;
    const int line = c->plain || c->gathers ? 1 : call.columns;
    call.lines = pixels / line;
    if (c->terms) {
        call.chunks = cpu_lesser(4 * threads, cpu_divide_up(call.lines, TERM_LINES));
        cpu_for(q, call.chunks, work, terms_body, &call);
        return;
    }
    call.chunks = cpu_divide_up(call.lines, c->pixels > line ? c->pixels / line : 1);
    call.groups = cpu_lesser(c->blocks, cpu_divide_up(4 * threads, c->parities * call.chunks)); /* for every thread */
    cpu_for(q, c->parities * call.chunks * call.groups, work, items_body, &call);
}
