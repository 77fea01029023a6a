/* The images' tokens that are vectors: their guidance, their rows in passes, their normalisation. */
#include "mar/raster_tokens.h"

#include <math.h>

#define SPHERE_EPS     1e-16f /* addend of a token's mean square: none but for a token of zeros */
#define LAYER_NORM_EPS 1e-6f

enum { TOKEN_NORM_OFF = 2 }; /* mar_params.token_norm */

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
            const int apart =
                branch == 1 && first + i == 0 && raster_draws_apart(g, s, 0) && !mar_slots_is_given(&g->slots, slot, 0);
            source[i] = apart ? g->max_images * n_tokens + slot : slot * n_tokens + first + i;
        }
        causal_vectors_add(r, slot, branch, first, n, source, wanted, to, branch * rows);
    }
}

static raster_norm tokens_norm(const mar_raster *g)
{
    return g->plan.params.token_norm == TOKEN_NORM_OFF ? RASTER_AS_DRAWN : g->model->facts.norm;
}

/* x = (x - mean) / sqrt(mean square + eps), as the backend's norms; on a sphere the mean is left where it is. */
static void normalise_token(raster_norm norm, int channels, float *x)
{
    const double eps = norm == RASTER_ON_SPHERE ? SPHERE_EPS : LAYER_NORM_EPS;
    double mean = 0, square = 0;
    for (int c = 0; c < channels && norm == RASTER_LAYER_NORM; c++) mean += (double)x[c] / channels;
    for (int c = 0; c < channels; c++) square += ((double)x[c] - mean) * ((double)x[c] - mean) / channels;
    for (int c = 0; c < channels; c++) x[c] = (float)(((double)x[c] - mean) / sqrt(square + eps));
}

void raster_normalise_tokens(const mar_raster *g, float *tokens)
{
    const raster_norm norm = tokens_norm(g);
    const int channels = g->model->facts.head.channels;
    for (int i = 0; i < g->model->facts.net.seq_len && norm != RASTER_AS_DRAWN; i++, tokens += channels)
        normalise_token(norm, channels, tokens);
}

void raster_write_tokens(const mar_raster *g, const float *x, const int *row, int n, const int *place, float *normal)
{
    const mar_raster_model *m = g->model;
    const int channels = m->facts.head.channels;
    const raster_norm norm = tokens_norm(g);
    kern_queue *k = g->k;
    if (norm == RASTER_ON_SPHERE)
        k->core->rms_norm(k, x, row, n, channels, m->ones, SPHERE_EPS, normal, 1);
    else if (norm == RASTER_LAYER_NORM)
        k->core->layer_norm(k, x, row, n, channels, m->ones, m->zeros, LAYER_NORM_EPS, normal, 1);
    const int as_drawn = norm == RASTER_AS_DRAWN;
    k->core->copy_rows(k, g->slots.tokens, place, as_drawn ? x : normal, as_drawn ? row : NULL, NULL, NULL, n,
                       channels);
}

/* Tells whether --num_sampling_steps has one step more than diff_spec.steps. An ODE solver's steps are all
 * alike. */
static int raster_counts_last(const mar_raster_model *m, const mar_params *p)
{
    return m->facts.last_is_counted && p->sampler == MAR_SAMPLER_DDPM;
}

mar_status raster_check_chain(const mar_raster_model *m, const mar_params *p, mar_err *err)
{
    const int annealed = p->diff_annealing != MAR_ANNEAL_OFF;
    const int least = annealed ? p->diff_lower_steps : p->num_sampling_steps;
    if (least > 2 || !raster_counts_last(m, p)) return MAR_OK;
    return err_set(err, MAR_EARG, "--%s %d: expected 3..%d, the last one included",
                   annealed ? "diff_lower_steps" : "num_sampling_steps", least, DIFF_BASE_STEPS);
}

int raster_steps(const mar_raster *g, int token)
{
    const mar_params *p = &g->plan.params;
    const raster_diffusion *d = g->diffusion;
    return (d->sampling_steps ? d->sampling_steps(p, token) : p->num_sampling_steps) - raster_counts_last(g->model, p);
}

void raster_list_specs(mar_raster *g)
{
    const mar_params *p = &g->plan.params;
    raster_diffusion *d = g->diffusion;
    d->specs = 0;
    for (int token = 0; token < p->num_iter; token++) {
        const int steps = raster_steps(g, token);
        int i = 0;
        while (i < d->specs && d->spec[i].steps != steps) i++;
        if (i < d->specs) continue;
        d->spec[d->specs++] = (diff_spec){.sampler = p->sampler,
                                          .steps = steps,
                                          .top = DIFF_TOP,
                                          .process = g->model->facts.process,
                                          .shift = p->time_shift,
                                          .last_is_noisy = g->model->facts.last_is_noisy};
    }
}
