/* What the families share. */
#include "families/families.h"

#include "kernels/causal.h"
#include "weights/shape.h"

#include <stdio.h>

/* Returns n_head of gpt.py's model of this width (LlamaGen); 0 if there is none. */
static int official_heads(int width)
{
    static const struct {
        int width, heads;
    } models[] = {{768, 12}, {1024, 16}, {1280, 20}, {1536, 24}, {2048, 32}, {2560, 40}, {3200, 32}, {4096, 32}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (models[i].width == width) return models[i].heads;
    return 0;
}

/* Returns heads of size 64, or of the next larger size that divides the width; 1 if there is none. */
static int guess_heads(int width)
{
    int n = width > 64 ? width / 64 : 1;
    while (n > 1 && !causal_heads_divide(n, width)) n--;
    return n;
}

mar_status family_derive_heads(const wt_file *f, int heads, family_facts *out, mar_err *err)
{
    const int width = out->shape.width, official = official_heads(width);
    const char *source = heads ? "--heads" : wt_metadata(f, "mar.heads") ? "in the metadata" : "a guess";
    const int guessed = !heads && !wt_metadata(f, "mar.heads") && !official;
    long n = heads ? heads : guessed ? guess_heads(width) : official;
    if (heads < 0) return err_set(err, MAR_EARG, "--heads %d: expected 0 or a positive number", heads);
    const mar_status status = heads ? MAR_OK : wt_metadata_number(f, "mar.heads", &n, err);
    if (status != MAR_OK) return status;
    if (!causal_heads_divide(n, width))
        return err_set(err, heads ? MAR_EARG : MAR_EMODEL,
                       "%s: %ld attention heads (%s) do not divide the width %d into multiples of 4 up to %d",
                       wt_path(f), n, source, width, KERN_CACHE_HEAD_MAX);
    out->shape.heads = out->shape.kv_heads = (int)n;
    out->shape.head_dim = width / (int)n;
    out->config.heads_guessed = guessed;
    return MAR_OK;
}

void family_show_shape(family_facts *facts, const wt_kind *row)
{
    const causal_shape *s = &facts->shape;
    mar_model_config *c = &facts->config;
    c->size = sizeof *c;
    c->width = s->width;
    c->decoder_depth = s->depth;
    c->heads = c->decoder_heads = s->heads;
    c->mlp_hidden = s->hidden;
    c->buffer = s->prefix;
    c->seq_len = s->seq_len;
    c->grid_width = s->columns;
    c->token_dim = s->vocabulary ? 1 : s->token_dim;
    c->vocabulary = s->vocabulary;
    c->classes = s->classes;
    c->caption_tokens = s->caption_dim ? s->prefix : 0;
    c->caption_dim = s->caption_dim;
    c->title = row->titles[0];
    c->order = row->order;
    c->head = row->head;
    c->num_iter = s->seq_len;
    c->cfg = 2.9f;
    c->num_sampling_steps = s->vocabulary ? 0 : 100;
    c->time_shift = row->head == MAR_HEAD_FLOW;
    c->cfg_schedule = s->vocabulary ? MAR_CFG_AUTO : MAR_CFG_LINEAR; /* discrete tokens have no schedule */
}

const char *family_heads_text(const mar_model_config *c, char text[FAMILY_HEADS_TEXT])
{
    if (c->decoder_heads != c->heads)
        snprintf(text, FAMILY_HEADS_TEXT, "%d and %d heads", c->heads, c->decoder_heads);
    else
        snprintf(text, FAMILY_HEADS_TEXT, "%d heads%s", c->heads,
                 c->heads_guessed ? " (a guess: nothing in the file says it)" : "");
    return text;
}

int family_is_int8(const char *tensor)
{
    static const char *const layers[] = {"attention.wqkv",
                                         "attention.wq",
                                         "attention.wk",
                                         "attention.wv",
                                         "attention.wo",
                                         "feed_forward.w1",
                                         "feed_forward.w2",
                                         "feed_forward.w3",
                                         "feed_forward.w13",
                                         "self_attn.q_proj",
                                         "self_attn.k_proj",
                                         "self_attn.v_proj",
                                         "self_attn.o_proj",
                                         "mlp.gate_proj",
                                         "mlp.up_proj",
                                         "mlp.down_proj",
                                         NULL};
    return wt_is_layer(tensor, layers);
}
