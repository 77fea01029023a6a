/* The configuration of a CLIP in a folder as Hugging Face writes it. */
#include "base/file.h"
#include "base/json.h"
#include "eval/clip.h"
#include "weights/shape.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADS_MAX = 1024, JSON_BYTES_MAX = 1 << 20, JSON_LEVELS = 16, BICUBIC = 3 };
enum { OPEN_IMAGE_HEAD = 80, OPEN_TEXT_HEAD = 64 }; /* widths of heads in ViT-H-14.json of OpenCLIP */

#define LAYER_NAMES                                                                                                    \
    .self = {.norm = ".layer_norm1",                                                                                   \
             .query = ".self_attn.q_proj",                                                                             \
             .key = ".self_attn.k_proj",                                                                               \
             .value = ".self_attn.v_proj",                                                                             \
             .out = ".self_attn.out_proj"},                                                                            \
    .norm = ".layer_norm2", .fc1 = ".mlp.fc1", .fc2 = ".mlp.fc2"
#define OPEN_LAYER_NAMES                                                                                               \
    .self = {.norm = ".ln_1", .qkv = ".attn.in_proj_", .out = ".attn.out_proj"}, .norm = ".ln_2", .fc1 = ".mlp.c_fc",  \
    .fc2 = ".mlp.c_proj"

static const clip_names of_transformers = {
    .image = {.layers = {.before = "vision_model.pre_layrnorm",
                         .layers = "vision_model.encoder.layers.",
                         LAYER_NAMES,
                         .after = "vision_model.post_layernorm"},
              .class_row = "vision_model.embeddings.class_embedding",
              .positions = "vision_model.embeddings.position_embedding.weight",
              .patches = "vision_model.embeddings.patch_embedding"},
    .text = {.layers = "text_model.encoder.layers.", LAYER_NAMES, .after = "text_model.final_layer_norm"},
    .tokens = "text_model.embeddings.token_embedding.weight",
    .positions = "text_model.embeddings.position_embedding.weight",
    .image_project = "visual_projection.weight",
    .text_project = "text_projection.weight",
};

static const clip_names of_open_clip = {
    .image = {.layers = {.before = "visual.ln_pre",
                         .layers = "visual.transformer.resblocks.",
                         OPEN_LAYER_NAMES,
                         .after = "visual.ln_post"},
              .class_row = "visual.class_embedding",
              .positions = "visual.positional_embedding",
              .patches = "visual.conv1"},
    .text = {.layers = "transformer.resblocks.", OPEN_LAYER_NAMES, .after = "ln_final"},
    .tokens = "token_embedding.weight",
    .positions = "positional_embedding",
    .image_project = "visual.proj",
    .text_project = "text_projection",
    .is_transposed = 1,
};

/* --- shapes ------------------------------------------------------------------------------------------------------- */

static mar_status clip_derive_text(const wt_file *f, clip_config *c, mar_err *err)
{
    const wt_tensor *t;
    const clip_names *n = c->names;
    mar_status status = vit_derive_layers(f, &n->text, &c->text, err);
    c->text.causal = c->text.int8 = 1;
    if (status == MAR_OK) status = wt_find_shape(f, n->tokens, 2, &t, err);
    if (status != MAR_OK) return status;
    c->vocabulary = (int)t->shape[0];
    status = wt_find_shape(f, n->positions, 2, &t, err);
    if (status != MAR_OK) return status;
    c->positions = (int)t->shape[0];
    if (c->positions < 2) return vit_refuse_shape(f, t, "two positions or more", err);
    status = wt_find_shape(f, n->text_project, 2, &t, err);
    if (status == MAR_OK) c->embedding = (int)t->shape[n->is_transposed];
    return status;
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

/* Reads member `key` of an object if it is there, a number of `least` to `most`. */
static mar_status clip_read_number(const wt_file *f, const json_value *object, const char *key, double least,
                                   double most, double *out, mar_err *err)
{
    const json_value *v = object ? json_member(object, key) : NULL;
    if (!v || v->type == JSON_NULL) return MAR_OK;
    const double number = json_double(v);
    if (!(number >= least && number <= most))
        return err_set(err, MAR_EMODEL, "%s: config.json: %s is no number of %g to %g", wt_path(f), key, least, most);
    *out = number;
    return MAR_OK;
}

/* Reads heads, eps and activation of a tower from its object in config.json. */
static mar_status read_tower(const wt_file *f, const char *key, int heads, nets_encoder_config *c, mar_err *err)
{
    const json_value *root = wt_config(f), *object = root ? json_member(root, key) : NULL;
    const json_value *activation = object ? json_member(object, "hidden_act") : NULL;
    double number = heads, eps = 1e-5;
    mar_status status = clip_read_number(f, object, "num_attention_heads", 1, HEADS_MAX, &number, err);
    if (status == MAR_OK) status = clip_read_number(f, object, "layer_norm_eps", 0, 1, &eps, err);
    if (status != MAR_OK) return status;
    c->heads = (int)number;
    c->eps = (float)eps;
    if (c->width % c->heads)
        return err_set(err, MAR_EMODEL, "%s: config.json: %s has %d heads, which do not divide the width %d",
                       wt_path(f), key, c->heads, c->width);
    c->head_dim = c->width / c->heads;
    c->activation = KERN_GELU;
    c->quick_gelu = !activation || json_is(activation, "quick_gelu");
    if (c->quick_gelu || json_is(activation, "gelu")) return MAR_OK;
    return err_set(err, MAR_EMODEL, "%s: config.json: hidden_act of %s is another than quick_gelu and gelu", wt_path(f),
                   key);
}

static mar_status clip_read_config(const wt_file *f, clip_config *c, mar_err *err)
{
    const json_value *root = wt_config(f), *text = root ? json_member(root, "text_config") : NULL;
    const char *type = wt_config_text(f, "model_type");
    double end = 49407; /* transformers' default: "<|endoftext|>" */
    if (!root)
        return err_set(err, MAR_EMODEL, "%s: has no config.json, expected the one that says how many heads a CLIP has",
                       wt_path(f));
    if (type && strcmp(type, "clip") != 0)
        return err_set(err, MAR_EMODEL, "%s: config.json: is a %.64s, expected a CLIP (model_type clip)", wt_path(f),
                       type);
    mar_status status = read_tower(f, "vision_config", 12, &c->image.layers, err);
    if (status == MAR_OK) status = read_tower(f, "text_config", 8, &c->text, err);
    if (status == MAR_OK) status = clip_read_number(f, text, "eos_token_id", 0, WT_DIM_MAX, &end, err);
    c->end = end == 2 ? -1 : (int)end; /* 2 stands in old files, whose texts end with the largest id */
    return status;
}

/* --- the preprocessor --------------------------------------------------------------------------------------------- */

/* Reads the text of a JSON file; *text stays NULL if there is none. The caller frees it. */
static mar_status clip_read_text(const char *path, char **text, size_t *size, mar_err *err)
{
    file_source source;
    *text = NULL;
    if (access(path, F_OK) != 0 && errno == ENOENT) return MAR_OK;
    mar_status status = file_source_open(path, &source, err);
    if (status != MAR_OK) return status;
    *size = (size_t)source.size;
    if (source.size > JSON_BYTES_MAX)
        status = err_set(err, MAR_EFORMAT, "%s: has more than %d bytes, expected a preprocessor", path, JSON_BYTES_MAX);
    else if (!(*text = calloc(*size + 1, 1)))
        status = err_set(err, MAR_ENOMEM, "%s: out of memory", path);
    else
        status = file_source_read(&source, 0, *size, *text, err);
    file_source_close(&source);
    return status;
}

static mar_status read_channels(const char *path, const json_value *root, const char *key, double least, float out[3],
                                mar_err *err)
{
    const json_value *list = json_member(root, key), *v = list;
    if (!list) return MAR_OK;
    int good = list->type == JSON_ARRAY && json_children(list) == 3;
    for (int i = 0; i < 3 && good; i++) {
        v = i ? json_next(v) : list + 1;
        const double number = json_double(v);
        good = number >= least && number <= 1;
        out[i] = (float)number;
    }
    if (good) return MAR_OK;
    return err_set(err, MAR_EMODEL, "%s: %s is no list of 3 numbers of %g to 1", path, key, least);
}

/* Checks a size: a number, or an object with shortest_edge, or height and width. */
static mar_status clip_check_size(const char *path, const json_value *root, const char *key, int side, mar_err *err)
{
    const json_value *v = json_member(root, key);
    if (v && v->type == JSON_OBJECT) {
        const json_value *edge = json_member(v, "shortest_edge");
        v = edge ? edge : json_member(v, "height");
    }
    if (!v || json_double(v) == side) return MAR_OK;
    return err_set(err, MAR_EMODEL, "%s: %s is another than %d, the model's pixels", path, key, side);
}

static mar_status read_preprocessor(const char *path, const json_value *root, clip_config *c, mar_err *err)
{
    const json_value *filter = json_member(root, "resample");
    if (filter && json_double(filter) != BICUBIC)
        return err_set(err, MAR_EMODEL, "%s: resample is another than %d, Pillow's bicubic", path, BICUBIC);
    mar_status status = clip_check_size(path, root, "size", c->image.side, err);
    if (status == MAR_OK) status = clip_check_size(path, root, "crop_size", c->image.side, err);
    if (status == MAR_OK) status = read_channels(path, root, "image_mean", 0, c->image.mean, err);
    return status == MAR_OK ? read_channels(path, root, "image_std", 1e-3, c->image.deviation, err) : status;
}

static mar_status derive_preprocessor(const wt_file *f, clip_config *c, mar_err *err)
{
    char path[PATH_MAX], *text = NULL;
    size_t size = 0;
    json j = {.values = NULL};
    if (snprintf(path, sizeof path, "%s/preprocessor_config.json", wt_path(f)) >= (int)sizeof path) return MAR_OK;
    mar_status status = clip_read_text(path, &text, &size, err);
    if (status == MAR_OK && text) {
        const json_error error = json_read_python(text, size, JSON_LEVELS, &j);
        if (error == JSON_NO_MEMORY)
            status = err_set(err, MAR_ENOMEM, "%s: out of memory", path);
        else if (error != JSON_OK || j.values->type != JSON_OBJECT)
            status = err_set(err, MAR_EFORMAT, "%s: is no JSON object", path);
        else
            status = read_preprocessor(path, j.values, c, err);
    }
    json_free(&j);
    free(text);
    return status;
}

/* Sets what ViT-H-14.json of OpenCLIP says, and hpsv2's preprocessing. Texts end with the largest id. */
static mar_status set_open(const wt_file *f, clip_config *c, mar_err *err)
{
    c->end = -1;
    c->image.resize = VIT_TENSOR;
    c->image.layers.eps = c->text.eps = 1e-5f;
    c->image.layers.activation = c->text.activation = KERN_GELU;
    const mar_status status = vit_set_heads(f, "the image tower", OPEN_IMAGE_HEAD, &c->image.layers, err);
    return status == MAR_OK ? vit_set_heads(f, "the text tower", OPEN_TEXT_HEAD, &c->text, err) : status;
}

static int has_names(const wt_file *f, const clip_names *n)
{
    return wt_find(f, n->image.class_row) && wt_find(f, n->text_project);
}

int clip_config_recognise(const wt_file *f)
{
    return has_names(f, &of_open_clip) || has_names(f, &of_transformers);
}

mar_status clip_config_derive(const wt_file *f, clip_config *out, mar_err *err)
{
    const int is_open = has_names(f, &of_open_clip);
    *out = (clip_config){.names = is_open ? &of_open_clip : &of_transformers};
    const clip_names *n = out->names;
    if (!has_names(f, n))
        return err_set(
            err, MAR_EMODEL,
            "%s: is no CLIP (no %s, no %s), expected a folder of transformers' CLIPModel, or a file of HPS v2",
            wt_path(f), n->image.class_row, n->text_project);
    mar_status status = vit_config_derive(f, &n->image, &out->image, err);
    out->image.layers.int8 = 1;
    if (status == MAR_OK) status = clip_derive_text(f, out, err);
    if (status == MAR_OK) status = is_open ? set_open(f, out, err) : clip_read_config(f, out, err);
    if (status == MAR_OK && !is_open) status = derive_preprocessor(f, out, err);
    out->parameters = wt_count_parameters(f);
    return status;
}
