/* NextStep-1 and 1.1 (2508.10711; modeling_nextstep.py): a language model of Qwen2's kind whose image tokens are
 * vectors, patches of an autoencoder's latents, which a flow head draws one after another. */
#include "families/nextstep.h"

#include "vae/vae.h"
#include "weights/shape.h"

#include <string.h>

#define NEXTSTEP_NAMES LANGUAGE_LLAMA_NAMES(""), .project = {NEXTSTEP_INPUT}, .condition = "image_out_projector.weight"

/* With and without the table of positions that use_gen_pos_embed asks for. */
static const causal_names nextstep_names = {NEXTSTEP_NAMES};
static const causal_names nextstep_placed = {NEXTSTEP_NAMES, .next_position = NEXTSTEP_TABLE};

/* --- shapes ------------------------------------------------------------------------------------------------------- */

/* Takes the table of positions, if the configuration or the metadata ask for it. */
static mar_status nextstep_derive_positions(const wt_file *f, causal_shape *s, mar_err *err)
{
    const wt_tensor *table;
    int used;
    const mar_status status = nextstep_positions(f, &used, &table, err);
    if (status != MAR_OK || !used) return status;
    if (!table || table->shape[2] != s->width)
        return err_set(err, MAR_EMODEL, "%s: tensor %s is missing or no table of positions, expected [1, tokens, %d]",
                       wt_path(f), nextstep_placed.next_position, s->width);
    s->names = &nextstep_placed;
    s->next_rows = (int)table->shape[1];
    return MAR_OK;
}

/* Sets what the image's size says: the tokens, and the positions for a prompt. */
static mar_status nextstep_derive_sequence(const wt_file *f, const wt_asked *asked, family_facts *out, mar_err *err)
{
    causal_shape *s = &out->shape;
    int columns, rows;
    const mar_status status =
        language_size(&out->language, wt_path(f), asked->width, asked->height, &columns, &rows, err);
    if (status != MAR_OK) return status;
    s->columns = columns;
    s->seq_len = columns * rows;
    s->prompt = s->caption_dim = 1;
    s->prefix = language_room(&out->language, columns, rows);
    if (s->next_rows && s->seq_len > s->next_rows)
        return err_set(err, MAR_EARG, "%s: an image of %d tokens: the model's table has %d positions", wt_path(f),
                       s->seq_len, s->next_rows);
    return MAR_OK;
}

static mar_status nextstep_derive_transformer(const wt_file *f, const wt_asked *asked, family_facts *out, mar_err *err)
{
    const wt_tensor *in;
    mar_status status = language_open(f, &out->language, err);
    if (status == MAR_OK) status = language_shape(f, &nextstep_names, 0, &out->shape, err);
    if (status == MAR_OK) status = wt_find_shape(f, NEXTSTEP_INPUT, 2, &in, err);
    if (status != MAR_OK) return status;
    out->shape.token_dim = (int)in->shape[1];
    out->shape.tied = 0;
    status = nextstep_patch(f, &out->config.patch_size, err);
    if (status == MAR_OK) status = nextstep_derive_positions(f, &out->shape, err);
    return status == MAR_OK ? nextstep_derive_sequence(f, asked, out, err) : status;
}

/* Sets the guidance of the release, or what the configuration says: the demo's has another. */
static mar_status nextstep_derive_cfg(const wt_file *f, mar_model_config *c, mar_err *err)
{
    double cfg = 7.5; /* README.md */
    const mar_status status = language_read_number(f, "cfg", "mar.cfg", &cfg, err);
    if (status == MAR_OK && !(cfg >= 1 && cfg <= 100))
        return err_set(err, MAR_EMODEL, "%s: its configuration has a cfg of %g, expected 1 to 100", wt_path(f), cfg);
    c->cfg = (float)cfg;
    c->cfg_schedule = MAR_CFG_CONSTANT;
    return status;
}

static void nextstep_tensors(const wt_file *f, const void *facts, wt_tensor_visitor *visit, void *user)
{
    const family_facts *of = facts;
    causal_tensors(&of->shape, visit, user);
    diff_head_tensors(&of->head, visit, user);
    if (of->config.image_decoder) vae_inside_tensors(f, &of->vae, visit, user);
}

/* Sets what the releases differ in: as NextStep-1's README.md has it, and NextStep-1.1's, whose chain is that of
 * heads.py beside its weights. */
static void nextstep_set_defaults(family_facts *out, int is_newer)
{
    mar_model_config *c = &out->config;
    c->title = family_nextstep.titles[is_newer];
    c->num_sampling_steps = is_newer ? 28 : 50;
    c->token_norm = is_newer ? 2 : 1;
    out->process = DIFF_FLOW;
    out->norm = RASTER_LAYER_NORM;
    out->falls = 1;
    out->last_is_counted = 1;
    out->last_is_noisy = is_newer;
}

static mar_status nextstep_derive(const wt_file *f, const wt_asked *asked, void *facts, mar_err *err)
{
    family_facts *out = facts;
    mar_model_config *c = &out->config;
    if (asked->heads)
        return err_set(err, MAR_EARG, "--heads %d: has no effect on %s, whose config.json says how many there are",
                       asked->heads, wt_path(f));
    mar_status status = nextstep_derive_transformer(f, asked, out, err);
    if (status == MAR_OK) status = diff_head_derive(f, DIFF_HEAD_NEXTSTEP, out->shape.width, &out->head, err);
    if (status != MAR_OK) return status;
    if (out->head.channels != out->shape.token_dim)
        return err_set(err, MAR_EMODEL,
                       "%s: image_head.net.input_proj.weight takes tokens of %d numbers, expected those of "
                       "image_in_projector.weight, %d",
                       wt_path(f), out->head.channels, out->shape.token_dim);
    family_show_shape(out, &family_nextstep);
    c->family = language_nextstep.name;
    c->conditioning = MAR_CONDITION_IDS;
    c->sizes = 1;
    c->token_pixels = out->language.stride;
    nextstep_set_defaults(out, nextstep_is_newer(f));
    c->head_width = out->head.width;
    c->head_depth = out->head.depth;
    nextstep_tensors(f, out, wt_add_elements, &c->parameters); /* of the model alone: no decoder is known yet */
    wt_file *decoder = NULL;
    status = nextstep_derive_cfg(f, c, err);
    if (status == MAR_OK) status = vae_open_inside(f, &decoder, err);
    if (decoder) status = vae_config_derive(decoder, &out->vae, err);
    c->image_decoder = decoder != NULL;
    wt_close(decoder);
    return status;
}

/* Tells whether an extra tensor is harmless: of text that the model writes, or a table that is not asked for. */
static int nextstep_ignores(const char *name)
{
    return strcmp(name, "lm_head.weight") == 0 || strcmp(name, NEXTSTEP_TABLE) == 0 ||
           strstr(name, "rotary_emb.inv_freq") != NULL;
}

/* --- facts and metadata ------------------------------------------------------------------------------------------- */

static void nextstep_describe(const wt_file *f, const void *facts, const wt_report *to)
{
    static const char *const head[] = {"image_head.", NULL};
    const family_facts *of = facts;
    const causal_shape *s = &of->shape;
    wt_add_fact(to, "family: %s", of->config.title);
    wt_add_fact(to, "transformer: width %d, %d blocks, %d heads in %d groups, SwiGLU %d, %d tokens of text", s->width,
                s->depth, s->heads, s->kv_heads, s->hidden, s->rows);
    wt_add_fact(to, "flow head: width %d, %d blocks", of->head.width, of->head.depth);
    wt_add_fact(to,
                "images: %dx%d pixels in %dx%d tokens of %d numbers, other sizes by --size; prompts up to %d tokens",
                s->columns * of->language.stride, s->seq_len / s->columns * of->language.stride, s->columns,
                s->seq_len / s->columns, s->token_dim, s->prefix);
    if (of->config.image_decoder)
        wt_add_fact(to, "image decoder: in the same folder, %d latent channels, stride %d", of->vae.z_channels,
                    of->vae.stride);
    wt_add_fact(to, "parameters: %ld (head %ld)", of->config.parameters, wt_sum_elements(f, head));
}

static void nextstep_put(const void *facts, wt_pairs *m)
{
    const family_facts *of = facts;
    const causal_shape *s = &of->shape;
    wt_put_text(m, "mar.kind", "nextstep");
    wt_put_number(m, "mar.width", s->width);
    wt_put_number(m, "mar.depth", s->depth);
    wt_put_number(m, "mar.heads", s->heads);
    if (s->head_dim * s->heads != s->width) wt_put_number(m, "mar.head_dim", s->head_dim);
    wt_put_real(m, "mar.eps", (double)s->eps);
    wt_put_real(m, "mar.rope_base", (double)s->rope_base);
    wt_put_number(m, "mar.patch_size", of->config.patch_size);
    if (of->last_is_noisy) wt_put_text(m, "mar.release", "1.1");
    wt_put_real(m, "mar.cfg", (double)of->config.cfg);
    if (s->next_rows) wt_put_number(m, "mar.positions", s->next_rows);
    if (of->config.image_decoder) vae_put_latents(&of->vae, m);
    wt_put_number(m, "mar.parameters", of->config.parameters);
}

static mar_status nextstep_put_more(const void *facts, wt_pairs *m, mar_err *err)
{
    return language_put(&((const family_facts *)facts)->language, m, err);
}

static void nextstep_release(void *facts)
{
    language_free(&((family_facts *)facts)->language);
}

/* --- the row ------------------------------------------------------------------------------------------------------ */

const wt_kind family_nextstep = {
    .kind = MAR_KIND_NEXTSTEP,
    .name = "NextStep model",
    .article = "a",
    .lacks = "no image_in_projector.weight",
    .titles = {"NextStep-1", "NextStep-1.1"},
    .order = MAR_ORDER_RASTER,
    .head = MAR_HEAD_FLOW,
    .has_prompts = 1,
    .is_folder = 1,
    .facts_size = sizeof(family_facts),
    .recognise = nextstep_recognise,
    .derive = nextstep_derive,
    .release = nextstep_release,
    .tensors = nextstep_tensors,
    .is_int8 = family_is_int8,
    .ignores = nextstep_ignores,
    .describe = nextstep_describe,
    .put = nextstep_put,
    .put_more = nextstep_put_more,
};
