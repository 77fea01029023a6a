#include "eval/vit.h"

#include "base/arena.h"
#include "weights/rows.h"
#include "weights/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 1024, DEPTH_MAX = 1024, SIDE_MAX = 4096 }; /* ROWS: of a pass, unless one image has more */

/* --- sizes -------------------------------------------------------------------------------------------------------- */

mar_status vit_refuse_shape(const wt_file *f, const wt_tensor *t, const char *expected, mar_err *err)
{
    char found[128];
    return err_set(err, MAR_EMODEL, "%s: tensor %s has shape %s, expected %s", wt_path(f), t->name,
                   wt_shape_text(t, found, sizeof found), expected);
}

mar_status vit_derive_layers(const wt_file *f, const nets_encoder_names *names, nets_encoder_config *c, mar_err *err)
{
    char name[128];
    const wt_tensor *t;
    c->norm = NETS_NORM_LAYER;
    c->bias = 1;
    c->depth = wt_count_parts(f, names->layers, DEPTH_MAX);
    snprintf(name, sizeof name, "%s0%s.weight", names->layers, names->fc1);
    const mar_status status = wt_find_shape(f, name, 2, &t, err);
    if (status != MAR_OK) return status;
    c->hidden = (int)t->shape[0];
    c->width = (int)t->shape[1];
    return MAR_OK;
}

mar_status vit_set_heads(const wt_file *f, const char *what, int head_dim, nets_encoder_config *c, mar_err *err)
{
    c->head_dim = head_dim;
    c->heads = c->width / head_dim;
    if (c->width % head_dim == 0) return MAR_OK;
    return err_set(err, MAR_EMODEL, "%s: %s is %d wide, expected a multiple of %d, the width of a head", wt_path(f),
                   what, c->width, head_dim);
}

static mar_status derive_patches(const wt_file *f, const vit_names *names, vit_config *c, mar_err *err)
{
    char name[128];
    const wt_tensor *t;
    snprintf(name, sizeof name, "%s.weight", names->patches);
    mar_status status = wt_find_shape(f, name, 4, &t, err);
    if (status != MAR_OK) return status;
    c->patch = (int)t->shape[2];
    if (t->shape[0] != c->layers.width || t->shape[1] != 3 || t->shape[3] != t->shape[2])
        return vit_refuse_shape(f, t, "[width, 3, patch, patch]", err);
    snprintf(name, sizeof name, "%s.bias", names->patches);
    c->bias = wt_find(f, name) != NULL;
    t = wt_find(f, names->positions);
    const int rank = t && t->rank == 3 ? 3 : 2; /* timm's have a batch of 1 */
    if ((status = wt_find_shape(f, names->positions, rank, &t, err)) != MAR_OK) return status;
    c->patches = (int)t->shape[rank - 2] - 1;
    const int across = (int)lround(sqrt((double)c->patches));
    c->side = across * c->patch;
    if (across < 1 || across * across != c->patches || c->patch > SIDE_MAX / across)
        return vit_refuse_shape(f, t, "a row for the class and one for each patch of a square", err);
    return MAR_OK;
}

mar_status vit_config_derive(const wt_file *f, const vit_names *names, vit_config *c, mar_err *err)
{
    static const float mean[3] = {0.48145466f, 0.4578275f, 0.40821073f};
    static const float deviation[3] = {0.26862954f, 0.26130258f, 0.27577711f};
    memcpy(c->mean, mean, sizeof mean);
    memcpy(c->deviation, deviation, sizeof deviation);
    const mar_status status = vit_derive_layers(f, &names->layers, &c->layers, err);
    return status == MAR_OK ? derive_patches(f, names, c, err) : status;
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

mar_status vit_load_rows(kern_queue *k, const wt_file *f, const char *name, int rows, int width, float **out,
                         mar_err *err)
{
    const wt_tensor *t = wt_find(f, name);
    int64_t shape[WT_MAX_RANK] = {0};
    const int extra = t && t->rank > 2 ? t->rank - 2 : 0, is_row = t && t->rank == 1 && rows == 1;
    for (int i = 0; i < extra; i++) shape[i] = 1;
    shape[extra] = is_row ? width : rows;
    shape[extra + 1] = width;
    return wt_load_array(k, f, name, is_row ? 1 : extra + 2, shape, out, err);
}

/* Loads the patch embedding, whose products are in f32. */
static mar_status vit_load_embedding(vit *v, const wt_file *f, const vit_names *names, mar_err *err)
{
    const vit_config *c = &v->config;
    char name[128];
    float *weight = NULL, *bias = NULL;
    const int64_t shape[] = {c->layers.width, 3, c->patch, c->patch};
    snprintf(name, sizeof name, "%s.weight", names->patches);
    mar_status status = wt_load_f32(f, name, 4, shape, &weight, err);
    snprintf(name, sizeof name, "%s.bias", names->patches);
    if (status == MAR_OK && c->bias) status = wt_load_f32(f, name, 1, shape, &bias, err);
    const kern_linear_spec spec = {.out = c->layers.width,
                                   .in = 3 * c->patch * c->patch,
                                   .weight = weight,
                                   .bias = bias,
                                   .flags = KERN_IN_F32 | KERN_OUT_F32};
    if (status == MAR_OK) status = v->k->core->linear_create(v->k, &spec, &v->embed, err);
    free(weight);
    free(bias);
    return status;
}

static mar_status vit_load(vit *v, const wt_file *f, const vit_names *names, mar_err *err)
{
    kern_queue *k = v->k;
    const vit_config *c = &v->config;
    const int width = c->layers.width;
    mar_status status = nets_encoder_create(k, f, &c->layers, &names->layers, NULL, 0, &v->layers, err);
    if (status == MAR_OK) status = vit_load_rows(k, f, names->class_row, 1, width, &v->class_row, err);
    if (status == MAR_OK) status = vit_load_rows(k, f, names->positions, c->patches + 1, width, &v->positions, err);
    return status == MAR_OK ? vit_load_embedding(v, f, names, err) : status;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static size_t vit_lay_out(vit *v, char *base)
{
    const vit_config *c = &v->config;
    const size_t inputs = (size_t)3 * (size_t)c->patch * (size_t)c->patch, width = (size_t)c->layers.width;
    const size_t patches = (size_t)v->count * (size_t)c->patches;
    size_t used = 0;
    v->input = arena_carve(base, &used, patches * inputs, sizeof(float));
    v->embedded = arena_carve(base, &used, patches * width, sizeof(float));
    return used;
}

static mar_status vit_prepare(vit *v, int batch, mar_err *err)
{
    const vit_config *c = &v->config;
    kern_queue *k = v->k;
    void *memory = NULL;
    const int most = ROWS / (c->patches + 1) + 1;
    v->count = batch < most ? batch : most;
    const int rows = v->count * (c->patches + 1);
    const size_t pixels = (size_t)c->side * (size_t)c->side * 3;
    v->square = malloc(pixels * sizeof *v->square);
    v->pixels = malloc(pixels * sizeof *v->pixels);
    v->index = malloc(3 * (size_t)rows * sizeof *v->index);
    v->first = malloc((size_t)v->count * sizeof *v->first);
    v->length = malloc((size_t)v->count * sizeof *v->length);
    if (!v->square || !v->pixels || !v->index || !v->first || !v->length)
        return err_set(err, MAR_ENOMEM, "out of memory");
    for (int i = 0; i < v->count; i++) v->first[i] = i * (c->patches + 1), v->length[i] = c->patches + 1;
    mar_status status = k->core->alloc(k->device, vit_lay_out(v, NULL), &memory, err);
    if (status != MAR_OK) return status;
    v->memory = memory;
    vit_lay_out(v, memory);
    status = nets_encoder_reserve(k, v->layers, (nets_encoder_room){.rows = rows, .longest = c->patches + 1}, err);
    return status == MAR_OK ? k->core->linear_plan(k, v->embed, v->count * c->patches, err) : status;
}

mar_status vit_create(kern_queue *k, const wt_file *f, const vit_config *c, const vit_names *names, int batch, vit *out,
                      mar_err *err)
{
    *out = (vit){.k = k, .config = *c};
    const mar_status status = vit_load(out, f, names, err);
    return status == MAR_OK ? vit_prepare(out, batch, err) : status;
}

void vit_free(vit *v)
{
    if (!v->k) return;
    kern_device *d = v->k->device;
    nets_encoder_free(d, v->layers);
    d->core->linear_free(d, v->embed);
    d->core->free(d, v->class_row);
    d->core->free(d, v->positions);
    d->core->free(d, v->memory);
    free(v->square);
    free(v->pixels);
    free(v->index);
    free(v->first);
    free(v->length);
    *v = (vit){0};
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* Writes the pixels of a picture's patches to place i of the pass: resized, cut, normalised, a patch's channels one
 * after another. */
static mar_status vit_prepare_picture(vit *v, const eval_picture *p, int i, mar_err *err)
{
    const vit_config *c = &v->config;
    const size_t side = (size_t)c->side, patch = (size_t)c->patch, across = side / patch, area = patch * patch;
    const size_t n = side * side * 3;
    uint8_t *bytes = (uint8_t *)v->pixels; /* [side][side][3], free until the loop below */
    const mar_status status =
        c->resize == VIT_TENSOR
            ? eval_resize_square_floats(p, EVAL_BICUBIC, c->side, v->square, err)
            : eval_resize_square(p, EVAL_BICUBIC, c->side, c->resize == VIT_TORCHVISION, bytes, err);
    if (status != MAR_OK) return status;
    for (size_t j = 0; j < n && c->resize != VIT_TENSOR; j++) v->square[j] = bytes[j];
    for (size_t y = 0; y < side; y++)
        for (size_t x = 0; x < side; x++)
            for (size_t channel = 0; channel < 3; channel++) {
                const size_t at = (y / patch * across + x / patch) * 3 * area + channel * area;
                const float value = v->square[(y * side + x) * 3 + channel] / 255;
                v->pixels[at + y % patch * patch + x % patch] = (value - c->mean[channel]) / c->deviation[channel];
            }
    v->k->core->upload(v->k, v->input + (size_t)i * n, v->pixels, n * sizeof *v->pixels);
    return MAR_OK;
}

/* Makes the rows of n images: class and patches, each with its position. */
static void vit_embed(vit *v, int n)
{
    const vit_config *c = &v->config;
    kern_queue *k = v->k;
    const int patches = n * c->patches, rows = v->count * (c->patches + 1), width = c->layers.width;
    float *const x = nets_encoder_input(v->layers);
    int *to = v->index, *position = to + rows, *zero = position + rows;
    k->core->linear(k, v->embed, v->input, patches, v->embedded);
    for (int i = 0; i < patches; i++) {
        position[i] = 1 + i % c->patches;
        to[i] = i / c->patches * (c->patches + 1) + position[i];
    }
    k->core->copy_rows(k, x, to, v->embedded, NULL, v->positions, position, patches, width);
    for (int i = 0; i < n; i++) zero[i] = 0;
    k->core->copy_rows(k, x, v->first, v->class_row, zero, v->positions, zero, n, width);
}

mar_status vit_run(vit *v, const eval_picture *pictures, int n, const char *name, mar_err *err)
{
    const int rows = n * (v->config.patches + 1);
    for (int i = 0; i < n; i++) {
        const mar_status status = vit_prepare_picture(v, &pictures[i], i, err);
        if (status != MAR_OK) return status;
    }
    vit_embed(v, n);
    const nets_spans spans = {n, rows, v->first, v->length};
    v->x = nets_encoder_run(v->k, v->layers, &spans, NULL, name);
    return MAR_OK;
}
