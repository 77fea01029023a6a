#include "spherear/state.h"

float sphere_scale(const sphere *g, const mar_slot *s, int token)
{
    const mar_params *p = &g->params;
    const double known = (double)token / g->model->shape.transformer.shape.seq_len;
    if (s->cfg <= 1 || known < (double)p->cfg_low || known > (double)p->cfg_high) return 1;
    return p->cfg_schedule == MAR_CFG_CONSTANT ? s->cfg : (float)(1 + ((double)s->cfg - 1) * known);
}

int sphere_draws_apart(const sphere *g, const mar_slot *s, int token)
{
    return token == 0 && s->cfg > 1 && g->params.cfg_schedule == MAR_CFG_LINEAR;
}

void sphere_add_tokens(sphere *g, causal_runner *r, int slot, int first, int n, int wanted, int rows, const int *to)
{
    const mar_slot *s = &g->slots.slot[slot];
    const int n_tokens = g->model->shape.transformer.shape.seq_len;
    for (int branch = 0; branch < (s->cfg > 1 ? 2 : 1); branch++) {
        for (int i = 0; i < n; i++) {
            const int apart = branch == 1 && first + i == 0 && sphere_draws_apart(g, s, 0) && s->given == 0;
            g->source[i] = apart ? g->max_images * n_tokens + slot : slot * n_tokens + first + i;
        }
        causal_vectors_add(r, slot, branch, first, n, g->source, wanted, to, branch * rows);
    }
}

void sphere_admit(sphere *g, causal_runner *r, const int *slot, const mar_image *images, int n)
{
    for (int i = 0; i < n; i++)
        g->start[i] = (causal_start){.image = slot[i], .label = images[i].label, .cfg = images[i].cfg};
    causal_runner_admit(r, g->start, n);
}
