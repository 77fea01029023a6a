/* Images that start: their positions before the image tokens. */
#include "nets/causal_state.h"

#include <string.h>

/* --- positions before the image tokens ---------------------------------------------------------------------------- */

/* Adds positions first .. end - 1 of a sequence. Each attends to the unmasked positions before it, and to itself. */
static void admit_add_prefix(causal_runner *r, int image, int branch, const int *embedding, int first, int end)
{
    causal_pass *p = &r->pass;
    const causal_image *im = &r->image[image];
    const int sequence = causal_sequence(r->images, image, branch), begin = im->begin[branch];
    if (first < begin) first = begin;
    if (first >= end) return;
    causal_pass_add_span(p);
    const int common = causal_add_visible(r, im, branch, sequence, first);
    causal_pass_set_common(p);
    for (int i = first; i < end; i++) causal_pass_add_slot(p, sequence, i);
    for (int i = first; i < end; i++) {
        uint64_t *mask = causal_pass_add_row(p, embedding[sequence] + i, i - begin, sequence, i);
        p->attended += common;
        for (int j = first; j <= i; j++)
            if (im->mask[branch][j] || j == i) causal_mask_add(mask, j - first, 1), p->attended++;
    }
}

/* Computes all positions before the image tokens. r->index has the row of `table` where a sequence begins. Keeps the
 * residual stream of their last rows: the first token's distribution is computed from it. */
static void admit_compute_prefixes(causal_runner *r, const causal_start *start, int n, const float *table)
{
    causal_pass *p = &r->pass;
    const int prefix = r->model->shape.prefix, d = r->model->shape.width;
    const int chunk = r->rows < prefix ? r->rows : prefix;
    int end = prefix;
    for (int i = 0; i < n; i++)
        for (int c = 0; c < r->image[start[i].image].branches; c++)
            end = causal_lesser(end, r->image[start[i].image].begin[c]);
    for (int first = end; first < prefix; first = end) {
        end = first + chunk < prefix ? first + chunk : prefix;
        causal_pass_begin(p, table, NULL);
        for (int c = 0; c < r->cfg_branches; c++)
            for (int i = 0; i < n; i++)
                if (c < r->image[start[i].image].branches) admit_add_prefix(r, start[i].image, c, r->index, first, end);
        causal_pass_rows(p);
        causal_count_pass(r);
    }
    int s = 0;
    for (int c = 0; c < r->cfg_branches; c++)
        for (int i = 0; i < n; i++) {
            if (c >= r->image[start[i].image].branches) continue;
            p->slot[s] = p->rows_max + causal_sequence(r->images, start[i].image, c);
            p->position[s] = p->row[s + 1] - 1;
            s++;
        }
    r->k->core->copy_rows(r->k, p->x, p->slot, p->x, p->position, NULL, NULL, s, d);
}

static void compute_class_prefixes(causal_runner *r, const causal_start *start, int n)
{
    const int classes = r->model->shape.classes, prefix = r->model->shape.prefix;
    for (int i = 0; i < n; i++) {
        const int label = start[i].label < 0 ? classes : start[i].label;
        r->index[causal_sequence(r->images, start[i].image, 0)] = label * prefix;
        if (r->cfg_branches == 2) r->index[causal_sequence(r->images, start[i].image, 1)] = classes * prefix;
    }
    admit_compute_prefixes(r, start, n, r->model->class_emb);
}

void causal_embed_ids(kern_queue *k, const causal_model *m, const float *ids, int n, float *host, float *to)
{
    const causal_shape *s = &m->shape;
    const size_t d = (size_t)s->width;
    mar_err err = {0};
    mar_status status = MAR_OK;
    for (int i = 0, some; i < n && status == MAR_OK; i += some) {
        some = n - i < CAUSAL_PROMPT_ROWS ? n - i : CAUSAL_PROMPT_ROWS;
        for (int j = 0; j < some && status == MAR_OK; j++)
            status = wt_load_rows(m->prompt_file, s->names->embedding, s->rows, s->width, (int)ids[i + j], 1,
                                  host + (size_t)j * d, &err);
        if (status == MAR_OK) k->core->upload(k, to + (size_t)i * d, host, (size_t)some * d * sizeof *host);
    }
    status = wt_check_unchanged(m->prompt_file, status, &err);
    if (status != MAR_OK) kern_fail(k, status, &err);
}

/* Writes the embeddings of a prompt's ids first .. prefix - 1 to rows of caption_emb. */
static void embed_prompt(causal_runner *r, const float *ids, int first, int row)
{
    const causal_shape *s = &r->model->shape;
    causal_embed_ids(r->k, r->model, ids + first, s->prefix - first, r->prompt_rows,
                     r->caption_emb + (size_t)(row + first) * (size_t)s->width);
}

/* Computes prompts. The negative one is in its place already. */
static void compute_prompts(causal_runner *r, const causal_start *start, int n)
{
    const int prefix = r->model->shape.prefix;
    for (int i = 0; i < n; i++) {
        embed_prompt(r, start[i].features, r->image[start[i].image].begin[0], i * prefix);
        r->index[causal_sequence(r->images, start[i].image, 0)] = i * prefix;
        if (r->cfg_branches == 2) r->index[causal_sequence(r->images, start[i].image, 1)] = r->images * prefix;
    }
    admit_compute_prefixes(r, start, n, r->caption_emb);
}

static void compute_caption_prefixes(causal_runner *r, const causal_start *start, int n)
{
    kern_queue *k = r->k;
    const causal_model *m = r->model;
    const int prefix = m->shape.prefix, dim = m->shape.caption_dim;
    const size_t caption = (size_t)prefix * (size_t)dim;
    const int rows = (n + r->cfg_branches - 1) * prefix;
    if (m->shape.prompt) {
        compute_prompts(r, start, n);
        return;
    }
    for (int i = 0; i < n; i++) {
        k->core->upload(k, r->caption + (size_t)i * caption, start[i].features, caption * sizeof *start[i].features);
        r->index[causal_sequence(r->images, start[i].image, 0)] = i * prefix;
        if (r->cfg_branches == 2) r->index[causal_sequence(r->images, start[i].image, 1)] = n * prefix;
    }
    if (r->cfg_branches == 2)
        k->core->copy_rows(k, r->caption + (size_t)n * caption, NULL, m->no_caption, NULL, NULL, NULL, prefix, dim);
    k->core->linear(k, m->caption_fc1, r->caption, rows, r->caption_hidden);
    k->core->linear(k, m->caption_fc2, r->caption_hidden, rows, r->caption_emb);
    admit_compute_prefixes(r, start, n, r->caption_emb);
    r->stats.flop += 2.0 * rows * m->shape.width * (dim + m->shape.width);
}

/* --- images that start -------------------------------------------------------------------------------------------- */

void causal_runner_set_negative(causal_runner *r, const float *ids, const uint8_t *mask)
{
    const int prefix = r->model->shape.prefix;
    int first = 0;
    if (mask)
        memcpy(causal_negative_mask(r), mask, (size_t)prefix);
    else
        memset(causal_negative_mask(r), 1, (size_t)prefix);
    while (first + 1 < prefix && mask && !mask[first]) first++;
    embed_prompt(r, ids, first, r->images * prefix);
}

/* Sets the masks of an image that starts, and where its sequences begin. */
static void begin_masks(causal_runner *r, causal_image *im, const uint8_t *given)
{
    const causal_shape *c = &r->model->shape;
    const size_t prefix = (size_t)c->prefix;
    for (int b = 0; b < im->branches; b++) {
        const uint8_t *mask = b == 1 && c->prompt ? causal_negative_mask(r) : given;
        if (c->caption_dim && mask)
            memcpy(im->mask[b], mask, prefix);
        else
            memset(im->mask[b], 1, prefix);
        im->begin[b] = 0;
        while (c->prompt && im->begin[b] + 1 < c->prefix && !im->mask[b][im->begin[b]]) im->begin[b]++;
    }
}

void causal_runner_admit(causal_runner *r, const causal_start *start, int n)
{
    const causal_shape *c = &r->model->shape;
    r->k->watch.part = r->part;
    r->k->core->timer_mark(r->k, NULL);
    for (int i = 0; i < n; i++) {
        causal_image *im = &r->image[start[i].image];
        if (!c->token_dim) causal_slots_begin(&im->slots);
        im->cfg = start[i].cfg;
        im->branches = c->token_dim && im->cfg <= 1 ? 1 : r->cfg_branches;
        begin_masks(r, im, start[i].mask);
    }
    if (c->caption_dim)
        compute_caption_prefixes(r, start, n);
    else
        compute_class_prefixes(r, start, n);
    if (!c->token_dim) causal_compute_given(r, start, n);
    r->k->core->timer_mark(r->k, &r->stats.prefix_s);
}

void causal_runner_begin(causal_runner *r, int images, const int *label)
{
    for (int i = 0; i < images; i++)
        r->start[i] = (causal_start){.image = i, .label = label[i], .cfg = r->sampling.cfg};
    causal_runner_clear_stats(r);
    causal_runner_admit(r, r->start, images);
}

void causal_runner_begin_captions(causal_runner *r, int images, const float *features, const uint8_t *mask)
{
    const size_t prefix = (size_t)r->model->shape.prefix, caption = prefix * (size_t)r->model->shape.caption_dim;
    for (int i = 0; i < images; i++)
        r->start[i] = (causal_start){.image = i,
                                     .features = features + (size_t)i * caption,
                                     .mask = mask + (size_t)i * prefix,
                                     .cfg = r->sampling.cfg};
    causal_runner_clear_stats(r);
    causal_runner_admit(r, r->start, images);
}
