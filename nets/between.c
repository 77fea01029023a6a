#include "nets/between.h"

#include "base/arena.h"
#include "nets/causal_pass.h"
#include "weights/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BETWEEN_ROWS = 2048 }; /* of a pass at most: enough for the products, and bounds the memory */

/* --- weights ------------------------------------------------------------------------------------------------------ */

static mar_status between_load_out(kern_queue *k, const wt_file *f, const char *name, int out, int in,
                                   kern_activation activation, int flags, kern_linear **layer, mar_err *err)
{
    wt_rows w = {.file = f, .in = in, .count = 1, .piece = {{.rows = out}}, .bias = 1};
    snprintf(w.piece[0].name, sizeof w.piece[0].name, "%s.weight", name);
    const kern_linear_spec spec = {.out = out, .activation = activation, .flags = flags};
    return wt_create_linear(k, &w, spec, layer, err);
}

mar_status between_model_load(kern_queue *k, const wt_file *f, const causal_shape *s, int buffer, between_model *out,
                              mar_err *err)
{
    *out = (between_model){.buffer = buffer};
    mar_status status = causal_model_load(k, f, s, NULL, &out->language, err);
    if (status == MAR_OK)
        status = between_load_out(k, f, "proj_out.0", s->width, s->width, KERN_SILU, 0, &out->out[0], err);
    return status == MAR_OK ? between_load_out(k, f, "proj_out.2", s->token_dim, s->width, KERN_LINEAR, KERN_OUT_F32,
                                               &out->out[1], err)
                            : status;
}

void between_model_free(kern_device *d, between_model *m)
{
    causal_model_free(m->language);
    for (int i = 0; i < 2; i++) d->core->linear_free(d, m->out[i]);
    *m = (between_model){0};
}

/* --- a session's part --------------------------------------------------------------------------------------------- */

/* A prompt's place: its keys and values have `prefix` slots. */
typedef struct {
    int uses;   /* branches of images that begin with it */
    int length; /* 0: no prompt is here */
    int *ids;   /* [prefix] */
} between_prompt;

struct between_runner {
    masked_between base;
    kern_queue *k;
    const between_model *model;
    int images;
    int prompts;            /* places: for both branches of each image, and the negative prompt of later ones */
    between_prompt *prompt; /* [prompts] */
    int *ids;               /* [prompts][prefix] */
    int *of;                /* [prompts] of each image, the negative one of each, and that of later ones; -1: none */
    float *embedding;       /* [CAUSAL_PROMPT_ROWS][W] on its way to prompt_rows */
    int sequences;          /* of a group at most */
    int *order;             /* [sequences][seq_len] rows in the order in which the model reads them */
    int *target;            /* [rows of a pass] the same of a pass */
    causal_pass pass;
    double flop;
    long computed; /* prompts */

    /* Backend memory, from between_lay_out. R = rows of a pass. */
    float *prompt_rows; /* [prefix][W] embeddings of a prompt */
    float *hidden;      /* [R][W] the model's hidden rows */
    act *normal;        /* [R][W] the same as operands */
    act *projected;     /* [R][W] */
    float *sum;         /* [R][D] what is added */
};

static const causal_shape *between_shape(const between_runner *b)
{
    return &b->model->language->shape;
}

/* Returns the cache's slot of a prompt's first position, and of the first row of a group's sequence. */
static int between_prompt_slot(const between_runner *b, int prompt)
{
    return prompt * between_shape(b)->prefix;
}

static int between_row_slot(const between_runner *b, int sequence)
{
    return between_prompt_slot(b, b->prompts) + sequence * between_shape(b)->seq_len;
}

/* --- prompts ------------------------------------------------------------------------------------------------------ */

/* Computes the keys and values of a prompt, whose embeddings are in prompt_rows. */
static void between_compute_prompt(between_runner *b, int prompt)
{
    causal_pass *p = &b->pass;
    const int first_slot = between_prompt_slot(b, prompt), length = b->prompt[prompt].length;
    for (int first = 0, n; first < length; first += n) {
        n = length - first < p->rows_max ? length - first : p->rows_max;
        causal_pass_begin(p, b->prompt_rows, NULL);
        causal_pass_add_span(p);
        for (int i = 0; i < first; i++) causal_pass_add_slot(p, 0, first_slot + i);
        causal_pass_set_common(p);
        for (int i = first; i < first + n; i++) causal_pass_add_slot(p, 0, first_slot + i);
        for (int i = first; i < first + n; i++) {
            causal_mask_add(causal_pass_add_row(p, i, i, 0, first_slot + i), 0, i - first + 1);
            p->attended += i + 1;
        }
        causal_pass_rows(p);
        b->flop += causal_pass_flop(p);
    }
    b->computed++;
}

/* Returns the place of a prompt with these ids, computed if it is new. The branch that begins has given its own back,
 * so one place is free. */
static int between_find_prompt(between_runner *b, const float *ids, const uint8_t *mask)
{
    const causal_shape *s = between_shape(b);
    int first = 0, found = -1;
    while (first + 1 < s->prefix && mask && !mask[first]) first++;
    const int length = s->prefix - first;
    for (int i = 0; i < b->prompts; i++) {
        const between_prompt *p = &b->prompt[i];
        int same = p->length == length;
        for (int j = 0; same && j < length; j++) same = p->ids[j] == (int)ids[first + j];
        if (same) return i;
        if (p->uses == 0 && (found < 0 || p->length == 0)) found = i;
    }
    between_prompt *p = &b->prompt[found];
    for (int j = 0; j < length; j++) p->ids[j] = (int)ids[first + j];
    p->length = length;
    causal_embed_ids(b->k, b->model->language, ids + first, length, b->embedding, b->prompt_rows);
    between_compute_prompt(b, found);
    if (kern_check(b->k, NULL) != MAR_OK) p->length = 0; /* its rows may be in part those of another */
    return found;
}

/* Gives branch `of` a prompt; ids NULL: that of branch `other`. */
static void between_give(between_runner *b, int of, const float *ids, const uint8_t *mask, int other)
{
    if (b->of[of] >= 0) b->prompt[b->of[of]].uses--;
    b->of[of] = -1;
    const int found = ids ? between_find_prompt(b, ids, mask) : b->of[other];
    if (found >= 0) b->prompt[found].uses++;
    b->of[of] = found;
}

void between_set_prompt(between_runner *b, int image, const float *ids, const uint8_t *mask)
{
    between_give(b, image, ids, mask, image);
}

void between_set_negative(between_runner *b, int image, const float *ids, const uint8_t *mask)
{
    const int later = b->prompts - 1;
    between_give(b, image < 0 ? later : b->images + image, ids, mask, later);
}

/* --- a pass ------------------------------------------------------------------------------------------------------- */

/* The sequences of a group, whose rows begin at `row`. */
typedef struct {
    const masked_sequence *list; /* [n] */
    const int *position;         /* of all rows */
    int n, row, longest;
} between_group;

/* Lists each sequence's rows: the tokens in raster order, then the buffer. */
static void between_order(between_runner *b, const between_group *g)
{
    const int most = between_shape(b)->seq_len, buffer = b->model->buffer;
    for (int s = 0, row = g->row; s < g->n; row += g->list[s++].length) {
        int *order = b->order + (size_t)s * (size_t)most, *place = b->target, n = 0;
        for (int i = 0; i < most; i++) place[i] = -1;
        for (int i = row; i < row + g->list[s].length; i++) place[g->position[i]] = i;
        for (int i = buffer; i < most; i++)
            if (place[i] >= 0) order[n++] = place[i];
        for (int i = 0; i < buffer; i++) order[n++] = place[i];
    }
}

/* Adds rows first.. of a sequence to the pass, `count` at most. */
static void between_add(between_runner *b, const between_group *g, int s, int first, int count)
{
    causal_pass *p = &b->pass;
    const masked_sequence *q = &g->list[s];
    const int prompt = b->of[q->branch * b->images + q->image], slot = between_row_slot(b, s);
    const int length = prompt < 0 ? 0 : b->prompt[prompt].length;
    const int *order = b->order + (size_t)s * (size_t)between_shape(b)->seq_len;
    const int end = first + count < q->length ? first + count : q->length;
    if (first >= end) return;
    causal_pass_add_span(p);
    for (int i = 0; i < length; i++) causal_pass_add_slot(p, 0, between_prompt_slot(b, prompt) + i);
    for (int i = 0; i < first; i++) causal_pass_add_slot(p, 0, slot + i);
    causal_pass_set_common(p);
    for (int i = first; i < end; i++) causal_pass_add_slot(p, 0, slot + i);
    for (int i = first; i < end; i++) {
        b->target[p->rows] = order[i];
        causal_pass_want(p, p->rows, 0, p->rows);
        causal_mask_add(causal_pass_add_row(p, order[i], length + i, 0, slot + i), 0, i - first + 1);
        p->attended += length + i + 1;
    }
}

/* Adds proj_out of the listed rows' hidden rows to the rows of x. */
static void between_add_output(between_runner *b, float *x)
{
    const causal_pass *p = &b->pass;
    kern_queue *k = b->k;
    const int n = p->rows, width = between_shape(b)->width, dim = between_shape(b)->token_dim;
    k->core->to_act(k, b->hidden, (size_t)n * (size_t)width, b->normal);
    k->core->linear(k, b->model->out[0], b->normal, n, b->projected);
    kern_watch(k, b->projected, MAR_DTYPE_AUTO, n, width, width, "proj_out.0");
    k->core->linear(k, b->model->out[1], b->projected, n, b->sum);
    kern_watch(k, b->sum, MAR_DTYPE_F32, n, dim, dim, "proj_out.2");
    k->core->copy_rows(k, x, b->target, b->sum, NULL, x, b->target, n, dim);
    b->flop += 2.0 * n * width * (width + dim);
}

static void between_run_group(between_runner *b, const between_group *g, float *x)
{
    causal_pass *p = &b->pass;
    const int most = p->rows_max / g->n, parts = (g->longest + most - 1) / most;
    const int count = (g->longest + parts - 1) / parts;
    between_order(b, g);
    for (int first = 0; first < g->longest; first += count) {
        causal_pass_begin_vectors(p, x);
        for (int s = 0; s < g->n; s++) between_add(b, g, s, first, count);
        causal_pass_rows(p);
        causal_pass_hidden(p, b->hidden);
        b->flop += causal_pass_flop(p);
        between_add_output(b, x);
    }
}

static void between_run(masked_between *base, const masked_sequence *list, int n, const int *position, int rows,
                        float *x, act *out)
{
    between_runner *b = (between_runner *)base;
    int row = 0;
    for (int s = 0; s < n;) {
        between_group g = {.list = list + s, .position = position, .row = row};
        for (; g.n < b->sequences && s < n; g.n++) {
            if (list[s].length > g.longest) g.longest = list[s].length;
            row += list[s++].length;
        }
        between_run_group(b, &g, x);
    }
    b->k->core->to_act(b->k, x, (size_t)rows * (size_t)between_shape(b)->token_dim, out);
}

static mar_status between_plan(masked_between *base, int n, int rows, mar_err *err)
{
    const between_runner *b = (const between_runner *)base;
    kern_queue *k = b->k;
    const int group = n < b->sequences ? n : b->sequences, all = group * rows;
    const int parts = (all + b->pass.rows_max - 1) / b->pass.rows_max, count = (rows + parts - 1) / parts * group;
    mar_status status = causal_pass_plan(&b->pass, count, 0, err);
    if (status == MAR_OK) status = causal_pass_plan(&b->pass, b->pass.rows_max, 0, err);
    for (int i = 0; status == MAR_OK && i < 2; i++) {
        status = k->core->linear_plan(k, b->model->out[i], count, err);
        if (status == MAR_OK) status = k->core->linear_plan(k, b->model->out[i], b->pass.rows_max, err);
    }
    return status;
}

masked_between *between_of(between_runner *b)
{
    return &b->base;
}

double between_flop(const between_runner *b)
{
    return b->flop;
}

long between_prompts(const between_runner *b)
{
    return b->computed;
}

void between_reset(between_runner *b)
{
    b->flop = 0;
    b->computed = 0;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static mar_status between_allocate(between_runner *b, mar_err *err)
{
    const causal_shape *s = between_shape(b);
    const size_t prompts = (size_t)b->prompts, most = (size_t)s->seq_len, pass = (size_t)b->pass.rows_max;
    b->prompt = calloc(prompts, sizeof *b->prompt);
    b->ids = calloc(prompts * (size_t)s->prefix, sizeof *b->ids);
    b->of = malloc(prompts * sizeof *b->of);
    b->embedding = malloc(CAUSAL_PROMPT_ROWS * (size_t)s->width * sizeof *b->embedding);
    b->order = calloc((size_t)b->sequences * most, sizeof *b->order);
    b->target = calloc(pass > most ? pass : most, sizeof *b->target);
    if (!b->prompt || !b->ids || !b->of || !b->embedding || !b->order || !b->target)
        return err_set(err, MAR_ENOMEM, "out of memory for the prompts of %d images", b->images);
    for (size_t i = 0; i < prompts; i++) {
        b->prompt[i].ids = b->ids + i * (size_t)s->prefix;
        b->of[i] = -1;
    }
    return MAR_OK;
}

mar_status between_create(kern_queue *k, const between_model *model, int images, between_runner **out, mar_err *err)
{
    const causal_shape *s = &model->language->shape;
    const int fit = BETWEEN_ROWS / s->seq_len, sequences = fit < 1 ? 1 : fit < 2 * images ? fit : 2 * images;
    const int rows = s->seq_len < BETWEEN_ROWS ? s->seq_len : BETWEEN_ROWS;
    const int prompts = 2 * images + 1, prompt_slots = prompts * s->prefix,
              share = (prompt_slots + sequences - 1) / sequences;
    between_runner *b = calloc(1, sizeof *b);
    *out = NULL;
    if (!b) return err_set(err, MAR_ENOMEM, "out of memory");
    *b = (between_runner){
        .base = {between_run, between_plan}, .k = k, .model = model, .images = images, .prompts = prompts};
    b->sequences = sequences;
    mar_status status =
        causal_pass_create(k, model->language, sequences, s->seq_len + (share > s->prefix ? share : s->prefix), rows,
                           rows, 0, &b->pass, err);
    if (status == MAR_OK) {
        b->pass.span_slots = s->prefix + s->seq_len;
        b->pass.causal = 1;
        status = between_allocate(b, err);
    }
    if (status == MAR_OK)
        *out = b;
    else
        between_free(b);
    return status;
}

void between_free(between_runner *b)
{
    if (!b) return;
    causal_pass_free(&b->pass);
    void *lists[] = {b->prompt, b->ids, b->of, b->embedding, b->order, b->target};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) free(lists[i]);
    free(b);
}

size_t between_lay_out(between_runner *b, char *base)
{
    const causal_shape *s = between_shape(b);
    const size_t rows = (size_t)b->pass.rows_max, width = (size_t)s->width, size = b->k->device->act_size;
    size_t used = 0;
    b->prompt_rows = arena_carve(base, &used, (size_t)s->prefix * width, sizeof(float));
    b->hidden = arena_carve(base, &used, rows * width, sizeof(float));
    b->normal = arena_carve(base, &used, rows * width, size);
    b->projected = arena_carve(base, &used, rows * width, size);
    b->sum = arena_carve(base, &used, rows * (size_t)s->token_dim, sizeof(float));
    for (int i = 0; base && i < b->prompts; i++) b->prompt[i].length = 0; /* the cache is new */
    return used + causal_pass_lay_out(&b->pass, base ? base + used : NULL);
}
