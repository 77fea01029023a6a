/* The shape of a SphereAR model (Ke and Xue, "Hyperspherical Latents Improve Continuous-Token Autoregressive
 * Generation", 2509.24335; its model.py), and its tensors' names. */
#ifndef SPHEREAR_CONFIG_H
#define SPHEREAR_CONFIG_H

#include "diffusion/head.h"
#include "llamagen/config.h"
#include "mar.h"

typedef struct {
    gpt_config transformer; /* prefix: class tokens, 16 in the official models; no vocabulary */
    diff_head_shape head;   /* channels of a token and of its condition, too */
    int has_decoder;        /* 1: the file has the image decoder, vae.decoder.* */
    long parameters;        /* without the image decoder */
} sphere_config;

/* Derives the shape from the tensors. `heads` is as in gpt_config_derive; official models have heads of 64 numbers.
 * Returns MAR_EMODEL, naming the tensor, if the file is not a SphereAR model. Other wrong tensors are found when they
 * are loaded. */
mar_status sphere_config_derive(const wt_file *f, int heads, sphere_config *out, mar_err *err);
/* Calls `visit` for every tensor of the model but the image decoder's, in the official order. */
void sphere_config_tensors(const sphere_config *c, causal_tensor_visitor *visit, void *user);
/* Tells whether the file looks like SphereAR: it has pos_for_diff.weight or head.net.input_proj.weight. */
int sphere_config_recognise(const wt_file *f);
/* Tells whether an extra tensor is harmless: the image encoder's, or a table that can be computed (freqs_cis). */
int sphere_config_ignores(const char *name);
/* Tells whether the tensor is a matrix that dtype int8 multiplies in int8, and an int8 file stores as I8: one of the
 * model's transformer, not of the image decoder's. */
int sphere_config_is_int8(const char *tensor);
/* Returns the shape as the public header has it. */
mar_model_config sphere_public_config(const sphere_config *c);

#endif
