/* The images' tokens that are vectors: their guidance, their rows in passes, their normalisation. */
#include "mar/raster_tokens.h"

#define SPHERE_EPS     1e-16f /* addend of a token's mean square: none but for a token of zeros */
#define LAYER_NORM_EPS 1e-6f

float raster_scale(const mar_raster *g, const mar_slot *s, int token)
{
    const mar_params *p = &g->plan.params;
    const double n = g->model->facts.net.seq_len, known = (double)token / n;
    if (s->cfg <= 1 || known < (double)p->cfg_low || known > (double)p->cfg_high) return 1;
    if (p->cfg_schedule == MAR_CFG_CONSTANT) return s->cfg;
    return (float)(1 + ((double)s->cfg - 1) * (g->model->facts.falls ? (n - (double)token) / n : known));
}

int raster_draws_apart(const mar_raster *g, const mar_slot *s, int token)
{
    return g->model->facts.first_is_apart && token == 0 && s->cfg > 1 && g->plan.params.cfg_schedule == MAR_CFG_LINEAR;
}

void raster_add_tokens(mar_raster *g, causal_runner *r, int slot, int first, int n, int wanted, int rows, const int *to)
{
    const mar_slot *s = &g->slots.slot[slot];
    const int n_tokens = g->model->facts.net.seq_len;
    int *source = g->diffusion->source;
    for (int branch = 0; branch < (s->cfg > 1 ? 2 : 1); branch++) {
        for (int i = 0; i < n; i++) {
            const int apart = branch == 1 && first + i == 0 && raster_draws_apart(g, s, 0) && s->given == 0;
            source[i] = apart ? g->max_images * n_tokens + slot : slot * n_tokens + first + i;
        }
        causal_vectors_add(r, slot, branch, first, n, source, wanted, to, branch * rows);
    }
}

void raster_write_tokens(const mar_raster *g, const float *x, const int *row, int n, const int *place, float *normal)
{
    const mar_raster_model *m = g->model;
    const int channels = m->facts.head.channels;
    kern_queue *k = g->k;
    if (m->facts.norm == RASTER_ON_SPHERE)
        k->core->rms_norm(k, x, row, n, channels, m->ones, SPHERE_EPS, normal, 1);
    else if (m->facts.norm == RASTER_LAYER_NORM)
        k->core->layer_norm(k, x, row, n, channels, m->ones, m->zeros, LAYER_NORM_EPS, normal, 1);
    const int as_drawn = m->facts.norm == RASTER_AS_DRAWN;
    k->core->copy_rows(k, g->slots.tokens, place, as_drawn ? x : normal, as_drawn ? row : NULL, NULL, NULL, n,
                       channels);
}

diff_spec raster_chain_spec(const mar_raster *g)
{
    const mar_params *p = &g->plan.params;
    return (diff_spec){p->sampler, p->num_sampling_steps, DIFF_TOP, .process = g->model->facts.process};
}
