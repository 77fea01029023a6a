/* Compiled once per instruction set, like rows.c. A task passes over its slots twice: for the scores, then for the
 * weighted sum of the values. It converts some slots at a time to f32 for all of its queries. A score is a sum over
 * vectors, then over their lanes. A weighted sum adds one slot after the other, in the row's order. So a row's bits
 * depend neither on the other rows of its task nor on the common slots. */
#include "kernels/cpu/cached.h"
#include "kernels/cpu/rows.h"

#include <math.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define PASTE_(a, b) a##_##b
#define PASTE(a, b)  PASTE_(a, b)

cached_attend PASTE(kern_cached, KERN_ISA);

/* EVEN and ODD select lanes of two concatenated vectors. */
#if defined(__AVX512F__)
enum { LANES = 16 };
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD  1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif defined(__AVX2__)
enum { LANES = 8 };
#define EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define ODD  1, 3, 5, 7, 9, 11, 13, 15
#else
enum { LANES = 4 };
#define EVEN 0, 2, 4, 6
#define ODD  1, 3, 5, 7
#endif
typedef float vector __attribute__((vector_size(LANES * sizeof(float))));
typedef uint16_t halves __attribute__((vector_size(LANES * sizeof(uint16_t))));
typedef uint32_t words __attribute__((vector_size(LANES * sizeof(uint32_t))));

/* A task's working memory. */
typedef struct {
    size_t width, length;
    float *q;           /* [rows][heads][width] */
    float *sum;         /* [rows][heads][width] */
    float *score;       /* [rows][heads][length], later the weights; a row's slots one after the other */
    float *chunk;       /* [CACHED_SLOTS][width] keys or values of one head */
    int *slot;          /* [slots] slots that some row attends to */
    uint16_t *row_mask; /* [slots] bit r: row r attends to it */
    int slots;
    int count[CACHED_ROWS]; /* slots that a row attends to */
} workspace;

/* The slots of a chunk by row. */
typedef struct {
    int first, slots;                     /* in workspace.slot */
    int at[CACHED_ROWS];                  /* rank of the row's first one among all its slots */
    int known[CACHED_ROWS];               /* number of the row's slots */
    int index[CACHED_ROWS][CACHED_SLOTS]; /* their indices, in order, unless the row attends to all */
} chunk_slots;

/* Converts LANES bf16 numbers. GCC 12 makes two conversions and more of the portable form with 16 lanes. */
static inline words widen(const uint16_t *from)
{
#if defined(__AVX512F__)
    return (words)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16);
#else
    halves h;
    memcpy(&h, from, sizeof h);
    return __builtin_convertvector(h, words) << 16;
#endif
}

/* Converts dim numbers; `to` has room for whole vectors. */
static inline void to_f32(const char *from, int bf16, int dim, float *to)
{
    if (!bf16) {
        memcpy(to, from, (size_t)dim * sizeof *to);
        return;
    }
    for (int i = 0; i < dim; i += LANES) {
        uint16_t end[LANES] = {0};
        const uint16_t *at = (const uint16_t *)from + i;
        if (i + LANES > dim) at = memcpy(end, at, (size_t)(dim - i) * sizeof *at);
        const words w = widen(at);
        memcpy(to + i, &w, sizeof w);
    }
}

/* Copies a head's keys or values of a chunk's slots, zero-padded, and prefetches those of the next chunk into L2. A
 * head's numbers of successive slots are too far apart for the hardware prefetcher, and would fall into few sets of L1.
 * The last chunk prefetches the first slots of `after`. */
static inline void gather(const cached_task *t, const workspace *w, const char *base, const char *after,
                          const chunk_slots *c)
{
    const int *slot = w->slot + c->first, left = w->slots - c->first;
    const int head = t->dim * (t->bf16 ? 2 : 4);
    for (int i = 0; i < c->slots; i++) {
        float *to = w->chunk + (size_t)i * w->width;
        const char *from = base + (size_t)slot[i] * t->slot_stride;
        const char *next = i + CACHED_SLOTS < left ? base + (size_t)slot[i + CACHED_SLOTS] * t->slot_stride
                                                   : after + (size_t)w->slot[i] * t->slot_stride;
        for (int j = 0; j < head; j += 64) __builtin_prefetch(next + j, 0, 2);
        if (t->dim == 64) /* the usual size, known to the compiler */
            to_f32(from, t->bf16, 64, to);
        else
            to_f32(from, t->bf16, t->dim, to);
    }
}

static inline vector load(const float *x)
{
    vector v;
    memcpy(&v, x, sizeof v);
    return v;
}

/* Sums neighbouring lanes, a's first. */
static inline vector fold(vector a, vector b)
{
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, EVEN) + __builtin_shufflevector(a, b, ODD);
#else
    typedef int lanes __attribute__((vector_size(LANES * sizeof(int))));
    return __builtin_shuffle(a, b, (lanes){EVEN}) + __builtin_shuffle(a, b, (lanes){ODD});
#endif
}

/* score[i] = q . key index[i], or key i if `dense`, of LANES keys. Their partial-sum vectors are folded into one
 * vector. */
static inline __attribute__((always_inline)) void scores_of(const int dense, const float *q, const float *chunk,
                                                            const int *index, const size_t width, float *score)
{
    vector sum[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        const float *key = chunk + (size_t)(dense ? i : index[i]) * width;
        sum[i] = load(q) * load(key);
#pragma GCC unroll 4
        for (size_t j = LANES; j < width; j += LANES) sum[i] += load(q + j) * load(key + j);
    }
#pragma GCC unroll 4
    for (int n = LANES / 2; n; n /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < n; i++) sum[i] = fold(sum[2 * i], sum[2 * i + 1]);
    memcpy(score, &sum[0], sizeof sum[0]);
}

/* sum[r] += weight[r][i] * chunk[index[i]], or chunk[i] if `dense`, for `rows` rows, `vectors` vectors each. */
static inline __attribute__((always_inline)) void add_part(const int dense, const int rows, const int vectors,
                                                           const float *const *weight, const float *chunk,
                                                           const int *index, int n, size_t width, float *const *sum)
{
    vector s[2][4];
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) s[r][v] = load(sum[r] + v * LANES);
    for (int i = 0; i < n; i++) {
        const float *value = chunk + (size_t)(dense ? i : index[i]) * width;
#pragma GCC unroll 2
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) s[r][v] += weight[r][i] * load(value + v * LANES);
    }
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) memcpy(sum[r] + v * LANES, &s[r][v], sizeof s[r][v]);
}

static inline __attribute__((always_inline)) void add_values(const int dense, const int rows,
                                                             const float *const *weight, const float *chunk,
                                                             const int *index, int n, const size_t width,
                                                             float *const *sum)
{
    size_t j = 0;
    for (; j + 4 * LANES <= width; j += 4 * LANES)
        add_part(dense, rows, 4, weight, chunk + j, index, n, width,
                 (float *const[2]){sum[0] + j, rows > 1 ? sum[1] + j : NULL});
    for (; j < width; j += LANES)
        add_part(dense, rows, 1, weight, chunk + j, index, n, width,
                 (float *const[2]){sum[0] + j, rows > 1 ? sum[1] + j : NULL});
}

/* Lists each row's slots in the chunk that begins with slot number c->first; c->at is that of the previous chunk. */
static void list_chunk_slots(const workspace *w, int rows, chunk_slots *c)
{
    const uint16_t *row_mask = w->row_mask + c->first;
    unsigned all = ~0u;
    c->slots = w->slots - c->first < CACHED_SLOTS ? w->slots - c->first : CACHED_SLOTS;
    for (int i = 0; i < c->slots; i++) all &= row_mask[i];
    for (int r = 0; r < rows; r++) {
        c->known[r] = c->slots;
        if (all >> r & 1) continue;
        int n = 0;
        for (int i = 0; i < c->slots; i++) {
            c->index[r][n] = i;
            n += row_mask[i] >> r & 1;
        }
        c->known[r] = n;
        while (n < CACHED_SLOTS) c->index[r][n++] = 0; /* lets LANES scores be computed at a time */
    }
}

/* Computes a head's scores of a chunk's slots, for all rows. */
static void add_scores(const cached_task *t, const workspace *w, const chunk_slots *c, int h)
{
    for (int r = 0; r < t->rows; r++) {
        const size_t pair = (size_t)(r * t->heads + h);
        const float *q = w->q + pair * w->width;
        float *score = w->score + pair * w->length + c->at[r];
        const int dense = c->known[r] == c->slots; /* the chunk's padding holds finite numbers */
        for (int i = 0; i < c->known[r]; i += LANES) {
            if (w->width == 64 && dense)
                scores_of(1, q, w->chunk + (size_t)i * 64, NULL, 64, score + i);
            else if (dense)
                scores_of(1, q, w->chunk + (size_t)i * w->width, NULL, w->width, score + i);
            else if (w->width == 64)
                scores_of(0, q, w->chunk, c->index[r] + i, 64, score + i);
            else
                scores_of(0, q, w->chunk, c->index[r] + i, w->width, score + i);
        }
    }
}

/* Adds a head's weighted values of a chunk's slots, for all rows. Two rows with the same slots go together, to keep
 * enough sums in flight. */
static void add_weighted(const cached_task *t, const workspace *w, const chunk_slots *c, int h)
{
    for (int r = 0, rows; r < t->rows; r += rows) {
        const size_t pair = (size_t)(r * t->heads + h), next = pair + (size_t)t->heads;
        rows = r + 1 < t->rows && c->known[r] == c->slots && c->known[r + 1] == c->slots ? 2 : 1;
        const float *weight[2] = {w->score + pair * w->length + c->at[r], NULL};
        float *sum[2] = {w->sum + pair * w->width, NULL};
        if (rows == 2) {
            weight[1] = w->score + next * w->length + c->at[r + 1];
            sum[1] = w->sum + next * w->width;
            if (w->width == 64)
                add_values(1, 2, weight, w->chunk, NULL, c->slots, 64, sum);
            else
                add_values(1, 2, weight, w->chunk, NULL, c->slots, w->width, sum);
        } else if (c->known[r] == c->slots) {
            add_values(1, 1, weight, w->chunk, NULL, c->slots, w->width, sum);
        } else {
            add_values(0, 1, weight, w->chunk, c->index[r], c->known[r], w->width, sum);
        }
    }
}

/* Passes over the slots once, chunk by chunk, each converted once for all rows. */
static void pass(const cached_task *t, const workspace *w, int values)
{
    const char *base = values ? t->value : t->key;
    const size_t head = (size_t)t->dim * (t->bf16 ? 2 : 4);
    chunk_slots c = {0};
    for (; c.first < w->slots; c.first += CACHED_SLOTS) {
        list_chunk_slots(w, t->rows, &c);
        for (int h = 0; h < t->heads; h++) {
            gather(t, w, base + (size_t)h * head, t->value + (size_t)h * head, &c);
            if (values)
                add_weighted(t, w, &c, h);
            else
                add_scores(t, w, &c, h);
        }
        for (int r = 0; r < t->rows; r++) c.at[r] += c.known[r];
    }
}

static void list_slots(const cached_task *t, workspace *w)
{
    w->slots = cached_list(t, w->slot, w->row_mask);
    for (int r = 0; r < t->rows; r++) {
        w->count[r] = t->common;
        for (int i = t->common; i < w->slots; i++) w->count[r] += w->row_mask[i] >> r & 1;
    }
}

void PASTE(kern_cached, KERN_ISA)(const cached_task *t, const kern_rows *rows)
{
    const int pairs = t->rows * t->heads;
    const size_t head = (size_t)t->dim * (t->bf16 ? 2 : 4);
    workspace w = {.width = cached_width(t->dim), .length = cached_length(t->common + t->own)};
    const size_t vectors = (size_t)pairs * w.width;
    w.q = t->work, w.sum = w.q + vectors, w.score = w.sum + vectors;
    w.chunk = w.score + (size_t)pairs * w.length;
    w.slot = (int *)(w.chunk + CACHED_SLOTS * w.width);
    w.row_mask = (uint16_t *)(w.slot + w.length);
    memset(w.q, 0, 2 * vectors * sizeof *w.q);
    memset(w.chunk, 0, CACHED_SLOTS * w.width * sizeof *w.chunk);
    list_slots(t, &w);
    for (int p = 0; p < pairs; p++)
        to_f32(t->q + (size_t)(p / t->heads) * t->q_stride + (size_t)(p % t->heads) * head, t->bf16, t->dim,
               w.q + (size_t)p * w.width);
    pass(t, &w, 0);
    for (int p = 0; p < pairs; p++) {
        float *score = w.score + (size_t)p * w.length;
        rows->softmax(score, w.count[p / t->heads], 1.0f / sqrtf((float)t->dim), score, 0);
    }
    pass(t, &w, 1);
    for (int p = 0; p < pairs; p++)
        rows->to_act(w.sum + (size_t)p * w.width, (size_t)t->dim,
                     t->y + (size_t)(p / t->heads) * t->y_stride + (size_t)(p % t->heads) * head, t->bf16);
}
