/* Attention over a cache with AMX (cached.h), a block of slots at a time. A tile product gives one head's scores of 16
 * slots and 16 queries; keys are read in the cache's own layout. Scores lie slot by slot, a slot's (query, head) pairs
 * side by side, so that 16 pairs are weighed at a time. Weights are relative to the largest score so far: sums are
 * scaled when a block has a larger one. A tile product then adds the weighted values of the block's slots. */
#include "kernels/cpu/cached.h"
#include "kernels/cpu/gemm/amx.h"
#include "kernels/cpu/gemm/vector.h"
#include "kernels/cpu/rows.h"

#include <float.h>
#include <math.h>

cached_attend kern_cached_amx;

enum {
    WORDS = 16,        /* bf16 pairs in a row of a tile */
    DEPTH = 2 * WORDS, /* numbers that a tile product sums: a head's for a score, slots' for a weighted sum */
    SLOTS = CACHED_SLOTS
};

_Static_assert((int)CACHED_SLOTS == (int)LANES && (int)CACHED_QUERIES <= 2 * (int)LANES, "tiles have room");

/* A task's working memory. Pair h * queries + i is query i of head h of the keys; query i is of row i / group. Of each
 * 32 numbers of a sum, the first 16 are the first four of each eight. */
typedef struct {
    int pairs, queries, slots; /* queries: of a head */
    size_t across;             /* pairs, padded to whole vectors */
    uint32_t *q;               /* [heads][dim / 2][queries] pairs of bf16 */
    float *sum;                /* [pairs][dim] weighted sums of the slots so far */
    float *top, *total;        /* [pairs] a pair's largest score, and the sum of its weights */
    float *score;              /* [slots of a block or of the rest, padded to whole tiles][across] */
    uint32_t *weight;          /* [pairs][WORDS] pairs of bf16: a block's weights */
    void *chunk;               /* of one head: [SLOTS][dim] keys, or [WORDS][dim][2] values */
    int *slot;                 /* [slots] */
    uint32_t *query_mask;      /* [slots] bit i: query i attends to it */
} workspace;

/* Returns how many of the queries are in a half: the first 16 at most, or the rest; 0 or less if there is none. */
static inline int in_half(int queries, int half)
{
    return half ? queries - LANES : queries < LANES ? queries : LANES;
}

/* Configures tiles 0 and 1 as scores of a half of the queries each (slot by query), 2 and 3 as the halves of the
 * queries (a word a row), and 4 as keys (a slot a row). */
static void configure_scores(int queries)
{
    amx_config c = {.palette = 1};
    for (int t = 0; t < 5; t++) {
        const int n = t == 4 ? WORDS : in_half(queries, t % 2);
        if (n <= 0) continue;
        c.row_bytes[t] = (uint16_t)(4 * n);
        c.rows[t] = LANES;
    }
    amx_configure(&c);
}

/* Configures tiles 0, 1 and 2, 3 as sums of a half of the queries (query by number), 4 and 5 as weights of a half
 * (query by slot), and 6 and 7 as values (two slots a row). */
static void configure_values(int queries)
{
    amx_config c = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        const int n = t < 4 ? in_half(queries, t / 2) : t < 6 ? in_half(queries, t - 4) : WORDS;
        if (n <= 0) continue;
        c.row_bytes[t] = 4 * WORDS;
        c.rows[t] = (uint8_t)n;
    }
    amx_configure(&c);
}

/* Returns the bytes from a row's first query to query i of head h. */
static inline size_t cached_amx_query(const cached_task *t, int h, int i)
{
    return (size_t)((h * t->group + i % t->group) * t->dim) * 2;
}

/* Copies queries to the layout of a tile's second factor: word k of all queries, then the next word. */
static void copy_queries(const cached_task *t, const workspace *w)
{
    for (int h = 0; h < t->heads; h++)
        for (int i = 0; i < w->queries; i++) {
            const char *from = t->q + (size_t)(i / t->group) * t->q_stride + cached_amx_query(t, h, i);
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
        w->query_mask[j] = bits;
    }
}

/* Computes a head's scores of up to SLOTS slots from number `first` on. Scores beyond the last slot come from stale
 * data and are never read. */
static void cached_amx_add_scores(const cached_task *t, const workspace *w, int h, int first, float *score)
{
    const int count = w->slots - first < SLOTS ? w->slots - first : SLOTS, two = w->queries > LANES;
    const size_t head = (size_t)t->dim * 2, stride = (size_t)w->queries * 4;
    const char *base = t->key + (size_t)h * head, *keys = w->chunk;
    const uint32_t *q = w->q + (size_t)(h * t->dim / 2 * w->queries);
    const int *slot = w->slot + first;
    size_t step = head;
    int next = 1; /* slots that follow each other in memory */
    while (next < count && slot[next] == slot[0] + next) next++;
    if (next == SLOTS)
        keys = base + (size_t)slot[0] * t->slot_stride, step = t->slot_stride;
    else
        for (int i = 0; i < count; i++)
            memcpy((char *)w->chunk + (size_t)i * head, base + (size_t)slot[i] * t->slot_stride, head);
    __asm__ volatile("" ::: "memory"); /* compilers do not know that tiles read memory */
    _tile_zero(0);
    if (two) _tile_zero(1);
    for (int d = 0; d < t->dim; d += DEPTH, q += WORDS * w->queries) {
        _tile_loadd(4, keys + d * 2, step);
        _tile_loadd(2, q, stride);
        _tile_dpbf16ps(0, 4, 2);
        if (!two) continue;
        _tile_loadd(3, q + LANES, stride);
        _tile_dpbf16ps(1, 4, 3);
    }
    score += h * w->queries;
    _tile_stored(0, score, w->across * sizeof(float));
    if (two) _tile_stored(1, score + LANES, w->across * sizeof(float));
}

/* Transposes 16 x 16 words. */
static inline void cached_amx_transpose(__m512i x[LANES])
{
    __m512i y[LANES];
    UNROLL
    for (int i = 0; i < LANES; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    UNROLL
    for (int i = 0; i < LANES; i += 4) {
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        const __m512i a = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88), b = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
        const __m512i c = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
        const __m512i d = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
        y[i] = _mm512_shuffle_i32x4(a, c, 0x88), y[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
        y[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd), y[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
    memcpy(x, y, sizeof y);
}

/* Turns the scores of up to DEPTH slots, rows at[] of w->score, for up to 16 pairs into weights. Updates w->top and
 * w->total, and scales w->sum to the new w->top. */
static void cached_amx_weigh(const cached_task *t, const workspace *w, __m512i pair, __mmask16 lanes, const int *at,
                             int count)
{
    const __m512 scale = _mm512_set1_ps(1.0f / sqrtf((float)t->dim)), zero = _mm512_setzero_ps();
    const __m512 before = _mm512_mask_i32gather_ps(zero, lanes, pair, w->top, 4);
    int number[LANES];
    __m512i tile[LANES];
    __m512 top = before, sum = zero, s[DEPTH];
    for (int i = 0; i < count; i++) {
        s[i] = _mm512_mask_i32gather_ps(zero, lanes, pair, w->score + (size_t)at[i] * w->across, 4);
        top = _mm512_max_ps(s[i], top);
    }
    for (int k = 0; k < WORDS; k++) {
        __m512i x[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        for (int i = 0; i < 2 && 2 * k + i < count; i++) {
            const __m512 e = (__m512)exp_v((floats)_mm512_mul_ps(_mm512_sub_ps(s[2 * k + i], top), scale));
            x[i] = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(e));
            sum = _mm512_add_ps(sum, (__m512)_mm512_slli_epi32(x[i], 16)); /* what the products add */
        }
        tile[k] = _mm512_or_si512(x[0], _mm512_slli_epi32(x[1], 16));
    }
    cached_amx_transpose(tile);
    _mm512_storeu_si512(number, pair);
    for (int i = 0; i < LANES; i++)
        if (lanes >> i & 1) _mm512_storeu_si512(w->weight + (size_t)number[i] * WORDS, tile[i]);
    const __m512 factor = (__m512)exp_v((floats)_mm512_mul_ps(_mm512_sub_ps(before, top), scale));
    const __m512 total = _mm512_mask_i32gather_ps(zero, lanes, pair, w->total, 4);
    _mm512_mask_i32scatter_ps(w->top, lanes, pair, top, 4);
    _mm512_mask_i32scatter_ps(w->total, lanes, pair, _mm512_add_ps(_mm512_mul_ps(total, factor), sum), 4);
    const __mmask16 larger = _mm512_cmp_ps_mask(before, top, _CMP_NEQ_UQ);
    for (int i = 0; i < LANES; i++) {
        if (!(larger >> i & 1)) continue;
        const __m512 f = _mm512_permutexvar_ps(_mm512_set1_epi32(i), factor);
        float *x = w->sum + (size_t)(number[i] * t->dim);
        for (int j = 0; j < t->dim; j += LANES) _mm512_storeu_ps(x + j, _mm512_mul_ps(_mm512_loadu_ps(x + j), f));
    }
}

/* Copies `count` slots' values of one head to the layout of a tile's second factor, the numbers of two slots side by
 * side. The first slot's take the place of those beyond `count`, whose weights are 0. */
static inline void copy_values(const cached_task *t, const workspace *w, int h, const int *slot, int count)
{
    const char *base = t->value + (size_t)h * (size_t)t->dim * 2;
    char *to = w->chunk;
    for (int k = 0; k < DEPTH; k += 2) {
        const char *a = base + (size_t)slot[k < count ? k : 0] * t->slot_stride;
        const char *b = base + (size_t)slot[k + 1 < count ? k + 1 : 0] * t->slot_stride;
        for (int j = 0; j < t->dim * 2; j += 64, to += 128) {
            const __m512i x = _mm512_loadu_si512(a + j);
            const __m512i y = _mm512_loadu_si512(b + j);
            _mm512_store_si512(to, _mm512_unpacklo_epi16(x, y));
            _mm512_store_si512(to + 64, _mm512_unpackhi_epi16(x, y));
        }
    }
}

/* Adds the weighted values of up to DEPTH slots for `queries` queries of head h from number `query` on. The tiles are
 * configured for as many. */
static void add_values(const cached_task *t, const workspace *w, int h, int query, int queries, const int *slot,
                       int count)
{
    const int p = h * w->queries + query, two = queries > LANES;
    const size_t row = (size_t)t->dim * 4;
    copy_values(t, w, h, slot, count);
    __asm__ volatile("" ::: "memory"); /* compilers do not know that tiles read memory */
    _tile_loadd(4, w->weight + (size_t)p * WORDS, 64);
    if (two) _tile_loadd(5, w->weight + (size_t)(p + LANES) * WORDS, 64);
    char *sum = (char *)(w->sum + (size_t)(p * t->dim)), *values = w->chunk;
    for (int j = 0; j < t->dim; j += DEPTH, sum += 4 * DEPTH, values += 4 * DEPTH) {
        _tile_loadd(6, values, row);
        _tile_loadd(7, values + 64, row);
        _tile_loadd(0, sum, row);
        _tile_loadd(1, sum + 64, row);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_stored(0, sum, row);
        _tile_stored(1, sum + 64, row);
        if (!two) continue;
        _tile_loadd(2, sum + LANES * row, row);
        _tile_loadd(3, sum + LANES * row + 64, row);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        _tile_stored(2, sum + LANES * row, row);
        _tile_stored(3, sum + LANES * row + 64, row);
    }
}

/* Adds up to DEPTH slots, whose scores are rows at[] of w->score, for `queries` queries of each head from number
 * `query` on. The tiles are configured for as many. */
static void cached_amx_add_block(const cached_task *t, const workspace *w, int query, int queries, const int *slot,
                                 const int *at, int count)
{
    const int pairs = t->heads * queries;
    for (int first = 0; first < pairs; first += LANES) {
        int pair[LANES] = {0}, n = pairs - first < LANES ? pairs - first : LANES;
        for (int i = 0; i < n; i++) pair[i] = (first + i) / queries * w->queries + query + (first + i) % queries;
        cached_amx_weigh(t, w, _mm512_loadu_si512(pair), (__mmask16)((1u << n) - 1), at, count);
    }
    for (int h = 0; h < t->heads; h++) add_values(t, w, h, query, queries, slot, count);
}

/* Adds the first slots that all queries attend to, in whole blocks. Returns their number. */
static int add_common(const cached_task *t, const workspace *w)
{
    int count = 0, at[DEPTH];
    const uint32_t all = (uint32_t)((UINT64_C(1) << w->queries) - 1);
    for (int i = 0; i < DEPTH; i++) at[i] = i;
    while (count < w->slots && (w->query_mask[count] & all) == all) count++;
    count -= count % DEPTH;
    for (int first = 0; first < count; first += DEPTH) {
        configure_scores(w->queries);
        for (int h = 0; h < t->heads; h++)
            for (int i = 0; i < DEPTH; i += SLOTS)
                cached_amx_add_scores(t, w, h, first + i, w->score + (size_t)i * w->across);
        configure_values(w->queries);
        cached_amx_add_block(t, w, 0, w->queries, w->slot + first, at, DEPTH);
    }
    return count;
}

/* Adds the slots from number `first` on, row by row. A block has DEPTH slots that follow each other in the row's own
 * list, as in add_common: so its bits are the same beside other rows. */
static void add_rest(const cached_task *t, const workspace *w, int first)
{
    int at[DEPTH], slot[DEPTH];
    configure_scores(w->queries);
    for (int i = first; i < w->slots; i += SLOTS)
        for (int h = 0; h < t->heads; h++)
            cached_amx_add_scores(t, w, h, i, w->score + (size_t)(i - first) * w->across);
    configure_values(t->group);
    for (int query = 0; query < w->queries; query += t->group)
        for (int i = first, count = 0; i < w->slots; i++) {
            if (w->query_mask[i] >> query & 1) at[count] = i - first, slot[count++] = w->slot[i];
            if (count < DEPTH && (i + 1 < w->slots || count == 0)) continue;
            cached_amx_add_block(t, w, query, t->group, slot, at, count);
            count = 0;
        }
}

static void store_results(const cached_task *t, const workspace *w)
{
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    for (int p = 0; p < w->pairs; p++) {
        const __m512 total = _mm512_set1_ps(w->top[p] > -FLT_MAX ? w->total[p] : NAN); /* all scores -inf */
        const float *sum = w->sum + (size_t)p * (size_t)t->dim;
        const int h = p / w->queries, i = p % w->queries;
        char *y = t->y + (size_t)(i / t->group) * t->y_stride + cached_amx_query(t, h, i);
        for (int j = 0; j < t->dim; j += 2 * LANES) {
            const __m512 low = _mm512_div_ps(_mm512_loadu_ps(sum + j), total);
            const __m512 high = _mm512_div_ps(_mm512_loadu_ps(sum + j + LANES), total);
            const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
            _mm512_storeu_si512(y + (size_t)j * 2, _mm512_permutexvar_epi64(order, both));
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
    w.sum = t->work, w.score = w.sum + w.across * width, w.q = (uint32_t *)(w.score + w.across * length);
    w.chunk = w.q + w.across * width / 2;
    w.slot = (int *)((float *)w.chunk + SLOTS * width);
    w.query_mask = (uint32_t *)(w.slot + length);
    w.weight = w.query_mask + length;
    w.top = (float *)(w.weight + w.across * WORDS), w.total = w.top + w.across;
    w.slots = cached_list(t, w.slot, w.query_mask);
    for (size_t p = 0; p < pairs; p++) w.top[p] = -FLT_MAX, w.total[p] = 0;
    memset(w.sum, 0, pairs * width * sizeof *w.sum);
    mask_queries(t, &w);
    copy_queries(t, &w);
    add_rest(t, &w, add_common(t, &w));
    _tile_release();
    store_results(t, &w);
}
