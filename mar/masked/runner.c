/* One model at work (mar/masked/runner.h): its forward pass, and the work of a step. */
#include "mar/masked/runner.h"

#include "base/arena.h"

#include <stdlib.h>

/* Returns the position of known token i. The most recently predicted ones come first. */
static int known_position(const mar_masked_model *m, const mar_pass *p, int sequence, int i)
{
    return p->order[sequence % p->images][m->base.config.seq_len - p->known + i];
}

/* --- the encoder -------------------------------------------------------------------------------------------------- */

void mar_encode(const mar_masked_model *m, mar_workspace *w, const mar_pass *p)
{
    const mar_spans spans = {.sequences = p->sequences, .rows = p->sequences * (m->base.config.buffer + p->known)};
    mar_encoder_input(m, w, p, p->known);
    for (int b = 0; b < m->base.config.encoder_depth; b++) mar_block_run(m, w, &m->encoder[b], &spans);
}

void mar_encoder_input(const mar_masked_model *m, mar_workspace *w, const mar_pass *p, int count)
{
    const mar_model_config *c = &m->base.config;
    const int length = c->buffer + count;
    int n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < c->buffer; i++, n++) {
            w->rows[0][n] = s * length + i;
            w->rows[1][n] = mar_class_row(m, p->embedded, p->first + s % p->images, s / p->images) + i;
        }
    mar_gather_classes(m, w, p->embedded, n);
    n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < count; i++, n++) {
            w->rows[0][n] = s * length + c->buffer + i;
            w->rows[1][n] = (p->first + s % p->images) * c->seq_len + known_position(m, p, s, i);
        }
    mar_gather_tokens(m, w, p->embedded, n);
}

/* --- the decoder -------------------------------------------------------------------------------------------------- */

void mar_decode(const mar_masked_model *m, mar_workspace *w, const mar_pass *p, float *z, const int *z_index)
{
    const mar_model_config *c = &m->base.config;
    const mar_block *last = &m->decoder[c->decoder_depth - 1];
    const int length = c->buffer + c->seq_len;
    const mar_spans keys = {.sequences = p->sequences, .rows = p->sequences * length};
    const mar_spans queries = {.sequences = p->sequences, .rows = p->sequences * p->predicted};
    mar_decoder_input(m, w, p);
    for (int b = 0; b + 1 < c->decoder_depth; b++) mar_block_run(m, w, &m->decoder[b], &keys);
    const int n = mar_predicted_positions(m, p, p->predicted, w->rows[1]);
    for (int i = 0; i < n; i++) w->rows[0][i] = i / p->predicted * length + c->buffer + w->rows[1][i];
    mar_last_block_kv(m, w, last, w->x, keys.rows);
    mar_last_block_run(m, w, last, w->x, w->rows[0], &queries, w->qkv, &keys, w->memory);
    mar_compute_z(w->k, m, w->memory, w->rows[1], n, w->x, z, z_index);
}

void mar_decoder_input(const mar_masked_model *m, mar_workspace *w, const mar_pass *p)
{
    const mar_model_config *c = &m->base.config;
    const int visible = mar_decoder_visible(m, w, p, p->known, w->x);
    int masked = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < c->seq_len - p->known; i++, masked++) {
            w->rows[2][masked] = p->order[s % p->images][i];
            w->rows[1][masked] = s * (c->buffer + c->seq_len) + c->buffer + w->rows[2][masked];
        }
    mar_decoder_masked(m, w, p->embedded, visible, masked);
}

int mar_decoder_visible(const mar_masked_model *m, mar_workspace *w, const mar_pass *p, int count, float *input)
{
    kern_queue *k = w->k;
    const mar_model_config *c = &m->base.config;
    const int visible = c->buffer + count, length = c->buffer + c->seq_len;
    mar_decoder_embed(m, w, p->sequences * visible);
    int n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < visible; i++, n++) {
            const int position = i < c->buffer ? i : c->buffer + known_position(m, p, s, i - c->buffer);
            w->rows[0][n] = s * length + position;
            w->rows[1][n] = position;
        }
    k->core->copy_rows(k, input, w->rows[0], w->memory, NULL, m->decoder_pos, w->rows[1], n, c->width);
    return n;
}

void mar_decoder_embed(const mar_masked_model *m, mar_workspace *w, int rows)
{
    kern_queue *k = w->k;
    const int d = m->base.config.width;
    mar_layer_norm(k, m, w->x, NULL, rows, m->encoder_norm, w->normed, 0);
    mar_watch(k, m, NULL, "encoder_norm", w->normed, 0, rows, d);
    k->core->linear(k, m->decoder_embed, w->normed, rows, w->memory);
    mar_watch(k, m, NULL, "decoder_embed", w->memory, 1, rows, d);
}

void mar_decoder_masked(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int visible, int masked)
{
    const int d = m->base.config.width;
    w->k->core->copy_rows(w->k, w->x, w->rows[1], e->mask_rows, w->rows[2], NULL, NULL, masked, d);
    mar_watch(w->k, m, NULL, "decoder_pos_embed_learned", w->x, 1, visible + masked, d);
}

int mar_predicted_positions(const mar_masked_model *m, const mar_pass *p, int count, int *position)
{
    int n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < count; i++)
            position[n++] = p->order[s % p->images][m->base.config.seq_len - p->known - count + i];
    return n;
}

void mar_compute_z(kern_queue *k, const mar_masked_model *m, const float *y, const int *position, int n, float *normed,
                   float *z, const int *z_index)
{
    const int d = m->base.config.width;
    mar_layer_norm(k, m, y, NULL, n, m->decoder_norm, normed, 1);
    mar_watch(k, m, NULL, "decoder_norm", normed, 1, n, d);
    k->core->copy_rows(k, z, z_index, normed, NULL, m->diffusion_pos, position, n, d);
}

/* --- plans and arithmetic of a pass ------------------------------------------------------------------------------- */

mar_status mar_passes_plan(kern_queue *k, const mar_masked_model *m, int sequences, int known, int predicted,
                           mar_err *err)
{
    const mar_model_config *c = &m->base.config;
    const int d = c->width, encoded = c->buffer + known, decoded = c->buffer + c->seq_len;
    mar_status status = k->core->linear_plan(k, m->decoder_embed, sequences * encoded, err);
    for (int b = 0; status == MAR_OK && b < c->encoder_depth; b++)
        status = mar_block_plan(k, &m->encoder[b], sequences * encoded, 0, err);
    for (int b = 0; status == MAR_OK && b + 1 < c->decoder_depth; b++)
        status = mar_block_plan(k, &m->decoder[b], sequences * decoded, 0, err);
    if (status == MAR_OK)
        status = mar_block_plan(k, &m->decoder[c->decoder_depth - 1], sequences * predicted, sequences * decoded, err);
    const int shapes[3][5] = {{c->heads, encoded, encoded, 3 * d, 3 * d},
                              {c->decoder_heads, decoded, decoded, 3 * d, 3 * d},
                              {c->decoder_heads, predicted, decoded, d, 2 * d}};
    for (int i = 0; status == MAR_OK && i < 3; i++)
        status = k->core->attention_plan(k, shapes[i][1], shapes[i][2], shapes[i][0], d / shapes[i][0], shapes[i][3],
                                         shapes[i][4], err);
    return status;
}

double mar_encode_flop(const mar_masked_model *m, int sequences, int known)
{
    const double length = m->base.config.buffer + known, rows = sequences * length;
    return m->base.config.encoder_depth * mar_block_flop(m, rows, rows, length);
}

double mar_decode_flop(const mar_masked_model *m, int sequences, int known, int predicted)
{
    const double length = m->base.config.buffer + m->base.config.seq_len, rows = sequences * length,
                 d = m->base.config.width, masked = (double)sequences * (m->base.config.seq_len - known);
    return (m->base.config.decoder_depth - 1) * mar_block_flop(m, rows, rows, length) +
           mar_block_flop(m, (double)sequences * predicted, rows, length) + 2 * (rows - masked) * d * d;
}

/* --- the passes of a plain step ----------------------------------------------------------------------------------- */

static mar_status plan_step(kern_queue *k, const void *state, const mar_masked_model *m, int images,
                            const mar_step *step, mar_err *err)
{
    (void)state;
    return mar_passes_plan(k, m, images * step->cfg_branches, step->known, step->predicted, err);
}

static double encode_step(void *state, const mar_masked_model *m, mar_workspace *w, const mar_pass *p,
                          const mar_step *step)
{
    (void)state, (void)step;
    mar_encode(m, w, p);
    return mar_encode_flop(m, p->sequences, p->known);
}

static double decode_step(void *state, const mar_masked_model *m, mar_workspace *w, const mar_pass *p,
                          const mar_step *step, float *z, const int *z_index)
{
    (void)state, (void)step;
    mar_decode(m, w, p, z, z_index);
    return mar_decode_flop(m, p->sequences, p->known, p->predicted);
}

const mar_passes mar_plain_passes = {.plan = plan_step, .encode = encode_step, .decode = decode_step};

/* --- a step's work, with its time and its recordings -------------------------------------------------------------- */

void mar_run_recorded(kern_queue *k, const char *part, kern_recording **recording, void (*body)(void *arg), void *arg,
                      double *seconds)
{
    k->watch.part = part;
    k->core->timer_mark(k, NULL);
    if (recording && !k->watch.on) /* the search for a non-finite layer waits between layers */
        k->core->replay(k, recording, body, arg);
    else
        body(arg);
    k->core->timer_mark(k, seconds);
}

static void run_recorded(const mar_runner *r, kern_recording **recording, void (*body)(void *arg), void *arg,
                         double *seconds)
{
    mar_run_recorded(r->work.k, r->chain.part, recording, body, arg, seconds);
}

/* Returns the row of z of predicted row i, of all `sequences`, of which `images` are conditional. */
static int z_row(const mar_step *step, int sequences, int images, int i, int first, int total)
{
    const int s = i / step->predicted, place = i % step->predicted, others = step->predicted - step->detailed;
    if (step->detailed == 0) return s / images * total + first + i % (images * step->predicted);
    return place >= others ? s * step->detailed + place - others : sequences * step->detailed + s * others + place;
}

/* Argument of encode and decode. */
typedef struct {
    mar_runner *r;
    mar_pass pass;
    const mar_step *step;
    double encoder_flop, decoder_flop; /* arithmetic of encode and decode */
} prediction;

static void encode(void *arg)
{
    prediction *p = arg;
    p->encoder_flop = p->r->passes->encode(p->r->passes_state, p->r->model, &p->r->work, &p->pass, p->step);
}

static void decode(void *arg)
{
    prediction *p = arg;
    p->decoder_flop =
        p->r->passes->decode(p->r->passes_state, p->r->model, &p->r->work, &p->pass, p->step, p->r->z, p->r->z_index);
}

void mar_runner_predict(mar_runner *r, const mar_batch *batch, const mar_step *step, int first, int total,
                        mar_recordings *recordings)
{
    const int sequences = batch->images * step->cfg_branches;
    prediction p = {.r = r,
                    .step = step,
                    .pass = {.sequences = sequences,
                             .images = batch->images,
                             .known = step->known,
                             .predicted = step->predicted,
                             .order = batch->order,
                             .first = batch->first,
                             .embedded = &r->embedded}};
    for (int i = 0; i < sequences * step->predicted; i++)
        r->z_index[i] = z_row(step, sequences, batch->images, i, first, total);
    run_recorded(r, recordings ? &recordings->encode : NULL, encode, &p, &r->encoder_s);
    run_recorded(r, recordings && !step->reads_back ? &recordings->decode : NULL, decode, &p, &r->decoder_s);
    r->encoder_flop += p.encoder_flop;
    r->decoder_flop += p.decoder_flop;
}

typedef struct {
    mar_runner *r;
    const float *tokens;
    int n;
    const int *image, *position;
} token_addition;

static void add_known_tokens(void *arg)
{
    const token_addition *l = arg;
    mar_embed_tokens(l->r->model, &l->r->work, &l->r->embedded, l->tokens, l->n, l->image, l->position);
}

void mar_runner_add_known_tokens(mar_runner *r, const float *tokens, int n, const int *image, const int *position,
                                 kern_recording **recording)
{
    token_addition l = {r, tokens, n, image, position};
    run_recorded(r, recording, add_known_tokens, &l, &r->encoder_s);
}

typedef struct {
    mar_runner *r;
    const float *z;
    const mar_draw *d;
    int first, last;
    float *x;
    diff_trace *trace;
} drawing;

static void draw(void *arg)
{
    const drawing *w = arg;
    const mar_draw *d = w->d;
    diff_chain *c = &w->r->chain;
    if (w->first == c->schedule.steps - 1) diff_chain_start(c, d->count, d->seed, d->image, d->position, w->x);
    diff_chain_run(c, w->z, d->count, d->cfg, d->seed, d->image, d->position, w->first, w->last, w->x, w->trace);
}

void mar_runner_draw(mar_runner *r, int row, const mar_draw *d, int first, int last, float *x, diff_trace *trace,
                     kern_recording **recording)
{
    drawing w = {r, r->z + (size_t)row * (size_t)r->model->base.config.width, d, first, last, x, trace};
    run_recorded(r, recording, draw, &w, &r->head_s);
    r->head_flop += diff_chain_flop(&r->chain, d->count) * (first - last + 1) / r->chain.schedule.steps;
}

void mar_runner_reset(mar_runner *r)
{
    r->encoder_s = r->decoder_s = r->head_s = r->encoder_flop = r->decoder_flop = r->head_flop = 0;
}

void mar_runner_begin(mar_runner *r, int images, const int *label)
{
    mar_runner_reset(r);
    mar_runner_admit(r, images, NULL, label);
}

void mar_runner_admit(mar_runner *r, int n, const int *slot, const int *label)
{
    kern_queue *k = r->work.k;
    k->watch.part = r->chain.part;
    k->core->timer_mark(k, NULL);
    mar_embed_batch(r->model, &r->work, &r->embedded, n, slot, label);
    k->core->timer_mark(k, &r->encoder_s);
}

/* --- memory and plans --------------------------------------------------------------------------------------------- */

size_t mar_runner_lay_out(mar_runner *r, char *base)
{
    const mar_model_config *c = &r->model->base.config;
    const size_t images = (size_t)r->max_images, sequences = images * (size_t)r->cfg_branches, d = (size_t)c->width;
    const size_t rows = sequences * (size_t)(c->buffer + c->seq_len);
    size_t used = 0;
    mar_workspace_lay_out(&r->work, base, &used, rows, d, mar_hidden_width(r->model));
    mar_embeddings_lay_out(&r->embedded, r->model, base, &used);
    r->z = arena_carve(base, &used, sequences * (size_t)r->max_tokens * d, sizeof(float));
    used += diff_chain_lay_out(&r->chain, base ? base + used : NULL);
    return used;
}

mar_status mar_runner_create(kern_queue *k, const mar_masked_model *model, int max_images, int cfg_branches,
                             int max_tokens, const diff_spec *specs, int n, float temperature, mar_runner *out,
                             mar_err *err)
{
    const mar_model_config *c = &model->base.config;
    *out = (mar_runner){.model = model,
                        .max_images = max_images,
                        .cfg_branches = cfg_branches,
                        .max_tokens = max_tokens,
                        .work = {.k = k},
                        .embedded = {.images = max_images, .cfg_branches = cfg_branches},
                        .passes = &mar_plain_passes};
    const mar_status status = diff_chain_create_for(k, &model->head, specs, n, temperature, max_images * max_tokens,
                                                    cfg_branches == 2, &out->chain, err);
    if (status != MAR_OK) { /* nothing is owned yet */
        out->model = NULL;
        return status;
    }
    const size_t sequences = (size_t)max_images * (size_t)cfg_branches;
    int *rows[3];
    for (int i = 0; i < 3; i++)
        rows[i] = out->work.rows[i] = calloc(sequences * (size_t)(c->buffer + c->seq_len), sizeof *rows[i]);
    out->z_index = calloc(sequences * (size_t)max_tokens, sizeof *out->z_index);
    if (rows[0] && rows[1] && rows[2] && out->z_index) return MAR_OK;
    mar_runner_free(out);
    return err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", max_images);
}

void mar_runner_free(mar_runner *r)
{
    if (!r->model) return;
    diff_chain_free(&r->chain);
    for (int i = 0; i < 3; i++) free(r->work.rows[i]);
    free(r->z_index);
    *r = (mar_runner){0};
}

void mar_recordings_free(kern_queue *k, mar_recordings *t)
{
    kern_recording *recordings[] = {t->encode, t->decode, t->draw[0], t->draw[1], t->known_tokens};
    for (int i = 0; i < 5; i++) k->core->recording_free(k, recordings[i]);
    *t = (mar_recordings){0};
}

mar_status mar_runner_plan(mar_runner *r, int images, const mar_step *step, mar_err *err)
{
    mar_status status = mar_runner_plan_known_tokens(r, images * step->predicted, err);
    if (status != MAR_OK) return status;
    return r->passes->plan(r->work.k, r->passes_state, r->model, images, step, err);
}

mar_status mar_runner_plan_known_tokens(mar_runner *r, int tokens, mar_err *err)
{
    return r->work.k->core->linear_plan(r->work.k, r->model->z_proj, tokens, err);
}

mar_status mar_runner_plan_head(mar_runner *r, int tokens, mar_err *err)
{
    return diff_chain_plan(&r->chain, tokens, err);
}
