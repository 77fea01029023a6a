/* Laws of discrete tokens, draws from them and the verification of drafts, on the device against the CPU's. */
#include "kernels/discrete.h"
#include "tests/support/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed = 4000;

static uint32_t word(void)
{
    uint32_t words[4];
    kern_random_words(seed++, KERN_NOISE_INIT, 0, 0, 0, 0, words);
    return words[0];
}

static int draw(int below)
{
    return (int)(word() % (uint32_t)below);
}

/* A job's arrays in backend memory, freed together. */
typedef struct {
    kern_queue *k;
    void *array[16];
    int count;
} memory;

static void *put(memory *m, const void *host, size_t bytes)
{
    assert_in_range(m->count, 0, 15);
    return m->array[m->count++] = to_device(m->k, host, bytes);
}

static void free_memory(memory *m)
{
    check_kern(m->k);
    for (int i = 0; i < m->count; i++) m->k->core->free(m->k->device, m->array[i]);
}

/* --- laws --------------------------------------------------------------------------------------------------------- */

enum { LAW_ROWS = 5 };

/* Normal logits in steps of 1/`steps`, so that some are equal; 0: none are. */
static float *make_logits(size_t n, int steps)
{
    float *x = random_floats(n, 3, seed++);
    for (size_t i = 0; i < n && steps; i++) x[i] = rintf(x[i] * (float)steps) / (float)steps;
    return x;
}

/* Rows placed in turned order, between others that stay zeros. */
static float *laws(kern_queue *k, kern_law_job job)
{
    const size_t n = (size_t)(job.rows * job.size);
    int place[LAW_ROWS];
    memory m = {.k = k};
    float *out = malloc((n * 2 + 1) * sizeof *out);
    assert_non_null(out);
    for (int r = 0; r < job.rows; r++) place[r] = 2 * (job.rows - 1 - r);
    job.logits = put(&m, job.logits, n * (size_t)job.conditions * sizeof(float));
    job.log_law = put(&m, NULL, 2 * n * sizeof(float)), job.place = place;
    k->discrete->laws(k, &job);
    from_device(k, out, job.log_law, 2 * n * sizeof(float));
    job.rows = 0;
    k->discrete->laws(k, &job);
    free_memory(&m);
    return out;
}

/* Equal supports, and equal log laws up to rounding. */
static void assert_laws(const float *is, const float *expected, size_t n, const char *what, size_t number)
{
    for (size_t i = 0; i < n; i++) {
        const int same = isfinite(expected[i]) ? fabsf(is[i] - expected[i]) <= 2e-6f * (1 + fabsf(expected[i]))
                         : isnan(expected[i])  ? isnan(is[i])
                                               : is[i] == expected[i];
        if (!same) fail_msg("%s %zu, entry %zu: %g, the CPU's %g", what, number, i, (double)is[i], (double)expected[i]);
    }
}

static void laws_are_the_cpus(void **state)
{
    (void)state;
    static const struct {
        int rows, size, conditions, steps, top_k;
        float temperature, top_p;
    } cases[] = {
        {LAW_ROWS, 16384, 2, 0, 2000, 1, 1},
        {1, 16384, 2, 0, 0, 1, 1},
        {2, 16384, 1, 16, 2000, 0.7f, 0.9f},
        {2, 16384, 1, 4, 1, 1, 1},
        {LAW_ROWS, 1000, 2, 8, 100, 1, 1},
        {3, 1000, 1, 0, 0, 1.3f, 0.5f},
        {3, 1000, 2, 2, 0, 1, 0.8f},
        {2, 50, 2, 1, 7, 0, 1},
        {LAW_ROWS, 33, 1, 1, 0, 0, 1},
        {1, 1, 1, 0, 0, 1, 1},
        {2, 40, 1, 0, 39, 1, 0},
        {3, 2000, 1, 0, 0, 1e-6f, 1},
        {2, 300, 1, 3, 299, 0.05f, 0.99999f},
        {2, 64, 1, 0, 64, 1, 0.999f},
    };
    kern_queue *cpu = open_cpu(), *k = open_cuda(MAR_DTYPE_BF16);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t n = (size_t)(cases[i].rows * cases[i].size);
        float *logits = make_logits(n * (size_t)cases[i].conditions, cases[i].steps);
        const float cfg[LAW_ROWS] = {4, 1, 1.5f, 0, 7.25f};
        const kern_law_job job = {.rows = cases[i].rows,
                                  .size = cases[i].size,
                                  .conditions = cases[i].conditions,
                                  .logits = logits,
                                  .cfg = cases[i].conditions == 2 ? cfg : NULL,
                                  .temperature = cases[i].temperature,
                                  .top_k = cases[i].top_k,
                                  .top_p = cases[i].top_p};
        if (cases[i].size > 30) logits[7] = -INFINITY;
        if (cases[i].rows == 3) logits[cases[i].size + 20] = NAN; /* its row only */
        if (cases[i].rows == LAW_ROWS) logits[4 * cases[i].size + 9] = INFINITY;
        float *want = laws(cpu, job), *got = laws(k, job);
        assert_laws(got, want, 2 * n, "case", i);
        free(logits), free(want), free(got);
    }
    close_queue(k);
    close_queue(cpu);
}

/* --- draws -------------------------------------------------------------------------------------------------------- */

enum { DRAW_ROWS = 300, DRAWN = 5 };

/* Log laws of rows of `size`, of which `spread` tokens in each row have a probability; 0: all. */
static float *make_laws(int rows, int size, int spread)
{
    float *law = random_floats((size_t)(rows * size), 2, seed++);
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        for (int x = 0; x < size; x++)
            if (!spread || (x + r) % size < spread) sum += exp((double)law[r * size + x]);
        for (int x = 0; x < size; x++)
            law[r * size + x] = !spread || (x + r) % size < spread ? law[r * size + x] - (float)log(sum) : -INFINITY;
    }
    return law;
}

/* id and drawn, one after the other; id without what is not set. */
static void draws(kern_queue *k, kern_draw_job job, size_t law_floats, int *result)
{
    memory m = {.k = k};
    const size_t ids = (size_t)(job.rows * job.most) * sizeof(int), counts = (size_t)job.rows * sizeof(int);
    job.log_law = put(&m, job.log_law, law_floats * sizeof(float));
    job.id = put(&m, NULL, ids), job.drawn = put(&m, NULL, counts);
    k->discrete->draw(k, &job);
    from_device(k, result, job.id, ids);
    from_device(k, result + job.rows * job.most, job.drawn, counts);
    for (int r = 0; r < job.rows; r++)
        for (int i = result[job.rows * job.most + r]; i < job.most; i++) result[r * job.most + i] = -7;
    job.rows = 0;
    k->discrete->draw(k, &job);
    free_memory(&m);
}

static void draws_are_the_cpus(void **state)
{
    (void)state;
    static const struct {
        int rows, size, spread;
    } cases[] = {{DRAW_ROWS, 500, 0}, {40, 16384, 0}, {60, 300, 3}, {20, 7, 0}, {5, 1, 0}, {30, 2000, 40}};
    kern_queue *cpu = open_cpu(), *k = open_cuda(MAR_DTYPE_BF16);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum { LAWS = 4 };
        static int law[DRAW_ROWS], given[DRAW_ROWS], wanted[DRAW_ROWS], earlier[DRAW_ROWS * DRAWN];
        static kern_address address[DRAW_ROWS];
        static int result[2][DRAW_ROWS * (DRAWN + 1)];
        const int rows = cases[i].rows, size = cases[i].size;
        float *log_law = make_laws(LAWS, size, cases[i].spread);
        for (int x = 0; x < size; x++)
            if (cases[i].rows == 30) log_law[3 * size + x] = NAN;
        for (int r = 0; r < rows; r++) {
            law[r] = draw(LAWS), given[r] = size > 2 ? draw(3) : 0, wanted[r] = given[r] + draw(DRAWN + 1 - given[r]);
            for (int j = 0; j < DRAWN; j++) earlier[r * DRAWN + j] = (2 * j + r) % size;
            address[r] = (kern_address){seed, (uint64_t)r << 33, (uint32_t)(r % 9), 3};
        }
        const kern_draw_job job = {.rows = rows,
                                   .size = size,
                                   .log_law = log_law,
                                   .law = law,
                                   .most = DRAWN,
                                   .given = given,
                                   .wanted = wanted,
                                   .earlier = earlier,
                                   .address = address};
        draws(cpu, job, (size_t)(LAWS * size), result[0]);
        draws(k, job, (size_t)(LAWS * size), result[1]);
        for (int j = 0; j < rows * (DRAWN + 1); j++)
            if (result[1][j] != result[0][j])
                fail_msg("case %zu, number %d: %d, the CPU's %d", i, j, result[1][j], result[0][j]);
        free(log_law);
    }
    close_queue(k);
    close_queue(cpu);
}

/* --- the likeliest tokens ------------------------------------------------------------------------------------------
 */

static void the_likeliest_are_the_cpus(void **state)
{
    (void)state;
    enum { LAWS = 4, COUNT = 12 };
    static const int law[] = {2, 0, 3, 1, 2};
    const int sizes[] = {16384, 900, 5};
    kern_queue *queue[2] = {open_cpu(), open_cuda(MAR_DTYPE_BF16)};
    for (int i = 0; i < 3; i++)
        for (int count = 1; count <= COUNT; count += COUNT - 1) {
            const int size = sizes[i], rows = 5;
            float *log_law = make_laws(LAWS, size, i == 1 ? 7 : 0), log_p[2][5 * COUNT];
            int id[2][5 * COUNT];
            for (int x = 0; x < size; x++) log_law[x] = rintf(log_law[x]); /* many are equal */
            log_law[3 * size + size - 1] = NAN;
            for (int d = 0; d < 2; d++) {
                kern_queue *k = queue[d];
                memory m = {.k = k};
                const void *on = put(&m, log_law, (size_t)(LAWS * size) * sizeof *log_law);
                int *on_id = put(&m, NULL, sizeof id[d]);
                float *on_p = put(&m, NULL, sizeof log_p[d]);
                k->discrete->top(k, on, law, rows, size, count, on_id, on_p);
                k->discrete->top(k, on, law, 0, size, count, on_id, on_p);
                from_device(k, id[d], on_id, (size_t)(rows * count) * sizeof(int));
                from_device(k, log_p[d], on_p, (size_t)(rows * count) * sizeof(float));
                free_memory(&m);
            }
            for (int j = 0; j < rows * count; j++)
                if (id[1][j] != id[0][j] || log_p[1][j] != log_p[0][j])
                    fail_msg("%d tokens, number %d: %d with %g, the CPU's %d with %g", size, j, id[1][j],
                             (double)log_p[1][j], id[0][j], (double)log_p[0][j]);
            free(log_law);
        }
    close_queue(queue[1]);
    close_queue(queue[0]);
}

/* --- verification --------------------------------------------------------------------------------------------------
 */

enum { BLOCKS = 24, DRAFTS = 12, POSITIONS = DRAFTS + 1, SITES = BLOCKS * (DRAFTS + 1), NEIGHBOURS = 40 };

/* The shape of a block. */
static const struct {
    int drafts, parent[DRAFTS];
} shapes[] = {
    {0, {0}},
    {1, {-1}},
    {5, {-1, 0, 1, 2, 3}},
    {12, {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
    {3, {-1, -1, -1}},
    {7, {-1, -1, 0, 0, 1, 2, 2}},
    {11, {-1, -1, -1, -1, 0, 0, 0, 1, 1, 4, 9}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Blocks at random, on the host. */
typedef struct {
    kern_block_job job;
    int node[BLOCKS + 1], draft[BLOCKS * DRAFTS], parent[BLOCKS * DRAFTS], p[SITES], q[SITES];
    kern_discrete_rule rule[BLOCKS * POSITIONS];
    kern_address address[BLOCKS];
    float *log_p, *log_q; /* [SITES][size] */
    int *neighbours;
} blocks;

typedef struct {
    int verdict[BLOCKS * DRAFTS], id[BLOCKS * POSITIONS], law[BLOCKS * POSITIONS], count[BLOCKS * KERN_BLOCK_COUNTS];
} verified;

static int draw_from(const float *log_law, int size, const int *without, int n)
{
    double total = 0, u = (word() + 0.5) / 0x1p32;
    for (int pass = 0; pass < 2; pass++, u *= pass == 1 ? total : 1)
        for (int x = 0; x < size; x++) {
            double w = exp((double)log_law[x]);
            for (int i = 0; i < n; i++) w *= without[i] != x;
            if (pass == 0) total += w;
            if (pass == 1 && (u -= w) < 0) return x;
        }
    return 0;
}

/* Drafts of each site, drawn from q without their elder siblings, or the likeliest ones where q is a point. */
static void draw_drafts(blocks *b, int block)
{
    const int first = b->node[block], count = b->node[block + 1] - first, size = b->job.size;
    for (int n = 0; n < count; n++) {
        int elder[DRAFTS], elders = 0;
        for (int i = 0; i < n; i++)
            if (b->parent[first + i] == b->parent[first + n]) elder[elders++] = b->draft[first + i];
        const int site = first + block + b->parent[first + n] + 1;
        const float *law = b->log_q + site * size;
        if (b->q[site] >= 0) law = b->log_q + b->q[site] * size;
        b->draft[first + n] = draw_from(law, size, elder, elders);
    }
}

/* `closeness`: how near q is to p. `points`: every so many sites q is a point; 0: nowhere. */
static void make_blocks(blocks *b, int size, float closeness, int points, const kern_discrete_rule *rule, int go_on)
{
    memset(b, 0, sizeof *b);
    b->log_p = make_laws(SITES, size, 0), b->log_q = malloc((size_t)(SITES * size) * sizeof *b->log_q);
    b->neighbours = malloc((size_t)size * NEIGHBOURS * sizeof *b->neighbours);
    float *other = make_laws(SITES, size, 0);
    assert_true(b->log_q && b->neighbours);
    for (int s = 0; s < SITES; s++) {
        double sum = 0;
        float *q = b->log_q + s * size;
        for (int x = 0; x < size; x++) {
            q[x] = closeness * b->log_p[s * size + x] + (1 - closeness) * other[s * size + x];
            sum += exp((double)q[x]);
        }
        for (int x = 0; x < size; x++) q[x] -= (float)log(sum);
    }
    for (int x = 0; x < size; x++)
        for (int i = 0; i < NEIGHBOURS; i++) b->neighbours[x * NEIGHBOURS + i] = (x + i) % size;
    for (int i = 0; i < BLOCKS; i++) {
        const int shape = i % SHAPES, sites = b->node[i] + i;
        b->node[i + 1] = b->node[i] + shapes[shape].drafts;
        memcpy(b->parent + b->node[i], shapes[shape].parent, (size_t)shapes[shape].drafts * sizeof(int));
        for (int s = 0; s <= shapes[shape].drafts; s++) {
            b->p[sites + s] = SITES - 1 - (sites + s); /* rows are not in the order of the sites */
            b->q[sites + s] = points && (sites + s) % points == 0 ? -1 : SITES - 1 - (sites + s);
        }
        if (i % 5 == 4 && shapes[shape].drafts > 0) b->p[sites + shapes[shape].drafts] = -1;
        b->address[i] = (kern_address){seed, (uint64_t)i << 35, (uint32_t)(3 * i), 7};
        for (int d = 0; d < POSITIONS; d++) b->rule[i * POSITIONS + d] = *rule;
        draw_drafts(b, i);
    }
    b->job = (kern_block_job){.size = size,
                              .blocks = BLOCKS,
                              .node = b->node,
                              .draft = b->draft,
                              .parent = b->parent,
                              .p = b->p,
                              .q = b->q,
                              .positions = POSITIONS,
                              .rule = b->rule,
                              .neighbour_count = NEIGHBOURS,
                              .go_on = go_on,
                              .address = b->address};
    free(other);
}

static void free_blocks(blocks *b)
{
    free(b->log_p), free(b->log_q), free(b->neighbours);
}

static void verify(kern_queue *k, const blocks *b, verified *v)
{
    const size_t laws_bytes = (size_t)(SITES * b->job.size) * sizeof(float);
    memory m = {.k = k};
    kern_block_job job = b->job;
    memset(v, 0xff, sizeof *v); /* what is not set */
    job.log_p = put(&m, b->log_p, laws_bytes), job.log_q = put(&m, b->log_q, laws_bytes);
    job.neighbours = put(&m, b->neighbours, (size_t)b->job.size * NEIGHBOURS * sizeof(int));
    job.verdict = put(&m, v->verdict, sizeof v->verdict), job.id = put(&m, v->id, sizeof v->id);
    job.law = put(&m, v->law, sizeof v->law), job.count = put(&m, v->count, sizeof v->count);
    job.workspace = put(&m, NULL, (size_t)(BLOCKS * 2 * b->job.size) * sizeof(float));
    k->discrete->verify(k, &job);
    from_device(k, v->verdict, job.verdict, sizeof v->verdict);
    from_device(k, v->id, job.id, sizeof v->id);
    from_device(k, v->law, job.law, sizeof v->law);
    from_device(k, v->count, job.count, sizeof v->count);
    job.blocks = 0;
    k->discrete->verify(k, &job);
    free_memory(&m);
}

static void assert_ints(const int *is, const int *expected, size_t n, const char *what, size_t number)
{
    for (size_t i = 0; i < n; i++)
        if (is[i] != expected[i]) fail_msg("case %zu, %s %zu: %d, the CPU's %d", number, what, i, is[i], expected[i]);
}

static void blocks_are_verified_as_on_the_cpu(void **state)
{
    (void)state;
    static const struct {
        int size, points, go_on;
        float closeness;
        kern_discrete_rule rule;
    } cases[] = {
        {500, 0, 0, 0.7f, {.log_omega = 0}},
        {500, 0, 1, 0.7f, {.log_omega = 0}},
        {16384, 0, 1, 0.9f, {.log_omega = 0}},
        {30, 3, 0, 0.5f, {.log_omega = 0}},
        {60, 1, 1, 0.5f, {.log_omega = 0}},
        {500, 0, 0, 0.5f, {.log_omega = 0.4}},
        {500, 4, 0, 0.5f, {.log_omega = -0.3}},
        {500, 0, 0, 0.3f, {.neighbours = NEIGHBOURS, .bound = 0.03}},
        {500, 0, 0, 0.3f, {.neighbours = NEIGHBOURS, .bound = 0.03, .without = 1}},
        {80, 2, 0, 0.3f, {.neighbours = 10, .bound_p = 2, .without = 1}},
        {80, 0, 0, 0.3f, {.neighbours = 1000, .bound = 2}},
        {40, 0, 0, 1, {.log_omega = 0}}, /* p = q: all drafts are accepted */
    };
    static blocks b;
    static verified want, got;
    long verdicts[3] = {0};
    kern_queue *cpu = open_cpu(), *k = open_cuda(MAR_DTYPE_BF16);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cuda_test_brief() && cases[i].size > 1000) continue;
        make_blocks(&b, cases[i].size, cases[i].closeness, cases[i].points, &cases[i].rule, cases[i].go_on);
        if (i == 1) /* a block whose second site has no numbers */
            for (int x = 0; x < b.job.size; x++) b.log_p[b.p[b.node[9] + 9 + 1] * b.job.size + x] = NAN;
        verify(cpu, &b, &want);
        verify(k, &b, &got);
        assert_ints(got.count, want.count, BLOCKS * KERN_BLOCK_COUNTS, "count", i);
        assert_ints(got.verdict, want.verdict, BLOCKS * DRAFTS, "verdict", i);
        assert_ints(got.id, want.id, BLOCKS * POSITIONS, "token", i);
        assert_ints(got.law, want.law, BLOCKS * POSITIONS, "law", i);
        for (int n = 0; n < b.node[BLOCKS]; n++) verdicts[want.verdict[n]]++;
        free_blocks(&b);
    }
    for (int i = 0; i < 3; i++) assert_true(verdicts[i] > 100); /* of each there are many */
    close_queue(k);
    close_queue(cpu);
}

/* Each block's tokens go to the row that `place` names, on both backends, and nothing else changes. */
static void tokens_go_to_their_places(void **state)
{
    (void)state;
    static const kern_discrete_rule exact = {.log_omega = 0};
    static blocks b;
    static verified by_number, placed;
    int place[BLOCKS];
    kern_queue *queues[] = {open_cpu(), open_cuda(MAR_DTYPE_BF16)};
    for (int i = 0; i < BLOCKS; i++) place[i] = BLOCKS - 1 - i;
    make_blocks(&b, 90, 0.7f, 0, &exact, 0);
    for (int i = 0; i < 2; i++) {
        b.job.place = NULL;
        verify(queues[i], &b, &by_number);
        b.job.place = place;
        verify(queues[i], &b, &placed);
        for (int block = 0; block < BLOCKS; block++)
            assert_memory_equal(placed.id + place[block] * POSITIONS, by_number.id + block * POSITIONS,
                                POSITIONS * sizeof *placed.id);
        assert_memory_equal(placed.law, by_number.law, sizeof placed.law);
        assert_memory_equal(placed.count, by_number.count, sizeof placed.count);
        assert_memory_equal(placed.verdict, by_number.verdict, sizeof placed.verdict);
        close_queue(queues[i]);
    }
    free_blocks(&b);
}

/* A draft without probability whose neighbours have all that there is, a sum of 1/2, so that half of them are rejected
 * without anything to replace them (LANTERN's own resampler). */
static void neighbours_with_all_of_p(void **state)
{
    (void)state;
    static const kern_discrete_rule rule = {.neighbours = NEIGHBOURS, .bound = 1, .without = 1};
    static blocks b;
    static verified want, got;
    int ids = 0, size;
    kern_queue *cpu = open_cpu(), *k = open_cuda(MAR_DTYPE_BF16);
    make_blocks(&b, 64, 0, 1, &rule, 0); /* each q is a point */
    size = b.job.size;
    for (int s = 0; s < SITES; s++)
        for (int x = 0; x < size; x++) b.log_p[s * size + x] = -INFINITY;
    for (int i = 0; i < BLOCKS; i++)
        for (int n = b.node[i]; n < b.node[i + 1]; n++) { /* the draft's second and third neighbour */
            float *p = b.log_p + b.p[b.node[i] + i + b.parent[n] + 1] * size;
            p[(b.draft[n] + 1) % size] = p[(b.draft[n] + 2) % size] = -1.3862944f;
        }
    verify(cpu, &b, &want);
    verify(k, &b, &got);
    assert_ints(got.count, want.count, BLOCKS * KERN_BLOCK_COUNTS, "count", 0);
    assert_ints(got.verdict, want.verdict, BLOCKS * DRAFTS, "verdict", 0);
    assert_ints(got.id, want.id, BLOCKS * POSITIONS, "token", 0);
    for (int i = 0; i < BLOCKS; i++)
        if (i % SHAPES == 1 || i % SHAPES == 2 || i % SHAPES == 3) /* chains: every draft stays */
            for (int n = b.node[i]; n < b.node[i + 1]; n++, ids++)
                assert_int_equal(got.verdict[n], KERN_DRAFT_ACCEPTED);
    assert_true(ids > 20);
    free_blocks(&b);
    close_queue(k);
    close_queue(cpu);
}

/* --- recordings -----------------------------------------------------------------------------------------------------
 */

/* A step of plain sampling, from logits to tokens. */
typedef struct {
    kern_queue *k;
    kern_law_job laws;
    kern_draw_job draw;
} sampling_step;

static void run_step(void *arg)
{
    const sampling_step *s = arg;
    s->k->discrete->laws(s->k, &s->laws);
    s->k->discrete->draw(s->k, &s->draw);
}

static void a_step_is_recorded(void **state)
{
    (void)state;
    enum { ROWS = 3, SIZE = 700, STEPS = 6 };
    kern_queue *cpu = open_cpu(), *k = open_cuda(MAR_DTYPE_BF16);
    memory m[2] = {{.k = cpu}, {.k = k}};
    static const int place[ROWS] = {0, 1, 2}, given[ROWS] = {0};
    int wanted[ROWS] = {1, 1, 1}, earlier[ROWS] = {0};
    float cfg[ROWS] = {2, 2, 2};
    kern_address address[ROWS] = {{0}};
    float *logits = random_floats(2 * ROWS * SIZE, 2, seed++);
    sampling_step step[2];
    kern_recording *recording = NULL;
    for (int d = 0; d < 2; d++) {
        float *law = put(&m[d], NULL, ROWS * SIZE * sizeof(float));
        step[d] = (sampling_step){
            .k = m[d].k,
            .laws = {.rows = ROWS,
                     .size = SIZE,
                     .conditions = 2,
                     .logits = put(&m[d], logits, 2 * ROWS * SIZE * sizeof(float)),
                     .cfg = cfg,
                     .temperature = 1,
                     .top_k = 200,
                     .top_p = 1,
                     .log_law = law,
                     .place = place},
            .draw = {.rows = ROWS,
                     .size = SIZE,
                     .log_law = law,
                     .law = place,
                     .most = 1,
                     .given = given,
                     .wanted = wanted,
                     .earlier = earlier,
                     .address = address,
                     .id = put(&m[d], NULL, ROWS * sizeof(int)),
                     .drawn = put(&m[d], NULL, ROWS * sizeof(int))},
        };
    }
    for (int i = 0; i < STEPS; i++) {
        int id[2][ROWS];
        for (int r = 0; r < ROWS; r++)
            address[r] = (kern_address){9, (uint64_t)r, (uint32_t)i, 0}, cfg[r] = (float)(i + r);
        run_step(&step[0]);
        k->core->replay(k, &recording, run_step, &step[1]);
        from_device(cpu, id[0], step[0].draw.id, sizeof id[0]);
        from_device(k, id[1], step[1].draw.id, sizeof id[1]);
        assert_memory_equal(id[1], id[0], sizeof id[0]);
    }
    assert_int_equal(k->recordings, 1);
    k->core->recording_free(k, recording);
    free_memory(&m[0]), free_memory(&m[1]);
    free(logits);
    close_queue(k);
    close_queue(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(laws_are_the_cpus),          cmocka_unit_test(draws_are_the_cpus),
        cmocka_unit_test(the_likeliest_are_the_cpus), cmocka_unit_test(blocks_are_verified_as_on_the_cpu),
        cmocka_unit_test(tokens_go_to_their_places),  cmocka_unit_test(a_step_is_recorded),
        cmocka_unit_test(neighbours_with_all_of_p),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
