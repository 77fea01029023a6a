/* Compiled once per instruction set, like rows.c. A task passes over its slots twice: for the scores, then for the
 * weighted sum of the values. It converts some slots at a time to f32 for all of its queries. A score is a sum over
 * vectors, then over their lanes. A weighted sum adds one slot after the other, in the row's order. So a row's bits
 * depend neither on the other rows of its task nor on the common slots. */
#include "base/unroll.h"
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

/* EVEN and ODD select lanes of two concatenated vectors: every second of each four. The others select every second four
 * lanes. */
#if defined(__AVX512F__)
enum { LANES = 16 };
#define EVEN       0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30
#define ODD        1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31
#define EVEN_FOURS 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define ODD_FOURS  4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
#elif defined(__AVX2__)
enum { LANES = 8 };
#define EVEN       0, 2, 8, 10, 4, 6, 12, 14
#define ODD        1, 3, 9, 11, 5, 7, 13, 15
#define EVEN_FOURS 0, 1, 2, 3, 8, 9, 10, 11
#define ODD_FOURS  4, 5, 6, 7, 12, 13, 14, 15
#else
enum { LANES = 4 };
#define EVEN       0, 2, 4, 6
#define ODD        1, 3, 5, 7
#define EVEN_FOURS EVEN /* not used */
#define ODD_FOURS  ODD
#endif
enum { SUMS = 8 }; /* vectors of sums in flight: enough to hide the latency of a sum */
typedef float vector __attribute__((vector_size(LANES * sizeof(float))));
typedef uint16_t halves __attribute__((vector_size(LANES * sizeof(uint16_t))));
typedef uint32_t words __attribute__((vector_size(LANES * sizeof(uint32_t))));

/* A task's working memory. */
typedef struct {
    size_t width, length;
    float *q;           /* [rows][heads][group][width] */
    float *sum;         /* [rows][heads][group][width] */
    float *score;       /* [rows][heads][group][length], later the weights; a row's slots one after the other */
    float *chunk;       /* [CACHED_SLOTS][width] keys or values of one head */
    int *slot;          /* [slots] slots that some row attends to */
    uint32_t *row_mask; /* [slots] bit r: row r attends to it */
    int slots;
    int count[CACHED_QUERIES]; /* slots that a row attends to */
} workspace;

/* The slots of a chunk by row. */
typedef struct {
    int first, slots;                        /* in workspace.slot */
    int at[CACHED_QUERIES];                  /* rank of the row's first one among all its slots */
    int known[CACHED_QUERIES];               /* number of the row's slots */
    int index[CACHED_QUERIES][CACHED_SLOTS]; /* their indices, in order, unless the row attends to all */
} chunk_slots;

/* Converts LANES bf16 numbers. GCC 12 makes two conversions and more of the portable form with 16 lanes. */
static inline words cached_widen(const uint16_t *from)
{
#if defined(__AVX512F__)
    return (words)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)), 16);
#else
    halves h;
    memcpy(&h, from, sizeof h);
    return __builtin_convertvector(h, words) << 16;
#endif
}

/* A loop that compilers turn into vectors. */
static inline void scale_int8(const int8_t *restrict from, float scale, int dim, float *restrict to)
{
    for (int i = 0; i < dim; i++) to[i] = (float)from[i] * scale;
}

/* Converts dim numbers; `to` has room for whole vectors. scale is that of CACHED_INT8. */
static inline __attribute__((always_inline)) void to_f32(const char *from, cached_type type, float scale, int dim,
                                                         float *to)
{
    if (type == CACHED_F32) {
        memcpy(to, from, (size_t)dim * sizeof *to);
        return;
    }
    if (type == CACHED_INT8) {
        scale_int8((const int8_t *)from, scale, dim, to);
        return;
    }
    for (int i = 0; i < dim; i += LANES) {
        uint16_t end[LANES] = {0};
        const uint16_t *at = (const uint16_t *)from + i;
        if (i + LANES > dim) at = memcpy(end, at, (size_t)(dim - i) * sizeof *at);
        const words w = cached_widen(at);
        memcpy(to + i, &w, sizeof w);
    }
}

/* Copies a head's keys or values of a chunk's slots, zero-padded, and prefetches those of the next chunk into L2. A
 * head's numbers of successive slots are too far apart for the hardware prefetcher, and would fall into few sets of L1.
 * The last chunk prefetches the first slots of the values. */
static inline void cached_gather(const cached_task *t, const workspace *w, int values, int h, const chunk_slots *c)
{
    const int *slot = w->slot + c->first, left = w->slots - c->first;
    const size_t head = (size_t)t->dim * cached_size(t->type);
    const char *base = (values ? t->value : t->key) + (size_t)h * head, *after = t->value + (size_t)h * head;
    const char *scales = (values ? t->value_scale : t->key_scale) + (size_t)h * sizeof(float);
    for (int i = 0; i < c->slots; i++) {
        float *to = w->chunk + (size_t)i * w->width, scale = 0;
        const char *from = base + (size_t)slot[i] * t->slot_stride;
        const char *next = i + CACHED_SLOTS < left ? base + (size_t)slot[i + CACHED_SLOTS] * t->slot_stride
                                                   : after + (size_t)w->slot[i] * t->slot_stride;
        for (size_t j = 0; j < head; j += 64) __builtin_prefetch(next + j, 0, 2);
        if (t->type == CACHED_INT8) memcpy(&scale, scales + (size_t)slot[i] * t->slot_stride, sizeof scale);
        if (t->dim == 64) /* the usual sizes, known to the compiler */
            to_f32(from, t->type, scale, 64, to);
        else if (t->dim == 128)
            to_f32(from, t->type, scale, 128, to);
        else
            to_f32(from, t->type, scale, t->dim, to);
    }
}

static inline vector cached_load(const float *x)
{
    vector v;
    memcpy(&v, x, sizeof v);
    return v;
}

#if defined(__clang__) || __GNUC__ >= 12
#define SELECT(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int lanes __attribute__((vector_size(LANES * sizeof(int))));
#define SELECT(a, b, ...) __builtin_shuffle(a, b, (lanes){__VA_ARGS__})
#endif

/* Sums neighbouring lanes, or neighbouring fours of lanes: in each four a's, then b's; or a's fours, then b's. */
static inline vector cached_fold(vector a, vector b)
{
    return SELECT(a, b, EVEN) + SELECT(a, b, ODD);
}

static inline vector fold_fours(vector a, vector b)
{
    return SELECT(a, b, EVEN_FOURS) + SELECT(a, b, ODD_FOURS);
}

/* score[i] = q . key index[i], or key i if `dense`, of LANES keys. Their partial-sum vectors are folded into one
 * vector: two times within fours of lanes, where shuffles are cheap. */
static inline __attribute__((always_inline)) void scores_of(const int dense, const float *q, const float *chunk,
                                                            const int *index, const size_t width, float *score)
{
    vector sum[LANES];
    const float *key[LANES];
    UNROLL
    for (int i = 0; i < LANES; i++) {
        key[i] = chunk + (size_t)(dense ? i : index[i]) * width;
        sum[i] = cached_load(q) * cached_load(key[i]);
    }
    for (size_t j = LANES; j < width; j += LANES) {
        const vector part = cached_load(q + j);
        UNROLL
        for (int i = 0; i < LANES; i++) sum[i] += part * cached_load(key[i] + j);
    }
    UNROLL
    for (int n = LANES / 2; n; n /= 2) {
        UNROLL
        for (int i = 0; i < n; i++)
            sum[i] = n >= LANES / 4 ? cached_fold(sum[2 * i], sum[2 * i + 1]) : fold_fours(sum[2 * i], sum[2 * i + 1]);
    }
    memcpy(score, &sum[0], sizeof sum[0]);
}

/* sum[r] += weight[r][i] * chunk[index[i]], or chunk[i] if `dense`, for `rows` rows, `vectors` vectors each. */
static inline __attribute__((always_inline)) void cpu_cached_add_part(const int dense, const int rows,
                                                                      const int vectors, const float *const *weight,
                                                                      const float *chunk, const int *index, int n,
                                                                      size_t width, float *const *sum)
{
    vector s[SUMS];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < vectors; v++) s[r * vectors + v] = cached_load(sum[r] + v * LANES);
    }
    for (int i = 0; i < n; i++) {
        const float *value = chunk + (size_t)(dense ? i : index[i]) * width;
        UNROLL
        for (int r = 0; r < rows; r++) {
            UNROLL
            for (int v = 0; v < vectors; v++) s[r * vectors + v] += weight[r][i] * cached_load(value + v * LANES);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < vectors; v++) memcpy(sum[r] + v * LANES, &s[r * vectors + v], sizeof s[0]);
    }
}

static inline __attribute__((always_inline)) void cpu_cached_add_values(const int dense, const int rows,
                                                                        const float *const *weight, const float *chunk,
                                                                        const int *index, int n, const size_t width,
                                                                        float *const *sum)
{
    enum { MANY = SUMS / 2 };
    size_t j = 0;
    for (; rows == 1 && j + SUMS * LANES <= width; j += SUMS * LANES)
        cpu_cached_add_part(dense, 1, SUMS, weight, chunk + j, index, n, width, (float *const[1]){sum[0] + j});
    for (; j + MANY * LANES <= width; j += MANY * LANES)
        cpu_cached_add_part(dense, rows, MANY, weight, chunk + j, index, n, width,
                            (float *const[2]){sum[0] + j, rows > 1 ? sum[1] + j : NULL});
    for (; j < width; j += LANES)
        cpu_cached_add_part(dense, rows, 1, weight, chunk + j, index, n, width,
                            (float *const[2]){sum[0] + j, rows > 1 ? sum[1] + j : NULL});
}

/* Lists each row's slots in the chunk that begins with slot number c->first; c->at is that of the previous chunk. */
static void list_chunk_slots(const workspace *w, int rows, chunk_slots *c)
{
    const uint32_t *row_mask = w->row_mask + c->first;
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

/* Returns the place of query i of a head of keys: of row i / group. */
static inline size_t pair_of(const cached_task *t, int h, int i)
{
    return (size_t)((i / t->group * t->heads + h) * t->group + i % t->group);
}

static inline __attribute__((always_inline)) void add_scores_of(const cached_task *t, const workspace *w,
                                                                const chunk_slots *c, int h, const size_t width)
{
    for (int n = 0; n < t->rows * t->group; n++) {
        const int r = n / t->group, dense = c->known[r] == c->slots; /* the chunk's padding holds finite numbers */
        const size_t pair = pair_of(t, h, n);
        const float *q = w->q + pair * width;
        float *score = w->score + pair * w->length + c->at[r];
        for (int i = 0; i < c->known[r]; i += LANES) {
            if (dense)
                scores_of(1, q, w->chunk + (size_t)i * width, NULL, width, score + i);
            else
                scores_of(0, q, w->chunk, c->index[r] + i, width, score + i);
        }
    }
}

/* Computes the scores of a chunk's slots for all queries of a head of keys. */
static void cached_add_scores(const cached_task *t, const workspace *w, const chunk_slots *c, int h)
{
    if (w->width == 64)
        add_scores_of(t, w, c, h, 64);
    else if (w->width == 128)
        add_scores_of(t, w, c, h, 128);
    else
        add_scores_of(t, w, c, h, w->width);
}

static inline __attribute__((always_inline)) void add_weighted_of(const cached_task *t, const workspace *w,
                                                                  const chunk_slots *c, int h, const size_t width)
{
    const int queries = t->rows * t->group;
    for (int n = 0, some; n < queries; n += some) {
        const int r = n / t->group, r2 = (n + 1) / t->group, dense = c->known[r] == c->slots;
        const int *index = dense ? NULL : c->index[r];
        const float *weight[2] = {NULL};
        float *sum[2] = {NULL};
        some = n + 1 < queries && (r2 == r || (dense && c->known[r2] == c->slots)) ? 2 : 1;
        for (int i = 0; i < some; i++) {
            const size_t pair = pair_of(t, h, n + i);
            weight[i] = w->score + pair * w->length + c->at[(n + i) / t->group];
            sum[i] = w->sum + pair * width;
        }
        if (some == 2 && dense)
            cpu_cached_add_values(1, 2, weight, w->chunk, NULL, c->slots, width, sum);
        else if (some == 2)
            cpu_cached_add_values(0, 2, weight, w->chunk, index, c->known[r], width, sum);
        else if (dense)
            cpu_cached_add_values(1, 1, weight, w->chunk, NULL, c->slots, width, sum);
        else
            cpu_cached_add_values(0, 1, weight, w->chunk, index, c->known[r], width, sum);
    }
}

/* Adds the weighted values of a chunk's slots, for all queries of a head of keys. Two queries with the same slots go
 * together, to keep enough sums in flight. */
static void add_weighted(const cached_task *t, const workspace *w, const chunk_slots *c, int h)
{
    if (w->width == 64)
        add_weighted_of(t, w, c, h, 64);
    else if (w->width == 128)
        add_weighted_of(t, w, c, h, 128);
    else
        add_weighted_of(t, w, c, h, w->width);
}

/* Passes over the slots once, chunk by chunk, each converted once for all queries. */
static void cached_pass(const cached_task *t, const workspace *w, int values)
{
    chunk_slots c = {0};
    for (; c.first < w->slots; c.first += CACHED_SLOTS) {
        list_chunk_slots(w, t->rows, &c);
        for (int h = 0; h < t->heads; h++) {
            cached_gather(t, w, values, h, &c);
            if (values)
                add_weighted(t, w, &c, h);
            else
                cached_add_scores(t, w, &c, h);
        }
        for (int r = 0; r < t->rows; r++) c.at[r] += c.known[r];
    }
}

static void cached_list_slots(const cached_task *t, workspace *w)
{
    w->slots = cached_list(t, w->slot, w->row_mask);
    for (int r = 0; r < t->rows; r++) {
        w->count[r] = t->common;
        for (int i = t->common; i < w->slots; i++) w->count[r] += w->row_mask[i] >> r & 1;
    }
}

void PASTE(kern_cached, KERN_ISA)(const cached_task *t, const kern_rows *rows)
{
    const int across = t->heads * t->group, pairs = t->rows * across;
    const size_t head = (size_t)t->dim * (t->bf16 ? 2 : 4);
    workspace w = {.width = cached_width(t->dim), .length = cached_length(t->common + t->own)};
    const size_t vectors = (size_t)pairs * w.width;
    w.q = t->work, w.sum = w.q + vectors, w.score = w.sum + vectors;
    w.chunk = w.score + (size_t)pairs * w.length;
    w.slot = (int *)(w.chunk + CACHED_SLOTS * w.width);
    w.row_mask = (uint32_t *)(w.slot + w.length);
    memset(w.q, 0, 2 * vectors * sizeof *w.q);
    memset(w.chunk, 0, CACHED_SLOTS * w.width * sizeof *w.chunk);
    cached_list_slots(t, &w);
    for (int p = 0; p < pairs; p++)
        to_f32(t->q + (size_t)(p / across) * t->q_stride + (size_t)(p % across) * head,
               t->bf16 ? CACHED_BF16 : CACHED_F32, 0, t->dim, w.q + (size_t)p * w.width);
    cached_pass(t, &w, 0);
    for (int p = 0; p < pairs; p++) {
        float *score = w.score + (size_t)p * w.length;
        rows->softmax(score, w.count[p / across], 1.0f / sqrtf((float)t->dim));
    }
    cached_pass(t, &w, 1);
    for (int p = 0; p < pairs; p++)
        rows->to_act(w.sum + (size_t)p * w.width, (size_t)t->dim,
                     t->y + (size_t)(p / across) * t->y_stride + (size_t)(p % across) * head, t->bf16);
}
