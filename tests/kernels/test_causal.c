/* The CPU backend's operations of causal transformers, in f32 and bf16: against PyTorch's numbers
 * (tests/golden/make_causal.py), attention over caches of any shape against plain loops in double, and the promise that
 * a row's bits depend on its own queries and the slots that it knows only. */
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const mar_dtype dtypes[2] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};

static uint32_t draws;

static uint32_t random_word(uint32_t i)
{
    uint32_t w[4];
    kern_random_words(15, KERN_NOISE_INIT, draws, i >> 16, 0, i & 0xffff, w);
    return w[0];
}

static float *random_floats(size_t n, float scale)
{
    float *x = malloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = ((float)random_word((uint32_t)i) / 2147483648.0f - 1) * scale;
    draws++;
    return x;
}

static void *act_of(kern_queue *k, const float *x, size_t n)
{
    void *p = backend_memory(k, n * k->device->act_size);
    k->core->to_act(k, x, n, p);
    return p;
}

static float *from_act(const kern_queue *k, const void *p, size_t n)
{
    float *x = malloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        const uint32_t u =
            k->device->act_size == 2 ? (uint32_t)((const uint16_t *)p)[i] << 16 : ((const uint32_t *)p)[i];
        memcpy(x + i, &u, sizeof u);
    }
    return x;
}

/* The values of p, n of act, are those of the golden tensor, or of `expected`. */
static void assert_act(const kern_queue *k, const void *p, const float *expected, size_t n, double bf16_tolerance)
{
    float *got = from_act(k, p, n);
    assert_close(got, expected, n, k->device->act_size == 2 ? bf16_tolerance : 2e-6);
    free(got);
}

static int *whole_numbers(const wt_file *f, const char *name, int count)
{
    float *x = golden_f32(f, name, count);
    int *n = malloc(sizeof *n * (size_t)count);
    for (int i = 0; i < count; i++) n[i] = (int)x[i];
    free(x);
    return n;
}

/* --- PyTorch's numbers -------------------------------------------------------------------------------------------- */

enum { ROWS = 5, DIM = 100, HIDDEN = 75, POSITIONS = 7, QUERIES = 6, SLOTS = 11, HEADS = 2 };

static void golden_rows(void **state)
{
    (void)state;
    wt_file *f = golden_open("causal");
    float *x = golden_f32(f, "norm.x", ROWS * DIM), *weight = golden_f32(f, "norm.weight", DIM);
    float *y = golden_f32(f, "norm.y", ROWS * DIM), *gated = golden_f32(f, "swiglu.x", ROWS * 2 * HIDDEN);
    float *gated_y = golden_f32(f, "swiglu.y", ROWS * HIDDEN);
    const int index[3] = {4, 0, 4};
    for (int d = 0; d < 2; d++) {
        kern_queue *k = open_queue(dtypes[d], 2);
        if (!k) continue;
        void *out = backend_memory(k, ROWS * 2 * HIDDEN * sizeof(float));
        k->core->rms_norm(k, x, NULL, ROWS, DIM, weight, 1e-5f, out, 1);
        assert_close((float *)out, y, ROWS * DIM, 1e-6);
        k->core->rms_norm(k, x, index, 3, DIM, weight, 1e-5f, out, 0);
        for (size_t r = 0; r < 3; r++)
            assert_act(k, (char *)out + r * DIM * k->device->act_size, y + index[r] * DIM, DIM, 3e-3);
        void *in = act_of(k, gated, ROWS * 2 * HIDDEN);
        k->core->swiglu(k, in, ROWS, HIDDEN, out);
        assert_act(k, out, gated_y, ROWS * HIDDEN, 6e-3);
        k->core->free(k->device, in);
        k->core->free(k->device, out);
        close_queue(k);
    }
    free(x), free(weight), free(y), free(gated), free(gated_y);
    wt_close(f);
}

/* Several vectors of columns and more than one item of a loop, and a row that overflows, which must show. */
static void long_rows(void **state)
{
    (void)state;
    enum { N = 3, WIDE = 5632 };
    float *x = random_floats(N * WIDE, 20), *weight = random_floats(WIDE, 1),
          *expected = malloc(sizeof(float) * N * WIDE);
    for (int d = 0; d < 2; d++) {
        kern_queue *k = open_queue(dtypes[d], 2);
        if (!k) continue;
        void *in = act_of(k, x, N * WIDE), *out = backend_memory(k, N * WIDE * sizeof(float));
        float *rounded = from_act(k, in, N * WIDE);
        for (int r = 0; r < N; r++)
            for (int i = 0; i < WIDE / 2; i++) {
                const double a = rounded[r * WIDE + i];
                expected[r * WIDE / 2 + i] = (float)(a / (1 + exp(-a)) * rounded[r * WIDE + WIDE / 2 + i]);
            }
        k->core->swiglu(k, in, N, WIDE / 2, out);
        assert_act(k, out, expected, N * WIDE / 2, 3e-3);
        for (int r = 0; r < N; r++) {
            double square = 0;
            for (int i = 0; i < WIDE; i++) square += (double)x[r * WIDE + i] * x[r * WIDE + i] / WIDE;
            for (int i = 0; i < WIDE; i++)
                expected[r * WIDE + i] = (float)(x[r * WIDE + i] / sqrt(square + 1e-5) * weight[i]);
        }
        k->core->rms_norm(k, x, NULL, N, WIDE, weight, 1e-5f, out, 0);
        assert_act(k, out, expected, N * WIDE, 3e-3);
        float huge[4] = {3e38f, 3e38f, 1, -3e38f};
        k->core->rms_norm(k, huge, NULL, 1, 4, weight, 1e-5f, out, 1);
        for (int i = 0; i < 4; i++) assert_true(isnan(((float *)out)[i]));
        k->core->free(k->device, in);
        k->core->free(k->device, out);
        free(rounded);
        close_queue(k);
    }
    free(x), free(weight), free(expected);
}

static void golden_rotation(const wt_file *f, kern_queue *k, int size)
{
    enum { CACHE = 9 };
    static const int slot[ROWS] = {8, 2, 0, 5, 3};
    static const char *const names[] = {"turn", "qkv", "q", "k", "v"};
    const size_t width = (size_t)(HEADS * size), act_size = k->device->act_size;
    const int64_t counts[] = {POSITIONS * size, 3 * ROWS * HEADS * size, ROWS * HEADS * size, ROWS * HEADS * size,
                              ROWS * HEADS * size};
    float *golden[5];
    char name[64];
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "rotate%d.%s", size, names[i]);
        golden[i] = golden_f32(f, name, counts[i]);
    }
    snprintf(name, sizeof name, "rotate%d.position", size);
    int *position = whole_numbers(f, name, ROWS);
    float *before = random_floats(CACHE * 2 * width, 1);
    char *qkv = act_of(k, golden[1], 3 * ROWS * width), *cache = act_of(k, before, CACHE * 2 * width);
    char *same = act_of(k, before, CACHE * 2 * width);
    k->core->rotate(k, qkv, ROWS, HEADS, size, golden[0], position, cache, slot);
    for (size_t r = 0; r < ROWS; r++) {
        const char *row = cache + (size_t)slot[r] * 2 * width * act_size;
        assert_act(k, qkv + r * 3 * width * act_size, golden[2] + r * width, width, 5e-3);
        assert_act(k, row, golden[3] + r * width, width, 5e-3);
        assert_act(k, row + width * act_size, golden[4] + r * width, width, 3e-3);
    }
    for (size_t s = 0; s < CACHE; s++) { /* other slots are left as they are */
        int written = 0;
        for (int r = 0; r < ROWS; r++) written |= slot[r] == (int)s;
        const size_t row = 2 * width * act_size;
        if (!written) assert_memory_equal(cache + s * row, same + s * row, row);
    }
    k->core->free(k->device, qkv);
    k->core->free(k->device, cache);
    k->core->free(k->device, same);
    for (int i = 0; i < 5; i++) free(golden[i]);
    free(position), free(before);
}

static void golden_attention(const wt_file *f, kern_queue *k, int size)
{
    static const char *const names[] = {"q", "k", "v", "y", "known"};
    const int counts[] = {QUERIES, SLOTS, SLOTS, QUERIES};
    const size_t width = (size_t)(HEADS * size);
    float *golden[5], *cached = malloc(sizeof(float) * SLOTS * 2 * width);
    for (int i = 0; i < 5; i++) {
        char name[64];
        snprintf(name, sizeof name, "attention%d.%s", size, names[i]);
        golden[i] = golden_f32(f, name, i < 4 ? (int64_t)width * counts[i] : QUERIES * SLOTS);
    }
    for (size_t s = 0; s < SLOTS; s++) {
        memcpy(cached + s * 2 * width, golden[1] + s * width, width * sizeof *cached);
        memcpy(cached + s * 2 * width + width, golden[2] + s * width, width * sizeof *cached);
    }
    uint64_t mask[QUERIES] = {0};
    int slot[SLOTS];
    for (int i = 0; i < QUERIES * SLOTS; i++)
        if (golden[4][i] != 0) mask[i / SLOTS] |= (uint64_t)1 << i % SLOTS;
    for (int s = 0; s < SLOTS; s++) slot[s] = s;
    void *q = act_of(k, golden[0], QUERIES * width), *cache = act_of(k, cached, SLOTS * 2 * width);
    void *y = backend_memory(k, QUERIES * width * k->device->act_size);
    const kern_cache_job job = {.rows = QUERIES,
                                .heads = HEADS,
                                .head_dim = size,
                                .q = q,
                                .q_stride = (int)width,
                                .cache = cache,
                                .spans = 1,
                                .row = (const int[]){0, QUERIES},
                                .first = (const int[]){0, SLOTS},
                                .common = (const int[]){0},
                                .slot = slot,
                                .mask = mask,
                                .words = 1,
                                .most = SLOTS,
                                .y = y};
    k->core->attention_cache(k, &job);
    assert_act(k, y, golden[3], QUERIES * width, 8e-3);
    k->core->free(k->device, q);
    k->core->free(k->device, cache);
    k->core->free(k->device, y);
    for (int i = 0; i < 5; i++) free(golden[i]);
    free(cached);
}

static void golden_cache(void **state)
{
    (void)state;
    wt_file *f = golden_open("causal");
    for (int d = 0; d < 2; d++) {
        kern_queue *k = open_queue(dtypes[d], 2);
        if (!k) continue;
        for (int size = 64; size <= 100; size += 36) {
            golden_rotation(f, k, size);
            golden_attention(f, k, size);
        }
        close_queue(k);
    }
    wt_close(f);
}

/* --- attention over any cache ------------------------------------------------------------------------------------- */

/* Spans of random lengths over random slots of one cache, each row's mask random. */
typedef struct {
    int rows, heads, dim, spans, words, slots, q_stride;
    int *row, *first, *common, *slot;
    uint64_t *mask;
    float *q, *cache; /* the values that the backend has, rounded to act */
    void *q_act, *cache_act;
} caches;

static int knows(const caches *c, int row, int own)
{
    return (int)(c->mask[(size_t)row * (size_t)c->words + (size_t)own / 64] >> own % 64 & 1);
}

/* rows[s] and slots[s], of which common[s] are known to all rows. Each row knows one of its own slots if there are any:
 * odd rows no other, even ones about half of them. */
static void make_caches(kern_queue *k, caches *c, int heads, int dim, int spans, const int *rows, const int *slots,
                        const int *common, int words)
{
    *c = (caches){.heads = heads, .dim = dim, .spans = spans, .words = words, .q_stride = 3 * heads * dim + 8};
    c->row = calloc((size_t)spans + 1, sizeof(int)), c->first = calloc((size_t)spans + 1, sizeof(int));
    c->common = malloc((size_t)spans * sizeof(int));
    for (int s = 0; s < spans; s++) {
        c->row[s + 1] = c->row[s] + rows[s];
        c->first[s + 1] = c->first[s] + slots[s];
        c->common[s] = common[s];
    }
    c->rows = c->row[spans];
    const int listed = c->first[spans];
    c->slots = 2 * listed + 1;
    c->slot = malloc((size_t)listed * sizeof(int) + 1);
    for (int i = 0; i < listed; i++) c->slot[i] = (int)((i * 2654435761u) % (uint32_t)c->slots);
    c->mask = calloc((size_t)(c->rows * words), sizeof *c->mask);
    draws++;
    for (int s = 0; s < spans; s++)
        for (int r = c->row[s], own = slots[s] - common[s]; r < c->row[s + 1]; r++)
            for (int j = 0; j < own; j++) {
                const int sure = (r * 7 + 3) % own == j,
                          known = r % 2 == 0 && random_word((uint32_t)(r * 512 + j)) >> 31;
                if (sure || known) c->mask[(size_t)(r * words + j / 64)] |= (uint64_t)1 << j % 64;
            }
    const size_t nq = (size_t)c->rows * (size_t)c->q_stride, width = (size_t)(heads * dim);
    const size_t n = (size_t)c->slots * 2 * width;
    float *q = random_floats(nq, 3), *cache = random_floats(n, 1);
    c->q_act = act_of(k, q, nq), c->cache_act = act_of(k, cache, n);
    c->q = from_act(k, c->q_act, nq), c->cache = from_act(k, c->cache_act, n);
    free(q), free(cache);
}

static void free_caches(kern_queue *k, caches *c)
{
    k->core->free(k->device, c->q_act);
    k->core->free(k->device, c->cache_act);
    free(c->row), free(c->first), free(c->common), free(c->slot), free(c->mask), free(c->q), free(c->cache);
}

static void run_caches(kern_queue *k, const caches *c, void *y)
{
    const kern_cache_job job = {.rows = c->rows,
                                .heads = c->heads,
                                .head_dim = c->dim,
                                .q = c->q_act,
                                .q_stride = c->q_stride,
                                .cache = c->cache_act,
                                .spans = c->spans,
                                .row = c->row,
                                .first = c->first,
                                .common = c->common,
                                .slot = c->slot,
                                .mask = c->mask,
                                .words = c->words,
                                .most = c->first[c->spans],
                                .y = y};
    mar_err err = {0};
    k->core->attention_cache(k, &job);
    assert_ok(kern_check(k, &err), &err);
}

/* A row's slots in their order; returns how many. */
static int known_slots(const caches *c, int span, int row, int *slot)
{
    const int *all = c->slot + c->first[span];
    int n = 0;
    for (int j = 0; j < c->first[span + 1] - c->first[span]; j++)
        if (j < c->common[span] || knows(c, row, j - c->common[span])) slot[n++] = all[j];
    return n;
}

static void expected_row(const caches *c, int span, int row, float *y)
{
    const size_t dim = (size_t)c->dim, width = (size_t)c->heads * dim;
    int *slot = malloc(sizeof *slot * (size_t)c->slots);
    double *weight = malloc(sizeof *weight * (size_t)c->slots);
    const int n = known_slots(c, span, row, slot);
    for (int h = 0; h < c->heads; h++) {
        const float *q = c->q + (size_t)row * (size_t)c->q_stride + (size_t)h * dim;
        double most = -INFINITY, sum = 0;
        for (int i = 0; i < n; i++) {
            const float *key = c->cache + (size_t)slot[i] * 2 * width + (size_t)h * dim;
            weight[i] = 0;
            for (size_t j = 0; j < dim; j++) weight[i] += (double)q[j] * key[j] / sqrt((double)dim);
            most = fmax(most, weight[i]);
        }
        for (int i = 0; i < n; i++) sum += weight[i] = exp(weight[i] - most);
        for (size_t j = 0; j < dim; j++) {
            double value = 0;
            for (int i = 0; i < n; i++)
                value += weight[i] / sum * c->cache[(size_t)slot[i] * 2 * width + width + (size_t)h * dim + j];
            y[(size_t)h * dim + j] = (float)value;
        }
    }
    free(slot), free(weight);
}

/* The row alone, in a call in which it knows all of its slots in common, or all by its mask. */
static void assert_alone(kern_queue *k, const caches *c, int span, int row, int common, const char *expected)
{
    int *slot = malloc(sizeof *slot * (size_t)c->slots);
    const int n = known_slots(c, span, row, slot);
    uint64_t mask[16] = {0};
    for (int i = 0; i < n; i++) mask[i / 64] |= (uint64_t)1 << i % 64;
    const size_t bytes = (size_t)(c->heads * c->dim) * k->device->act_size;
    char *y = backend_memory(k, bytes);
    const kern_cache_job job = {.rows = 1,
                                .heads = c->heads,
                                .head_dim = c->dim,
                                .q = (char *)c->q_act + (size_t)row * (size_t)c->q_stride * k->device->act_size,
                                .q_stride = c->q_stride,
                                .cache = c->cache_act,
                                .spans = 1,
                                .row = (const int[]){0, 1},
                                .first = (const int[]){0, n},
                                .common = &(int){common ? n : 0},
                                .slot = slot,
                                .mask = mask,
                                .words = 16,
                                .most = n,
                                .y = y};
    k->core->attention_cache(k, &job);
    assert_memory_equal(y, expected, bytes);
    k->core->free(k->device, y);
    free(slot);
}

static void cache_case(kern_queue *k, int heads, int dim, int spans, const int *rows, const int *slots,
                       const int *common, int words)
{
    caches c;
    make_caches(k, &c, heads, dim, spans, rows, slots, common, words);
    const size_t width = (size_t)(heads * dim), row_bytes = width * k->device->act_size;
    char *y = backend_memory(k, (size_t)c.rows * row_bytes);
    run_caches(k, &c, y);
    float *expected = malloc(sizeof(float) * width);
    for (int s = 0; s < spans; s++)
        for (int r = c.row[s]; r < c.row[s + 1]; r++) {
            const char *row = y + (size_t)r * row_bytes;
            expected_row(&c, s, r, expected);
            assert_act(k, row, expected, width, 3e-3);
            assert_alone(k, &c, s, r, 0, row);
            assert_alone(k, &c, s, r, 1, row);
        }
    k->core->free(k->device, y);
    free(expected);
    free_caches(k, &c);
}

static void cache_cases(void **state)
{
    (void)state;
    static const int one[] = {1, 1, 1, 1}, none[] = {0, 0, 0, 0};
    for (int d = 0; d < 2; d++)
        for (int threads = 1; threads <= 3; threads += 2) {
            kern_queue *k = open_queue(dtypes[d], threads);
            if (!k) continue;
            cache_case(k, 3, 64, 1, one, (const int[]){1}, one, 1);               /* one slot, known to all */
            cache_case(k, 1, 64, 1, (const int[]){3}, (const int[]){5}, none, 1); /* none in common */
            cache_case(k, 16, 64, 2, one, (const int[]){257, 257}, (const int[]){256, 257}, 1); /* plain decoding */
            cache_case(k, 5, 64, 4, (const int[]){17, 1, 8, 9}, (const int[]){60, 3, 40, 131},
                       (const int[]){31, 2, 32, 3},
                       3); /* trees, of which one has more slots than a word of a mask has bits */
            cache_case(k, 2, 100, 3, (const int[]){4, 0, 21}, (const int[]){19, 1, 90}, (const int[]){16, 1, 17}, 2);
            cache_case(k, 3, 8, 2, (const int[]){2, 9}, (const int[]){4, 16}, (const int[]){3, 0}, 1);
            for (int dim = 32; dim <= KERN_CACHE_HEAD_MAX; dim += 32) /* what a tile takes, and multiples of it */
                cache_case(k, 3, dim, 2, (const int[]){6, 1}, (const int[]){30, 18}, (const int[]){20, 18}, 1);
            close_queue(k);
        }
}

/* A number in a slot that a row does not know is nothing to it, not even NaN. */
static void unknown_slots(void **state)
{
    (void)state;
    enum { KEY = 1, VALUE = 2, WHICH = 4 };
    for (int d = 0; d < 2 * WHICH; d++) {
        const int which = d / 2; /* what is NaN */
        kern_queue *k = which ? open_queue(dtypes[d % 2], 2) : NULL;
        if (!k) continue;
        caches c;
        make_caches(k, &c, 2, 64, 1, (const int[]){9}, (const int[]){24}, (const int[]){7}, 1);
        const size_t row = 2 * 64 * k->device->act_size;
        char *y = backend_memory(k, 9 * row), *with = backend_memory(k, 9 * row);
        run_caches(k, &c, y);
        /* own slot number 3, which row 0 knows for sure; NaN in either type */
        char *bad = (char *)c.cache_act + (size_t)c.slot[7 + 3] * 2 * row;
        if (which & KEY) memset(bad, 0xff, row);
        if (which & VALUE) memset(bad + row, 0xff, row);
        run_caches(k, &c, with);
        int blind = 0;
        for (int r = 0; r < 9; r++)
            if (knows(&c, r, 3)) {
                float *got = from_act(k, with + (size_t)r * row, 128);
                for (int i = 0; i < 128; i++) assert_true(isnan(got[i]));
                free(got);
            } else {
                assert_memory_equal(y + (size_t)r * row, with + (size_t)r * row, row);
                blind++;
            }
        assert_in_range(blind, 4, 8); /* all odd rows, and not row 0 */
        k->core->free(k->device, y);
        k->core->free(k->device, with);
        free_caches(k, &c);
        close_queue(k);
    }
}

/* --- the rest ----------------------------------------------------------------------------------------------------- */

static void look_up(void **state)
{
    (void)state;
    enum { SIZE = 16384, WIDE = 8 };
    const float x[4] = {16383, 0, 5, 16382};
    float *table = random_floats(SIZE * WIDE, 1), y[4 * WIDE];
    kern_queue *k = open_queue(MAR_DTYPE_F32, 2);
    k->core->look_up(k, table, SIZE, WIDE, x, 4, y);
    for (int r = 0; r < 4; r++) assert_memory_equal(y + r * WIDE, table + (int)x[r] * WIDE, WIDE * sizeof *y);
    const float others[4] = {NAN, -3, SIZE, INFINITY}; /* no rows of the table */
    k->core->look_up(k, table, SIZE, WIDE, others, 4, y);
    for (int r = 0; r < 4; r++)
        assert_memory_equal(y + r * WIDE, table + (r < 2 ? 0 : SIZE - 1) * WIDE, WIDE * sizeof *y);
    free(table);
    close_queue(k);
}

/* No rows, and a queue that has failed: nothing is written. */
static void nothing(void **state)
{
    (void)state;
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    float x[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, y[12] = {0}, zero[12] = {0};
    const int at[3] = {0, 0, 0}, ends[2] = {0, 0};
    const uint64_t mask = 1;
    kern_cache_job job = {.heads = 1,
                          .head_dim = 2,
                          .q = x,
                          .q_stride = 2,
                          .cache = x,
                          .spans = 1,
                          .row = ends,
                          .first = ends,
                          .common = at,
                          .slot = at,
                          .mask = &mask,
                          .words = 1,
                          .most = 1,
                          .y = y};
    for (int rows = 0; rows < 2; rows++) {
        k->core->rms_norm(k, x, NULL, rows, 4, x, 1e-5f, y, 1);
        k->core->swiglu(k, x, rows, 2, y);
        k->core->rotate(k, y, rows, 1, 2, x, at, y, at);
        k->core->look_up(k, x, 2, 2, zero, rows, y);
        job.rows = rows;
        k->core->attention_cache(k, &job);
        assert_memory_equal(y, zero, sizeof y);
        mar_err err;
        kern_fail(k, err_set(&err, MAR_EBACKEND, "injected"), &err);
        job.row = (const int[]){0, 1}, job.first = job.row;
    }
    close_queue(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_rows), cmocka_unit_test(long_rows),     cmocka_unit_test(golden_cache),
        cmocka_unit_test(cache_cases), cmocka_unit_test(unknown_slots), cmocka_unit_test(look_up),
        cmocka_unit_test(nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
