#include "spherear/config.h"

#include "weights/shape.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { SEQ_LEN_MAX = 65536 }; /* tokens of an image */

static const char class_table[] = "cls_embedding.weight", positions[] = "pos_for_diff.weight";

static mar_status derive_classes(const wt_file *f, gpt_config *c, mar_err *err)
{
    const wt_tensor *t = wt_find(f, class_table);
    char text[128];
    if (!t) return err_set(err, MAR_EMODEL, "%s: tensor %s is missing", wt_path(f), class_table);
    /* its rows are longer than wt_find_shape allows */
    if (t->rank != 2 || t->shape[0] < 2 || t->shape[0] > WT_DIM_MAX || t->shape[1] < c->width ||
        t->shape[1] % c->width != 0 || t->shape[1] > INT_MAX / t->shape[0])
        return err_set(err, MAR_EMODEL,
                       "%s: tensor %s has shape %s, expected [classes + 1, class tokens * %d], the last row the null "
                       "class",
                       wt_path(f), class_table, wt_shape_text(t, text, sizeof text), c->width);
    c->classes = (int)t->shape[0] - 1;
    c->prefix = (int)(t->shape[1] / c->width);
    return MAR_OK;
}

static mar_status derive_transformer(const wt_file *f, gpt_config *c, int *channels, mar_err *err)
{
    const wt_tensor *in, *w2, *place;
    mar_status status = wt_find_shape(f, "proj_in.weight", 2, &in, err);
    if (status == MAR_OK) status = wt_find_shape(f, "layers.0.feed_forward.w2.weight", 2, &w2, err);
    if (status == MAR_OK) status = wt_find_shape(f, positions, 2, &place, err);
    if (status != MAR_OK) return status;
    c->family = GPT_SPHEREAR;
    c->width = (int)in->shape[0];
    *channels = (int)in->shape[1];
    c->hidden = (int)w2->shape[1];
    c->depth = wt_count_parts(f, "layers.", wt_count(f));
    c->seq_len = (int)place->shape[0];
    if (!gpt_config_side(c->seq_len) || c->seq_len > SEQ_LEN_MAX)
        return err_set(err, MAR_EMODEL, "%s: %s has %d positions, expected a square number up to %d", wt_path(f),
                       positions, c->seq_len, SEQ_LEN_MAX);
    return derive_classes(f, c, err);
}

mar_status sphere_config_derive(const wt_file *f, int heads, sphere_config *out, mar_err *err)
{
    int channels;
    *out = (sphere_config){0};
    gpt_config *c = &out->transformer;
    mar_status status = derive_transformer(f, c, &channels, err);
    if (status == MAR_OK) status = gpt_config_derive_heads(f, heads, c, err);
    if (status == MAR_OK) status = diff_head_derive(f, c->width, &out->head, err);
    if (status != MAR_OK) return status;
    if (out->head.channels != channels)
        return err_set(err, MAR_EMODEL,
                       "%s: head.net.input_proj.weight takes tokens of %d channels, expected those of proj_in.weight, "
                       "%d",
                       wt_path(f), out->head.channels, channels);
    sphere_config_tensors(out, wt_add_elements, &out->parameters);
    c->parameters = out->parameters;
    out->has_decoder = wt_find(f, "vae.post_quant_proj.weight") != NULL;
    return MAR_OK;
}

void sphere_config_tensors(const sphere_config *config, gpt_tensor_visitor *visit, void *user)
{
    const gpt_config *c = &config->transformer;
    const int64_t d = c->width, table[2] = {c->classes + 1, c->prefix * d}, in[2] = {d, config->head.channels};
    const int64_t place[2] = {c->seq_len, d};
    const gpt_layer_shape layer = gpt_config_layer(c);
    visit(user, class_table, 2, table);
    visit(user, "proj_in.weight", 2, in);
    visit(user, "proj_in.bias", 1, in);
    visit(user, "emb_norm.weight", 1, in);
    for (int i = 0; i < c->depth; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "layers.%d", i);
        gpt_layer_tensors(prefix, &layer, visit, user);
    }
    visit(user, "norm.weight", 1, in);
    visit(user, positions, 2, place);
    diff_head_tensors(&config->head, visit, user);
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
