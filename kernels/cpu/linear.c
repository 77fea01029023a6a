/* Linear layers. The result's columns are divided into blocks of weights, its rows into tiles. A row's bits do not
 * depend on the division (gemm/gemm.h), so it follows the numbers of rows and threads. */
#include "kernels/cpu/cpu.h"
#include "kernels/int4.h"
#include "kernels/int8.h"

#include <math.h>
#include <stdlib.h>

enum {
    UNIT = 16,               /* rows: those of AMX's tiles */
    PANEL_BYTES = 512 << 10, /* weights that stay in a core's L2: half of a common one, the rest for rows */
    INT8_INPUTS = INT32_MAX / (255 * 127) /* a sum of more products, byte times weight, may not fit 32 bits */
};

struct kern_linear {
    int out, in, flags, y_stride;
    int halves; /* results of a layer made by cpu_linear_create_swiglu; 0: another layer */
    kern_activation activation;
    gemm_type type;
    const gemm_kernel *kernel;
    int x_bf16;              /* x is bf16, else float */
    int out_size;            /* bytes of an element of y */
    int words;               /* words of an operand row, or int4's groups */
    size_t row_bytes;        /* bytes from one operand row to the next */
    int copies;              /* 1: the operand is made of x: quantised, or padded to whole words */
    int blocks;              /* blocks of GEMM_COLS columns */
    size_t block_bytes;      /* of each */
    size_t weight_bytes;     /* of its weights; an int8 block's scales and offsets follow */
    char *block;             /* [blocks][block_bytes] */
    float *bias;             /* [blocks][GEMM_COLS] */
    const kern_linear *next; /* layer whose first blocks are prefetched with this layer's last, or NULL */
};

void cpu_linear_spec(const kern_linear *l, kern_linear_spec *spec)
{
    *spec = (kern_linear_spec){.out = l->out, .in = l->in, .activation = l->activation, .flags = l->flags};
}

mar_status cpu_linear_plan(kern_queue *k, const kern_linear *l, int rows, mar_err *err)
{
    return l->copies ? cpu_operand_room(cpu_of(k), rows, l->row_bytes, err) : MAR_OK;
}

/* Rows of the weights on their way into blocks: GEMM_COLS for each of some blocks, which threads pack side by side. */
typedef struct {
    int blocks;    /* at a time */
    float *weight; /* [blocks][GEMM_COLS][in], or NULL: not needed */
    void *q;       /* int8 [blocks][GEMM_COLS][in], int4 [blocks][GEMM_COLS][in/2], or NULL */
    void *scale;   /* of int8: float [blocks][GEMM_COLS]; of int4: bf16 [blocks][GEMM_COLS][in/32] */
} staging;

/* Returns whether the source has the layer's integers. */
static int reads_low(const kern_linear *l, const kern_linear_spec *spec)
{
    const kern_linear_rows *rows = spec->rows;
    return rows && ((l->type == GEMM_INT8 && rows->read_int8) || (l->type == GEMM_INT4 && rows->read_int4));
}

static mar_status make_staging(const kern_linear *l, const kern_linear_spec *spec, int threads, staging *s,
                               mar_err *err)
{
    s->blocks = cpu_lesser(threads, l->blocks);
    const size_t rows = (size_t)s->blocks * GEMM_COLS, n = rows * (size_t)l->in;
    const int low = l->type >= GEMM_INT8, floats = spec->rows && !reads_low(l, spec);
    if (floats) s->weight = malloc(n * sizeof *s->weight);
    if (low) s->q = malloc(n), s->scale = malloc(rows * sizeof(float) + n / KERN_INT4_GROUP * sizeof(uint16_t));
    if ((s->weight || !floats) && ((s->q && s->scale) || !low)) return MAR_OK;
    return err_set(err, MAR_ENOMEM, "out of memory: %zu x %d weights", rows, l->in);
}

/* Reads rows first .. first + n - 1 if they come from a source. */
static mar_status read_staging(const kern_linear *l, const kern_linear_spec *spec, int first, int n, const staging *s,
                               mar_err *err)
{
    const kern_linear_rows *rows = spec->rows;
    if (!rows) return MAR_OK;
    if (!reads_low(l, spec)) return rows->read(rows->user, first, n, s->weight, err);
    return l->type == GEMM_INT8 ? rows->read_int8(rows->user, first, n, s->q, s->scale, err)
                                : rows->read_int4(rows->user, first, n, s->q, s->scale, err);
}

typedef struct {
    const kern_linear *l;
    const kern_linear_spec *spec;
    const staging *s;
    int first; /* block of the first in the staging */
} pack_loop;

/* Packs block number i of the staging: quantises its rows unless they came so. */
static void pack_block(const pack_loop *p, int i)
{
    const kern_linear *l = p->l;
    const staging *s = p->s;
    const kern_linear_spec *spec = p->spec;
    const int first = (p->first + i) * GEMM_COLS, cols = cpu_lesser(l->out - first, GEMM_COLS);
    const size_t row = (size_t)i * GEMM_COLS, at = row * (size_t)l->in;
    const float *weight = spec->weight ? spec->weight + (size_t)first * (size_t)l->in
                          : s->weight  ? s->weight + at
                                       : NULL;
    void *block = l->block + (size_t)(p->first + i) * l->block_bytes;
    const int words = (int)(l->weight_bytes / (4 * GEMM_COLS));
    if (l->type == GEMM_INT4) {
        uint8_t *codes = (uint8_t *)s->q + at / 2;
        uint16_t *scales = (uint16_t *)s->scale + at / KERN_INT4_GROUP;
        if (!reads_low(l, spec)) kern_int4_quantise(weight, cols, l->in, codes, scales);
        gemm_pack_int4(codes, scales, cols, l->in, block);
    } else if (l->type == GEMM_INT8) {
        int8_t *q = (int8_t *)s->q + at;
        float *scale = (float *)s->scale + row;
        if (!reads_low(l, spec)) kern_int8_quantise(weight, cols, l->in, q, scale);
        gemm_pack_int8(l->kernel, q, scale, cols, l->in, words, block);
    } else {
        gemm_pack(l->kernel, l->type, weight, cols, l->in, words, block);
    }
}

static void pack_body(void *arg, int first, int last, int thread)
{
    (void)thread;
    for (int i = first; i < last; i++) pack_block(arg, i);
}

/* Writes to each page of blocks first .. last-1. Memory comes from the node of the thread that writes to it first, and
 * a thread multiplies the part of the blocks that it has here (cpu_cut_product). */
static void touch_body(void *arg, int first, int last, int thread)
{
    enum { PAGE = 4096 }; /* the smallest */
    const kern_linear *l = arg;
    char *const end = l->block + (size_t)last * l->block_bytes;
    (void)thread;
    for (char *p = l->block + (size_t)first * l->block_bytes; p < end; p += PAGE) *(volatile char *)p = 0;
}

static mar_status linear_pack(cpu_queue *q, kern_linear *l, const kern_linear_spec *spec, mar_err *err)
{
    const cpu_device *d = q->d;
    const size_t blocks = (size_t)l->blocks, bytes = blocks * l->block_bytes;
    staging s = {0};
    mar_status status = cpu_pages(d, bytes, "weights", (void **)&l->block, err);
    if (status == MAR_OK) cpu_for(q, l->blocks, (double)bytes, touch_body, l);
    if (status == MAR_OK) status = cpu_zeros(d, blocks * GEMM_COLS, &l->bias, err);
    if (status == MAR_OK) status = make_staging(l, spec, d->threads, &s, err);
    for (int b = 0; b < l->blocks && status == MAR_OK; b += s.blocks) {
        const int n = cpu_lesser(l->blocks - b, s.blocks), first = b * GEMM_COLS;
        pack_loop p = {l, spec, &s, b};
        status = read_staging(l, spec, first, cpu_lesser(l->out - first, n * GEMM_COLS), &s, err);
        if (status == MAR_OK) cpu_for(q, n, 64.0 * n * GEMM_COLS * l->in, pack_body, &p);
    }
    if (status == MAR_OK && spec->bias) memcpy(l->bias, spec->bias, (size_t)l->out * sizeof *l->bias);
    free(s.weight);
    free(s.q);
    free(s.scale);
    return status == MAR_OK ? kern_check(&q->base, err) : status;
}

mar_status cpu_linear_create(kern_queue *k, const kern_linear_spec *spec, kern_linear **out, mar_err *err)
{
    const cpu_device *d = cpu_of(k)->d;
    *out = NULL;
    if ((spec->flags & KERN_IN_F32) && !(spec->flags & KERN_OUT_F32))
        return err_set(err, MAR_EARG, "a linear layer with f32 input needs f32 output");
    const int int8 = d->base.int8 && spec->flags & KERN_LOW;
    const int int4 = d->base.int4 && spec->flags & KERN_LOW && spec->in % KERN_INT4_GROUP == 0;
    if (int8 && spec->in > INT8_INPUTS)
        return err_set(err, MAR_EARG, "int8 layer of %d inputs: expected at most %d", spec->in, INT8_INPUTS);
    kern_linear *l = calloc(1, sizeof *l);
    if (!l) return err_set(err, MAR_ENOMEM, "out of memory");
    l->out = spec->out;
    l->in = spec->in;
    l->flags = spec->flags;
    l->y_stride = spec->y_stride ? spec->y_stride : spec->out;
    l->activation = spec->activation;
    l->x_bf16 = d->bf16 && !(spec->flags & KERN_IN_F32);
    l->out_size = d->bf16 && !(spec->flags & KERN_OUT_F32) ? 2 : 4;
    l->type = int8 ? GEMM_INT8 : int4 ? GEMM_INT4 : l->x_bf16 ? GEMM_BF16 : GEMM_F32;
    l->kernel = d->gemm[l->type];
    const int words = gemm_words(l->type, l->in, l->kernel->step);
    l->words = int8 ? words : gemm_words(l->type, l->in, 1);
    l->row_bytes = int8   ? gemm_int8_stride(words << l->kernel->wide)
                   : int4 ? gemm_int4_stride(words)
                          : 4 * (size_t)l->words;
    l->copies = int8 || int4 || (l->type == GEMM_BF16 && l->in % 2);
    l->blocks = cpu_divide_up(l->out, GEMM_COLS);
    l->block_bytes = gemm_block_bytes(l->type, words);
    l->weight_bytes = 4 * (size_t)words * GEMM_COLS;
    const mar_status status = linear_pack(cpu_of(k), l, spec, err);
    if (status != MAR_OK) {
        cpu_linear_free(k->device, l);
        return status;
    }
    if (spec->previous) spec->previous->next = l;
    *out = l;
    return MAR_OK;
}

mar_status cpu_linear_create_swiglu(kern_queue *k, const kern_linear_spec *spec, kern_linear **out, mar_err *err)
{
    const int hidden = spec->out / 2, blocks = cpu_divide_up(hidden, GEMM_HALF);
    const size_t in = (size_t)spec->in, columns = (size_t)blocks * GEMM_COLS;
    kern_linear_spec packed = *spec;
    *out = NULL;
    float *weight = calloc(columns * (in + 1), sizeof *weight);
    if (!weight)
        return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes of weights", columns * (in + 1) * sizeof *weight);
    float *bias = weight + columns * in;
    for (int c = 0; c < 2 * hidden; c++) {
        const int half = c / hidden, i = c % hidden;
        const size_t to = (size_t)(i / GEMM_HALF * GEMM_COLS + half * GEMM_HALF + i % GEMM_HALF);
        memcpy(weight + to * in, spec->weight + (size_t)c * in, in * sizeof *weight);
        bias[to] = spec->bias ? spec->bias[c] : 0;
    }
    packed.out = (int)columns, packed.weight = weight, packed.bias = bias;
    if (!packed.y_stride) packed.y_stride = hidden;
    const mar_status status = cpu_linear_create(k, &packed, out, err);
    free(weight);
    if (status == MAR_OK) (*out)->halves = hidden;
    return status;
}

void cpu_linear_free(kern_device *d, kern_linear *l)
{
    if (!l) return;
    cpu_pages_free((const cpu_device *)d, l->block);
    cpu_pages_free((const cpu_device *)d, l->bias);
    free(l);
}

/* --- operands ------------------------------------------------------------------------------------------------------
 */

/* Returns the bytes of a row of x. */
static size_t linear_input_bytes(const kern_linear *l)
{
    return (size_t)l->in * (l->x_bf16 ? 2 : 4);
}

/* Converts n rows of x to operands at `row`, with their scales. */
static void fill_operand(const cpu_queue *q, const kern_linear *l, const char *x, int n, char *row, float *scale)
{
    const size_t in = linear_input_bytes(l), width = (size_t)l->words * 4;
    if (l->type == GEMM_INT4) {
        for (int r = 0; r < n; r++, row += l->row_bytes) l->kernel->operand(x + (size_t)r * in, l->x_bf16, l->in, row);
        return;
    }
    if (l->type != GEMM_INT8) {
        for (int r = 0; r < n; r++, row += l->row_bytes) {
            memcpy(row, x + (size_t)r * in, in);
            memset(row + in, 0, width - in);
        }
        return;
    }
    q->d->rows->quantise(x, n, l->in, l->kernel->zero, l->kernel->wide, row, l->row_bytes, scale, l->x_bf16);
    const size_t made = (size_t)l->in << l->kernel->wide, whole = width << l->kernel->wide;
    for (int r = 0; r < n; r++, row += l->row_bytes) memset(row + made, l->kernel->zero, whole - made);
}

typedef struct {
    cpu_queue *q;
    const kern_linear *l;
    const char *x;
} operand_loop;

static void operand_body(void *arg, int first, int last, int thread)
{
    const operand_loop *c = arg;
    (void)thread;
    fill_operand(c->q, c->l, c->x + (size_t)first * linear_input_bytes(c->l), last - first,
                 (char *)c->q->operand + (size_t)first * c->l->row_bytes, (float *)c->q->operand_scale + first);
}

/* Returns the product's operand: x itself, or x converted to the queue's buffer, valid until the next call. */
static const void *linear_operand(cpu_queue *q, const kern_linear *l, const void *x, int rows)
{
    if (!l->copies) return x;
    operand_loop c = {q, l, x};
    cpu_for(q, rows, 16.0 * rows * l->in, operand_body, &c);
    return q->operand;
}

/* --- products ------------------------------------------------------------------------------------------------------
 */

cpu_cut cpu_cut_product(int threads, int blocks, int rows, cpu_cut coarsest, int parts)
{
    enum { FEW_ROWS = 12, ROWS = 6, MORE_ROWS = 2, MORE_COLS = 2 }; /* ROWS: the fewest of a strip */
    cpu_cut best = coarsest, c = coarsest;
    const int units = cpu_divide_up(rows, c.unit), most = cpu_lesser(units, rows / ROWS);
    double least = INFINITY;
    if (rows <= FEW_ROWS) return coarsest;
    for (; c.strips == coarsest.strips || (c.strips <= most && (c.strips - 2) * blocks < 4 * threads); c.strips++)
        for (c.parts = 1; c.parts <= parts; c.parts++) {
            const int jobs = cpu_divide_up(blocks * c.parts * c.strips, threads);
            const int tall = cpu_lesser(rows, c.unit * cpu_divide_up(units, c.strips));
            const double cost = (double)jobs * (tall + MORE_ROWS) * (GEMM_COLS / c.parts + MORE_COLS);
            if (cost < least) least = cost, best = c;
        }
    return best;
}

int cpu_cut_row(const cpu_cut *c, int rows, int strip)
{
    return cpu_lesser(rows, c->unit * parallel_part(cpu_divide_up(rows, c->unit), c->strips, strip));
}

/* Returns the weights of part number `part` of the blocks, each divided into `parts`. In a panel a word's columns are
 * neighbours. */
static const char *linear_weights(const kern_linear *l, int parts, int part)
{
    const size_t half = l->kernel->panel > GEMM_COLS / 2 ? 4 * GEMM_COLS / 2 : l->weight_bytes / 2;
    return l->block + (size_t)(part / parts) * l->block_bytes + (size_t)(part % parts) * half;
}

/* Computes `count` rows of the columns of parts from .. to-1 of the blocks, each divided into `parts`. x is the operand
 * at the first of the rows, `scale` its scales, y the results at the first of these rows and columns, y_stride elements
 * apart. `next` is prefetched with the last part. `near`: the thread has just read the weights. */
static void run_blocks(const kern_linear *l, const void *x, const float *scale, int count, void *y, size_t y_stride,
                       const gemm_gate *gate, int parts, int from, int to, const char *next, int near)
{
    const gemm_rows rows = {.base = x,
                            .stride = l->row_bytes,
                            .parts = 1,
                            .words = l->words,
                            .w_words = (int)(l->weight_bytes / (4 * GEMM_COLS))};
    const int width = GEMM_COLS / parts, results = l->halves ? GEMM_HALF : width;
    for (int b = from; b < to; b++) {
        const size_t column = (size_t)b * (size_t)width, result = (size_t)((b - from) * results);
        const char *block = linear_weights(l, parts, b);
        gemm_gate here;
        if (gate) {
            here = *gate;
            here.base += column * (gate->f32 ? sizeof(float) : sizeof(uint16_t));
        }
        gemm_out out = {
            .bias = l->bias + column,
            .activation = l->activation,
            .swiglu = l->halves > 0,
            .cols = l->halves ? GEMM_HALF + cpu_lesser(l->halves - b * GEMM_HALF, GEMM_HALF)
                              : cpu_lesser(l->out - b * width, width),
            .y = (char *)y + result * (size_t)l->out_size,
            .y_stride = y_stride,
            .y_bf16 = l->out_size == 2,
            .add = gate || l->flags & KERN_OUT_ADD,
            .gate = gate ? &here : NULL,
        };
        if (l->type == GEMM_INT8) {
            out.x_scale = scale;
            const char *whole = linear_weights(l, 1, b / parts);
            out.w_scale = (const float *)(const void *)(whole + l->weight_bytes) + b % parts * width;
            out.offset = (const int32_t *)(out.w_scale + GEMM_COLS);
        }
        const char *follows = near ? block : linear_weights(l, parts, b + 1);
        if (b + 1 == to) follows = next ? next : near ? block : NULL;
        l->kernel->product(&rows, count, block, follows, &out);
    }
    if (l->kernel->end) l->kernel->end();
}

/* Returns the result in row `row` of y, the first column of part `part` of the blocks. */
static char *result_at(const kern_linear *l, void *y, int row, int parts, int part)
{
    const size_t column = (size_t)part * (size_t)(l->halves ? GEMM_HALF : GEMM_COLS / parts);
    return (char *)y + ((size_t)row * (size_t)l->y_stride + column) * (size_t)l->out_size;
}

/* Returns the gate of rows from `row` on. */
static gemm_gate gate_from(gemm_gate gate, int row)
{
    gate.base += gate.index ? 0 : (size_t)row * gate.stride;
    if (gate.index) gate.index += row;
    return gate;
}

/* Jobs are numbered part by part of the blocks, and strip by strip of the rows within one. */
typedef struct {
    const cpu_queue *q;
    const kern_linear *l, *next;
    const void *x; /* the operand */
    int rows;
    void *y;
    const gemm_gate *gate;
    cpu_cut cut;
    int parts; /* of all blocks */
    int width; /* threads the jobs are divided among */
} columns_loop;

/* Returns what a thread reads after the jobs before `last`: after its last one its part of the next layer. */
static const char *columns_after(const columns_loop *c, int last)
{
    const int jobs = c->parts * c->cut.strips;
    for (int r = 0; c->next && r < c->width; r++)
        if (last == parallel_part(jobs, c->width, r + 1))
            return linear_weights(c->next, 1, parallel_part(c->next->blocks, c->width, r));
    return last < jobs ? linear_weights(c->l, c->cut.parts, last / c->cut.strips) : NULL;
}

static void columns_body(void *arg, int first, int last, int thread)
{
    const columns_loop *c = arg;
    const kern_linear *l = c->l;
    const int strips = c->cut.strips, parts = c->cut.parts;
    (void)thread;
    for (int job = first, end; job < last; job = end) {
        const int part = job / strips, row = cpu_cut_row(&c->cut, c->rows, job % strips);
        end = strips == 1 ? last : job + 1;
        const int near = job > first && job % strips > 0, count = cpu_cut_row(&c->cut, c->rows, job % strips + 1) - row;
        const int ahead = part + 1 < c->parts && !near;
        const char *next = ahead ? linear_weights(l, parts, part + 1) : NULL;
        const gemm_gate gate = c->gate ? gate_from(*c->gate, row) : (gemm_gate){0};
        run_blocks(l, (const char *)c->x + (size_t)row * l->row_bytes, (const float *)c->q->operand_scale + row, count,
                   result_at(l, c->y, row, parts, part), (size_t)l->y_stride, c->gate ? &gate : NULL, parts, part,
                   strips == 1 ? part + last - first : part + 1, end == last ? columns_after(c, last) : next, near);
    }
}

void cpu_linear_columns(cpu_queue *q, const kern_linear *l, const void *x, int rows, void *y, const gemm_gate *gate,
                        const kern_linear *next)
{
    const int halves = l->kernel->takes_parts && !l->halves;
    const cpu_cut whole = {1, 1, l->kernel->end ? UNIT : 1};
    const cpu_cut cut = cpu_cut_product(q->d->threads, l->blocks, rows, whole, halves ? 2 : 1);
    columns_loop c = {.q = q,
                      .l = l,
                      .next = next,
                      .x = linear_operand(q, l, x, rows),
                      .rows = rows,
                      .y = y,
                      .gate = gate,
                      .cut = cut,
                      .parts = cut.parts == 1 ? l->blocks : cpu_divide_up(l->out, GEMM_COLS / 2),
                      .width = parallel_width(q->client)};
    cpu_for(q, c.parts * cut.strips, (double)rows * l->in * l->out, columns_body, &c);
}

void cpu_linear_join(const kern_linear *l, cpu_layers *layers)
{
    if (l->copies && l->row_bytes > layers->operand_bytes) layers->operand_bytes = l->row_bytes;
    layers->weight_bytes += (size_t)l->blocks * l->block_bytes;
    layers->in_tiles |= l->kernel->end != NULL;
}

void cpu_linear_rows(const cpu_queue *q, const kern_linear *l, const cpu_layers *layers, const void *x, int first,
                     int last, void *y, const gemm_gate *gate, const kern_linear *next)
{
    const char *rows = (const char *)x + (size_t)first * linear_input_bytes(l);
    float *scale = (float *)q->operand_scale + first;
    const gemm_gate here = gate ? gate_from(*gate, first) : (gemm_gate){0};
    if (l->copies) {
        char *operand = (char *)q->operand + (size_t)first * layers->operand_bytes;
        fill_operand(q, l, rows, last - first, operand, scale);
        rows = operand;
    }
    run_blocks(l, rows, scale, last - first, result_at(l, y, first, 1, 0), (size_t)l->y_stride, gate ? &here : NULL, 1,
               0, l->blocks, next ? next->block : NULL, 0);
}

/* Tiles are numbered strip by strip, and panel by panel within a strip of rows. A thread's tiles are then in few
 * strips, whose rows it has in cache, and neighbours share a panel. */
typedef struct {
    int strips, across, panels; /* across: tiles of at most GEMM_ROWS rows */
} tile_grid;

/* Chooses the number of strips that makes a thread's part of the result about square: it then reads as much of x as of
 * the weights. Panels fit in L2, and there are enough tiles for every thread. */
static tile_grid grid_of(const cpu_queue *q, const kern_linear *l, int rows)
{
    const int threads = q->d->threads;
    int across = cpu_divide_up(rows, GEMM_ROWS);
    if (l->blocks * across < 4 * threads)
        across = cpu_cut_product(threads, l->blocks, rows, (cpu_cut){across, 1, UNIT}, 1).strips;
    const int strips = (int)ceil(sqrt((double)threads * rows / l->out)), most = cpu_lesser(threads, across);
    const int fit = (int)(PANEL_BYTES / l->block_bytes), fair = cpu_divide_up(4 * threads, across);
    const int panels = fit > 1 ? cpu_divide_up(l->blocks, fit) : l->blocks;
    return (tile_grid){cpu_lesser(strips, most), across, cpu_lesser(panels > fair ? panels : fair, l->blocks)};
}

/* Returns 1 if the previous tile is of the same strip and panel: its thread, nearly always this one, has just read the
 * weights. */
static int linear_place(const tile_grid *g, int tile, int *panel, int *across)
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

typedef struct {
    cpu_queue *q;
    const kern_linear *l;
    const void *x; /* the operand */
    int rows;
    void *y;
    tile_grid grid;
    kern_activation activation; /* of gated results */
    char *pairs;                /* for each thread the rows of a tile, gated from two blocks; NULL: results are whole */
} tiles_loop;

/* Returns the first row of a tile. The rows are divided evenly: a tile of the few that remain would read all weights
 * for them. */
static int tile_row(const tiles_loop *t, int across)
{
    return cpu_cut_row(&(cpu_cut){t->grid.across, 1, UNIT}, t->rows, across);
}

/* Returns the row after those of a tile if the thread goes on with it, to prefetch: it comes from memory. The kernels
 * of AMX and int4 take only a block. */
static const char *row_after(const tiles_loop *t, int across, int goes_on)
{
    return goes_on && t->l->kernel->takes_parts && across + 1 < t->grid.across
               ? (const char *)t->x + (size_t)tile_row(t, across + 1) * t->l->row_bytes
               : NULL;
}

static void tiles_body(void *arg, int first, int last, int thread)
{
    const tiles_loop *t = arg;
    const kern_linear *l = t->l;
    (void)thread;
    for (int tile = first; tile < last; tile++) {
        int panel, across;
        const int near = linear_place(&t->grid, tile, &panel, &across), row = tile_row(t, across);
        const int from = parallel_part(l->blocks, t->grid.panels, panel);
        run_blocks(l, (const char *)t->x + (size_t)row * l->row_bytes, (const float *)t->q->operand_scale + row,
                   tile_row(t, across + 1) - row, result_at(l, t->y, row, 1, from), (size_t)l->y_stride, NULL, 1, from,
                   parallel_part(l->blocks, t->grid.panels, panel + 1), row_after(t, across, tile + 1 < last), near);
    }
}

void cpu_linear_run(cpu_queue *q, const kern_linear *l, const void *x, int rows, void *y)
{
    tiles_loop t = {
        .q = q, .l = l, .x = linear_operand(q, l, x, rows), .rows = rows, .y = y, .grid = grid_of(q, l, rows)};
    cpu_for(q, t.grid.panels * t.grid.across, (double)rows * l->in * l->out, tiles_body, &t);
}

/* Computes a block of a tile's rows and the block that its activation is multiplied with, and gates them in cache. */
static void pairs_body(void *arg, int first, int last, int thread)
{
    const tiles_loop *t = arg;
    const kern_linear *l = t->l;
    const int pairs = l->blocks / 2;
    const size_t size = (size_t)l->out_size, width = 2 * GEMM_COLS, y_stride = (size_t)(l->out / 2);
    char *own = t->pairs + (size_t)thread * GEMM_ROWS * width * size;
    for (int tile = first; tile < last; tile++) {
        int panel, across;
        const int near = linear_place(&t->grid, tile, &panel, &across), row = tile_row(t, across);
        const int count = tile_row(t, across + 1) - row;
        const char *x = (const char *)t->x + (size_t)row * l->row_bytes;
        const float *scale = (const float *)t->q->operand_scale + row;
        const int from = parallel_part(pairs, t->grid.panels, panel),
                  to = parallel_part(pairs, t->grid.panels, panel + 1);
        for (int p = from; p < to; p++) {
            const char *other = l->block + (size_t)(pairs + p) * l->block_bytes;
            const char *next =
                p + 1 < to ? l->block + (size_t)(p + 1) * l->block_bytes : row_after(t, across, tile + 1 < last);
            run_blocks(l, x, scale, count, own, width, NULL, 1, p, p + 1, near ? NULL : other, near);
            run_blocks(l, x, scale, count, own + GEMM_COLS * size, width, NULL, 1, pairs + p, pairs + p + 1,
                       near && p + 1 < to ? NULL : next, near);
            for (int r = 0; r < count; r++) {
                const char *a = own + (size_t)r * width * size;
                const size_t at = (size_t)(row + r) * y_stride + (size_t)p * GEMM_COLS;
                t->q->d->rows->gated(a, a + GEMM_COLS * size, GEMM_COLS, t->activation, (char *)t->y + at * size,
                                     t->q->d->bf16);
            }
        }
    }
}

void cpu_linear_gated(kern_queue *k, const kern_linear *l, const act *x, int rows, kern_activation activation,
                      act *hidden, act *y)
{
    cpu_queue *q = cpu_of(k);
    /* `hidden` has room for a tile of each thread, and its numbers have the size of y's */
    const int whole = l->out % (2 * GEMM_COLS) == 0 && rows >= q->d->threads * GEMM_ROWS && !l->halves &&
                      !(l->flags & (KERN_OUT_F32 | KERN_OUT_ADD));
    if (!whole || rows <= GEMM_ROWS || k->watch.on) { /* the watch reads `hidden` */
        cpu_linear(k, l, x, rows, hidden);
        cpu_gated(k, hidden, rows, l->out / 2, activation, y);
        return;
    }
    if (!kern_live(k) || !cpu_linear_ready(q, l, rows)) return;
    tiles_loop t = {.q = q,
                    .l = l,
                    .x = linear_operand(q, l, x, rows),
                    .rows = rows,
                    .y = y,
                    .grid = grid_of(q, l, rows),
                    .activation = activation,
                    .pairs = hidden};
    t.grid.panels = cpu_lesser(t.grid.panels, l->blocks / 2);
    cpu_for(q, t.grid.panels * t.grid.across, (double)rows * l->in * l->out, pairs_body, &t);
}

int cpu_linear_ready(cpu_queue *q, const kern_linear *l, int rows)
{
    const size_t n = (size_t)rows;
    const int fits = n * l->row_bytes <= q->operand_bytes && n * sizeof(float) <= q->scale_bytes;
    return cpu_planned(q, !l->copies || fits, "product of %d rows with %d x %d weights", rows, l->out, l->in);
}

void cpu_linear(kern_queue *k, const kern_linear *l, const void *x, int rows, void *y)
{
    cpu_queue *q = cpu_of(k);
    if (rows <= 0 || !kern_live(k) || !cpu_linear_ready(q, l, rows)) return;
    if (rows <= GEMM_ROWS)
        cpu_linear_columns(q, l, x, rows, y, NULL, l->next);
    else
        cpu_linear_run(q, l, x, rows, y);
}
