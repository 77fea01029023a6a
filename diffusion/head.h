/* The per-token diffusion head: weights, z embedding and time embeddings. */
#ifndef DIFFUSION_HEAD_H
#define DIFFUSION_HEAD_H

#include "diffusion/schedule.h"
#include "weights/weights.h"

/* The families of heads, by their official code:
 *   MAR (diffloss.py): tensors diffloss.net.*; MLP blocks with an adaLN layer each. It predicts eps and a variance.
 *   SPHEREAR (diff_head.py): tensors head.net.*; SwiGLU blocks, adaLN layers for several blocks. It predicts a velocity
 *   alone.
 *   NEXTSTEP (modeling_fm_head.py): tensors image_head.net.*; MAR's blocks. It predicts a velocity alone, and reads t
 *   where SphereAR's reads 1000 t. */
typedef enum { DIFF_HEAD_MAR, DIFF_HEAD_SPHEREAR, DIFF_HEAD_NEXTSTEP } diff_head_family;

typedef struct {
    diff_head_family family;
    int width, depth, channels, z_dim; /* channels of a token; z_dim: numbers of the condition z */
    int hidden, ada_layers;            /* as in kern_head_spec; 0 for MAR: width and depth */
    int sphere;                        /* 1: tokens have the norm sqrt(channels) */
} diff_head_shape;

typedef struct {
    kern_device *device; /* owns the weights */
    diff_head_shape shape;
    mar_dtype dtype;            /* kern_head_spec.dtype; F32 if F16 was asked for and does not hold this head */
    int int8_below;             /* steps at lower timesteps are evaluated in int8, where the device has it */
    kern_head *net;             /* input projection, blocks, final layer */
    kern_linear *cond;          /* cond_embed: f32 z [z_dim] -> f32 [width] */
    kern_linear *time1, *time2; /* time_embed.mlp: f32 [256] -> silu -> [width] -> [width] */
} diff_head;

/* Derives the shape of a head of SphereAR's or NextStep's family, for conditions of z_dim numbers. Returns MAR_EMODEL,
 * naming the tensor, if one is missing or its shape does not fit. */
mar_status diff_head_derive(const wt_file *f, diff_head_family family, int z_dim, diff_head_shape *out, mar_err *err);
/* Calls visit(user, name, rank, shape) for every tensor of such a head. */
void diff_head_tensors(const diff_head_shape *s, void (*visit)(void *, const char *, int, const int64_t *), void *user);

/* Loads the family's tensors. Returns MAR_EMODEL if one is missing or has another shape. dtype is AUTO, F32 or F16
 * (kern_head_spec). A head asked for in F16 is loaded in F32 if evaluations of random inputs are not finite, as with
 * a weight beyond FP16's range. int8_below is 0..1000; 0 is a head without int8. Queues other than k may use the head
 * once k has finished. */
mar_status diff_head_load(kern_queue *k, const wt_file *f, const diff_head_shape *shape, mar_dtype dtype,
                          int int8_below, diff_head *out, mar_err *err);
extern const char diff_head_f32_warning[]; /* for a head that was loaded in F32 in place of F16 */
/* Returns what to add to an error about a token that is not finite: "" or a hint at FP16's range. */
const char *diff_head_range_text(const diff_head *h);
/* Tells whether operands and modulation are bf16. */
int diff_head_is_bf16(const diff_head *h);
void diff_head_free(diff_head *h); /* on any thread, when no queue uses it any more */
/* Return the beginning of its tensors' names, "diffloss.net.", and the name of the layer that makes z. */
const char *diff_head_prefix(const diff_head *h);
const char *diff_head_z_name(const diff_head *h);

/* Computes temb[i] = time_embed(time[i]) for n inputs (diff_schedule.time). Allocates *temb, backend float [n][width];
 * the caller frees it with core->free. */
mar_status diff_head_time_embeddings(kern_queue *k, const diff_head *h, const float *time, int n, float **temb,
                                     mar_err *err);

/* Returns the multiply-adds of this many modulation rows and evaluations. */
double diff_head_macs(const diff_head *h, double modulations, double evaluations);
/* Returns the bytes that a step must read: the weights of the sequential products. */
double diff_head_sequential_bytes(const diff_head *h);

#endif
