/* Attention: independent sequences, sequences of different lengths, and over a cache of keys and values. */
#include "tests/cudahost/control.h"
#include "tests/ops/ops.h"

#include <stdio.h>

/* Computes one query's result. Key and value have n rows of `row` elements each, addressed directly or by `slot`. The
 * scores get bias [n], unless it is NULL. */
static void attend_biased(const double *q, const double *key, const double *value, size_t row, const int *slot, int n,
                          int dim, const double *bias, double *y)
{
    double *weight = malloc(sizeof *weight * (size_t)(n + 1)), most = -INFINITY, sum = 0;
    assert_non_null(weight);
    for (int i = 0; i < n; i++) {
        weight[i] = ops_dot(q, key + (size_t)(slot ? slot[i] : i) * row, dim) / sqrt(dim) + (bias ? bias[i] : 0);
        most = fmax(most, weight[i]);
    }
    for (int i = 0; i < n; i++) sum += weight[i] = exp(weight[i] - most);
    for (int j = 0; j < dim; j++) y[j] = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < dim; j++) y[j] += weight[i] / sum * value[(size_t)(slot ? slot[i] : i) * row + (size_t)j];
    free(weight);
}

static void attend(const double *q, const double *key, const double *value, size_t row, const int *slot, int n, int dim,
                   double *y)
{
    attend_biased(q, key, value, row, slot, n, dim, NULL, y);
}

/* --- independent sequences ---------------------------------------------------------------------------------------- */

/* With N_Q == N_K, q, key and value are side by side, as in the models. Rows have SKEW more elements; an odd number
 * leaves them unaligned. SHARP scales queries and makes the softmax sharper. */
enum { N_SEQ, N_Q, N_K, HEADS, DIM, SKEW, SHARP };

static const int sequences[][7] = {
    {2, 19, 19, 2, 16, 0, 1},   {1, 37, 70, 2, 32, 0, 4},  {1, 1, 1, 1, 64, 0, 1},     {3, 1, 1, 2, 32, 16, 2},
    {1, 20, 65, 1, 128, 0, 1},  {2, 7, 64, 3, 48, 0, 500}, {1, 16, 129, 1, 112, 8, 1}, {2, 9, 24, 2, 8, 0, 1},
    {1, 21, 130, 2, 20, 0, 2},  {2, 30, 67, 2, 32, 1, 1},  {1, 36, 36, 1, 512, 0, 3},  {2, 5, 9, 2, 136, 1, 4},
    {3, 18, 70, 2, 16, 0, 1},   {3, 6, 6, 1, 20, 0, 1},    {2, 33, 320, 1, 80, 0, 3},  {1, 24, 320, 1, 64, 0, 2},
    {1, 1031, 9, 1, 136, 0, 2}, /* on a GPU: parts of 516 and 515 queries */
    {2, 18, 40, 2, 192, 0, 2},
};
static const int large_sequences[][7] = {{2, 65, 65, 3, 64, 16, 2},
                                         {1, 320, 320, 9, 64, 0, 2}, /* on a GPU: two tiles a warp */
                                         {1, 7, 320, 2, 80, 0, 2},
                                         {1, 100, 100, 1, 96, 0, 2} /* blocks of queries */};

static double bf16_tolerance(void)
{
    return ops_on_cuda() ? 4e-3 : 1e-2;
}

static int is_interleaved(const ops_call *c)
{
    return c->n[N_Q] == c->n[N_K];
}

static void build_attention(ops_call *c)
{
    const int *n = c->n, together = is_interleaved(c);
    c->rows = c->n[N_SEQ] *= ops_scale();
    const size_t width = (size_t)(n[HEADS] * n[DIM]), q_stride = (together ? 3 : 1) * width + (size_t)n[SKEW];
    const size_t kv_stride = together ? q_stride : 2 * width + (size_t)n[SKEW];
    const size_t q_row = (size_t)n[N_Q] * q_stride, kv_row = together ? 0 : (size_t)n[N_K] * kv_stride;
    double *q = ops_input(c, OPS_ACT, (size_t)c->rows * q_row, q_row, 1);
    double *kv = ops_input(c, OPS_ACT, (size_t)c->rows * kv_row, kv_row, 1);
    for (size_t i = 0; i < (size_t)c->rows * q_row; i++)
        if (i % q_stride < width) q[i] = ops_element_of(c, OPS_ACT, q[i] * n[SHARP]);
    double *y =
        ops_output(c, OPS_ACT, (size_t)(c->rows * n[N_Q]) * width, (size_t)n[N_Q] * width, 5e-6, bf16_tolerance());
    for (int i = 0; i < c->rows * n[N_Q] * n[HEADS]; i++) {
        const size_t head = (size_t)(i % n[HEADS] * n[DIM]), query = (size_t)(i / n[HEADS]);
        const size_t sequence = query / (size_t)n[N_Q];
        const double *keys = together ? q + sequence * q_row + width : kv + sequence * kv_row;
        attend(q + query * q_stride + head, keys + head, keys + width + head, kv_stride, NULL, n[N_K], n[DIM],
               y + query * width + head);
    }
}

static void *prepare_attention(kern_queue *k, const ops_call *c)
{
    const int *n = c->n, width = n[HEADS] * n[DIM], q_stride = (is_interleaved(c) ? 3 : 1) * width + n[SKEW];
    mar_err err = {0};
    assert_ok(k->core->attention_plan(k, n[N_Q], n[N_K], n[HEADS], n[DIM], q_stride,
                                      is_interleaved(c) ? q_stride : 2 * width + n[SKEW], &err),
              &err);
    return NULL;
}

static void run_attention(kern_queue *k, const ops_call *c, void *const *a)
{
    const int *n = c->n, width = n[HEADS] * n[DIM], q_stride = (is_interleaved(c) ? 3 : 1) * width + n[SKEW];
    const char *key = is_interleaved(c) ? (const char *)a[0] + (size_t)width * k->device->act_size : a[1];
    k->core->attention(k, a[0], q_stride, key, key + (size_t)width * k->device->act_size,
                       is_interleaved(c) ? q_stride : 2 * width + n[SKEW], c->rows, n[N_Q], n[N_K], n[HEADS], n[DIM],
                       a[2]);
}

/* --- sequences of different lengths ------------------------------------------------------------------------------- */

enum { SPANS = 8, MANY = 150 };
enum { RAGGED, SHORT, NONE, LONG, LENGTHS };

static const int lengths[LENGTHS][2][SPANS] = {
    [RAGGED] = {{19, 1, 0, 20, 7, 70, 0, 2}, {19, 70, 5, 64, 130, 33, 1, 3}},
    [SHORT] = {{3, 0, 2, 20, 1, 1, 4, 0}, {3, 9, 64, 16, 1, 65, 2, 1}},
    [NONE] = {{0}, {3, 9, 64, 16, 1, 65, 2, 1}},
    [LONG] = {{65, 7, 65, 0, 1, 170, 65, 33}, {65, 320, 65, 9, 1, 170, 66, 100}},
};

/* heads, head_dim, skew, sequences, their lengths, and those of a replay */
static const int spans[][6] = {
    {2, 32, 0, SPANS, SHORT, RAGGED}, {2, 16, 0, SPANS, RAGGED, SHORT}, {2, 32, 0, SPANS, NONE, RAGGED},
    {2, 64, 0, SPANS, RAGGED, NONE},  {1, 80, 8, SPANS, RAGGED, SHORT}, {1, 128, 0, SPANS, RAGGED, SHORT},
    {2, 16, 2, SPANS, RAGGED, SHORT}, {1, 20, 0, SPANS, RAGGED, SHORT}, {1, 80, 1, SPANS, RAGGED, SHORT},
};
static const int large_spans[][6] = {{3, 64, 16, SPANS, LONG, SHORT},
                                     {1, 96, 16, SPANS, LONG, SHORT},
                                     {2, 32, 16, MANY, LENGTHS, LENGTHS},
                                     {2, 32, 0, 1, LONG, SHORT}};

/* The same with a bias: 1 + its reach, and its masked columns. */
enum { BIAS = 6, MASKED };
enum { NO_MASK, LATER, FAR, NOT_NUMBERS };
static const int biased_spans[][8] = {
    {3, 64, 0, SPANS, RAGGED, SHORT, 1 + 13, NO_MASK}, {2, 64, 8, SPANS, SHORT, RAGGED, 1 + 1, LATER},
    {1, 20, 0, SPANS, RAGGED, SHORT, 1 + 0, NO_MASK},  {2, 80, 0, SPANS, SHORT, NONE, 1 + 128, LATER},
    {1, 64, 0, 3, SHORT, NONE, 1 + 9, NOT_NUMBERS},    {1, 20, 0, 3, SHORT, NONE, 1 + 9, NOT_NUMBERS},
};
static const int large_biased_spans[][8] = {{2, 64, 0, SPANS, LONG, LONG, 1 + 40, FAR},
                                            {2, 32, 0, SPANS, LONG, LONG, 1 + 40, FAR},
                                            {1, 64, 0, SPANS, LONG, LONG, 1 + 128, NO_MASK}};

typedef struct {
    int n_q[MANY], n_k[MANY], q_first[MANY], k_first[MANY];
    int rows, keys;
} span_lists;

/* Places the later half first in the arrays. Unused rows follow every third sequence. */
static void place_spans(span_lists *l, int count, int of)
{
    l->rows = 3, l->keys = 5;
    for (int i = 0; i < count; i++) {
        const int s = (i + count / 2) % count;
        l->n_q[s] = of == LENGTHS ? 1 + s * 7 % 23 : lengths[of][0][s];
        l->n_k[s] = of == LENGTHS ? 1 + s * 5 % 31 : lengths[of][1][s];
        l->q_first[s] = l->rows, l->k_first[s] = l->keys;
        l->rows += l->n_q[s] + 2 * (s % 3 == 0), l->keys += l->n_k[s] + (s % 3 == 1);
    }
}

/* Adds the table of biases. Each row of the cases keeps an unmasked key. A NaN reaches rows with many keys. */
static const double *build_bias(ops_call *c)
{
    const int columns = 2 * c->n[BIAS] - 1;
    if (columns < 1) return NULL;
    double *bias = ops_input(c, OPS_FLOAT, (size_t)(c->n[0] * columns), 0, 3);
    for (int i = 0; i < c->n[0] * columns; i++)
        if ((c->n[MASKED] == LATER && i % columns > columns / 2) || (c->n[MASKED] == FAR && i % columns == 0))
            bias[i] = -INFINITY;
    for (int i = columns - 1; c->n[MASKED] == NOT_NUMBERS && i < c->n[0] * columns; i += columns) bias[i] = NAN;
    return bias;
}

/* Writes a row of biases, those of a head's query, to row. */
static void bias_row(const ops_call *c, const double *bias, int head, int query, int keys, double *row)
{
    const int reach = c->n[BIAS] - 1;
    for (int j = 0; j < keys; j++) {
        const int distance = j - query < -reach ? -reach : j - query > reach ? reach : j - query;
        row[j] = bias[head * (2 * reach + 1) + distance + reach];
    }
}

/* Results: of all sequences, and of each sequence alone. */
static void build_spans(ops_call *c)
{
    double row_bias[512];
    const int *n = c->n, heads = n[0], dim = n[1];
    span_lists *l = c->data = ops_host(c, 2 * sizeof *l);
    place_spans(l, n[3], n[4 + c->other]);
    place_spans(l + 1, n[3], n[5 - c->other]);
    const size_t width = (size_t)(heads * dim), q_stride = width + (size_t)n[2], kv_stride = 2 * width + (size_t)n[2];
    const size_t rows = (size_t)(l[0].rows > l[1].rows ? l[0].rows : l[1].rows);
    const size_t keys = (size_t)(l[0].keys > l[1].keys ? l[0].keys : l[1].keys);
    const double *q = ops_input(c, OPS_ACT, rows * q_stride, 0, 2), *kv = ops_input(c, OPS_ACT, keys * kv_stride, 0, 1);
    const double *bias = build_bias(c);
    const int result = bias ? 3 : 2; /* the index of the first result */
    for (int twice = 0; twice < 2; twice++) {
        double *y = ops_output(c, OPS_ACT, rows * width, 0, 5e-6, bf16_tolerance());
        for (int s = 0; s < n[3]; s++)
            for (int i = 0; i < l->n_q[s] * heads; i++) {
                const size_t row = (size_t)(l->q_first[s] + i / heads), head = (size_t)(i % heads * dim);
                const double *key = kv + (size_t)l->k_first[s] * kv_stride + head;
                if (bias) bias_row(c, bias, i % heads, i / heads, l->n_k[s], row_bias);
                if (twice)
                    memcpy(y + row * width + head, c->array[result].want + row * width + head, (size_t)dim * sizeof *y);
                else
                    attend_biased(q + row * q_stride + head, key, key + width, kv_stride, NULL, l->n_k[s], dim,
                                  bias ? row_bias : NULL, y + row * width + head);
            }
    }
    memcpy(c->array[result + 1].x, c->array[result].x, rows * width * sizeof(double));
}

static void *prepare_spans(kern_queue *k, const ops_call *c)
{
    const int *n = c->n, width = n[0] * n[1];
    mar_err err = {0};
    for (const span_lists *l = c->data; l < (const span_lists *)c->data + 2; l++)
        for (int s = 0; s < n[3]; s++)
            if (l->n_q[s] > 0)
                assert_ok(
                    k->core->attention_plan(k, l->n_q[s], l->n_k[s], n[0], n[1], width + n[2], 2 * width + n[2], &err),
                    &err);
    return NULL;
}

static void run_spans(kern_queue *k, const ops_call *c, void *const *a)
{
    const int *n = c->n, width = n[0] * n[1], q_stride = width + n[2], kv_stride = 2 * width + n[2];
    const span_lists *l = c->data;
    const size_t size = k->device->act_size;
    const char *key = a[1], *value = key + (size_t)width * size;
    const int reach = n[BIAS] - 1;
    const float *bias = n[BIAS] ? a[2] : NULL;
    char *together = a[bias ? 3 : 2], *alone = a[bias ? 4 : 3];
    k->core->attention_spans(k, a[0], q_stride, l->q_first, l->n_q, key, value, kv_stride, l->k_first, l->n_k, n[3],
                             n[0], n[1], bias, reach, together);
    for (int s = 0; s < n[3]; s++) {
        const size_t q_row = (size_t)l->q_first[s], from = (size_t)(l->k_first[s] * kv_stride) * size;
        if (bias || ops_on_cuda()) /* its kernels differ from `attention`'s */
            k->core->attention_spans(k, a[0], q_stride, l->q_first + s, l->n_q + s, key, value, kv_stride,
                                     l->k_first + s, l->n_k + s, 1, n[0], n[1], bias, reach, alone);
        else if (l->n_q[s] > 0)
            k->core->attention(k, (const char *)a[0] + q_row * (size_t)q_stride * size, q_stride, key + from,
                               value + from, kv_stride, 1, l->n_q[s], l->n_k[s], n[0], n[1],
                               alone + q_row * (size_t)width * size);
    }
    k->core->attention_spans(k, a[0], q_stride, NULL, NULL, key, value, kv_stride, NULL, NULL, 0, n[0], n[1], bias,
                             reach, together);
}

static void check_spans(const ops_call *c, double *const *got)
{
    const int first = c->n[BIAS] ? 3 : 2;
    for (size_t j = 0; j < c->array[first].n; j++)
        assert_true(got[first][j] == got[first + 1][j] || (isnan(got[first][j]) && isnan(got[first + 1][j])));
}

/* --- over a cache ------------------------------------------------------------------------------------------------- */

enum { MOST_SPANS = 6, CACHE_HEADS = 0, CACHE_DIM, CACHE_SPANS, UNUSUAL };
enum { NAN_KEY = 1, NAN_VALUE = 2, SHARP_SCORES = 4, INFINITE_SCORES = 8 };

/* heads, head_dim, spans, what is unusual: the non-finite part of a slot that some rows know, scores in the thousands,
 * or only scores of -inf in the first query; then each span's queries, slots, and slots common to all its rows */
static const int caches[][4 + 3 * MOST_SPANS] = {
    {2, 32, 2, 0, /* queries */ 3, 5, 0, 0, 0, 0, /* slots */ 13, 25, 0, 0, 0, 0, /* common */ 10, 20},
    {16, 64, 2, 0, 1, 1, 0, 0, 0, 0, 257, 257, 0, 0, 0, 0, 256, 257},     /* plain decoding */
    {3, 64, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1},                 /* one slot, common to all rows */
    {1, 64, 1, 0, 3, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0},                 /* none in common */
    {5, 64, 4, 0, 17, 1, 8, 9, 0, 0, 60, 3, 40, 131, 0, 0, 31, 2, 32, 3}, /* trees */
    {2, 100, 3, 0, 4, 0, 21, 0, 0, 0, 19, 1, 90, 0, 0, 0, 16, 1, 17},
    {2, 128, 3, 0, 1, 9, 2, 0, 0, 0, 501, 9, 66, 0, 0, 0, 500, 0, 64},
    {5, 16, 2, 0, 3, 0, 0, 0, 0, 0, 13, 20, 0, 0, 0, 0, 10, 20},
    {1, 48, 6, 0, 1, 2, 3, 4, 5, 6, 2, 4, 6, 8, 10, 12, 1, 2, 3, 4, 5, 6},
    {2, 36, 2, 0, 40, 2, 0, 0, 0, 0, 110, 702, 0, 0, 0, 0, 70, 700},
    {3, 12, 1, 0, 5, 0, 0, 0, 0, 0, 38, 0, 0, 0, 0, 0, 33},
    {3, 8, 2, 0, 2, 9, 0, 0, 0, 0, 4, 16, 0, 0, 0, 0, 3, 0},
    {1, 252, 2, 0, 2, 1, 0, 0, 0, 0, 92, 41, 0, 0, 0, 0, 90, 40},
    {1, 64, 1, 0, 64, 0, 0, 0, 0, 0, 67, 0, 0, 0, 0, 0, 3},
    {2, 64, 1, 0, 2, 0, 0, 0, 0, 0, 34, 0, 0, 0, 0, 0, 31}, /* the last query alone lacks slot 31 */
    {2, 64, 1, 0, 3, 0, 0, 0, 0, 0, 53, 0, 0, 0, 0, 0, 40}, /* successive slots: 7919 % 107 is 1 */
    {10, 64, 6, 0, 32, 32, 32, 32, 32, 16, 70, 70, 70, 70, 70, 70, 64, 64, 64, 33, 33, 33},
    {2, 64, 1, SHARP_SCORES, 5, 0, 0, 0, 0, 0, 130, 0, 0, 0, 0, 0, 97},
    {4, 64, 1, SHARP_SCORES, 9, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0},
    {2, 64, 1, INFINITE_SCORES, 3, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 2},
    {3, 32, 2, 0, 6, 1, 0, 0, 0, 0, 30, 18, 0, 0, 0, 0, 20, 18}, /* a tile's size and its multiples */
    {3, 96, 2, 0, 6, 1, 0, 0, 0, 0, 30, 18, 0, 0, 0, 0, 20, 18},
    {3, 160, 2, 0, 6, 1, 0, 0, 0, 0, 30, 18, 0, 0, 0, 0, 20, 18},
    {3, 192, 2, 0, 6, 1, 0, 0, 0, 0, 30, 18, 0, 0, 0, 0, 20, 18},
    {3, 224, 2, 0, 6, 1, 0, 0, 0, 0, 30, 18, 0, 0, 0, 0, 20, 18},
    {3, 256, 2, 0, 6, 1, 0, 0, 0, 0, 30, 18, 0, 0, 0, 0, 20, 18},
    {2, 64, 1, NAN_KEY, 9, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 7},
    {2, 64, 1, NAN_VALUE, 9, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 7},
    {2, 64, 1, NAN_KEY | NAN_VALUE, 9, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 7},
};

static const int large_caches[][4 + 3 * MOST_SPANS] = {
    {12, 64, 2, 0, 1, 1, 0, 0, 0, 0, 258, 257, 0, 0, 0, 0, 257, 256},
    {3, 100, 2, 0, 17, 17, 0, 0, 0, 0, 137, 48, 0, 0, 0, 0, 120, 31},
};

enum { WORDS = 3, POSITIONS = 9 };

typedef struct {
    int rows, slots, q_stride, most;
    int row[MOST_SPANS + 1], first[MOST_SPANS + 1], common[MOST_SPANS];
    int *slot, *span, *position, *own; /* span, position, own [rows] */
    int *order, *ones, *filled;        /* [slots + 1] 0, 1, ..; ones; positions of a call that fills all slots */
    uint64_t *mask;                    /* [rows][WORDS] */
    int *known, *count;                /* [rows][slots] a row's known slots in order; [rows] */
} cache_lists;

/* Makes the lists. Each row knows one of its span's own slots. Even rows also know about half of the others. With
 * `causal` row i of a span knows the first i + 1. A replay has the spans in another order. */
static cache_lists *make_lists(ops_call *c, int causal)
{
    const int *n = c->n, spans_of = n[CACHE_SPANS];
    cache_lists *l = c->data = ops_host(c, sizeof *l);
    for (int i = 0; i < spans_of; i++) {
        const int s = 4 + (i + c->other) % spans_of;
        l->row[i + 1] = l->row[i] + n[s], l->first[i + 1] = l->first[i] + n[s + MOST_SPANS];
        l->common[i] = n[s + 2 * MOST_SPANS];
        if (n[s + MOST_SPANS] > l->most) l->most = n[s + MOST_SPANS];
    }
    l->rows = l->row[spans_of], l->slots = 2 * l->first[spans_of] + 1;
    l->q_stride = 3 * n[CACHE_HEADS] * n[CACHE_DIM] + 8;
    l->slot = ops_host(c, (size_t)l->slots * sizeof(int)), l->span = ops_host(c, (size_t)l->rows * sizeof(int));
    l->mask = ops_host(c, (size_t)(l->rows * WORDS) * sizeof *l->mask);
    l->known = ops_host(c, (size_t)(l->rows * l->slots) * sizeof(int));
    l->count = ops_host(c, (size_t)l->rows * sizeof(int));
    for (int i = 0; i < l->first[spans_of]; i++) l->slot[i] = (int)((long)i * 7919 % l->slots);
    for (int s = 0; s < spans_of; s++)
        for (int r = l->row[s]; r < l->row[s + 1]; r++) {
            const int own = l->first[s + 1] - l->first[s] - l->common[s];
            l->span[r] = s;
            for (int j = 0; j < own; j++)
                if (causal ? j <= r - l->row[s] : (r * 7 + 3) % own == j || (r % 2 == 0 && ops_word(c) >> 31))
                    l->mask[r * WORDS + j / 64] |= (uint64_t)1 << j % 64;
            for (int j = -l->common[s]; j < own; j++)
                if (j < 0 || l->mask[r * WORDS + j / 64] >> j % 64 & 1)
                    l->known[r * l->slots + l->count[r]++] = l->slot[l->first[s] + l->common[s] + j];
        }
    return l;
}

/* Adds q, cache and the results. The first result is a call's. On a CPU the others are of single rows, with their slots
 * by mask and in common. */
static void build_cache(ops_call *c)
{
    const int heads = c->n[CACHE_HEADS], dim = c->n[CACHE_DIM];
    cache_lists *l = make_lists(c, 0);
    const size_t width = (size_t)(heads * dim), row = 2 * width;
    const size_t queries = (size_t)(l->rows * l->q_stride);
    const int kind = c->n[UNUSUAL];
    double *q = ops_input(c, OPS_ACT, queries, 0, 1.5), *cache = ops_input(c, OPS_ACT, (size_t)l->slots * row, 0, 1);
    double *hidden = cache + (size_t)l->slot[l->common[0] + (l->first[1] - l->common[0] > 3 ? 3 : 0)] * row;
    for (size_t i = 0; i < row; i++)
        if (kind & (i < width ? NAN_KEY : NAN_VALUE)) hidden[i] = NAN;
    for (size_t i = 0; i < queries && kind == SHARP_SCORES; i++) q[i] *= 512;
    if (kind == INFINITE_SCORES) q[0] = INFINITY;
    for (size_t i = 0; i < (size_t)l->slots && kind == INFINITE_SCORES; i++) cache[i * row] = -1;
    const double f32 = kind == SHARP_SCORES ? 1e-4 : 2e-6; /* a score in the thousands has an absolute error of 1e-4 */
    for (int turn = 0; turn < 3; turn++) {
        double *y = ops_output(c, OPS_ACT, (size_t)l->rows * width, 0, turn ? 0 : f32, turn ? 0 : 4e-3);
        for (int i = 0; i < l->rows * heads; i++) {
            const size_t r = (size_t)(i / heads), head = (size_t)(i % heads * dim);
            double *to = y + r * width + head;
            if (turn == 0)
                attend(q + r * (size_t)l->q_stride + head, cache + head, cache + width + head, row,
                       l->known + r * (size_t)l->slots, l->count[r], dim, to);
            for (int j = 0; j < dim && turn && !ops_on_cuda(); j++) to[j] = ops_any;
        }
    }
}

static kern_cache_job cache_job(const ops_call *c, const cache_lists *l, void *const *a)
{
    return (kern_cache_job){.rows = l->rows,
                            .heads = c->n[CACHE_HEADS],
                            .head_dim = c->n[CACHE_DIM],
                            .kv_heads = c->n[CACHE_HEADS],
                            .q = a[0],
                            .q_stride = l->q_stride,
                            .cache = a[1],
                            .spans = c->n[CACHE_SPANS],
                            .row = l->row,
                            .first = l->first,
                            .common = l->common,
                            .slot = l->slot,
                            .mask = l->mask,
                            .words = WORDS,
                            .max_slots = l->most,
                            .y = a[2]};
}

/* On a CPU: computes each row alone, with its slots by mask in y[0] and in common in y[1]; of a causal job the last by
 * mask in both. */
static void run_alone(kern_queue *k, const ops_call *c, const kern_cache_job *job, void *const *y)
{
    const cache_lists *l = c->data;
    const size_t size = k->device->act_size, width = (size_t)(c->n[CACHE_HEADS] * c->n[CACHE_DIM]);
    for (int i = 0; i < 2 * l->rows && !ops_on_cuda(); i++) {
        const int r = i / 2, ends[2] = {0, 1}, first[2] = {0, l->count[r]};
        const int common = job->causal ? l->count[r] - 1 : i % 2 ? l->count[r] : 0;
        uint64_t mask[64] = {0};
        for (int j = 0; j < l->count[r]; j++) mask[j / 64] |= (uint64_t)1 << j % 64;
        kern_cache_job alone = *job;
        alone.rows = alone.spans = 1, alone.row = ends, alone.first = first, alone.common = &common;
        alone.q = (const char *)job->q + (size_t)r * (size_t)l->q_stride * size;
        alone.slot = l->known + (size_t)r * (size_t)l->slots, alone.mask = mask, alone.words = 64;
        alone.y = (char *)y[i % 2] + (size_t)r * width * size;
        k->core->attention_cache(k, &alone);
    }
}

static void run_cache(kern_queue *k, const ops_call *c, void *const *a)
{
    const kern_cache_job job = cache_job(c, c->data, a);
    k->core->attention_cache(k, &job);
    run_alone(k, c, &job, a + 3);
}

static void *prepare_cache(kern_queue *k, const ops_call *c)
{
    mar_err err = {0};
    assert_ok(k->core->attention_cache_plan(k, ((const cache_lists *)c->data)->most, c->n[CACHE_DIM], 0, &err), &err);
    return NULL;
}

/* Compares the bits of rows with those of rows alone, arrays `alone` and the next. */
static void check_alone(const ops_call *c, double *const *got, int y, int alone)
{
    for (int i = alone; i < alone + 2 && !ops_on_cuda(); i++)
        for (size_t j = 0; j < c->array[y].n; j++)
            assert_true(got[i][j] == got[y][j] || (isnan(got[i][j]) && isnan(got[y][j])));
    if (!c->n[UNUSUAL] || c->n[UNUSUAL] == SHARP_SCORES) return;
    size_t others = 0;
    for (size_t j = 0; j < c->array[y].n; j++) others += isfinite(c->array[y].want[j]) != 0;
    assert_in_range(others, c->array[y].n / 3, c->array[y].n - 1); /* of the expected numbers */
}

static void check_cache(const ops_call *c, double *const *got)
{
    check_alone(c, got, 2, 3);
}

/* Rotating attention gives the bits of both operations in turn: of y, the queries and the whole cache. */
static const int turned[][4 + 3 * MOST_SPANS] = {
    {12, 64, 2, 0, 1, 1, 0, 0, 0, 0, 51, 4, 0, 0, 0, 0, 50, 3},
    {3, 100, 3, 0, 1, 1, 1, 0, 0, 0, 51, 4, 1, 0, 0, 0, 50, 3, 0},
    {2, 128, 1, 0, 1, 0, 0, 0, 0, 0, 51, 0, 0, 0, 0, 0, 50},
    {5, 16, 6, 0, 1, 1, 1, 1, 1, 1, 51, 4, 1, 21, 8, 2, 50, 3, 0, 20, 7, 1},
    {3, 12, 2, 0, 1, 1, 0, 0, 0, 0, 51, 4, 0, 0, 0, 0, 50, 3},
    {1, 252, 2, 0, 1, 1, 0, 0, 0, 0, 51, 4, 0, 0, 0, 0, 50, 3},
    {4, 4, 2, 0, 1, 1, 0, 0, 0, 0, 51, 4, 0, 0, 0, 0, 50, 3},
    {2, 36, 3, 0, 1, 3, 2, 0, 0, 0, 51, 6, 2, 0, 0, 0, 50, 3, 0},
    {1, 252, 1, 0, 2, 0, 0, 0, 0, 0, 53, 0, 0, 0, 0, 0, 51}, /* own slots that no lane has among its first */
};

static void any_result(ops_call *c)
{
    double *want = ops_written(c, 1, 1);
    for (size_t i = 0; i < ops_last(c)->n; i++) want[i] = ops_any;
}

static void build_turned(ops_call *c)
{
    cache_lists *l = make_lists(c, 0);
    const size_t width = (size_t)(c->n[CACHE_HEADS] * c->n[CACHE_DIM]);
    l->q_stride = 3 * (int)width;
    l->position = ops_below(c, (size_t)l->rows, POSITIONS), l->own = ops_host(c, (size_t)l->rows * sizeof(int));
    for (int r = 0; r < l->rows; r++)
        l->own[r] = l->slot[l->first[l->span[r]] + l->common[l->span[r]] + r - l->row[l->span[r]]];
    for (int twice = 0; twice < 2; twice++) {
        ops_input(c, OPS_ACT, (size_t)l->rows * 3 * width, 0, 1), any_result(c);
        ops_input(c, OPS_ACT, (size_t)l->slots * 2 * width, 0, 1), any_result(c);
        ops_input(c, OPS_ACT, (size_t)l->rows * width, 0, 1), any_result(c);
    }
    for (int i = 0; i < 3; i++) memcpy(c->array[i + 3].x, c->array[i].x, c->array[i].n * sizeof(double));
    ops_input(c, OPS_FLOAT, (size_t)(POSITIONS * c->n[CACHE_DIM]), 0, 1);
}

static void run_turned(kern_queue *k, const ops_call *c, void *const *a)
{
    const cache_lists *l = c->data;
    kern_cache_job job = cache_job(c, l, a);
    k->core->rotate(k, a[0], l->rows, job.heads, job.head_dim, 1, a[6], l->position, a[1], l->own);
    k->core->attention_cache(k, &job);
    job = cache_job(c, l, a + 3);
    job.rope = a[6], job.position = l->position, job.own = l->own;
    k->core->attention_cache(k, &job);
}

static void check_turned(const ops_call *c, double *const *got)
{
    for (int i = 0; i < 3; i++) assert_memory_equal(got[i + 3], got[i], c->array[i].n * sizeof(double));
    assert_memory_not_equal(got[0], c->array[0].x, c->array[0].n * sizeof(double));
    assert_memory_not_equal(got[2], c->array[2].x, c->array[2].n * sizeof(double));
}

/* Rotating attention with grouped heads, norms and caches of other numbers than act: KV_HEADS, type, norm. The first
 * call fills all slots, with a row for each. */
enum { KV_HEADS = 4 + 3 * MOST_SPANS, TYPE_AND_NORM, CAUSAL };
enum { PLAIN, RMS, LAYER };
#define KIND(type, norm) ((type) + 3 * (norm))

static const int stored[][7 + 3 * MOST_SPANS] = {
    {8, 128, 2, 0, 1, 1, 0, 0, 0, 0, 51, 40, 0, 0, 0, 0, 50, 39, 0, 0, 0, 0, 2, KIND(KERN_CACHE_INT8, PLAIN)},
    {4, 64, 2, 0, 9, 3, 0, 0, 0, 0, 60, 20, 0, 0, 0, 0, 50, 9, 0, 0, 0, 0, 4, KIND(KERN_CACHE_INT8, LAYER)},
    {4, 128, 1, 0, 1, 0, 0, 0, 0, 0, 51, 0, 0, 0, 0, 0, 50, 0, 0, 0, 0, 0, 4, KIND(KERN_CACHE_BF16, LAYER)},
    {6, 64, 2, 0, 20, 1, 0, 0, 0, 0, 90, 4, 0, 0, 0, 0, 70, 3, 0, 0, 0, 0, 2, KIND(KERN_CACHE_BF16, RMS)},
    {12, 32, 2, 0, 5, 7, 0, 0, 0, 0, 40, 33, 0, 0, 0, 0, 35, 20, 0, 0, 0, 0, 3, KIND(KERN_CACHE_ACT, PLAIN)},
    {6, 128, 2, 0, 1, 1, 0, 0, 0, 0, 4, 33, 0, 0, 0, 0, 3, 32, 0, 0, 0, 0, 2, KIND(KERN_CACHE_ACT, LAYER)},
    {20, 32, 2, 0, 3, 1, 0, 0, 0, 0, 20, 17, 0, 0, 0, 0, 17, 16, 0, 0, 0, 0, 1, KIND(KERN_CACHE_ACT, RMS)},
    {20, 4, 2, 0, 2, 1, 0, 0, 0, 0, 20, 17, 0, 0, 0, 0, 18, 16, 0, 0, 0, 0, 1, KIND(KERN_CACHE_INT8, RMS)},
    {2, 252, 2, 0, 1, 1, 0, 0, 0, 0, 20, 17, 0, 0, 0, 0, 19, 16, 0, 0, 0, 0, 1, KIND(KERN_CACHE_INT8, LAYER)},
    {3, 36, 3, 0, 1, 3, 2, 0, 0, 0, 51, 6, 2, 0, 0, 0, 50, 3, 0, 0, 0, 0, 3, KIND(KERN_CACHE_BF16, PLAIN)},
    {4, 64, 1, NAN_KEY, 9, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 2, KIND(KERN_CACHE_INT8, PLAIN)},
    {4, 64, 1, NAN_VALUE, 9, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 2, KIND(KERN_CACHE_INT8, PLAIN)},
    {14, 64, 2, 0, 91, 3, 0, 0, 0, 0, 121, 4, 0, 0, 0, 0, 30, 1, 0, 0, 0, 0, 2, KIND(KERN_CACHE_ACT, PLAIN), 1},
    {6, 32, 3, 0, 1, 40, 2, 0, 0, 0, 9, 40, 22, 0, 0, 0, 8, 0, 20, 0, 0, 0, 6, KIND(KERN_CACHE_ACT, RMS), 1},
    {3, 36, 2, 0, 17, 1, 0, 0, 0, 0, 20, 67, 0, 0, 0, 0, 3, 66, 0, 0, 0, 0, 1, KIND(KERN_CACHE_ACT, LAYER), 1},
};

/* The arrays. The first three are those of the call that fills the cache; ALONE: as in build_cache. */
enum { FILL_QKV, SLOTS_MEMORY, FILL_Y, QKV, Y, ROPE, Q_WEIGHT, Q_BIAS, K_WEIGHT, K_BIAS, ALONE };

static kern_cache_type type_of(const ops_call *c)
{
    return (kern_cache_type)(c->n[TYPE_AND_NORM] % 3);
}

/* Rounds a head's numbers to the cache's type. */
static void round_stored(const ops_call *c, double *x)
{
    double most = 0;
    for (int i = 0; i < c->n[CACHE_DIM]; i++) most = isfinite(x[i] + most) ? fmax(most, fabs(x[i])) : NAN;
    for (int i = 0; i < c->n[CACHE_DIM]; i++)
        x[i] = type_of(c) == KERN_CACHE_INT8   ? rint(x[i] * 127 / most) * (most / 127)
               : type_of(c) == KERN_CACHE_BF16 ? ops_bf16(x[i])
                                               : ops_element_of(c, OPS_ACT, x[i]);
}

/* Norms and rotates n heads side by side by a row of `rope`. */
static void turn_heads(const ops_call *c, double *x, int n, const double *weight, const double *bias,
                       const double *rope)
{
    const int dim = c->n[CACHE_DIM], norm = c->n[TYPE_AND_NORM] / 3;
    for (int h = 0; h < n; h++, x += dim, weight += dim, bias += dim) {
        double mean = 0, square = 0;
        for (int i = 0; i < dim && norm == LAYER; i++) mean += x[i] / dim;
        for (int i = 0; i < dim; i++) square += (x[i] - mean) * (x[i] - mean) / dim;
        for (int i = 0; i < dim && norm != PLAIN; i++)
            x[i] = (x[i] - mean) / sqrt(square + 1e-5) * weight[i] + (norm == LAYER ? bias[i] : 0);
        for (int i = 0; i < dim; i += 2) {
            const double a = x[i], b = x[i + 1];
            x[i] = a * rope[i] - b * rope[i + 1], x[i + 1] = b * rope[i] + a * rope[i + 1];
        }
    }
}

/* Stores the key and value of one row of qkv in kv, as the cache then has them. */
static void store_row(const ops_call *c, const double *qkv, int position, double *kv)
{
    const int heads = c->n[KV_HEADS], dim = c->n[CACHE_DIM];
    memcpy(kv, qkv + c->n[CACHE_HEADS] * dim, (size_t)(2 * heads * dim) * sizeof *kv);
    turn_heads(c, kv, heads, c->array[K_WEIGHT].x, c->array[K_BIAS].x, c->array[ROPE].x + position * dim);
    for (int h = 0; h < 2 * heads; h++) round_stored(c, kv + h * dim);
}

static void build_stored_arrays(ops_call *c, const cache_lists *l)
{
    const size_t q_width = (size_t)(c->n[CACHE_HEADS] * c->n[CACHE_DIM]);
    const size_t k_width = (size_t)(c->n[KV_HEADS] * c->n[CACHE_DIM]);
    const kern_device device = {.act_size = c->bf16 ? 2 : 4};
    const size_t slot = kern_cache_slot_bytes(&device, type_of(c), c->n[KV_HEADS], c->n[CACHE_DIM]);
    ops_input(c, OPS_ACT, (size_t)(l->slots * l->q_stride), 0, 1), any_result(c);
    ops_input(c, OPS_BYTE, (size_t)l->slots * slot, 0, 1), any_result(c);
    ops_input(c, OPS_ACT, (size_t)l->slots * q_width, 0, 1), any_result(c);
    ops_input(c, OPS_ACT, (size_t)(l->rows * l->q_stride), 0, 1.5), ops_written(c, 2e-6, 4e-3);
    ops_output(c, OPS_ACT, (size_t)l->rows * q_width, 0, type_of(c) == KERN_CACHE_INT8 ? 1e-3 : 3e-4, 6e-3);
    ops_input(c, OPS_FLOAT, (size_t)(POSITIONS * c->n[CACHE_DIM]), 0, 1);
    for (int i = 0; i < 4; i++) ops_input(c, OPS_FLOAT, i < 2 ? q_width : k_width, 0, 1);
    for (int i = 0; i < 2; i++) ops_input(c, OPS_ACT, (size_t)l->rows * q_width, 0, 1), any_result(c);
    double *hidden = c->array[FILL_QKV].x + (size_t)(l->slot[l->common[0] + 12] * l->q_stride) + q_width;
    for (size_t i = 0; i < k_width; i += (size_t)c->n[CACHE_DIM]) /* of its head of keys or values */
        if (c->n[UNUSUAL]) hidden[i + (c->n[UNUSUAL] == NAN_KEY ? 0 : k_width)] = NAN;
}

static void build_stored(ops_call *c)
{
    const int heads = c->n[CACHE_HEADS], kv_heads = c->n[KV_HEADS], dim = c->n[CACHE_DIM];
    const size_t k_width = (size_t)(kv_heads * dim), q_width = (size_t)(heads * dim);
    cache_lists *l = make_lists(c, c->n[CAUSAL]);
    l->q_stride = (heads + 2 * kv_heads) * dim;
    l->position = ops_below(c, (size_t)l->rows, POSITIONS), l->own = ops_host(c, (size_t)l->rows * sizeof(int));
    l->order = ops_host(c, (size_t)(l->slots + 1) * sizeof(int)), l->ones = ops_host(c, (size_t)l->slots * sizeof(int));
    l->filled = ops_below(c, (size_t)l->slots, POSITIONS);
    for (int s = 0; s <= l->slots; s++) l->order[s] = s;
    for (int s = 0; s < l->slots; s++) l->ones[s] = 1;
    build_stored_arrays(c, l);
    double *kv = ops_host(c, (size_t)l->slots * 2 * k_width * sizeof *kv), *q = c->array[QKV].want;
    memcpy(q, c->array[QKV].x, c->array[QKV].n * sizeof *q);
    for (int s = 0; s < l->slots; s++)
        store_row(c, c->array[FILL_QKV].x + (size_t)(s * l->q_stride), l->filled[s], kv + (size_t)s * 2 * k_width);
    for (int r = 0; r < l->rows; r++) {
        double *row = q + (size_t)(r * l->q_stride);
        l->own[r] = l->slot[l->first[l->span[r]] + l->common[l->span[r]] + r - l->row[l->span[r]]];
        store_row(c, row, l->position[r], kv + (size_t)l->own[r] * 2 * k_width);
        turn_heads(c, row, heads, c->array[Q_WEIGHT].x, c->array[Q_BIAS].x, c->array[ROPE].x + l->position[r] * dim);
    }
    for (int i = 0; i < l->rows * heads; i++) {
        const size_t r = (size_t)(i / heads), h = (size_t)(i % heads),
                     head = h / (size_t)(heads / kv_heads) * (size_t)dim;
        double query[KERN_CACHE_HEAD_MAX];
        for (int j = 0; j < dim; j++)
            query[j] = ops_element_of(c, OPS_ACT, q[r * (size_t)l->q_stride + h * (size_t)dim + (size_t)j]);
        attend(query, kv + head, kv + k_width + head, 2 * k_width, l->known + r * (size_t)l->slots, l->count[r], dim,
               c->array[Y].want + r * q_width + h * (size_t)dim);
    }
}

static kern_cache_job stored_job(const ops_call *c, const cache_lists *l, void *const *a)
{
    const int norm = c->n[TYPE_AND_NORM] / 3;
    kern_cache_job job = cache_job(c, l, a);
    job.kv_heads = c->n[KV_HEADS], job.type = type_of(c), job.causal = c->n[CAUSAL];
    job.q = a[QKV], job.cache = a[SLOTS_MEMORY], job.y = a[Y];
    job.rope = a[ROPE], job.position = l->position, job.own = l->own;
    job.q_norm.eps = job.k_norm.eps = 1e-5f;
    if (norm != PLAIN) job.q_norm.weight = a[Q_WEIGHT], job.k_norm.weight = a[K_WEIGHT];
    if (norm == LAYER) job.q_norm.bias = a[Q_BIAS], job.k_norm.bias = a[K_BIAS];
    return job;
}

/* Fills each slot by a span of one row that attends to it alone. */
static void fill_slots(kern_queue *k, const ops_call *c, const cache_lists *l, void *const *a)
{
    kern_cache_job job = stored_job(c, l, a);
    job.causal = 0;
    job.rows = job.spans = l->slots, job.words = 0, job.mask = NULL, job.max_slots = 1;
    job.row = job.first = job.slot = job.own = l->order, job.common = l->ones, job.position = l->filled;
    job.q = a[FILL_QKV], job.y = a[FILL_Y];
    k->core->attention_cache(k, &job);
}

static void *prepare_stored(kern_queue *k, const ops_call *c)
{
    const cache_lists *l = c->data;
    mar_err err = {0};
    assert_ok(k->core->attention_cache_plan(k, l->most, c->n[CACHE_DIM], c->n[CAUSAL], &err), &err);
    return prepare_cache(k, c);
}

static void run_stored(kern_queue *k, const ops_call *c, void *const *a)
{
    const cache_lists *l = c->data;
    fill_slots(k, c, l, a);
    k->core->copy_rows(k, a[FILL_Y], NULL, a[FILL_Y], NULL, NULL, NULL, 1, c->n[CACHE_DIM]); /* an operation between */
    kern_cache_job job = stored_job(c, l, a);
    k->core->attention_cache(k, &job);
    job.rope = NULL;
    run_alone(k, c, &job, a + ALONE);
}

static void check_stored(const ops_call *c, double *const *got)
{
    check_alone(c, got, Y, ALONE);
}

/* PyTorch's numbers (tests/golden/make_causal.py). */
static const int golden_caches[][4 + 3 * MOST_SPANS] = {{2, 64, 1, 0, 6, 0, 0, 0, 0, 0, 11, 0, 0, 0, 0, 0, 0},
                                                        {2, 100, 1, 0, 6, 0, 0, 0, 0, 0, 11, 0, 0, 0, 0, 0, 0}};

static void build_golden_cache(ops_call *c)
{
    static const char *const names[] = {"q", "k", "v", "y", "known"};
    const int size = c->n[CACHE_DIM], width = 2 * size, rows = c->n[4], slots = c->n[4 + MOST_SPANS];
    const int counts[] = {rows * width, slots * width, slots * width, rows * width, rows * slots};
    const float *golden[5];
    wt_file *f = golden_open("causal");
    for (int i = 0; i < 5; i++) {
        char name[64];
        snprintf(name, sizeof name, "attention%d.%s", size, names[i]);
        golden[i] = ops_golden(c, f, name, counts[i]);
    }
    wt_close(f);
    c->other = 0; /* the golden numbers have no other contents */
    cache_lists *l = make_lists(c, 0);
    l->q_stride = width;
    for (int r = 0; r < rows; r++) {
        l->count[r] = 0, memset(l->mask + r * WORDS, 0, WORDS * sizeof *l->mask);
        for (int s = 0; s < slots; s++)
            if (golden[4][r * slots + s] != 0)
                l->mask[r * WORDS] |= (uint64_t)1 << s, l->known[r * l->slots + l->count[r]++] = s;
    }
    for (int s = 0; s < slots; s++) l->slot[s] = s;
    double *q = ops_input(c, OPS_ACT, (size_t)(rows * width), 0, 1);
    double *cache = ops_input(c, OPS_ACT, (size_t)(l->slots * 2 * width), 0, 1);
    for (int i = 0; i < rows * width; i++) q[i] = ops_element_of(c, OPS_ACT, (double)golden[0][i]);
    for (int i = 0; i < slots * 2 * width; i++)
        cache[i] = ops_element_of(c, OPS_ACT, (double)golden[1 + i / width % 2][i / (2 * width) * width + i % width]);
    for (int turn = 0; turn < 3; turn++) {
        double *y = ops_output(c, OPS_ACT, (size_t)(rows * width), 0, turn ? 0 : 2e-6, turn ? 0 : 8e-3);
        for (int i = 0; i < rows * width; i++)
            if (turn == 0 || !ops_on_cuda()) y[i] = turn ? ops_any : (double)golden[3][i];
    }
}

#define CACHE_NUMBERS "heads dim spans unusual, queries, slots, common"

static const ops_entry table[] = {
    {"attention", "n_seq n_q n_k heads dim skew sharp", OPS_CASES(sequences), OPS_ALONE, build_attention, run_attention,
     prepare_attention, NULL, NULL},
    {"attention, large", "n_seq n_q n_k heads dim skew sharp", OPS_CASES(large_sequences), OPS_ALONE | OPS_LONG,
     build_attention, run_attention, prepare_attention, NULL, NULL},
    {"attention_spans", "heads dim skew count lengths replayed", OPS_CASES(spans), 0, build_spans, run_spans,
     prepare_spans, NULL, check_spans},
    {"attention_spans, large", "heads dim skew count lengths replayed", OPS_CASES(large_spans), OPS_LONG, build_spans,
     run_spans, prepare_spans, NULL, check_spans},
    {"attention_spans, biased", "heads dim skew count lengths replayed 1+reach masked", OPS_CASES(biased_spans), 0,
     build_spans, run_spans, prepare_spans, NULL, check_spans},
    {"attention_spans, biased, large", "heads dim skew count lengths replayed 1+reach masked",
     OPS_CASES(large_biased_spans), OPS_LONG, build_spans, run_spans, prepare_spans, NULL, check_spans},
    {"attention_cache", CACHE_NUMBERS, OPS_CASES(caches), 0, build_cache, run_cache, prepare_cache, NULL, check_cache},
    {"attention_cache, large", CACHE_NUMBERS, OPS_CASES(large_caches), OPS_LONG, build_cache, run_cache, prepare_cache,
     NULL, check_cache},
    {"attention_cache, turned", CACHE_NUMBERS, OPS_CASES(turned), 0, build_turned, run_turned, prepare_cache, NULL,
     check_turned},
    {"attention_cache, stored", CACHE_NUMBERS ", kv_heads kind causal", OPS_CASES(stored), 0, build_stored, run_stored,
     prepare_stored, NULL, check_stored},
    {"attention_cache, PyTorch", CACHE_NUMBERS, OPS_CASES(golden_caches), 0, build_golden_cache, run_cache,
     prepare_cache, NULL, check_cache},
};

/* Heads of 64 by warpgroups (MAR_CUDA_ATTENTION): of one to five in a block, and chunks of keys that are not full. */
static const int group_sequences[][7] = {
    {2, 19, 19, 2, 64, 0, 1}, {1, 130, 150, 1, 64, 0, 4}, {3, 65, 65, 1, 64, 16, 2}, {1, 330, 140, 4, 64, 0, 2},
    {1, 20, 7, 1, 64, 1, 1},  {1, 17, 1, 1, 64, 8, 500},  {1, 320, 64, 4, 64, 0, 2}};
static const int group_spans[][6] = {{2, 64, 0, SPANS, RAGGED, SHORT}, {1, 64, 8, SPANS, SHORT, LONG}};
static const ops_entry groups[] = {
    {"attention by warpgroups", "n_seq n_q n_k heads dim skew sharp", OPS_CASES(group_sequences),
     OPS_CUDA | OPS_BF16 | OPS_ALONE, build_attention, run_attention, prepare_attention, NULL, NULL},
    {"attention_spans by warpgroups", "heads dim skew count lengths replayed", OPS_CASES(group_spans),
     OPS_CUDA | OPS_BF16, build_spans, run_spans, prepare_spans, NULL, check_spans},
    {"attention by warpgroups, large", "n_seq n_q n_k heads dim skew sharp", OPS_CASES(large_sequences),
     OPS_CUDA | OPS_BF16 | OPS_ALONE | OPS_LONG, build_attention, run_attention, prepare_attention, NULL, NULL},
};

int main(void)
{
    const int failed = ops_main(table);
    setenv("MAR_CUDA_ATTENTION", "1", 1);
    if (!ops_has_asked()) return failed;
    const int wrong = ops_main(groups), ran = !cudahost_ran || cudahost_ran("attend_warpgroups", 1) > 0;
    if (!ran) printf("no kernel attend_warpgroups for MAR_CUDA_ATTENTION\n");
    return failed + wrong + !ran;
}
