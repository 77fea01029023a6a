/* How many tokens each autoregressive step predicts, and with how much guidance (official sample_tokens). */
#ifndef MAR_STEPS_H
#define MAR_STEPS_H

#include "base/error.h"

typedef struct {
    int known;          /* tokens known before the step: order[seq_len-known .. seq_len-1] */
    int predicted;      /* tokens it predicts, at least one: order[seq_len-known-predicted .. seq_len-known-1] */
    float cfg;          /* guidance scale inside the head */
    int sampling_steps; /* diffusion steps of the head (DiSA anneals them) */
} mar_step;

/* Fills steps[num_iter]. 1 <= num_iter <= seq_len. */
void mar_steps_plan(int num_iter, int seq_len, float cfg, mar_cfg_schedule schedule, mar_step *steps);

#endif
