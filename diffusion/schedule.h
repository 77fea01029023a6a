/* The diffusion process of the head: cosine betas over 1000 base steps, respaced (Nichol & Dhariwal 2021, as the
 * official MAR code configures it). All arithmetic in double, stored as f32 the way the official code uses it. */
#ifndef DIFFUSION_SCHEDULE_H
#define DIFFUSION_SCHEDULE_H

#include "kernels/ops.h"

enum { DIFF_BASE_STEPS = 1000 };

typedef struct {
    int steps;             /* 2..1000; the chain runs index steps-1 down to 0 */
    int *t;                /* [steps] base timestep of each index: what the head sees, and the noise address */
    kern_chain_coef *coef; /* [steps]; noise = temperature, 0 at index 0 */
} diff_schedule;

/* MAR_EARG if steps or temperature is out of range. */
mar_status diff_schedule_create(int steps, float temperature, diff_schedule *out, mar_err *err);
void diff_schedule_free(diff_schedule *s);

#endif
