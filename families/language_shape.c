/* The configuration, and the shape of a transformer of Llama's kind from tensors, configuration and metadata. */
#include "families/language.h"

#include "kernels/causal.h"
#include "weights/shape.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const json_value *language_member(const wt_file *f, const char *key)
{
    static const char *const parts[] = {"text_config", "model", "llm"};
    const json_value *root = wt_config(f), *v = root ? json_member(root, key) : NULL;
    for (size_t i = 0; root && !v && i < sizeof parts / sizeof *parts; i++) {
        const json_value *part = json_member(root, parts[i]);
        if (part && part->type == JSON_OBJECT) v = json_member(part, key);
    }
    return v && v->type != JSON_NULL ? v : NULL;
}

mar_status language_number(const wt_file *f, const char *key, int least, int *out, mar_err *err)
{
    const json_value *v = language_member(f, key);
    int64_t number;
    if (!v) return MAR_OK;
    if (!json_integer(v, &number) || number < least || number > INT_MAX / 2)
        return err_set(err, MAR_EMODEL, "%s: its configuration has no whole number from %d on for %s", wt_path(f),
                       least, key);
    *out = (int)number;
    return MAR_OK;
}

mar_status language_read_number(const wt_file *f, const char *key, const char *name, double *out, mar_err *err)
{
    const json_value *v = language_member(f, key);
    const char *text = wt_metadata(f, name);
    char *end = NULL;
    if (v && !(json_double(v) > 0 && json_double(v) < 1e15))
        return err_set(err, MAR_EMODEL, "%s: its configuration has no positive number for %s", wt_path(f), key);
    if (v) *out = json_double(v);
    if (wt_config(f) || !text) return MAR_OK;
    const double x = strtod(text, &end);
    if (end == text || *end || !(x > 0 && x < 1e15))
        return err_set(err, MAR_EMODEL, "%s: metadata %s is \"%s\", expected a positive number", wt_path(f), name,
                       text);
    *out = x;
    return MAR_OK;
}

/* Reads the base of the rotary positions, which newer files of transformers keep in an object of their own. */
static mar_status language_read_rope(const wt_file *f, const char *name, double *out, mar_err *err)
{
    const json_value *scaling = language_member(f, "rope_scaling"), *own = language_member(f, "rope_parameters");
    const json_value *base = own && own->type == JSON_OBJECT ? json_member(own, "rope_theta") : NULL;
    const json_value *type = own && own->type == JSON_OBJECT ? json_member(own, "rope_type") : NULL;
    if (scaling || (type && type->type == JSON_STRING && strcmp(type->text, "default") != 0))
        return err_set(err, MAR_EMODEL, "%s: its configuration scales the rotary positions, expected plain ones",
                       wt_path(f));
    if (!base) return language_read_number(f, "rope_theta", name, out, err);
    *out = json_double(base);
    if (*out > 0 && *out < 1e15) return MAR_OK;
    return err_set(err, MAR_EMODEL, "%s: its configuration has no positive number for rope_theta", wt_path(f));
}

/* Returns MAR_EMODEL for what this transformer lacks: Chameleon 34B has its norms behind the layers. */
static mar_status language_check_config(const wt_file *f, mar_err *err)
{
    const json_value *swin = language_member(f, "swin_norm"), *activation = language_member(f, "hidden_act");
    const json_value *window = language_member(f, "use_sliding_window");
    if (swin && swin->type == JSON_TRUE)
        return err_set(err, MAR_EMODEL, "%s: its configuration has swin_norm, expected norms in front of the layers",
                       wt_path(f));
    if (window && window->type == JSON_TRUE)
        return err_set(err, MAR_EMODEL, "%s: its configuration has use_sliding_window, expected attention to all rows",
                       wt_path(f));
    if (activation && (activation->type != JSON_STRING || strcmp(activation->text, "silu") != 0))
        return err_set(err, MAR_EMODEL, "%s: its configuration has the activation %.60s, expected silu", wt_path(f),
                       activation->type == JSON_STRING ? activation->text : "of a number");
    return MAR_OK;
}

static mar_status language_derive_heads(const wt_file *f, int release, causal_shape *s, mar_err *err)
{
    const int inside = s->eps > 0; /* of a model that has other heads beside these */
    double heads = s->heads, size = 0, eps = inside ? (double)s->eps : 1e-5,
           base = inside ? (double)s->rope_base : 10000;
    mar_status status = language_read_number(f, release ? "n_heads" : "num_attention_heads",
                                             inside ? "mar.llm_heads" : "mar.heads", &heads, err);
    if (status == MAR_OK)
        status = language_read_number(f, "head_dim", inside ? "mar.llm_head_dim" : "mar.head_dim", &size, err);
    if (status == MAR_OK)
        status = language_read_number(f, release ? "norm_eps" : "rms_norm_eps", inside ? "mar.llm_eps" : "mar.eps",
                                      &eps, err);
    if (status == MAR_OK) status = language_read_rope(f, inside ? "mar.llm_rope_base" : "mar.rope_base", &base, err);
    if (status != MAR_OK) return status;
    if (heads == 0 && !wt_config(f))
        return err_set(
            err, MAR_EMODEL,
            "%s: has no config.json (Meta's release: params.json), expected the one that says how many heads "
            "the model has",
            wt_path(f));
    if (heads == 0)
        return err_set(err, MAR_EMODEL, "%s: its configuration does not say how many heads the model has", wt_path(f));
    if (size == 0 && (heads > s->width || !causal_heads_divide((long)heads, s->width)))
        return err_set(err, MAR_EMODEL,
                       "%s: %g attention heads do not divide the width %d into multiples of 4 up to %d", wt_path(f),
                       heads, s->width, KERN_CACHE_HEAD_MAX);
    if (size > KERN_CACHE_HEAD_MAX || heads < 1 || heads > WT_DIM_MAX || (int)size % 4 != 0 ||
        (double)(int)size != size)
        return err_set(err, MAR_EMODEL,
                       "%s: its configuration has %g heads of %g numbers, expected multiples of 4 up to %d", wt_path(f),
                       heads, size, KERN_CACHE_HEAD_MAX);
    s->heads = (int)heads;
    s->head_dim = size > 0 ? (int)size : s->width / s->heads;
    s->eps = (float)eps;
    s->rope_base = (float)base;
    return MAR_OK;
}

/* Derives the heads of keys and values from the rows of k, or of q, k and v. */
static mar_status language_derive_groups(const wt_file *f, const char *layer, causal_shape *s, mar_err *err)
{
    char name[CAUSAL_TENSOR_NAME];
    const wt_tensor *t;
    int rows;
    s->kv_heads = s->heads;
    const mar_status status =
        wt_find_shape(f, causal_layer_name(layer, s, CAUSAL_WQKV, s->joined_qkv ? 0 : 1, name, &rows), 2, &t, err);
    if (status != MAR_OK) return status;
    const int64_t size = s->head_dim, own = s->joined_qkv ? (t->shape[0] - causal_q_width(s)) / 2 : t->shape[0];
    if (own < size || own % size != 0 || s->heads % (own / size) != 0)
        return err_set(err, MAR_EMODEL, "%s: tensor %s has %lld rows, expected heads of %lld that divide the %d of q",
                       wt_path(f), name, (long long)t->shape[0], (long long)size, s->heads);
    s->kv_heads = (int)(own / size);
    if (s->heads / s->kv_heads <= KERN_CACHE_GROUP_MAX) return MAR_OK;
    return err_set(err, MAR_EMODEL, "%s: %d heads of q read one head of tensor %s, expected %d at most", wt_path(f),
                   s->heads / s->kv_heads, name, KERN_CACHE_GROUP_MAX);
}

/* Finds out whether q and k have norms, and products biases. */
static void language_derive_options(const wt_file *f, const char *layer, causal_shape *s)
{
    char name[CAUSAL_TENSOR_NAME], bias[CAUSAL_TENSOR_NAME];
    int rows;
    s->qk_norm = CAUSAL_RMS_NORM; /* for the name */
    const wt_tensor *norm = wt_find(f, causal_layer_name(layer, s, CAUSAL_Q_NORM, 0, name, &rows));
    s->norm_shape = norm && norm->rank == 1       ? CAUSAL_VECTOR
                    : norm && norm->shape[0] == 1 ? CAUSAL_ONE_ROW
                                                  : CAUSAL_ROWS;
    s->qk_norm = !norm                                      ? CAUSAL_NO_NORM
                 : wt_find(f, causal_bias_name(name, bias)) ? CAUSAL_LAYER_NORM
                                                            : CAUSAL_RMS_NORM;
    for (int part = CAUSAL_WQKV; part <= CAUSAL_W2; part++)
        if (wt_find(f, causal_bias_name(causal_layer_name(layer, s, (causal_part)part, 0, name, &rows), bias)))
            s->bias |= 1u << part;
}

static int language_has_layer(const wt_file *f, const char *layer, const char *part)
{
    char name[CAUSAL_TENSOR_NAME];
    snprintf(name, sizeof name, "%s.%s.weight", layer, part);
    return wt_find(f, name) != NULL;
}

/* Tells whether the output layer is the embedding: it is not in the file, and config.json, if there is one, says so. */
static int language_is_tied(const wt_file *f, const char *output)
{
    const json_value *tie = language_member(f, "tie_word_embeddings");
    return !wt_find(f, output) && (!wt_config(f) || (tie && tie->type == JSON_TRUE));
}

mar_status language_shape(const wt_file *f, const causal_names *names, int release, causal_shape *s, mar_err *err)
{
    const wt_tensor *embedding, *w2;
    char layer[32], name[CAUSAL_TENSOR_NAME];
    int rows;
    *s =
        (causal_shape){.names = names, .halves = !release, .heads = s->heads, .eps = s->eps, .rope_base = s->rope_base};
    snprintf(layer, sizeof layer, "%s.0", names->layers);
    snprintf(name, sizeof name, "%s.", names->layers);
    mar_status status = language_check_config(f, err);
    if (status == MAR_OK) status = wt_find_shape(f, names->embedding, 2, &embedding, err);
    if (status != MAR_OK) return status;
    s->rows = (int)embedding->shape[0];
    s->width = (int)embedding->shape[1];
    s->depth = wt_count_parts(f, name, wt_count(f));
    s->tied = language_is_tied(f, names->output);
    s->joined_qkv = names->joined[CAUSAL_WQKV] && language_has_layer(f, layer, names->joined[CAUSAL_WQKV]);
    s->joined_w13 = names->joined[CAUSAL_W13] && language_has_layer(f, layer, names->joined[CAUSAL_W13]);
    status = language_derive_heads(f, release, s, err);
    if (status == MAR_OK) status = language_derive_groups(f, layer, s, err);
    if (status != MAR_OK) return status;
    language_derive_options(f, layer, s);
    status = wt_find_shape(f, causal_layer_name(layer, s, CAUSAL_W2, 0, name, &rows), 2, &w2, err);
    if (status == MAR_OK) s->hidden = (int)w2->shape[1];
    return status;
}
