#include "llamagen/config.h"

#include "kernels/ops.h"
#include "weights/shape.h"

#include <stdio.h>
#include <string.h>

/* --- the shape, read from tensors --------------------------------------------------------------------------------- */

enum { SEQ_LEN = 256, SEQ_LEN_MAX = 65536 }; /* 256 pixels; 4096 pixels */

static const char class_table[] = "cls_embedding.embedding_table.weight",
                  no_caption[] = "cls_embedding.uncond_embedding";

int gpt_config_side(int seq_len)
{
    int side = 1;
    while (side * side < seq_len) side++;
    return side * side == seq_len ? side : 0;
}

static mar_status derive_sequence(const wt_file *f, gpt_config *c, mar_err *err)
{
    long n = SEQ_LEN;
    const mar_status status = wt_metadata_number(f, "mar.seq_len", &n, err);
    if (status != MAR_OK) return status;
    if (n > SEQ_LEN_MAX || !gpt_config_side((int)n))
        return err_set(err, MAR_EMODEL, "%s: metadata mar.seq_len is %ld, expected a square number up to %d",
                       wt_path(f), n, SEQ_LEN_MAX);
    c->seq_len = (int)n;
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
        c->prefix = (int)t->shape[0];
        c->caption_dim = (int)t->shape[1];
        return MAR_OK;
    }
    status = wt_find_shape(f, class_table, 2, &t, err);
    if (status != MAR_OK) return status;
    if (t->shape[0] < 2)
        return err_set(err, MAR_EMODEL, "%s: tensor %s has 1 row, expected a class and the unconditional one",
                       wt_path(f), class_table);
    c->prefix = 1;
    c->classes = (int)t->shape[0] - 1;
    return MAR_OK;
}

static mar_status derive_transformer(const wt_file *f, gpt_config *c, mar_err *err)
{
    const wt_tensor *tokens, *w1;
    mar_status status = wt_find_shape(f, "tok_embeddings.weight", 2, &tokens, err);
    if (status == MAR_OK) status = wt_find_shape(f, "layers.0.feed_forward.w1.weight", 2, &w1, err);
    if (status != MAR_OK) return status;
    c->vocabulary = (int)tokens->shape[0];
    c->width = (int)tokens->shape[1];
    c->hidden = (int)w1->shape[0];
    c->depth = wt_count_parts(f, "layers.", wt_count(f));
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

int gpt_heads_divide(long heads, int width)
{
    const long size = heads < 1 || heads > width ? 0 : width / heads;
    return size > 0 && size <= KERN_CACHE_HEAD_MAX && size * heads == width && size % 4 == 0;
}

/* Returns heads of size 64, or of the next larger size that divides the width; 1 if there is none. */
static int guess_heads(int width)
{
    int n = width > 64 ? width / 64 : 1;
    while (n > 1 && !gpt_heads_divide(n, width)) n--;
    return n;
}

mar_status gpt_config_derive_heads(const wt_file *f, int heads, gpt_config *c, mar_err *err)
{
    const char *source = heads ? "--heads" : wt_metadata(f, "mar.heads") ? "in the metadata" : "a guess";
    c->heads_guessed = !heads && !wt_metadata(f, "mar.heads") && !official_heads(c->width);
    long n = heads ? heads : c->heads_guessed ? guess_heads(c->width) : official_heads(c->width);
    if (heads < 0) return err_set(err, MAR_EARG, "--heads %d: expected 0 or a positive number", heads);
    const mar_status status = heads ? MAR_OK : wt_metadata_number(f, "mar.heads", &n, err);
    if (status != MAR_OK) return status;
    if (!gpt_heads_divide(n, c->width))
        return err_set(err, heads ? MAR_EARG : MAR_EMODEL,
                       "%s: %ld attention heads (%s) do not divide the width %d into multiples of 4 up to %d",
                       wt_path(f), n, source, c->width, KERN_CACHE_HEAD_MAX);
    c->heads = (int)n;
    return MAR_OK;
}

mar_status gpt_config_derive(const wt_file *f, int heads, gpt_config *config, mar_err *err)
{
    *config = (gpt_config){0};
    mar_status status = derive_transformer(f, config, err);
    if (status == MAR_OK) status = derive_condition(f, config, err);
    if (status == MAR_OK) status = derive_sequence(f, config, err);
    if (status == MAR_OK) status = gpt_config_derive_heads(f, heads, config, err);
    if (status == MAR_OK) gpt_config_tensors(config, wt_add_elements, &config->parameters);
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
                                         "attention.wo",
                                         "feed_forward.w1",
                                         "feed_forward.w2",
                                         "feed_forward.w3",
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

/* --- the tensors of a shape --------------------------------------------------------------------------------------- */

typedef struct {
    gpt_tensor_visitor *visit;
    void *user;
} visitor;

/* Visits a matrix [out][in], or with `in` 0 a vector [out]. */
static void visit_tensor(const visitor *v, const char *name, int64_t out, int64_t in)
{
    const int64_t shape[2] = {out, in};
    v->visit(v->user, name, in ? 2 : 1, shape);
}

const char *gpt_layer_name(const char *prefix, int form, gpt_part part, int piece, char text[GPT_TENSOR_NAME])
{
    static const char *const plain[GPT_LAYER_TENSORS] = {"attention.wqkv",  "attention.wo",    "feed_forward.w1",
                                                         "feed_forward.w3", "feed_forward.w2", "attention_norm",
                                                         "ffn_norm"};
    static const char *const llama[GPT_LAYER_TENSORS] = {NULL,
                                                         "self_attn.o_proj",
                                                         "mlp.gate_proj",
                                                         "mlp.up_proj",
                                                         "mlp.down_proj",
                                                         "input_layernorm",
                                                         "post_attention_layernorm"};
    static const char *const apart[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    const int has_pieces = form & GPT_LAYER_LLAMA && part == GPT_WQKV;
    if (piece >= (has_pieces ? 3 : 1)) return NULL;
    snprintf(text, GPT_TENSOR_NAME, "%s.%s.weight", prefix,
             has_pieces               ? apart[piece]
             : form & GPT_LAYER_LLAMA ? llama[part]
                                      : plain[part]);
    return text;
}

void gpt_layer_tensors(const char *prefix, int64_t width, int64_t hidden, int form, gpt_tensor_visitor *visit,
                       void *user)
{
    const visitor v = {visit, user};
    const int64_t shapes[GPT_LAYER_TENSORS][2] = {{form & GPT_LAYER_LLAMA ? width : 3 * width, width},
                                                  {width, width},
                                                  {form & GPT_LAYER_JOINED ? 2 * hidden : hidden, width},
                                                  {hidden, width},
                                                  {width, hidden},
                                                  {width, 0},
                                                  {width, 0}};
    for (int part = 0; part < GPT_LAYER_TENSORS; part++) {
        char name[GPT_TENSOR_NAME];
        if (part == GPT_W3 && form & GPT_LAYER_JOINED) continue;
        if (part == GPT_ATTENTION_NORM && form & GPT_LAYER_NO_NORM) continue;
        for (int piece = 0; gpt_layer_name(prefix, form, (gpt_part)part, piece, name); piece++)
            visit_tensor(&v, name, shapes[part][0], shapes[part][1]);
    }
}

void gpt_config_tensors(const gpt_config *c, gpt_tensor_visitor *visit, void *user)
{
    const visitor v = {visit, user};
    if (c->caption_dim) {
        visit_tensor(&v, no_caption, c->prefix, c->caption_dim);
        visit_tensor(&v, "cls_embedding.cap_proj.fc1.weight", c->width, c->caption_dim);
        visit_tensor(&v, "cls_embedding.cap_proj.fc2.weight", c->width, c->width);
    } else {
        visit_tensor(&v, class_table, (int64_t)c->classes + 1, c->width);
    }
    visit_tensor(&v, "tok_embeddings.weight", c->vocabulary, c->width);
    for (int i = 0; i < c->depth; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "layers.%d", i);
        gpt_layer_tensors(prefix, c->width, c->hidden, GPT_LAYER_PLAIN, visit, user);
    }
    visit_tensor(&v, "norm.weight", c->width, 0);
    visit_tensor(&v, "output.weight", c->vocabulary, c->width);
}
