#include "nets/t5.h"

#include "weights/rows.h"
#include "weights/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 1024, HEADS_MAX = 1024 };

static const char shared[] = "shared.weight", embedding[] = "encoder.embed_tokens.weight";
static const char bias_name[] = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
static const nets_encoder_names names = {.layers = "encoder.block.",
                                         .self = {.norm = ".layer.0.layer_norm",
                                                  .query = ".layer.0.SelfAttention.q",
                                                  .key = ".layer.0.SelfAttention.k",
                                                  .value = ".layer.0.SelfAttention.v",
                                                  .out = ".layer.0.SelfAttention.o"},
                                         .norm = ".layer.1.layer_norm",
                                         .fc1 = ".layer.1.DenseReluDense.wi_0",
                                         .up = ".layer.1.DenseReluDense.wi_1",
                                         .fc2 = ".layer.1.DenseReluDense.wo",
                                         .after = "encoder.final_layer_norm"};

/* --- configuration ------------------------------------------------------------------------------------------------ */

int t5_config_recognise(const wt_file *f)
{
    return wt_find(f, bias_name) != NULL;
}

/* Returns the embedding's name in this file. */
static const char *t5_embedding_of(const wt_file *f)
{
    return wt_find(f, shared) ? shared : embedding;
}

int t5_config_repeats(const wt_file *f, const char *tensor)
{
    return strcmp(tensor, embedding) == 0 && wt_find(f, shared) != NULL;
}

int t5_config_ignores(const char *tensor)
{
    return strncmp(tensor, "decoder.", 8) == 0 || strncmp(tensor, "lm_head.", 8) == 0;
}

int t5_config_is_int8(const char *tensor)
{
    static const char *const layers[] = {
        "SelfAttention.q",     "SelfAttention.k",     "SelfAttention.v",   "SelfAttention.o",
        "DenseReluDense.wi_0", "DenseReluDense.wi_1", "DenseReluDense.wo", NULL};
    return strncmp(tensor, "encoder.block.", 14) == 0 && wt_is_layer(tensor, layers);
}

/* Derives the shapes from the tensors. */
static mar_status derive_shapes(const wt_file *f, t5_config *c, mar_err *err)
{
    nets_encoder_config *l = &c->layers;
    const wt_tensor *t;
    mar_status status = wt_find_shape(f, t5_embedding_of(f), 2, &t, err);
    if (status != MAR_OK) return status;
    c->vocabulary = (int)t->shape[0];
    l->width = (int)t->shape[1];
    l->depth = wt_count_parts(f, names.layers, DEPTH_MAX);
    status = wt_find_shape(f, bias_name, 2, &t, err);
    if (status != MAR_OK) return status;
    c->buckets = (int)t->shape[0];
    l->heads = (int)t->shape[1];
    status = wt_find_shape(f, "encoder.block.0.layer.0.SelfAttention.q.weight", 2, &t, err);
    if (status != MAR_OK) return status;
    l->head_dim = (int)t->shape[0] / l->heads;
    if (c->buckets < 4 || c->buckets % 2 || c->buckets > T5_BUCKETS_MAX)
        return err_set(err, MAR_EMODEL, "%s: %d buckets of relative positions, expected an even number of 4 to %d",
                       wt_path(f), c->buckets, T5_BUCKETS_MAX);
    if (l->heads > HEADS_MAX || t->shape[0] % l->heads)
        return err_set(err, MAR_EMODEL, "%s: %d heads, expected at most %d that divide the %lld rows of %s", wt_path(f),
                       l->heads, HEADS_MAX, (long long)t->shape[0], t->name);
    if (wt_find(f, "encoder.block.0.layer.1.DenseReluDense.wi.weight"))
        return err_set(
            err, MAR_EMODEL,
            "%s: is a T5 of version 1.0, with an MLP wi, expected version 1.1 with wi_0 and wi_1 (gated-gelu)",
            wt_path(f));
    status = wt_find_shape(f, "encoder.block.0.layer.1.DenseReluDense.wi_0.weight", 2, &t, err);
    l->hidden = status == MAR_OK ? (int)t->shape[0] : 0;
    return status;
}

/* Returns MAR_EMODEL if config.json has `key` with another number. */
static mar_status check_number(const wt_file *f, const char *key, int number, mar_err *err)
{
    double value = number;
    const mar_status status = wt_config_number(f, key, &value, err);
    if (status != MAR_OK || value == number) return status;
    return err_set(err, MAR_EMODEL, "%s: config.json says %s %g, the tensors have %d", wt_path(f), key, value, number);
}

static mar_status check_numbers(const wt_file *f, const t5_config *c, mar_err *err)
{
    const nets_encoder_config *l = &c->layers;
    const struct {
        const char *key;
        int number;
    } all[] = {{"d_model", l->width},        {"d_kv", l->head_dim},    {"d_ff", l->hidden},
               {"num_heads", l->heads},      {"num_layers", l->depth}, {"relative_attention_num_buckets", c->buckets},
               {"vocab_size", c->vocabulary}};
    mar_status status = MAR_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all && status == MAR_OK; i++)
        status = check_number(f, all[i].key, all[i].number, err);
    return status;
}

/* Returns MAR_EMODEL unless the activation is gated-gelu, in transformers the tanh form. */
static mar_status check_activation(const wt_file *f, mar_err *err)
{
    const char *text = wt_config_text(f, "feed_forward_proj");
    if (!text) text = wt_metadata(f, "mar.activation");
    if (!text || strcmp(text, "gated-gelu") == 0) return MAR_OK;
    return err_set(err, MAR_EMODEL, "%s: the activation is %.64s, expected gated-gelu", wt_path(f), text);
}

/* Reads the numbers that no tensor shows. */
static mar_status derive_numbers(const wt_file *f, t5_config *c, mar_err *err)
{
    const char *text = wt_metadata(f, "mar.eps");
    if (!text && !wt_config(f))
        return err_set(err, MAR_EMODEL, "%s: has no config.json, expected the one with the T5's activation and epsilon",
                       wt_path(f));
    double eps = text ? strtod(text, NULL) : 1e-6, distance = 128;
    long number = 128;
    mar_status status = wt_metadata_number(f, "mar.max_distance", &number, err);
    distance = (double)number;
    if (status == MAR_OK) status = wt_config_number(f, "relative_attention_max_distance", &distance, err);
    if (status == MAR_OK) status = wt_config_number(f, "layer_norm_epsilon", &eps, err);
    if (status == MAR_OK) status = check_activation(f, err);
    if (status != MAR_OK) return status;
    if (!(eps >= 0 && eps < 1))
        return err_set(err, MAR_EMODEL, "%s: the norms' epsilon is %g, expected 0 to 1", wt_path(f), eps);
    if (!(distance > c->buckets / 4 && distance <= T5_DISTANCE_MAX))
        return err_set(err, MAR_EMODEL, "%s: relative positions up to %g, expected more than %d and at most %d",
                       wt_path(f), distance, c->buckets / 4, T5_DISTANCE_MAX);
    c->max_distance = (int)distance;
    c->layers.eps = (float)eps;
    return MAR_OK;
}

mar_status t5_config_derive(const wt_file *f, t5_config *out, mar_err *err)
{
    *out = (t5_config){
        .layers = {.norm = NETS_NORM_RMS, .activation = KERN_GELU_TANH, .gated = 1, .unscaled = 1, .int8 = 1}};
    mar_status status = derive_shapes(f, out, err);
    if (status == MAR_OK) status = derive_numbers(f, out, err);
    if (status == MAR_OK) status = check_numbers(f, out, err);
    if (status == MAR_OK) t5_config_tensors(f, out, wt_add_elements, &out->parameters);
    return status;
}

void t5_config_tensors(const wt_file *f, const t5_config *c,
                       void (*visit)(void *user, const char *name, int rank, const int64_t *shape), void *user)
{
    const int64_t width = c->layers.width, table[] = {c->vocabulary, width}, bias[] = {c->buckets, c->layers.heads};
    char name[64];
    visit(user, t5_embedding_of(f), 2, table);
    visit(user, bias_name, 2, bias);
    nets_encoder_tensors(&c->layers, &names, visit, user);
    snprintf(name, sizeof name, "%s.weight", names.after);
    visit(user, name, 1, &width);
}

/* --- relative positions ------------------------------------------------------------------------------------------- */

int t5_bucket(int distance, int buckets, int max_distance)
{
    const int half = buckets / 2, exact = half / 2, n = abs(distance), later = distance > 0 ? half : 0;
    if (n < exact) return later + n;
    /* in f32, as PyTorch does it */
    const float share = logf((float)n / (float)exact) / (float)log((double)max_distance / exact);
    const int bucket = exact + (int)(share * (float)(half - exact));
    return later + (bucket < half - 1 ? bucket : half - 1);
}

/* Loads the bias of buckets, [buckets][heads], as a table of distances, [heads][2 * max_distance + 1]. From
 * max_distance on all distances share a bucket, so the table is exact for any length. */
static mar_status t5_load_bias(const wt_file *f, const t5_config *c, float **out, mar_err *err)
{
    const int heads = c->layers.heads, reach = c->max_distance, columns = 2 * reach + 1;
    const int64_t shape[] = {c->buckets, heads};
    float *bias = NULL;
    *out = NULL;
    mar_status status = wt_load_f32(f, bias_name, 2, shape, &bias, err);
    if (status == MAR_OK && !(*out = malloc((size_t)heads * (size_t)columns * sizeof **out)))
        status = err_set(err, MAR_ENOMEM, "%s: out of memory", wt_path(f));
    for (int h = 0; status == MAR_OK && h < heads; h++)
        for (int i = 0; i < columns; i++)
            (*out)[h * columns + i] = bias[t5_bucket(i - reach, c->buckets, reach) * heads + h];
    free(bias);
    return status;
}

/* --- the encoder -------------------------------------------------------------------------------------------------- */

struct t5_encoder {
    t5_config config;
    nets_encoder *layers;
    float *table; /* [vocabulary][width] */
    int rows;     /* for which there is room in y */
    float *y;     /* backend [rows][width] results */
};

static mar_status load_table(kern_queue *k, const wt_file *f, t5_encoder *e, mar_err *err)
{
    const int64_t shape[] = {e->config.vocabulary, e->config.layers.width};
    return wt_load_array(k, f, t5_embedding_of(f), 2, shape, &e->table, err);
}

mar_status t5_create(kern_queue *k, const wt_file *f, t5_encoder **out, mar_err *err)
{
    float *bias = NULL;
    *out = NULL;
    t5_encoder *e = calloc(1, sizeof *e);
    if (!e) return err_set(err, MAR_ENOMEM, "%s: out of memory", wt_path(f));
    mar_status status = t5_config_derive(f, &e->config, err);
    const nets_encoder_config *c = &e->config.layers;
    if (status == MAR_OK) status = load_table(k, f, e, err);
    if (status == MAR_OK) status = t5_load_bias(f, &e->config, &bias, err);
    if (status == MAR_OK) status = nets_encoder_create(k, f, c, &names, bias, e->config.max_distance, &e->layers, err);
    free(bias);
    if (status != MAR_OK) {
        k->core->finish(k);
        t5_free(k->device, e);
    } else {
        *out = e;
    }
    return status;
}

void t5_free(kern_device *d, t5_encoder *e)
{
    if (!e) return;
    nets_encoder_free(d, e->layers);
    d->core->free(d, e->table);
    d->core->free(d, e->y);
    free(e);
}

const t5_config *t5_get_config(const t5_encoder *e)
{
    return &e->config;
}

/* Makes room for `rows` rows in sequences of up to `longest`. */
static mar_status t5_make_room(kern_queue *k, t5_encoder *e, int rows, int longest, mar_err *err)
{
    kern_device *d = k->device;
    void *y = NULL;
    mar_status status = nets_encoder_reserve(k, e->layers, (nets_encoder_room){.rows = rows, .longest = longest}, err);
    if (status != MAR_OK || rows <= e->rows) return status;
    d->core->free(d, e->y);
    status = d->core->alloc(d, (size_t)rows * (size_t)e->config.layers.width * sizeof(float), &y, err);
    e->y = y;
    e->rows = status == MAR_OK ? rows : 0;
    return status;
}

mar_status t5_run(kern_queue *k, t5_encoder *e, const nets_spans *spans, const int *ids, float *y, mar_err *err)
{
    const int width = e->config.layers.width, rows = spans->rows;
    int longest = 1;
    for (int i = 0; i < spans->count; i++) longest = spans->length[i] > longest ? spans->length[i] : longest;
    const mar_status status = t5_make_room(k, e, rows, longest, err);
    if (status != MAR_OK || rows == 0) return status;
    k->core->copy_rows(k, nets_encoder_input(e->layers), NULL, e->table, ids, NULL, NULL, rows, width);
    const float *x = nets_encoder_run(k, e->layers, spans, NULL, "encoder.block");
    nets_encoder_norm(k, e->layers, x, NULL, rows, e->y, 1);
    k->core->download(k, y, e->y, (size_t)rows * (size_t)width * sizeof *y);
    return kern_check(k, err);
}
