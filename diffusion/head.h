/* The per-token diffusion head (official name diffloss.net): weights, condition and time embeddings. */
#ifndef DIFFUSION_HEAD_H
#define DIFFUSION_HEAD_H

#include "diffusion/schedule.h"
#include "weights/weights.h"

typedef struct {
    kern_device *device; /* which has the weights */
    int width, depth, channels, z_dim;
    kern_head *net;             /* input projection, blocks, final layer */
    kern_linear *cond;          /* cond_embed: f32 z [z_dim] -> f32 [width] */
    kern_linear *time1, *time2; /* time_embed.mlp: f32 [256] -> silu -> [width] -> [width] */
} diff_head;

/* Loads the tensors diffloss.net.*. MAR_EMODEL if one is missing or has another shape. Queues other than k can use the
 * head once k has finished. */
mar_status diff_head_load(kern_queue *k, const wt_file *f, int width, int depth, int channels, int z_dim,
                          diff_head *out, mar_err *err);
void diff_head_free(diff_head *h); /* on any thread, when no queue uses it any more */

/* temb[i] = time_embed(t[i]) for n timesteps. Allocates *temb, backend float [n][width]; the caller frees it with
 * core->free. */
mar_status diff_head_time_embeddings(kern_queue *k, const diff_head *h, const int *t, int n, float **temb,
                                     mar_err *err);

/* Multiply-adds of so many modulation rows, and of so many evaluations with them. */
double diff_head_macs(const diff_head *h, double modulations, double evaluations);
/* Bytes that a step must read: the weights of the sequential products. */
double diff_head_sequential_bytes(const diff_head *h);

#endif
