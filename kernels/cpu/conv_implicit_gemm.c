/* Convolutions by our own kernel (direct.h). The output pixels of all images form one sequence. It is divided into
 * chunks whose input stays in L2, and these into tiles. Each block of weights is used for a whole chunk. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>

enum {
    CHUNK_BYTES = 384 << 10, /* input read by a chunk: part of a common L2, the rest is for the weights */
    CHUNK_PIXELS = 36 * DIRECT_ROWS,
    FEW_CHANNELS = 16 /* with fewer, a pixel's inputs are gathered first */
};

struct conv_implicit_gemm {
    const direct_conv *kernel;
    int out, in, kernel_h, kernel_w, stride, pad_h, pad_w;
    int relu, y_stride, size; /* bytes of an element */
    int unfold;               /* 1: a pixel's `row` inputs are gathered into one tap */
    int row;                  /* kernel_h * kernel_w * in, rounded up to a pair for bf16 */
    int taps, tap_in;         /* as the kernel sees them */
    int pixels;               /* maximum pixels of a chunk */
    int blocks;
    size_t block_bytes;
    char *block; /* [blocks] of block_bytes */
    float *bias; /* [blocks][DIRECT_COLS] */
    char *zeros; /* input of a tap outside the image */
};

/* Reorders a block's weights from the spec's [channel][in][tap] to [channel][tap][in]. */
static void order_weights(const conv_implicit_gemm *g, const kern_conv_spec *spec, int first, int cols, float *rows)
{
    const int taps = g->kernel_h * g->kernel_w;
    for (int c = 0; c < cols; c++) {
        const float *from = spec->weight + (size_t)(first + c) * (size_t)(g->in * taps);
        float *row = rows + (size_t)c * (size_t)g->row;
        memset(row, 0, (size_t)g->row * sizeof *row);
        for (int t = 0; t < taps; t++)
            for (int i = 0; i < g->in; i++) row[t * g->in + i] = from[i * taps + t];
    }
}

static mar_status pack_blocks(conv_implicit_gemm *g, const kern_conv_spec *spec, mar_err *err)
{
    const size_t blocks = (size_t)g->blocks, bytes = blocks * g->block_bytes;
    float *rows = malloc((size_t)g->row * DIRECT_COLS * sizeof *rows);
    g->block = aligned_alloc(64, bytes);
    g->bias = calloc(blocks * DIRECT_COLS, sizeof *g->bias);
    g->zeros = calloc((size_t)g->in + 1, (size_t)g->size);
    if (!rows || !g->block || !g->bias || !g->zeros) {
        free(rows);
        return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes of a convolution's weights", bytes);
    }
    for (int b = 0; b < g->blocks; b++) {
        const int first = b * DIRECT_COLS, cols = cpu_lesser(DIRECT_COLS, g->out - first);
        order_weights(g, spec, first, cols, rows);
        g->kernel->pack(rows, cols, g->row, g->block + (size_t)b * g->block_bytes);
    }
    memcpy(g->bias, spec->bias, (size_t)g->out * sizeof *g->bias);
    free(rows);
    return MAR_OK;
}

mar_status conv_implicit_gemm_create(const cpu_device *d, const kern_conv_spec *spec, conv_implicit_gemm **out,
                                     mar_err *err)
{
    *out = NULL;
    conv_implicit_gemm *g = calloc(1, sizeof *g);
    if (!g) return err_set(err, MAR_ENOMEM, "out of memory");
    const int taps = spec->kernel_h * spec->kernel_w;
    *g = (conv_implicit_gemm){.kernel = d->direct,
                              .out = spec->out,
                              .in = spec->in,
                              .kernel_h = spec->kernel_h,
                              .kernel_w = spec->kernel_w,
                              .stride = spec->stride,
                              .pad_h = spec->pad_h,
                              .pad_w = spec->pad_w,
                              .relu = (spec->flags & KERN_RELU) != 0,
                              .y_stride = spec->y_stride ? spec->y_stride : spec->out,
                              .size = d->bf16 ? 2 : 4,
                              .unfold = (d->bf16 && spec->in % 2) || spec->in < FEW_CHANNELS,
                              .row = d->bf16 ? (taps * spec->in + 1) / 2 * 2 : taps * spec->in,
                              .blocks = cpu_divide_up(spec->out, DIRECT_COLS)};
    g->taps = g->unfold ? 1 : taps;
    g->tap_in = g->unfold ? g->row : g->in;
    g->block_bytes = (size_t)g->row * DIRECT_COLS * (size_t)g->size;
    const int fit = CHUNK_BYTES / (g->in * g->size * g->stride * g->stride) / DIRECT_ROWS * DIRECT_ROWS;
    g->pixels = fit < 4 * DIRECT_ROWS ? 4 * DIRECT_ROWS : cpu_lesser(fit, CHUNK_PIXELS);
    const mar_status status = pack_blocks(g, spec, err);
    if (status != MAR_OK) {
        conv_implicit_gemm_free(g);
        return status;
    }
    *out = g;
    return MAR_OK;
}

void conv_implicit_gemm_free(conv_implicit_gemm *g)
{
    if (!g) return;
    free(g->block);
    free(g->bias);
    free(g->zeros);
    free(g);
}

/* Returns the bytes of a chunk's table, with each tap's input for each pixel, and of gathered copies. */
static size_t table_bytes(const conv_implicit_gemm *g)
{
    return (size_t)cpu_divide_up(g->pixels, DIRECT_ROWS) * (size_t)g->taps * DIRECT_ROWS * sizeof(void *);
}

size_t conv_implicit_gemm_bytes(const conv_implicit_gemm *g)
{
    return table_bytes(g) + (g->unfold ? (size_t)g->pixels * (size_t)g->row * (size_t)g->size : 0);
}

typedef struct {
    cpu_queue *q;
    const conv_implicit_gemm *g;
    const char *x;
    int height, width, rows, columns, pixels; /* of x, of y, and pixels of all images of y */
    int chunks, groups;                       /* parts of the pixels, parts of the weight blocks */
    char *y;
} conv_call;

/* Input position of a pixel of y: the image, and the row and column of its first tap, possibly outside. */
typedef struct {
    const char *image;
    int top, left;
} reader;

static reader reader_of(const conv_call *c, int pixel)
{
    const conv_implicit_gemm *g = c->g;
    const int area = c->rows * c->columns, in_image = pixel % area;
    const size_t image_bytes = (size_t)c->height * (size_t)c->width * (size_t)g->in * (size_t)g->size;
    return (reader){c->x + (size_t)(pixel / area) * image_bytes, in_image / c->columns * g->stride - g->pad_h,
                    in_image % c->columns * g->stride - g->pad_w};
}

static const char *tap_of(const conv_call *c, reader r, int i, int j)
{
    const int row = r.top + i, column = r.left + j;
    if (row < 0 || row >= c->height || column < 0 || column >= c->width) return c->g->zeros;
    return r.image + ((size_t)row * (size_t)c->width + (size_t)column) * (size_t)(c->g->in * c->g->size);
}

/* Gathers a pixel's inputs. */
static void unfold(const conv_call *c, reader r, char *copy)
{
    const conv_implicit_gemm *g = c->g;
    const size_t bytes = (size_t)(g->in * g->size), row_bytes = bytes * (size_t)g->kernel_w;
    memset(copy + (size_t)(g->row - 1) * (size_t)g->size, 0, (size_t)g->size);
    for (int i = 0; i < g->kernel_h; i++, copy += row_bytes) {
        const int row = r.top + i;
        if (row >= 0 && row < c->height && r.left >= 0 && r.left + g->kernel_w <= c->width)
            memcpy(copy, tap_of(c, r, i, 0), row_bytes);
        else
            for (int j = 0; j < g->kernel_w; j++) memcpy(copy + (size_t)j * bytes, tap_of(c, r, i, j), bytes);
    }
}

/* Returns the first pixel of a chunk; it begins a tile. */
static int chunk_start(const conv_call *c, int chunk)
{
    return cpu_lesser(parallel_part(cpu_divide_up(c->pixels, DIRECT_ROWS), c->chunks, chunk) * DIRECT_ROWS, c->pixels);
}

/* Fills the table of a tile: [taps][DIRECT_ROWS]. Missing pixels read the last one again. */
static void gather_tile(const conv_call *c, int first, int count, const void **table, char *copies)
{
    const conv_implicit_gemm *g = c->g;
    for (int p = 0; p < count; p++) {
        const reader r = reader_of(c, first + p);
        if (g->unfold) {
            char *copy = copies + (size_t)p * (size_t)g->row * (size_t)g->size;
            unfold(c, r, copy);
            table[p] = copy;
            continue;
        }
        for (int i = 0, t = 0; i < g->kernel_h; i++)
            for (int j = 0; j < g->kernel_w; j++, t++) table[t * DIRECT_ROWS + p] = tap_of(c, r, i, j);
    }
    for (int t = 0; t < g->taps; t++)
        for (int p = count; p < DIRECT_ROWS; p++) table[t * DIRECT_ROWS + p] = table[t * DIRECT_ROWS + count - 1];
}

/* Computes item i: group i % groups of the weight blocks, for chunk i / groups of the pixels. */
static void run_item(const conv_call *c, int item, int thread)
{
    const conv_implicit_gemm *g = c->g;
    const int chunk = item / c->groups, group = item % c->groups;
    const int first = chunk_start(c, chunk), last = chunk_start(c, chunk + 1);
    const int tiles = cpu_divide_up(last - first, DIRECT_ROWS);
    const void **table = c->q->work[thread];
    const size_t tile_entries = (size_t)g->taps * DIRECT_ROWS, row_bytes = (size_t)g->row * (size_t)g->size;
    char *copies = (char *)table + table_bytes(g);
    for (int t = 0; t < tiles; t++) {
        const int start = first + t * DIRECT_ROWS;
        gather_tile(c, start, cpu_lesser(DIRECT_ROWS, last - start), table + (size_t)t * tile_entries,
                    copies + (size_t)(start - first) * row_bytes);
    }
    for (int b = parallel_part(g->blocks, c->groups, group); b < parallel_part(g->blocks, c->groups, group + 1); b++) {
        direct_tile tile = {.taps = g->taps,
                            .in = g->tap_in,
                            .w = g->block + (size_t)b * g->block_bytes,
                            .bias = g->bias + (size_t)b * DIRECT_COLS,
                            .cols = cpu_lesser(DIRECT_COLS, g->out - b * DIRECT_COLS),
                            .relu = g->relu,
                            .y_stride = (size_t)g->y_stride};
        for (int t = 0; t < tiles; t++) {
            const int start = first + t * DIRECT_ROWS;
            tile.x = table + (size_t)t * tile_entries;
            g->kernel->tile(&tile, cpu_lesser(DIRECT_ROWS, last - start),
                            c->y + ((size_t)start * tile.y_stride + (size_t)b * DIRECT_COLS) * (size_t)g->size);
        }
    }
}

static void conv_body(void *arg, int first, int last, int thread)
{
    for (int i = first; i < last; i++) run_item(arg, i, thread);
}

void conv_implicit_gemm_run(cpu_queue *q, const conv_implicit_gemm *g, const act *x, int images, int height, int width,
                            act *y)
{
    conv_call c = {.q = q,
                   .g = g,
                   .x = x,
                   .height = height,
                   .width = width,
                   .rows = (height + 2 * g->pad_h - g->kernel_h) / g->stride + 1,
                   .columns = (width + 2 * g->pad_w - g->kernel_w) / g->stride + 1,
                   .y = y};
    c.pixels = images * c.rows * c.columns;
    if (c.pixels == 0) return;
    c.chunks = cpu_divide_up(c.pixels, g->pixels);
    c.groups = cpu_lesser(g->blocks, cpu_divide_up(4 * q->d->threads, c.chunks)); /* so that every thread gets work */
    cpu_for(q, c.chunks * c.groups, (double)c.pixels * g->row * g->out, conv_body, &c);
}
