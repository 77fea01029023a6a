/* The kind of a T5's file. */
#include "nets/t5.h"
#include "weights/kind.h"
#include "weights/shape.h"

static mar_status derive_t5(const wt_file *f, const wt_asked *asked, void *facts, mar_err *err)
{
    (void)asked;
    return t5_config_derive(f, facts, err);
}

static void visit_t5(const wt_file *f, const void *facts, wt_tensor_visitor *visit, void *user)
{
    t5_config_tensors(f, facts, visit, user);
}

static void describe_t5(const wt_file *f, const void *facts, const wt_report *to)
{
    static const char *const decoder[] = {"decoder.", "lm_head.", NULL};
    const t5_config *c = facts;
    const nets_encoder_config *l = &c->layers;
    const long ignored = wt_sum_elements(f, decoder);
    const char *name = wt_config_architecture(f);
    if (name) wt_add_fact(to, "config.json: %s", name);
    wt_add_fact(to, "use: --t5 FOLDER, with spiece.model in it and a text-to-image model of width %d for its captions",
                l->width);
    wt_add_fact(to, "transformer: width %d, %d layers, %d heads of %d, gated GELU %d, %d buckets of positions up to %d",
                l->width, l->depth, l->heads, l->head_dim, l->hidden, c->buckets, c->max_distance);
    wt_add_fact(to, "vocabulary: %d tokens", c->vocabulary);
    wt_add_fact(to, "parameters: %ld", c->parameters);
    if (ignored) wt_add_fact(to, "ignored: %ld parameters of the decoder, which nothing needs", ignored);
}

static void put_t5(const void *facts, wt_pairs *m)
{
    const t5_config *c = facts;
    const nets_encoder_config *l = &c->layers;
    wt_put_text(m, "mar.kind", "t5");
    wt_put_number(m, "mar.width", l->width);
    wt_put_number(m, "mar.depth", l->depth);
    wt_put_number(m, "mar.heads", l->heads);
    wt_put_number(m, "mar.hidden", l->hidden);
    wt_put_number(m, "mar.buckets", c->buckets);
    wt_put_number(m, "mar.max_distance", c->max_distance);
    wt_put_real(m, "mar.eps", (double)l->eps);
    wt_put_text(m, "mar.activation", "gated-gelu");
    wt_put_number(m, "mar.parameters", c->parameters);
}

const wt_kind nets_t5_kind = {.kind = MAR_KIND_T5,
                              .name = "T5 encoder",
                              .article = "a",
                              .lacks = "no encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                              .is_folder = 1,
                              .facts_size = sizeof(t5_config),
                              .recognise = t5_config_recognise,
                              .derive = derive_t5,
                              .tensors = visit_t5,
                              .is_int8 = t5_config_is_int8,
                              .ignores = t5_config_ignores,
                              .repeats = t5_config_repeats,
                              .describe = describe_t5,
                              .put = put_t5};
