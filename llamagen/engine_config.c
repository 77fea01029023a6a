/* The shape of models of discrete tokens behind mar.h. */
#include "llamagen/engine.h"

mar_status mar_discrete_config(const mar *m, const wt_file *f, int heads, gpt_config *out, mar_err *err)
{
    const mar_status status = gpt_config_derive(f, heads, out, err);
    if (status != MAR_OK || !m->seq_len) return status;
    if (!out->seq_len_guessed && m->seq_len != out->seq_len)
        return err_set(err, MAR_EARG, "--seq_len %d: %s of %s say %d", m->seq_len,
                       wt_metadata(f, "mar.seq_len") ? "the metadata" : "the options of the training (args)",
                       wt_path(f), out->seq_len);
    if (!gpt_config_side(m->seq_len))
        return err_set(err, MAR_EARG, "--seq_len %d: expected a square number, such as 256 or 576", m->seq_len);
    out->seq_len = m->seq_len;
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
                              .width = c->width,
                              .decoder_depth = c->depth,
                              .heads = c->heads,
                              .decoder_heads = c->heads,
                              .heads_guessed = c->heads_guessed,
                              .mlp_hidden = c->hidden,
                              .buffer = c->prefix,
                              .seq_len = c->seq_len,
                              .token_dim = 1,
                              .classes = c->classes,
                              .parameters = c->parameters,
                              .family = c->grammar ? c->grammar->name : "llamagen",
                              .title = c->grammar ? c->grammar->title : "LlamaGen",
                              .conditioning = c->grammar       ? MAR_CONDITION_IDS
                                              : c->caption_dim ? MAR_CONDITION_FEATURES
                                                               : MAR_CONDITION_CLASS,
                              .order = MAR_ORDER_RASTER,
                              .head = MAR_HEAD_SOFTMAX,
                              .sizes = c->grammar && !c->grammar->fixed_size,
                              .vocabulary = c->vocabulary,
                              .grid_width = gpt_columns(c),
                              .caption_tokens = c->caption_dim ? c->prefix : 0,
                              .caption_dim = c->caption_dim};
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
