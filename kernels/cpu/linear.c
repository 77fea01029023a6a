/* Linear layers. Weights are divided into column panels that stay in a core's L2 cache while all rows are multiplied.
 * oneDNN makes the products, or our own GEMM (dot.h) for int8 and, where it exists, bf16. Our GEMM is bit-identical for
 * any split, so the split may follow row and thread counts. oneDNN's panels are fixed at packing. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/int8.h"
#include "kernels/int8.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { PANEL_BYTES = 512 << 10 }; /* half of a common L2: the rest is for the rows */

struct kern_linear {
    int out, in, flags, y_stride;
    kern_activation activation;
    int bf16;                                                   /* x and W are bf16, else float */
    int out_size;                                               /* bytes of an element of y */
    int panels, panel_cols;                                     /* all panels but the last have panel_cols columns */
    dnn_packed **weight;                                        /* [panels] */
    float *bias;                                                /* [out] or NULL */
    const dnn_primitive *_Atomic product[2][CPU_TILE_ROWS + 1]; /* [last panel?][rows], made at first use or by plan */
    const gemm_kernel *dot;  /* our own GEMM, with blocks in place of panels; NULL: oneDNN multiplies */
    int int8;                /* 1: x is quantised before it is multiplied */
    int words;               /* words of an operand row */
    size_t row_bytes;        /* bytes from one operand row to the next */
    int blocks;              /* blocks of DOT_COLS columns */
    size_t block_bytes;      /* of each */
    char *block;             /* [blocks][block_bytes] */
    float *block_bias;       /* [blocks][DOT_COLS] */
    const kern_linear *next; /* layer whose first blocks are prefetched with this layer's last, or NULL */
};

void cpu_linear_spec(const kern_linear *l, kern_linear_spec *spec)
{
    *spec = (kern_linear_spec){.out = l->out, .in = l->in, .activation = l->activation, .flags = l->flags};
}

static int panel_width(int out, int in, int size)
{
    int most = PANEL_BYTES / (in * size) / 64 * 64;
    if (most < 64) most = 64;
    int panels = (out + most - 1) / most;
    return ((out + panels - 1) / panels + 63) / 64 * 64;
}

static int panel_cols(const kern_linear *l, int panel)
{
    int left = l->out - panel * l->panel_cols;
    return left < l->panel_cols ? left : l->panel_cols;
}

/* Returns 1 if tiles can be written straight to y. */
static int dense(const kern_linear *l)
{
    return l->panels == 1 && l->y_stride == l->out;
}

/* Returns the primitive of a tile. All threads share what one thread has made. */
static const dnn_primitive *product_of(const kern_linear *l, int panel, int rows)
{
    return atomic_load_explicit(&l->product[panel == l->panels - 1][rows], memory_order_acquire);
}

static mar_status prepare(cpu_queue *q, const kern_linear *l, int panel, int rows, mar_err *err)
{
    const dnn_primitive *p = product_of(l, panel, rows);
    if (p) return cpu_ready(q, p, err);
    const dnn_matmul_spec spec = {
        .m = rows,
        .n = panel_cols(l, panel),
        .k = l->in,
        .lda = l->in,
        .ldc = panel_cols(l, panel),
        .bf16 = l->bf16,
        .c_f32 = l->out_size == 4,
        .packed = l->weight[panel],
        .has_bias = l->bias != NULL,
        .accumulate = dense(l) && (l->flags & KERN_OUT_ADD),
        .activation = l->activation,
    };
    const mar_status status = cpu_matmul(q, &spec, &p, err);
    kern_linear *cache = (kern_linear *)(uintptr_t)l;
    if (status == MAR_OK) atomic_store_explicit(&cache->product[panel == l->panels - 1][rows], p, memory_order_release);
    return status;
}

mar_status cpu_linear_plan(kern_queue *k, const kern_linear *l, int rows, mar_err *err)
{
    cpu_queue *q = cpu_of(k);
    if (l->int8) return cpu_int8_room(q, rows, l->words, err);
    if (l->dot) return MAR_OK;
    mar_status grown = cpu_grow(q, q->tile, &q->tile_bytes, (size_t)CPU_TILE_ROWS * (size_t)l->panel_cols * 4, err);
    if (grown != MAR_OK) return grown;
    const int sizes[2] = {rows >= CPU_TILE_ROWS ? CPU_TILE_ROWS : 0, rows % CPU_TILE_ROWS};
    for (int i = 0; i < 2; i++)
        for (int panel = l->panels > 1 ? l->panels - 2 : 0; sizes[i] && panel < l->panels; panel++) {
            mar_status status = prepare(q, l, panel, sizes[i], err);
            if (status != MAR_OK) return status;
        }
    return MAR_OK;
}

/* Quantises and packs `cols` columns from `first` on; quantised columns from the file are taken as they are. `q` and
 * `scale` have room for DOT_COLS columns. */
static void pack_int8(const kern_linear *l, const kern_linear_spec *spec, int first, int cols, int8_t *q, float *scale,
                      void *block)
{
    const size_t at = (size_t)first * (size_t)l->in;
    if (spec->quantised) {
        int8_pack(spec->quantised + at, spec->scale + first, cols, l->in, block);
        return;
    }
    kern_int8_quantise(spec->weight + at, cols, l->in, q, scale);
    int8_pack(q, scale, cols, l->in, block);
}

static mar_status create_blocks(kern_linear *l, const kern_linear_spec *spec, mar_err *err)
{
    const int words = l->int8 ? int8_words(l->in) : cpu_divide_up(l->in / 2, l->dot->step) * l->dot->step;
    l->words = l->int8 ? words : l->in / 2;
    l->row_bytes = l->int8 ? int8_stride(words) : (size_t)l->words * 4;
    l->blocks = cpu_divide_up(l->out, DOT_COLS);
    l->block_bytes = l->int8 ? int8_block_bytes(l->in) : (size_t)words * 4 * DOT_COLS;
    const size_t blocks = (size_t)l->blocks, bytes = blocks * l->block_bytes;
    l->block = cpu_pages(bytes);
    l->block_bias = calloc(blocks * DOT_COLS, sizeof *l->block_bias);
    int8_t *q = l->int8 ? malloc((size_t)l->in * DOT_COLS) : NULL;
    if (!l->block || !l->block_bias || (l->int8 && !q)) {
        free(q);
        return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes of weights", bytes);
    }
    for (int b = 0; b < l->blocks; b++) {
        const int first = b * DOT_COLS, cols = l->out - first < DOT_COLS ? l->out - first : DOT_COLS;
        char *block = l->block + (size_t)b * l->block_bytes;
        float scale[DOT_COLS];
        if (l->int8)
            pack_int8(l, spec, first, cols, q, scale, block);
        else
            l->dot->pack(spec->weight + (size_t)first * (size_t)l->in, cols, l->in, words, block);
    }
    if (spec->bias) memcpy(l->block_bias, spec->bias, (size_t)l->out * sizeof *l->block_bias);
    free(q);
    return MAR_OK;
}

static mar_status create_panels(cpu_queue *q, kern_linear *l, const kern_linear_spec *spec, mar_err *err)
{
    l->panel_cols = panel_width(l->out, l->in, l->bf16 ? 2 : 4);
    l->panels = (l->out + l->panel_cols - 1) / l->panel_cols;
    l->weight = calloc((size_t)l->panels, sizeof *l->weight);
    mar_status status = l->weight ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    for (int p = 0; status == MAR_OK && p < l->panels; p++)
        status = dnn_pack(q->d->dnn, spec->weight + (size_t)p * (size_t)l->panel_cols * (size_t)l->in, panel_cols(l, p),
                          l->in, l->bf16, &l->weight[p], err);
    if (status == MAR_OK && spec->bias) {
        l->bias = malloc(sizeof *l->bias * (size_t)l->out);
        if (l->bias)
            memcpy(l->bias, spec->bias, sizeof *l->bias * (size_t)l->out);
        else
            status = err_set(err, MAR_ENOMEM, "out of memory");
    }
    /* Makes one primitive now: a processor that runs one runs them all, so later failures are out of memory only. */
    return status == MAR_OK ? cpu_linear_plan(&q->base, l, 1, err) : status;
}

mar_status cpu_linear_create(kern_queue *k, const kern_linear_spec *spec, kern_linear **out, mar_err *err)
{
    cpu_queue *q = cpu_of(k);
    const cpu_device *d = q->d;
    *out = NULL;
    if ((spec->flags & KERN_IN_F32) && !(spec->flags & KERN_OUT_F32))
        return err_set(err, MAR_EARG, "a linear layer with f32 input needs f32 output");
    kern_linear *l = calloc(1, sizeof *l);
    if (!l) return err_set(err, MAR_ENOMEM, "out of memory");
    l->out = spec->out;
    l->in = spec->in;
    l->flags = spec->flags;
    l->y_stride = spec->y_stride ? spec->y_stride : spec->out;
    l->activation = spec->activation;
    l->bf16 = d->bf16 && !(spec->flags & KERN_IN_F32);
    l->out_size = d->bf16 && !(spec->flags & KERN_OUT_F32) ? 2 : 4;
    l->int8 = d->int8 && spec->flags & KERN_INT8;
    if (l->int8)
        l->dot = d->int8;
    else if (l->bf16 && l->in % 2 == 0) /* it reads x in pairs */
        l->dot = d->dot;
    mar_status status = l->dot ? create_blocks(l, spec, err) : create_panels(q, l, spec, err);
    if (status != MAR_OK) {
        cpu_linear_free(k->device, l);
        return status;
    }
    if (spec->previous && spec->previous->dot && l->dot) spec->previous->next = l;
    *out = l;
    return MAR_OK;
}

void cpu_linear_free(kern_device *d, kern_linear *l)
{
    (void)d;
    if (!l) return;
    for (int p = 0; l->weight && p < l->panels; p++) dnn_packed_free(l->weight[p]);
    free(l->weight);
    free(l->bias);
    free(l->block);
    free(l->block_bias);
    free(l);
}

static int row_tiles(int rows)
{
    return (rows + CPU_TILE_ROWS - 1) / CPU_TILE_ROWS;
}

/* Returns the number of parts the columns are divided into. */
static int column_tiles(const cpu_queue *q, const kern_linear *l, int rows)
{
    if (!l->dot) return l->panels;
    const int fit = (int)(PANEL_BYTES / l->block_bytes), across = row_tiles(rows);
    int panels = fit > 1 ? (l->blocks + fit - 1) / fit : l->blocks;
    const int fair = (4 * q->d->threads + across - 1) / across; /* enough tiles for every thread */
    if (panels < fair) panels = fair;
    return panels < l->blocks ? panels : l->blocks;
}

typedef struct {
    cpu_queue *q;
    const kern_linear *l;
    const void *x;
} quantise_loop;

static void quantise_body(void *arg, int first, int last, int thread)
{
    const quantise_loop *c = arg;
    const kern_linear *l = c->l;
    const size_t in = (size_t)l->in * (l->bf16 ? 2 : 4), width = (size_t)l->words * 4;
    uint8_t *row = (uint8_t *)c->q->int8_rows + (size_t)first * l->row_bytes;
    (void)thread;
    c->q->d->rows->quantise((const char *)c->x + (size_t)first * in, last - first, l->in, INT8_ZERO, row, l->row_bytes,
                            (float *)c->q->int8_scale + first, l->bf16);
    for (int r = first; r < last; r++, row += l->row_bytes) memset(row + l->in, INT8_ZERO, width - (size_t)l->in);
}

/* Returns the GEMM operand: x itself, or its int8 in the queue's buffer until the next call. */
static const void *operand(cpu_queue *q, const kern_linear *l, const void *x, int rows)
{
    if (!l->int8) return x;
    quantise_loop c = {q, l, x};
    cpu_for(q, rows, 16.0 * rows * l->in, quantise_body, &c);
    return q->int8_rows;
}

/* Computes rows first .. first+count-1 of the columns of blocks from .. to-1. x is the GEMM operand. `next` is
 * prefetched after the last block. `near`: the thread has just read the blocks. */
static void run_blocks(const cpu_queue *q, const kern_linear *l, const void *x, int first, int count, void *y,
                       const dot_gate *gate, int from, int to, const char *next, int near)
{
    const size_t weights = l->block_bytes - (l->int8 ? INT8_BLOCK_END : 0);
    for (int b = from; b < to; b++) {
        const size_t column = (size_t)b * DOT_COLS;
        const char *block = l->block + (size_t)b * l->block_bytes;
        const int left = l->out - b * DOT_COLS;
        dot_gate here;
        if (gate) here = (dot_gate){gate->base + column * sizeof(uint16_t), gate->index, gate->stride};
        dot_out out = {
            .bias = l->block_bias + column,
            .activation = l->activation,
            .cols = left < DOT_COLS ? left : DOT_COLS,
            .y = (char *)y + ((size_t)first * (size_t)l->y_stride + column) * (size_t)l->out_size,
            .y_stride = (size_t)l->y_stride,
            .y_bf16 = l->out_size == 2,
            .add = gate || l->flags & KERN_OUT_ADD,
            .gate = gate ? &here : NULL,
        };
        if (l->int8) {
            out.x_scale = (const float *)q->int8_scale + first;
            out.w_scale = (const float *)(block + weights);
            out.offset = (const int32_t *)(out.w_scale + DOT_COLS);
        }
        l->dot->product((const char *)x + (size_t)first * l->row_bytes, l->row_bytes, count, l->words, block,
                        near         ? block
                        : b + 1 < to ? block + l->block_bytes
                                     : next,
                        &out);
    }
    if (l->dot->end) l->dot->end();
}

int cpu_linear_by_columns(const kern_linear *l)
{
    return l->dot != NULL;
}

typedef struct {
    const cpu_queue *q;
    const kern_linear *l, *next;
    const void *x; /* the GEMM operand */
    int rows;
    void *y;
    const dot_gate *gate;
    int width; /* threads the blocks are divided among */
} columns_loop;

static void columns_body(void *arg, int first, int last, int thread)
{
    const columns_loop *c = arg;
    const kern_linear *l = c->l, *next = c->next;
    const char *fetch = NULL;
    (void)thread;
    if (last < l->blocks) fetch = l->block + (size_t)last * l->block_bytes;
    for (int r = 0; next && r < c->width; r++) /* after the thread's last block: prefetch its part of the next layer */
        if (last == parallel_part(l->blocks, c->width, r + 1))
            fetch = next->block + (size_t)parallel_part(next->blocks, c->width, r) * next->block_bytes;
    run_blocks(c->q, l, c->x, 0, c->rows, c->y, c->gate, first, last, fetch, 0);
}

void cpu_linear_columns(cpu_queue *q, const kern_linear *l, const void *x, int rows, void *y, const dot_gate *gate,
                        const kern_linear *next)
{
    columns_loop c = {q, l, next, operand(q, l, x, rows), rows, y, gate, parallel_width(q->client)};
    cpu_for(q, l->blocks, (double)rows * l->in * l->out, columns_body, &c);
}

/* Copies or adds a tile to its place in y. oneDNN 2.6 is fast on dense results only. So a wider layer's tile is
 * computed in the thread's buffer; it fits in L1 or L2. */
static void place_tile(const cpu_queue *q, const kern_linear *l, const char *tile, int count, int cols, char *y)
{
    const size_t size = (size_t)l->out_size, stride = (size_t)l->y_stride * size, row = (size_t)cols * size;
    for (int r = 0; r < count; r++, y += stride, tile += row) {
        if (l->flags & KERN_OUT_ADD)
            q->d->rows->add((float *)y, (const float *)y, (const float *)tile, (size_t)cols);
        else
            memcpy(y, tile, row);
    }
}

/* Tiles are numbered strip by strip, and panel by panel within a strip of rows. A thread's tiles are then in few
 * strips, whose rows it has in cache, and neighbours share a panel. */
typedef struct {
    int strips, across, panels; /* across: tiles per row of the result */
} tile_grid;

/* Chooses the number of strips that makes a thread's part of the result about square: it then reads as much of x as of
 * the weights. */
static tile_grid grid_of(const cpu_queue *q, const kern_linear *l, int rows)
{
    const tile_grid g = {(int)ceil(sqrt((double)q->d->threads * rows / l->out)), row_tiles(rows),
                         column_tiles(q, l, rows)};
    const int most = cpu_lesser(q->d->threads, g.across);
    return (tile_grid){cpu_lesser(g.strips, most), g.across, g.panels};
}

/* Returns 1 if the previous tile is of the same strip and panel: its thread, nearly always this one, has just read the
 * weights. */
static int place_of(const tile_grid *g, int tile, int *panel, int *across)
{
    int s = 0;
    while (tile >= g->panels * parallel_part(g->across, g->strips, s + 1)) s++;
    const int first = parallel_part(g->across, g->strips, s),
              count = parallel_part(g->across, g->strips, s + 1) - first;
    tile -= g->panels * first;
    *panel = tile / count;
    *across = first + tile % count;
    return tile % count > 0;
}

static void run_tile(cpu_queue *q, const kern_linear *l, const void *x, int rows, void *y, int panels, int panel,
                     int across, int near, int thread)
{
    const int first = across * CPU_TILE_ROWS;
    const int count = rows - first < CPU_TILE_ROWS ? rows - first : CPU_TILE_ROWS;
    if (l->dot) {
        run_blocks(q, l, x, first, count, y, NULL, parallel_part(l->blocks, panels, panel),
                   parallel_part(l->blocks, panels, panel + 1), NULL, near);
        return;
    }
    const size_t column = (size_t)panel * (size_t)l->panel_cols;
    const char *a = (const char *)x + (size_t)first * (size_t)l->in * (l->bf16 ? 2 : 4);
    char *c = (char *)y + ((size_t)first * (size_t)l->y_stride + column) * (size_t)l->out_size;
    const dnn_primitive *p = product_of(l, panel, count);
    cpu_ran(q, dnn_matmul_run(p, cpu_operands(q, p, thread), a, l->weight[panel], NULL,
                              l->bias ? l->bias + column : NULL, dense(l) ? c : q->tile[thread], q->scratch[thread]));
    if (!dense(l)) place_tile(q, l, q->tile[thread], count, panel_cols(l, panel), c);
}

/* An unplanned call makes its primitives here and can run out of memory. */
int cpu_linear_ready(cpu_queue *q, const kern_linear *l, int rows)
{
    mar_err err = {0};
    mar_status status = cpu_linear_plan(&q->base, l, rows, &err);
    if (status != MAR_OK) kern_fail(&q->base, status, &err);
    return status == MAR_OK;
}

typedef struct {
    cpu_queue *q;
    const kern_linear *l;
    const void *x;
    int rows;
    void *y;
    tile_grid grid;
} tiles_loop;

static void tiles_body(void *arg, int first, int last, int thread)
{
    const tiles_loop *t = arg;
    for (int tile = first; tile < last; tile++) {
        int panel, across;
        const int near = place_of(&t->grid, tile, &panel, &across);
        run_tile(t->q, t->l, t->x, t->rows, t->y, t->grid.panels, panel, across, near, thread);
    }
}

void cpu_linear_run(cpu_queue *q, const kern_linear *l, const void *x, int rows, void *y)
{
    tiles_loop t = {q, l, operand(q, l, x, rows), rows, y, grid_of(q, l, rows)};
    cpu_for(q, t.grid.panels * t.grid.across, (double)rows * l->in * l->out, tiles_body, &t);
}

void cpu_linear(kern_queue *k, const kern_linear *l, const void *x, int rows, void *y)
{
    cpu_queue *q = cpu_of(k);
    if (rows <= 0 || !kern_live(k) || !cpu_linear_ready(q, l, rows)) return;
    if (l->dot && rows <= CPU_TILE_ROWS)
        cpu_linear_columns(q, l, x, rows, y, NULL, l->next);
    else
        cpu_linear_run(q, l, x, rows, y);
}
