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

int gpt_config_side(int seq_len)
{
    int side = 1;
    while (side * side < seq_len) side++;
    return side * side == seq_len ? side : 0;
}

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
                       c->downsample_size ? "" : " (a guess)", side, gpt_config_side(SEQ_LEN_MAX));
    *seq_len = side * side;
    return MAR_OK;
}

const char *gpt_config_guess_text(const gpt_config *c, char text[GPT_GUESS_TEXT])
{
    if (c->image_size)
        snprintf(text, GPT_GUESS_TEXT,
                 "args.image_size is %ld, args.downsample_size is missing: %d is a guess, with %d; --seq_len gives "
                 "another",
                 c->image_size, c->seq_len, DOWNSAMPLE_SIZE);
    else if (c->downsample_size)
        snprintf(text, GPT_GUESS_TEXT,
                 "args.downsample_size is %ld, args.image_size is missing: %d is a guess, for %d pixels; --seq_len "
                 "gives another",
                 c->downsample_size, c->seq_len, IMAGE_SIZE);
    else
        snprintf(text, GPT_GUESS_TEXT,
                 "nothing in the file says how many tokens an image has: %d is a guess, for %d pixels; with another "
                 "--seq_len: 576 for 384 pixels, 784 for 448, 1024 for 512",
                 c->seq_len, IMAGE_SIZE);
    return text;
}

static mar_status derive_sequence(const wt_file *f, gpt_config *c, mar_err *err)
{
    long n = 0;
    mar_status status = wt_metadata_number(f, "mar.seq_len", &n, err);
    if (status == MAR_OK && !n) status = derive_from_options(f, c, &n, err);
    if (status != MAR_OK) return status;
    if (n > SEQ_LEN_MAX || (n && !gpt_config_side((int)n)))
        return err_set(err, MAR_EMODEL, "%s: metadata mar.seq_len is %ld, expected a square number up to %d",
                       wt_path(f), n, SEQ_LEN_MAX);
    c->seq_len = n ? (int)n : SEQ_LEN;
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

/* Names of a layer's tensors by family; those of joined pieces, and those of the pieces. */
static const struct {
    const char *joined[GPT_LAYER_TENSORS], *qkv[3], *w13[2];
} layer_names[] = {
    [GPT_LLAMAGEN] = {{"attention.wqkv", "attention.wo", "feed_forward.w1", "feed_forward.w2", "attention_norm",
                       "ffn_norm", NULL, NULL},
                      {NULL},
                      {"feed_forward.w1", "feed_forward.w3"}},
    [GPT_SPHEREAR] = {{"attention.wqkv", "attention.wo", "feed_forward.w1", "feed_forward.w2", "attention_norm",
                       "ffn_norm", NULL, NULL},
                      {NULL},
                      {NULL}},
    [GPT_LLAMA] = {{NULL, "self_attn.o_proj", NULL, "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
                    "self_attn.q_norm", "self_attn.k_norm"},
                   {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                   {"mlp.gate_proj", "mlp.up_proj"}},
    [GPT_META] = {{"attention.wqkv", "attention.wo", "feed_forward.w13", "feed_forward.w2", "attention_norm",
                   "ffn_norm", "attention.q_normalization", "attention.k_normalization"},
                  {"attention.wq", "attention.wk", "attention.wv"},
                  {"feed_forward.w1", "feed_forward.w3"}},
};

const gpt_names *gpt_config_names(gpt_family family)
{
    static const gpt_names plain = {"tok_embeddings.weight", "layers", "norm.weight", "output.weight"},
                           llama = {"model.embed_tokens.weight", "model.layers", "model.norm.weight", "lm_head.weight"};
    return family == GPT_LLAMA ? &llama : &plain;
}

gpt_layer_shape gpt_config_layer(const gpt_config *c)
{
    const int plain = c->family == GPT_LLAMAGEN || c->family == GPT_SPHEREAR;
    return (gpt_layer_shape){.family = c->family,
                             .width = c->width,
                             .hidden = c->hidden,
                             .heads = c->heads,
                             .kv_heads = gpt_kv_heads(c),
                             .joined_qkv = plain || c->joined_qkv,
                             .joined_w13 = c->family == GPT_SPHEREAR || c->joined_w13,
                             .first_norm = 1,
                             .bias = c->bias,
                             .qk_norm = c->qk_norm,
                             .norm_shape = c->norm_shape,
                             .halves = c->family == GPT_LLAMA};
}

/* Returns the rows of a piece of a layer's tensor; of the joined one with `piece` -1. */
static int rows_of(const gpt_layer_shape *l, gpt_part part, int piece)
{
    const int group = l->heads ? l->width / l->heads * l->kv_heads : l->width; /* without heads, k is as large as q */
    switch (part) {
    case GPT_WQKV:
        return piece < 0 ? l->width + 2 * group : piece == 0 ? l->width : group;
    case GPT_W13:
        return piece < 0 ? 2 * l->hidden : l->hidden;
    case GPT_Q_NORM:
        return l->norm_shape == GPT_ONE_ROW ? 1 : l->heads;
    case GPT_K_NORM:
        return l->norm_shape == GPT_ONE_ROW ? 1 : l->kv_heads;
    default:
        return l->width;
    }
}

const char *gpt_layer_name(const char *prefix, const gpt_layer_shape *l, gpt_part part, int piece,
                           char text[GPT_TENSOR_NAME], int *rows)
{
    const int apart = (part == GPT_WQKV && !l->joined_qkv) || (part == GPT_W13 && !l->joined_w13);
    const int most = !apart ? 1 : part == GPT_WQKV ? 3 : 2;
    if (piece >= most || (part == GPT_ATTENTION_NORM && !l->first_norm)) return NULL;
    if ((part == GPT_Q_NORM || part == GPT_K_NORM) && l->qk_norm == GPT_NO_NORM) return NULL;
    const char *name = !apart             ? layer_names[l->family].joined[part]
                       : part == GPT_WQKV ? layer_names[l->family].qkv[piece]
                                          : layer_names[l->family].w13[piece];
    *rows = rows_of(l, part, apart ? piece : -1);
    snprintf(text, GPT_TENSOR_NAME, "%s.%s.weight", prefix, name);
    return text;
}

const char *gpt_bias_name(const char *weight, char text[GPT_TENSOR_NAME])
{
    snprintf(text, GPT_TENSOR_NAME, "%.*sbias", (int)(strlen(weight) - strlen("weight")), weight);
    return text;
}

/* Returns the columns of a layer's tensor; 0 of a vector. */
static int columns_of(const gpt_layer_shape *l, gpt_part part)
{
    if (part == GPT_ATTENTION_NORM || part == GPT_FFN_NORM) return 0;
    if (part == GPT_Q_NORM || part == GPT_K_NORM) return l->heads ? l->width / l->heads : 0;
    return part == GPT_W2 ? l->hidden : l->width;
}

void gpt_layer_tensors(const char *prefix, const gpt_layer_shape *l, gpt_tensor_visitor *visit, void *user)
{
    const visitor v = {visit, user};
    for (int part = 0; part < GPT_LAYER_TENSORS; part++) {
        char name[GPT_TENSOR_NAME], bias[GPT_TENSOR_NAME];
        const int columns = columns_of(l, (gpt_part)part), is_qk = part == GPT_Q_NORM || part == GPT_K_NORM;
        int rows;
        for (int piece = 0; gpt_layer_name(prefix, l, (gpt_part)part, piece, name, &rows); piece++) {
            const int vector = is_qk && l->norm_shape == GPT_VECTOR;
            visit_tensor(&v, name, vector ? columns : rows, vector ? 0 : columns);
            if (is_qk && l->qk_norm == GPT_LAYER_NORM)
                visit_tensor(&v, gpt_bias_name(name, bias), vector ? columns : rows, vector ? 0 : columns);
            if (part <= GPT_W2 && l->bias >> part & 1) visit_tensor(&v, gpt_bias_name(name, bias), rows, 0);
        }
    }
}

static void visit_condition(const gpt_config *c, const visitor *v)
{
    if (c->grammar) return;
    if (!c->caption_dim) {
        visit_tensor(v, class_table, (int64_t)c->classes + 1, c->width);
        return;
    }
    visit_tensor(v, no_caption, c->prefix, c->caption_dim);
    visit_tensor(v, "cls_embedding.cap_proj.fc1.weight", c->width, c->caption_dim);
    visit_tensor(v, "cls_embedding.cap_proj.fc2.weight", c->width, c->width);
}

void gpt_config_tensors(const gpt_config *c, gpt_tensor_visitor *visit, void *user)
{
    const visitor v = {visit, user};
    const gpt_names *names = gpt_config_names(c->family);
    const gpt_layer_shape layer = gpt_config_layer(c);
    const int rows = c->grammar ? c->rows : c->vocabulary;
    visit_condition(c, &v);
    visit_tensor(&v, names->embedding, rows, c->width);
    for (int i = 0; i < c->depth; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "%s.%d", names->layers, i);
        gpt_layer_tensors(prefix, &layer, visit, user);
    }
    visit_tensor(&v, names->norm, c->width, 0);
    if (!c->tied) visit_tensor(&v, names->output, rows, c->width);
}
