#include "spherear/config.h"

#include "weights/shape.h"

#include <limits.h>
#include <string.h>

enum { SEQ_LEN_MAX = 65536 }; /* tokens of an image */

static const char positions[] = "pos_for_diff.weight";

static mar_status derive_classes(const wt_file *f, gpt_config *c, mar_err *err)
{
    const char *class_table = c->shape.names->class_table;
    const wt_tensor *t = wt_find(f, class_table);
    char text[128];
    if (!t) return err_set(err, MAR_EMODEL, "%s: tensor %s is missing", wt_path(f), class_table);
    /* its rows are longer than wt_find_shape allows */
    if (t->rank != 2 || t->shape[0] < 2 || t->shape[0] > WT_DIM_MAX || t->shape[1] < c->shape.width ||
        t->shape[1] % c->shape.width != 0 || t->shape[1] > INT_MAX / t->shape[0])
        return err_set(err, MAR_EMODEL,
                       "%s: tensor %s has shape %s, expected [classes + 1, class tokens * %d], the last row the null "
                       "class",
                       wt_path(f), class_table, wt_shape_text(t, text, sizeof text), c->shape.width);
    c->shape.classes = (int)t->shape[0] - 1;
    c->shape.prefix = (int)(t->shape[1] / c->shape.width);
    return MAR_OK;
}

static mar_status derive_transformer(const wt_file *f, gpt_config *c, mar_err *err)
{
    const wt_tensor *in, *w2, *place;
    mar_status status = wt_find_shape(f, "proj_in.weight", 2, &in, err);
    if (status == MAR_OK) status = wt_find_shape(f, "layers.0.feed_forward.w2.weight", 2, &w2, err);
    if (status == MAR_OK) status = wt_find_shape(f, positions, 2, &place, err);
    if (status != MAR_OK) return status;
    *c = (gpt_config){.family = GPT_SPHEREAR,
                      .shape = {.names = gpt_names_of(GPT_SPHEREAR),
                                .joined_qkv = 1,
                                .joined_w13 = 1,
                                .rotation = CAUSAL_GRID_COLUMNS,
                                .rope_base = 10000,
                                .eps = 1e-6f}}; /* layers.py */
    c->shape.width = (int)in->shape[0];
    c->shape.token_dim = (int)in->shape[1];
    c->shape.hidden = (int)w2->shape[1];
    c->shape.depth = wt_count_parts(f, "layers.", wt_count(f));
    gpt_config_set_seq_len(c, (int)place->shape[0]);
    if (!c->shape.columns || c->shape.seq_len > SEQ_LEN_MAX)
        return err_set(err, MAR_EMODEL, "%s: %s has %d positions, expected a square number up to %d", wt_path(f),
                       positions, c->shape.seq_len, SEQ_LEN_MAX);
    return derive_classes(f, c, err);
}

mar_status sphere_config_derive(const wt_file *f, int heads, sphere_config *out, mar_err *err)
{
    *out = (sphere_config){0};
    gpt_config *c = &out->transformer;
    mar_status status = derive_transformer(f, c, err);
    if (status == MAR_OK) status = gpt_config_derive_heads(f, heads, c, err);
    if (status == MAR_OK) status = diff_head_derive(f, c->shape.width, &out->head, err);
    if (status != MAR_OK) return status;
    if (out->head.channels != c->shape.token_dim)
        return err_set(err, MAR_EMODEL,
                       "%s: head.net.input_proj.weight takes tokens of %d channels, expected those of proj_in.weight, "
                       "%d",
                       wt_path(f), out->head.channels, c->shape.token_dim);
    sphere_config_tensors(out, wt_add_elements, &out->parameters);
    c->parameters = out->parameters;
    out->has_decoder = wt_find(f, "vae.post_quant_proj.weight") != NULL;
    return MAR_OK;
}

void sphere_config_tensors(const sphere_config *c, causal_tensor_visitor *visit, void *user)
{
    causal_tensors(&c->transformer.shape, visit, user);
    diff_head_tensors(&c->head, visit, user);
}

int sphere_config_recognise(const wt_file *f)
{
    return wt_find(f, positions) || wt_find(f, "head.net.input_proj.weight");
}

int sphere_config_ignores(const char *name)
{
    return strcmp(name, "freqs_cis") == 0 || strncmp(name, "vae.encoder.", 12) == 0 ||
           strncmp(name, "vae.quant_proj.", 15) == 0;
}

int sphere_config_is_int8(const char *tensor)
{
    return strncmp(tensor, "layers.", 7) == 0 && gpt_config_is_int8(tensor);
}

mar_model_config sphere_public_config(const sphere_config *config)
{
    const gpt_config *c = &config->transformer;
    return (mar_model_config){.size = sizeof(mar_model_config),
                              .width = c->shape.width,
                              .decoder_depth = c->shape.depth,
                              .heads = c->shape.heads,
                              .decoder_heads = c->shape.heads,
                              .heads_guessed = c->heads_guessed,
                              .mlp_hidden = c->shape.hidden,
                              .buffer = c->shape.prefix,
                              .seq_len = c->shape.seq_len,
                              .grid_width = c->shape.columns,
                              .token_dim = config->head.channels,
                              .classes = c->shape.classes,
                              .head_width = config->head.width,
                              .head_depth = config->head.depth,
                              .parameters = config->parameters,
                              .patch_size = 1,
                              .family = "spherear",
                              .title = "SphereAR",
                              .conditioning = MAR_CONDITION_CLASS,
                              .order = MAR_ORDER_RASTER,
                              .head = MAR_HEAD_FLOW,
                              .image_decoder = config->has_decoder};
}
