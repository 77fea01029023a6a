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

    int detailed;       /* of the tokens predicted, the last so many in the order get detailed_steps instead */
    int detailed_steps; /* diffusion steps of the detailed tokens */

    /* Read by LazyMAR's passes (mar/ways/lazy.c). */
    int fresh;      /* 1: computes everything, and so fills the caches */
    int previous;   /* tokens the step before predicted */
    int horizon;    /* tokens predicted from this step to the last before the next fresh one */
    int reads_back; /* 1: the decoder prunes, and which rows stay is decided on the host */
    int kept;       /* of buffer + seq_len rows, those that a lazy step computes after the decoder's first blocks */
} mar_step;

/* Fills known, predicted and cfg of steps[num_iter], 1 <= num_iter <= seq_len; the rest is 0 (official sample_tokens).
 */
void mar_steps_plan(int num_iter, int seq_len, float cfg, mar_cfg_schedule schedule, mar_step *steps);
/* The same for tokens from `known` on until `until` are known, in n steps. */
void mar_steps_plan_part(int n, int known, int until, int seq_len, float cfg, mar_cfg_schedule schedule,
                         mar_step *steps);

#endif
