/* Decoders that write images among text: what language.c and language_shape.c find, as a family's facts. */
#include "families/families.h"

#include "weights/shape.h"

#include <stdio.h>
#include <string.h>

/* Names of transformers' Llama (Chameleon and Emu3 in folders of Hugging Face), and of Chameleon's release. */
const causal_names language_llama_names = {LANGUAGE_LLAMA_NAMES("model.")};
static const causal_names release = {.layers = "layers",
                                     .joined = {"attention.wqkv", "attention.wo", "feed_forward.w13", "feed_forward.w2",
                                                "attention_norm", "ffn_norm", "attention.q_normalization",
                                                "attention.k_normalization"},
                                     .qkv = {"attention.wq", "attention.wk", "attention.wv"},
                                     .w13 = {"feed_forward.w1", "feed_forward.w3"},
                                     .norm = "norm.weight",
                                     .embedding = "tok_embeddings.weight",
                                     .output = "output.weight"};

static int decoder_recognise(const wt_file *f)
{
    const int has_embedding = wt_find(f, "model.embed_tokens.weight") &&
                              !wt_find(f, "model.fc.weight"); /* a drafter of LANTERN, its names behind "model." */
    return has_embedding || wt_find(f, "layers.0.attention.wq.weight") ||
           wt_find(f, "layers.0.attention.q_normalization.weight");
}

/* Tells whether an extra tensor is harmless: an image encoder's beside the model, or one that can be computed. */
static int decoder_ignores(const char *name)
{
    return strncmp(name, "model.vqmodel.", 14) == 0 || strncmp(name, "vqmodel.", 8) == 0 ||
           strcmp(name, "rope.freqs") == 0 || strstr(name, ".rotary_emb.inv_freq") != NULL;
}

/* Sets what the vocabulary and the image's size say: tokens, line ends and the positions for a prompt. */
static mar_status decoder_derive_sequence(const wt_file *f, const language *l, const wt_asked *asked, causal_shape *s,
                                          mar_err *err)
{
    int columns, rows;
    if (l->vocabulary.rows > s->rows)
        return err_set(err, MAR_EMODEL, "%s: the vocabulary has %d tokens, the embedding %d rows", wt_path(f),
                       l->vocabulary.rows, s->rows);
    const mar_status status = language_size(l, wt_path(f), asked->width, asked->height, &columns, &rows, err);
    if (status != MAR_OK) return status;
    s->vocabulary = l->vocabulary.count;
    s->columns = columns;
    s->seq_len = columns * rows;
    s->line_end = l->vocabulary.line_end >= 0;
    s->prompt = 1;
    s->caption_dim = 1;
    s->prefix = language_room(l, columns, rows);
    if (s->prefix >= 1) return MAR_OK;
    return err_set(err, MAR_EARG, "%s: %dx%d tokens leave no room for a prompt: the context has %d positions",
                   wt_path(f), columns, rows, l->context);
}

static void decoder_set_config(family_facts *out)
{
    mar_model_config *c = &out->config;
    const language_family *family = out->language.family;
    family_show_shape(out, &family_language);
    c->family = family->name;
    c->title = family->title;
    c->conditioning = MAR_CONDITION_IDS;
    c->sizes = !family->fixed_size;
    causal_tensors(&out->shape, wt_add_elements, &c->parameters);
}

static mar_status decoder_derive(const wt_file *f, const wt_asked *asked, void *facts, mar_err *err)
{
    family_facts *out = facts;
    language *l = &out->language;
    if (asked->heads)
        return err_set(err, MAR_EARG, "--heads %d: has no effect on %s, whose config.json says how many there are",
                       asked->heads, wt_path(f));
    const int is_release = !wt_find(f, language_llama_names.embedding);
    mar_status status = language_open(f, l, err);
    if (status == MAR_OK && !l->family->find_ids)
        status =
            err_set(err, MAR_EMODEL, "%s: is a language model alone, which %s has inside; expected the whole model",
                    wt_path(f), l->family->title);
    if (status == MAR_OK)
        status = language_shape(f, is_release ? &release : &language_llama_names, is_release, &out->shape, err);
    if (status == MAR_OK) status = decoder_derive_sequence(f, l, asked, &out->shape, err);
    if (status == MAR_OK) decoder_set_config(out);
    return status;
}

static void decoder_visit_tensors(const wt_file *f, const void *facts, wt_tensor_visitor *visit, void *user)
{
    (void)f;
    causal_tensors(&((const family_facts *)facts)->shape, visit, user);
}

/* --- facts and metadata ------------------------------------------------------------------------------------------- */

static void decoder_describe(const wt_file *f, const void *facts, const wt_report *to)
{
    static const char *const encoder[] = {"model.vqmodel.", "vqmodel.", NULL};
    const family_facts *c = facts;
    const language_family *family = c->language.family;
    const char *name = wt_config_architecture(f);
    const long ignored = wt_sum_elements(f, encoder);
    char groups[64] = "";
    if (c->shape.kv_heads != c->shape.heads) snprintf(groups, sizeof groups, " in %d groups", c->shape.kv_heads);
    wt_add_fact(to, "family: %s%s%s%s", family->title, name ? " (config.json: " : "", name ? name : "",
                name ? ")" : "");
    wt_add_fact(to, "transformer: width %d, %d blocks, %d heads%s, SwiGLU %d%s", c->shape.width, c->shape.depth,
                c->shape.heads, groups, c->shape.hidden, c->shape.qk_norm ? ", norms of q and k" : "");
    wt_add_fact(to, "vocabulary: %d tokens, of which %d are a codebook's", c->shape.rows, c->shape.vocabulary);
    wt_add_fact(to, "images: %dx%d pixels in %dx%d tokens%s; prompts up to %d tokens",
                c->shape.columns * c->language.stride, c->shape.seq_len / c->shape.columns * c->language.stride,
                c->shape.columns, c->shape.seq_len / c->shape.columns,
                family->fixed_size ? "" : ", other sizes by --size", c->shape.prefix);
    wt_add_fact(to, "parameters: %ld", c->config.parameters);
    if (ignored) wt_add_fact(to, "ignored: %ld parameters of its image tokenizer", ignored);
}

static void decoder_put(const void *facts, wt_pairs *m)
{
    const family_facts *c = facts;
    wt_put_text(m, "mar.kind", "decoder");
    wt_put_number(m, "mar.width", c->shape.width);
    wt_put_number(m, "mar.depth", c->shape.depth);
    wt_put_number(m, "mar.heads", c->shape.heads);
    if (c->shape.head_dim * c->shape.heads != c->shape.width) wt_put_number(m, "mar.head_dim", c->shape.head_dim);
    wt_put_real(m, "mar.eps", (double)c->shape.eps);
    wt_put_real(m, "mar.rope_base", (double)c->shape.rope_base);
    wt_put_number(m, "mar.parameters", c->config.parameters);
}

static mar_status decoder_put_more(const void *facts, wt_pairs *m, mar_err *err)
{
    return language_put(&((const family_facts *)facts)->language, m, err);
}

static void decoder_release(void *facts)
{
    language_free(&((family_facts *)facts)->language);
}

/* --- the row ------------------------------------------------------------------------------------------------------ */

const wt_kind family_language = {
    .kind = MAR_KIND_DECODER,
    .name = "decoder that writes images among text",
    .has_prompts = 1,
    .is_folder = 1,
    .article = "a",
    .lacks = "no model.embed_tokens.weight",
    .titles = {"Lumina-mGPT", "Anole", "Emu3"},
    .order = MAR_ORDER_RASTER,
    .head = MAR_HEAD_SOFTMAX,
    .facts_size = sizeof(family_facts),
    .recognise = decoder_recognise,
    .derive = decoder_derive,
    .release = decoder_release,
    .tensors = decoder_visit_tensors,
    .is_int8 = family_is_int8,
    .ignores = decoder_ignores,
    .describe = decoder_describe,
    .put = decoder_put,
    .put_more = decoder_put_more,
};
