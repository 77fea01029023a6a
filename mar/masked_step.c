/* An autoregressive step: the lists of its tokens, drawing them, and keeping them. */
#include "mar/masked.h"

/* --- parts that all steps share ----------------------------------------------------------------------------------- */

mar_batch mar_masked_batch(const mar_masked *g)
{
    return (mar_batch){.images = g->images, .order = (const int *const *)g->order};
}

int mar_masked_first_alike(const mar_masked *g, int i)
{
    const mar_step *a = &g->steps[i], *b = g->steps;
    while (a->predicted != b->predicted || a->sampling_steps != b->sampling_steps || a->detailed != b->detailed ||
           a->detailed_steps != b->detailed_steps || a->cfg_branches != b->cfg_branches)
        b++;
    return (int)(b - g->steps);
}

mar_recordings *mar_masked_recordings(const mar_masked *g, mar_recordings *list, int i)
{
    return g->images == g->planned ? &list[i] : NULL;
}

int mar_masked_branches(const mar_masked *g, int slot)
{
    const mar_slot *s = &g->slots.slot[slot];
    const mar_step *step = &g->steps[s->step];
    return s->cfg == g->params.cfg ? step->cfg_branches : mar_cfg_branches(mar_step_scale(step, s->cfg));
}

int mar_masked_list(mar_masked *g, int slot, const mar_step *step, int begin, int count, int first)
{
    const mar_slot *s = &g->slots.slot[slot];
    const float cfg = mar_step_scale(step, s->cfg);
    for (int j = 0, r = first; j < count; j++, r++) {
        g->row_slot[r] = slot;
        g->row_position[r] = g->order[slot][begin + j];
        g->row_image[r] = s->number;
        g->row_seed[r] = s->seed;
        g->row_cfg[r] = cfg;
    }
    return first + count;
}

void mar_masked_use_chain(mar_masked *g, int steps, int cfg_branches)
{
    mar_runner *runners[] = {&g->target, g->drawer ? g->draft : NULL};
    for (int i = 0; i < 2 && runners[i]; i++) {
        diff_chain_use(&runners[i]->chain, steps);
        diff_chain_guide(&runners[i]->chain, cfg_branches == 2);
    }
}

/* Computes the draft's z of the step's tokens. They are drawn in one call, because with a draft no accelerator changes
 * the steps. */
static const float *masked_predict_draft(mar_masked *g, int tokens)
{
    const mar_batch batch = mar_masked_batch(g);
    mar_runner_predict(g->draft, &batch, &g->steps[g->step], 0, tokens,
                       mar_masked_recordings(g, g->draft_recordings, g->step));
    return g->draft->net.z;
}

/* Draws tokens by an accelerator. Row z of the target's z is their first. */
static void masked_draw_by_accel(mar_masked *g, const mar_draw *d, const int *slot, int z, float *x)
{
    kern_queue *k = g->k;
    const diff_tokens tokens = {.count = d->count,
                                .sources = d->count,
                                .z = g->target.net.z + (size_t)z * (size_t)g->model->base.config.width,
                                .draft_z = g->draft ? masked_predict_draft(g, d->count) : NULL,
                                .cfg = d->cfg,
                                .seed = d->seed,
                                .image = d->image,
                                .position = d->position,
                                .slot = slot};
    k->core->timer_mark(k, NULL);
    g->drawer->draw(g->drawer_state, &tokens, x);
    k->core->timer_mark(k, &g->target.head_s);
}

void mar_masked_draw(mar_masked *g, int first, int n, int z, int cfg_branches, int steps, kern_recording **recording)
{
    const mar_draw d = {n, g->row_seed + first, g->row_image + first, g->row_position + first, g->row_cfg + first};
    float *x = g->sampled + (size_t)first * (size_t)g->model->base.config.token_dim;
    if (n == 0) return;
    mar_masked_use_chain(g, steps, cfg_branches);
    if (!g->drawer) {
        const int calls = g->target.chain.schedule.steps;
        mar_runner_draw(&g->target, z, &d, calls - 1, 0, x, NULL, recording);
        g->stats.head_batched += calls;
        g->stats.head_calls += (double)n * calls;
        g->stats.head_rows += (double)n * calls;
        if (calls > g->stats.head_calls_max) g->stats.head_calls_max = calls;
        return;
    }
    masked_draw_by_accel(g, &d, g->row_slot + first, z, x);
}

void mar_masked_write_tokens(mar_masked *g, const float *from, int n)
{
    kern_queue *k = g->k;
    k->core->copy_rows(k, g->slots.tokens, g->row_place, from, NULL, NULL, NULL, n, g->model->base.config.token_dim);
    g->stats.tokens += n;
}

void mar_masked_keep(mar_masked *g, int n, kern_recording **recording)
{
    const int seq = g->model->base.config.seq_len;
    for (int r = 0; r < n; r++) {
        const int place = g->row_place[r] = g->row_slot[r] * seq + g->row_position[r];
        g->slots.token_status[place] = MAR_TOKEN_TARGET;
        g->slots.ar_step[place] = g->together ? g->step : g->slots.slot[g->row_slot[r]].step;
    }
    mar_masked_write_tokens(g, g->sampled, n);
    masked_runner_add_known_tokens(&g->target.net, g->sampled, n, g->row_slot, g->row_position, recording);
    for (int i = 0; i < g->accel_count; i++)
        if (g->accels[i].hooks->add_known_tokens) g->accels[i].hooks->add_known_tokens(g->accels[i].state, n);
}

/* --- images at the same step -------------------------------------------------------------------------------------- */

/* Lists as rows first.. the tokens at `begin` to begin + count of each order. Returns the row behind them. */
static int masked_list_tokens(mar_masked *g, const mar_step *step, int begin, int count, int first)
{
    for (int i = 0; i < g->images; i++) first = mar_masked_list(g, i, step, begin, count, first);
    return first;
}

void mar_masked_step(mar_masked *g)
{
    const mar_step *step = &g->steps[g->step];
    const mar_model_config *c = &g->model->base.config;
    const int begin = c->seq_len - step->known - step->predicted, others = step->predicted - step->detailed;
    mar_recordings *alike = mar_masked_recordings(g, g->recordings, mar_masked_first_alike(g, g->step));

    /* Choose the tokens: the last masked ones of each order, those with detailed_steps first. */
    for (int i = 0; i < g->accel_count && step->detailed; i++)
        if (g->accels[i].hooks->select) g->accels[i].hooks->select(g->accels[i].state, step);
    const int detailed = masked_list_tokens(g, step, begin + others, step->detailed, 0);
    const int n = masked_list_tokens(g, step, begin, others, detailed);

    /* Compute z: the encoder over the known tokens, the decoder over all. */
    const mar_batch batch = mar_masked_batch(g);
    mar_runner_predict(&g->target, &batch, step, 0, n, mar_masked_recordings(g, g->recordings, g->step));
    g->stats.passes++;
    g->stats.contexts += g->images;

    /* Draw the tokens: the head's diffusion chain. */
    const int branches = step->cfg_branches;
    mar_masked_draw(g, 0, detailed, 0, branches, step->detailed_steps, alike ? &alike->draw[1] : NULL);
    mar_masked_draw(g, detailed, n - detailed, detailed * branches, branches, step->sampling_steps,
                    alike ? &alike->draw[0] : NULL);

    /* Write them to the images, and add them to the known tokens. */
    mar_masked_keep(g, n, alike ? &alike->net.known_tokens : NULL);
    g->step++;
}

int mar_masked_steps_left(const mar_masked *g, int slot)
{
    if (!g->slots.slot[slot].busy) return 0;
    return g->params.num_iter - (g->together ? g->step : g->slots.slot[slot].step);
}

/* Returns the number of unfinished images if they are those of slots 0, 1, .. and take the same step of the plan as it
 * is; else 0. */
static int masked_count_aligned(const mar_masked *g)
{
    int n = 0;
    while (n < g->max_images && mar_masked_steps_left(g, n) > 0) n++;
    for (int i = 0; i < g->max_images; i++) {
        if (mar_masked_steps_left(g, i) <= 0) continue;
        const mar_slot *s = &g->slots.slot[i];
        const mar_step *step = &g->steps[s->step];
        if (i >= n || s->step != g->slots.slot[0].step || s->known != step->known) return 0;
        if (mar_masked_branches(g, i) != step->cfg_branches) return 0;
    }
    return n;
}

/* Takes the step of images at the same step of the plan. */
static void masked_step_aligned(mar_masked *g, int n)
{
    g->images = n;
    g->step = g->slots.slot[0].step;
    mar_masked_step(g);
    for (int i = 0; i < n; i++) {
        g->slots.slot[i].step = g->step;
        g->slots.slot[i].known += g->steps[g->step - 1].predicted;
    }
}

/* --- images at different steps ------------------------------------------------------------------------------------ */

/* They are at different places of the plan, as requests are. They share the transformer's passes, which take images
 * with different numbers of known tokens (nets/masked_contexts.h), and calls of the head with the same number of
 * diffusion steps. Images with and without guidance take turns: their rows are of different numbers. A row's bits
 * depend on its image only, so an image is the same in any company. */

/* Returns whether part a is drawn before part b; parts that are drawn together come in the order of their slots. */
static int masked_comes_before(const mar_part *a, const mar_part *b)
{
    if (a->cfg_branches != b->cfg_branches) return a->cfg_branches > b->cfg_branches;
    if (a->step->sampling_steps != b->step->sampling_steps) return a->step->sampling_steps > b->step->sampling_steps;
    return a->slot < b->slot;
}

static int masked_are_drawn_together(const mar_part *a, const mar_part *b)
{
    return a->cfg_branches == b->cfg_branches && a->step->sampling_steps == b->step->sampling_steps;
}

/* Lists the parts of all unfinished images, sorted. Returns their number. */
static int masked_list_parts(mar_masked *g)
{
    int n = 0;
    for (int i = 0; i < g->max_images; i++) {
        const mar_slot *s = &g->slots.slot[i];
        if (!s->busy || s->step == g->params.num_iter) continue;
        const mar_step *step = &g->steps[s->step];
        const mar_part part = {.slot = i,
                               .step = step,
                               .predicted = step->known + step->predicted - s->known,
                               .cfg_branches = mar_masked_branches(g, i)};
        int at = n++;
        for (; at > 0 && masked_comes_before(&part, &g->parts[at - 1]); at--) g->parts[at] = g->parts[at - 1];
        g->parts[at] = part;
    }
    return n;
}

/* Returns the number of parts from `first` on that satisfy `alike` with the first of them. */
static int masked_count_alike(const mar_masked *g, int first, int n, int (*alike)(const mar_part *a, const mar_part *b))
{
    int count = 1;
    while (first + count < n && alike(&g->parts[first], &g->parts[first + count])) count++;
    return count;
}

static int masked_have_the_same_branches(const mar_part *a, const mar_part *b)
{
    return a->cfg_branches == b->cfg_branches;
}

/* Places the z of parts that are drawn together: conditional rows, then unconditional ones. Returns the row behind. */
static int masked_place(mar_masked *g, int first, int count, int row)
{
    int tokens = 0;
    for (int i = first; i < first + count; i++) {
        mar_part *p = &g->parts[i];
        const mar_slot *s = &g->slots.slot[p->slot];
        g->list[i] = (masked_context){p->slot, g->order[p->slot], s->known, p->predicted, {row + tokens, 0}};
        tokens += p->predicted;
    }
    for (int i = first; i < first + count; i++) g->list[i].z_row[1] = g->list[i].z_row[0] + tokens;
    return row + g->parts[first].cfg_branches * tokens;
}

/* Lists the tokens of parts that are drawn together as rows `row`.. Returns the row behind. */
static int masked_list_rows(mar_masked *g, int first, int count, int row)
{
    const int seq = g->model->base.config.seq_len;
    for (int i = first; i < first + count; i++) {
        const mar_part *p = &g->parts[i];
        row =
            mar_masked_list(g, p->slot, p->step, seq - g->slots.slot[p->slot].known - p->predicted, p->predicted, row);
    }
    return row;
}

/* Computes the z of all parts. */
static void masked_predict(mar_masked *g, int n)
{
    for (int i = 0, count, row = 0; i < n; i += count) {
        count = masked_count_alike(g, i, n, masked_are_drawn_together);
        row = masked_place(g, i, count, row);
    }
    for (int i = 0, count; i < n; i += count) {
        count = masked_count_alike(g, i, n, masked_have_the_same_branches);
        g->contexts.branches = g->parts[i].cfg_branches;
        masked_contexts_run(&g->contexts, g->list + i, count, &g->target.net.embedded, NULL);
        g->stats.passes++;
        g->stats.contexts += count;
    }
}

static void masked_step_apart(mar_masked *g)
{
    const int n = masked_list_parts(g);
    int rows = 0;
    masked_predict(g, n);
    for (int i = 0, count; i < n; i += count) {
        count = masked_count_alike(g, i, n, masked_are_drawn_together);
        const int end = masked_list_rows(g, i, count, rows);
        const mar_part *p = &g->parts[i];
        mar_masked_draw(g, rows, end - rows, g->list[i].z_row[0], p->cfg_branches, p->step->sampling_steps, NULL);
        rows = end;
    }
    mar_masked_keep(g, rows, NULL);
    for (int i = 0; i < n; i++) {
        mar_slot *s = &g->slots.slot[g->parts[i].slot];
        s->known += g->parts[i].predicted;
        s->step++;
    }
}

void mar_masked_step_images(mar_masked *g)
{
    const int aligned = masked_count_aligned(g);
    if (aligned)
        masked_step_aligned(g, aligned);
    else
        masked_step_apart(g);
}
