/* Compiled once per instruction set, like rows.c. A task goes over its slots twice, first for the scores, then for the
 * weighted sum of the values, some slots at a time, which are converted to f32 for all of its queries together. A score
 * is a sum over vectors, then over their lanes; a weighted sum adds one slot after the other, in the order in which the
 * row knows them. So a row's bits do not depend on the rows of its task, nor on which slots are common to them. */
#include "kernels/cpu/cached.h"
#include "kernels/cpu/rows.h"

#include <math.h>
#include <string.h>

#define PASTE_(a, b) a##_##b
#define PASTE(a, b)  PASTE_(a, b)

void PASTE(kern_cached, KERN_ISA)(const cached_task *t, const kern_rows *rows);

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float vector __attribute__((vector_size(LANES * sizeof(float))));

/* A task's working memory. */
typedef struct {
    size_t width, length;
    float *q;     /* [rows][heads][width] */
    float *sum;   /* [rows][heads][width] */
    float *score; /* [rows][heads][length], later the weights */
    float *chunk; /* [CACHED_SLOTS][width] keys or values of a head */
    int *own;     /* [rows][length] the slots that a row knows beside the common ones */
    int count[CACHED_ROWS];
} workspace;

static inline void to_f32(const char *from, int bf16, int dim, float *to)
{
    if (bf16)
        for (int i = 0; i < dim; i++) {
            uint16_t half_bits;
            memcpy(&half_bits, from + 2 * i, sizeof half_bits);
            const uint32_t bits = (uint32_t)half_bits << 16;
            memcpy(to + i, &bits, sizeof bits);
        }
    else
        memcpy(to, from, (size_t)dim * sizeof *to);
}

/* A head's keys or values of n slots, filled up with zeros. */
static inline void gather(const cached_task *t, const char *base, const int *slot, int n, size_t width, float *chunk)
{
    for (int i = 0; i < n; i++) {
        float *to = chunk + (size_t)i * width;
        const char *from = base + (size_t)slot[i] * t->slot_stride;
        if (t->dim == 64) /* the size of most models, known to the compiler */
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

static inline float lanes_sum(vector v)
{
    float lane[LANES];
    memcpy(lane, &v, sizeof v);
#pragma GCC unroll 4
    for (int n = LANES / 2; n; n /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < n; i++) lane[i] += lane[i + n];
    return lane[0];
}

static inline void scores_of(const float *q, const float *chunk, int n, size_t width, float *score)
{
    for (int i = 0; i < n; i++, chunk += width) {
        vector sum = load(q) * load(chunk);
        for (size_t j = LANES; j < width; j += LANES) sum += load(q + j) * load(chunk + j);
        score[i] = lanes_sum(sum);
    }
}

/* sum += weight[i] * chunk[i], of `vectors` vectors. */
static inline __attribute__((always_inline)) void add_part(const int vectors, const float *weight, const float *chunk,
                                                           int n, size_t width, float *sum)
{
    vector s[4];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) s[v] = load(sum + v * LANES);
    for (int i = 0; i < n; i++, chunk += width)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) s[v] += weight[i] * load(chunk + v * LANES);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) memcpy(sum + v * LANES, &s[v], sizeof s[v]);
}

static inline void add_values(const float *weight, const float *chunk, int n, size_t width, float *sum)
{
    size_t j = 0;
    for (; j + 4 * LANES <= width; j += 4 * LANES) add_part(4, weight, chunk + j, n, width, sum + j);
    for (; j < width; j += LANES) add_part(1, weight, chunk + j, n, width, sum + j);
}

/* What is done with a head's n keys or values in w->chunk, which are a row's number `at` and those after it. */
static inline void use(const workspace *w, int pair, int values, int n, size_t at)
{
    float *score = w->score + (size_t)pair * w->length + at;
    const size_t row = (size_t)pair * w->width;
    if (values)
        add_values(score, w->chunk, n, w->width, w->sum + row);
    else
        scores_of(w->q + row, w->chunk, n, w->width, score);
}

/* One pass over the slots: for all rows over the common ones, then for each over its own. */
static void pass(const cached_task *t, const workspace *w, int values)
{
    const char *base = values ? t->value : t->key;
    const size_t head = (size_t)t->dim * (t->bf16 ? 2 : 4);
    for (int i = 0; i < t->common; i += CACHED_SLOTS) {
        const int n = t->common - i < CACHED_SLOTS ? t->common - i : CACHED_SLOTS;
        for (int h = 0; h < t->heads; h++) {
            gather(t, base + (size_t)h * head, t->slot + i, n, w->width, w->chunk);
            for (int r = 0; r < t->rows; r++) use(w, r * t->heads + h, values, n, (size_t)i);
        }
    }
    for (int r = 0; r < t->rows; r++)
        for (int i = 0; i < w->count[r]; i += CACHED_SLOTS) {
            const int n = w->count[r] - i < CACHED_SLOTS ? w->count[r] - i : CACHED_SLOTS;
            for (int h = 0; h < t->heads; h++) {
                gather(t, base + (size_t)h * head, w->own + (size_t)r * w->length + i, n, w->width, w->chunk);
                use(w, r * t->heads + h, values, n, (size_t)(t->common + i));
            }
        }
}

static void list_own(const cached_task *t, workspace *w)
{
    for (int r = 0; r < t->rows; r++) {
        const uint64_t *mask = t->mask + (size_t)r * (size_t)t->words;
        int *own = w->own + (size_t)r * w->length, n = 0;
        for (int j = 0; j < t->own; j++)
            if (mask[j / 64] >> j % 64 & 1) own[n++] = t->slot[t->common + j];
        w->count[r] = n;
    }
}

/* rows.c puts it into the instruction set's table. */
void PASTE(kern_cached, KERN_ISA)(const cached_task *t, const kern_rows *rows)
{
    const int pairs = t->rows * t->heads;
    const size_t head = (size_t)t->dim * (t->bf16 ? 2 : 4);
    workspace w = {.width = cached_width(t->dim), .length = cached_length(t->common + t->own)};
    const size_t vectors = (size_t)pairs * w.width;
    w.q = t->work, w.sum = w.q + vectors, w.score = w.sum + vectors;
    w.chunk = w.score + (size_t)pairs * w.length;
    w.own = (int *)(w.chunk + CACHED_SLOTS * w.width);
    memset(w.q, 0, 2 * vectors * sizeof *w.q);
    memset(w.chunk, 0, CACHED_SLOTS * w.width * sizeof *w.chunk);
    list_own(t, &w);
    for (int p = 0; p < pairs; p++)
        to_f32(t->q + (size_t)(p / t->heads) * t->q_stride + (size_t)(p % t->heads) * head, t->bf16, t->dim,
               w.q + (size_t)p * w.width);
    pass(t, &w, 0);
    for (int p = 0; p < pairs; p++) {
        float *score = w.score + (size_t)p * w.length;
        rows->softmax(score, t->common + w.count[p / t->heads], 1.0f / sqrtf((float)t->dim), score, 0);
    }
    pass(t, &w, 1);
    for (int p = 0; p < pairs; p++)
        rows->to_act(w.sum + (size_t)p * w.width, (size_t)t->dim,
                     t->y + (size_t)(p / t->heads) * t->y_stride + (size_t)(p % t->heads) * head, t->bf16);
}
