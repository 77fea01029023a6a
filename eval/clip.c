#include "eval/clip.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 1024 }; /* rows of a pass, unless one text has more */

struct clip {
    kern_queue *k;
    clip_config config;
    vit image;
    nets_encoder *layers; /* of texts */
    float *positions;     /* backend [positions][width] */
    float *tokens;        /* backend [vocabulary][width] */
    int count;            /* most texts of a pass */
    kern_linear *image_project, *text_project;

    /* Backend memory of a pass, divided from `memory`. */
    char *memory;
    float *last;      /* [count][width] normed rows of the class or end tokens */
    float *embedding; /* [count][embedding] */

    int *index; /* host [4][rows] rows of a pass, for copies */
};

/* --- weights ------------------------------------------------------------------------------------------------------ */

typedef struct {
    kern_queue *k;
    const wt_file *f;
    mar_err *err;
} loader;

/* Loads a projection [out][in] without bias, whose products are in f32; with `transposed` [in][out]. */
static mar_status load_projection(const loader *l, const char *name, int out, int in, int transposed, kern_linear **to)
{
    const size_t n = (size_t)out, m = (size_t)in;
    const int64_t shape[] = {transposed ? in : out, transposed ? out : in};
    float *weight = NULL, *turned = NULL;
    mar_status status = wt_load_f32(l->f, name, 2, shape, &weight, l->err);
    if (status == MAR_OK && transposed && !(turned = malloc(n * m * sizeof *turned)))
        status = err_set(l->err, MAR_ENOMEM, "%s: out of memory", wt_path(l->f));
    for (size_t i = 0; i < n && turned; i++)
        for (size_t j = 0; j < m; j++) turned[i * m + j] = weight[j * n + i];
    const kern_linear_spec spec = {
        .out = out, .in = in, .weight = turned ? turned : weight, .flags = KERN_IN_F32 | KERN_OUT_F32};
    if (status == MAR_OK) status = l->k->core->linear_create(l->k, &spec, to, l->err);
    free(weight);
    free(turned);
    return status;
}

static mar_status clip_load_text(const loader *l, clip *c)
{
    const clip_config *g = &c->config;
    const clip_names *n = g->names;
    const int width = g->text.width;
    mar_status status = nets_encoder_create(l->k, l->f, &g->text, &n->text, NULL, 0, &c->layers, l->err);
    if (status == MAR_OK) status = vit_load_rows(l->k, l->f, n->tokens, g->vocabulary, width, &c->tokens, l->err);
    if (status != MAR_OK) return status;
    return vit_load_rows(l->k, l->f, n->positions, g->positions, width, &c->positions, l->err);
}

static mar_status load_projections(const loader *l, clip *c)
{
    const clip_config *g = &c->config;
    const clip_names *n = g->names;
    const mar_status status =
        load_projection(l, n->image_project, g->embedding, g->image.layers.width, n->is_transposed, &c->image_project);
    if (status != MAR_OK) return status;
    return load_projection(l, n->text_project, g->embedding, g->text.width, n->is_transposed, &c->text_project);
}

/* --- memory and preparation --------------------------------------------------------------------------------------- */

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int text_rows(const clip *c)
{
    return c->count * c->config.positions;
}

static size_t clip_larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t clip_lay_out(clip *c, char *base)
{
    const clip_config *g = &c->config;
    const size_t count = clip_larger((size_t)c->image.count, (size_t)c->count);
    const size_t width = clip_larger((size_t)g->image.layers.width, (size_t)g->text.width);
    size_t used = 0;
    c->last = arena_carve(base, &used, count * width, sizeof(float));
    c->embedding = arena_carve(base, &used, count * (size_t)g->embedding, sizeof(float));
    return used;
}

static mar_status clip_plan(clip *c, mar_err *err)
{
    kern_queue *k = c->k;
    const nets_encoder_room room = {.rows = text_rows(c), .longest = c->config.positions};
    mar_status status = nets_encoder_reserve(k, c->layers, room, err);
    if (status == MAR_OK) status = k->core->linear_plan(k, c->image_project, c->image.count, err);
    return status == MAR_OK ? k->core->linear_plan(k, c->text_project, c->count, err) : status;
}

static mar_status clip_prepare(clip *c, int batch, mar_err *err)
{
    void *memory = NULL;
    c->count = least(batch, ROWS / c->config.positions + 1);
    c->index = malloc(4 * (size_t)text_rows(c) * sizeof *c->index);
    if (!c->index) return err_set(err, MAR_ENOMEM, "out of memory");
    const mar_status status = c->k->core->alloc(c->k->device, clip_lay_out(c, NULL), &memory, err);
    if (status != MAR_OK) return status;
    c->memory = memory;
    clip_lay_out(c, memory);
    return clip_plan(c, err);
}

mar_status clip_create(kern_queue *k, const wt_file *f, int batch, clip **out, mar_err *err)
{
    const loader l = {k, f, err};
    *out = NULL;
    clip *c = calloc(1, sizeof *c);
    if (!c) return err_set(err, MAR_ENOMEM, "out of memory");
    c->k = k;
    mar_status status = clip_config_derive(f, &c->config, err);
    if (status == MAR_OK) status = vit_create(k, f, &c->config.image, &c->config.names->image, batch, &c->image, err);
    if (status == MAR_OK) status = clip_load_text(&l, c);
    if (status == MAR_OK) status = load_projections(&l, c);
    if (status == MAR_OK) status = clip_prepare(c, batch, err);
    if (status != MAR_OK) {
        k->core->finish(k); /* wait for pending uploads */
        clip_free(c);
        return status;
    }
    *out = c;
    return MAR_OK;
}

void clip_free(clip *c)
{
    if (!c) return;
    kern_device *d = c->k->device;
    vit_free(&c->image);
    nets_encoder_free(d, c->layers);
    d->core->linear_free(d, c->image_project);
    d->core->linear_free(d, c->text_project);
    d->core->free(d, c->positions);
    d->core->free(d, c->tokens);
    d->core->free(d, c->memory);
    free(c->index);
    free(c);
}

const clip_config *clip_get_config(const clip *c)
{
    return &c->config;
}

/* --- images ------------------------------------------------------------------------------------------------------- */

/* Divides each embedding by its length. Returns MAR_EMODEL if one has none. */
static mar_status clip_normalise(float *embedding, int n, int size, const char *what, mar_err *err)
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

/* Writes the embeddings of the rows `last` of a tower's output x. */
static void project(clip *c, const nets_encoder *tower, const kern_linear *project, const float *x, const int *last,
                    int n, float *embedding)
{
    kern_queue *k = c->k;
    nets_encoder_norm(k, tower, x, last, n, c->last, 1);
    k->core->linear(k, project, c->last, n, c->embedding);
    k->core->download(k, embedding, c->embedding, (size_t)n * (size_t)c->config.embedding * sizeof *embedding);
}

mar_status clip_images(clip *c, const eval_picture *pictures, int n, float *embedding, mar_err *err)
{
    vit *v = &c->image;
    const size_t size = (size_t)c->config.embedding;
    for (int first = 0, m; first < n; first += m) {
        m = least(n - first, v->count);
        const mar_status status = vit_run(v, pictures + first, m, "vision_model", err);
        if (status != MAR_OK) return status;
        project(c, v->layers, c->image_project, v->x, v->first, m, embedding + (size_t)first * size);
    }
    const mar_status status = kern_check(c->k, err);
    return status == MAR_OK ? clip_normalise(embedding, n, c->config.embedding, "image", err) : status;
}

/* --- texts -------------------------------------------------------------------------------------------------------- */

/* Returns the place of the token whose row is the text's: the first end token, or the first largest id. */
static int clip_find_end(const clip_config *g, const int *ids, int n)
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
        m = least(n - done, c->count);
        for (int i = 0; i < m; i++) {
            const int *text = ids + first[done + i], size = length[done + i];
            begin[i] = at;
            last[i] = at + clip_find_end(g, text, size);
            for (int j = 0; j < size; j++, at++) token[at] = text[j], position[at] = j;
        }
        k->core->copy_rows(k, nets_encoder_input(c->layers), NULL, c->tokens, token, c->positions, position, at,
                           g->text.width);
        const nets_spans spans = {m, at, begin, length + done};
        const float *x = nets_encoder_run(k, c->layers, &spans, NULL, "text_model");
        project(c, c->layers, c->text_project, x, last, m, embedding + (size_t)done * (size_t)g->embedding);
    }
    const mar_status status = kern_check(k, err);
    return status == MAR_OK ? clip_normalise(embedding, n, g->embedding, "text", err) : status;
}
