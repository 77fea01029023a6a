#include "eval/clip.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 1024 }; /* rows of a pass, unless one image has more */

/* One tower: its layers, the norm of its result, and the projection into the common space. */
typedef struct {
    text_encoder *layers;
    text_norm norm;
    kern_linear *project;
    float *positions; /* backend [positions][width] position embeddings */
    int count;        /* most images or texts of a pass */
} tower;

struct clip {
    kern_queue *k;
    clip_config config;
    tower image, text;
    text_norm before;     /* pre_layrnorm of the image tower */
    kern_linear *patches; /* the patch embedding */
    float *class_row;     /* backend [width] class embedding */
    float *tokens;        /* backend [vocabulary][width] */

    /* Backend memory of a pass, divided from `memory`. */
    char *memory;
    float *input;     /* [count * patches][3 * patch * patch] pixels of patches */
    float *embedded;  /* [count * patches][width] of these */
    float *rows;      /* [rows][width] embeddings, before pre_layrnorm */
    float *x;         /* [rows][width] residual stream */
    float *last;      /* [count][width] normed rows of the class or end tokens */
    float *embedding; /* [count][embedding] */
    char *work;       /* of the layers */

    /* Host memory. */
    uint8_t *square; /* [side][side][3] */
    float *pixels;   /* [patches][3 * patch * patch] of an image */
    int *index;      /* [4][rows] rows of a pass, for copies */
};

/* --- weights ------------------------------------------------------------------------------------------------------ */

typedef struct {
    kern_queue *k;
    const wt_file *f;
    mar_err *err;
} loader;

/* Copies a tensor to new backend memory. */
static mar_status load_rows(const loader *l, const char *name, int rank, const int64_t *shape, float **out)
{
    float *host = NULL;
    void *p = NULL;
    size_t bytes = sizeof(float);
    for (int i = 0; i < rank; i++) bytes *= (size_t)shape[i];
    mar_status status = wt_load_f32(l->f, name, rank, shape, &host, l->err);
    if (status == MAR_OK) status = l->k->core->alloc(l->k->device, bytes, &p, l->err);
    if (status == MAR_OK) l->k->core->upload(l->k, p, host, bytes);
    *out = p;
    free(host);
    return status;
}

/* Loads a matrix without bias, [out][in] in the file's `rank` dimensions, whose products are in f32. */
static mar_status load_linear(const loader *l, const char *name, int rank, const int64_t *shape, kern_linear **out)
{
    float *weight = NULL;
    int in = 1;
    for (int i = 1; i < rank; i++) in *= (int)shape[i];
    mar_status status = wt_load_f32(l->f, name, rank, shape, &weight, l->err);
    const kern_linear_spec spec = {
        .out = (int)shape[0], .in = in, .weight = weight, .flags = KERN_IN_F32 | KERN_OUT_F32};
    if (status == MAR_OK) status = l->k->core->linear_create(l->k, &spec, out, l->err);
    free(weight);
    return status;
}

static mar_status load_image(const loader *l, clip *c)
{
    const clip_config *g = &c->config;
    const int64_t width = g->image.width, patch = g->patch;
    mar_status status =
        text_encoder_create(l->k, l->f, &g->image, &clip_image_names, NULL, 0, &c->image.layers, l->err);
    if (status == MAR_OK)
        status = load_rows(l, "vision_model.embeddings.class_embedding", 1, (int64_t[]){width}, &c->class_row);
    if (status == MAR_OK)
        status = load_rows(l, "vision_model.embeddings.position_embedding.weight", 2,
                           (int64_t[]){g->patches + 1, width}, &c->image.positions);
    if (status == MAR_OK)
        status = load_linear(l, "vision_model.embeddings.patch_embedding.weight", 4,
                             (int64_t[]){width, 3, patch, patch}, &c->patches);
    if (status == MAR_OK)
        status = text_norm_load(l->k, l->f, &g->image, "vision_model.pre_layrnorm", &c->before, l->err);
    if (status == MAR_OK)
        status = text_norm_load(l->k, l->f, &g->image, "vision_model.post_layernorm", &c->image.norm, l->err);
    if (status != MAR_OK) return status;
    return load_linear(l, "visual_projection.weight", 2, (int64_t[]){g->embedding, width}, &c->image.project);
}

static mar_status load_text(const loader *l, clip *c)
{
    const clip_config *g = &c->config;
    const int64_t width = g->text.width;
    mar_status status = text_encoder_create(l->k, l->f, &g->text, &clip_text_names, NULL, 0, &c->text.layers, l->err);
    if (status == MAR_OK)
        status = load_rows(l, "text_model.embeddings.token_embedding.weight", 2, (int64_t[]){g->vocabulary, width},
                           &c->tokens);
    if (status == MAR_OK)
        status = load_rows(l, "text_model.embeddings.position_embedding.weight", 2, (int64_t[]){g->positions, width},
                           &c->text.positions);
    if (status == MAR_OK)
        status = text_norm_load(l->k, l->f, &g->text, "text_model.final_layer_norm", &c->text.norm, l->err);
    if (status != MAR_OK) return status;
    return load_linear(l, "text_projection.weight", 2, (int64_t[]){g->embedding, width}, &c->text.project);
}

/* --- memory and preparation --------------------------------------------------------------------------------------- */

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int image_rows(const clip *c)
{
    return c->image.count * (c->config.patches + 1);
}

static int text_rows(const clip *c)
{
    return c->text.count * c->config.positions;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t lay_out(clip *c, char *base)
{
    const clip_config *g = &c->config;
    const kern_device *d = c->k->device;
    const size_t inputs = (size_t)3 * (size_t)g->patch * (size_t)g->patch;
    const size_t patches = (size_t)c->image.count * (size_t)g->patches;
    const size_t stream =
        larger((size_t)image_rows(c) * (size_t)g->image.width, (size_t)text_rows(c) * (size_t)g->text.width);
    const size_t count = (size_t)(c->image.count > c->text.count ? c->image.count : c->text.count);
    const size_t width = (size_t)(g->image.width > g->text.width ? g->image.width : g->text.width);
    size_t used = 0;
    c->input = arena_carve(base, &used, patches * inputs, sizeof(float));
    c->embedded = arena_carve(base, &used, patches * (size_t)g->image.width, sizeof(float));
    c->rows = arena_carve(base, &used, stream, sizeof(float));
    c->x = arena_carve(base, &used, stream, sizeof(float));
    c->last = arena_carve(base, &used, count * width, sizeof(float));
    c->embedding = arena_carve(base, &used, count * (size_t)g->embedding, sizeof(float));
    c->work = arena_carve(base, &used,
                          larger(text_encoder_bytes(d, c->image.layers, image_rows(c)),
                                 text_encoder_bytes(d, c->text.layers, text_rows(c))),
                          1);
    return used;
}

static mar_status plan(clip *c, mar_err *err)
{
    const clip_config *g = &c->config;
    kern_queue *k = c->k;
    mar_status status = text_encoder_plan(k, c->image.layers, image_rows(c), g->patches + 1, err);
    if (status == MAR_OK) status = text_encoder_plan(k, c->text.layers, text_rows(c), g->positions, err);
    if (status == MAR_OK) status = k->core->linear_plan(k, c->patches, c->image.count * g->patches, err);
    if (status == MAR_OK) status = k->core->linear_plan(k, c->image.project, c->image.count, err);
    return status == MAR_OK ? k->core->linear_plan(k, c->text.project, c->text.count, err) : status;
}

static mar_status prepare(clip *c, int batch, mar_err *err)
{
    const clip_config *g = &c->config;
    void *memory = NULL;
    c->image.count = least(batch, ROWS / (g->patches + 1) + 1);
    c->text.count = least(batch, ROWS / g->positions + 1);
    const size_t rows = larger((size_t)image_rows(c), (size_t)text_rows(c));
    c->square = malloc((size_t)g->side * (size_t)g->side * 3);
    c->pixels = malloc((size_t)g->side * (size_t)g->side * 3 * sizeof *c->pixels);
    c->index = malloc(4 * rows * sizeof *c->index);
    if (!c->square || !c->pixels || !c->index) return err_set(err, MAR_ENOMEM, "out of memory");
    const mar_status status = c->k->core->alloc(c->k->device, lay_out(c, NULL), &memory, err);
    if (status != MAR_OK) return status;
    c->memory = memory;
    lay_out(c, memory);
    return plan(c, err);
}

mar_status clip_create(kern_queue *k, const wt_file *f, int batch, clip **out, mar_err *err)
{
    const loader l = {k, f, err};
    *out = NULL;
    clip *c = calloc(1, sizeof *c);
    if (!c) return err_set(err, MAR_ENOMEM, "out of memory");
    c->k = k;
    mar_status status = clip_config_derive(f, &c->config, err);
    if (status == MAR_OK) status = load_image(&l, c);
    if (status == MAR_OK) status = load_text(&l, c);
    if (status == MAR_OK) status = prepare(c, batch, err);
    if (status != MAR_OK) {
        k->core->finish(k); /* wait for pending uploads */
        clip_free(c);
        return status;
    }
    *out = c;
    return MAR_OK;
}

static void free_tower(kern_device *d, tower *t)
{
    text_encoder_free(d, t->layers);
    text_norm_free(d, &t->norm);
    d->core->linear_free(d, t->project);
    d->core->free(d, t->positions);
}

void clip_free(clip *c)
{
    if (!c) return;
    kern_device *d = c->k->device;
    free_tower(d, &c->image);
    free_tower(d, &c->text);
    text_norm_free(d, &c->before);
    d->core->linear_free(d, c->patches);
    d->core->free(d, c->class_row);
    d->core->free(d, c->tokens);
    d->core->free(d, c->memory);
    free(c->square);
    free(c->pixels);
    free(c->index);
    free(c);
}

const clip_config *clip_get_config(const clip *c)
{
    return &c->config;
}

/* --- images ------------------------------------------------------------------------------------------------------- */

/* Writes the pixels of a picture's patches to place i of the pass: resized, cut, normalised, a patch's channels one
 * after another. */
static mar_status prepare_picture(clip *c, const eval_picture *p, int i, mar_err *err)
{
    const clip_config *g = &c->config;
    const size_t side = (size_t)g->side, patch = (size_t)g->patch, across = side / patch, area = patch * patch;
    const mar_status status = eval_resize_square(p, EVAL_BICUBIC, g->side, c->square, err);
    if (status != MAR_OK) return status;
    for (size_t y = 0; y < side; y++)
        for (size_t x = 0; x < side; x++)
            for (size_t channel = 0; channel < 3; channel++) {
                const size_t at = (y / patch * across + x / patch) * 3 * area + channel * area;
                const float value = (float)c->square[(y * side + x) * 3 + channel] / 255;
                c->pixels[at + y % patch * patch + x % patch] = (value - g->mean[channel]) / g->deviation[channel];
            }
    const size_t n = side * side * 3;
    c->k->core->upload(c->k, c->input + (size_t)i * n, c->pixels, n * sizeof *c->pixels);
    return MAR_OK;
}

/* Makes the rows of n images: class and patches, each with its position. Writes the rows of the classes to `classes`.
 */
static void embed_images(clip *c, int n, int *classes)
{
    const clip_config *g = &c->config;
    kern_queue *k = c->k;
    const int patches = n * g->patches, rows = image_rows(c);
    int *to = c->index + rows, *position = to + rows, *zero = position + rows;
    k->core->linear(k, c->patches, c->input, patches, c->embedded);
    for (int i = 0; i < patches; i++) {
        position[i] = 1 + i % g->patches;
        to[i] = i / g->patches * (g->patches + 1) + position[i];
    }
    k->core->copy_rows(k, c->rows, to, c->embedded, NULL, c->image.positions, position, patches, g->image.width);
    for (int i = 0; i < n; i++) {
        classes[i] = i * (g->patches + 1);
        zero[i] = 0;
    }
    k->core->copy_rows(k, c->rows, classes, c->class_row, zero, c->image.positions, zero, n, g->image.width);
}

/* Divides each embedding by its length. Returns MAR_EMODEL if one has none. */
static mar_status normalise(float *embedding, int n, int size, const char *what, mar_err *err)
{
    for (int i = 0; i < n; i++) {
        float *e = embedding + (size_t)i * (size_t)size;
        double sum = 0;
        for (int j = 0; j < size; j++) sum += (double)e[j] * (double)e[j];
        if (!(sum > 0 && isfinite(sum)))
            return err_set(err, MAR_EMODEL,
                           "%s %d of the batch: its embedding is 0, or has a NaN or an infinity: the weights are "
                           "damaged, or their numbers too large",
                           what, i);
        for (int j = 0; j < size; j++) e[j] = (float)((double)e[j] / sqrt(sum));
    }
    return MAR_OK;
}

/* Runs the layers of a tower on spans of c->x, and writes the embeddings of the rows `last`. */
static void run_tower(clip *c, const tower *t, const text_spans *spans, const int *last, float *embedding,
                      const char *name)
{
    kern_queue *k = c->k;
    text_encoder_run(k, t->layers, spans, c->x, c->work, name);
    text_norm_run(k, &t->norm, c->x, last, spans->count, c->last, 1);
    k->core->linear(k, t->project, c->last, spans->count, c->embedding);
    k->core->download(k, embedding, c->embedding,
                      (size_t)spans->count * (size_t)c->config.embedding * sizeof *embedding);
}

mar_status clip_images(clip *c, const eval_picture *pictures, int n, float *embedding, mar_err *err)
{
    const clip_config *g = &c->config;
    for (int first = 0, m; first < n; first += m) {
        m = least(n - first, c->image.count);
        int *classes = c->index;
        for (int i = 0; i < m; i++) {
            const mar_status status = prepare_picture(c, &pictures[first + i], i, err);
            if (status != MAR_OK) return status;
        }
        embed_images(c, m, classes);
        const int rows = m * (g->patches + 1);
        text_norm_run(c->k, &c->before, c->rows, NULL, rows, c->x, 1);
        int *length = c->index + image_rows(c);
        for (int i = 0; i < m; i++) length[i] = g->patches + 1;
        const text_spans spans = {m, rows, classes, length};
        run_tower(c, &c->image, &spans, classes, embedding + (size_t)first * (size_t)g->embedding, "vision_model");
    }
    const mar_status status = kern_check(c->k, err);
    return status == MAR_OK ? normalise(embedding, n, g->embedding, "image", err) : status;
}

/* --- texts -------------------------------------------------------------------------------------------------------- */

/* Returns the place of the token whose row is the text's: the first end token, or the first largest id. */
static int find_end(const clip_config *g, const int *ids, int n)
{
    int best = 0;
    for (int i = 0; i < n; i++) {
        if (ids[i] == g->end) return i;
        if (ids[i] > ids[best]) best = i;
    }
    return g->end < 0 ? best : n - 1;
}

mar_status clip_texts(clip *c, const int *ids, const int *first, const int *length, int n, float *embedding,
                      mar_err *err)
{
    const clip_config *g = &c->config;
    kern_queue *k = c->k;
    const int rows = text_rows(c);
    for (int done = 0, m; done < n; done += m) {
        int *token = c->index, *position = token + rows, *begin = position + rows, *last = begin + rows, at = 0;
        m = least(n - done, c->text.count);
        for (int i = 0; i < m; i++) {
            const int *text = ids + first[done + i], size = length[done + i];
            begin[i] = at;
            last[i] = at + find_end(g, text, size);
            for (int j = 0; j < size; j++, at++) token[at] = text[j], position[at] = j;
        }
        k->core->copy_rows(k, c->x, NULL, c->tokens, token, c->text.positions, position, at, g->text.width);
        const text_spans spans = {m, at, begin, length + done};
        run_tower(c, &c->text, &spans, last, embedding + (size_t)done * (size_t)g->embedding, "text_model");
    }
    const mar_status status = kern_check(k, err);
    return status == MAR_OK ? normalise(embedding, n, g->embedding, "text", err) : status;
}
