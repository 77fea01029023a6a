#include "diffusion/chain.h"

#include "base/arena.h"

#include <stdlib.h>

enum { REUSE_EVERY = 7 };                          /* cache_threshold of LazyMAR's release */
static const size_t chunk_bytes = (size_t)1 << 30; /* of modulation rows; more at a time are not computed faster */

static int chain_rows_of(const diff_chain *c, int tokens)
{
    return c->guided ? 2 * tokens : tokens;
}

static int chain_most_rows(const diff_chain *c)
{
    return c->cfg_branches * c->max_tokens;
}

static mar_status chain_create_respacings(const diff_spec *specs, int n, diff_chain *c, mar_err *err)
{
    c->respacing = calloc((size_t)n, sizeof *c->respacing);
    if (!c->respacing) return err_set(err, MAR_ENOMEM, "out of memory");
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < n; i++) {
        diff_respacing *respacing = &c->respacing[c->respacings++];
        respacing->spec = specs[i];
        status = diff_schedule_create_for(&specs[i], c->temperature, &respacing->schedule, err);
        if (status == MAR_OK)
            status = diff_head_time_embeddings(c->k, c->head, respacing->schedule.time, respacing->schedule.steps,
                                               &respacing->temb, err);
        if (respacing->schedule.steps > c->max_steps) c->max_steps = respacing->schedule.steps;
    }
    return status;
}

static mar_status chain_create_host(diff_chain *c, mar_err *err)
{
    const size_t tokens = (size_t)c->max_tokens, rows = (size_t)chain_most_rows(c), steps = (size_t)c->max_steps;
    c->step_index = malloc(steps * sizeof *c->step_index);
    c->step_list = malloc(steps * sizeof *c->step_list);
    c->fine = malloc(steps);
    c->fine_list = malloc(steps);
    c->mod_row = malloc(steps * sizeof *c->mod_row);
    c->x_index = malloc((rows + 1) * sizeof *c->x_index);
    c->coef = malloc((tokens + 1) * sizeof *c->coef);
    c->zeros = calloc(tokens + 1, sizeof *c->zeros);
    c->before = malloc((2 * tokens * (size_t)c->head->shape.channels + 1) * sizeof *c->before);
    if (!c->step_index || !c->step_list || !c->fine || !c->fine_list || !c->mod_row || !c->x_index || !c->coef ||
        !c->zeros || !c->before)
        return err_set(err, MAR_ENOMEM, "out of memory");
    for (int i = 0; i < c->max_steps; i++) c->step_index[i] = i;
    return MAR_OK;
}

/* Returns the modulation rows that are computed at a time: as many as the backend has room for, up to chunk_bytes, at
 * least those of one step. */
static int chain_chunk_rows(const diff_chain *c)
{
    const kern_queue *k = c->k;
    const size_t rows = (size_t)chain_most_rows(c), all = rows * (size_t)c->max_steps;
    const size_t budget = k->device->mod_budget < chunk_bytes ? k->device->mod_budget : chunk_bytes;
    const size_t fit = budget / k->head->mod_bytes(c->head->net);
    return (int)(fit < rows ? rows : fit > all ? all : fit);
}

size_t diff_chain_lay_out(diff_chain *c, char *base)
{
    const kern_queue *k = c->k;
    const size_t rows = (size_t)chain_most_rows(c), tokens = (size_t)c->max_tokens;
    const size_t width = (size_t)c->head->shape.width, channels = (size_t)c->head->shape.channels;
    size_t used = 0;
    c->cond = arena_carve(base, &used, rows * width, sizeof(float));
    c->out = arena_carve(base, &used, rows * 2 * channels, sizeof(float));
    c->x0 = arena_carve(base, &used, tokens * channels, sizeof(float));
    c->mod = arena_carve(base, &used, (size_t)c->mod_rows, k->head->mod_bytes(c->head->net));
    c->scratch = arena_carve(base, &used, 1, k->head->scratch_bytes(c->head->net, c->mod_rows));
    if (c->reuse) {
        c->kept = arena_carve(base, &used, (size_t)c->head->shape.depth * rows * width, sizeof(float));
        c->difference = arena_carve(base, &used, tokens * 2 * channels, sizeof(float));
    }
    return used;
}

mar_status diff_chain_create_for(kern_queue *k, const diff_head *head, const diff_spec *specs, int n, float temperature,
                                 int max_tokens, int guided, diff_chain *out, mar_err *err)
{
    *out = (diff_chain){.k = k,
                        .head = head,
                        .max_tokens = max_tokens,
                        .cfg_branches = guided ? 2 : 1,
                        .guided = guided,
                        .temperature = temperature,
                        .part = ""};
    mar_status status = chain_create_respacings(specs, n, out, err);
    if (status == MAR_OK) status = chain_create_host(out, err);
    if (status != MAR_OK) {
        diff_chain_free(out);
        return status;
    }
    out->mod_rows = chain_chunk_rows(out);
    diff_chain_use(out, specs[0].steps);
    return MAR_OK;
}

mar_status diff_chain_create(kern_queue *k, const diff_head *head, int steps, float temperature, int max_tokens,
                             int guided, diff_chain *out, mar_err *err)
{
    const diff_spec plain = {MAR_SAMPLER_DDPM, steps, DIFF_TOP, .process = DIFF_DDPM};
    return diff_chain_create_for(k, head, &plain, 1, temperature, max_tokens, guided, out, err);
}

void diff_chain_use(diff_chain *c, int steps)
{
    const diff_respacing *respacing = c->respacing;
    while (respacing->spec.steps != steps) respacing++;
    c->schedule = respacing->schedule;
    c->temb = respacing->temb;
    for (int i = 0; i < c->schedule.steps; i++)
        c->fine[i] = diff_schedule_level(&c->schedule, respacing->spec.process, i) >= c->head->int8_below;
}

void diff_chain_guide(diff_chain *c, int guided)
{
    c->guided = guided;
}

void diff_chain_reuse(diff_chain *c)
{
    c->reuse = 1;
}

void diff_chain_free(diff_chain *c)
{
    if (!c->head) return;
    kern_device *d = c->k->device;
    for (int i = 0; i < c->respacings; i++) {
        d->core->free(d, c->respacing[i].temb);
        diff_schedule_free(&c->respacing[i].schedule);
    }
    free(c->respacing);
    free(c->step_index);
    free(c->step_list);
    free(c->fine);
    free(c->fine_list);
    free(c->mod_row);
    free(c->x_index);
    free(c->coef);
    free(c->zeros);
    free(c->before);
    *c = (diff_chain){0};
}

/* Returns the number of steps whose modulation is computed at a time. */
static int chain_chunk_steps(const diff_chain *c, int rows)
{
    const int steps = c->mod_rows / rows;
    return steps < c->schedule.steps ? steps : c->schedule.steps;
}

/* Tells whether the head is evaluated in full at this index of a run that begins at `first`. */
static int chain_in_full(const diff_chain *c, int index, int first)
{
    return !c->reuse || index == first || index % REUSE_EVERY == 0;
}

static int chain_count_in_full(const diff_chain *c, int top, int bottom, int first)
{
    int n = 0;
    for (int i = top; i >= bottom; i--) n += chain_in_full(c, i, first);
    return n;
}

static kern_head_reuse chain_reuse_at(const diff_chain *c, int index, int first)
{
    if (chain_in_full(c, index, first)) return KERN_HEAD_FRESH;
    return index > 0.9 * c->schedule.steps ? KERN_HEAD_WARM : KERN_HEAD_KEPT;
}

mar_status diff_chain_plan(diff_chain *c, int tokens, mar_err *err)
{
    kern_queue *k = c->k;
    const int rows = chain_rows_of(c, tokens), chunk = chain_chunk_steps(c, rows), first = c->schedule.steps - 1;
    const int all = rows * c->schedule.steps, fewer = all < c->mod_rows ? all : c->mod_rows;
    mar_status status = k->core->linear_plan(k, c->head->cond, rows, err);
    if (status == MAR_OK) status = k->head->plan(k, c->head->net, rows, err);
    if (status == MAR_OK && c->reuse) status = k->head->plan(k, c->head->net, tokens, err);
    /* fewer tokens may fill the whole buffer */
    if (status == MAR_OK) status = k->head->plan(k, c->head->net, fewer, err);
    /* the last chunk of a run that stops above index 0 */
    if (status == MAR_OK) status = k->head->plan(k, c->head->net, first % chunk * rows, err);
    for (int top = first; status == MAR_OK && top >= 0; top -= chunk) {
        const int bottom = top - chunk + 1 > 0 ? top - chunk + 1 : 0;
        const int full = chain_count_in_full(c, top, bottom, first), others = top - bottom + 1 - full;
        if (full) status = k->head->plan(k, c->head->net, full * rows, err);
        if (status == MAR_OK && others) status = k->head->plan(k, c->head->net, others * tokens, err);
    }
    return status;
}

/* Tells whether the trace records the distribution at an index. */
static int chain_is_traced(const diff_trace *trace, int index)
{
    return trace && (index == trace->index || (index > trace->index && trace->path_log_std));
}

/* Records the distribution at an index. Above trace->index, adds its log standard deviations to the path's sum. */
static void chain_note(diff_chain *c, const float *x, int tokens, const float *cfg, int index, const diff_trace *trace)
{
    kern_queue *k = c->k;
    const int channels = c->head->shape.channels;
    for (int r = 0; r < tokens; r++) c->coef[r] = &c->schedule.coef[index];
    k->head->chain_gaussian(k, x, c->out, tokens, channels, cfg, c->coef, c->temperature, trace->mean, trace->log_std);
    if (index > trace->index) k->head->add_log_std(k, trace->path_log_std, trace->log_std, tokens, channels);
}

void diff_chain_watch(const diff_chain *c, const float *z, int rows)
{
    const diff_head *h = c->head;
    kern_watch(c->k, z, MAR_DTYPE_F32, rows, h->shape.z_dim, h->shape.z_dim, "%s", diff_head_z_name(h));
    kern_watch(c->k, c->cond, MAR_DTYPE_F32, rows, h->shape.width, h->shape.width, "%scond_embed", diff_head_prefix(h));
    kern_watch(c->k, c->temb, MAR_DTYPE_F32, c->schedule.steps, h->shape.width, h->shape.width, "%stime_embed",
               diff_head_prefix(h));
}

/* Computes the modulation of indices top .. bottom: all rows of indices evaluated in full, only conditional rows of the
 * others. */
static void chain_modulate(diff_chain *c, int tokens, int top, int bottom, int first)
{
    kern_queue *k = c->k;
    int row = 0;
    for (int full = 1; full >= 0; full--) {
        const int rows = full ? chain_rows_of(c, tokens) : tokens, begin = row;
        int n = 0;
        for (int i = top; i >= bottom; i--) {
            if (chain_in_full(c, i, first) != full) continue;
            c->fine_list[n] = c->fine[i];
            c->step_list[n++] = i;
            c->mod_row[i] = row;
            row += rows;
        }
        void *mod = (char *)c->mod + (size_t)begin * k->head->mod_bytes(c->head->net);
        k->head->modulate(k, c->head->net, c->temb, c->step_list, c->fine_list, n, c->cond, rows, mod, c->scratch);
    }
}

/* Writes the head's output at index i to c->out. */
static void chain_evaluate(diff_chain *c, const float *x, int tokens, int i, int first)
{
    kern_queue *k = c->k;
    const kern_head_reuse reuse = chain_reuse_at(c, i, first);
    const int rows = reuse == KERN_HEAD_FRESH ? chain_rows_of(c, tokens) : tokens;
    const char *mod = (const char *)c->mod + (size_t)c->mod_row[i] * k->head->mod_bytes(c->head->net);
    if (!c->reuse) {
        k->head->eval(k, c->head->net, x, c->x_index, mod, NULL, rows, c->out, c->scratch);
        return;
    }
    k->head->eval_reusing(k, c->head->net, x, c->x_index, mod, NULL, rows, reuse, c->kept, chain_most_rows(c), c->out,
                          c->scratch);
    if (!c->guided) return;
    const size_t n = (size_t)tokens * 2 * (size_t)c->head->shape.channels;
    if (reuse == KERN_HEAD_FRESH)
        k->core->subtract(k, c->out, c->out + n, n, c->difference);
    else
        k->core->subtract(k, c->out, c->difference, n, c->out + n);
}

/* The arguments of diff_chain_run. */
typedef struct {
    int tokens, first;
    const float *cfg; /* NULL without guidance */
    const uint64_t *seed;
    const uint64_t *image;
    const int *position;
    float *x;
} run;

/* Takes the step at one index, operation by operation. */
static void chain_take_step(diff_chain *c, const run *r, int index, const diff_trace *trace)
{
    kern_queue *k = c->k;
    const int channels = c->head->shape.channels;
    k->watch.index = index;
    chain_evaluate(c, r->x, r->tokens, index, r->first);
    k->watch.index = -1;
    if (chain_is_traced(trace, index)) chain_note(c, r->x, r->tokens, r->cfg, index, trace);
    if (c->schedule.ode)
        k->head->chain_ode_step(k, r->x, c->x0, c->out, r->tokens, channels, r->cfg, &c->schedule.ode[index]);
    else
        k->head->chain_step(k, r->x, c->out, r->tokens, channels, r->cfg, &c->schedule.coef[index], r->seed, r->image,
                            r->position, c->schedule.t[index]);
}

/* Takes the steps at indices top .. bottom in one operation. */
static void chain_take_steps(diff_chain *c, const run *r, int top, int bottom)
{
    kern_queue *k = c->k;
    const kern_chain_job job = {
        .tokens = r->tokens,
        .conditions = c->guided ? 2 : 1,
        .first = top,
        .last = bottom,
        .mod = (const char *)c->mod + (size_t)c->mod_row[top] * k->head->mod_bytes(c->head->net),
        .x = r->x,
        .x0 = c->schedule.ode ? c->x0 : NULL,
        .coef = c->schedule.coef,
        .ode = c->schedule.ode,
        .t = c->schedule.t,
        .x_index = c->x_index,
        .cfg = r->cfg,
        .seed = r->seed,
        .image = r->image,
        .position = r->position,
        .out = c->out,
        .scratch = c->scratch,
    };
    k->fused->chain_run(k, c->head->net, &job);
}

/* Takes the steps as take_steps does while layers are watched. A backend may run all steps without showing the layers.
 * If a state then has a NaN or an infinity, the steps are taken again one by one. */
static void chain_take_steps_watched(diff_chain *c, const run *r, int top, int bottom)
{
    kern_queue *k = c->k;
    const int channels = c->head->shape.channels;
    const size_t n = (size_t)r->tokens * (size_t)channels;
    k->core->download(k, c->before, r->x, n * sizeof *c->before);
    k->core->download(k, c->before + n, c->x0, n * sizeof *c->before);
    chain_take_steps(c, r, top, bottom);
    if (k->watch.layer[0] || k->core->first_nonfinite(k, r->x, MAR_DTYPE_F32, r->tokens, channels, channels) < 0)
        return;
    k->core->upload(k, r->x, c->before, n * sizeof *c->before);
    k->core->upload(k, c->x0, c->before + n, n * sizeof *c->before);
    for (int i = top; i >= bottom; i--) chain_take_step(c, r, i, NULL);
}

void diff_chain_run(diff_chain *c, const float *z, int tokens, const float *cfg, const uint64_t *seed,
                    const uint64_t *image, const int *position, int first, int last, float *x, diff_trace *trace)
{
    kern_queue *k = c->k;
    const int rows = chain_rows_of(c, tokens), chunk = rows ? chain_chunk_steps(c, rows) : 0;
    const run r = {tokens, first, c->guided ? cfg : NULL, seed, image, position, x};
    if (!rows) return;
    k->core->linear(k, c->head->cond, z, rows, c->cond);
    diff_chain_watch(c, z, rows);
    for (int i = 0; i < rows; i++) c->x_index[i] = i % tokens; /* both branches share the state */
    if (trace && trace->path_log_std)
        k->core->upload(k, trace->path_log_std, c->zeros, (size_t)tokens * sizeof *c->zeros);
    for (int top = first; top >= last; top -= chunk) {
        const int bottom = top - chunk + 1 > last ? top - chunk + 1 : last;
        chain_modulate(c, tokens, top, bottom, first);
        for (int i = top, end; i >= bottom; i = end - 1) {
            end = i;
            if (c->reuse || chain_is_traced(trace, i)) {
                chain_take_step(c, &r, i, trace);
                continue;
            }
            while (end > bottom && !chain_is_traced(trace, end - 1)) end--;
            if (k->watch.on)
                chain_take_steps_watched(c, &r, i, end);
            else
                chain_take_steps(c, &r, i, end);
        }
    }
}

void diff_chain_start(diff_chain *c, int tokens, const uint64_t *seed, const uint64_t *image, const int *position,
                      float *x)
{
    kern_queue *k = c->k;
    k->head->normal(k, x, tokens, c->head->shape.channels, seed, KERN_NOISE_INIT, image, position, 0);
}

void diff_chain_rehearse(diff_chain *c, int tokens)
{
    const int rows = chain_rows_of(c, tokens);
    for (int i = 0; i < rows; i++) c->x_index[i] = i % tokens;
    chain_modulate(c, tokens, 0, 0, 0);
}

void diff_chain_take_last(diff_chain *c, int tokens, const float *cfg, const uint64_t *seed, const int *position,
                          float *x)
{
    const run r = {tokens, 0, c->guided ? cfg : NULL, seed, seed, position, x};
    chain_take_steps(c, &r, 0, 0);
}

void diff_chain_sample(diff_chain *c, const float *z, int tokens, const float *cfg, const uint64_t *seed,
                       const uint64_t *image, const int *position, float *x)
{
    diff_chain_start(c, tokens, seed, image, position, x);
    diff_chain_run(c, z, tokens, cfg, seed, image, position, c->schedule.steps - 1, 0, x, NULL);
}

/* Returns the multiply-adds of a row at an index with this reuse. */
static double chain_row_macs(const diff_chain *c, kern_head_reuse reuse)
{
    const diff_head *h = c->head;
    const double all = diff_head_macs(h, 1, 1), block = 2.0 * h->shape.width * h->shape.width;
    const int additions = h->shape.depth < 5 ? h->shape.depth - 1 : 4; /* blocks 1 to 4 */
    if (reuse == KERN_HEAD_FRESH) return all;
    return all - block * (reuse == KERN_HEAD_WARM ? additions : h->shape.depth);
}

double diff_chain_flop(const diff_chain *c, int tokens)
{
    const int first = c->schedule.steps - 1;
    double macs = (double)chain_rows_of(c, tokens) * c->head->shape.z_dim * c->head->shape.width;
    for (int i = first; i >= 0; i--) {
        const kern_head_reuse reuse = chain_reuse_at(c, i, first);
        macs += chain_row_macs(c, reuse) * (reuse == KERN_HEAD_FRESH ? chain_rows_of(c, tokens) : tokens);
    }
    return 2 * macs;
}
