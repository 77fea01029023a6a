/* What each autoregressive step does (official sample_tokens): how many tokens it predicts, with how much guidance and
 * in how many diffusion steps. */
#ifndef MAR_STEPS_H
#define MAR_STEPS_H

#include "base/error.h"
#include "diffusion/schedule.h"

typedef struct {
    int known;          /* tokens known before the step: order[seq_len-known .. seq_len-1] */
    int predicted;      /* tokens it predicts, at least one: order[seq_len-known-predicted .. seq_len-known-1] */
    float cfg;          /* guidance scale inside the head */
    int sampling_steps; /* diffusion steps of the head */

    /* GtR (mar/gtr.h): so many of the tokens, the last in the order, get other diffusion steps. Else 0. */
    int detailed, detailed_steps;

    /* LazyMAR (mar/lazy.h) */
    int fresh;    /* computes everything, and so fills the caches */
    int previous; /* tokens the step before predicted */
    int horizon;  /* tokens predicted from this step to the last before the next fresh one */
    int kept;     /* of buffer + seq_len rows, those that a lazy step computes after the decoder's first blocks */
} mar_step;

/* Fills known, predicted and cfg of steps[num_iter], 1 <= num_iter <= seq_len; the rest is 0. */
void mar_steps_plan(int num_iter, int seq_len, float cfg, mar_cfg_schedule schedule, mar_step *steps);
/* The same for tokens from `known` on until `until` are known, in n steps. */
void mar_steps_plan_part(int n, int known, int until, int seq_len, float cfg, mar_cfg_schedule schedule,
                         mar_step *steps);
/* Fills sampling_steps of steps[num_iter]: those of DiSA's schedule (its diffloss.py), or num_sampling_steps. */
void mar_steps_anneal(const mar_params *params, mar_step *steps);

/* The chains that a session with these parameters runs, for diff_chain_create_for: specs [num_iter + 1], returns how
 * many. */
int mar_steps_specs(const mar_params *params, diff_spec *specs);

#endif
