/* SphereAR (Ke and Xue, "Hyperspherical Latents Improve Continuous-Token Autoregressive Generation", 2509.24335; its
 * model.py): a causal transformer of images of classes, with a flow head on a sphere and a ViT decoder. */
#include "families/families.h"

#include "vae/kinds.h"
#include "vae/vae.h"

#include "weights/shape.h"

#include <limits.h>
#include <string.h>

enum { SEQ_LEN_MAX = 65536 }; /* tokens of an image */

static const char positions[] = "pos_for_diff.weight";

const causal_names sphere_names = {
    .layers = "layers",
    .joined = {"attention.wqkv", "attention.wo", "feed_forward.w1", "feed_forward.w2", "attention_norm", "ffn_norm"},
    .norm = "norm.weight",
    .class_table = "cls_embedding.weight",
    .project = {"proj_in.weight"},
    .input_norm = "emb_norm.weight",
    .next_position = "pos_for_diff.weight"};

static mar_status sphere_derive_classes(const wt_file *f, family_facts *out, mar_err *err)
{
    const char *class_table = sphere_names.class_table;
    const wt_tensor *t = wt_find(f, class_table);
    char text[128];
    if (!t) return err_set(err, MAR_EMODEL, "%s: tensor %s is missing", wt_path(f), class_table);
    /* its rows are longer than wt_find_shape allows */
    if (t->rank != 2 || t->shape[0] < 2 || t->shape[0] > WT_DIM_MAX || t->shape[1] < out->shape.width ||
        t->shape[1] % out->shape.width != 0 || t->shape[1] > INT_MAX / t->shape[0])
        return err_set(err, MAR_EMODEL,
                       "%s: tensor %s has shape %s, expected [classes + 1, class tokens * %d], the last row the null "
                       "class",
                       wt_path(f), class_table, wt_shape_text(t, text, sizeof text), out->shape.width);
    out->shape.classes = (int)t->shape[0] - 1;
    out->shape.prefix = (int)(t->shape[1] / out->shape.width);
    return MAR_OK;
}

static mar_status sphere_derive_transformer(const wt_file *f, family_facts *out, mar_err *err)
{
    const wt_tensor *in, *w2, *place;
    mar_status status = wt_find_shape(f, "proj_in.weight", 2, &in, err);
    if (status == MAR_OK) status = wt_find_shape(f, "layers.0.feed_forward.w2.weight", 2, &w2, err);
    if (status == MAR_OK) status = wt_find_shape(f, positions, 2, &place, err);
    if (status != MAR_OK) return status;
    out->shape = (causal_shape){.names = &sphere_names,
                                .joined_qkv = 1,
                                .joined_w13 = 1,
                                .rotation = CAUSAL_GRID_COLUMNS,
                                .rope_base = 10000,
                                .eps = 1e-6f}; /* layers.py */
    out->shape.width = (int)in->shape[0];
    out->shape.token_dim = (int)in->shape[1];
    out->shape.hidden = (int)w2->shape[1];
    out->shape.depth = wt_count_parts(f, "layers.", wt_count(f));
    out->shape.seq_len = (int)place->shape[0];
    out->shape.columns = causal_side(out->shape.seq_len);
    if (!out->shape.columns || out->shape.seq_len > SEQ_LEN_MAX)
        return err_set(err, MAR_EMODEL, "%s: %s has %d positions, expected a square number up to %d", wt_path(f),
                       positions, out->shape.seq_len, SEQ_LEN_MAX);
    return sphere_derive_classes(f, out, err);
}

static void sphere_visit_tensors(const wt_file *f, const void *facts, wt_tensor_visitor *visit, void *user)
{
    const family_facts *of = facts;
    causal_tensors(&of->shape, visit, user);
    diff_head_tensors(&of->head, visit, user);
    if (of->vae.depth) vae_config_tensors(f, &of->vae, visit, user);
}

static mar_status sphere_derive(const wt_file *f, const wt_asked *asked, void *facts, mar_err *err)
{
    family_facts *out = facts;
    mar_model_config *c = &out->config;
    mar_status status = sphere_derive_transformer(f, out, err);
    if (status == MAR_OK) status = family_derive_heads(f, asked->heads, out, err);
    if (status == MAR_OK) status = diff_head_derive(f, DIFF_HEAD_SPHEREAR, out->shape.width, &out->head, err);
    if (status != MAR_OK) return status;
    if (out->head.channels != out->shape.token_dim)
        return err_set(err, MAR_EMODEL,
                       "%s: head.net.input_proj.weight takes tokens of %d channels, expected those of proj_in.weight, "
                       "%d",
                       wt_path(f), out->head.channels, out->shape.token_dim);
    family_show_shape(out, &family_spherear);
    c->family = "spherear";
    c->conditioning = MAR_CONDITION_CLASS;
    out->process = DIFF_FLOW;
    out->norm = RASTER_ON_SPHERE;
    out->first_is_apart = 1;
    c->cfg = 4.6f; /* sample_ddp.py */
    c->head_width = out->head.width;
    c->head_depth = out->head.depth;
    c->patch_size = 1;
    c->image_decoder = wt_find(f, "vae.post_quant_proj.weight") != NULL;
    sphere_visit_tensors(f, out, wt_add_elements, &c->parameters); /* of the model alone: out->vae is not known yet */
    return vae_config_is_vit(f) ? vae_config_derive(f, &out->vae, err) : MAR_OK;
}

static int sphere_recognise(const wt_file *f)
{
    return wt_find(f, positions) || wt_find(f, "head.net.input_proj.weight");
}

/* Tells whether an extra tensor is harmless: a table that can be computed, or of an image encoder that lacks others. */
static int sphere_ignores(const char *name)
{
    return strcmp(name, "freqs_cis") == 0 || strncmp(name, "vae.encoder.", 12) == 0 ||
           strncmp(name, "vae.quant_proj.", 15) == 0;
}

/* Of the model's transformer, not of the image decoder's. */
static int sphere_is_int8(const char *tensor)
{
    return strncmp(tensor, "layers.", 7) == 0 && family_is_int8(tensor);
}

/* --- facts and metadata ------------------------------------------------------------------------------------------- */

static void sphere_describe(const wt_file *f, const void *facts, const wt_report *to)
{
    static const char *const head[] = {"head.", NULL}, *const decoder[] = {"vae.decoder.", "vae.post_quant_proj.",
                                                                           NULL};
    const family_facts *of = facts;
    const causal_shape *c = &of->shape;
    const diff_head_shape *h = &of->head;
    char heads[FAMILY_HEADS_TEXT];
    wt_add_fact(to, "transformer: width %d, %d blocks, %s, SwiGLU %d", c->width, c->depth,
                family_heads_text(&of->config, heads), c->hidden);
    wt_add_fact(to, "flow head: width %d, %d blocks, SwiGLU %d, %d adaLN layers", h->width, h->depth, h->hidden,
                h->ada_layers);
    wt_add_fact(to, "tokens: %d of %d channels, %d classes in %d class tokens", c->seq_len, h->channels, c->classes,
                c->prefix);
    if (of->vae.depth) vae_add_vit(to, &of->vae);
    wt_add_fact(to, "parameters: %ld (head %ld); image decoder: %ld", of->config.parameters, wt_sum_elements(f, head),
                wt_sum_elements(f, decoder));
}

static void sphere_put(const void *facts, wt_pairs *m)
{
    const family_facts *of = facts;
    const causal_shape *c = &of->shape;
    const diff_head_shape *h = &of->head;
    wt_put_text(m, "mar.kind", "spherear");
    wt_put_number(m, "mar.width", c->width);
    wt_put_number(m, "mar.depth", c->depth);
    if (!of->config.heads_guessed) wt_put_number(m, "mar.heads", c->heads);
    wt_put_number(m, "mar.hidden", c->hidden);
    wt_put_number(m, "mar.seq_len", c->seq_len);
    wt_put_number(m, "mar.token_dim", h->channels);
    wt_put_number(m, "mar.classes", c->classes);
    wt_put_number(m, "mar.head_width", h->width);
    wt_put_number(m, "mar.head_depth", h->depth);
    if (of->vae.depth) wt_put_number(m, "mar.vae_heads", of->vae.heads);
    wt_put_number(m, "mar.parameters", of->config.parameters);
}

/* --- the row ------------------------------------------------------------------------------------------------------ */

const wt_kind family_spherear = {
    .kind = MAR_KIND_SPHEREAR,
    .name = "SphereAR model",
    .article = "a",
    .lacks = "no pos_for_diff.weight",
    .titles = {"SphereAR"},
    .order = MAR_ORDER_RASTER,
    .head = MAR_HEAD_FLOW,
    .has_heads = 1,
    .takes_ema = 1,
    .facts_size = sizeof(family_facts),
    .recognise = sphere_recognise,
    .derive = sphere_derive,
    .tensors = sphere_visit_tensors,
    .is_int8 = sphere_is_int8,
    .ignores = sphere_ignores,
    .describe = sphere_describe,
    .put = sphere_put,
};
