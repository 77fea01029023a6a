#include "spherear/runner.h"

#include "base/arena.h"

#include <stdlib.h>

/* --- the rows of a pass ------------------------------------------------------------------------------------------- */

void sphere_runner_begin(sphere_runner *r)
{
    gpt_pass_begin(&r->pass, NULL, NULL);
    r->z_rows = r->classes = 0;
}

/* Adds the row of a sequence's position to the current span, whose first row has position `first`. */
static void add_row(sphere_runner *r, int sequence, int first, int position, int source)
{
    gpt_pass *p = &r->pass;
    r->source[p->rows] = source;
    uint64_t *mask = gpt_pass_add_row(p, 0, position, sequence, position);
    gpt_mask_add(mask, 0, position - first + 1);
    p->attended += position + 1;
}

/* Wants z of token `next`, after the last row, as row `to`. */
static void want(sphere_runner *r, int next, int to)
{
    r->z_row[r->z_rows] = r->pass.rows - 1;
    r->z_next[r->z_rows] = next;
    r->z_to[r->z_rows++] = to;
}

/* Begins a span of positions first .. first+n-1 of a sequence, which attend to all positions before them. */
static void add_span(sphere_runner *r, int sequence, int first, int n)
{
    gpt_pass *p = &r->pass;
    gpt_pass_add_span(p);
    for (int i = 0; i < first; i++) gpt_pass_add_slot(p, sequence, i);
    gpt_pass_set_common(p);
    for (int i = first; i < first + n; i++) gpt_pass_add_slot(p, sequence, i);
}

void sphere_runner_add_class(sphere_runner *r, int image, int branch, int label, int to)
{
    const int n = r->model->shape.transformer.prefix, sequence = gpt_sequence(r->images, image, branch);
    r->classes = 1;
    add_span(r, sequence, 0, n);
    for (int i = 0; i < n; i++) add_row(r, sequence, 0, i, label * n + i);
    want(r, 0, to);
}

void sphere_runner_add(sphere_runner *r, int image, int branch, int first, int n, const int *source, int wanted,
                       int offset, const int *to)
{
    const int from = r->model->shape.transformer.prefix + first, sequence = gpt_sequence(r->images, image, branch);
    add_span(r, sequence, from, n);
    for (int i = 0; i < n; i++) {
        add_row(r, sequence, from, from + i, source[i]);
        if (i >= n - wanted) want(r, first + i + 1, offset + to[i - n + wanted]);
    }
}

/* --- a pass ------------------------------------------------------------------------------------------------------- */

/* Argument of a recording's body. */
typedef struct {
    sphere_runner *r;
    const float *tokens;
    float *z;
} call;

/* x = emb_norm of class embeddings, or of proj_in(tokens). */
static void embed(const call *c)
{
    const sphere_runner *r = c->r;
    const sphere_model *m = r->model;
    const gpt_pass *p = &r->pass;
    kern_queue *k = r->k;
    const int d = m->shape.transformer.width, channels = m->shape.head.channels;
    if (r->classes) {
        k->core->copy_rows(k, r->embedded, NULL, m->class_emb, r->source, NULL, NULL, p->rows, d);
    } else {
        k->core->copy_rows(k, r->token, NULL, c->tokens, r->source, NULL, NULL, p->rows, channels);
        k->core->linear(k, m->proj_in, r->token, p->rows, r->embedded);
    }
    kern_watch(k, r->embedded, MAR_DTYPE_F32, p->rows, d, d, "%s", r->classes ? "cls_embedding" : "proj_in");
    k->core->rms_norm(k, r->embedded, NULL, p->rows, d, m->emb_norm, 1e-6f, p->x, 1);
    kern_watch(k, p->x, MAR_DTYPE_F32, p->rows, d, d, "emb_norm");
}

/* z = norm(x) + pos_for_diff of the next token. */
static void compute(void *arg)
{
    const call *c = arg;
    const sphere_runner *r = c->r;
    kern_queue *k = r->k;
    const int d = r->model->shape.transformer.width;
    embed(c);
    gpt_pass_layers(&r->pass);
    k->core->rms_norm(k, r->pass.x, r->z_row, r->z_rows, d, r->model->transformer->norm, 1e-6f, r->normed, 1);
    kern_watch(k, r->normed, MAR_DTYPE_F32, r->z_rows, d, d, "norm");
    k->core->copy_rows(k, c->z, r->z_to, r->normed, NULL, r->model->position_emb, r->z_next, r->z_rows, d);
}

void sphere_runner_run(sphere_runner *r, const float *tokens, float *z)
{
    const gpt_pass *p = &r->pass;
    const gpt_config *c = &r->model->shape.transformer;
    call body = {r, tokens, z};
    const gpt_shape shape = {.kind = r->classes, .rows = p->rows, .spans = p->spans, .logit_rows = r->z_rows};
    if (p->rows == 0) return;
    kern_run_recorded(r->k, r->part, gpt_recordings_find(r->k, &r->recordings, &shape), compute, &body, &r->seconds);
    r->passes++;
    r->flop += gpt_pass_flop(p) + (r->classes ? 0 : 2.0 * p->rows * c->width * r->model->shape.head.channels);
}

/* --- memory and plans --------------------------------------------------------------------------------------------- */

static size_t rows_max(const sphere_runner *r)
{
    return (size_t)r->images * (size_t)r->branches * (size_t)r->rows;
}

mar_status sphere_runner_create(kern_queue *k, const sphere_model *model, int images, int branches, int tokens,
                                sphere_runner *out, mar_err *err)
{
    const gpt_config *c = &model->shape.transformer;
    *out = (sphere_runner){.k = k,
                           .model = model,
                           .images = images,
                           .branches = branches,
                           .rows = tokens > c->prefix ? tokens : c->prefix,
                           .part = ""};
    mar_status status = gpt_pass_create(k, model->transformer, images * branches, c->prefix + c->seq_len, out->rows, 1,
                                        0, &out->pass, err);
    out->source = calloc(4 * rows_max(out), sizeof *out->source); /* owns all lists */
    if (status == MAR_OK && !out->source)
        status = err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", images);
    if (status != MAR_OK) {
        sphere_runner_free(out);
        return status;
    }
    out->z_row = out->source + rows_max(out);
    out->z_next = out->z_row + rows_max(out);
    out->z_to = out->z_next + rows_max(out);
    return MAR_OK;
}

void sphere_runner_free(sphere_runner *r)
{
    if (!r->k) return;
    gpt_recordings_free(r->k, &r->recordings);
    gpt_pass_free(&r->pass);
    free(r->source);
    *r = (sphere_runner){0};
}

size_t sphere_runner_lay_out(sphere_runner *r, char *base)
{
    const size_t rows = rows_max(r), d = (size_t)r->model->shape.transformer.width;
    size_t used = 0;
    if (base) gpt_recordings_free(r->k, &r->recordings); /* they hold addresses */
    r->token = arena_carve(base, &used, rows * (size_t)r->model->shape.head.channels, sizeof(float));
    r->embedded = arena_carve(base, &used, rows * d, sizeof(float));
    r->normed = arena_carve(base, &used, rows * d, sizeof(float));
    used += gpt_pass_lay_out(&r->pass, base ? base + used : NULL);
    return used;
}

mar_status sphere_runner_plan(sphere_runner *r, int images, int tokens, mar_err *err)
{
    const int prefix = r->model->shape.transformer.prefix;
    mar_status status = MAR_OK;
    gpt_recordings_free(r->k, &r->recordings);
    for (int n = 1; status == MAR_OK && n <= images; n++) {
        const int sequences = n * r->branches;
        for (int t = 1; status == MAR_OK && t <= tokens; t++) {
            status = gpt_pass_plan(&r->pass, sequences * t, 0, err);
            if (status == MAR_OK) status = r->k->core->linear_plan(r->k, r->model->proj_in, sequences * t, err);
        }
        if (status == MAR_OK) status = gpt_pass_plan(&r->pass, sequences * prefix, 0, err);
    }
    return status;
}
