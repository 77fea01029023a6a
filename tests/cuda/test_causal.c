/* Rows of a transformer with RMSNorm, SwiGLU and rotary positions, and attention over its cache, on the device against
 * the CPU's. */
#include "tests/support/device.h"
#include "tests/cudahost/control.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed = 900;
static const mar_dtype dtypes[2] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};

/* What a result may differ by: rounding of f32 sums, or of operands to bf16. */
static double allowed(const kern_queue *k, int y_f32)
{
    return k->device->act_size == 4 ? 2e-6 : y_f32 ? 2e-6 : 4e-3;
}

static int draw(int below)
{
    uint32_t words[4];
    kern_random_words(seed++, KERN_NOISE_INIT, 0, 0, 0, 0, words);
    return (int)(words[0] % (uint32_t)below);
}

static void free_arrays(kern_queue *k, void *const *array, int n)
{
    for (int i = 0; i < n; i++) k->core->free(k->device, array[i]);
}

/* Floats as a backend's operands have them: on the CPU in f32, what the device's bf16 has made of them. */
static void round_to(const kern_queue *k, float *x, size_t n)
{
    for (size_t i = 0; i < n && k->device->act_size == 2; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
        memcpy(x + i, &bits, sizeof bits);
    }
}

/* --- rows ------------------------------------------------------------------------------------------------------- */

/* y as floats. `offset`: floats by which x misses its alignment. */
static float *rms_norm(kern_queue *k, const float *x, int x_rows, int dim, const int *index, int rows,
                       const float *weight, int y_f32, int offset)
{
    const size_t row = (size_t)dim * sizeof(float), n = (size_t)rows * (size_t)dim;
    float *dx = to_device(k, NULL, (size_t)x_rows * row + 64), *w = to_device(k, weight, row);
    void *y = to_device(k, NULL, n * sizeof(float));
    k->core->upload(k, dx + offset, x, (size_t)x_rows * row);
    k->core->rms_norm(k, dx + offset, index, rows, dim, w, 1e-5f, y, y_f32);
    k->core->rms_norm(k, dx + offset, index, 0, dim, w, 1e-5f, y, y_f32);
    float *got = malloc((n + 1) * sizeof *got);
    assert_non_null(got);
    if (y_f32) {
        from_device(k, got, y, n * sizeof *got);
    } else {
        free(got);
        got = act_to_floats(k, y, n);
    }
    free_arrays(k, (void *[]){dx, w, y}, 3);
    return got;
}

static void rms_norms_are_the_cpus(void **state)
{
    (void)state;
    const int dims[] = {4, 16, 256, 260, 768, 1024, 1280, 1536, 3200, 5124, 1, 33, 1001};
    enum { X_ROWS = 6 };
    kern_queue *cpu = open_cpu();
    for (int d = 0; d < 2; d++) {
        kern_queue *k = open_cuda(dtypes[d]);
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
            for (int variant = 0; variant < 4; variant++) {
                const int dim = dims[i], y_f32 = variant % 2, offset = variant == 3;
                const int rows = variant < 2 ? 7 : X_ROWS - 1;
                int index[7];
                float *x = random_floats((size_t)(X_ROWS * dim), 2, seed++);
                float *weight = random_floats((size_t)dim, 1, seed++);
                for (int r = 0; r < rows; r++) index[r] = draw(X_ROWS);
                float *want = rms_norm(cpu, x, X_ROWS, dim, variant < 2 ? index : NULL, rows, weight, 1, 0);
                float *got = rms_norm(k, x, X_ROWS, dim, variant < 2 ? index : NULL, rows, weight, y_f32, offset);
                assert_close(got, want, (size_t)rows * (size_t)dim, allowed(k, y_f32));
                free(x), free(weight), free(want), free(got);
            }
        close_queue(k);
    }
    close_queue(cpu);
}

/* A row of huge numbers becomes NaN, and no other row. */
static void a_norm_that_overflows_shows_it(void **state)
{
    (void)state;
    enum { DIM = 768, ROWS = 3 };
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    float *x = random_floats((size_t)ROWS * DIM, 1, seed++), *weight = random_floats(DIM, 1, seed++);
    for (int i = 0; i < DIM; i++) x[DIM + i] = 1e30f;
    float *y = rms_norm(k, x, ROWS, DIM, NULL, ROWS, weight, 1, 0);
    for (int i = 0; i < ROWS * DIM; i++) assert_int_equal(isnan(y[i]) != 0, i / DIM == 1);
    free(x), free(weight), free(y);
    close_queue(k);
}

static float *swiglu(kern_queue *k, const float *x, int rows, int hidden)
{
    void *dx = to_act(k, x, (size_t)(rows * 2 * hidden));
    void *y = to_device(k, NULL, (size_t)(rows * hidden) * sizeof(float));
    k->core->swiglu(k, dx, rows, hidden, y);
    k->core->swiglu(k, dx, 0, hidden, y);
    float *got = act_to_floats(k, y, (size_t)(rows * hidden));
    free_arrays(k, (void *[]){dx, y}, 2);
    return got;
}

static void swiglu_is_the_cpus(void **state)
{
    (void)state;
    const int shapes[][2] = {{1, 2048}, {34, 2816}, {3, 8704}, {5, 7}, {2, 1}, {9, 24}};
    kern_queue *cpu = open_cpu();
    for (int d = 0; d < 2; d++) {
        kern_queue *k = open_cuda(dtypes[d]);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            const int rows = shapes[i][0], hidden = shapes[i][1];
            const size_t n = (size_t)(rows * hidden);
            float *x = random_floats(2 * n, 2, seed++);
            x[0] = -200, x[2 * n - 1] = 1000; /* exp(200) is infinite in f32 */
            round_to(k, x, 2 * n);
            float *want = swiglu(cpu, x, rows, hidden), *got = swiglu(k, x, rows, hidden);
            assert_close(got, want, n, allowed(k, 0));
            free(x), free(want), free(got);
        }
        close_queue(k);
    }
    close_queue(cpu);
}

enum { SLOTS = 40, POSITIONS = 9 };

/* qkv and the whole cache afterwards, one after the other. */
static float *rotate(kern_queue *k, const float *qkv, int rows, int heads, int dim, const float *turn,
                     const int *position, const int *slot)
{
    const size_t width = (size_t)(heads * dim), n = (size_t)rows * 3 * width, cached = SLOTS * 2 * width;
    void *x = to_act(k, qkv, n), *t = to_device(k, turn, (size_t)(POSITIONS * dim) * sizeof *turn);
    void *cache = to_device(k, NULL, cached * sizeof(float));
    k->core->rotate(k, x, rows, heads, dim, t, position, cache, slot);
    k->core->rotate(k, x, 0, heads, dim, t, position, cache, slot);
    float *a = act_to_floats(k, x, n), *b = act_to_floats(k, cache, cached), *both = malloc((n + cached) * sizeof *a);
    assert_non_null(both);
    memcpy(both, a, n * sizeof *a);
    memcpy(both + n, b, cached * sizeof *b);
    free(a), free(b);
    free_arrays(k, (void *[]){x, t, cache}, 3);
    return both;
}

static void rotations_are_the_cpus(void **state)
{
    (void)state;
    const int shapes[][3] = {{1, 12, 64}, {34, 2, 100}, {5, 3, 16}, {3, 1, 2}, {2, 4, 128}};
    kern_queue *cpu = open_cpu();
    for (int d = 0; d < 2; d++) {
        kern_queue *k = open_cuda(dtypes[d]);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            const int rows = shapes[i][0], heads = shapes[i][1], dim = shapes[i][2];
            const size_t n = (size_t)(rows * 3 * heads * dim);
            int position[SLOTS], slot[SLOTS];
            float *qkv = random_floats(n, 1, seed++), turn[POSITIONS * 128];
            for (int p = 0; p < POSITIONS * dim; p += 2) {
                const float angle = 0.37f * (float)p;
                turn[p] = p < dim ? 0 : cosf(angle), turn[p + 1] = p < dim ? 0 : sinf(angle);
            }
            for (int r = 0; r < rows; r++) position[r] = draw(POSITIONS), slot[r] = r * 7 % SLOTS;
            position[0] = 0; /* where keys and queries become zeros */
            round_to(k, qkv, n);
            float *want = rotate(cpu, qkv, rows, heads, dim, turn, position, slot);
            float *got = rotate(k, qkv, rows, heads, dim, turn, position, slot);
            assert_close(got, want, n + (size_t)(SLOTS * 2 * heads * dim), allowed(k, 0));
            free(qkv), free(want), free(got);
        }
        close_queue(k);
    }
    close_queue(cpu);
}

static void look_ups_are_the_tables_rows(void **state)
{
    (void)state;
    enum { SIZE = 700, ROWS = 300 };
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    for (int dim = 8; dim >= 1; dim -= 7) {
        float *table = random_floats(SIZE * 8, 1, seed++), x[ROWS], y[ROWS * 8];
        for (int r = 0; r < ROWS; r++) x[r] = (float)(r == 0 ? SIZE - 1 : draw(SIZE));
        x[7] = NAN, x[8] = -INFINITY, x[9] = SIZE, x[10] = 3e9f; /* no rows of the table: the nearest */
        void *dt = to_device(k, table, SIZE * 8 * sizeof *table), *dx = to_device(k, x, sizeof x);
        void *dy = to_device(k, NULL, sizeof y);
        k->core->look_up(k, dt, SIZE, dim, dx, ROWS, dy);
        k->core->look_up(k, dt, SIZE, dim, dx, 0, dy);
        from_device(k, y, dy, sizeof y);
        for (int r = 0; r < ROWS; r++)
            assert_memory_equal(y + r * dim,
                                table + (r == 7 || r == 8    ? 0
                                         : r == 9 || r == 10 ? SIZE - 1
                                                             : (int)x[r]) *
                                            dim,
                                (size_t)dim * sizeof *y);
        free_arrays(k, (void *[]){dt, dx, dy}, 3);
        free(table);
    }
    close_queue(k);
}

/* Embeddings of tokens on the device, each several times; numbers outside the table are the nearest of its rows. */
static void embeddings_are_the_tables_rows(void **state)
{
    (void)state;
    enum { SIZE = 90, MOST = 24, TOKENS = 40, ROWS = 70 };
    static const int dims[] = {24, 7, 4, 1};
    kern_queue *queues[] = {open_cpu(), open_cuda(MAR_DTYPE_BF16)};
    for (int i = 0; i < 8; i++) {
        kern_queue *k = queues[i % 2];
        const int dim = dims[i / 2];
        float *table = random_floats(SIZE * MOST, 1, seed++), y[ROWS * MOST];
        int token[TOKENS], place[ROWS];
        for (int t = 0; t < TOKENS; t++) token[t] = draw(SIZE);
        token[3] = -1, token[4] = SIZE, token[5] = INT_MAX, token[6] = INT_MIN;
        for (int r = 0; r < ROWS; r++) place[r] = r < TOKENS ? TOKENS - 1 - r : draw(TOKENS);
        void *dt = to_device(k, table, SIZE * MOST * sizeof *table), *dx = to_device(k, token, sizeof token);
        void *dy = to_device(k, NULL, sizeof y);
        k->core->embed(k, dt, SIZE, dim, dx, place, ROWS, dy);
        k->core->embed(k, dt, SIZE, dim, dx, place, 0, dy);
        from_device(k, y, dy, sizeof y);
        for (int r = 0; r < ROWS; r++) {
            const int x = token[place[r]], row = x < 0 ? 0 : x >= SIZE ? SIZE - 1 : x;
            assert_memory_equal(y + r * dim, table + row * dim, (size_t)dim * sizeof *y);
        }
        free_arrays(k, (void *[]){dt, dx, dy}, 3);
        free(table);
    }
    close_queue(queues[0]), close_queue(queues[1]);
}

/* --- attention over a cache --------------------------------------------------------------------------------------- */

enum { CACHE = 900, MOST_ROWS = 64, MOST_SPANS = 6, WORDS = 2 };

/* The lists of a call, at random: `queries` rows a span on average. */
typedef struct {
    int rows, spans, most;
    int row[MOST_SPANS + 1], first[MOST_SPANS + 1], common[MOST_SPANS], slot[MOST_SPANS * CACHE];
    uint64_t mask[MOST_ROWS * WORDS];
} lists;

/* Spans of queries[s] rows, which know common[s] slots, and of their own some, itself among them. */
static void make_lists(lists *l, int spans, const int *queries, const int *common, int most)
{
    memset(l, 0, sizeof *l);
    l->spans = spans, l->most = most;
    for (int s = 0; s < spans; s++) {
        const int own = queries[s] < most - common[s] ? queries[s] : most - common[s];
        const int from = draw(CACHE), step = 7; /* prime to CACHE: no slot twice */
        l->row[s] = l->rows, l->first[s + 1] = l->first[s] + common[s] + own, l->common[s] = common[s];
        for (int i = l->first[s]; i < l->first[s + 1]; i++) l->slot[i] = (from + (i - l->first[s]) * step) % CACHE;
        for (int r = 0; r < queries[s]; r++)
            for (int j = 0; j < own; j++)
                if (j == r || (j < r && draw(3) > 0)) l->mask[(l->rows + r) * WORDS + j / 64] |= (uint64_t)1 << j % 64;
        l->rows += queries[s];
    }
    l->row[spans] = l->rows;
}

typedef struct {
    kern_queue *k;
    int heads, dim;
    void *q, *cache, *y;
    const lists *l;
    const float *turn; /* NULL: rotated already; and so the next two */
    const int *position, *own;
} attention;

static attention open_attention(kern_queue *k, int heads, int dim, const float *q, const float *cache)
{
    const size_t width = (size_t)(heads * dim);
    return (attention){.k = k,
                       .heads = heads,
                       .dim = dim,
                       .q = to_act(k, q, MOST_ROWS * 3 * width),
                       .cache = to_act(k, cache, CACHE * 2 * width),
                       .y = to_device(k, NULL, MOST_ROWS * width * sizeof(float))};
}

static void close_attention(attention *a)
{
    free_arrays(a->k, (void *[]){a->q, a->cache, a->y}, 3);
}

static void attend(void *arg)
{
    const attention *a = arg;
    const lists *l = a->l;
    const kern_cache_job job = {.rows = l->rows,
                                .heads = a->heads,
                                .head_dim = a->dim,
                                .q = a->q,
                                .q_stride = 3 * a->heads * a->dim,
                                .cache = a->cache,
                                .spans = l->spans,
                                .row = l->row,
                                .first = l->first,
                                .common = l->common,
                                .slot = l->slot,
                                .mask = l->mask,
                                .words = WORDS,
                                .most = l->most,
                                .turn = a->turn,
                                .position = a->position,
                                .own = a->own,
                                .y = a->y};
    a->k->core->attention_cache(a->k, &job);
}

static float *attended(attention *a, const lists *l)
{
    a->l = l;
    attend(a);
    return act_to_floats(a->k, a->y, (size_t)(l->rows * a->heads * a->dim));
}

static void attention_over_a_cache_is_the_cpus(void **state)
{
    (void)state;
    static const struct {
        int heads, dim, spans, queries[MOST_SPANS], common[MOST_SPANS], most;
    } cases[] = {{12, 64, 2, {1, 1}, {257, 256}, 258},  {4, 64, 1, {1}, {0}, 300},
                 {3, 100, 2, {17, 17}, {120, 31}, 140}, {2, 128, 3, {1, 9, 2}, {500, 0, 64}, 512},
                 {5, 16, 2, {3, 0}, {10, 20}, 30},      {1, 48, 6, {1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}, 12},
                 {2, 36, 2, {40, 2}, {70, 700}, 720},   {3, 6, 1, {5}, {33}, 50},
                 {1, 250, 2, {2, 1}, {90, 40}, 100},    {1, 64, 1, {64}, {3}, 67}};
    kern_queue *cpu = open_cpu();
    static lists l;
    for (int d = 0; d < 2; d++) {
        kern_queue *k = open_cuda(dtypes[d]);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            const int heads = cases[i].heads, dim = cases[i].dim;
            const size_t width = (size_t)(heads * dim), cached = CACHE * 2 * width;
            float *q = random_floats(MOST_ROWS * 3 * width, 1, seed++), *cache = random_floats(cached, 1, seed++);
            round_to(k, q, MOST_ROWS * 3 * width), round_to(k, cache, cached);
            make_lists(&l, cases[i].spans, cases[i].queries, cases[i].common, cases[i].most);
            attention on_cpu = open_attention(cpu, heads, dim, q, cache), a = open_attention(k, heads, dim, q, cache);
            float *want = attended(&on_cpu, &l), *got = attended(&a, &l);
            assert_close(got, want, (size_t)l.rows * width, allowed(k, 0));
            free(want), free(got), free(q), free(cache);
            close_attention(&on_cpu), close_attention(&a);
        }
        close_queue(k);
    }
    close_queue(cpu);
}

/* Attention that rotates gives the bits of both operations in turn: of y, of the queries, and of the whole cache. With
 * one row a span it is one kernel. */
static void attention_rotates(void **state)
{
    (void)state;
    static const struct {
        int heads, dim, spans, queries[MOST_SPANS];
    } cases[] = {{12, 64, 2, {1, 1}}, {3, 100, 3, {1, 1, 1}}, {2, 128, 1, {1}},  {5, 16, 6, {1, 1, 1, 1, 1, 1}},
                 {3, 6, 2, {1, 1}},   {1, 250, 2, {1, 1}},    {4, 2, 2, {1, 1}}, {2, 36, 3, {1, 3, 2}}};
    static lists l;
    for (int d = 0; d < 3; d++) {
        kern_queue *k = d < 2 ? open_cuda(dtypes[d]) : open_cpu();
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            const int heads = cases[i].heads, dim = cases[i].dim, most = 60, common[MOST_SPANS] = {50, 3, 0, 20, 7, 1};
            const size_t width = (size_t)(heads * dim), cached = CACHE * 2 * width, queries = MOST_ROWS * 3 * width;
            float *q = random_floats(queries, 1, seed++), *cache = random_floats(cached, 1, seed++);
            float *turn = random_floats((size_t)(POSITIONS * dim), 1, seed++), *result[3][2];
            int position[MOST_ROWS], own[MOST_ROWS];
            for (;;) { /* no slot in two spans */
                char taken[CACHE] = {0};
                int twice = 0;
                make_lists(&l, cases[i].spans, cases[i].queries, common, most);
                for (int s = 0; s < l.first[l.spans]; s++) twice |= taken[l.slot[s]]++;
                if (!twice) break;
            }
            for (int s = 0, r = 0; s < l.spans; s++)
                for (int j = 0; j < cases[i].queries[s]; j++, r++) {
                    position[r] = draw(POSITIONS);
                    own[r] = l.slot[l.first[s] + common[s] + j];
                }
            void *t = to_device(k, turn, (size_t)(POSITIONS * dim) * sizeof *turn);
            for (int together = 0; together < 2; together++) {
                attention a = open_attention(k, heads, dim, q, cache);
                const long before = cudahost_launches ? cudahost_launches() : 0;
                a.l = &l;
                if (together) a.turn = t, a.position = position, a.own = own;
                if (!together) k->core->rotate(k, a.q, l.rows, heads, dim, t, position, a.cache, own);
                attend(&a);
                k->core->finish(k);
                if (d < 2 && cudahost_launches)
                    assert_int_equal(cudahost_launches() - before, together && l.rows == l.spans ? 1 : 2);
                result[0][together] = act_to_floats(k, a.y, (size_t)l.rows * width);
                result[1][together] = act_to_floats(k, a.q, queries);
                result[2][together] = act_to_floats(k, a.cache, cached);
                close_attention(&a);
            }
            const size_t n[] = {(size_t)l.rows * width, queries, cached};
            for (int j = 0; j < 3; j++) {
                assert_memory_equal(result[j][1], result[j][0], n[j] * sizeof(float));
                free(result[j][0]), free(result[j][1]);
            }
            free_arrays(k, &t, 1);
            free(q), free(cache), free(turn);
        }
        close_queue(k);
    }
}

/* What a row does not know has no part in it, not even a NaN. */
static void slots_that_a_row_does_not_know_do_not_count(void **state)
{
    (void)state;
    enum { HEADS = 2, DIM = 64, WIDTH = HEADS * DIM };
    static const int queries[] = {9, 1}, common[] = {50, 5};
    static lists l;
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    float *q = random_floats(MOST_ROWS * 3 * WIDTH, 1, seed++), *cache = random_floats(CACHE * 2 * WIDTH, 1, seed++);
    make_lists(&l, 2, queries, common, 80);
    attention a = open_attention(k, HEADS, DIM, q, cache);
    float *before = attended(&a, &l);
    close_attention(&a);
    const int hidden = 4; /* a draft of the first span; row 4 is that draft's */
    for (int i = 0; i < 2 * WIDTH; i++) cache[l.slot[common[0] + hidden] * 2 * WIDTH + i] = NAN;
    a = open_attention(k, HEADS, DIM, q, cache);
    float *after = attended(&a, &l);
    for (int r = 0; r < l.rows; r++) {
        const int knows = r < l.row[1] && l.mask[r * WORDS] >> hidden & 1;
        for (int i = 0; i < WIDTH; i++)
            assert_true(knows ? isnan(after[r * WIDTH + i]) : after[r * WIDTH + i] == before[r * WIDTH + i]);
    }
    close_attention(&a);
    free(before), free(after), free(q), free(cache);
    close_queue(k);
}

/* A recording's lists may differ from use to use; two layers share them. */
typedef struct {
    attention layer[2];
    lists l;
} two_layers;

static void attend_twice(void *arg)
{
    two_layers *t = arg;
    attend(&t->layer[0]);
    attend(&t->layer[1]);
}

static void a_recording_takes_other_lists(void **state)
{
    (void)state;
    enum { HEADS = 2, DIM = 32, WIDTH = HEADS * DIM, USES = 5 };
    static const int queries[USES][2] = {{3, 5}, {3, 5}, {7, 1}, {0, 8}, {4, 4}};
    static const int common[USES][2] = {{10, 20}, {11, 21}, {70, 0}, {5, 30}, {0, 64}};
    static two_layers t, on_cpu;
    kern_queue *cpu = open_cpu(), *k = open_cuda(MAR_DTYPE_F32);
    kern_recording *recording = NULL;
    for (int i = 0; i < 2; i++) {
        float *q = random_floats(MOST_ROWS * 3 * WIDTH, 1, seed++);
        float *cache = random_floats(CACHE * 2 * WIDTH, 1, seed++);
        t.layer[i] = open_attention(k, HEADS, DIM, q, cache);
        on_cpu.layer[i] = open_attention(cpu, HEADS, DIM, q, cache);
        t.layer[i].l = &t.l, on_cpu.layer[i].l = &t.l;
        free(q), free(cache);
    }
    for (int u = 0; u < USES; u++) {
        make_lists(&t.l, 2, queries[u], common[u], 80);
        k->core->replay(k, &recording, attend_twice, &t);
        attend_twice(&on_cpu);
        for (int i = 0; i < 2; i++) {
            float *want = act_to_floats(cpu, on_cpu.layer[i].y, 8 * WIDTH);
            float *got = act_to_floats(k, t.layer[i].y, 8 * WIDTH);
            assert_close(got, want, 8 * WIDTH, 2e-6);
            free(want), free(got);
        }
    }
    assert_int_equal(k->recordings, 1);
    k->core->recording_free(k, recording);
    for (int i = 0; i < 2; i++) close_attention(&t.layer[i]), close_attention(&on_cpu.layer[i]);
    close_queue(k);
    close_queue(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_norms_are_the_cpus),
        cmocka_unit_test(a_norm_that_overflows_shows_it),
        cmocka_unit_test(swiglu_is_the_cpus),
        cmocka_unit_test(rotations_are_the_cpus),
        cmocka_unit_test(look_ups_are_the_tables_rows),
        cmocka_unit_test(embeddings_are_the_tables_rows),
        cmocka_unit_test(attention_over_a_cache_is_the_cpus),
        cmocka_unit_test(attention_rotates),
        cmocka_unit_test(slots_that_a_row_does_not_know_do_not_count),
        cmocka_unit_test(a_recording_takes_other_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
