/* A runner's memory, and functions that read it. */
#include "nets/causal_state.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

enum { PREFIX_ROWS = 64 }; /* prefix positions that a pass computes at a time: one word of mask */
enum { GIVEN_ROWS = 16 };  /* given tokens that a pass computes at a time, of all images, at least */

static int greater(int a, int b)
{
    return a > b ? a : b;
}

int causal_add_visible(causal_runner *r, const causal_image *im, int branch, int sequence, int end)
{
    int n = 0;
    for (int i = im->begin[branch]; i < end; i++)
        if (im->mask[branch][i]) causal_pass_add_slot(&r->pass, sequence, i), n++;
    return n;
}

void causal_count_pass(causal_runner *r)
{
    r->stats.passes += r->pass.rows > 0; /* an image's first request needs no rows */
    r->stats.rows += r->pass.rows;
    r->stats.flop += causal_pass_flop(&r->pass);
    r->stats.bytes += causal_pass_bytes(&r->pass);
}

void causal_runner_clear_stats(causal_runner *r)
{
    r->stats = (causal_runner_stats){0};
}

void causal_runner_follow(causal_runner *r, int image, const int *prefix, int length)
{
    causal_slots_follow(&r->image[image].slots, prefix, length);
}

const float *causal_runner_features(const causal_runner *r)
{
    return r->pass.features;
}

int causal_runner_slot(const causal_runner *r, int image, int branch, int position)
{
    const causal_slots *s = &r->image[image].slots;
    if (position >= s->known) return -1;
    return causal_sequence(r->images, image, branch) * s->count +
           (position < 0 ? s->prefix + position : s->slot[position]);
}

const float *causal_runner_prefix_table(const causal_runner *r)
{
    return r->model->shape.caption_dim ? r->caption_emb : r->model->class_emb;
}

int causal_runner_prefix_row(const causal_runner *r, int image, int branch)
{
    return r->index[causal_sequence(r->images, image, branch)];
}

int causal_runner_begin_of(const causal_runner *r, int image, int branch)
{
    return r->image[image].begin[branch];
}

const causal_runner_stats *causal_runner_get_stats(const causal_runner *r)
{
    return &r->stats;
}

int causal_runner_rows(const causal_runner *r)
{
    return r->rows;
}

void causal_runner_name(causal_runner *r, const char *part)
{
    r->part = part;
}

/* --- memory and plans --------------------------------------------------------------------------------------------- */

/* Returns the rows of a sequence in a pass: its vectors, or the last known token, one that was drafted but not
 * computed, the drafts, and line ends. Prefix positions may need more, and given tokens in a runner for few images. */
static int runner_rows_of(const causal_shape *c, int images, int drafts)
{
    const int prefix = causal_lesser(c->prefix, PREFIX_ROWS);
    if (c->token_dim) return greater(drafts + 1, prefix);
    return greater(greater(causal_lines_drafts(c, drafts + 2), prefix), (GIVEN_ROWS + images - 1) / images);
}

static mar_status create_images(causal_runner *r, mar_err *err)
{
    const causal_shape *c = &r->model->shape;
    const size_t images = (size_t)r->images, logit_rows = images * (size_t)(r->drafts + 1), prefix = (size_t)c->prefix;
    mar_status status = MAR_OK;
    r->image = calloc(images, sizeof *r->image);
    r->mask = malloc((2 * images + 1) * prefix);
    r->cfg = calloc(logit_rows, sizeof *r->cfg);
    r->place = calloc(logit_rows, sizeof *r->place);
    r->index = calloc(2 * images, sizeof *r->index);
    r->start = calloc(images, sizeof *r->start);
    r->request = calloc(images, sizeof *r->request);
    r->prompt_rows = c->prompt ? malloc(CAUSAL_PROMPT_ROWS * (size_t)c->width * sizeof *r->prompt_rows) : NULL;
    if (!r->image || !r->mask || !r->cfg || !r->place || !r->index || !r->start || !r->request ||
        (c->prompt && !r->prompt_rows))
        return err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", r->images);
    memset(r->mask, 1, (2 * images + 1) * prefix);
    for (size_t i = 0; i < 2 * images; i++) r->image[i / 2].mask[i % 2] = r->mask + i * prefix;
    if (c->prompt) memset(causal_negative_mask(r), 0, prefix - 1); /* before causal_runner_set_negative: one position */
    for (int i = 0; status == MAR_OK && !c->token_dim && i < r->images; i++) {
        causal_image *im = &r->image[i];
        status =
            causal_slots_create(c->prefix, causal_positions(c), causal_lines_drafts(c, r->drafts), &im->slots, err);
        if (status == MAR_OK) status = causal_lines_create(c, r->drafts, &im->lines, err);
    }
    return status;
}

mar_status causal_runner_create(kern_queue *k, const causal_model *model, const causal_sampling *sampling, int images,
                                int drafts, int keep, causal_runner **out, mar_err *err)
{
    causal_runner *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return err_set(err, MAR_ENOMEM, "out of memory");
    *r = (causal_runner){.k = k,
                         .model = model,
                         .sampling = *sampling,
                         .images = images,
                         .cfg_branches = causal_cfg_branches(sampling),
                         .drafts = drafts,
                         .rows = runner_rows_of(&model->shape, images, drafts),
                         .part = ""};
    mar_status status = create_images(r, err);
    const int vectors = model->shape.token_dim > 0, sequences = images * r->cfg_branches;
    if (status == MAR_OK)
        status = causal_pass_create(k, model, sequences,
                                    vectors ? model->shape.prefix + model->shape.seq_len : r->image[0].slots.count,
                                    r->rows, vectors ? r->rows : drafts + 1, keep, &r->pass, err);
    if (status == MAR_OK)
        *out = r;
    else
        causal_runner_free(r);
    return status;
}

void causal_runner_free(causal_runner *r)
{
    if (!r) return;
    net_recordings_free(r->k, &r->recordings);
    for (int i = 0; r->image && i < r->images; i++) {
        causal_slots_free(&r->image[i].slots);
        causal_lines_free(&r->image[i].lines);
    }
    causal_pass_free(&r->pass);
    free(r->image);
    free(r->mask);
    free(r->prompt_rows);
    free(r->cfg);
    free(r->place);
    free(r->index);
    free(r->start);
    free(r->request);
    free(r);
}

void causal_runner_set_cache(causal_runner *r, kern_cache_type type)
{
    r->pass.cache_type = type;
}

size_t causal_runner_lay_out(causal_runner *r, char *base)
{
    const causal_shape *c = &r->model->shape;
    size_t used = 0;
    if (base) net_recordings_free(r->k, &r->recordings); /* they hold addresses */
    if (c->caption_dim) {
        const size_t rows = ((size_t)r->images + 1) * (size_t)c->prefix, d = (size_t)c->width;
        if (!c->prompt) r->caption = arena_carve(base, &used, rows * (size_t)c->caption_dim, sizeof(float));
        if (!c->prompt) r->caption_hidden = arena_carve(base, &used, rows * d, sizeof(float));
        r->caption_emb = arena_carve(base, &used, rows * d, sizeof(float));
    }
    used += causal_pass_lay_out(&r->pass, base ? base + used : NULL);
    return used;
}

/* Prepares passes of all images with this many rows and logit rows each. */
static mar_status plan_shape(const causal_runner *r, int images, int rows, int logit_rows, mar_err *err)
{
    return causal_pass_plan(&r->pass, images * r->cfg_branches * rows, images * r->cfg_branches * logit_rows, err);
}

/* Prepares passes over the prefixes of up to `images` images, and up to drafts + 1 vectors of each. */
static mar_status plan_vectors(const causal_runner *r, int images, mar_err *err)
{
    mar_status status = MAR_OK;
    for (int n = 1; status == MAR_OK && n <= images; n++) {
        for (int rows = 1; status == MAR_OK && rows <= r->drafts + 1; rows++) status = plan_shape(r, n, rows, 0, err);
        if (status == MAR_OK) status = plan_shape(r, n, causal_lesser(r->model->shape.prefix, r->rows), 0, err);
    }
    return status;
}

mar_status causal_runner_plan(causal_runner *r, int images, mar_err *err)
{
    const causal_model *m = r->model;
    mar_status status = MAR_OK;
    net_recordings_free(r->k, &r->recordings);
    if (m->shape.token_dim) return plan_vectors(r, images, err);
    for (int n = 1; status == MAR_OK && m->caption_fc1 && n <= images; n++) {
        const int rows = (n + r->cfg_branches - 1) * m->shape.prefix;
        status = r->k->core->linear_plan(r->k, m->caption_fc1, rows, err);
        if (status == MAR_OK) status = r->k->core->linear_plan(r->k, m->caption_fc2, rows, err);
    }
    /* Plain steps and whole blocks are the most frequent passes. */
    if (status == MAR_OK) status = plan_shape(r, images, 1, 1, err);
    if (status == MAR_OK) status = plan_shape(r, images, r->drafts + 1, r->drafts + 1, err);
    for (int n = 1; status == MAR_OK && n <= images * r->rows; n++)
        status = plan_shape(r, 1, n, n < images * (r->drafts + 1) ? n : images * (r->drafts + 1), err);
    return status;
}
