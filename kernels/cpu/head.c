/* The diffusion head, in the official form (SimpleMLPAdaLN): input projection, residual blocks
 * x += gate * fc2(silu(fc1(LN(x)*(1+scale)+shift))), final layer. The modulation (shift, scale, gate) depends on
 * (condition, t) only and is precomputed. The input projection and the final linear layer are f32: at the first
 * diffusion index an error of eps is multiplied by 1/sqrt(abar), about 2e4. */
#include "kernels/cpu/cpu.h"

#include <omp.h>
#include <stdlib.h>

struct kern_head {
    int width, depth, channels;
    kern_linear *in; /* [W][C] f32 -> f32 */
    struct {
        float *ln;        /* [2][W]: weight, bias */
        kern_linear *fc1; /* [W][W] act -> act, with silu */
        kern_linear *fc2; /* [W][W] act -> f32 */
    } * block;
    kern_linear *ada_blocks; /* [depth*3W][W] act -> act, rows of a modulation row */
    kern_linear *ada_final;  /* [2W][W] act -> f32, the end of a modulation row */
    kern_linear *out;        /* [2C][W] f32 -> f32 */
    size_t act_size;
};

/* A modulation row: act [depth][3][W] (shift, scale, gate), then float [2][W] (shift, scale). */
static size_t mod_final_offset(const kern_head *h)
{
    return 3u * (size_t)h->depth * (size_t)h->width * h->act_size;
}

size_t cpu_head_mod_bytes(const kern_head *h)
{
    return mod_final_offset(h) + 2u * (size_t)h->width * sizeof(float);
}

/* `modulate` needs act [rows][W]; `eval` needs float x and y, act u and v, all [rows][W], and the states [rows][C]. */
size_t cpu_head_scratch_bytes(const kern_head *h, int rows)
{
    return ((size_t)rows * (size_t)h->width + 64) * (2 * sizeof(float) + 2 * h->act_size) +
           (size_t)rows * (size_t)h->channels * sizeof(float);
}

static mar_status create_linear(kern *k, int out, int in, const float *weight, const float *bias,
                                kern_activation activation, int flags, int y_stride, kern_linear **l, mar_err *err)
{
    const kern_linear_spec spec = {out, in, weight, bias, activation, flags, y_stride};
    return cpu_linear_create(k, &spec, l, err);
}

/* The adaLN layers of all blocks as one layer: [depth*3W][W]. */
static mar_status create_modulation(kern *k, const kern_head_spec *spec, kern_head *h, mar_err *err)
{
    const size_t w = (size_t)h->width, rows = 3 * w * (size_t)h->depth;
    float *weight = malloc((rows * w + rows + 1) * sizeof *weight), *bias = weight + rows * w;
    if (!weight)
        return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes for the head's modulation weights", rows * w * 4);
    for (int b = 0; b < h->depth; b++) {
        memcpy(weight + (size_t)b * 3 * w * w, spec->blocks[b].ada_weight, 3 * w * w * sizeof *weight);
        memcpy(bias + (size_t)b * 3 * w, spec->blocks[b].ada_bias, 3 * w * sizeof *bias);
    }
    const int row = (int)(cpu_head_mod_bytes(h) / h->act_size);
    mar_status status = create_linear(k, (int)rows, h->width, weight, bias, KERN_LINEAR, 0, row, &h->ada_blocks, err);
    free(weight);
    if (status == MAR_OK)
        status = create_linear(k, 2 * h->width, h->width, spec->ada_weight, spec->ada_bias, KERN_LINEAR, KERN_OUT_F32,
                               (int)(cpu_head_mod_bytes(h) / sizeof(float)), &h->ada_final, err);
    return status;
}

static mar_status create_block(kern *k, const kern_head_block *from, kern_head *h, int b, mar_err *err)
{
    const int w = h->width;
    h->block[b].ln = malloc(2 * (size_t)w * sizeof(float));
    if (!h->block[b].ln) return err_set(err, MAR_ENOMEM, "out of memory");
    memcpy(h->block[b].ln, from->ln_weight, (size_t)w * sizeof(float));
    memcpy(h->block[b].ln + w, from->ln_bias, (size_t)w * sizeof(float));
    mar_status status =
        create_linear(k, w, w, from->fc1_weight, from->fc1_bias, KERN_SILU, 0, 0, &h->block[b].fc1, err);
    if (status == MAR_OK)
        status = create_linear(k, w, w, from->fc2_weight, from->fc2_bias, KERN_LINEAR, KERN_OUT_F32, 0,
                               &h->block[b].fc2, err);
    return status;
}

mar_status cpu_head_create(kern *k, const kern_head_spec *spec, kern_head **out, mar_err *err)
{
    *out = NULL;
    kern_head *h = calloc(1, sizeof *h);
    if (!h) return err_set(err, MAR_ENOMEM, "out of memory");
    h->width = spec->width;
    h->depth = spec->depth;
    h->channels = spec->channels;
    h->act_size = k->act_size;
    h->block = calloc((size_t)h->depth + 1, sizeof *h->block);
    mar_status status = h->block ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK)
        status = create_linear(k, h->width, h->channels, spec->in_weight, spec->in_bias, KERN_LINEAR,
                               KERN_IN_F32 | KERN_OUT_F32, 0, &h->in, err);
    for (int b = 0; status == MAR_OK && b < h->depth; b++) status = create_block(k, &spec->blocks[b], h, b, err);
    if (status == MAR_OK) status = create_modulation(k, spec, h, err);
    if (status == MAR_OK)
        status = create_linear(k, 2 * h->channels, h->width, spec->out_weight, spec->out_bias, KERN_LINEAR,
                               KERN_IN_F32 | KERN_OUT_F32, 0, &h->out, err);
    if (status != MAR_OK) {
        cpu_head_free(k, h);
        return status;
    }
    *out = h;
    return MAR_OK;
}

void cpu_head_free(kern *k, kern_head *h)
{
    if (!h) return;
    for (int b = 0; h->block && b < h->depth; b++) {
        free(h->block[b].ln);
        cpu_linear_free(k, h->block[b].fc1);
        cpu_linear_free(k, h->block[b].fc2);
    }
    free(h->block);
    cpu_linear_free(k, h->in);
    cpu_linear_free(k, h->ada_blocks);
    cpu_linear_free(k, h->ada_final);
    cpu_linear_free(k, h->out);
    free(h);
}

mar_status cpu_head_plan(kern *k, kern_head *h, int rows, mar_err *err)
{
    mar_status status = cpu_linear_plan(k, h->in, rows, err);
    if (status == MAR_OK) status = cpu_linear_plan(k, h->out, rows, err);
    if (status == MAR_OK) status = cpu_linear_plan(k, h->ada_blocks, rows, err);
    if (status == MAR_OK) status = cpu_linear_plan(k, h->ada_final, rows, err);
    for (int b = 0; status == MAR_OK && b < h->depth; b++) {
        status = cpu_linear_plan(k, h->block[b].fc1, rows, err);
        if (status == MAR_OK) status = cpu_linear_plan(k, h->block[b].fc2, rows, err);
    }
    return status;
}

void cpu_head_modulate(kern *k, const kern_head *h, const float *temb, const int *temb_index, int steps,
                       const float *cond, int rows, void *mod, void *scratch)
{
    cpu_kern *c = cpu_of(k);
    const size_t w = (size_t)h->width;
    const int total = steps * rows;
    if (total <= 0) return;
    if (!cpu_linear_ready(c, h->ada_blocks, total) || !cpu_linear_ready(c, h->ada_final, total)) return;
    const int tiles = cpu_linear_tiles(c, h->ada_blocks, total), final_tiles = cpu_linear_tiles(c, h->ada_final, total);
    char *final = (char *)mod + mod_final_offset(h);
    const int team = cpu_team(c, (double)total * (double)w * (double)w);
#pragma omp parallel num_threads(team)
    {
        const int thread = omp_get_thread_num();
#pragma omp for schedule(static)
        for (int i = 0; i < total; i++)
            c->rows->silu_add(temb + (size_t)temb_index[i / rows] * w, cond + (size_t)(i % rows) * w, w,
                              act_at(k, scratch, (size_t)i * w), c->bf16);
#pragma omp for schedule(dynamic, 1)
        for (int t = 0; t < tiles + final_tiles; t++) {
            if (t < tiles)
                cpu_linear_tile(c, h->ada_blocks, scratch, total, mod, t, thread);
            else
                cpu_linear_tile(c, h->ada_final, scratch, total, final, t - tiles, thread);
        }
    }
}

/* An evaluation of the head, shared by a team of threads. */
typedef struct {
    cpu_kern *c;
    const kern_head *h;
    const float *state; /* [rows][C] */
    const char *mod;
    const int *mod_index;
    int rows;
    float *out, *x, *y;
    void *u, *v;
    float *kept; /* [depth][kept_rows][W] outputs kept for reuse; NULL: no reuse */
    int kept_rows;
    kern_head_reuse reuse;
} evaluation;

static const char *mod_row(const evaluation *e, int r)
{
    return e->mod + (size_t)(e->mod_index ? e->mod_index[r] : r) * cpu_head_mod_bytes(e->h);
}

/* Both products of block b by our own kernel. It adds the gated result to x itself, which saves a barrier, and each
 * thread has the same columns at every step. */
static void block_columns(const evaluation *e, int b, int thread)
{
    const kern_head *h = e->h;
    const kern_linear *fc1 = h->block[b].fc1, *fc2 = h->block[b].fc2;
    const kern_linear *after =
        h->block[b + 1 < h->depth ? b + 1 : 0].fc1; /* the first block is that of the next step */
    const size_t offset = (3 * (size_t)b + 2) * (size_t)h->width * h->act_size;
    const int team = omp_get_num_threads();
    const dot_gate gate = {e->mod + offset, e->mod_index, cpu_head_mod_bytes(h)};
    cpu_linear_columns(fc1, e->u, e->rows, e->v, NULL, thread, team, fc2);
#pragma omp barrier
    cpu_linear_columns(fc2, e->v, e->rows, e->x, &gate, thread, team, after);
#pragma omp barrier
}

/* y = MLP of block b at e->u. */
static void block_products(const evaluation *e, int b, float *y, int thread)
{
    cpu_kern *c = e->c;
    const kern_linear *fc1 = e->h->block[b].fc1, *fc2 = e->h->block[b].fc2;
    const int tiles1 = cpu_linear_tiles(c, fc1, e->rows), tiles2 = cpu_linear_tiles(c, fc2, e->rows);
#pragma omp for schedule(static)
    for (int t = 0; t < tiles1; t++) cpu_linear_tile(c, fc1, e->u, e->rows, e->v, t, thread);
#pragma omp for schedule(static)
    for (int t = 0; t < tiles2; t++) cpu_linear_tile(c, fc2, e->v, e->rows, y, t, thread);
}

/* x[r] += gate of block b * y[r] */
static void gate_row(const evaluation *e, int b, float *x, const float *y, int r)
{
    cpu_kern *c = e->c;
    const size_t w = (size_t)e->h->width, row = (size_t)r * w;
    c->rows->gate_add(x + row, act_at(&c->base, mod_row(e, r), (3 * (size_t)b + 2) * w), y + row, w, c->bf16);
}

static void block_tiles(const evaluation *e, int b, int thread)
{
    block_products(e, b, e->y, thread);
#pragma omp for schedule(static)
    for (int r = 0; r < e->rows; r++) gate_row(e, b, e->x, e->y, r);
}

/* LazyMAR's rule: of blocks 1 to 4 the gated output of the MLP is kept, of the others the ungated output. */
static int keeps_addition(int b)
{
    return b >= 1 && b <= 4;
}

static void block_reusing(const evaluation *e, int b, int computed, int thread)
{
    cpu_kern *c = e->c;
    const size_t w = (size_t)e->h->width;
    float *kept = e->kept + (size_t)b * (size_t)e->kept_rows * w;
    if (computed) block_products(e, b, keeps_addition(b) ? e->y : kept, thread);
#pragma omp for schedule(static)
    for (int r = 0; r < e->rows; r++) {
        float *row = kept + (size_t)r * w;
        if (!keeps_addition(b)) {
            gate_row(e, b, e->x, kept, r);
            continue;
        }
        if (computed) {
            memset(row, 0, w * sizeof *row);
            gate_row(e, b, kept, e->y, r);
        }
        c->rows->add(e->x + (size_t)r * w, e->x + (size_t)r * w, row, w);
    }
}

/* Every thread of the team runs this inside one parallel region. With a small number of rows a fork for each layer
 * would cost more than the layers. */
static void eval_worker(const evaluation *e)
{
    cpu_kern *c = e->c;
    const kern_head *h = e->h;
    const int thread = omp_get_thread_num(), width = h->width, bf16 = c->bf16;
    const size_t w = (size_t)width;
    kern *k = &c->base;
    const int in_tiles = cpu_linear_tiles(c, h->in, e->rows), out_tiles = cpu_linear_tiles(c, h->out, e->rows);
#pragma omp for schedule(static)
    for (int t = 0; t < in_tiles; t++) cpu_linear_tile(c, h->in, e->state, e->rows, e->x, t, thread);
    for (int b = 0; b < h->depth; b++) {
        const float *ln = h->block[b].ln;
        const int computed =
            !e->kept || e->reuse == KERN_HEAD_FRESH || (e->reuse == KERN_HEAD_WARM && !keeps_addition(b));
#pragma omp for schedule(static)
        for (int r = 0; r < (computed ? e->rows : 0); r++) {
            const void *shift = act_at(k, mod_row(e, r), 3 * w * (size_t)b), *scale = act_at(k, shift, w);
            c->rows->modulate(e->x + (size_t)r * w, width, ln, ln + w, 1e-6f, shift, scale, bf16,
                              act_at(k, e->u, (size_t)r * w), bf16);
        }
        if (e->kept)
            block_reusing(e, b, computed, thread);
        else if (cpu_linear_by_columns(h->block[b].fc1))
            block_columns(e, b, thread);
        else
            block_tiles(e, b, thread);
    }
#pragma omp for schedule(static)
    for (int r = 0; r < e->rows; r++) {
        const float *m = (const float *)(mod_row(e, r) + mod_final_offset(h));
        c->rows->modulate(e->x + (size_t)r * w, width, NULL, NULL, 1e-6f, m, m + w, 0, e->y + (size_t)r * w, 0);
    }
#pragma omp for schedule(static)
    for (int t = 0; t < out_tiles; t++) cpu_linear_tile(c, h->out, e->y, e->rows, e->out, t, thread);
}

/* Row r reads state x_index[r] of x, or state r % tokens if x_index is NULL. */
static void eval(kern *k, const kern_head *h, const float *x, const int *x_index, int tokens, const void *mod,
                 const int *mod_index, int rows, kern_head_reuse reuse, float *kept, int kept_rows, float *out,
                 void *scratch)
{
    cpu_kern *c = cpu_of(k);
    const size_t n = (size_t)rows * (size_t)h->width, channels = (size_t)h->channels;
    if (rows <= 0) return;
    if (!cpu_linear_ready(c, h->in, rows) || !cpu_linear_ready(c, h->out, rows)) return;
    for (int b = 0; b < h->depth; b++)
        if (!cpu_linear_ready(c, h->block[b].fc1, rows) || !cpu_linear_ready(c, h->block[b].fc2, rows)) return;
    float *xw = scratch, *y = xw + n, *state = y + n;
    char *u = (char *)(state + (size_t)rows * channels);
    char *v = u + n * h->act_size;
    for (int r = 0; r < rows; r++)
        memcpy(state + (size_t)r * channels, x + (size_t)(x_index ? x_index[r] : r % tokens) * channels,
               channels * sizeof *x);
    /* The work between two barriers is one product. */
    const int team = cpu_team(c, (double)n * h->width);
    const evaluation e = {c, h, state, mod, mod_index, rows, out, xw, y, u, v, kept, kept_rows, reuse};
#pragma omp parallel num_threads(team)
    eval_worker(&e);
}

void cpu_head_eval(kern *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                   const int *mod_index, int rows, float *out, void *scratch)
{
    eval(k, h, x, x_index, rows, mod, mod_index, rows, KERN_HEAD_FRESH, NULL, 0, out, scratch);
}

void cpu_head_eval_reusing(kern *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                           const int *mod_index, int rows, kern_head_reuse reuse, float *kept, int kept_rows,
                           float *out, void *scratch)
{
    eval(k, h, x, x_index, rows, mod, mod_index, rows, reuse, kept, kept_rows, out, scratch);
}

void cpu_chain_run(kern *k, const kern_head *h, const kern_chain_job *j)
{
    const int rows = j->tokens * j->conditions;
    const float *cfg = j->conditions == 2 ? j->cfg : NULL;
    const char *mod = j->mod;
    for (int i = j->first; i >= j->last; i--, mod += (size_t)rows * cpu_head_mod_bytes(h)) {
        eval(k, h, j->x, NULL, j->tokens, mod, NULL, rows, KERN_HEAD_FRESH, NULL, 0, j->out, j->scratch);
        if (!j->coef)
            cpu_chain_ode_step(k, j->x, j->x0, j->out, j->tokens, h->channels, cfg, &j->ode[i]);
        else
            cpu_chain_step(k, j->x, j->out, j->tokens, h->channels, cfg, &j->coef[i], j->seed, j->image, j->position,
                           j->t[i]);
    }
}
