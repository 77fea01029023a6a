/* Parts of a step that images at the same step and images at different steps share: the lists of its tokens, drawing
 * them, and keeping them. */
#include "mar/masked/masked.h"

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
    diff_chain_use(&g->target.chain, steps);
    diff_chain_guide(&g->target.chain, cfg_branches == 2);
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
    g->drawer->draw(g->drawer_state, &d, z, steps, x);
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
    mar_runner_add_known_tokens(&g->target, g->sampled, n, g->row_slot, g->row_position, recording);
    for (int i = 0; i < g->accel_count; i++)
        if (g->accels[i].accel->add_known_tokens) g->accels[i].accel->add_known_tokens(g->accels[i].state, n);
}
