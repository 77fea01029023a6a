#include "llamagen/config.h"

#include "kernels/ops.h"
#include "weights/shape.h"

#include <stdio.h>
#include <string.h>

/* --- the shape, read from tensors --------------------------------------------------------------------------------- */

enum { SEQ_LEN = 256, SEQ_LEN_MAX = 65536 };     /* 256 pixels; 4096 pixels */
enum { IMAGE_SIZE = 256, DOWNSAMPLE_SIZE = 16 }; /* train_c2i.py's defaults */

static const char class_table[] = "cls_embedding.embedding_table.weight",
                  no_caption[] = "cls_embedding.uncond_embedding";

/* Reads an option of the training, which stays 0 if it is absent. */
static mar_status read_option(const wt_file *f, const char *key, long *out, mar_err *err)
{
    const mar_status status = wt_metadata_number(f, key, out, NULL);
    if (status == MAR_OK) return MAR_OK;
    return err_set(err, status, "%s: %s is %s, expected a positive integer", wt_path(f), key, wt_metadata(f, key));
}

/* Derives seq_len from the options of a training checkpoint, as train_c2i.py does; a missing one is a guess. *seq_len
 * stays if both are absent. */
static mar_status derive_from_options(const wt_file *f, gpt_config *c, long *seq_len, mar_err *err)
{
    mar_status status = read_option(f, "args.image_size", &c->image_size, err);
    if (status == MAR_OK) status = read_option(f, "args.downsample_size", &c->downsample_size, err);
    c->seq_len_guessed = !c->image_size || !c->downsample_size;
    if (status != MAR_OK || (!c->image_size && !c->downsample_size)) return status;
    const long pixels = c->image_size ? c->image_size : IMAGE_SIZE;
    const long cell = c->downsample_size ? c->downsample_size : DOWNSAMPLE_SIZE, side = pixels / cell;
    if (side < 1 || side > SEQ_LEN_MAX || side * side > SEQ_LEN_MAX)
        return err_set(err, MAR_EMODEL,
                       "%s: args.image_size %ld%s and args.downsample_size %ld%s make %ld tokens a side, expected 1 to "
                       "%d",
                       wt_path(f), pixels, c->image_size ? "" : " (a guess)", cell,
                       c->downsample_size ? "" : " (a guess)", side, causal_side(SEQ_LEN_MAX));
    *seq_len = side * side;
    return MAR_OK;
}

const char *gpt_config_guess_text(const gpt_config *c, char text[GPT_GUESS_TEXT])
{
    if (c->image_size)
        snprintf(text, GPT_GUESS_TEXT,
                 "args.image_size is %ld, args.downsample_size is missing: %d is a guess, with %d; --seq_len gives "
                 "another",
                 c->image_size, c->shape.seq_len, DOWNSAMPLE_SIZE);
    else if (c->downsample_size)
        snprintf(text, GPT_GUESS_TEXT,
                 "args.downsample_size is %ld, args.image_size is missing: %d is a guess, for %d pixels; --seq_len "
                 "gives another",
                 c->downsample_size, c->shape.seq_len, IMAGE_SIZE);
    else
        snprintf(text, GPT_GUESS_TEXT,
                 "nothing in the file says how many tokens an image has: %d is a guess, for %d pixels; with another "
                 "--seq_len: 576 for 384 pixels, 784 for 448, 1024 for 512",
                 c->shape.seq_len, IMAGE_SIZE);
    return text;
}

static mar_status derive_sequence(const wt_file *f, gpt_config *c, mar_err *err)
{
    long n = 0;
    mar_status status = wt_metadata_number(f, "mar.seq_len", &n, err);
    if (status == MAR_OK && !n) status = derive_from_options(f, c, &n, err);
    if (status != MAR_OK) return status;
    if (n > SEQ_LEN_MAX || (n && !causal_side((int)n)))
        return err_set(err, MAR_EMODEL, "%s: metadata mar.seq_len is %ld, expected a square number up to %d",
                       wt_path(f), n, SEQ_LEN_MAX);
    gpt_config_set_seq_len(c, n ? (int)n : SEQ_LEN);
    return MAR_OK;
}

/* Derives the prefix before the image tokens: a class or a caption. */
static mar_status derive_condition(const wt_file *f, gpt_config *c, mar_err *err)
{
    const wt_tensor *t;
    mar_status status;
    if (wt_find(f, no_caption)) {
        status = wt_find_shape(f, no_caption, 2, &t, err);
        if (status != MAR_OK) return status;
        c->shape.prefix = (int)t->shape[0];
        c->shape.caption_dim = (int)t->shape[1];
        return MAR_OK;
    }
    status = wt_find_shape(f, class_table, 2, &t, err);
    if (status != MAR_OK) return status;
    if (t->shape[0] < 2)
        return err_set(err, MAR_EMODEL, "%s: tensor %s has 1 row, expected a class and the unconditional one",
                       wt_path(f), class_table);
    c->shape.prefix = 1;
    c->shape.classes = (int)t->shape[0] - 1;
    return MAR_OK;
}

static mar_status derive_transformer(const wt_file *f, gpt_config *c, mar_err *err)
{
    const wt_tensor *tokens, *w1;
    mar_status status = wt_find_shape(f, "tok_embeddings.weight", 2, &tokens, err);
    if (status == MAR_OK) status = wt_find_shape(f, "layers.0.feed_forward.w1.weight", 2, &w1, err);
    if (status != MAR_OK) return status;
    c->shape.vocabulary = c->shape.rows = (int)tokens->shape[0];
    c->shape.width = (int)tokens->shape[1];
    c->shape.hidden = (int)w1->shape[0];
    c->shape.depth = wt_count_parts(f, "layers.", wt_count(f));
    return MAR_OK;
}

/* Returns n_head of gpt.py's model of this width; 0 if there is none. */
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

mar_status gpt_config_derive_heads(const wt_file *f, int heads, gpt_config *c, mar_err *err)
{
    const char *source = heads ? "--heads" : wt_metadata(f, "mar.heads") ? "in the metadata" : "a guess";
    c->heads_guessed = !heads && !wt_metadata(f, "mar.heads") && !official_heads(c->shape.width);
    long n = heads ? heads : c->heads_guessed ? guess_heads(c->shape.width) : official_heads(c->shape.width);
    if (heads < 0) return err_set(err, MAR_EARG, "--heads %d: expected 0 or a positive number", heads);
    const mar_status status = heads ? MAR_OK : wt_metadata_number(f, "mar.heads", &n, err);
    if (status != MAR_OK) return status;
    if (!causal_heads_divide(n, c->shape.width))
        return err_set(err, heads ? MAR_EARG : MAR_EMODEL,
                       "%s: %ld attention heads (%s) do not divide the width %d into multiples of 4 up to %d",
                       wt_path(f), n, source, c->shape.width, KERN_CACHE_HEAD_MAX);
    c->shape.heads = c->shape.kv_heads = (int)n;
    c->shape.head_dim = c->shape.width / (int)n;
    return MAR_OK;
}

mar_status gpt_config_derive(const wt_file *f, int heads, gpt_config *config, mar_err *err)
{
    *config = (gpt_config){.family = GPT_LLAMAGEN,
                           .shape = {.names = gpt_names_of(GPT_LLAMAGEN),
                                     .joined_qkv = 1,
                                     .rotation = CAUSAL_GRID,
                                     .rope_base = 10000,
                                     .eps = 1e-5f}}; /* gpt.py */
    mar_status status = derive_transformer(f, config, err);
    if (status == MAR_OK) status = derive_condition(f, config, err);
    if (status == MAR_OK) status = derive_sequence(f, config, err);
    if (status == MAR_OK) status = gpt_config_derive_heads(f, heads, config, err);
    if (status == MAR_OK) causal_tensors(&config->shape, wt_add_elements, &config->parameters);
    return status;
}

int gpt_config_recognise(const wt_file *f)
{
    return wt_find(f, "layers.0.attention.wqkv.weight") || wt_find(f, "tok_embeddings.weight");
}

int gpt_config_ignores(const char *name)
{
    return strcmp(name, "freqs_cis") == 0 || strcmp(name, "causal_mask") == 0 || strstr(name, ".kv_cache.") != NULL;
}

int gpt_config_is_int8(const char *tensor)
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

/* --- names -------------------------------------------------------------------------------------------------------- */

const causal_names *gpt_names_of(gpt_family family)
{
    static const causal_names names[] = {
        [GPT_LLAMAGEN] = {.layers = "layers",
                          .joined = {"attention.wqkv", "attention.wo", "feed_forward.w1", "feed_forward.w2",
                                     "attention_norm", "ffn_norm"},
                          .w13 = {"feed_forward.w1", "feed_forward.w3"},
                          .norm = "norm.weight",
                          .embedding = "tok_embeddings.weight",
                          .output = "output.weight",
                          .class_table = class_table,
                          .no_caption = no_caption,
                          .caption = {"cls_embedding.cap_proj.fc1.weight", "cls_embedding.cap_proj.fc2.weight"}},
        [GPT_SPHEREAR] = {.layers = "layers",
                          .joined = {"attention.wqkv", "attention.wo", "feed_forward.w1", "feed_forward.w2",
                                     "attention_norm", "ffn_norm"},
                          .norm = "norm.weight",
                          .class_table = "cls_embedding.weight",
                          .project = {"proj_in.weight"},
                          .input_norm = "emb_norm.weight",
                          .next_position = "pos_for_diff.weight"},
        [GPT_LLAMA] = {.layers = "model.layers",
                       .joined = {NULL, "self_attn.o_proj", NULL, "mlp.down_proj", "input_layernorm",
                                  "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"},
                       .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                       .w13 = {"mlp.gate_proj", "mlp.up_proj"},
                       .norm = "model.norm.weight",
                       .embedding = "model.embed_tokens.weight",
                       .output = "lm_head.weight"},
        [GPT_META] = {.layers = "layers",
                      .joined = {"attention.wqkv", "attention.wo", "feed_forward.w13", "feed_forward.w2",
                                 "attention_norm", "ffn_norm", "attention.q_normalization",
                                 "attention.k_normalization"},
                      .qkv = {"attention.wq", "attention.wk", "attention.wv"},
                      .w13 = {"feed_forward.w1", "feed_forward.w3"},
                      .norm = "norm.weight",
                      .embedding = "tok_embeddings.weight",
                      .output = "output.weight"},
    };
    return &names[family];
}

void gpt_config_set_seq_len(gpt_config *c, int seq_len)
{
    c->shape.seq_len = seq_len;
    c->shape.columns = causal_side(seq_len);
}
