/* The plan of the autoregressive steps (official sample_tokens): tokens, guidance and diffusion steps of each. */
#ifndef MAR_STEPS_H
#define MAR_STEPS_H

#include "mar.h"

typedef struct {
    int known;          /* tokens known before the step: order[seq_len-known .. seq_len-1] */
    int predicted;      /* tokens it predicts, at least one: order[seq_len-known-predicted .. seq_len-known-1] */
    float cfg;          /* guidance scale inside the head, with the session's guidance */
    float share;        /* share of the guidance: 1 is all of it, 0 none */
    int cfg_branches;   /* rows a token of its passes and its head: 2, or 1 if the scale means no guidance */
    int sampling_steps; /* diffusion steps of the head */

    int detailed;       /* the last `detailed` predicted tokens get detailed_steps */
    int detailed_steps; /* diffusion steps of the detailed tokens */

    int number;     /* index of the step in the plan */
    int reads_back; /* 1: its passes read results back from the backend, so they cannot be recorded whole */
} mar_step;

/* Fills known, predicted, cfg and cfg_branches of steps[num_iter], 1 <= num_iter <= seq_len (official sample_tokens).
 * All else is 0. */
void mar_steps_plan(int num_iter, int seq_len, float cfg, mar_cfg_schedule schedule, mar_step *steps);
/* Returns the step's guidance scale for an image whose guidance is cfg. */
float mar_step_scale(const mar_step *step, float cfg);
/* Returns the branches of a step with this scale: 1 if it is exactly 1, where the guided prediction is the conditional
 * one. */
int mar_cfg_branches(float cfg);
/* Plans n steps from `known` tokens to `until` known tokens. */
void mar_steps_plan_part(int n, int known, int until, int seq_len, float cfg, mar_cfg_schedule schedule,
                         mar_step *steps);

#endif
