/* The per-token diffusion head (official name diffloss.net): weights, z embedding and time embeddings. */
#ifndef DIFFUSION_HEAD_H
#define DIFFUSION_HEAD_H

#include "diffusion/schedule.h"
#include "weights/weights.h"

typedef struct {
    kern_device *device; /* owns the weights */
    int width, depth, channels, z_dim;
    int f32;                    /* kern_head_spec.f32 */
    int int8_below;             /* steps at lower timesteps are evaluated in int8, where the device has it */
    kern_head *net;             /* input projection, blocks, final layer */
    kern_linear *cond;          /* cond_embed: f32 z [z_dim] -> f32 [width] */
    kern_linear *time1, *time2; /* time_embed.mlp: f32 [256] -> silu -> [width] -> [width] */
} diff_head;

/* Loads the tensors diffloss.net.*. Returns MAR_EMODEL if one is missing or has another shape. With f32 the whole head
 * computes in f32, whatever the device's operands are. int8_below is 0..1000; 0 is a head without int8. Queues other
 * than k may use the head once k has finished. */
mar_status diff_head_load(kern_queue *k, const wt_file *f, int width, int depth, int channels, int z_dim, int f32,
                          int int8_below, diff_head *out, mar_err *err);
/* Tells whether products and modulation are f32, by the head's own choice or the device's. */
int diff_head_is_f32(const diff_head *h);
void diff_head_free(diff_head *h); /* on any thread, when no queue uses it any more */

/* Computes temb[i] = time_embed(t[i]) for n timesteps. Allocates *temb, backend float [n][width]; the caller frees it
 * with core->free. */
mar_status diff_head_time_embeddings(kern_queue *k, const diff_head *h, const int *t, int n, float **temb,
                                     mar_err *err);

/* Returns the multiply-adds of this many modulation rows and evaluations. */
double diff_head_macs(const diff_head *h, double modulations, double evaluations);
/* Returns the bytes that a step must read: the weights of the sequential products. */
double diff_head_sequential_bytes(const diff_head *h);

#endif
