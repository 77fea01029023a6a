/* What each autoregressive step does (official sample_tokens): how many tokens it predicts, with how much guidance and
 * in how many diffusion steps. */
#ifndef MAR_STEPS_H
#define MAR_STEPS_H

#include "mar.h"

typedef struct {
    int known;          /* tokens known before the step: order[seq_len-known .. seq_len-1] */
    int predicted;      /* tokens it predicts, at least one: order[seq_len-known-predicted .. seq_len-known-1] */
    float cfg;          /* guidance scale inside the head */
    int sampling_steps; /* diffusion steps of the head */

    int detailed;       /* the last `detailed` of the predicted tokens get detailed_steps */
    int detailed_steps; /* diffusion steps of the detailed tokens */

    int number;     /* of the step in the plan, from 0 */
    int reads_back; /* 1: its passes read results back from the backend, and so cannot be recorded whole */
} mar_step;

/* Fills known, predicted and cfg of steps[num_iter], 1 <= num_iter <= seq_len; the rest is 0 (official sample_tokens).
 */
void mar_steps_plan(int num_iter, int seq_len, float cfg, mar_cfg_schedule schedule, mar_step *steps);
/* The same for tokens from `known` on until `until` are known, in n steps. */
void mar_steps_plan_part(int n, int known, int until, int seq_len, float cfg, mar_cfg_schedule schedule,
                         mar_step *steps);

#endif
