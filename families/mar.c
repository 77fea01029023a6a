/* MAR (2406.11838): masked towers around a diffusion head, images of classes. */
#include "families/mar.h"

#include "weights/shape.h"

#include <stdio.h>
#include <string.h>

/* --- reading the shape from tensors ---------------------------------------------------------------- */

/* Derives seq_len. It must be a square: the order of tokens and the latent's shape rely on it. */
static mar_status mar_derive_sequence(const wt_file *f, mar_model_config *c, mar_err *err)
{
    const wt_tensor *diffusion, *encoder;
    mar_status status = wt_find_shape(f, "diffusion_pos_embed_learned", 3, &diffusion, err);
    if (status == MAR_OK) status = wt_find_shape(f, "encoder_pos_embed_learned", 3, &encoder, err);
    if (status != MAR_OK) return status;
    c->seq_len = (int)diffusion->shape[1];
    c->buffer = (int)(encoder->shape[1] - diffusion->shape[1]);
    int side = 1;
    while (side * side < c->seq_len) side++;
    if (side * side != c->seq_len)
        return err_set(err, MAR_EMODEL, "%s: diffusion_pos_embed_learned has %d positions, expected a square number",
                       wt_path(f), c->seq_len);
    c->grid_width = side;
    if (c->buffer < 1)
        return err_set(err, MAR_EMODEL,
                       "%s: encoder_pos_embed_learned has %lld positions, expected more than the %d of "
                       "diffusion_pos_embed_learned",
                       wt_path(f), (long long)encoder->shape[1], c->seq_len);
    return MAR_OK;
}

static mar_status mar_derive_transformer(const wt_file *f, mar_model_config *c, mar_err *err)
{
    const wt_tensor *class_emb = NULL, *z_proj, *fc1;
    mar_status status = MAR_OK;
    if (c->conditioning == MAR_CONDITION_CLASS) status = wt_find_shape(f, "class_emb.weight", 2, &class_emb, err);
    if (status == MAR_OK) status = wt_find_shape(f, "z_proj.weight", 2, &z_proj, err);
    if (status == MAR_OK) status = wt_find_shape(f, "encoder_blocks.0.mlp.fc1.weight", 2, &fc1, err);
    if (status == MAR_OK) status = mar_derive_sequence(f, c, err);
    if (status != MAR_OK) return status;
    if (class_emb) c->classes = (int)class_emb->shape[0];
    c->width = (int)z_proj->shape[0];
    c->token_dim = (int)z_proj->shape[1];
    c->mlp_hidden = (int)fc1->shape[0];
    c->encoder_depth = wt_count_parts(f, "encoder_blocks.", wt_count(f));
    c->decoder_depth = wt_count_parts(f, "decoder_blocks.", wt_count(f));
    if (c->decoder_depth == 0)
        return err_set(err, MAR_EMODEL, "%s: tensor decoder_blocks.0.norm1.weight is missing", wt_path(f));
    return MAR_OK;
}

static mar_status mar_derive_head(const wt_file *f, mar_model_config *c, mar_err *err)
{
    const wt_tensor *input;
    mar_status status = wt_find_shape(f, "diffloss.net.input_proj.weight", 2, &input, err);
    if (status != MAR_OK) return status;
    c->head_width = (int)input->shape[0];
    c->head_depth = wt_count_parts(f, "diffloss.net.res_blocks.", wt_count(f));
    if (c->head_depth == 0)
        return err_set(err, MAR_EMODEL, "%s: tensor diffloss.net.res_blocks.0.in_ln.weight is missing", wt_path(f));
    return MAR_OK;
}

/* Returns MAR_EARG, or MAR_EMODEL for the metadata, unless n heads divide the width. */
static mar_status mar_check_heads(const wt_file *f, int width, long n, const char *part, const char *source,
                                  int is_asked, mar_err *err)
{
    if (n > 0 && n <= width && width % n == 0) return MAR_OK;
    return err_set(err, is_asked ? MAR_EARG : MAR_EMODEL, "%s: %s%ld attention heads (%s) do not divide the width %d",
                   wt_path(f), part, n, source, width);
}

/* Sets the heads. No shape tells them: they are the caller's, the metadata's, the official model's of that width, or a
 * guess. */
static mar_status mar_derive_heads(const wt_file *f, int heads, mar_model_config *c, mar_err *err)
{
    static const struct {
        int width, heads;
    } official[] = {{768, 12}, {1024, 16}, {1280, 16}}; /* MAR-B, L, H */
    const char *source = heads ? "--heads" : "in the metadata";
    long n = heads % 65536, decoder = heads / 65536; /* mar_heads */
    if (heads < 0) return err_set(err, MAR_EARG, "--heads %d: expected 0 or a positive number", heads);
    mar_status status = heads ? MAR_OK : wt_metadata_number(f, "mar.heads", &n, err);
    if (status == MAR_OK && n && !heads) status = wt_metadata_number(f, "mar.decoder_heads", &decoder, err);
    if (status != MAR_OK) return status;
    for (size_t i = 0; !n && !heads && i < sizeof official / sizeof *official; i++)
        if (official[i].width == c->width) n = official[i].heads;
    if (!n && !heads) {
        c->heads_guessed = 1;
        for (n = c->width > 64 ? c->width / 64 : 1; c->width % n != 0;) n--;
    }
    if (!decoder) decoder = n;
    status = mar_check_heads(f, c->width, n, decoder == n ? "" : "the encoder's ", source, heads, err);
    if (status == MAR_OK) status = mar_check_heads(f, c->width, decoder, "the decoder's ", source, heads, err);
    c->heads = (int)n;
    c->decoder_heads = (int)decoder;
    return status;
}

/* Returns MAR_EMODEL if the decoder's width differs from the encoder's. The official code allows that; this one does
 * not. If one tensor alone says so, it is damaged, and the check of all tensors reports it. */
static mar_status mar_check_widths(const wt_file *f, const mar_model_config *c, mar_err *err)
{
    const wt_tensor *embed = wt_find(f, "decoder_embed.weight"), *position = wt_find(f, "decoder_pos_embed_learned");
    if (!embed || !position || embed->rank != 2 || position->rank != 3 || embed->shape[0] == c->width ||
        embed->shape[0] != position->shape[2])
        return MAR_OK;
    return err_set(err, MAR_EMODEL, "%s: the encoder is %d wide and the decoder %lld, expected one width of both",
                   wt_path(f), c->width, (long long)embed->shape[0]);
}

/* Sets patch_size to `asked`, else to the metadata's mar.patch_size; without both it stays 0. */
static mar_status mar_derive_patch(const wt_file *f, int asked, mar_model_config *config, mar_err *err)
{
    long n = 0;
    const mar_status status = wt_metadata_number(f, "mar.patch_size", &n, err);
    if (status != MAR_OK) return status;
    if (asked && n && n != asked)
        return err_set(err, MAR_EARG, "--patch_size %d: the metadata of %s say %ld", asked, wt_path(f), n);
    if (asked) n = asked;
    if (n > MAR_PATCH_MAX || (n && config->token_dim % (n * n) != 0))
        return err_set(
            err, asked ? MAR_EARG : MAR_EMODEL,
            "--patch_size %ld: the tokens of %s have %d channels, expected 1 to %d whose square divides that", n,
            wt_path(f), config->token_dim, MAR_PATCH_MAX);
    config->patch_size = (int)n;
    return MAR_OK;
}

mar_status family_mar_derive_as(const wt_file *f, const wt_asked *asked, mar_conditioning conditioning,
                                mar_model_config *config, mar_err *err)
{
    *config = (mar_model_config){.size = sizeof *config,
                                 .family = "mar",
                                 .title = family_mar.titles[0],
                                 .conditioning = conditioning,
                                 .num_sampling_steps = 100,
                                 .cfg = 2.9f};
    mar_status status = mar_derive_transformer(f, config, err);
    if (status == MAR_OK) status = mar_check_widths(f, config, err);
    if (status == MAR_OK) status = mar_derive_head(f, config, err);
    if (status == MAR_OK) status = mar_derive_heads(f, asked->heads, config, err);
    config->num_iter = config->seq_len < 64 ? config->seq_len : 64;
    if (status == MAR_OK) family_mar_tensors(config, wt_add_elements, &config->parameters);
    return status == MAR_OK ? mar_derive_patch(f, asked->patch_size, config, err) : status;
}

mar_status family_mar_derive(const wt_file *f, const wt_asked *asked, mar_model_config *config, mar_err *err)
{
    return family_mar_derive_as(f, asked, MAR_CONDITION_CLASS, config, err);
}

int family_mar_patches(int token_dim, int z_channels)
{
    int n = 1;
    while (n < MAR_PATCH_MAX && n * n * z_channels < token_dim) n++;
    return n * n * z_channels == token_dim ? n : 0;
}

int mar_patch_size(const mar_model_config *model, int z_channels)
{
    const int n = family_mar_patches(model->token_dim, z_channels);
    if (model->patch_size) return n == model->patch_size ? n : 0;
    return n == 1 || z_channels == MAR_KL16_CHANNELS ? n : 0;
}

static int mar_recognise(const wt_file *f)
{
    static const char head[] = "diffloss.net.";
    if (wt_find(f, "class_emb.weight")) return 1;
    for (int i = 0; i < wt_count(f); i++)
        if (strncmp(wt_at(f, i)->name, head, sizeof head - 1) == 0) return 1;
    return 0;
}

int family_mar_is_int8(const char *tensor)
{
    static const char *const layers[] = {"attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", NULL};
    return wt_is_layer(tensor, layers);
}

static const char *mar_norm_of(const char *tensor, char *text, size_t size)
{
    static const char *const behind[][2] = {{"attn.qkv.weight", "norm1"}, {"mlp.fc1.weight", "norm2"}};
    const size_t length = strlen(tensor);
    for (int i = 0; i < 2; i++) {
        const size_t end = strlen(behind[i][0]);
        if (length <= end || strcmp(tensor + length - end, behind[i][0]) != 0) continue;
        snprintf(text, size, "%.*s%s", (int)(length - end), tensor, behind[i][1]);
        return text;
    }
    return NULL;
}

/* --- the tensors of a shape -------------------------------------------------------------------------- */

typedef struct {
    wt_tensor_visitor *visit;
    void *user;
} visitor;

/* Visits prefix.suffix. A rank below 3 ignores the later dimensions. */
static void mar_visit_tensor(const visitor *v, const char *prefix, const char *suffix, int rank, int64_t a, int64_t b,
                             int64_t c)
{
    char name[160];
    const int64_t shape[3] = {a, b, c};
    snprintf(name, sizeof name, "%s%s", prefix, suffix);
    v->visit(v->user, name, rank, shape);
}

/* .weight [out][in] and .bias [out] */
static void mar_visit_linear(const visitor *v, const char *prefix, const char *layer, int64_t out, int64_t in)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix, layer);
    mar_visit_tensor(v, name, ".weight", 2, out, in, 0);
    mar_visit_tensor(v, name, ".bias", 1, out, 0, 0);
}

static void mar_visit_norm(const visitor *v, const char *prefix, const char *layer, int64_t width)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix, layer);
    mar_visit_tensor(v, name, ".weight", 1, width, 0, 0);
    mar_visit_tensor(v, name, ".bias", 1, width, 0, 0);
}

static void mar_visit_transformer(const visitor *v, const char *blocks, int depth, int64_t width, int64_t hidden)
{
    for (int i = 0; i < depth; i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "%s.%d.", blocks, i);
        mar_visit_norm(v, prefix, "norm1", width);
        mar_visit_linear(v, prefix, "attn.qkv", 3 * width, width);
        mar_visit_linear(v, prefix, "attn.proj", width, width);
        mar_visit_norm(v, prefix, "norm2", width);
        mar_visit_linear(v, prefix, "mlp.fc1", hidden, width);
        mar_visit_linear(v, prefix, "mlp.fc2", width, hidden);
    }
}

static void mar_visit_head(const visitor *v, const mar_model_config *c)
{
    const char *net = "diffloss.net.";
    const int64_t width = c->head_width, frequencies = 256; /* frequencies: sinusoids of the time embedding */
    mar_visit_linear(v, net, "time_embed.mlp.0", width, frequencies);
    mar_visit_linear(v, net, "time_embed.mlp.2", width, width);
    mar_visit_linear(v, net, "cond_embed", width, c->width);
    mar_visit_linear(v, net, "input_proj", width, c->token_dim);
    for (int i = 0; i < c->head_depth; i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "%sres_blocks.%d.", net, i);
        mar_visit_norm(v, prefix, "in_ln", width);
        mar_visit_linear(v, prefix, "mlp.0", width, width);
        mar_visit_linear(v, prefix, "mlp.2", width, width);
        mar_visit_linear(v, prefix, "adaLN_modulation.1", 3 * width, width);
    }
    mar_visit_linear(v, net, "final_layer.linear", 2 * (int64_t)c->token_dim, width);
    mar_visit_linear(v, net, "final_layer.adaLN_modulation.1", 2 * width, width);
}

void family_mar_tensors(const mar_model_config *c, wt_tensor_visitor *visit, void *user)
{
    const visitor v = {visit, user};
    const int64_t width = c->width, positions = (int64_t)c->buffer + c->seq_len;
    mar_visit_tensor(&v, "fake_latent", "", 2, 1, width, 0);
    mar_visit_tensor(&v, "encoder_pos_embed_learned", "", 3, 1, positions, width);
    mar_visit_tensor(&v, "mask_token", "", 3, 1, 1, width);
    mar_visit_tensor(&v, "decoder_pos_embed_learned", "", 3, 1, positions, width);
    mar_visit_tensor(&v, "diffusion_pos_embed_learned", "", 3, 1, c->seq_len, width);
    if (c->classes) mar_visit_tensor(&v, "class_emb.weight", "", 2, c->classes, width, 0);
    mar_visit_linear(&v, "", "z_proj", width, c->token_dim);
    mar_visit_norm(&v, "", "z_proj_ln", width);
    mar_visit_transformer(&v, "encoder_blocks", c->encoder_depth, width, c->mlp_hidden);
    mar_visit_norm(&v, "", "encoder_norm", width);
    mar_visit_linear(&v, "", "decoder_embed", width, width);
    mar_visit_transformer(&v, "decoder_blocks", c->decoder_depth, width, c->mlp_hidden);
    mar_visit_norm(&v, "", "decoder_norm", width);
    mar_visit_head(&v, c);
}

/* --- facts and metadata ------------------------------------------------------------------------------------------- */

/* Writes " (patch_size 2)" unless it is 1. If the file does not say, writes the patch size that fits KL-16. */
static const char *mar_patch_text(const mar_model_config *c, char *text, size_t size)
{
    const int n = c->patch_size ? c->patch_size : mar_patch_size(c, MAR_KL16_CHANNELS);
    *text = '\0';
    if (n > 1) snprintf(text, size, " (patch_size %d%s)", n, c->patch_size ? "" : " with the 16 channels of KL-16");
    return text;
}

static void mar_describe(const wt_file *f, const void *facts, const wt_report *to)
{
    static const char *const encoder[] = {"encoder_", "class_emb.", "fake_latent", "z_proj", NULL};
    static const char *const decoder[] = {"decoder_", "mask_token", "diffusion_pos_embed_learned", NULL};
    static const char *const head[] = {"diffloss.", NULL};
    const mar_model_config *c = &((const family_facts *)facts)->config;
    char heads[FAMILY_HEADS_TEXT], patch[96];
    wt_add_fact(to, "transformer: width %d, %d encoder and %d decoder blocks, %s, MLP %d", c->width, c->encoder_depth,
                c->decoder_depth, family_heads_text(c, heads), c->mlp_hidden);
    wt_add_fact(to, "diffusion head: width %d, %d blocks", c->head_width, c->head_depth);
    wt_add_fact(to, "tokens: %d of %d channels%s, %d classes in %d buffer tokens", c->seq_len, c->token_dim,
                mar_patch_text(c, patch, sizeof patch), c->classes, c->buffer);
    wt_add_fact(to, "parameters: %ld (encoder %ld, decoder %ld, head %ld)", c->parameters, wt_sum_elements(f, encoder),
                wt_sum_elements(f, decoder), wt_sum_elements(f, head));
}

static void mar_put(const void *facts, wt_pairs *m)
{
    const mar_model_config *c = &((const family_facts *)facts)->config;
    wt_put_text(m, "mar.kind", "mar");
    wt_put_number(m, "mar.width", c->width);
    wt_put_number(m, "mar.encoder_depth", c->encoder_depth);
    wt_put_number(m, "mar.decoder_depth", c->decoder_depth);
    if (!c->heads_guessed) wt_put_number(m, "mar.heads", c->heads);
    if (c->decoder_heads != c->heads) wt_put_number(m, "mar.decoder_heads", c->decoder_heads);
    wt_put_number(m, "mar.mlp_hidden", c->mlp_hidden);
    wt_put_number(m, "mar.buffer", c->buffer);
    wt_put_number(m, "mar.seq_len", c->seq_len);
    wt_put_number(m, "mar.token_dim", c->token_dim);
    if (c->patch_size) wt_put_number(m, "mar.patch_size", c->patch_size);
    wt_put_number(m, "mar.classes", c->classes);
    wt_put_number(m, "mar.head_width", c->head_width);
    wt_put_number(m, "mar.head_depth", c->head_depth);
    wt_put_number(m, "mar.parameters", c->parameters);
}

/* --- the row ------------------------------------------------------------------------------------------------------ */

static mar_status mar_derive(const wt_file *f, const wt_asked *asked, void *facts, mar_err *err)
{
    return family_mar_derive(f, asked, &((family_facts *)facts)->config, err);
}

static void mar_visit_facts(const wt_file *f, const void *facts, wt_tensor_visitor *visit, void *user)
{
    (void)f;
    family_mar_tensors(&((const family_facts *)facts)->config, visit, user);
}

const wt_kind family_mar = {
    .kind = MAR_KIND_MAR,
    .name = "MAR model",
    .article = "a",
    .lacks = "no class_emb.weight, no diffloss.net.*",
    .has_heads = 1,
    .titles = {"MAR"},
    .order = MAR_ORDER_SETS,
    .head = MAR_HEAD_DDPM,
    .has_patch_size = 1,
    .facts_size = sizeof(family_facts),
    .recognise = mar_recognise,
    .derive = mar_derive,
    .tensors = mar_visit_facts,
    .is_int8 = family_mar_is_int8,
    .norm_of = mar_norm_of,
    .describe = mar_describe,
    .put = mar_put,
};
