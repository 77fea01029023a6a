/* What each autoregressive step does (official sample_tokens): how many tokens it predicts, with how much guidance and
 * in how many diffusion steps. */
#ifndef MAR_STEPS_H
#define MAR_STEPS_H

#include "mar.h"

typedef struct {
    int known;          /* tokens known before the step: order[seq_len-known .. seq_len-1] */
    int predicted;      /* tokens it predicts, at least one: order[seq_len-known-predicted .. seq_len-known-1] */
    float cfg;          /* guidance scale inside the head */
    int conditions;     /* rows a token of its passes and its head: 2, or 1 where the scale makes no guidance */
    int sampling_steps; /* diffusion steps of the head */

    int detailed;       /* the last `detailed` of the predicted tokens get detailed_steps */
    int detailed_steps; /* diffusion steps of the detailed tokens */

    int number;     /* of the step in the plan, from 0 */
    int reads_back; /* 1: its passes read results back from the backend, and so cannot be recorded whole */
} mar_step;

/* Fills known, predicted, cfg and conditions of steps[num_iter], 1 <= num_iter <= seq_len; the rest is 0 (official
 * sample_tokens).
 */
void mar_steps_plan(int num_iter, int seq_len, float cfg, mar_cfg_schedule schedule, mar_step *steps);
/* The conditions of a step with this scale: 1 if it is exactly 1, where the guided prediction is the conditional one.
 */
int mar_conditions_of(float cfg);
/* The same for tokens from `known` on until `until` are known, in n steps. */
void mar_steps_plan_part(int n, int known, int until, int seq_len, float cfg, mar_cfg_schedule schedule,
                         mar_step *steps);

#endif
