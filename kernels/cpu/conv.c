/* Convolutions as implicit matrix products (gemm/gemm.h): [pixels][taps * in] times the weights, whose left side is
 * never stored. The output pixels of all images form one sequence. It is divided into chunks whose input stays in L2,
 * and these into tiles. Each block of weights is used for a whole chunk. A result's bits depend on its own inputs only.
 *
 * A 3x3 convolution of a nearest-neighbour upsampled image reads each input pixel more than once. An output pixel of a
 * given row and column parity depends on 2x2 different input pixels, with sums of weights. So it is four 2x2
 * convolutions of the small image, one a parity, with 4/9 of the arithmetic. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>

enum {
    CHUNK_BYTES = 384 << 10, /* input read by a chunk: part of a common L2, the rest is for the weights */
    CHUNK_PIXELS = 8 * GEMM_ROWS,
    FEW_CHANNELS = 16 /* with fewer, a pixel's inputs are gathered first */
};

struct kern_conv {
    gemm_type type;
    const gemm_kernel *kernel;
    int out, in, kernel_h, kernel_w, stride, pad_h, pad_w, flags, y_stride; /* of the spec */
    int parities, tap_h, tap_w; /* products a pixel of x has results of: 4 when upsampling, or 1; and their windows */
    int size;                   /* bytes of an element of x */
    int plain;                  /* 1: a result's inputs are a pixel, so x is the product's rows */
    int gathers;                /* 1: a pixel's inputs are gathered into one part */
    int row;                    /* elements of a pixel's inputs, padded to whole words */
    int taps, words;            /* parts of a row, and words of each, as the product takes them */
    int pixels;                 /* maximum pixels of a chunk */
    int blocks;                 /* of each parity */
    size_t block_bytes;
    char *block; /* [parities][blocks] of block_bytes */
    float *bias; /* [blocks][GEMM_COLS] */
    char *zeros; /* input of a tap outside the image */
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
                             .flags = c->flags,
                             .y_stride = c->y_stride};
}

/* --- weights -------------------------------------------------------------------------------------------------------
 */

/* Adds the weights of one output channel, w[in][kernel_h][kernel_w], to row[tap][in] of a parity. Tap ky of parity py
 * sums the 3x3 taps that fall on its input row: {0}, {1,2} for even rows, {0,1}, {2} for odd. */
static void add_weights(const kern_conv *c, int parity, const float *w, float *row)
{
    static const int merged[2][3] = {{0, 1, 1}, {0, 0, 1}};
    const int upsamples = c->parities == 4;
    for (int i = 0; i < c->in; i++)
        for (int y = 0; y < c->kernel_h; y++)
            for (int x = 0; x < c->kernel_w; x++, w++) {
                const int tap_y = upsamples ? merged[parity / 2][y] : y, tap_x = upsamples ? merged[parity % 2][x] : x;
                row[(tap_y * c->tap_w + tap_x) * c->in + i] += *w;
            }
}

static mar_status pack(kern_conv *c, const kern_conv_spec *spec, mar_err *err)
{
    const size_t blocks = (size_t)c->blocks, bytes = (size_t)c->parities * blocks * c->block_bytes;
    const size_t weights = (size_t)(c->in * c->kernel_h * c->kernel_w), row = (size_t)c->row;
    const int words = (int)(c->block_bytes / (4 * GEMM_COLS));
    float *rows = malloc(row * GEMM_COLS * sizeof *rows);
    c->block = cpu_pages(bytes);
    c->bias = calloc(blocks * GEMM_COLS, sizeof *c->bias);
    c->zeros = calloc((size_t)c->in + 1, (size_t)c->size);
    if (!rows || !c->block || !c->bias || !c->zeros) {
        free(rows);
        return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes of a convolution's weights", bytes);
    }
    char *block = c->block;
    for (int parity = 0; parity < c->parities; parity++)
        for (int first = 0; first < c->out; first += GEMM_COLS, block += c->block_bytes) {
            const int cols = cpu_lesser(c->out - first, GEMM_COLS);
            memset(rows, 0, row * GEMM_COLS * sizeof *rows);
            for (int o = 0; o < cols; o++)
                add_weights(c, parity, spec->weight + (size_t)(first + o) * weights, rows + (size_t)o * row);
            gemm_pack(c->type, rows, cols, c->row, words, block);
        }
    memcpy(c->bias, spec->bias, (size_t)c->out * sizeof *c->bias);
    free(rows);
    return MAR_OK;
}

mar_status cpu_conv_create(kern_queue *k, const kern_conv_spec *spec, kern_conv **out, mar_err *err)
{
    *out = NULL;
    const cpu_device *d = cpu_of(k)->d;
    const int upsamples = (spec->flags & KERN_UPSAMPLE) != 0, tap_h = upsamples ? 2 : spec->kernel_h,
              tap_w = upsamples ? 2 : spec->kernel_w, inputs = tap_h * tap_w * spec->in;
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
                     .flags = spec->flags,
                     .y_stride = spec->y_stride ? spec->y_stride : spec->out,
                     .parities = upsamples ? 4 : 1,
                     .tap_h = tap_h,
                     .tap_w = tap_w,
                     .size = d->bf16 ? 2 : 4,
                     .row = d->bf16 ? (inputs + 1) / 2 * 2 : inputs,
                     .blocks = cpu_divide_up(spec->out, GEMM_COLS)};
    c->kernel = d->gemm[c->type];
    c->plain = c->row == spec->in && spec->stride == 1 && spec->pad_h == 0 && spec->pad_w == 0;
    c->gathers = !c->plain && (!c->kernel->takes_parts || (d->bf16 && spec->in % 2) || spec->in < FEW_CHANNELS);
    c->taps = c->gathers || c->plain ? 1 : tap_h * tap_w;
    c->words = gemm_words(c->type, c->gathers ? c->row : c->in, 1);
    c->block_bytes = gemm_block_bytes(c->type, gemm_words(c->type, c->row, c->kernel->step));
    const int fit = CHUNK_BYTES / (c->in * c->size * c->stride * c->stride) / GEMM_ROWS * GEMM_ROWS;
    c->pixels = fit < GEMM_ROWS ? GEMM_ROWS : cpu_lesser(fit, CHUNK_PIXELS);
    const mar_status status = pack(c, spec, err);
    if (status != MAR_OK) {
        cpu_conv_free(k->device, c);
        return status;
    }
    *out = c;
    return MAR_OK;
}

void cpu_conv_free(kern_device *d, kern_conv *c)
{
    (void)d;
    if (!c) return;
    free(c->block);
    free(c->bias);
    free(c->zeros);
    free(c);
}

/* --- a call --------------------------------------------------------------------------------------------------------
 */

/* Returns the bytes of a chunk's table, with each tap's input for each pixel; gathered inputs follow. */
static size_t table_bytes(const kern_conv *c)
{
    return (size_t)c->pixels * (size_t)c->taps * sizeof(void *);
}

/* Returns the bytes of a thread's buffer. */
static size_t work_bytes(const kern_conv *c)
{
    return table_bytes(c) + (c->gathers ? (size_t)c->pixels * (size_t)c->row * (size_t)c->size : 0);
}

mar_status cpu_conv_plan(kern_queue *k, const kern_conv *c, int images, int height, int width, mar_err *err)
{
    (void)images, (void)height, (void)width; /* any */
    return cpu_work_room(cpu_of(k), work_bytes(c), err);
}

typedef struct {
    cpu_queue *q;
    const kern_conv *c;
    const char *x;
    char *y;
    int height, width;  /* of x */
    int rows, columns;  /* of a parity's results in an image */
    int pixels;         /* results of a parity in all images */
    int chunks, groups; /* parts of the pixels, parts of the weight blocks */
} conv_call;

/* Results in one row of y: `count` from pixel `first` on, of the parity. */
typedef struct {
    int parity, first, count;
    const char *image; /* of x */
    int top, left;     /* row and column of the first one's first tap, possibly outside */
} run;

/* Returns the run that begins at a pixel, of at most `most` results. */
static run run_at(const conv_call *call, int parity, int pixel, int most)
{
    const kern_conv *c = call->c;
    const int area = call->rows * call->columns, in_image = pixel % area, column = in_image % call->columns;
    const size_t image_bytes = (size_t)call->height * (size_t)call->width * (size_t)c->in * (size_t)c->size;
    const int upsamples = c->parities == 4; /* the 2x2 window of an odd row or column begins at its own pixel */
    return (run){parity,
                 pixel,
                 cpu_lesser(most, call->columns - column),
                 call->x + (size_t)(pixel / area) * image_bytes,
                 in_image / call->columns * c->stride - (upsamples ? 1 - parity / 2 : c->pad_h),
                 column * c->stride - (upsamples ? 1 - parity % 2 : c->pad_w)};
}

/* Returns the inputs of tap (i, j) of the run's result p. */
static const char *tap_of(const conv_call *call, const run *r, int p, int i, int j)
{
    const kern_conv *c = call->c;
    const int row = r->top + i, column = r->left + p * c->stride + j;
    if (row < 0 || row >= call->height || column < 0 || column >= call->width) return c->zeros;
    return r->image + ((size_t)row * (size_t)call->width + (size_t)column) * (size_t)(c->in * c->size);
}

/* Finds the inputs of tap (i, j) of all results of a run. */
static void find_tap(const conv_call *call, const run *r, int i, int j, const char **part)
{
    const kern_conv *c = call->c;
    const int row = r->top + i, left = r->left + j;
    const size_t bytes = (size_t)(c->in * c->size);
    if (row < 0 || row >= call->height || left < 0 || left + (r->count - 1) * c->stride >= call->width) {
        for (int p = 0; p < r->count; p++) part[p] = tap_of(call, r, p, i, j);
        return;
    }
    const char *x = r->image + ((size_t)row * (size_t)call->width + (size_t)left) * bytes;
    for (int p = 0; p < r->count; p++, x += bytes * (size_t)c->stride) part[p] = x;
}

/* Gathers the inputs of the run's result p. */
static void gather(const conv_call *call, const run *r, int p, char *copy)
{
    const kern_conv *c = call->c;
    const size_t bytes = (size_t)(c->in * c->size), row_bytes = bytes * (size_t)c->tap_w;
    const int left = r->left + p * c->stride;
    memset(copy + (size_t)(c->row - 1) * (size_t)c->size, 0, (size_t)c->size);
    for (int i = 0; i < c->tap_h; i++, copy += row_bytes) {
        const int row = r->top + i;
        if (row >= 0 && row < call->height && left >= 0 && left + c->tap_w <= call->width)
            memcpy(copy, tap_of(call, r, p, i, 0), row_bytes);
        else
            for (int j = 0; j < c->tap_w; j++) memcpy(copy + (size_t)j * bytes, tap_of(call, r, p, i, j), bytes);
    }
}

/* Finds where `count` results from `first` on have their inputs; `table` and `copies` are the tile's. */
static void find_inputs(const conv_call *call, int parity, int first, int count, const char **table, char *copies)
{
    const kern_conv *c = call->c;
    for (int done = 0; done < count;) {
        const run r = run_at(call, parity, first + done, count - done);
        for (int p = 0; p < r.count && c->gathers; p++)
            gather(call, &r, p, copies + (size_t)(done + p) * (size_t)c->row * (size_t)c->size);
        for (int i = 0, t = 0; i < c->tap_h && !c->gathers; i++)
            for (int j = 0; j < c->tap_w; j++, t++) find_tap(call, &r, i, j, table + t * GEMM_ROWS + done);
        done += r.count;
    }
}

/* Finds the elements of y that `count` upsampled results begin at. */
static void find_results(const conv_call *call, int parity, int first, int count, ptrdiff_t *at)
{
    for (int done = 0; done < count;) {
        const int row = (first + done) / call->columns, column = (first + done) % call->columns; /* of all images */
        const int n = cpu_lesser(count - done, call->columns - column);
        const ptrdiff_t begin = (ptrdiff_t)(2 * row + parity / 2) * 2 * call->columns + 2 * column + parity % 2;
        for (int p = 0; p < n; p++) at[done + p] = (begin + 2 * p) * call->c->y_stride;
        done += n;
    }
}

/* Returns the first pixel of a chunk; it begins a tile. */
static int chunk_start(const conv_call *call, int chunk)
{
    const int tiles = cpu_divide_up(call->pixels, GEMM_ROWS);
    return cpu_lesser(parallel_part(tiles, call->chunks, chunk) * GEMM_ROWS, call->pixels);
}

/* Computes item i: group i % groups of the weight blocks, for chunk i / groups % chunks of parity i / groups / chunks.
 */
static void run_item(const conv_call *call, int item, int thread)
{
    const kern_conv *c = call->c;
    const int group = item % call->groups, chunk = item / call->groups % call->chunks;
    const int parity = item / call->groups / call->chunks,
              blocks_end = parallel_part(c->blocks, call->groups, group + 1);
    const int first = chunk_start(call, chunk), last = chunk_start(call, chunk + 1);
    const int y_f32 = c->size == 4 || c->flags & KERN_OUT_F32;
    const size_t row_bytes = (size_t)c->row * (size_t)c->size;
    const char **table = call->q->work[thread];
    char *copies = (char *)table + table_bytes(c);
    for (int start = first; start < last && !c->plain; start += GEMM_ROWS)
        find_inputs(call, parity, start, cpu_lesser(GEMM_ROWS, last - start),
                    table + (size_t)(start - first) * (size_t)c->taps, copies + (size_t)(start - first) * row_bytes);
    for (int b = parallel_part(c->blocks, call->groups, group); b < blocks_end; b++) {
        const char *block = c->block + ((size_t)parity * (size_t)c->blocks + (size_t)b) * c->block_bytes;
        for (int start = first; start < last; start += GEMM_ROWS) {
            const int count = cpu_lesser(GEMM_ROWS, last - start);
            ptrdiff_t at[GEMM_ROWS];
            gemm_rows x = {.stride = row_bytes, .taps = c->taps, .words = c->words};
            gemm_out out = {.bias = c->bias + (size_t)b * GEMM_COLS,
                            .relu = (c->flags & KERN_RELU) != 0,
                            .cols = cpu_lesser(GEMM_COLS, c->out - b * GEMM_COLS),
                            .y_stride = (size_t)c->y_stride,
                            .y_bf16 = !y_f32,
                            .add = (c->flags & KERN_OUT_ADD) != 0};
            if (c->plain)
                x.base = call->x + (size_t)start * row_bytes;
            else if (c->gathers)
                x.base = copies + (size_t)(start - first) * row_bytes;
            else
                x.part = table + (size_t)(start - first) * (size_t)c->taps;
            size_t column = (size_t)b * GEMM_COLS;
            if (c->parities == 4) {
                find_results(call, parity, start, count, at);
                out.y_at = at;
            } else {
                column += (size_t)start * out.y_stride;
            }
            out.y = call->y + column * (y_f32 ? 4 : 2);
            c->kernel->product(&x, count, block, NULL, &out);
        }
    }
    if (c->kernel->end) c->kernel->end();
}

static void items_body(void *arg, int first, int last, int thread)
{
    for (int i = first; i < last; i++) run_item(arg, i, thread);
}

void cpu_conv(kern_queue *k, const kern_conv *c, const act *x, int images, int height, int width, void *y)
{
    cpu_queue *q = cpu_of(k);
    const int upsamples = c->parities == 4;
    conv_call call = {.q = q,
                      .c = c,
                      .x = (const char *)x,
                      .y = y,
                      .height = height,
                      .width = width,
                      .rows = upsamples ? height : (height + 2 * c->pad_h - c->kernel_h) / c->stride + 1,
                      .columns = upsamples ? width : (width + 2 * c->pad_w - c->kernel_w) / c->stride + 1};
    call.pixels = images * call.rows * call.columns;
    if (!cpu_planned(q, work_bytes(c) <= q->work_bytes, "convolution of %dx%d pixels", height, width)) return;
    if (!kern_live(k) || images <= 0 || call.rows <= 0 || call.columns <= 0) return;
    call.chunks = cpu_divide_up(call.pixels, c->pixels);
    call.groups =
        cpu_lesser(c->blocks, cpu_divide_up(4 * q->d->threads, c->parities * call.chunks)); /* for every thread */
    cpu_for(q, c->parities * call.chunks * call.groups, (double)c->parities * call.pixels * c->row * c->out, items_body,
            &call);
}
