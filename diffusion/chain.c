#include "diffusion/chain.h"

#include <stdlib.h>

/* Modulation rows are written once and read once; this many bytes of them at a time keep the product that makes them
 * large (it re-reads its weights once per chunk) without holding all steps of a big batch. */
enum { MOD_BUDGET = 48 << 20 };

static int rows_of(const diff_chain *c, int tokens)
{
    return c->guided ? 2 * tokens : tokens;
}

mar_status diff_chain_create(const diff_head *head, int steps, float temperature, int max_tokens, int guided,
                             diff_chain *out, mar_err *err)
{
    kern *k = head->k;
    *out = (diff_chain){.head = head, .max_tokens = max_tokens, .guided = guided, .temperature = temperature};
    const int rows = rows_of(out, max_tokens);
    mar_status status = diff_schedule_create(steps, temperature, &out->schedule, err);
    if (status != MAR_OK) return status;
    const size_t mod_bytes = k->ops->head_mod_bytes(head->net);
    size_t mod_rows = MOD_BUDGET / mod_bytes, all = (size_t)rows * (size_t)steps;
    if (mod_rows < (size_t)rows) mod_rows = (size_t)rows;
    if (mod_rows > all) mod_rows = all;
    out->mod_rows = (int)mod_rows;
    out->step_index = malloc((size_t)steps * sizeof *out->step_index);
    out->x_index = malloc(((size_t)rows + 1) * sizeof *out->x_index);
    out->coef = malloc(((size_t)max_tokens + 1) * sizeof *out->coef);
    out->host_law = malloc(((size_t)max_tokens * (size_t)head->channels + 1) * sizeof *out->host_law);
    if (!out->step_index || !out->x_index || !out->coef || !out->host_law)
        status = err_set(err, MAR_ENOMEM, "out of memory");
    void *p = NULL;
    if (status == MAR_OK) status = diff_head_time_embeddings(head, out->schedule.t, steps, &out->temb, err);
    if (status == MAR_OK) status = k->ops->alloc(k, (size_t)rows * (size_t)head->width * sizeof(float), &p, err);
    out->cond = p, p = NULL;
    if (status == MAR_OK) status = k->ops->alloc(k, (size_t)rows * 2 * (size_t)head->channels * sizeof(float), &p, err);
    out->out = p, p = NULL;
    if (status == MAR_OK) status = k->ops->alloc(k, mod_rows * mod_bytes, &out->mod, err);
    if (status == MAR_OK)
        status = k->ops->alloc(k, k->ops->head_scratch_bytes(head->net, out->mod_rows), &out->scratch, err);
    if (status != MAR_OK) {
        diff_chain_free(out);
        return status;
    }
    for (int i = 0; i < steps; i++) out->step_index[i] = i;
    return MAR_OK;
}

void diff_chain_free(diff_chain *c)
{
    if (!c->head) return;
    kern *k = c->head->k;
    void *arrays[] = {c->temb, c->cond, c->out, c->mod, c->scratch};
    for (int i = 0; i < 5; i++)
        if (arrays[i]) k->ops->free(k, arrays[i]);
    free(c->step_index);
    free(c->x_index);
    free(c->coef);
    free(c->host_law);
    diff_schedule_free(&c->schedule);
    *c = (diff_chain){0};
}

size_t diff_chain_bytes(const diff_chain *c)
{
    const kern_ops *ops = c->head->k->ops;
    const size_t rows = (size_t)rows_of(c, c->max_tokens), width = (size_t)c->head->width;
    return (rows + (size_t)c->schedule.steps) * width * sizeof(float) +
           rows * 2 * (size_t)c->head->channels * sizeof(float) +
           (size_t)c->mod_rows * ops->head_mod_bytes(c->head->net) + ops->head_scratch_bytes(c->head->net, c->mod_rows);
}

/* Steps whose modulation is made at once. */
static int chunk_steps(const diff_chain *c, int rows)
{
    const int steps = c->mod_rows / rows;
    return steps < c->schedule.steps ? steps : c->schedule.steps;
}

mar_status diff_chain_plan(diff_chain *c, int tokens, mar_err *err)
{
    kern *k = c->head->k;
    const int rows = rows_of(c, tokens), chunk = chunk_steps(c, rows);
    mar_status status = k->ops->linear_plan(k, c->head->cond, rows, err);
    if (status == MAR_OK) status = k->ops->head_plan(k, c->head->net, rows, err);
    if (status == MAR_OK) status = k->ops->head_plan(k, c->head->net, chunk * rows, err);
    if (status == MAR_OK && c->schedule.steps % chunk)
        status = k->ops->head_plan(k, c->head->net, c->schedule.steps % chunk * rows, err);
    return status;
}

/* Adds the step's log standard deviations to the path, or keeps its law. */
static void note(diff_chain *c, const float *x, int tokens, const float *cfg, int index, diff_trace *trace)
{
    kern *k = c->head->k;
    const int channels = c->head->channels;
    if (index < trace->index || (index > trace->index && !trace->path_log_std)) return;
    for (int r = 0; r < tokens; r++) c->coef[r] = &c->schedule.coef[index];
    k->ops->chain_law(k, x, c->out, tokens, channels, cfg, c->coef, c->temperature, trace->mean, trace->log_std);
    if (index == trace->index) return;
    k->ops->download(k, c->host_law, trace->log_std, (size_t)tokens * (size_t)channels * sizeof(float));
    for (int r = 0; r < tokens; r++)
        for (int i = 0; i < channels; i++) trace->path_log_std[r] += c->host_law[r * channels + i];
}

void diff_chain_run(diff_chain *c, const float *z, int tokens, const float *cfg, uint64_t seed, const uint64_t *image,
                    const int *position, int first, int last, float *x, diff_trace *trace)
{
    kern *k = c->head->k;
    const kern_ops *ops = k->ops;
    const int rows = rows_of(c, tokens), chunk = rows ? chunk_steps(c, rows) : 0;
    if (!rows) return;
    if (!c->guided) cfg = NULL;
    ops->linear(k, c->head->cond, z, rows, c->cond);
    for (int r = 0; r < rows; r++) c->x_index[r] = r % tokens; /* both conditions share the state */
    if (trace && trace->path_log_std)
        for (int r = 0; r < tokens; r++) trace->path_log_std[r] = 0;
    for (int top = first; top >= last; top -= chunk) {
        const int bottom = top - chunk + 1 > last ? top - chunk + 1 : last;
        ops->head_modulate(k, c->head->net, c->temb, c->step_index + bottom, top - bottom + 1, c->cond, rows, c->mod,
                           c->scratch);
        for (int i = top; i >= bottom; i--) {
            const char *mod =
                (const char *)c->mod + (size_t)(i - bottom) * (size_t)rows * ops->head_mod_bytes(c->head->net);
            ops->head_eval(k, c->head->net, x, c->x_index, mod, NULL, rows, c->out, c->scratch);
            if (trace) note(c, x, tokens, cfg, i, trace);
            ops->chain_step(k, x, c->out, tokens, c->head->channels, cfg, &c->schedule.coef[i], seed, image, position,
                            c->schedule.t[i]);
        }
    }
}

void diff_chain_start(diff_chain *c, int tokens, uint64_t seed, const uint64_t *image, const int *position, float *x)
{
    kern *k = c->head->k;
    k->ops->normal(k, x, tokens, c->head->channels, seed, KERN_NOISE_INIT, image, position, 0);
}

void diff_chain_sample(diff_chain *c, const float *z, int tokens, const float *cfg, uint64_t seed,
                       const uint64_t *image, const int *position, float *x)
{
    diff_chain_start(c, tokens, seed, image, position, x);
    diff_chain_run(c, z, tokens, cfg, seed, image, position, c->schedule.steps - 1, 0, x, NULL);
}

double diff_chain_flop(const diff_chain *c, int tokens)
{
    const double per_step = diff_head_modulation_macs(c->head) + diff_head_sequential_macs(c->head);
    return 2.0 * rows_of(c, tokens) * (c->schedule.steps * per_step + (double)c->head->z_dim * c->head->width);
}
