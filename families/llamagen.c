/* LlamaGen (Sun et al. 2024, autoregressive/models/gpt.py): a causal transformer over a codebook, of images of classes
 * or of captions that a T5 has encoded. */
#include "families/families.h"

#include "weights/shape.h"

#include <stdio.h>
#include <string.h>

/* --- the shape, read from tensors --------------------------------------------------------------------------------- */

enum { SEQ_LEN = 256, SEQ_LEN_MAX = 65536 };     /* 256 pixels; 4096 pixels */
enum { IMAGE_SIZE = 256, DOWNSAMPLE_SIZE = 16 }; /* train_c2i.py's defaults */

static const char class_table[] = "cls_embedding.embedding_table.weight",
                  no_caption[] = "cls_embedding.uncond_embedding";

const causal_names llamagen_names = {
    .layers = "layers",
    .joined = {"attention.wqkv", "attention.wo", "feed_forward.w1", "feed_forward.w2", "attention_norm", "ffn_norm"},
    .w13 = {"feed_forward.w1", "feed_forward.w3"},
    .norm = "norm.weight",
    .embedding = "tok_embeddings.weight",
    .output = "output.weight",
    .class_table = class_table,
    .no_caption = no_caption,
    .caption = {"cls_embedding.cap_proj.fc1.weight", "cls_embedding.cap_proj.fc2.weight"}};

/* Reads an option of the training, which stays 0 if it is absent. */
static mar_status llamagen_read_option(const wt_file *f, const char *key, long *out, mar_err *err)
{
    const mar_status status = wt_metadata_number(f, key, out, NULL);
    if (status == MAR_OK) return MAR_OK;
    return err_set(err, status, "%s: %s is %s, expected a positive integer", wt_path(f), key, wt_metadata(f, key));
}

/* Derives seq_len from the options of a training checkpoint, as train_c2i.py does; a missing one is a guess. *seq_len
 * stays if both are absent. */
static mar_status llamagen_derive_from_options(const wt_file *f, family_facts *c, long *seq_len, mar_err *err)
{
    mar_status status = llamagen_read_option(f, "args.image_size", &c->image_size, err);
    if (status == MAR_OK) status = llamagen_read_option(f, "args.downsample_size", &c->downsample_size, err);
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

/* Writes why seq_len is a guess, and the numbers of train_c2i.py's sizes. */
static void llamagen_write_guess(family_facts *c)
{
    char *text = c->note;
    const size_t size = sizeof c->note;
    if (c->image_size)
        snprintf(text, size,
                 "args.image_size is %ld, args.downsample_size is missing: %d is a guess, with %d; --seq_len gives "
                 "another",
                 c->image_size, c->shape.seq_len, DOWNSAMPLE_SIZE);
    else if (c->downsample_size)
        snprintf(text, size,
                 "args.downsample_size is %ld, args.image_size is missing: %d is a guess, for %d pixels; --seq_len "
                 "gives another",
                 c->downsample_size, c->shape.seq_len, IMAGE_SIZE);
    else
        snprintf(text, size,
                 "nothing in the file says how many tokens an image has: %d is a guess, for %d pixels; with another "
                 "--seq_len: 576 for 384 pixels, 784 for 448, 1024 for 512",
                 c->shape.seq_len, IMAGE_SIZE);
    c->config.warning = c->note;
}

static void llamagen_set_seq_len(family_facts *c, int seq_len)
{
    c->shape.seq_len = seq_len;
    c->shape.columns = causal_side(seq_len);
}

static mar_status llamagen_derive_sequence(const wt_file *f, family_facts *c, mar_err *err)
{
    long n = 0;
    mar_status status = wt_metadata_number(f, "mar.seq_len", &n, err);
    if (status == MAR_OK && !n) status = llamagen_derive_from_options(f, c, &n, err);
    if (status != MAR_OK) return status;
    if (n > SEQ_LEN_MAX || (n && !causal_side((int)n)))
        return err_set(err, MAR_EMODEL, "%s: metadata mar.seq_len is %ld, expected a square number up to %d",
                       wt_path(f), n, SEQ_LEN_MAX);
    llamagen_set_seq_len(c, n ? (int)n : SEQ_LEN);
    return MAR_OK;
}

/* Derives the prefix before the image tokens: a class or a caption. */
static mar_status llamagen_derive_condition(const wt_file *f, family_facts *c, mar_err *err)
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

static mar_status llamagen_derive_transformer(const wt_file *f, family_facts *c, mar_err *err)
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

/* Takes the number of tokens that the handle has, if the file does not give one. */
static mar_status llamagen_take_seq_len(const wt_file *f, int asked, family_facts *c, mar_err *err)
{
    if (!asked) return MAR_OK;
    if (!c->seq_len_guessed && asked != c->shape.seq_len)
        return err_set(err, MAR_EARG, "--seq_len %d: %s of %s say %d", asked,
                       wt_metadata(f, "mar.seq_len") ? "the metadata" : "the options of the training (args)",
                       wt_path(f), c->shape.seq_len);
    if (!causal_side(asked))
        return err_set(err, MAR_EARG, "--seq_len %d: expected a square number, such as 256 or 576", asked);
    llamagen_set_seq_len(c, asked);
    c->seq_len_guessed = 0;
    return MAR_OK;
}

static mar_status llamagen_derive(const wt_file *f, const wt_asked *asked, void *facts, mar_err *err)
{
    family_facts *out = facts;
    mar_model_config *c = &out->config;
    out->shape = (causal_shape){.names = &llamagen_names,
                                .joined_qkv = 1,
                                .rotation = CAUSAL_GRID,
                                .rope_base = 10000,
                                .eps = 1e-5f}; /* gpt.py */
    mar_status status = llamagen_derive_transformer(f, out, err);
    if (status == MAR_OK) status = llamagen_derive_condition(f, out, err);
    if (status == MAR_OK) status = llamagen_derive_sequence(f, out, err);
    if (status == MAR_OK) status = family_derive_heads(f, asked->heads, out, err);
    if (status == MAR_OK) status = llamagen_take_seq_len(f, asked->seq_len, out, err);
    if (status != MAR_OK) return status;
    if (out->seq_len_guessed) llamagen_write_guess(out);
    family_show_shape(out, &family_llamagen);
    c->family = "llamagen";
    c->conditioning = out->shape.caption_dim ? MAR_CONDITION_FEATURES : MAR_CONDITION_CLASS;
    causal_tensors(&out->shape, wt_add_elements, &c->parameters);
    return MAR_OK;
}

static void llamagen_visit_tensors(const wt_file *f, const void *facts, wt_tensor_visitor *visit, void *user)
{
    (void)f;
    causal_tensors(&((const family_facts *)facts)->shape, visit, user);
}

static int llamagen_recognise(const wt_file *f)
{
    return wt_find(f, "layers.0.attention.wqkv.weight") || wt_find(f, "tok_embeddings.weight");
}

/* Tells whether an extra tensor is harmless: one that can be computed, or a key-value cache. */
static int llamagen_ignores(const char *name)
{
    return strcmp(name, "freqs_cis") == 0 || strcmp(name, "causal_mask") == 0 || strstr(name, ".kv_cache.") != NULL;
}

/* --- facts and metadata ------------------------------------------------------------------------------------------- */

static void llamagen_describe(const wt_file *f, const void *facts, const wt_report *to)
{
    const family_facts *c = facts;
    char heads[FAMILY_HEADS_TEXT], source[sizeof c->note + 8] = "";
    (void)f;
    if (c->seq_len_guessed)
        snprintf(source, sizeof source, " (%s)", c->note);
    else if (c->image_size && c->downsample_size)
        snprintf(source, sizeof source, ", by the training's image_size %ld", c->image_size);
    wt_add_fact(to, "transformer: width %d, %d blocks, %s, SwiGLU %d", c->shape.width, c->shape.depth,
                family_heads_text(&c->config, heads), c->shape.hidden);
    wt_add_fact(to, "tokens: %d of a vocabulary of %d%s", c->shape.seq_len, c->shape.vocabulary, source);
    if (c->shape.caption_dim)
        wt_add_fact(to, "captions: %d positions of %d features", c->shape.prefix, c->shape.caption_dim);
    else
        wt_add_fact(to, "classes: %d", c->shape.classes);
    wt_add_fact(to, "parameters: %ld", c->config.parameters);
}

static void llamagen_put(const void *facts, wt_pairs *m)
{
    const family_facts *c = facts;
    wt_put_text(m, "mar.kind", "llamagen");
    wt_put_number(m, "mar.width", c->shape.width);
    wt_put_number(m, "mar.depth", c->shape.depth);
    if (!c->config.heads_guessed) wt_put_number(m, "mar.heads", c->shape.heads);
    wt_put_number(m, "mar.hidden", c->shape.hidden);
    wt_put_number(m, "mar.vocabulary", c->shape.vocabulary);
    if (!c->seq_len_guessed) wt_put_number(m, "mar.seq_len", c->shape.seq_len);
    if (c->seq_len_guessed && c->image_size) wt_put_number(m, "args.image_size", c->image_size);
    if (c->seq_len_guessed && c->downsample_size) wt_put_number(m, "args.downsample_size", c->downsample_size);
    wt_put_number(m, "mar.classes", c->shape.classes);
    if (c->shape.caption_dim) {
        wt_put_number(m, "mar.caption_tokens", c->shape.prefix);
        wt_put_number(m, "mar.caption_dim", c->shape.caption_dim);
    }
    wt_put_number(m, "mar.parameters", c->config.parameters);
}

/* --- the row ------------------------------------------------------------------------------------------------------ */

const wt_kind family_llamagen = {
    .kind = MAR_KIND_LLAMAGEN,
    .name = "LlamaGen model",
    .article = "a",
    .lacks = "no tok_embeddings.weight",
    .titles = {"LlamaGen"},
    .order = MAR_ORDER_RASTER,
    .head = MAR_HEAD_SOFTMAX,
    .has_heads = 1,
    .has_seq_len = 1,
    .facts_size = sizeof(family_facts),
    .recognise = llamagen_recognise,
    .derive = llamagen_derive,
    .tensors = llamagen_visit_tensors,
    .is_int8 = family_is_int8,
    .ignores = llamagen_ignores,
    .describe = llamagen_describe,
    .put = llamagen_put,
};
