#include "mar/accel/gtr.h"

#include "mar/masked.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tells whether a position has the first stage's colour. With an odd grid that colour has one token more. */
static int in_first_stage(int grid, int position)
{
    return (position / grid + position % grid) % 2 == 0;
}

static int first_stage_size(int grid)
{
    return (grid * grid + 1) / 2;
}

void mar_gtr_plan(const mar_params *params, int grid, mar_step *steps)
{
    const int n = params->gtr_generation_steps, m = params->gtr_reconstruction_steps;
    const int first = first_stage_size(grid), all = grid * grid;
    mar_steps_plan_part(n, 0, first, all, params->cfg, params->cfg_schedule, steps);
    mar_steps_plan_part(m, first, all, all, params->cfg, params->cfg_schedule, steps + n);
    for (int i = 0; i < n; i++) steps[i].sampling_steps = params->num_sampling_steps;
    for (int i = n; i < n + m; i++) {
        steps[i].sampling_steps = params->gtr_sampling_steps;
        steps[i].detailed = (int)ceilf(params->gtr_detail * (float)steps[i].predicted);
        steps[i].detailed_steps = params->num_sampling_steps;
    }
}

void mar_gtr_order(int grid, int *order, int *scratch)
{
    const int n = grid * grid;
    int second = 0, first = n - first_stage_size(grid);
    memcpy(scratch, order, (size_t)n * sizeof *order);
    for (int i = 0; i < n; i++) order[in_first_stage(grid, scratch[i]) ? first++ : second++] = scratch[i];
}

/* Returns the energy of a token's direct neighbours, all of the first stage. */
static float detail_energy(const float *tokens, int grid, int channels, int position)
{
    const int row = position / grid, column = position % grid;
    const float *neighbour[4];
    int n = 0;
    if (row > 0) neighbour[n++] = tokens + (position - grid) * channels;
    if (row + 1 < grid) neighbour[n++] = tokens + (position + grid) * channels;
    if (column > 0) neighbour[n++] = tokens + (position - 1) * channels;
    if (column + 1 < grid) neighbour[n++] = tokens + (position + 1) * channels;
    float energy = 0;
    for (int c = 0; c < channels; c++) {
        float mean = 0;
        for (int i = 0; i < n; i++) mean += neighbour[i][c] / (float)n;
        for (int i = 0; i < n; i++) energy += (neighbour[i][c] - mean) * (neighbour[i][c] - mean);
    }
    return energy;
}

void mar_gtr_select(const float *tokens, int grid, int channels, int *positions, int n, int detailed, float *energy)
{
    for (int i = 0; i < n; i++) energy[i] = detail_energy(tokens, grid, channels, positions[i]);
    for (int end = n; end > n - detailed; end--) {
        int most = 0;
        for (int i = 1; i < end; i++)
            if (energy[i] > energy[most]) most = i;
        const int position = positions[most];
        const float value = energy[most];
        positions[most] = positions[end - 1], energy[most] = energy[end - 1];
        positions[end - 1] = position, energy[end - 1] = value;
    }
}

/* --- the accelerator ---------------------------------------------------------------------------------------------- */

typedef struct {
    mar_masked *g;
    float *tokens; /* host [seq_len][token_dim] of one image */
    float *energy; /* host [seq_len] */
    int *scratch;  /* host [seq_len] */
} gtr;

static void gtr_resolve(mar_params *p)
{
    if (p->gtr_sampling_steps == 0) p->gtr_sampling_steps = p->num_sampling_steps < 50 ? p->num_sampling_steps : 50;
    if (p->gtr) p->num_iter = p->gtr_generation_steps + p->gtr_reconstruction_steps;
}

static mar_status gtr_check(const mar_model *model, mar_params *p, mar_err *err)
{
    const int first = first_stage_size(mar_grid_columns(&model->config));
    const int second = model->config.seq_len - first;
    if (p->gtr_generation_steps > first)
        return err_set(err, MAR_EARG, "--gtr_generation_steps %d: expected 1..%d", p->gtr_generation_steps, first);
    if (p->gtr_reconstruction_steps > second)
        return err_set(err, MAR_EARG, "--gtr_reconstruction_steps %d: expected 1..%d", p->gtr_reconstruction_steps,
                       second);
    if (p->gtr_sampling_steps < 2 || p->gtr_sampling_steps > p->num_sampling_steps)
        return err_set(
            err, MAR_EARG,
            "--gtr_sampling_steps %d: expected 0, or 2..%d, --num_sampling_steps being those of detailed tokens",
            p->gtr_sampling_steps, p->num_sampling_steps);
    return MAR_OK;
}

static void gtr_plan_steps(const mar_model_config *model, const mar_params *p, mar_step *steps)
{
    mar_gtr_plan(p, mar_grid_columns(model), steps);
}

static mar_status gtr_create(mar_masked *g, void **state, mar_err *err)
{
    const size_t seq = (size_t)g->model->base.config.seq_len;
    gtr *w = *state = calloc(1, sizeof *w);
    if (!w) return err_set(err, MAR_ENOMEM, "out of memory");
    w->g = g;
    w->tokens = calloc(seq, (size_t)g->model->base.config.token_dim * sizeof *w->tokens);
    w->energy = malloc(seq * sizeof *w->energy);
    w->scratch = malloc(seq * sizeof *w->scratch);
    return w->tokens && w->energy && w->scratch ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
}

static void gtr_destroy(void *state)
{
    gtr *w = state;
    free(w->tokens);
    free(w->energy);
    free(w->scratch);
    free(w);
}

static void order_stages(void *state, int *order)
{
    const gtr *w = state;
    mar_gtr_order(w->g->grid, order, w->scratch);
}

static void select_detailed(void *state, const mar_step *step)
{
    const gtr *w = state;
    const mar_masked *g = w->g;
    const mar_model_config *c = &g->model->base.config;
    kern_queue *k = g->k;
    const size_t count = (size_t)c->seq_len * (size_t)c->token_dim;
    for (int i = 0; i < g->images; i++) {
        k->core->download(k, w->tokens, g->slots.tokens + (size_t)i * count, count * sizeof *w->tokens);
        mar_gtr_select(w->tokens, g->grid, c->token_dim, g->order[i] + c->seq_len - step->known - step->predicted,
                       step->predicted, step->detailed, w->energy);
    }
}

static const mar_masked_hooks gtr_hooks = {
    .create = gtr_create,
    .destroy = gtr_destroy,
    .order = order_stages,
    .select = select_detailed,
};

const mar_accel mar_accel_gtr = {
    .name = "gtr",
    .together = 1,
    .changes = MAR_STAGE_AR_STEPS,
    .needs = MAR_STAGE_COUNTS,
    .replaces = "num_iter",
    .in_place = "--gtr_generation_steps and --gtr_reconstruction_steps",
    .methods = (const mar_accel_method[]){{.name = "gtr",
                                           .guarantee = "none",
                                           .source = "GtR (Generation then Reconstruction, 2025)",
                                           .summary = "half the tokens in many steps, the rest in few; diffusion steps "
                                                      "where detail is"},
                                          {0}},
    .resolve = gtr_resolve,
    .check = gtr_check,
    .plan_steps = gtr_plan_steps,
    .masked = &gtr_hooks,
};
