/* Tests the diffusion head against the official formulas in double: single evaluations, LazyMAR's reuse, and chains.
 * The formulas do not fold the layer norm into adaLN. */
#include "tests/ops/ops.h"
#include "tests/support/head_case.h"

enum { STEPS = 5, TURNS = 5 };
static const int step_of[STEPS] = {3, 0, 4, 1, 2};

/* A case's head and its inputs, f32 on the host. */
typedef struct {
    head_case h;
    int *indexed[2]; /* x_index, mod_index */
    int *state_of;   /* [rows] of a chain: x_index */
    float *cond, *x; /* [STEPS][rows][W]: temb + cond; [rows][C] */
    float *cfg;
    uint64_t *seed, *image;
    int *position;
    kern_chain_coef coef[STEPS];
    kern_ode_coef ode[STEPS];
    int t[STEPS];
} head_data;

/* HIDDEN: 0 in a head of MLP blocks. */
enum { WIDTH, DEPTH, CHANNELS, ROWS, TYPE, KIND, HIDDEN, ADA_LAYERS, NUMBERS };
enum { OFFICIAL, FAINT, ROUNDING, FINAL, REUSE };
enum { ANY = MAR_DTYPE_AUTO, F32 = MAR_DTYPE_F32, F16 = MAR_DTYPE_F16 }; /* TYPE: kern_head_spec.dtype */

/* Rows of several warps with a partial last one; rows of one partial warp. */
static const int heads[][NUMBERS] = {
    {40, 6, 16, 13, ANY, OFFICIAL},  {264, 6, 16, 13, ANY, OFFICIAL}, {40, 6, 16, 13, F32, OFFICIAL},
    {264, 2, 16, 13, F32, OFFICIAL}, {128, 3, 8, 40, ANY, OFFICIAL},  {128, 3, 8, 48, F16, OFFICIAL},
    {128, 3, 8, 48, ANY, FAINT},     {96, 1, 8, 1, F16, ROUNDING},    {96, 1, 16, 70, ANY, ROUNDING},
    {72, 6, 16, 12, ANY, REUSE},     {72, 6, 16, 12, F16, REUSE},     {128, 6, 8, 48, ANY, REUSE},
    {40, 1, 16, 9, ANY, FINAL},      {768, 1, 8, 9, ANY, FINAL},      {1544, 1, 4, 9, ANY, FINAL},
};
static const int more_heads[][NUMBERS] = {
    {264, 1, 16, 9, ANY, FINAL},  {520, 1, 3, 9, ANY, FINAL}, {1288, 1, 16, 9, ANY, FINAL},
    {1536, 1, 16, 9, ANY, FINAL}, {64, 1, 24, 9, ANY, FINAL}, {768, 1, 8, 9, F32, FINAL},
};

static const int swiglu_heads[][NUMBERS] = {
    {40, 6, 16, 13, ANY, OFFICIAL, 72, 2},   {264, 2, 16, 13, ANY, OFFICIAL, 200, 1},
    {40, 6, 16, 13, F16, OFFICIAL, 72, 6},   {128, 4, 8, 48, ANY, OFFICIAL, 192, 2},
    {264, 3, 16, 13, F32, OFFICIAL, 200, 3}, {128, 4, 8, 70, F32, OFFICIAL, 192, 1},
    {96, 1, 8, 1, ANY, ROUNDING, 96, 1},     {96, 1, 16, 70, ANY, ROUNDING, 96, 1},
    {72, 6, 16, 12, ANY, REUSE, 112, 2},
};

static void zero(const float *x, size_t n)
{
    memset((void *)(uintptr_t)x, 0, n * sizeof *x);
}

static head_case make_head(ops_call *c)
{
    const int w = c->n[WIDTH];
    const uint64_t number = 1000 + 100 * (uint64_t)c->index;
    const kern_head_form form = c->n[HIDDEN] ? KERN_HEAD_SWIGLU : KERN_HEAD_MLP;
    head_case h = c->n[KIND] == FAINT      ? make_faint_case(w, c->n[DEPTH], c->n[CHANNELS], number)
                  : c->n[KIND] == ROUNDING ? make_rounding_case(w, c->n[CHANNELS], form, number)
                  : form == KERN_HEAD_MLP
                      ? make_head_case(w, c->n[DEPTH], c->n[CHANNELS], number)
                      : make_swiglu_case(w, c->n[DEPTH], c->n[CHANNELS], c->n[HIDDEN], c->n[ADA_LAYERS], number);
    if (c->n[KIND] == FINAL) { /* the block adds nothing; the modulation is its bias */
        zero(h.blocks[0].ada_weight, 3 * (size_t)w * (size_t)w), zero(h.blocks[0].ada_bias, 3 * (size_t)w);
        zero(h.spec.ada_weight, 2 * (size_t)w * (size_t)w);
    }
    h.spec.dtype = (mar_dtype)c->n[TYPE];
    ops_keep(c, h.blocks), ops_keep(c, h.weights);
    return h;
}

static float *as_floats(ops_call *c, const ops_array *a)
{
    float *x = ops_host(c, a->n * sizeof *x);
    for (size_t i = 0; i < a->n; i++) x[i] = (float)a->x[i];
    return x;
}

/* Adds temb, cond and x. */
static head_data *head_arrays(ops_call *c, int x_rows)
{
    const size_t w = (size_t)c->n[WIDTH], channels = (size_t)c->n[CHANNELS], rows = (size_t)c->n[ROWS];
    head_data *d = c->data = ops_host(c, sizeof *d);
    d->h = make_head(c);
    const double *temb = ops_input(c, OPS_FLOAT, STEPS * w, 0, 0.6), *cond = ops_input(c, OPS_FLOAT, rows * w, w, 1);
    ops_input(c, OPS_FLOAT, (size_t)x_rows * channels, channels, 1);
    d->x = as_floats(c, ops_last(c));
    d->cond = ops_host(c, STEPS * rows * w * sizeof(float));
    for (size_t i = 0; i < STEPS * rows * w; i++)
        d->cond[i] = (float)(temb[(size_t)step_of[i / (rows * w)] * w + i % w] + cond[i % (rows * w)]);
    return d;
}

/* Returns the type of the head's operands. */
static mar_dtype type_of(const ops_call *c)
{
    if (c->n[TYPE] != ANY) return (mar_dtype)c->n[TYPE];
    return !c->bf16 ? MAR_DTYPE_F32 : ops_on_cuda() ? MAR_DTYPE_F16 : MAR_DTYPE_BF16;
}

/* Returns the reference's own rounding error, in the official form. */
static double rounding_of(ops_call *c, const head_data *d, int rows)
{
    const size_t n = (size_t)(rows * 2 * c->n[CHANNELS]);
    float *exact = ops_host(c, n * sizeof *exact), *rounded = ops_host(c, n * sizeof *rounded);
    head_reference(&d->h, d->x, d->cond, rows, MAR_DTYPE_F32, exact);
    head_reference(&d->h, d->x, d->cond, rows, type_of(c), rounded);
    return relative_error(rounded, exact, n);
}

/* Tells whether a head rounds the numbers that the reference rounds: in f16, without norms folded into adaLN. Then they
 * differ by sums in another order, which now and then round to another number: by up to 0.23 of the rounding's own
 * effect, as measured. */
static int is_rounded_alike(const ops_call *c)
{
    return type_of(c) == MAR_DTYPE_F16 && c->n[HIDDEN] && c->n[KIND] == OFFICIAL;
}

/* Returns the allowed error. In bf16 and f16 it is relative to the official form's own rounding. With norm weights much
 * below 1 the folded modulation costs more.
 *
 * FINAL and ROUNDING test the final layer, and their error is relative to its terms (add_results). SiLU takes f32 sums
 * and is rounded once. The layer is f32 on a CPU. With CUDA and f16 it multiplies operands split into two bf16 parts:
 * a term's error has a deviation of 4e-6, as derived in kernels/cuda/head_rows.cu. Three deviations are allowed, and a
 * dropped product of the parts would be off by a hundred. */
static double allowed(ops_call *c, const head_data *d, int rows)
{
    const int f32 = type_of(c) == MAR_DTYPE_F32;
    if (is_rounded_alike(c)) return 0.4 * rounding_of(c, d, rows);
    switch (c->n[KIND]) {
    case FINAL:
    case ROUNDING:
        return f32 || !ops_on_cuda() ? 2e-6 : 1.2e-5;
    case FAINT:
        return f32 ? 3e-6 : 2 * rounding_of(c, d, rows);
    case REUSE:
        return f32 ? 5e-6 : 2 * rounding_of(c, d, rows);
    default:
        return f32 ? 3e-6 : 1.3 * rounding_of(c, d, rows);
    }
}

/* Adds the results of all rows. Their sums may cancel, and an error does not: in a test of the final layer the bound is
 * relative to the terms, not to the sums. */
static void add_results(ops_call *c, const head_data *d, size_t row, const float *x, const float *cond, double bound)
{
    const int rows = c->n[ROWS];
    const mar_dtype rounds = c->n[KIND] == ROUNDING || is_rounded_alike(c) ? type_of(c) : MAR_DTYPE_F32;
    const size_t n = (size_t)(rows * 2 * c->n[CHANNELS]);
    float *y = ops_host(c, n * sizeof *y);
    double *want = ops_output(c, OPS_FLOAT, n, row, bound, bound), squares = 0;
    head_reference(&d->h, x, cond, rows, rounds, y);
    for (size_t i = 0; i < n; i++) want[i] = (double)y[i], squares += want[i] * want[i];
    if (c->n[KIND] == FINAL || c->n[KIND] == ROUNDING)
        ops_last(c)->allowed *= head_terms(&d->h, x, cond, rows, rounds) / sqrt(squares);
}

/* Results: a call with row r's state and modulation, one with indices, and TURNS calls with reuse. */
static void build_head(ops_call *c)
{
    if (c->n[ROWS] > 10) c->n[ROWS] *= ops_scale();
    const int rows = c->rows = c->n[ROWS], channels = c->n[CHANNELS], w = c->n[WIDTH], reuse = c->n[KIND] == REUSE;
    head_data *d = head_arrays(c, rows);
    const size_t n = (size_t)(rows * 2 * channels);
    float *y = ops_host(c, n * sizeof *y), *x = ops_host(c, n * sizeof *x), *cond = ops_host(c, (size_t)(rows * w) * 4);
    const double bound = allowed(c, d, rows);
    add_results(c, d, 2 * (size_t)channels, d->x, d->cond, bound);
    for (int i = 0; i < 2; i++) d->indexed[i] = ops_host(c, (size_t)rows * sizeof(int));
    for (int r = 0; r < rows; r++) {
        d->indexed[0][r] = r * 11 % (rows / 2 + 1), d->indexed[1][r] = (r * 17 + 3 + c->other) % (STEPS * rows);
        memcpy(x + r * channels, d->x + d->indexed[0][r] * channels, (size_t)channels * sizeof *x);
        memcpy(cond + r * w, d->cond + d->indexed[1][r] * w, (size_t)w * sizeof *x);
    }
    add_results(c, d, 0, x, cond, bound);
    double *kept = ops_host(c, (size_t)(rows * c->n[DEPTH] * w) * sizeof *kept);
    for (int turn = 0; turn < TURNS && reuse; turn++) { /* each at its own modulation */
        const kern_head_reuse how[TURNS] = {KERN_HEAD_FRESH, KERN_HEAD_KEPT, KERN_HEAD_WARM, KERN_HEAD_KEPT,
                                            KERN_HEAD_FRESH};
        head_reference_reusing(&d->h, d->x, d->cond + (size_t)(turn * rows * w), turn % 4 ? rows / 2 : rows,
                               MAR_DTYPE_F32, how[turn], kept, y);
        double *want = ops_output(c, OPS_FLOAT, n, 0, bound, bound);
        for (int i = 0; i < (turn % 4 ? rows / 2 : rows) * 2 * channels; i++) want[i] = (double)y[i];
    }
}

typedef struct {
    kern_head *net;
    char *mod;
    void *scratch, *out;
    float *kept;
} head_object;

static void *prepare_head(kern_queue *k, const ops_call *c)
{
    head_object *o = calloc(1, sizeof *o);
    const size_t rows = (size_t)c->n[ROWS], kept = rows + 3;
    const head_data *d = c->data;
    mar_err err = {0};
    assert_non_null(o);
    assert_ok(k->head->create(k, &d->h.spec, &o->net, &err), &err);
    assert_ok(k->head->plan(k, o->net, (int)rows, &err), &err); /* planning fewer rows is optional */
    assert_ok(k->head->plan(k, o->net, STEPS * (int)rows, &err), &err);
    o->mod = backend_memory(k, STEPS * rows * k->head->mod_bytes(o->net));
    o->scratch = backend_memory(k, k->head->scratch_bytes(o->net, STEPS * (int)rows));
    o->kept = backend_memory(k, (size_t)c->n[DEPTH] * kept * (size_t)c->n[WIDTH] * sizeof(float));
    o->out = backend_memory(k, rows * 2 * (size_t)c->n[CHANNELS] * sizeof(float));
    return o;
}

static void release_head(kern_device *d, void *object)
{
    head_object *o = object;
    d->core->free(d, o->mod), d->core->free(d, o->scratch), d->core->free(d, o->kept), d->core->free(d, o->out);
    d->head->free(d, o->net);
    d->head->free(d, NULL);
    free(o);
}

static void run_head(kern_queue *k, const ops_call *c, void *const *a)
{
    const head_object *o = c->object;
    const head_data *d = c->data;
    const int rows = c->rows, half = rows / 2;
    const size_t step = (size_t)rows * k->head->mod_bytes(o->net);
    k->head->modulate(k, o->net, a[0], step_of, NULL, STEPS, a[1], rows, o->mod, o->scratch);
    k->head->eval(k, o->net, a[2], NULL, o->mod, NULL, rows, a[3], o->scratch);
    if (rows < c->n[ROWS]) return; /* a call of some rows only */
    k->head->eval(k, o->net, a[2], d->indexed[0], o->mod, d->indexed[1], rows, a[4], o->scratch);
    static const kern_head_reuse how[TURNS] = {KERN_HEAD_FRESH, KERN_HEAD_KEPT, KERN_HEAD_WARM, KERN_HEAD_KEPT,
                                               KERN_HEAD_FRESH};
    for (int i = 0; i < TURNS && c->n[KIND] == REUSE; i++)
        k->head->eval_reusing(k, o->net, a[2], NULL, o->mod + (size_t)i * step, NULL, i % 4 ? half : rows, how[i],
                              o->kept, rows + 3, a[5 + i], o->scratch);
}

/* --- chains ------------------------------------------------------------------------------------------------------- */

/* ROWS: rows of the head, conditions times tokens. KIND: sampler and guidance. */
enum { DDPM, SOLVER, GUIDED_DDPM, GUIDED_SOLVER };
/* Width 72 suits no persistent kernel of a GPU; 136 rows are too many for it. */
static const int chains[][NUMBERS] = {
    {64, 6, 16, 6, ANY, GUIDED_DDPM},    {64, 6, 16, 6, ANY, DDPM},        {64, 6, 16, 6, ANY, GUIDED_SOLVER},
    {64, 6, 16, 6, ANY, SOLVER},         {64, 6, 16, 6, F32, GUIDED_DDPM}, {64, 6, 16, 6, F16, SOLVER},
    {72, 6, 16, 38, ANY, GUIDED_DDPM},   {64, 1, 16, 136, ANY, DDPM},      {72, 6, 16, 21, ANY, SOLVER},
    {72, 6, 16, 22, F32, GUIDED_SOLVER}, {72, 6, 16, 21, F16, DDPM},       {128, 3, 8, 12, ANY, GUIDED_DDPM},
};
static const int swiglu_chains[][NUMBERS] = {
    {64, 6, 16, 6, ANY, GUIDED_DDPM, 96, 2},
    {72, 6, 16, 22, ANY, SOLVER, 96, 2},
    {64, 6, 16, 6, F32, GUIDED_SOLVER, 96, 3},
};

static double normal_at(const head_data *d, int token, int channel, int step)
{
    uint32_t words[4];
    float four[4];
    kern_random_words(d->seed[token], KERN_NOISE_STEP, d->image[token], (uint32_t)d->position[token], (uint32_t)step,
                      (uint32_t)channel / 4, words);
    kern_normal4(words, four);
    return (double)four[channel % 4];
}

/* Computes one index of the chain by its formulas. out [rows][2C], x and x0 [tokens][C]. */
static void plain_step(const ops_call *c, const head_data *d, int i, int tokens, const float *out, double *x,
                       double *x0)
{
    const int channels = c->n[CHANNELS], guided = c->n[KIND] >= GUIDED_DDPM, solver = c->n[KIND] % 2;
    for (int e = 0; e < tokens * channels; e++) {
        const int t = e / channels, j = e % channels, at = t * 2 * channels + j;
        const double with = (double)out[at], v = (double)out[at + channels];
        const double without = guided ? (double)out[at + tokens * 2 * channels] : with;
        const double eps = guided ? without + (double)d->cfg[t] * (with - without) : with;
        if (solver) {
            const kern_ode_coef *o = &d->ode[i];
            const double now = (double)o->x0_x * x[e] - (double)o->x0_prediction * eps;
            x[e] = (double)o->coef_x * x[e] + (double)o->coef_x0 * now + (double)o->coef_previous * x0[e];
            x0[e] = now;
            continue;
        }
        const kern_chain_coef *o = &d->coef[i];
        const double now = (double)o->x0_x * x[e] - (double)o->x0_prediction * eps;
        const double fraction = (v + 1) / 2;
        const double log_var = fraction * (double)o->log_var_max + (1 - fraction) * (double)o->log_var_min;
        x[e] = (double)o->coef_x0 * now + (double)o->coef_xt * x[e] +
               exp(0.5 * log_var) * (double)o->noise * normal_at(d, t, j, d->t[i]);
    }
}

/* Results of indices STEPS-1 .. 1: x, and x0 for a solver. */
static void build_chain(ops_call *c)
{
    const int channels = c->n[CHANNELS], guided = c->n[KIND] >= GUIDED_DDPM, w = c->n[WIDTH];
    if (c->n[ROWS] > 20) c->n[ROWS] *= ops_scale();
    const int rows = c->n[ROWS], tokens = rows / (1 + guided);
    const size_t n = (size_t)(tokens * channels);
    head_data *d = head_arrays(c, tokens);
    d->cfg = ops_floats(c, (size_t)tokens, 1.5);
    d->state_of = ops_host(c, (size_t)rows * sizeof *d->state_of);
    for (int r = 0; r < rows; r++) d->state_of[r] = r % tokens;
    d->seed = ops_host(c, (size_t)tokens * sizeof *d->seed);
    d->image = ops_host(c, (size_t)tokens * sizeof *d->image), d->position = ops_host(c, (size_t)tokens * sizeof(int));
    for (int t = 0; t < tokens; t++) {
        d->seed[t] = 5 + (uint64_t)(t % 4 + 4 * c->other) * 0x100000001; /* both words of the key differ */
        d->image[t] = (uint64_t)(1 + c->other) << 32 | (uint64_t)(t / 3), d->position[t] = 31 * t;
    }
    for (int i = 0; i < STEPS; i++) {
        const float u = (float)i / STEPS;
        d->coef[i] = (kern_chain_coef){1 + u, 0.5f + u, 0.5f - 0.3f * u, 0.4f + 0.3f * u, -5 + u, -2 + u, 0.9f};
        d->ode[i] = (kern_ode_coef){1 + u, 0.5f + u, 0.6f, 0.3f, i == STEPS - 1 ? 0 : 0.1f};
        d->t[i] = i * 200 + 1;
    }
    const mar_dtype type = type_of(c);
    const double bound = type == MAR_DTYPE_F32 ? 1e-4 : type == MAR_DTYPE_F16 ? 2e-3 : 5e-2; /* 6e-4 measured */
    double *want = ops_written(c, bound, bound), *x = ops_host(c, n * sizeof *x);
    double *x0 = ops_output(c, OPS_FLOAT, n, 0, bound, bound), *before = ops_host(c, n * sizeof *x);
    float *state = ops_host(c, (size_t)(rows * channels) * sizeof *state),
          *out = ops_host(c, (size_t)(rows * 2 * channels) * 4);
    memcpy(x, c->array[2].x, n * sizeof *x);
    for (int i = STEPS - 1; i >= 1; i--) {
        for (int e = 0; e < rows * channels; e++) state[e] = (float)x[e % (int)n];
        head_reference(&d->h, state, d->cond + (size_t)((STEPS - 1 - i) * rows * w), rows, MAR_DTYPE_F32, out);
        plain_step(c, d, i, tokens, out, x, before);
    }
    memcpy(want, x, n * sizeof *x);
    if (c->n[KIND] % 2) memcpy(x0, before, n * sizeof *x);
}

/* Runs the chain by the backend's operation, or step by step by the required ones (kernels/fused.c). */
static void run_chain_by(kern_queue *k, const ops_call *c, void *const *a,
                         void (*chain_run)(kern_queue *k, const kern_head *h, const kern_chain_job *job))
{
    const head_object *o = c->object;
    const head_data *d = c->data;
    const int solver = c->n[KIND] % 2, conditions = c->n[KIND] >= GUIDED_DDPM ? 2 : 1;
    const kern_chain_job job = {.tokens = c->n[ROWS] / conditions,
                                .conditions = conditions,
                                .first = STEPS - 1,
                                .last = 1,
                                .mod = o->mod,
                                .x = a[2],
                                .x0 = solver ? a[3] : NULL,
                                .coef = solver ? NULL : d->coef,
                                .ode = solver ? d->ode : NULL,
                                .t = d->t,
                                .x_index = d->state_of,
                                .cfg = d->cfg,
                                .seed = d->seed,
                                .image = d->image,
                                .position = d->position,
                                .out = o->out,
                                .scratch = o->scratch};
    k->head->modulate(k, o->net, a[0], step_of, NULL, STEPS, a[1], c->n[ROWS], o->mod, o->scratch);
    chain_run(k, o->net, &job);
}

static void run_chain(kern_queue *k, const ops_call *c, void *const *a)
{
    run_chain_by(k, c, a, k->fused->chain_run);
}

static void run_chain_steps(kern_queue *k, const ops_call *c, void *const *a)
{
    run_chain_by(k, c, a, kern_chain_steps);
}

#define HEAD_NUMBERS "width depth channels rows type kind hidden ada_layers"

static const ops_entry table[] = {
    {"modulate, eval, eval_reusing", HEAD_NUMBERS, OPS_CASES(heads), OPS_ALONE_ON_CPU, build_head, run_head,
     prepare_head, release_head, NULL},
    {"modulate, eval, more", HEAD_NUMBERS, OPS_CASES(more_heads), OPS_ALONE_ON_CPU | OPS_LONG, build_head, run_head,
     prepare_head, release_head, NULL},
    {"chain_run", HEAD_NUMBERS, OPS_CASES(chains), 0, build_chain, run_chain, prepare_head, release_head, NULL},
    {"chain_run, step by step", HEAD_NUMBERS, OPS_CASES(chains), OPS_CUDA, build_chain, run_chain_steps, prepare_head,
     release_head, NULL},
    {"modulate, eval, SwiGLU", HEAD_NUMBERS, OPS_CASES(swiglu_heads), OPS_ALONE_ON_CPU, build_head, run_head,
     prepare_head, release_head, NULL},
    {"chain_run, SwiGLU", HEAD_NUMBERS, OPS_CASES(swiglu_chains), 0, build_chain, run_chain, prepare_head, release_head,
     NULL},
};

/* --- a head's description, and its non-finite numbers ------------------------------------------------------------- */

/* Checks that the layer with a non-finite number is named. */
static void what_is_not_finite_is_found(void **state)
{
    (void)state;
    enum { W = 128, C = 8 };
    for (int f32 = 0; f32 < 2; f32++) {
        kern_queue *k = ops_open(MAR_DTYPE_BF16);
        if (!k) skip();
        head_case h = make_head_case(W, 3, C, 900);
        const int step = 0;
        kern_head *net = NULL;
        mar_err err = {0};
        ((float *)(uintptr_t)h.blocks[1].ada_bias)[3 * W - 1] = (float)INFINITY; /* a gate */
        h.spec.dtype = f32 ? MAR_DTYPE_F32 : MAR_DTYPE_AUTO;
        assert_ok(k->head->create(k, &h.spec, &net, &err), &err);
        assert_ok(k->head->plan(k, net, 1, &err), &err);
        float *zeros = backend_memory(k, W * sizeof *zeros), *out = backend_memory(k, 2 * C * sizeof *out);
        void *mod = backend_memory(k, k->head->mod_bytes(net)),
             *scratch = backend_memory(k, k->head->scratch_bytes(net, 1));
        k->watch.on = 1;
        k->head->modulate(k, net, zeros, &step, NULL, 1, zeros, 1, mod, scratch);
        assert_string_equal(k->watch.layer, "diffloss.net.res_blocks.1.adaLN_modulation.1");
        k->head->eval(k, net, zeros, NULL, mod, NULL, 1, out, scratch);
        check_kern(k);
        void *memory[] = {zeros, out, mod, scratch};
        for (int i = 0; i < 4; i++) k->core->free(k->device, memory[i]);
        k->head->free(k->device, net);
        free_head_case(&h);
        close_queue(k);
    }
}

static void a_head_says_its_arithmetic(void **state)
{
    (void)state;
    static const struct {
        mar_dtype device, head;
        const char *text;
    } cases[] = {{MAR_DTYPE_F32, MAR_DTYPE_AUTO, "matrix products in f32"},
                 {MAR_DTYPE_BF16, MAR_DTYPE_AUTO, "matrix products in bf16"},
                 {MAR_DTYPE_BF16, MAR_DTYPE_F32, "matrix products in f32"},
                 {MAR_DTYPE_BF16, MAR_DTYPE_F16, "matrix products in f32 of numbers rounded to f16"}};
    for (int i = 0; i < 4 && !ops_on_cuda(); i++) {
        kern_queue *k = ops_open(cases[i].device);
        head_case h = make_head_case(128, 1, 8, 900);
        kern_head *net = NULL;
        mar_err err = {0};
        h.spec.dtype = cases[i].head;
        if (k) {
            assert_ok(k->head->create(k, &h.spec, &net, &err), &err);
            assert_string_equal(k->head->describe(net), cases[i].text);
            k->head->free(k->device, net);
            close_queue(k);
        }
        free_head_case(&h);
    }
}

static void a_gpu_refuses_odd_widths(void **state)
{
    (void)state;
    if (!ops_on_cuda()) skip();
    const kern_head_spec spec = {.width = 36, .depth = 0, .channels = 16};
    kern_queue *k = ops_open(MAR_DTYPE_BF16);
    kern_head *head = NULL;
    mar_err err = {0};
    assert_int_equal(k->head->create(k, &spec, &head, &err), MAR_EBACKEND);
    assert_string_equal(err.text, "a diffusion head of width 36: expected a multiple of 8 up to 4096 on a GPU");
    assert_null(head);
    close_queue(k);
}

int main(void)
{
    const struct CMUnitTest others[] = {
        cmocka_unit_test(what_is_not_finite_is_found),
        cmocka_unit_test(a_head_says_its_arithmetic),
        cmocka_unit_test(a_gpu_refuses_odd_widths),
    };
    return ops_main_and(table, others);
}
