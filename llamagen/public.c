/* The shape of models of discrete tokens behind mar.h. */
#include "llamagen/public.h"

mar_status mar_discrete_config(const mar *m, const wt_file *f, int heads, gpt_config *out, mar_err *err)
{
    const mar_status status = gpt_config_derive(f, heads, out, err);
    if (status != MAR_OK || !m->seq_len) return status;
    if (!out->seq_len_guessed && m->seq_len != out->shape.seq_len)
        return err_set(err, MAR_EARG, "--seq_len %d: %s of %s say %d", m->seq_len,
                       wt_metadata(f, "mar.seq_len") ? "the metadata" : "the options of the training (args)",
                       wt_path(f), out->shape.seq_len);
    if (!causal_side(m->seq_len))
        return err_set(err, MAR_EARG, "--seq_len %d: expected a square number, such as 256 or 576", m->seq_len);
    gpt_config_set_seq_len(out, m->seq_len);
    out->seq_len_guessed = 0;
    return MAR_OK;
}

mar_status mar_decoder_config(const mar *m, const wt_file *f, int heads, gpt_config *out, mar_err *err)
{
    if (heads)
        return err_set(err, MAR_EARG, "--heads %d: has no effect on %s, whose config.json says how many there are",
                       heads, wt_path(f));
    return gpt_config_derive_decoder(f, m->image_width, m->image_height, out, err);
}

mar_model_config mar_discrete_public_config(const gpt_config *c)
{
    return (mar_model_config){.size = sizeof(mar_model_config),
                              .width = c->shape.width,
                              .decoder_depth = c->shape.depth,
                              .heads = c->shape.heads,
                              .decoder_heads = c->shape.heads,
                              .heads_guessed = c->heads_guessed,
                              .mlp_hidden = c->shape.hidden,
                              .buffer = c->shape.prefix,
                              .seq_len = c->shape.seq_len,
                              .token_dim = 1,
                              .classes = c->shape.classes,
                              .parameters = c->parameters,
                              .family = c->grammar ? c->grammar->name : "llamagen",
                              .title = c->grammar ? c->grammar->title : "LlamaGen",
                              .conditioning = c->grammar             ? MAR_CONDITION_IDS
                                              : c->shape.caption_dim ? MAR_CONDITION_FEATURES
                                                                     : MAR_CONDITION_CLASS,
                              .order = MAR_ORDER_RASTER,
                              .head = MAR_HEAD_SOFTMAX,
                              .sizes = c->grammar && !c->grammar->fixed_size,
                              .vocabulary = c->shape.vocabulary,
                              .grid_width = c->shape.columns,
                              .caption_tokens = c->shape.caption_dim ? c->shape.prefix : 0,
                              .caption_dim = c->shape.caption_dim};
}

mar_model_config mar_eagle_public_config(const eagle_config *c)
{
    return (mar_model_config){.size = sizeof(mar_model_config),
                              .width = c->width,
                              .decoder_depth = 1,
                              .heads = c->heads,
                              .decoder_heads = c->heads,
                              .mlp_hidden = c->hidden,
                              .parameters = c->parameters,
                              .family = "eagle",
                              .title = "EAGLE",
                              .order = MAR_ORDER_RASTER,
                              .head = MAR_HEAD_SOFTMAX};
}
