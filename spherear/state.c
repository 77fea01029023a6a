#include "spherear/state.h"

float sphere_scale(const sphere *g, const mar_slot *s, int token)
{
    const mar_params *p = &g->params;
    const double known = (double)token / g->model->shape.transformer.seq_len;
    if (s->cfg <= 1 || known < (double)p->cfg_low || known > (double)p->cfg_high) return 1;
    return p->cfg_schedule == MAR_CFG_CONSTANT ? s->cfg : (float)(1 + ((double)s->cfg - 1) * known);
}

int sphere_draws_apart(const sphere *g, const mar_slot *s, int token)
{
    return token == 0 && s->cfg > 1 && g->params.cfg_schedule == MAR_CFG_LINEAR;
}

void sphere_add_tokens(sphere *g, sphere_runner *r, int slot, int first, int n, int wanted, int rows, const int *to)
{
    const mar_slot *s = &g->slots.slot[slot];
    const int n_tokens = g->model->shape.transformer.seq_len;
    for (int branch = 0; branch < (s->cfg > 1 ? 2 : 1); branch++) {
        for (int i = 0; i < n; i++) {
            const int apart = branch == 1 && first + i == 0 && sphere_draws_apart(g, s, 0) && s->given == 0;
            g->source[i] = apart ? g->max_images * n_tokens + slot : slot * n_tokens + first + i;
        }
        sphere_runner_add(r, slot, branch, first, n, g->source, wanted, branch * rows, to);
    }
}

void sphere_add_classes(sphere *g, sphere_runner *r, const int *slot, const mar_image *images, int n, int rows)
{
    const int classes = g->model->shape.transformer.classes;
    sphere_runner_begin(r);
    for (int branch = 0; branch < r->branches; branch++)
        for (int i = 0; i < n; i++) {
            if (branch == 1 && images[i].cfg <= 1) continue;
            const int label = branch == 1 || images[i].label < 0 ? classes : images[i].label;
            sphere_runner_add_class(r, slot[i], branch, label, branch * rows + slot[i]);
        }
}
