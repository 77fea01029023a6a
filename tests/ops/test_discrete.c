/* Operations on discrete tokens: distributions from logits, draws, the likeliest tokens, and verification of draft
 * blocks. The reference implements verification by the definitions (kernels/discrete.h). */
#include "kernels/discrete.h"
#include "tests/ops/ops.h"

#include <stdio.h>

/* --- distributions ------------------------------------------------------------------------------------------------ */

enum { PROBS_ROWS = 6 };

typedef struct {
    int rows, size, conditions, steps; /* logits are multiples of 1/steps, so that some are equal; 0: not rounded */
    int top_k;
    float temperature, top_p;
} probs_setting;

static const probs_setting probs_cases[] = {
    {5, 33, 1, 1, 0, 0, 1},
    {5, 1000, 2, 8, 100, 1, 1},
    {1, 16384, 2, 0, 0, 1, 1},
    {5, 16384, 2, 0, 2000, 1, 1},
    {2, 16384, 1, 16, 2000, 0.7f, 0.9f},
    {2, 16384, 1, 4, 1, 1, 1},
    {3, 1000, 1, 0, 0, 1.3f, 0.5f},
    {3, 1000, 2, 2, 0, 1, 0.8f},
    {2, 50, 2, 1, 7, 0, 1},
    {1, 1, 1, 0, 0, 1, 1},
    {2, 40, 1, 0, 39, 1, 0},
    {3, 2000, 1, 0, 0, 1e-6f, 1},
    {2, 300, 1, 3, 299, 0.05f, 0.99999f},
    {2, 64, 1, 0, 64, 1, 0.999f},
};

/* PyTorch's numbers; tests/golden/make_sampling.py has the same table. Odd indices test the likeliest token. */
typedef struct {
    float cfg, temperature;
    int top_k;
    float top_p;
} golden_setting;

static const golden_setting golden_probs[] = {
    {1, 1, 0, 1},      {4, 1, 0, 1},    {4, 1, 50, 1}, {1.5f, 0.7f, 0, 0.9f}, {2, 1.3f, 40, 0.8f}, {1, 1e-7f, 0, 1},
    {4, 1, 0, 0.001f}, {1, 1, 1000, 1}, {1, 1, 7, 1},  {7.5f, 0.5f, 1, 1},    {1, 2, 0, 0.999f},
};

/* Among equal logits, greedy takes the first, top-p adds them by token id, top-k keeps all. */
static const struct {
    float temperature;
    int top_k;
    float top_p;
    int stay; /* bit mask of the kept tokens */
} equal_probs[] = {{0, 0, 1, 2},         {1, 2, 1, 2 | 4 | 16 | 32}, {1, 0, 0.3f, 2 | 4}, {1, 0, 0.5f, 2 | 4 | 16},
                   {1, 4, 0.49f, 2 | 4}, {1, 5, 1, 63 - 1},          {1, 1, 0.2f, 2}};

typedef struct {
    kern_probs_job job;
    float cfg[PROBS_ROWS];
    int place[PROBS_ROWS];
    const float *golden;
} probs_call;

/* Adds logits and their distributions. Rows of the distributions are in reverse order, with unwritten rows between. */
static probs_call *probs_arrays(ops_call *c, probs_setting s)
{
    const size_t n = (size_t)(s.rows * s.size);
    probs_call *l = c->data = ops_host(c, sizeof *l);
    static const float cfg[PROBS_ROWS] = {4, 1, 1.5f, 0, 7.25f, 2};
    for (int r = 0; r < s.rows; r++) l->place[r] = 2 * (s.rows - 1 - r), l->cfg[r] = cfg[(r + c->other) % 5];
    l->job = (kern_probs_job){.rows = s.rows,
                              .size = s.size,
                              .conditions = s.conditions,
                              .cfg = s.conditions == 2 ? l->cfg : NULL,
                              .temperature = s.temperature,
                              .top_k = s.top_k,
                              .top_p = s.top_p,
                              .place = l->place};
    double *x = ops_input(c, OPS_FLOAT, n * (size_t)s.conditions, 0, 3);
    for (size_t i = 0; i < n * (size_t)s.conditions && s.steps; i++)
        x[i] = (double)(float)(rint(x[i] * s.steps) / s.steps);
    ops_output(c, OPS_FLOAT, 2 * n, 0, 1, 1);
    ops_last(c)->each = 4e-6;
    return l;
}

typedef struct {
    float x;
    int token;
} ranked;

static int by_rank(const void *a, const void *b)
{
    const ranked *u = a, *v = b;
    return u->x != v->x ? (u->x < v->x) - (u->x > v->x) : u->token - v->token;
}

/* Computes log probabilities of logits after guidance and temperature, -INFINITY for filtered tokens. */
static void plain_probs(const probs_call *l, float *x, double *y)
{
    const int size = l->job.size, k = l->job.top_k;
    ranked *rank = malloc(sizeof *rank * (size_t)size);
    double total = 0, passed = 0, rest = 0;
    int finite = 1;
    assert_non_null(rank);
    for (int i = 0; i < size; i++) rank[i] = (ranked){x[i], i}, finite &= !isnan(x[i]) && x[i] < INFINITY;
    if (finite) qsort(rank, (size_t)size, sizeof *rank, by_rank);
    const float top = rank[0].x, least = finite && k > 0 && k < size ? rank[k - 1].x : -INFINITY;
    for (int i = 0; i < size; i++) total += rank[i].x >= least ? exp((double)rank[i].x - (double)top) : 0;
    for (int i = 0; i < size; i++) {
        const double e = exp((double)rank[i].x - (double)top);
        const int stays = l->job.temperature > 0
                              ? rank[i].x >= least && (l->job.top_p >= 1 || passed <= (double)l->job.top_p * total)
                              : i == 0;
        passed += e, rest += stays ? e : 0;
        y[rank[i].token] = stays ? (l->job.temperature > 0 ? (double)rank[i].x - (double)top : 0) : -INFINITY;
    }
    for (int i = 0; i < size; i++) y[i] = finite ? y[i] - log(l->job.temperature > 0 ? rest : 1) : NAN;
    free(rank);
}

static void build_probs(ops_call *c)
{
    const probs_setting s = probs_cases[c->index];
    const probs_call *l = probs_arrays(c, s);
    double *logits = c->array[0].x;
    const float divisor = s.temperature > 0 ? fmaxf(s.temperature, 1e-5f) : 1;
    float *x = ops_host(c, (size_t)s.size * sizeof *x);
    if (s.size > 30) logits[7] = -INFINITY;
    if (s.rows == 3) logits[s.size + 20] = NAN; /* affects only its row */
    if (s.rows == 5) logits[4 * s.size + 9] = INFINITY;
    for (int r = 0; r < s.rows; r++) {
        for (int i = 0; i < s.size; i++) {
            const float with = (float)logits[r * s.size + i];
            const float without = s.conditions == 2 ? (float)logits[(s.rows + r) * s.size + i] : 0;
            const int guided = s.conditions == 2 && l->cfg[r] > 1;
            volatile float product = guided ? (with - without) * l->cfg[r] : 0; /* no fused add */
            x[i] = (guided ? without + product : with) / divisor;
        }
        plain_probs(l, x, c->array[1].want + (size_t)l->place[r] * (size_t)s.size);
    }
}

static void build_golden_probs(ops_call *c)
{
    enum { SIZE = 331 };
    const golden_setting *g = &golden_probs[c->index / 2];
    const int greedy = c->index % 2;
    char name[32];
    const probs_setting s = {PROBS_ROWS, SIZE, g->cfg > 1 ? 2 : 1, 0, g->top_k, greedy ? 0 : g->temperature, g->top_p};
    probs_call *l = probs_arrays(c, s);
    wt_file *f = golden_open("sampling");
    snprintf(name, sizeof name, "%s_%d", greedy ? "greedy" : "probs", c->index / 2);
    const float *logits = ops_golden(c, f, "logits", 2 * PROBS_ROWS * SIZE);
    const float *want = ops_golden(c, f, name, greedy ? PROBS_ROWS : PROBS_ROWS * SIZE);
    wt_close(f);
    for (int r = 0; r < PROBS_ROWS; r++) l->cfg[r] = g->cfg;
    l->golden = greedy ? NULL : want;
    for (size_t i = 0; i < c->array[0].n; i++) c->array[0].x[i] = (double)logits[i];
    for (int i = 0; i < PROBS_ROWS * SIZE; i++) {
        const int r = i / SIZE, x = i % SIZE;
        const double p = greedy ? x == (int)want[r] : (double)want[i];
        double *to = &c->array[1].want[l->place[r] * SIZE + x];
        *to = !greedy && p < 1e-6 ? ops_any : log(p);
        if (r == 0 && (greedy || g->top_p < 1)) *to = ops_any; /* row 0 has equal logits, unordered in torch */
    }
}

/* Checks that probabilities too small for torch's floats are as small here. */
static void check_golden_probs(const ops_call *c, double *const *got)
{
    const probs_call *l = c->data;
    for (int i = 0; i < (int)c->array[0].n && l->golden && i < PROBS_ROWS * l->job.size; i++) {
        const int r = i / l->job.size;
        const double p = exp(got[1][l->place[r] * l->job.size + i % l->job.size]), want = (double)l->golden[i];
        if (r == 0 && l->job.top_p < 1) continue;
        if (!(fabs(p - want) <= 2e-6 * want + 1e-12) || (p > 1e-37 && want == 0))
            fail_msg("probs %d, row %d, token %d: %g, PyTorch's %g", c->index, r, i % l->job.size, p, want);
    }
}

static void build_equal_probs(ops_call *c)
{
    static const double logits[6] = {1, 3, 3, 2, 3, 3};
    probs_call *l = probs_arrays(c, (probs_setting){1, 6, 1, 0, equal_probs[c->index].top_k,
                                                    equal_probs[c->index].temperature, equal_probs[c->index].top_p});
    double sum = 0;
    const int point = l->job.temperature == 0;
    memcpy(c->array[0].x, logits, sizeof logits);
    for (int i = 0; i < 6; i++) sum += equal_probs[c->index].stay >> i & 1 ? exp(logits[i]) : 0;
    for (int i = 0; i < 6; i++)
        c->array[1].want[i] = equal_probs[c->index].stay >> i & 1 ? (point ? 0 : logits[i] - log(sum)) : -INFINITY;
}

static void run_probs(kern_queue *k, const ops_call *c, void *const *a)
{
    kern_probs_job job = ((const probs_call *)c->data)->job;
    job.logits = a[0], job.log_probs = a[1];
    k->discrete->probs(k, &job);
    job.rows = 0;
    k->discrete->probs(k, &job);
}

/* --- draws, and the likeliest tokens ------------------------------------------------------------------------------ */

enum { PROBS = 4, DRAWN = 5, MOST_ROWS = 300 };
enum { ALL_DRAWN, NAN_LAW }; /* the last distribution is NaN */

/* rows, size, tokens with nonzero probability (0: all), special case */
static const int draws[][4] = {{60, 300, 3, 0}, {300, 500, 0, 0},        {40, 16384, 0, 0}, {20, 7, 0, 0},
                               {5, 1, 0, 0},    {30, 2000, 40, NAN_LAW}, {40, 63, 0, 0},    {40, 64, 20, 0},
                               {40, 65, 0, 0},  {40, 4099, 0, 0}};

/* Adds log distributions of `size` tokens. In each row `spread` tokens have nonzero probability. */
static double *probs_input(ops_call *c, int rows, int size, int spread)
{
    double *probs = ops_input(c, OPS_FLOAT, (size_t)(rows * size), 0, 2);
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        for (int x = 0; x < size; x++)
            if (!spread || (x + r) % size < spread) sum += exp(probs[r * size + x]);
        for (int x = 0; x < size; x++)
            probs[r * size + x] =
                !spread || (x + r) % size < spread ? (double)(float)(probs[r * size + x] - log(sum)) : -INFINITY;
    }
    return probs;
}

/* Returns the first token at which the running sum exceeds uniform * total, or -1 if there is none. */
static int plain_draw(const double *weight, int size, double uniform)
{
    double total = 0, sum = 0;
    int last = -1;
    for (int x = 0; x < size; x++) total += weight[x], last = weight[x] > 0 ? x : last;
    if (!(total > 0)) return -1;
    for (int x = 0; x < size; x++)
        if ((sum += weight[x]) > uniform * total) return x;
    return last;
}

typedef struct {
    int probs[MOST_ROWS], given[MOST_ROWS], wanted[MOST_ROWS], earlier[MOST_ROWS * DRAWN];
    kern_address address[MOST_ROWS];
} draw_lists;

static void build_draw(ops_call *c)
{
    const int rows = c->rows = c->n[0], size = c->n[1];
    draw_lists *l = c->data = ops_host(c, sizeof *l);
    double *log_probs = probs_input(c, PROBS, size, c->n[2]), *weight = ops_host(c, (size_t)size * sizeof *weight);
    for (int x = 0; x < size && c->n[3] == NAN_LAW; x++) log_probs[3 * size + x] = NAN;
    double *id = ops_output(c, OPS_INT, (size_t)(rows * DRAWN), DRAWN, 0, 0);
    double *drawn = ops_output(c, OPS_INT, (size_t)rows, 1, 0, 0);
    for (int r = 0; r < rows; r++) {
        l->probs[r] = (int)(ops_word(c) % PROBS), l->given[r] = size > 2 ? (int)(ops_word(c) % 3) : 0;
        l->wanted[r] = l->given[r] + (int)(ops_word(c) % (uint32_t)(DRAWN + 1 - l->given[r]));
        l->address[r] = (kern_address){(uint64_t)(c->index + 5) + (uint64_t)r * 0x100000001, (uint64_t)r << 33,
                                       (uint32_t)(r % 9), 3};
        for (int i = 0; i < DRAWN; i++) l->earlier[r * DRAWN + i] = (2 * i + r) % size, id[r * DRAWN + i] = ops_any;
        for (int x = 0; x < size; x++) weight[x] = exp(log_probs[l->probs[r] * size + x]);
        int n = 0;
        for (; n < l->wanted[r]; n++) {
            const int x = n < l->given[r]
                              ? l->earlier[r * DRAWN + n]
                              : plain_draw(weight, size, kern_uniform_at(&l->address[r], KERN_NOISE_STEP, (uint32_t)n));
            if (x < 0) break;
            id[r * DRAWN + n] = x;
            weight[x] = 0;
        }
        drawn[r] = n;
    }
}

static void run_draw(kern_queue *k, const ops_call *c, void *const *a)
{
    const draw_lists *l = c->data;
    const kern_draw_job job = {.rows = c->rows,
                               .size = c->n[1],
                               .log_probs = a[0],
                               .source = l->probs + c->first,
                               .max_draws = DRAWN,
                               .given = l->given + c->first,
                               .wanted = l->wanted + c->first,
                               .earlier = l->earlier + c->first * DRAWN,
                               .address = l->address + c->first,
                               .id = a[1],
                               .drawn = a[2]};
    k->discrete->draw(k, &job);
}

/* Returns a token's time by the formula: E of 64 bits over p. Token x of a piece of 64 has word x / 16 of block x % 16.
 */
static double plain_time(const kern_address *a, int token, double p)
{
    uint32_t word[2][4];
    const int block = token / 64 * 16 + token % 16;
    for (uint32_t half = 0; half < 2; half++)
        kern_random_words(a->seed, KERN_NOISE_RACE, a->image, a->position, half, (uint32_t)block, word[half]);
    const double high = (double)word[0][token / 16 % 4], low = (double)word[1][token / 16 % 4];
    return -log1p(-(high * 0x1p-32 + (low + 0.5) * 0x1p-64)) / p;
}

/* As build_draw, without given candidates. The step is not part of the noise's address. */
static void build_race(ops_call *c)
{
    const int rows = c->rows = c->n[0], size = c->n[1];
    draw_lists *l = c->data = ops_host(c, sizeof *l);
    double *log_probs = probs_input(c, PROBS, size, c->n[2]), *time = ops_host(c, (size_t)size * sizeof *time);
    for (int x = 0; x < size && c->n[3] == NAN_LAW; x++) log_probs[3 * size + x] = NAN;
    double *id = ops_output(c, OPS_INT, (size_t)(rows * DRAWN), DRAWN, 0, 0);
    double *drawn = ops_output(c, OPS_INT, (size_t)rows, 1, 0, 0);
    for (int r = 0; r < rows; r++) {
        l->probs[r] = (int)(ops_word(c) % PROBS), l->wanted[r] = (int)(ops_word(c) % (DRAWN + 1));
        l->address[r] = (kern_address){(uint64_t)(c->index + 5) + (uint64_t)(r / 3) * 0x100000001,
                                       (uint64_t)(r / 3) << 33, (uint32_t)(r % 9), (uint32_t)r};
        for (int x = 0; x < size; x++) {
            const double p = exp(log_probs[l->probs[r] * size + x]);
            time[x] = p > 0 ? plain_time(&l->address[r], x, p) : INFINITY;
        }
        int n = 0;
        for (int i = 0; i < DRAWN; i++) id[r * DRAWN + i] = ops_any;
        for (; n < l->wanted[r]; n++) {
            int first = 0;
            for (int x = 1; x < size; x++) first = time[x] < time[first] ? x : first;
            if (!(time[first] < INFINITY)) break;
            id[r * DRAWN + n] = first;
            time[first] = INFINITY;
        }
        drawn[r] = n;
    }
}

static void run_race(kern_queue *k, const ops_call *c, void *const *a)
{
    const draw_lists *l = c->data;
    const kern_draw_job job = {.rows = c->rows,
                               .size = c->n[1],
                               .log_probs = a[0],
                               .source = l->probs + c->first,
                               .max_draws = DRAWN,
                               .race = 1,
                               .given = l->given + c->first,
                               .wanted = l->wanted + c->first,
                               .earlier = l->earlier + c->first * DRAWN,
                               .address = l->address + c->first,
                               .id = a[1],
                               .drawn = a[2]};
    k->discrete->draw(k, &job);
}

/* size, tokens with nonzero probability, requested tokens */
static const int tops[][3] = {{900, 7, 12}, {16384, 0, 12}, {16384, 0, 1}, {900, 7, 1}, {5, 0, 12}, {5000, 0, 13}};

static void build_top(ops_call *c)
{
    static const int probs[] = {2, 0, 3, 1, 2};
    const int size = c->n[0], count = c->n[2];
    c->rows = 5, c->data = (void *)(uintptr_t)probs;
    double *x = probs_input(c, PROBS, size, c->n[1]);
    for (int i = 0; i < size; i++) x[i] = rint(x[i]); /* many are equal */
    x[3 * size + size - 1] = NAN;
    double *id = ops_output(c, OPS_INT, (size_t)(5 * count), (size_t)count, 0, 0);
    double *log_p = ops_output(c, OPS_FLOAT, (size_t)(5 * count), (size_t)count, 0, 0);
    char *listed = ops_host(c, (size_t)size);
    for (int r = 0; r < 5; r++) {
        const double *row = x + probs[r] * size;
        memset(listed, 0, (size_t)size);
        for (int i = 0; i < count; i++) {
            int best = -1;
            for (int t = 0; t < size; t++)
                if (!listed[t] && row[t] > (best < 0 ? -INFINITY : row[best])) best = t;
            id[r * count + i] = best, log_p[r * count + i] = best < 0 ? -INFINITY : row[best];
            if (best >= 0) listed[best] = 1;
        }
    }
}

static void run_top(kern_queue *k, const ops_call *c, void *const *a)
{
    k->discrete->top(k, a[0], (const int *)c->data + c->first, c->rows, c->n[0], c->n[2], a[1], a[2]);
}

/* --- verification ------------------------------------------------------------------------------------------------- */

enum { BLOCKS = 24, DRAFTS = 12, POSITIONS = DRAFTS + 1, SITES = BLOCKS * (DRAFTS + 1), NEIGHBOURS = 40 };

/* The shapes of blocks: chains, siblings, trees. */
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

static const kern_discrete_rule rules[] = {
    {.log_omega = 0},
    {.log_omega = 0.4},
    {.log_omega = -0.3},
    {.neighbours = NEIGHBOURS, .bound = 0.03},
    {.neighbours = NEIGHBOURS, .bound = 0.03, .exclude_neighbours = 1},
    {.neighbours = 10, .bound_p = 2, .exclude_neighbours = 1},
    {.neighbours = 1000, .bound = 2},
    {.neighbours = NEIGHBOURS, .bound = 1, .exclude_neighbours = 1},
    {.log_omega = -INFINITY}, /* nothing is accepted */
    {.neighbours = 10, .bound_p = 3},
};

/* SIZE: vocabulary. POINTS: q is a point at every POINTS-th site (0: nowhere). CLOSENESS of q to p, in tenths. RULE:
 * index in rules. ODD: special case. */
enum { SIZE, POINTS, GO_ON, CLOSENESS, RULE, ODD };
enum { NAN_SITE = 1, ALL_OF_P, PLACED };
static const int verifications[][6] = {
    {90, 0, 0, 7, 0, PLACED},   {500, 0, 0, 7, 0, 0}, {500, 0, 1, 7, 0, NAN_SITE}, {30, 3, 0, 5, 0, 0},
    {60, 1, 1, 5, 0, 0},        {500, 0, 0, 5, 1, 0}, {500, 4, 0, 5, 2, 0},        {500, 0, 0, 3, 3, 0},
    {500, 0, 0, 3, 4, 0},       {80, 2, 0, 3, 5, 0},  {80, 0, 0, 3, 6, 0},         {40, 0, 0, 10, 0, 0}, /* p = q */
    {64, 1, 0, 0, 7, ALL_OF_P}, {80, 3, 1, 5, 8, 0},  {80, 3, 1, 5, 9, 0},
};
static const int large_verifications[][6] = {{16384, 0, 1, 9, 0, 0}, {2048, 3, 0, 5, 4, 0}};

typedef struct {
    kern_block_job job;
    int node[BLOCKS + 1], draft[BLOCKS * DRAFTS], parent[BLOCKS * DRAFTS], p[SITES], q[SITES], place[BLOCKS];
    kern_discrete_rule rule[BLOCKS * POSITIONS];
    kern_address address[BLOCKS];
    const double *log_p, *log_q, *neighbours;       /* [SITES][size], [SITES][size], [size][NEIGHBOURS] */
    double *verdict, *id, *probs, *count, *work[2]; /* results; current p and q */
} blocks;

/* Verification of a block by the definitions. */
typedef struct {
    blocks *b;
    int block, first, count; /* its drafts */
    double *id, *probs;
} walk;

static int next_child(const walk *w, int node, int from)
{
    while (from < w->count && w->b->parent[w->first + from] != node) from++;
    return from;
}

/* Loads p and q at the site behind `node`. Returns 0 if q is a point there; then it is not loaded. */
static int load_site(const walk *w, int node)
{
    const blocks *b = w->b;
    const int site = w->first + w->block + node + 1, size = b->job.size;
    for (int x = 0; x < size; x++) {
        b->work[0][x] = b->p[site] < 0 ? 0 : exp(b->log_p[b->p[site] * size + x]);
        if (b->q[site] >= 0) b->work[1][x] = exp(b->log_q[b->q[site] * size + x]);
    }
    return b->q[site] >= 0;
}

static double uniform_of(const walk *w, int position, kern_noise purpose, int block)
{
    kern_address a = w->b->address[w->block];
    a.position += (uint32_t)position;
    return kern_uniform_at(&a, purpose, (uint32_t)block);
}

/* Verifies the children of `node` in turn, or only the first if first_only. Returns the accepted one, or -1 and a
 * replacement. */
static int plain_children(const walk *w, int node, int position, int child, int first_only, double *id)
{
    const blocks *b = w->b;
    const kern_discrete_rule *rule = &b->rule[w->block * POSITIONS + position];
    const int size = b->job.size, has_q = load_site(w, node);
    double *p = b->work[0], *q = b->work[1];
    for (int sibling = 0;; sibling++) {
        const int next = first_only ? w->count : next_child(w, node, child + 1), x = b->draft[w->first + child];
        const double omega = rule->neighbours ? 1 : exp(rule->log_omega), of_x = p[x];
        double mass = omega * p[x], total = 0, rest = 0;
        int near = 1;
        if (!has_q)
            for (int y = 0; y < size; y++) q[y] = y == x;
        if (rule->neighbours) {
            double others = 0;
            for (; near < (rule->neighbours < NEIGHBOURS ? rule->neighbours : NEIGHBOURS); near++) {
                const double more = others + p[(int)b->neighbours[x * NEIGHBOURS + near]];
                if (!(more < rule->bound + rule->bound_p * p[x])) break;
                others = more;
            }
            mass = p[x] + others;
        }
        *id = x;
        b->verdict[w->first + child] = KERN_DRAFT_ACCEPTED;
        if (uniform_of(w, position, KERN_NOISE_VERIFY, sibling) < kern_draft_accept(mass, q[x])) return child;
        for (int y = 0; y < size; y++) p[y] -= fmin(fmin(omega * p[y], q[y]), p[y]);
        for (int i = 0; i < near && rule->exclude_neighbours; i++) p[(int)b->neighbours[x * NEIGHBOURS + i]] = 0;
        for (int y = 0; y < size; y++) total += p[y], rest += y == x ? 0 : q[y];
        if (total == 0 && (of_x > 0 || (rule->neighbours && rule->exclude_neighbours)))
            return child; /* nothing can replace it */
        if (total > 0 && next < w->count && (rest > 0 || !has_q)) {
            for (int y = 0; y < size; y++) p[y] /= total, q[y] = y == x ? 0 : q[y] / rest;
            b->verdict[w->first + child] = KERN_DRAFT_DROPPED;
            child = next;
            continue;
        }
        *id = plain_draw(p, size, uniform_of(w, position, KERN_NOISE_RESIDUAL, 0));
        b->verdict[w->first + child] = KERN_DRAFT_REPLACED;
        return -1;
    }
}

static void plain_block(const walk *w, double *count)
{
    int node = -1, final = 0, accepted = 0;
    for (int n = 0; n < w->count; n++) w->b->verdict[w->first + n] = KERN_DRAFT_DROPPED;
    for (;;) {
        const int child = next_child(w, node, 0);
        w->probs[final] = node + 1;
        if (child == w->count) {
            if (w->b->p[w->first + w->block + node + 1] < 0) break;
            load_site(w, node);
            w->id[final] = plain_draw(w->b->work[0], w->b->job.size, uniform_of(w, final, KERN_NOISE_RESIDUAL, 0));
            final++;
            break;
        }
        node = plain_children(w, node, final, child, 0, &w->id[final]);
        final++;
        if (node < 0) break;
        accepted++;
    }
    count[KERN_BLOCK_ACCEPTED] = accepted, count[KERN_BLOCK_FINAL] = count[KERN_BLOCK_LENGTH] = final;
    node = -1;
    for (int position = 0, child; (child = next_child(w, node, 0)) < w->count; position++, node = child) {
        if (position < final) continue;
        w->probs[position] = node + 1;
        if (!w->b->job.past_rejection) continue;
        plain_children(w, node, position, child, 1, &w->id[position]);
        count[KERN_BLOCK_LENGTH] = position + 1;
    }
}

/* Draws each site's draft from q without its elder siblings. */
static void draw_drafts(ops_call *c, blocks *b, int block)
{
    const int first = b->node[block], size = b->job.size;
    for (int n = 0; n < b->node[block + 1] - first; n++) {
        const int site = first + block + b->parent[first + n] + 1;
        const double *probs = b->log_q + (b->q[site] >= 0 ? b->q[site] : site) * size;
        double *weight = b->work[0];
        for (int x = 0; x < size; x++) weight[x] = exp(probs[x]);
        for (int i = 0; i < n; i++)
            if (b->parent[first + i] == b->parent[first + n]) weight[b->draft[first + i]] = 0;
        b->draft[first + n] = plain_draw(weight, size, (ops_word(c) + 0.5) / 0x1p32);
        if (b->draft[first + n] < 0) b->draft[first + n] = 0;
    }
}

static void place_blocks(blocks *b, int points)
{
    for (int i = 0; i < BLOCKS; i++) {
        const int shape = i % SHAPES, drafts = shapes[shape].drafts, sites = b->node[i] + i;
        b->node[i + 1] = b->node[i] + drafts;
        memcpy(b->parent + b->node[i], shapes[shape].parent, (size_t)drafts * sizeof(int));
        for (int s = 0; s <= drafts; s++) { /* rows are in reverse order of the sites */
            b->p[sites + s] = SITES - 1 - (sites + s);
            b->q[sites + s] = points && (sites + s) % points == 0 ? -1 : SITES - 1 - (sites + s);
        }
        if (i % 5 == 4 && drafts > 0) b->p[sites + drafts] = -1; /* no bonus token */
    }
}

/* Applies a case's special distributions. With ALL_OF_P a draft has probability 0, and its two neighbours have all
 * mass, 1/2 in total. So half of the drafts are rejected without any replacement (LANTERN's own resampler). */
static void make_odd(const ops_call *c, const blocks *b, double *log_p)
{
    const int size = c->n[SIZE];
    for (int x = 0; x < size && c->n[ODD] == NAN_SITE; x++) log_p[b->p[b->node[9] + 9 + 1] * size + x] = NAN;
    if (c->n[ODD] != ALL_OF_P) return;
    for (int i = 0; i < SITES * size; i++) log_p[i] = -INFINITY;
    for (int i = 0; i < BLOCKS; i++)
        for (int n = b->node[i]; n < b->node[i + 1]; n++) {
            double *p = log_p + b->p[b->node[i] + i + b->parent[n] + 1] * size;
            p[(b->draft[n] + 1) % size] = p[(b->draft[n] + 2) % size] = (double)-1.3862944f;
        }
}

/* Adds log_p, log_q and neighbours; verdicts, tokens, their distributions, counts, and the workspace. */
static void build_verify(ops_call *c)
{
    const int size = c->n[SIZE];
    blocks *b = c->data = ops_host(c, sizeof *b);
    double *log_p = probs_input(c, SITES, size, 0), *log_q = probs_input(c, SITES, size, 0);
    double *neighbours = ops_input(c, OPS_INT, (size_t)(size * NEIGHBOURS), 0, 1);
    const double closeness = c->n[CLOSENESS] / 10.0;
    for (int s = 0; s < SITES; s++) {
        double sum = 0, *q = log_q + s * size;
        for (int x = 0; x < size; x++) sum += exp(q[x] = closeness * log_p[s * size + x] + (1 - closeness) * q[x]);
        for (int x = 0; x < size; x++) q[x] = closeness == 1 ? log_p[s * size + x] : (double)(float)(q[x] - log(sum));
    }
    for (int i = 0; i < size * NEIGHBOURS; i++) neighbours[i] = (i / NEIGHBOURS + i % NEIGHBOURS) % size;
    b->log_p = log_p, b->log_q = log_q, b->neighbours = neighbours;
    for (int i = 0; i < 2; i++) b->work[i] = ops_host(c, (size_t)size * sizeof(double));
    place_blocks(b, c->n[POINTS]);
    for (int i = 0; i < BLOCKS; i++) {
        b->address[i] = (kern_address){(uint64_t)c->index + (uint64_t)i * 0x100000001, (uint64_t)i << 35,
                                       (uint32_t)(3 * i + c->other), 7};
        b->place[i] = c->n[ODD] == PLACED ? (BLOCKS - 1 - i + c->other) % BLOCKS : i;
        for (int d = 0; d < POSITIONS; d++) b->rule[i * POSITIONS + d] = rules[c->n[RULE]];
    }
    b->job = (kern_block_job){.size = size, .past_rejection = c->n[GO_ON]};
    for (int i = 0; i < BLOCKS; i++) draw_drafts(c, b, i);
    make_odd(c, b, log_p);
    b->verdict = ops_output(c, OPS_INT, BLOCKS * DRAFTS, 0, 0, 0);
    b->id = ops_output(c, OPS_INT, BLOCKS * POSITIONS, 0, 0, 0);
    b->probs = ops_output(c, OPS_INT, BLOCKS * POSITIONS, 0, 0, 0);
    b->count = ops_output(c, OPS_INT, BLOCKS * KERN_BLOCK_COUNTS, 0, 0, 0);
    double *workspace = ops_output(c, OPS_FLOAT, (size_t)(BLOCKS * 2 * size), 0, 0, 0);
    for (int i = 0; i < BLOCKS * 2 * size; i++) workspace[i] = ops_any;
    for (int i = 0; i < BLOCKS; i++) {
        const walk w = {
            b, i, b->node[i], b->node[i + 1] - b->node[i], b->id + b->place[i] * POSITIONS, b->probs + i * POSITIONS};
        plain_block(&w, b->count + i * KERN_BLOCK_COUNTS);
    }
}

static void run_verify(kern_queue *k, const ops_call *c, void *const *a)
{
    const blocks *b = c->data;
    kern_block_job job = {.size = c->n[SIZE],
                          .blocks = BLOCKS,
                          .node = b->node,
                          .draft = b->draft,
                          .parent = b->parent,
                          .log_p = a[0],
                          .p = b->p,
                          .log_q = a[1],
                          .q = b->q,
                          .positions = POSITIONS,
                          .rule = b->rule,
                          .neighbours = a[2],
                          .neighbour_count = NEIGHBOURS,
                          .past_rejection = c->n[GO_ON],
                          .address = b->address,
                          .verdict = a[3],
                          .id = a[4],
                          .place = c->n[ODD] == PLACED ? b->place : NULL,
                          .site = a[5],
                          .count = a[6],
                          .workspace = a[7]};
    k->discrete->verify(k, &job);
    job.blocks = 0;
    k->discrete->verify(k, &job);
}

static void check_verify(const ops_call *c, double *const *got)
{
    const blocks *b = c->data;
    int seen[3] = {0}, chained = 0;
    for (int n = 0; n < b->node[BLOCKS]; n++) seen[(int)got[3][n]]++;
    if (c->index < 3) assert_true(seen[0] > 3 && seen[1] > 3 && seen[2] > 3);
    for (int i = 0; i < BLOCKS && c->n[ODD] == ALL_OF_P; i++)
        if (i % SHAPES >= 1 && i % SHAPES <= 3) /* chains: every draft is accepted */
            for (int n = b->node[i]; n < b->node[i + 1]; n++, chained++) assert_true(got[3][n] == KERN_DRAFT_ACCEPTED);
    assert_true(c->n[ODD] != ALL_OF_P || chained > 20);
}

/* Corner cases: 0/0 is 1. With p = q, drafts that only rounding rejects are kept. No result has probability 0. A NaN
 * shows. */
static const struct {
    int draft, p, q; /* draft; rows of p and q */
    double log_omega;
    int verdict, id; /* id -2: 0 or 2 */
} corners[] = {
    {1, 0, 0, 0, KERN_DRAFT_ACCEPTED, 1},          /* 0/0 */
    {1, 0, -1, 0, KERN_DRAFT_REPLACED, -2},        /* a point that p excludes */
    {2, 1, 0, 0, KERN_DRAFT_REPLACED, -1},         /* NaN */
    {2, 1, -1, 0, KERN_DRAFT_REPLACED, -1},        /* NaN */
    {0, 2, 2, -1e-9, KERN_DRAFT_ACCEPTED, 0},      /* p = q = 1 except for rounding */
    {0, 2, -1, 0, KERN_DRAFT_ACCEPTED, 0},         /* greedy */
    {1, 2, -1, 0, KERN_DRAFT_REPLACED, 0},         /* greedy */
    {2, 0, 0, -INFINITY, KERN_DRAFT_REPLACED, -2}, /* no draft is accepted: a draw from p */
};

static void build_corner(ops_call *c)
{
    static const double half = (double)-0.6931472f;
    const double logs[] = {half, -INFINITY, half, NAN, NAN, NAN, 0, -INFINITY, -INFINITY};
    memcpy(ops_input(c, OPS_FLOAT, 9, 0, 1), logs, sizeof logs);
    ops_output(c, OPS_INT, 1, 0, 0, 0)[0] = corners[c->index].verdict;
    double *id = ops_output(c, OPS_INT, 2, 0, 0, 0), *count = NULL;
    id[0] = corners[c->index].id == -2 ? ops_any : corners[c->index].id, id[1] = ops_any;
    ops_input(c, OPS_INT, 2, 0, 1), ops_written(c, 0, 0)[0] = ops_any, ops_last(c)->want[1] = ops_any;
    count = ops_output(c, OPS_INT, KERN_BLOCK_COUNTS, 0, 0, 0);
    for (int i = 0; i < KERN_BLOCK_COUNTS; i++) count[i] = i == KERN_BLOCK_FINAL ? 1 : ops_any;
    double *work = ops_output(c, OPS_FLOAT, 6, 0, 0, 0);
    for (int i = 0; i < 6; i++) work[i] = ops_any;
}

static void run_corner(kern_queue *k, const ops_call *c, void *const *a)
{
    const int node[] = {0, 1}, parent = -1, p[] = {corners[c->index].p, -1}, q[] = {corners[c->index].q, -1};
    const kern_discrete_rule rule[2] = {{.log_omega = corners[c->index].log_omega}};
    const kern_block_job job = {.size = 3,
                                .blocks = 1,
                                .node = node,
                                .draft = &corners[c->index].draft,
                                .parent = &parent,
                                .log_p = a[0],
                                .p = p,
                                .log_q = a[0],
                                .q = q,
                                .positions = 2,
                                .rule = rule,
                                .address = &(kern_address){1, 2, 3, 4},
                                .verdict = a[1],
                                .id = a[2],
                                .site = a[3],
                                .count = a[4],
                                .workspace = a[5]};
    k->discrete->verify(k, &job);
}

static void check_corner(const ops_call *c, double *const *got)
{
    assert_true(corners[c->index].id != -2 || got[2][0] == 0 || got[2][0] == 2);
}

#define COUNT(list) NULL, sizeof(list) / sizeof *(list), 0

static const ops_entry table[] = {
    {"probs", "", COUNT(probs_cases), 0, build_probs, run_probs, NULL, NULL, NULL},
    {"probs, PyTorch", "", NULL, 2 * sizeof golden_probs / sizeof *golden_probs, 0, 0, build_golden_probs, run_probs,
     NULL, NULL, check_golden_probs},
    {"probs of equal logits", "", COUNT(equal_probs), 0, build_equal_probs, run_probs, NULL, NULL, NULL},
    {"draw", "rows size spread odd", OPS_CASES(draws), OPS_ALONE, build_draw, run_draw, NULL, NULL, NULL},
    {"race", "rows size spread odd", OPS_CASES(draws), OPS_ALONE, build_race, run_race, NULL, NULL, NULL},
    {"top", "size spread count", OPS_CASES(tops), OPS_ALONE, build_top, run_top, NULL, NULL, NULL},
    {"verify", "size points past_rejection closeness rule odd", OPS_CASES(verifications), 0, build_verify, run_verify,
     NULL, NULL, check_verify},
    {"verify, large", "size points past_rejection closeness rule odd", OPS_CASES(large_verifications), OPS_LONG,
     build_verify, run_verify, NULL, NULL, check_verify},
    {"verify, corners", "", COUNT(corners), 0, build_corner, run_corner, NULL, NULL, check_corner},
};

int main(void)
{
    return ops_main(table);
}
