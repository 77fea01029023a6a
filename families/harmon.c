/* Harmon (2503.21979) and UniPic-1 (2508.03320): MAR with a language model of Qwen2's kind between its towers, which
 * reads a prompt. */
#include "families/harmon.h"
#include "families/mar.h"

#include "vae/vae.h"
#include "weights/shape.h"

#include <stdio.h>
#include <string.h>

static const causal_names harmon_names = {LANGUAGE_LLAMA_NAMES("model."),
                                          .project = {"proj_in.0.weight", "proj_in.2.weight"}};

/* --- configuration ------------------------------------------------------------------------------------------------ */

/* Reads the towers' type: its width and heads are those of config.json unless that says other numbers. */
static mar_status harmon_read_type(const wt_file *f, int *width, int *heads, mar_err *err)
{
    const json_value *part = harmon_mar(f), *type = part ? json_member(part, "type") : NULL;
    if (!type) return MAR_OK;
    for (int i = 0; i < HARMON_TOWERS; i++) {
        if (type->type != JSON_STRING || strcmp(type->text, harmon_towers[i].type) != 0) continue;
        *width = harmon_towers[i].width;
        *heads = harmon_towers[i].heads;
        return MAR_OK;
    }
    return err_set(err, MAR_EMODEL, "%s: config.json has the mar.type %.40s, expected mar_base, mar_large or mar_huge",
                   wt_path(f), type->type == JSON_STRING ? type->text : "that is no text");
}

/* Reads the towers' heads as mar_heads has them, 0: the width tells, and checks the width. */
static mar_status harmon_read_heads(const wt_file *f, int *heads, mar_err *err)
{
    int width = 0, encoder = 0, decoder = 0;
    const wt_tensor *z;
    mar_status status = harmon_read_type(f, &width, &encoder, err);
    decoder = encoder;
    if (status == MAR_OK) status = harmon_number(f, "encoder_embed_dim", &width, err);
    if (status == MAR_OK) status = harmon_number(f, "encoder_num_heads", &encoder, err);
    if (status == MAR_OK) status = harmon_number(f, "decoder_num_heads", &decoder, err);
    if (status == MAR_OK) status = wt_find_shape(f, "z_proj.weight", 2, &z, err);
    if (status != MAR_OK) return status;
    if (width && z->shape[0] != width)
        return err_set(err, MAR_EMODEL, "%s: tensor z_proj.weight is %lld wide, config.json's towers are %d",
                       wt_path(f), (long long)z->shape[0], width);
    *heads = encoder + 65536 * decoder;
    return MAR_OK;
}

/* --- shapes ------------------------------------------------------------------------------------------------------- */

/* Derives the language model: Qwen2.5's heads by its width, unless config.json or the metadata say others. */
static mar_status harmon_derive_language(const wt_file *f, family_facts *out, mar_err *err)
{
    static const struct {
        int width, heads;
    } qwen[] = {{896, 14}, {1536, 12}, {2048, 16}, {3584, 28}};
    causal_shape *s = &out->shape;
    const wt_tensor *embedding = wt_find(f, harmon_names.embedding);
    *s = (causal_shape){.eps = 1e-6f, .rope_base = 1e6f};
    for (size_t i = 0; i < sizeof qwen / sizeof *qwen; i++)
        if (embedding->rank == 2 && embedding->shape[1] == qwen[i].width) s->heads = qwen[i].heads;
    const mar_status status = language_shape(f, &harmon_names, 0, s, err);
    s->token_dim = out->config.width;
    s->project_hidden = s->width;
    s->prompt = s->caption_dim = 1;
    return status;
}

/* Sets what the image's size says: the tokens, and the positions for a prompt. */
static mar_status harmon_derive_sequence(const wt_file *f, const wt_asked *asked, family_facts *out, mar_err *err)
{
    mar_model_config *c = &out->config;
    int columns, rows;
    const mar_status status =
        language_size(&out->language, wt_path(f), asked->width, asked->height, &columns, &rows, err);
    if (status != MAR_OK) return status;
    out->side = c->grid_width;
    c->grid_width = columns;
    c->seq_len = columns * rows;
    out->shape.columns = out->shape.seq_len = c->buffer + c->seq_len;
    out->shape.prefix = language_room(&out->language, columns, rows);
    if (c->buffer <= language_harmon.behind && out->shape.prefix >= 1) return MAR_OK;
    return err_set(err, MAR_EARG,
                   "%s: %dx%d tokens and a buffer of %d leave no room for a prompt: the context has %d positions, of "
                   "which %d are for a buffer",
                   wt_path(f), columns, rows, c->buffer, out->language.context, language_harmon.behind);
}

/* Visits the tensors of the file, whose position tables may be of another size than the image. */
static void harmon_tensors(const wt_file *f, const void *facts, wt_tensor_visitor *visit, void *user)
{
    const family_facts *out = facts;
    const int64_t width = out->shape.width;
    mar_model_config file = out->config;
    file.seq_len = out->side * out->side;
    family_mar_tensors(&file, visit, user);
    causal_tensors(&out->shape, visit, user);
    visit(user, "proj_out.0.weight", 2, (const int64_t[]){width, width});
    visit(user, "proj_out.0.bias", 1, &width);
    visit(user, "proj_out.2.weight", 2, (const int64_t[]){file.width, width});
    visit(user, "proj_out.2.bias", 1, (const int64_t[]){file.width});
    if (out->config.image_decoder) vae_inside_tensors(f, &out->vae, visit, user);
}

/* Sets the defaults of both releases. */
static void harmon_set_defaults(mar_model_config *c, int is_unipic)
{
    const int sets = is_unipic ? 32 : 64;
    c->num_iter = sets < c->seq_len ? sets : c->seq_len;
    c->cfg = 3;
    c->cfg_schedule = MAR_CFG_CONSTANT;
}

static mar_status harmon_derive(const wt_file *f, const wt_asked *asked, void *facts, mar_err *err)
{
    family_facts *out = facts;
    mar_model_config *c = &out->config;
    wt_asked towers = *asked;
    int heads = 0;
    mar_status status = harmon_read_heads(f, &heads, err);
    if (!towers.heads) towers.heads = heads;
    if (status == MAR_OK) status = family_mar_derive_as(f, &towers, MAR_CONDITION_IDS, c, err);
    if (status == MAR_OK) status = language_open(f, &out->language, err);
    if (status == MAR_OK) status = harmon_derive_language(f, out, err);
    if (status == MAR_OK) status = harmon_derive_sequence(f, asked, out, err);
    if (status != MAR_OK) return status;
    c->family = language_harmon.name;
    c->title = family_harmon.titles[harmon_is_unipic(f)];
    harmon_set_defaults(c, harmon_is_unipic(f));
    c->sizes = 1;
    c->token_pixels = out->language.stride;
    c->caption_tokens = out->shape.prefix;
    c->caption_dim = 1;
    out->process = harmon_is_unipic(f) ? DIFF_DDPM_CLIPPED : DIFF_DDPM;
    c->parameters = 0;
    harmon_tensors(f, out, wt_add_elements, &c->parameters); /* of the model alone: out->vae is not known yet */
    wt_file *decoder = NULL;
    status = vae_open_inside(f, &decoder, err);
    if (decoder) status = vae_config_derive(decoder, &out->vae, err);
    c->image_decoder = decoder != NULL;
    wt_close(decoder);
    return status;
}

static int harmon_ignores(const char *name)
{
    static const char *const others[] = {"siglip2.", "siglip2_proj.", "class_emb.", "lm_head.", NULL};
    return wt_begins_with(name, others) || strstr(name, ".rotary_emb.inv_freq") != NULL;
}

static int harmon_is_int8(const char *tensor)
{
    return family_mar_is_int8(tensor) || family_is_int8(tensor);
}

/* --- facts and metadata ------------------------------------------------------------------------------------------- */

static void harmon_describe(const wt_file *f, const void *facts, const wt_report *to)
{
    static const char *const encoder[] = {"siglip2", NULL};
    const family_facts *out = facts;
    const causal_shape *s = &out->shape;
    const mar_model_config *c = &out->config;
    const long understanding = wt_sum_elements(f, encoder);
    char heads[FAMILY_HEADS_TEXT];
    wt_add_fact(to, "family: %s", c->title);
    wt_add_fact(to, "transformer: width %d, %d encoder and %d decoder blocks, %s, MLP %d", c->width, c->encoder_depth,
                c->decoder_depth, family_heads_text(c, heads), c->mlp_hidden);
    wt_add_fact(to, "language model between them: width %d, %d blocks, %d heads in %d groups, SwiGLU %d, %d tokens",
                s->width, s->depth, s->heads, s->kv_heads, s->hidden, s->rows);
    wt_add_fact(to, "diffusion head: width %d, %d blocks", c->head_width, c->head_depth);
    wt_add_fact(to,
                "images: %dx%d pixels in %dx%d tokens of %d channels, other sizes by --size; prompts up to %d tokens",
                c->grid_width * out->language.stride, c->seq_len / c->grid_width * out->language.stride, c->grid_width,
                c->seq_len / c->grid_width, c->token_dim, c->caption_tokens);
    wt_add_fact(to, "parameters: %ld", c->parameters);
    if (c->image_decoder)
        wt_add_fact(to, "image decoder: in the same file, %d latent channels, stride %d", out->vae.z_channels,
                    out->vae.stride);
    if (understanding) wt_add_fact(to, "ignored: %ld parameters of its image encoder", understanding);
}

static void harmon_put(const void *facts, wt_pairs *m)
{
    const family_facts *out = facts;
    const mar_model_config *c = &out->config;
    const causal_shape *s = &out->shape;
    wt_put_text(m, "mar.kind", "harmon");
    wt_put_text(m, "mar.release", out->process == DIFF_DDPM_CLIPPED ? "unipic" : "harmon");
    wt_put_number(m, "mar.width", c->width);
    if (!c->heads_guessed) wt_put_number(m, "mar.heads", c->heads);
    if (c->decoder_heads != c->heads) wt_put_number(m, "mar.decoder_heads", c->decoder_heads);
    if (c->patch_size) wt_put_number(m, "mar.patch_size", c->patch_size);
    wt_put_number(m, "mar.stride", out->language.stride);
    wt_put_number(m, "mar.llm_heads", s->heads);
    if (s->head_dim * s->heads != s->width) wt_put_number(m, "mar.llm_head_dim", s->head_dim);
    wt_put_real(m, "mar.llm_eps", (double)s->eps);
    wt_put_real(m, "mar.llm_rope_base", (double)s->rope_base);
    wt_put_number(m, "mar.context", out->language.context);
    wt_put_number(m, "mar.parameters", c->parameters);
}

static void harmon_release(void *facts)
{
    language_free(&((family_facts *)facts)->language);
}

const wt_kind family_harmon = {
    .kind = MAR_KIND_MAR,
    .name = "Harmon model",
    .is_folder = 1,
    .article = "a",
    .titles = {"Harmon", "UniPic-1"},
    .order = MAR_ORDER_SETS,
    .head = MAR_HEAD_DDPM,
    .has_heads = 1,
    .has_patch_size = 1,
    .has_prompts = 1,
    .facts_size = sizeof(family_facts),
    .recognise = harmon_recognise,
    .derive = harmon_derive,
    .release = harmon_release,
    .tensors = harmon_tensors,
    .ignores = harmon_ignores,
    .is_int8 = harmon_is_int8,
    .describe = harmon_describe,
    .put = harmon_put,
};
