#include "mar/gtr.h"

#include <math.h>
#include <string.h>

/* The first stage's colour; with an odd grid it has one token more than the other. */
static int in_first_stage(int grid, int position)
{
    return (position / grid + position % grid) % 2 == 0;
}

static int first_stage_size(int grid)
{
    return (grid * grid + 1) / 2;
}

mar_status mar_gtr_check(const mar_params *params, int grid, mar_err *err)
{
    const int first = first_stage_size(grid), second = grid * grid - first;
    if (params->gtr_generation_steps < 1 || params->gtr_generation_steps > first)
        return err_set(err, MAR_EARG, "gtr_generation_steps %d: expected 1..%d", params->gtr_generation_steps, first);
    if (params->gtr_reconstruction_steps < 1 || params->gtr_reconstruction_steps > second)
        return err_set(err, MAR_EARG, "gtr_reconstruction_steps %d: expected 1..%d", params->gtr_reconstruction_steps,
                       second);
    if (!(params->gtr_detail >= 0 && params->gtr_detail <= 1))
        return err_set(err, MAR_EARG, "gtr_detail %g: expected 0..1", (double)params->gtr_detail);
    if (params->gtr_sampling_steps < 2 || params->gtr_sampling_steps > DIFF_BASE_STEPS)
        return err_set(err, MAR_EARG, "gtr_sampling_steps %d: expected 2..%d", params->gtr_sampling_steps,
                       DIFF_BASE_STEPS);
    return MAR_OK;
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

/* Of a token's direct neighbours, all of them of the first stage. */
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
