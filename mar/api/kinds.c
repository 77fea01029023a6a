#include "mar/api/kinds.h"

#include "llamagen/public.h"

#include "mar/core/config.h"
#include "vae/vae.h"
#include "weights/shape.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void mar_metadata_text(mar_metadata *m, const char *key, const char *value)
{
    m->pairs[m->count][0] = key;
    m->pairs[m->count][1] = value;
    m->count++;
}

static void metadata_number(mar_metadata *m, const char *key, long value)
{
    char *text = m->numbers[m->count];
    snprintf(text, sizeof m->numbers[0], "%ld", value);
    mar_metadata_text(m, key, text);
}

static void metadata_real(mar_metadata *m, const char *key, double value)
{
    char *text = m->numbers[m->count];
    snprintf(text, sizeof m->numbers[0], "%.9g", value);
    mar_metadata_text(m, key, text);
}

/* Destination of the file's facts. */
typedef struct {
    mar_kind_fact *add;
    void *user;
} facts;

__attribute__((format(printf, 2, 3))) static void add_line(const facts *to, const char *format, ...)
{
    char line[ERR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    err_line_v(line, sizeof line, format, args);
    va_end(args);
    to->add(to->user, line);
}

static int begins_with_any(const char *name, const char *const *prefixes)
{
    for (; *prefixes; prefixes++)
        if (strncmp(name, *prefixes, strlen(*prefixes)) == 0) return 1;
    return 0;
}

static long sum_parameters(const wt_file *f, const char *const *prefixes)
{
    long sum = 0;
    for (int i = 0; i < wt_count(f); i++)
        if (begins_with_any(wt_at(f, i)->name, prefixes) && wt_at(f, i)->dtype != WT_UNREAD &&
            !wt_matrix_of(f, wt_at(f, i)))
            sum += (long)wt_at(f, i)->count;
    return sum;
}

/* --- MAR ---------------------------------------------------------------------------------------------------------- */

static mar_status derive_mar(const mar *m, const wt_file *f, int heads, mar_configs *c, mar_err *err)
{
    const mar_status status = mar_config_derive(f, heads, &c->model, err);
    return status == MAR_OK ? mar_config_patch(f, m->patch_size, &c->model, err) : status;
}

static void visit_mar(const wt_file *f, const mar_configs *c, mar_kind_visitor *visit, void *user)
{
    (void)f;
    mar_config_tensors(&c->model, visit, user);
}

/* Writes "12 heads", and says if the number is a guess. */
static const char *heads_text(const mar_model_config *c, char *text, size_t size)
{
    if (c->decoder_heads != c->heads)
        snprintf(text, size, "%d and %d heads", c->heads, c->decoder_heads);
    else
        snprintf(text, size, "%d heads%s", c->heads, c->heads_guessed ? " (a guess: nothing in the file says it)" : "");
    return text;
}

/* Writes " (patch_size 2)" unless it is 1. If the file does not say, writes the patch size that fits KL-16. */
static const char *patch_text(const mar_model_config *c, char *text, size_t size)
{
    const int n = c->patch_size ? c->patch_size : mar_patch_size(c, MAR_KL16_CHANNELS);
    *text = '\0';
    if (n > 1) snprintf(text, size, " (patch_size %d%s)", n, c->patch_size ? "" : " with the 16 channels of KL-16");
    return text;
}

static void describe_mar(const wt_file *f, const mar_configs *configs, mar_kind_fact *add, void *user)
{
    static const char *const encoder[] = {"encoder_", "class_emb.", "fake_latent", "z_proj", NULL};
    static const char *const decoder[] = {"decoder_", "mask_token", "diffusion_pos_embed_learned", NULL};
    static const char *const head[] = {"diffloss.", NULL};
    const mar_model_config *c = &configs->model;
    const facts to = {add, user};
    char heads[96], patch[96];
    add_line(&to, "transformer: width %d, %d encoder and %d decoder blocks, %s, MLP %d", c->width, c->encoder_depth,
             c->decoder_depth, heads_text(c, heads, sizeof heads), c->mlp_hidden);
    add_line(&to, "diffusion head: width %d, %d blocks", c->head_width, c->head_depth);
    add_line(&to, "tokens: %d of %d channels%s, %d classes in %d buffer tokens", c->seq_len, c->token_dim,
             patch_text(c, patch, sizeof patch), c->classes, c->buffer);
    add_line(&to, "parameters: %ld (encoder %ld, decoder %ld, head %ld)", c->parameters, sum_parameters(f, encoder),
             sum_parameters(f, decoder), sum_parameters(f, head));
}

static void put_mar(const mar_configs *configs, mar_metadata *m)
{
    const mar_model_config *c = &configs->model;
    mar_metadata_text(m, "mar.kind", "mar");
    metadata_number(m, "mar.width", c->width);
    metadata_number(m, "mar.encoder_depth", c->encoder_depth);
    metadata_number(m, "mar.decoder_depth", c->decoder_depth);
    if (!c->heads_guessed) metadata_number(m, "mar.heads", c->heads);
    if (c->decoder_heads != c->heads) metadata_number(m, "mar.decoder_heads", c->decoder_heads);
    metadata_number(m, "mar.mlp_hidden", c->mlp_hidden);
    metadata_number(m, "mar.buffer", c->buffer);
    metadata_number(m, "mar.seq_len", c->seq_len);
    metadata_number(m, "mar.token_dim", c->token_dim);
    if (c->patch_size) metadata_number(m, "mar.patch_size", c->patch_size);
    metadata_number(m, "mar.classes", c->classes);
    metadata_number(m, "mar.head_width", c->head_width);
    metadata_number(m, "mar.head_depth", c->head_depth);
    metadata_number(m, "mar.parameters", c->parameters);
}

/* --- SphereAR ----------------------------------------------------------------------------------------------------- */

static mar_status derive_spherear(const mar *m, const wt_file *f, int heads, mar_configs *c, mar_err *err)
{
    (void)m;
    const mar_status status = sphere_config_derive(f, heads, &c->sphere, err);
    if (status != MAR_OK) return status;
    c->model = sphere_public_config(&c->sphere);
    return vae_config_is_vit(f) ? vae_config_derive(f, &c->vae, err) : MAR_OK;
}

static void visit_spherear(const wt_file *f, const mar_configs *c, mar_kind_visitor *visit, void *user)
{
    sphere_config_tensors(&c->sphere, visit, user);
    if (vae_config_is_vit(f)) vae_config_tensors(f, &c->vae, visit, user);
}

/* Adds the shape of a ViT image decoder. */
static void add_vit(const facts *to, const mar_vae_config *c)
{
    char grid[32] = "any number of";
    if (c->grid) snprintf(grid, sizeof grid, "%dx%d", c->grid, c->grid);
    add_line(to, "image decoder: %s tokens of %d channels, stride %d; transformer of width %d, %d blocks, %d head%s",
             grid, c->z_channels, c->stride, c->width, c->depth, c->heads, c->heads == 1 ? "" : "s");
}

static void describe_spherear(const wt_file *f, const mar_configs *configs, mar_kind_fact *add, void *user)
{
    static const char *const head[] = {"head.", NULL}, *const decoder[] = {"vae.decoder.", "vae.post_quant_proj.",
                                                                           NULL};
    const gpt_config *c = &configs->sphere.transformer;
    const diff_head_shape *h = &configs->sphere.head;
    const facts to = {add, user};
    char heads[96];
    add_line(&to, "transformer: width %d, %d blocks, %s, SwiGLU %d", c->shape.width, c->shape.depth,
             heads_text(&configs->model, heads, sizeof heads), c->shape.hidden);
    add_line(&to, "flow head: width %d, %d blocks, SwiGLU %d, %d adaLN layers", h->width, h->depth, h->hidden,
             h->ada_layers);
    add_line(&to, "tokens: %d of %d channels, %d classes in %d class tokens", c->shape.seq_len, h->channels,
             c->shape.classes, c->shape.prefix);
    if (vae_config_is_vit(f)) add_vit(&to, &configs->vae);
    add_line(&to, "parameters: %ld (head %ld); image decoder: %ld", configs->sphere.parameters, sum_parameters(f, head),
             sum_parameters(f, decoder));
}

static void put_spherear(const mar_configs *configs, mar_metadata *m)
{
    const gpt_config *c = &configs->sphere.transformer;
    const diff_head_shape *h = &configs->sphere.head;
    mar_metadata_text(m, "mar.kind", "spherear");
    metadata_number(m, "mar.width", c->shape.width);
    metadata_number(m, "mar.depth", c->shape.depth);
    if (!c->heads_guessed) metadata_number(m, "mar.heads", c->shape.heads);
    metadata_number(m, "mar.hidden", c->shape.hidden);
    metadata_number(m, "mar.seq_len", c->shape.seq_len);
    metadata_number(m, "mar.token_dim", h->channels);
    metadata_number(m, "mar.classes", c->shape.classes);
    metadata_number(m, "mar.head_width", h->width);
    metadata_number(m, "mar.head_depth", h->depth);
    if (configs->vae.depth) metadata_number(m, "mar.vae_heads", configs->vae.heads);
    metadata_number(m, "mar.parameters", configs->sphere.parameters);
}

/* --- LlamaGen ----------------------------------------------------------------------------------------------------- */

static mar_status derive_llamagen(const mar *m, const wt_file *f, int heads, mar_configs *c, mar_err *err)
{
    const mar_status status = mar_discrete_config(m, f, heads, &c->gpt, err);
    if (status == MAR_OK) c->model = mar_discrete_public_config(&c->gpt);
    return status;
}

static void visit_llamagen(const wt_file *f, const mar_configs *c, mar_kind_visitor *visit, void *user)
{
    (void)f;
    causal_tensors(&c->gpt.shape, visit, user);
}

static void describe_llamagen(const wt_file *f, const mar_configs *configs, mar_kind_fact *add, void *user)
{
    const gpt_config *c = &configs->gpt;
    const facts to = {add, user};
    char heads[96], source[GPT_GUESS_TEXT + 8] = "", guess[GPT_GUESS_TEXT];
    (void)f;
    if (c->seq_len_guessed)
        snprintf(source, sizeof source, " (%s)", gpt_config_guess_text(c, guess));
    else if (c->image_size && c->downsample_size)
        snprintf(source, sizeof source, ", by the training's image_size %ld", c->image_size);
    add_line(&to, "transformer: width %d, %d blocks, %s, SwiGLU %d", c->shape.width, c->shape.depth,
             heads_text(&configs->model, heads, sizeof heads), c->shape.hidden);
    add_line(&to, "tokens: %d of a vocabulary of %d%s", c->shape.seq_len, c->shape.vocabulary, source);
    if (c->shape.caption_dim)
        add_line(&to, "captions: %d positions of %d features", c->shape.prefix, c->shape.caption_dim);
    else
        add_line(&to, "classes: %d", c->shape.classes);
    add_line(&to, "parameters: %ld", c->parameters);
}

static void put_llamagen(const mar_configs *configs, mar_metadata *m)
{
    const gpt_config *c = &configs->gpt;
    mar_metadata_text(m, "mar.kind", "llamagen");
    metadata_number(m, "mar.width", c->shape.width);
    metadata_number(m, "mar.depth", c->shape.depth);
    if (!c->heads_guessed) metadata_number(m, "mar.heads", c->shape.heads);
    metadata_number(m, "mar.hidden", c->shape.hidden);
    metadata_number(m, "mar.vocabulary", c->shape.vocabulary);
    if (!c->seq_len_guessed) metadata_number(m, "mar.seq_len", c->shape.seq_len);
    if (c->seq_len_guessed && c->image_size) metadata_number(m, "args.image_size", c->image_size);
    if (c->seq_len_guessed && c->downsample_size) metadata_number(m, "args.downsample_size", c->downsample_size);
    metadata_number(m, "mar.classes", c->shape.classes);
    if (c->shape.caption_dim) {
        metadata_number(m, "mar.caption_tokens", c->shape.prefix);
        metadata_number(m, "mar.caption_dim", c->shape.caption_dim);
    }
    metadata_number(m, "mar.parameters", c->parameters);
}

/* --- decoders that write images among text ------------------------------------------------------------------------ */

static mar_status derive_decoder(const mar *m, const wt_file *f, int heads, mar_configs *c, mar_err *err)
{
    const mar_status status = mar_decoder_config(m, f, heads, &c->gpt, err);
    if (status == MAR_OK) c->model = mar_discrete_public_config(&c->gpt);
    return status;
}

static void describe_decoder(const wt_file *f, const mar_configs *configs, mar_kind_fact *add, void *user)
{
    static const char *const encoder[] = {"model.vqmodel.", "vqmodel.", NULL};
    const gpt_config *c = &configs->gpt;
    const text_family *family = c->grammar;
    const facts to = {add, user};
    const char *name = wt_config_architecture(f);
    const long ignored = sum_parameters(f, encoder);
    char groups[64] = "";
    if (c->shape.kv_heads != c->shape.heads) snprintf(groups, sizeof groups, " in %d groups", c->shape.kv_heads);
    add_line(&to, "family: %s%s%s%s", family->title, name ? " (config.json: " : "", name ? name : "", name ? ")" : "");
    add_line(&to, "transformer: width %d, %d blocks, %d heads%s, SwiGLU %d%s", c->shape.width, c->shape.depth,
             c->shape.heads, groups, c->shape.hidden, c->shape.qk_norm ? ", norms of q and k" : "");
    add_line(&to, "vocabulary: %d tokens, of which %d are a codebook's", c->shape.rows, c->shape.vocabulary);
    add_line(&to, "images: %dx%d pixels in %dx%d tokens%s; prompts up to %d tokens", c->shape.columns * family->stride,
             c->shape.seq_len / c->shape.columns * family->stride, c->shape.columns,
             c->shape.seq_len / c->shape.columns, family->fixed_size ? "" : ", other sizes by --size", c->shape.prefix);
    add_line(&to, "parameters: %ld", c->parameters);
    if (ignored) add_line(&to, "ignored: %ld parameters of its image tokenizer", ignored);
}

static void put_decoder(const mar_configs *configs, mar_metadata *m)
{
    const gpt_config *c = &configs->gpt;
    mar_metadata_text(m, "mar.kind", "decoder");
    metadata_number(m, "mar.width", c->shape.width);
    metadata_number(m, "mar.depth", c->shape.depth);
    metadata_number(m, "mar.heads", c->shape.heads);
    if (c->shape.head_dim * c->shape.heads != c->shape.width) metadata_number(m, "mar.head_dim", c->shape.head_dim);
    metadata_real(m, "mar.eps", (double)c->shape.eps);
    metadata_real(m, "mar.rope_base", (double)c->shape.rope_base);
    metadata_number(m, "mar.parameters", c->parameters);
}

/* --- EAGLE drafters ----------------------------------------------------------------------------------------------- */

static mar_status derive_eagle(const mar *m, const wt_file *f, int heads, mar_configs *c, mar_err *err)
{
    (void)m;
    const mar_status status = eagle_config_derive(f, heads, &c->eagle, err);
    if (status == MAR_OK) c->model = mar_eagle_public_config(&c->eagle);
    return status;
}

static void visit_eagle(const wt_file *f, const mar_configs *c, mar_kind_visitor *visit, void *user)
{
    (void)f;
    eagle_config_tensors(&c->eagle, visit, user);
}

static void describe_eagle(const wt_file *f, const mar_configs *configs, mar_kind_fact *add, void *user)
{
    const eagle_config *c = &configs->eagle;
    const facts to = {add, user};
    (void)f;
    add_line(&to, "use: --draft FILE, with the model that it was trained for");
    add_line(&to, "layer: width %d, SwiGLU %d%s%s", c->width, c->hidden, c->bias ? ", fc with a bias" : "",
             c->first_norm ? "" : ", no norm in front of its attention");
    if (c->published) add_line(&to, "names: LANTERN's%s", c->vocabulary ? ", with an embedding of its own" : "");
    add_line(&to, "parameters: %ld", c->parameters);
}

static void put_eagle(const mar_configs *configs, mar_metadata *m)
{
    const eagle_config *c = &configs->eagle;
    mar_metadata_text(m, "mar.kind", "eagle");
    metadata_number(m, "mar.width", c->width);
    metadata_number(m, "mar.hidden", c->hidden);
    if (c->heads) metadata_number(m, "mar.heads", c->heads);
    metadata_number(m, "mar.parameters", c->parameters);
}

/* --- image decoders ----------------------------------------------------------------------------------------------- */

static int recognise_vq(const wt_file *f)
{
    return vae_config_recognise(f) && vae_config_is_vq(f);
}

static int recognise_emu3(const wt_file *f)
{
    return vae_config_recognise(f) && vae_config_is_emu3(f);
}

static mar_status derive_vae(const mar *m, const wt_file *f, int heads, mar_configs *c, mar_err *err)
{
    (void)m, (void)heads;
    return vae_config_derive(f, &c->vae, err);
}

static void visit_vae(const wt_file *f, const mar_configs *c, mar_kind_visitor *visit, void *user)
{
    vae_config_tensors(f, &c->vae, visit, user);
}

static void describe_vae(const wt_file *f, const mar_configs *configs, mar_kind_fact *add, void *user)
{
    static const char *const encoder[] = {"encoder.", "quant_conv.", NULL};
    static const char *const decoder[] = {"decoder.", "post_quant_conv.", "quantize.embedding.", NULL};
    const mar_vae_config *c = &configs->vae;
    const facts to = {add, user};
    if (c->depth) {
        add_vit(&to, c);
        add_line(&to, "parameters: %ld; without the encoder, which nothing needs", c->parameters);
        return;
    }
    add_line(&to, "autoencoder: %d latent channels, stride %d, %d levels from width %d, %d residual blocks",
             c->z_channels, c->stride, c->levels, c->channels, c->res_blocks);
    if (c->codebook)
        add_line(&to, "codebook: %d tokens of %d numbers, of %s models", c->codebook, c->z_channels,
                 vae_config_made_for(f));
    if (vae_config_is_emu3(f))
        add_line(&to, "parameters: %ld; without the encoder, which nothing needs", c->parameters);
    else
        add_line(&to, "parameters: %ld (encoder %ld, decoder %ld)", c->parameters, sum_parameters(f, encoder),
                 sum_parameters(f, decoder));
}

static void put_vae(const mar_configs *configs, mar_metadata *m)
{
    const mar_vae_config *c = &configs->vae;
    mar_metadata_text(m, "mar.kind", "vae");
    metadata_number(m, "mar.vae_z_channels", c->z_channels);
    metadata_number(m, "mar.vae_stride", c->stride);
    metadata_number(m, "mar.vae_channels", c->channels);
    metadata_number(m, "mar.vae_levels", c->levels);
    metadata_number(m, "mar.vae_res_blocks", c->res_blocks);
    if (c->codebook) metadata_number(m, "mar.vae_codebook", c->codebook);
    if (c->depth) {
        metadata_number(m, "mar.vae_width", c->width);
        metadata_number(m, "mar.vae_depth", c->depth);
        metadata_number(m, "mar.vae_heads", c->heads);
    }
    metadata_number(m, "mar.parameters", c->parameters);
}

/* --- VGG16 -------------------------------------------------------------------------------------------------------- */

static mar_status derive_vgg(const mar *m, const wt_file *f, int heads, mar_configs *c, mar_err *err)
{
    (void)m, (void)heads;
    return eval_vgg_derive(f, &c->vgg, err);
}

static void visit_vgg(const wt_file *f, const mar_configs *c, mar_kind_visitor *visit, void *user)
{
    eval_vgg_tensors(f, &c->vgg, visit, user);
}

static void describe_vgg(const wt_file *f, const mar_configs *configs, mar_kind_fact *add, void *user)
{
    const eval_vgg_config *c = &configs->vgg;
    const facts to = {add, user};
    (void)f;
    add_line(&to, "use: mar eval --vgg FILE, for precision and recall");
    add_line(&to, "features: %d", c->features);
    add_line(&to, "parameters: %ld", c->parameters);
}

static void put_vgg(const mar_configs *configs, mar_metadata *m)
{
    const eval_vgg_config *c = &configs->vgg;
    mar_metadata_text(m, "mar.kind", "vgg16");
    metadata_number(m, "mar.features", c->features);
    metadata_number(m, "mar.parameters", c->parameters);
}

/* --- Inception ---------------------------------------------------------------------------------------------------- */

static mar_status derive_inception(const mar *m, const wt_file *f, int heads, mar_configs *c, mar_err *err)
{
    (void)m, (void)heads;
    return eval_inception_derive(f, &c->inception, err);
}

static void visit_inception(const wt_file *f, const mar_configs *c, mar_kind_visitor *visit, void *user)
{
    (void)c;
    eval_inception_tensors(f, visit, user);
}

/* Returns whether the tensor counts the batches seen by a batch norm. No code needs it. */
static int is_counter(const char *tensor)
{
    static const char end[] = ".bn.num_batches_tracked";
    const size_t n = strlen(tensor);
    return n >= sizeof end && strcmp(tensor + n + 1 - sizeof end, end) == 0;
}

static void describe_inception(const wt_file *f, const mar_configs *configs, mar_kind_fact *add, void *user)
{
    const eval_inception_config *c = &configs->inception;
    const facts to = {add, user};
    (void)f;
    add_line(&to, "use: mar eval --inception FILE, for FID, sFID, Inception score, precision and recall");
    add_line(&to, "features: %d, %d spatial; %d classes", c->features, c->spatial, c->classes);
    add_line(&to, "parameters: %ld", c->parameters);
}

static void put_inception(const mar_configs *configs, mar_metadata *m)
{
    const eval_inception_config *c = &configs->inception;
    mar_metadata_text(m, "mar.kind", "inception");
    metadata_number(m, "mar.features", c->features);
    metadata_number(m, "mar.classes", c->classes);
    metadata_number(m, "mar.parameters", c->parameters);
}

/* --- text encoders ------------------------------------------------------------------------------------------------ */

static mar_status derive_t5(const mar *m, const wt_file *f, int heads, mar_configs *c, mar_err *err)
{
    (void)m, (void)heads;
    return t5_config_derive(f, &c->t5, err);
}

static void visit_t5(const wt_file *f, const mar_configs *c, mar_kind_visitor *visit, void *user)
{
    t5_config_tensors(f, &c->t5, visit, user);
}

static void describe_t5(const wt_file *f, const mar_configs *configs, mar_kind_fact *add, void *user)
{
    static const char *const decoder[] = {"decoder.", "lm_head.", NULL};
    const t5_config *c = &configs->t5;
    const nets_encoder_config *l = &c->layers;
    const facts to = {add, user};
    const long ignored = sum_parameters(f, decoder);
    const char *name = wt_config_architecture(f);
    if (name) add_line(&to, "config.json: %s", name);
    add_line(&to, "use: --t5 FOLDER, with spiece.model in it and a text-to-image model of width %d for its captions",
             l->width);
    add_line(&to, "transformer: width %d, %d layers, %d heads of %d, gated GELU %d, %d buckets of positions up to %d",
             l->width, l->depth, l->heads, l->head_dim, l->hidden, c->buckets, c->max_distance);
    add_line(&to, "vocabulary: %d tokens", c->vocabulary);
    add_line(&to, "parameters: %ld", c->parameters);
    if (ignored) add_line(&to, "ignored: %ld parameters of the decoder, which nothing needs", ignored);
}

static void put_t5(const mar_configs *configs, mar_metadata *m)
{
    const t5_config *c = &configs->t5;
    const nets_encoder_config *l = &c->layers;
    mar_metadata_text(m, "mar.kind", "t5");
    metadata_number(m, "mar.width", l->width);
    metadata_number(m, "mar.depth", l->depth);
    metadata_number(m, "mar.heads", l->heads);
    metadata_number(m, "mar.hidden", l->hidden);
    metadata_number(m, "mar.buckets", c->buckets);
    metadata_number(m, "mar.max_distance", c->max_distance);
    metadata_real(m, "mar.eps", (double)l->eps);
    mar_metadata_text(m, "mar.activation", "gated-gelu");
    metadata_number(m, "mar.parameters", c->parameters);
}

/* --- unsupported files -------------------------------------------------------------------------------------------- */

static int has_any(const wt_file *f, const char *const *prefixes)
{
    for (int i = 0; i < wt_count(f); i++)
        if (begins_with_any(wt_at(f, i)->name, prefixes)) return 1;
    return 0;
}

static int recognise_stable_diffusion(const wt_file *f)
{
    static const char *const parts[] = {"model.diffusion_model.", "first_stage_model.", "cond_stage_model.", NULL};
    return has_any(f, parts);
}

/* Recognises a KL or VQ autoencoder with the layer names of Hugging Face's diffusers. */
static int recognise_diffusers(const wt_file *f)
{
    static const char *const parts[] = {"decoder.up_blocks.", "decoder.mid_block.", NULL};
    return has_any(f, parts);
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

static const mar_file_kind kinds[] = {
    {.kind = MAR_KIND_MAR,
     .name = "MAR model",
     .article = "a",
     .lacks = "no class_emb.weight, no diffloss.net.*",
     .has_heads = 1,
     .has_patch_size = 1,
     .recognise = mar_config_recognise,
     .derive = derive_mar,
     .tensors = visit_mar,
     .is_int8 = mar_config_is_int8,
     .norm_of = mar_config_norm_of,
     .facts = describe_mar,
     .put = put_mar},
    {.kind = MAR_KIND_SPHEREAR,
     .name = "SphereAR model",
     .article = "a",
     .lacks = "no pos_for_diff.weight",
     .has_heads = 1,
     .takes_ema = 1,
     .recognise = sphere_config_recognise,
     .derive = derive_spherear,
     .tensors = visit_spherear,
     .is_int8 = sphere_config_is_int8,
     .ignores = sphere_config_ignores,
     .facts = describe_spherear,
     .put = put_spherear},
    {.kind = MAR_KIND_DECODER,
     .name = "decoder that writes images among text",
     .is_folder = 1,
     .article = "a",
     .lacks = "no model.embed_tokens.weight",
     .recognise = gpt_config_recognise_decoder,
     .derive = derive_decoder,
     .tensors = visit_llamagen,
     .is_int8 = gpt_config_is_int8,
     .ignores = gpt_config_ignores_decoder,
     .facts = describe_decoder,
     .put = put_decoder},
    {.kind = MAR_KIND_LLAMAGEN,
     .name = "LlamaGen model",
     .article = "a",
     .lacks = "no tok_embeddings.weight",
     .has_heads = 1,
     .has_seq_len = 1,
     .recognise = gpt_config_recognise,
     .derive = derive_llamagen,
     .tensors = visit_llamagen,
     .is_int8 = gpt_config_is_int8,
     .ignores = gpt_config_ignores,
     .facts = describe_llamagen,
     .put = put_llamagen},
    {.kind = MAR_KIND_EAGLE,
     .name = "EAGLE drafter",
     .article = "an",
     .lacks = "no eagle.fc.weight",
     .has_heads = 1,
     .recognise = eagle_config_recognise,
     .derive = derive_eagle,
     .tensors = visit_eagle,
     .is_int8 = gpt_config_is_int8,
     .ignores = eagle_config_ignores,
     .facts = describe_eagle,
     .put = put_eagle},
    {.name = "Stable Diffusion checkpoint",
     .article = "a",
     .instead = "a MAR, SphereAR or LlamaGen model, or an image decoder alone",
     .for_kinds = MAR_KINDS_OF_MODELS | 1 << MAR_KIND_VAE,
     .recognise = recognise_stable_diffusion},
    {.name = "autoencoder with diffusers' names (decoder.up_blocks)",
     .article = "an",
     .instead = "CompVis's (decoder.up)",
     .for_kinds = 1 << MAR_KIND_VAE,
     .recognise = recognise_diffusers},
    {.kind = MAR_KIND_VAE,
     .name = "ViT autoencoder",
     .article = "a",
     .recognise = vae_config_is_vit,
     .derive = derive_vae,
     .tensors = visit_vae,
     .ignores = vae_config_ignores,
     .facts = describe_vae,
     .put = put_vae},
    {.kind = MAR_KIND_VAE,
     .name = "VQ autoencoder",
     .article = "a",
     .recognise = recognise_emu3,
     .derive = derive_vae,
     .tensors = visit_vae,
     .ignores = vae_config_ignores_emu3,
     .facts = describe_vae,
     .put = put_vae},
    {.kind = MAR_KIND_VAE,
     .name = "VQ autoencoder",
     .article = "a",
     .recognise = recognise_vq,
     .derive = derive_vae,
     .tensors = visit_vae,
     .ignores = vae_config_ignores_vq,
     .facts = describe_vae,
     .put = put_vae},
    {.kind = MAR_KIND_VAE,
     .name = "KL autoencoder",
     .article = "a",
     .lacks = "no post_quant_conv.weight",
     .recognise = vae_config_recognise,
     .derive = derive_vae,
     .tensors = visit_vae,
     .facts = describe_vae,
     .put = put_vae},
    {.kind = MAR_KIND_VGG16,
     .name = "VGG16 network",
     .article = "a",
     .lacks = "no features.28.weight, no classifier.3.weight",
     .recognise = eval_vgg_recognise,
     .derive = derive_vgg,
     .tensors = visit_vgg,
     .facts = describe_vgg,
     .put = put_vgg},
    {.kind = MAR_KIND_INCEPTION,
     .name = "Inception-v3 network",
     .article = "an",
     .lacks = "no Mixed_5b.branch1x1.conv.weight",
     .recognise = eval_inception_recognise,
     .derive = derive_inception,
     .tensors = visit_inception,
     .ignores = is_counter,
     .facts = describe_inception,
     .put = put_inception},
    {.kind = MAR_KIND_T5,
     .name = "T5 encoder",
     .article = "a",
     .lacks = "no encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
     .is_folder = 1,
     .recognise = t5_config_recognise,
     .derive = derive_t5,
     .tensors = visit_t5,
     .is_int8 = t5_config_is_int8,
     .ignores = t5_config_ignores,
     .repeats = t5_config_repeats,
     .facts = describe_t5,
     .put = put_t5},
    {0},
};

const mar_file_kind *mar_kind_of(const wt_file *f)
{
    for (const mar_file_kind *k = kinds; k->name; k++)
        if (k->recognise(f)) return k;
    return NULL;
}

const char *mar_kinds_lack(unsigned wanted, char *text, size_t size)
{
    int n = 0, many = 0;
    for (const mar_file_kind *k = kinds; k->name; k++) many += k->lacks && (wanted & 1u << k->kind);
    *text = '\0';
    for (const mar_file_kind *k = kinds; k->name; k++) {
        const size_t used = strlen(text);
        if (!k->lacks || !(wanted & 1u << k->kind)) continue;
        snprintf(text + used, size - used, "%s%s %s (%s)",
                 n++        ? " nor "
                 : many > 1 ? "neither "
                            : "not ",
                 k->article, k->name, k->lacks);
    }
    return text;
}

mar_status mar_check_kind(const wt_file *f, unsigned wanted, const char *expected, mar_err *err)
{
    char text[ERR_TEXT_MAX];
    const mar_file_kind *k = mar_kind_of(f);
    if (k && (wanted & 1u << k->kind)) return MAR_OK;
    if (!k) return err_set(err, MAR_EMODEL, "%s: %s", wt_path(f), mar_kinds_lack(wanted, text, sizeof text));
    if (k->kind == MAR_KIND_VAE)
        return err_set(err, MAR_EMODEL, "%s: is an image decoder (%s), expected %s", wt_path(f), k->name, expected);
    return err_set(err, MAR_EMODEL, "%s: is %s %s, expected %s", wt_path(f), k->article, k->name,
                   k->for_kinds & wanted ? k->instead : expected);
}

int mar_has_low(const wt_file *f, wt_dtype dtype)
{
    const mar_file_kind *kind = mar_kind_of(f);
    for (int i = 0; kind && kind->is_int8 && i < wt_count(f); i++)
        if (wt_at(f, i)->dtype == dtype && kind->is_int8(wt_at(f, i)->name)) return 1;
    return 0;
}

void mar_weights_text(const wt_file *f, char *text, size_t size)
{
    int n;
    const char *prefix = wt_prefix(f, &n), *set = wt_set(f);
    snprintf(text, size, "%s%s%s%s", set ? " of " : "", set ? set : "", prefix ? ", names without " : "",
             prefix ? prefix : "");
}

mar_status mar_check_heads(const wt_file *f, int heads, mar_err *err)
{
    const mar_file_kind *k = mar_kind_of(f);
    if (heads < 65536 || !k || k->kind == MAR_KIND_MAR) return MAR_OK;
    return err_set(err, MAR_EARG, "--heads %d,%d: expected one number: %s is %s %s", heads % 65536, heads / 65536,
                   wt_path(f), k->article, k->name);
}
