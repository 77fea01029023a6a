/* Attention over a cache with AMX (cached.h). A tile product gives one head's scores of 16 slots and all queries; keys
 * are read in the cache's own layout. Scores lie slot by slot, a slot's (query, head) pairs side by side, so that the
 * softmax takes 16 pairs at a time. Sums over slots add one slot after the other and skip slots the row does not attend
 * to. */
#include "kernels/cpu/cached.h"
#include "kernels/cpu/gemm/amx.h"
#include "kernels/cpu/gemm/vector.h"
#include "kernels/cpu/rows.h"

#include <math.h>

cached_attend kern_cached_amx;

enum {
    WORDS = 16, /* bf16 pairs in a row of a tile */
    DEPTH = 32, /* numbers of a head that a tile product sums */
    SLOTS = CACHED_SLOTS,
    VECTORS = 4,  /* vectors of a row's sums held in registers */
    TOGETHER = 4, /* rows accumulated together */
};

_Static_assert((int)CACHED_SLOTS == (int)LANES && (int)CACHED_QUERIES <= (int)LANES, "a tile has room for them");

/* A task's working memory. Pair h * queries + i is query i of head h of the keys; query i is of row i / group. */
typedef struct {
    int pairs, queries, slots; /* queries: of a head */
    size_t across;             /* pairs, padded to whole vectors */
    uint32_t *q;               /* [heads][dim / 2][queries] pairs of bf16 */
    float *sum;                /* [pairs][dim] */
    float *score;              /* [slots, padded to whole tiles][across], later the weights */
    void *chunk;               /* [SLOTS][dim] keys, bf16, or values, float, of one head */
    int *slot;                 /* [slots] */
    uint16_t *query_mask;      /* [slots] bit i: query i attends to it */
    float scale[CACHED_PAIRS]; /* factor of a pair's weights: 1 / their sum */
} workspace;

/* Configures tile 0 as scores (slot by query), 1 as keys (a slot a row) and 2 as queries (a word a row). */
static void configure(int queries)
{
    amx_config c = {.palette = 1};
    for (int t = 0; t < 3; t++) {
        c.row_bytes[t] = (uint16_t)(4 * (t == 1 ? WORDS : queries));
        c.rows[t] = t == 2 ? WORDS : SLOTS;
    }
    amx_configure(&c);
}

/* Returns the bytes from a row's first query to query i of head h. */
static inline size_t query_at(const cached_task *t, int h, int i)
{
    return (size_t)((h * t->group + i % t->group) * t->dim) * 2;
}

/* Copies queries to the layout of a tile's second factor: word k of all queries, then the next word. */
static void copy_queries(const cached_task *t, const workspace *w)
{
    for (int h = 0; h < t->heads; h++)
        for (int i = 0; i < w->queries; i++) {
            const char *from = t->q + (size_t)(i / t->group) * t->q_stride + query_at(t, h, i);
            uint32_t *to = w->q + (size_t)(h * t->dim / 2 * w->queries + i);
            for (int k = 0; k < t->dim / 2; k++) memcpy(to + k * w->queries, from + k * 4, 4);
        }
}

/* Turns the bits of rows into bits of their queries. */
static void mask_queries(const cached_task *t, const workspace *w)
{
    for (int j = t->common; j < w->slots && t->group > 1; j++) {
        unsigned bits = 0;
        for (int i = 0; i < w->queries; i++) bits |= (w->query_mask[j] >> i / t->group & 1u) << i;
        w->query_mask[j] = (uint16_t)bits;
    }
}

/* Prefetches a head's numbers of the slots first .. of a chunk, up to the end of the list. */
static inline void fetch(const cached_task *t, const workspace *w, const char *base, int first)
{
    for (int i = first; i < w->slots && i < first + SLOTS; i++)
        for (int j = 0; j < t->dim * 2; j += 64)
            __builtin_prefetch(base + (size_t)w->slot[i] * t->slot_stride + j, 0, 2);
}

/* Computes the scores of the chunk of slots that begins with number `first`. Scores beyond the last slot come from
 * stale data and are never read. */
static void add_scores(const cached_task *t, const workspace *w, int first)
{
    const int count = w->slots - first < SLOTS ? w->slots - first : SLOTS;
    const size_t head = (size_t)t->dim * 2;
    char *keys = w->chunk;
    for (int h = 0; h < t->heads; h++) {
        const char *base = t->key + (size_t)h * head;
        const uint32_t *q = w->q + (size_t)(h * t->dim / 2 * w->queries);
        for (int i = 0; i < count; i++)
            for (size_t j = 0; j < head; j += 64)
                _mm512_storeu_si512(keys + (size_t)i * head + j,
                                    _mm512_loadu_si512(base + (size_t)w->slot[first + i] * t->slot_stride + j));
        if (first + SLOTS < w->slots)
            fetch(t, w, base, first + SLOTS);
        else
            fetch(t, w, t->value + (size_t)h * head, 0);
        __asm__ volatile("" ::: "memory"); /* compilers do not know that tiles read memory */
        _tile_zero(0);
        for (int d = 0; d < t->dim; d += DEPTH, q += WORDS * w->queries) {
            _tile_loadd(1, keys + d * 2, head);
            _tile_loadd(2, q, (size_t)w->queries * 4);
            _tile_dpbf16ps(0, 1, 2);
        }
        _tile_stored(0, w->score + (size_t)first * w->across + h * w->queries, w->across * sizeof(float));
    }
}

/* Gives slots a query does not attend to the weight 0. */
static void mask_slots(const cached_task *t, const workspace *w)
{
    for (int i = t->common; i < w->slots; i++)
        for (int n = 0; n < w->queries; n++) {
            if (w->query_mask[i] >> n & 1) continue;
            for (int h = 0; h < t->heads; h++)
                w->score[(size_t)i * w->across + (size_t)(h * w->queries + n)] = -INFINITY;
        }
}

/* Turns scores into weights, without the factor 1 / their sum. */
static void softmax(const cached_task *t, workspace *w)
{
    const __m512 scale = _mm512_set1_ps(1.0f / sqrtf((float)t->dim)), none = _mm512_set1_ps(-INFINITY);
    for (size_t p = 0; p < w->across; p += LANES) {
        __m512 top = none, sum = _mm512_setzero_ps();
        float *at = w->score + p;
        for (int i = 0; i < w->slots; i++) top = _mm512_max_ps(_mm512_loadu_ps(at + (size_t)i * w->across), top);
        for (int i = 0; i < w->slots; i++) {
            const __m512 s = _mm512_loadu_ps(at + (size_t)i * w->across);
            const __mmask16 known = _mm512_cmp_ps_mask(s, none, _CMP_NEQ_UQ);
            const floats x = (floats)_mm512_mul_ps(_mm512_sub_ps(s, top), scale);
            const __m512 e = _mm512_maskz_mov_ps(known, (__m512)exp_v(x));
            sum = _mm512_add_ps(sum, e);
            _mm512_storeu_ps(at + (size_t)i * w->across, e);
        }
        _mm512_storeu_ps(w->scale + p, _mm512_div_ps(_mm512_set1_ps(1.0f), sum));
    }
}

/* sum[r] += weight[i][r] * value[i] for `rows` queries and slots i < count, `vectors` vectors each. Bit row + r of
 * query_mask[i]: query r attends to slot i; NULL: all attend to all. */
static inline __attribute__((always_inline)) void add_part(const int rows, const int vectors, const float *weight,
                                                           size_t across, const float *value, size_t width,
                                                           const uint16_t *query_mask, int row, int count, float *sum)
{
    __m512 s[TOGETHER][VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) s[r][v] = _mm512_loadu_ps(sum + (size_t)r * width + v * LANES);
    for (int i = 0; i < count; i++, weight += across, value += width) {
        __m512 x[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) x[v] = _mm512_loadu_ps(value + v * LANES);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const __m512 a = _mm512_set1_ps(weight[r]);
            const __mmask16 known = (__mmask16)(query_mask && !(query_mask[i] >> (row + r) & 1) ? 0 : 0xffff);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                s[r][v] =
                    query_mask ? _mm512_mask3_fmadd_ps(a, x[v], s[r][v], known) : _mm512_fmadd_ps(a, x[v], s[r][v]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) _mm512_storeu_ps(sum + (size_t)r * width + v * LANES, s[r][v]);
}

/* Adds all numbers of a head, for `rows` queries. */
static inline __attribute__((always_inline)) void add_rows(const int rows, const float *weight, size_t across,
                                                           const float *value, size_t width, const uint16_t *query_mask,
                                                           int row, int count, float *sum)
{
    size_t j = 0;
    for (; j + VECTORS * LANES <= width; j += VECTORS * LANES) {
        if (query_mask)
            add_part(rows, VECTORS, weight, across, value + j, width, query_mask, row, count, sum + j);
        else
            add_part(rows, VECTORS, weight, across, value + j, width, NULL, row, count, sum + j);
    }
    if (j < width) add_part(rows, DEPTH / LANES, weight, across, value + j, width, query_mask, row, count, sum + j);
}

/* Adds the weighted values of the chunk of slots that begins with number `first`. */
static void add_values(const cached_task *t, const workspace *w, int first)
{
    const int count = w->slots - first < SLOTS ? w->slots - first : SLOTS;
    const size_t width = (size_t)t->dim;
    const uint16_t *query_mask = first + count > t->common ? w->query_mask + first : NULL;
    float *values = w->chunk;
    for (int h = 0; h < t->heads; h++) {
        const char *base = t->value + (size_t)h * width * 2;
        for (int i = 0; i < count; i++)
            for (size_t j = 0; j < width; j += LANES) {
                const char *from = base + (size_t)w->slot[first + i] * t->slot_stride + j * 2;
                const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from));
                _mm512_storeu_si512(values + (size_t)i * width + j, _mm512_slli_epi32(bits, 16));
            }
        fetch(t, w, base, first + SLOTS);
        const float *weight = w->score + (size_t)first * w->across + h * w->queries;
        float *sum = w->sum + (size_t)(h * w->queries) * width;
        int r = 0;
        for (; r + TOGETHER <= w->queries; r += TOGETHER)
            add_rows(TOGETHER, weight + r, w->across, values, width, query_mask, r, count, sum + (size_t)r * width);
        for (; r < w->queries; r++)
            add_rows(1, weight + r, w->across, values, width, query_mask, r, count, sum + (size_t)r * width);
    }
}

static void store_results(const cached_task *t, const workspace *w)
{
    for (int p = 0; p < w->pairs; p++) {
        const __m512 scale = _mm512_set1_ps(w->scale[p]);
        const float *sum = w->sum + (size_t)p * (size_t)t->dim;
        const int h = p / w->queries, i = p % w->queries;
        char *y = t->y + (size_t)(i / t->group) * t->y_stride + query_at(t, h, i);
        for (int j = 0; j < t->dim; j += 2 * LANES) {
            const __m512 low = _mm512_mul_ps(_mm512_loadu_ps(sum + j), scale);
            const __m512 high = _mm512_mul_ps(_mm512_loadu_ps(sum + j + LANES), scale);
            _mm512_storeu_si512(y + (size_t)j * 2, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
    }
}

void kern_cached_amx(const cached_task *t, const kern_rows *rows)
{
    if (!t->bf16 || t->type != CACHED_BF16 || t->dim % DEPTH || t->group > CACHED_QUERIES) {
        rows->attend(t, rows);
        return;
    }
    const size_t pairs = (size_t)(t->rows * t->heads * t->group), width = (size_t)t->dim;
    const size_t length = cached_length(t->common + t->own);
    workspace w = {.pairs = (int)pairs, .queries = t->rows * t->group};
    w.across = (pairs + LANES - 1) / LANES * LANES;
    w.sum = t->work, w.score = w.sum + CACHED_PAIRS * width, w.q = (uint32_t *)(w.score + CACHED_PAIRS * length);
    w.chunk = w.q + CACHED_PAIRS * width / 2;
    w.slot = (int *)((float *)w.chunk + SLOTS * width);
    w.query_mask = (uint16_t *)(w.slot + length);
    w.slots = cached_list(t, w.slot, w.query_mask);
    mask_queries(t, &w);
    memset(w.sum, 0, pairs * width * sizeof *w.sum);
    copy_queries(t, &w);
    configure(w.queries);
    for (int i = 0; i < w.slots; i += SLOTS) add_scores(t, &w, i);
    _tile_release();
    mask_slots(t, &w);
    softmax(t, &w);
    for (int i = 0; i < w.slots; i += SLOTS) add_values(t, &w, i);
    store_results(t, &w);
}
