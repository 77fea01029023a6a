/* Compiled for AMX-BF16 with KERN_TYPE=bf16 and for AMX-INT8 with KERN_TYPE=int8, and chosen at run time (isa.c).
 *
 * A product holds sums of up to 16 rows x 64 columns in four of the eight tiles. A step of 16 words takes one tile of x
 * and four of weights, adjacent in memory: 4 KiB of a block. With more than 16 rows a chunk of the block is used for
 * all groups of rows while it is near. Sums wait in memory from one chunk to the next. The last group's sums stay: it
 * is the first group of the next chunk.
 *
 * Meanwhile the next chunk is prefetched into L1, a few lines with each product. A product that waits for a tile stalls
 * the following ones, so a burst of fetches would leave memory idle as long (bench/LAB.md). With several groups of rows
 * products take long enough to leave it idle all the same, so what lies FAR ahead is prefetched into L2. */
#define IS_int8      0
#define IS_bf16      1
#define PASTE_(a, b) a##_##b
#define PASTE(a, b)  PASTE_(a, b)
#define BF16         PASTE(IS, KERN_TYPE)

#include "kernels/cpu/gemm/amx.h"
#include "kernels/cpu/gemm/epilogue.h"
#include "kernels/cpu/gemm/softmax.h"

#include <string.h>

enum {
    GROUP = 16,             /* rows of a tile */
    ROWS = 64,              /* rows of a pass over a block; their sums stay in L1 */
    TILE = 64,              /* bytes of a row of a tile */
    ROW = GEMM_COLS * 4,    /* bytes of a row of sums, and of a block's word */
    STEP = GEMM_STEP * ROW, /* bytes of a step of a block */
    LINES = STEP / 64,      /* cache lines of a step */
    CHUNK = 2,              /* steps shared by groups of rows: 8 KiB in L1, and as many in flight */
    AGAIN = 4,              /* the same for a block read by several passes: arithmetic then outlasts memory */
    NEAR = 8,               /* the same with nothing in flight */
    FAR = 16384,            /* bytes from a line prefetched into L1 to that prefetched into L2 */
};

#if BF16
#define MULTIPLY_ADD(acc, a, b) _tile_dpbf16ps(acc, a, b)
#else
#define MULTIPLY_ADD(acc, a, b) _tile_dpbusd(acc, a, b)
#endif

static _Thread_local int configured; /* rows of this thread's tiles; 0: not configured */

/* Configures tiles 0..3 as sums and 4 as x, of `rows` rows, and 5 as weights. Other tiles stay unused. Every load and
 * product occupies a tile until it is done, and a core whose other thread works has few to spare. Each idle configured
 * tile costs one (bench/LAB.md). */
static void amx_configure_tiles(int rows)
{
    if (rows == configured) return; /* costs as much as 20 products */
    amx_config c = {.palette = 1};
    for (int t = 0; t < 6; t++) {
        c.row_bytes[t] = TILE;
        c.rows[t] = (uint8_t)(t < 5 ? rows : GEMM_STEP);
    }
    amx_configure(&c);
    configured = rows;
}

static void amx_end(void)
{
    if (configured) _tile_release();
    configured = 0;
}

/* Multiplies 16 columns of a step. First prefetches the lines of `next` from lines * tile / 4 to lines * (tile + 1) /
 * 4, and those FAR behind them. */
#define PRODUCT(tile)                                                                                                  \
    for (const char *end = next + lines * ((tile) + 1) / 4 * 64, *at = next + lines * (tile) / 4 * 64; at < end;       \
         at += 64) {                                                                                                   \
        _mm_prefetch(at, _MM_HINT_T0);                                                                                 \
        _mm_prefetch(at + FAR, _MM_HINT_T1);                                                                           \
    }                                                                                                                  \
    _tile_loadd(5, w + (tile)*TILE, ROW);                                                                              \
    MULTIPLY_ADD(tile, 4, 5)

/* Adds x w over `steps` steps to the tiles of sums. x's rows are x_stride bytes apart. Prefetches `lines` lines of
 * `next` with each step. */
static inline __attribute__((always_inline)) void accumulate(const char *x, size_t x_stride, const char *w, int steps,
                                                             const char *next, int lines)
{
    __asm__ volatile("" ::: "memory"); /* compilers do not know that tiles read memory */
    for (int s = 0; s < steps; s++, x += TILE, w += STEP, next += lines * 64) {
        _tile_loadd(4, x, x_stride);
        PRODUCT(0);
        PRODUCT(1);
        PRODUCT(2);
        PRODUCT(3);
    }
}

static inline void amx_clear(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

static inline void amx_load(const char *sum)
{
    _tile_loadd(0, sum, ROW);
    _tile_loadd(1, sum + TILE, ROW);
    _tile_loadd(2, sum + 2 * TILE, ROW);
    _tile_loadd(3, sum + 3 * TILE, ROW);
}

static inline void amx_store(char *sum)
{
    _tile_stored(0, sum, ROW);
    _tile_stored(1, sum + TILE, ROW);
    _tile_stored(2, sum + 2 * TILE, ROW);
    _tile_stored(3, sum + 3 * TILE, ROW);
}

/* A pass: `rows` rows of x in groups of `tall` rows; the last group may overlap the one before. */
typedef struct {
    const char *x;
    size_t stride; /* bytes of a row */
    int rows, words, steps, tall, groups;
    char *tail; /* [groups * GROUP][TILE] last words of x, zero-padded, if they do not fill a step */
    char *sum;  /* [groups * GROUP][ROW] */
    const gemm_out *out;
    int first; /* number of its row 0 among those of out */
} pass;

static int amx_first_row(const pass *p, int group)
{
    return group * p->tall + p->tall <= p->rows ? group * p->tall : p->rows - p->tall;
}

/* Runs the epilogue for the group's rows that are not in the previous group. */
static void amx_finish(const pass *p, int group)
{
    const int from = amx_first_row(p, group), skip = group * p->tall - from;
    gemm_finish(p->sum + (group * GROUP + skip) * ROW, !BF16, 0, p->tall - skip, p->first + from + skip, p->out);
}

/* Runs steps first .. last-1 of all groups, from the last group on if `back`. Prefetches `all` lines of `next` a step,
 * spread over the groups. */
static void run_steps(const pass *p, const char *block, int first, int last, int back, const char *next, int all)
{
    const int whole = p->words / GEMM_STEP, straight = (last < whole ? last : whole) - first;
    for (int i = 0; i < p->groups; i++) {
        const int g = back ? p->groups - 1 - i : i;
        const int from = all * i / p->groups, lines = all * (i + 1) / p->groups - from;
        const char *x = p->x + (size_t)amx_first_row(p, g) * p->stride + (size_t)first * TILE;
        const char *w = block + (size_t)first * STEP, *ahead = next + (size_t)(from * (last - first)) * 64;
        char *sum = p->sum + g * GROUP * ROW;
        if (first == 0)
            amx_clear();
        else if (i > 0)
            amx_load(sum);
        if (lines == LINES) /* constant for the compiler */
            accumulate(x, p->stride, w, straight, ahead, LINES);
        else
            accumulate(x, p->stride, w, straight, ahead, lines);
        if (last > whole)
            accumulate(p->tail + g * GROUP * TILE, TILE, block + (size_t)whole * STEP, 1, ahead + straight * lines * 64,
                       lines);
        if (i < p->groups - 1 || last == p->steps) amx_store(sum);
        if (last == p->steps) amx_finish(p, g);
    }
}

static void copy_tail(const pass *p)
{
    const size_t left = (size_t)(p->words % GEMM_STEP) * 4, end = (size_t)p->words * 4;
    memset(p->tail, 0, (size_t)p->groups * GROUP * TILE);
    for (int g = 0; g < p->groups; g++)
        for (int r = 0; r < p->tall; r++)
            memcpy(p->tail + (g * GROUP + r) * TILE, p->x + (size_t)(amx_first_row(p, g) + r) * p->stride + end - left,
                   left);
}

static void amx_product(const gemm_rows *x, int rows, const void *block, const void *next, const gemm_out *out)
{
    _Alignas(64) char sum[ROWS * ROW], tail[ROWS * TILE];
    const int words = x->words, steps = (words + GEMM_STEP - 1) / GEMM_STEP, passes = (rows + ROWS - 1) / ROWS;
    for (int i = 0, first = 0; i < passes; i++) {
        pass p = {.stride = x->stride,
                  .rows = (rows - first) / (passes - i),
                  .words = words,
                  .steps = steps,
                  .tail = tail,
                  .sum = sum,
                  .out = out,
                  .first = first};
        p.x = x->base + (size_t)first * p.stride;
        p.groups = (p.rows + GROUP - 1) / GROUP;
        p.tall = (p.rows + p.groups - 1) / p.groups;
        amx_configure_tiles(p.tall);
        if (words % GEMM_STEP) copy_tail(&p);
        const char *w = block, *after = i == passes - 1 && next ? next : block;
        const int near = next == block, chunk = near ? NEAR : passes > 1 ? AGAIN : CHUNK;
        for (int s = 0, back = 0; s < steps; s += chunk, back = !back) {
            const int end = s + chunk < steps ? s + chunk : steps;
            run_steps(&p, w, s, end, back, end < steps ? w + (size_t)end * STEP : after, near ? 0 : LINES);
        }
        first += p.rows;
    }
}

#if BF16
static float amx_softmax(float *s, int n, float scale, void *y)
{
    return softmax_weights(s, n, scale, y);
}
#define AMX_KERNEL gemm_bf16_amx_bf16
#else
#define AMX_KERNEL gemm_int8_amx_int8
#endif
extern const gemm_kernel AMX_KERNEL;
const gemm_kernel AMX_KERNEL = {
    .unit = BF16 ? "amx_bf16" : "amx_int8",
    .step = GEMM_STEP,
    .panel = GEMM_COLS,
    .zero = GEMM_ZERO,
    .native = 1,
    .product = amx_product,
#if BF16
    .softmax = amx_softmax,
#endif
    .end = amx_end,
};
