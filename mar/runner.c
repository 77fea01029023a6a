/* One model at work: the transformer's parts, its passes, and a step's work with them (mar/runner.h). */
#include "mar/runner.h"

#include "base/arena.h"

#include <stdlib.h>

static const float ln_eps = 1e-6f; /* norm_layer=partial(nn.LayerNorm, eps=1e-6) in every MAR model */

static int head_dim(const mar_masked_model *m)
{
    return m->base.config.width / m->base.config.heads;
}

void mar_layer_norm(kern_queue *k, const mar_masked_model *m, const float *x, const int *index, int rows, mar_norm n,
                    void *y, int f32)
{
    const int d = m->base.config.width;
    k->core->layer_norm(k, x, index, rows, d, n, n + d, ln_eps, y, f32);
}

static const act *at(const kern_queue *k, const act *p, int elements)
{
    return (const char *)p + (size_t)elements * k->device->act_size;
}

void mar_watch(kern_queue *k, const mar_masked_model *m, const mar_block *b, const char *layer, const void *x, int f32,
               int rows, int width)
{
    const mar_model_config *c = &m->base.config;
    const int encodes = b >= m->encoder && b < m->encoder + c->encoder_depth;
    if (!k->watch.on) return;
    if (b)
        kern_watch(k, x, f32, rows, width, width, "%s_blocks.%d.%s", encodes ? "encoder" : "decoder",
                   (int)(b - (encodes ? m->encoder : m->decoder)), layer);
    else
        kern_watch(k, x, f32, rows, width, width, "%s", layer);
}

void mar_block_mlp(const mar_masked_model *m, mar_workspace *w, const mar_block *b, float *x, int rows)
{
    kern_queue *k = w->k;
    const int d = m->base.config.width;
    mar_layer_norm(k, m, x, NULL, rows, b->norm2, w->normed, 0);
    mar_watch(k, m, b, "norm2", w->normed, 0, rows, d);
    k->core->linear(k, b->fc1, w->normed, rows, w->hidden);
    mar_watch(k, m, b, "mlp.fc1", w->hidden, 0, rows, m->base.config.mlp_hidden);
    k->core->linear(k, b->fc2, w->hidden, rows, x);
    mar_watch(k, m, b, "mlp.fc2", x, 1, rows, d);
}

/* w->mixed = the attention of the sequences' queries to their keys and values. */
static void attend(const mar_masked_model *m, mar_workspace *w, const act *q, int q_stride, const mar_spans *queries,
                   const act *key, const act *value, int kv_stride, const mar_spans *keys)
{
    kern_queue *k = w->k;
    const int n = queries->sequences, heads = m->base.config.heads;
    if (queries->first)
        k->core->attention_spans(k, q, q_stride, queries->first, queries->length, key, value, kv_stride, keys->first,
                                 keys->length, n, heads, head_dim(m), w->mixed);
    else if (n > 0)
        k->core->attention(k, q, q_stride, key, value, kv_stride, n, queries->rows / n, keys->rows / n, heads,
                           head_dim(m), w->mixed);
}

/* proj and fc2 add to the residual stream themselves, and the norm behind them reads it: bytes an element, with
 * operands in bf16, 4 + 4 in the product and 4 + 2 in the norm. An operation that adds and normalises would take the 8
 * out of the product, which hides some of them behind its arithmetic, and move 4 as the product's output and 4 + 4 + 4
 * + 2 itself: 18 for 14. */
void mar_block_attend(const mar_masked_model *m, mar_workspace *w, const mar_block *b, const mar_spans *spans)
{
    kern_queue *k = w->k;
    const int d = m->base.config.width, rows = spans->rows;
    attend(m, w, w->qkv, 3 * d, spans, at(k, w->qkv, d), at(k, w->qkv, 2 * d), 3 * d, spans);
    mar_watch(k, m, b, "attn", w->mixed, 0, rows, d);
    k->core->linear(k, b->proj, w->mixed, rows, w->x);
    mar_watch(k, m, b, "attn.proj", w->x, 1, rows, d);
    mar_block_mlp(m, w, b, w->x, rows);
}

void mar_block_run(const mar_masked_model *m, mar_workspace *w, const mar_block *b, const mar_spans *spans)
{
    kern_queue *k = w->k;
    const int d = m->base.config.width, rows = spans->rows;
    mar_layer_norm(k, m, w->x, NULL, rows, b->norm1, w->normed, 0);
    mar_watch(k, m, b, "norm1", w->normed, 0, rows, d);
    k->core->linear(k, b->qkv, w->normed, rows, w->qkv);
    mar_watch(k, m, b, "attn.qkv", w->qkv, 0, rows, 3 * d);
    mar_block_attend(m, w, b, spans);
}

void mar_block_keys(const mar_masked_model *m, mar_workspace *w, const mar_block *b, const float *x, int rows)
{
    kern_queue *k = w->k;
    const int d = m->base.config.width;
    mar_layer_norm(k, m, x, NULL, rows, b->norm1, w->normed, 0);
    mar_watch(k, m, b, "norm1", w->normed, 0, rows, d);
    k->core->linear(k, b->kv, w->normed, rows, w->qkv);
    mar_watch(k, m, b, "attn.qkv", w->qkv, 0, rows, 2 * d);
}

void mar_block_ask(const mar_masked_model *m, mar_workspace *w, const mar_block *b, const float *x, const int *asked,
                   const mar_spans *queries, const act *kv, const mar_spans *keys, float *y)
{
    kern_queue *k = w->k;
    const int d = m->base.config.width, rows = queries->rows;
    mar_layer_norm(k, m, x, asked, rows, b->norm1, w->normed, 0);
    act *query = w->hidden; /* at least D wide */
    k->core->linear(k, b->q, w->normed, rows, query);
    mar_watch(k, m, b, "attn.qkv", query, 0, rows, d);
    attend(m, w, query, d, queries, kv, at(k, kv, d), 2 * d, keys);
    mar_watch(k, m, b, "attn", w->mixed, 0, rows, d);
    k->core->copy_rows(k, y, NULL, x, asked, NULL, NULL, rows, d);
    k->core->linear(k, b->proj, w->mixed, rows, y);
    mar_watch(k, m, b, "attn.proj", y, 1, rows, d);
    mar_block_mlp(m, w, b, y, rows);
}

void mar_embed_classes(const mar_masked_model *m, mar_workspace *w, int sequences, const int *label, float *class_rows)
{
    kern_queue *k = w->k;
    const int buffer = m->base.config.buffer, rows = sequences * buffer;
    for (int r = 0; r < rows; r++) {
        w->rows[0][r] = label[r / buffer];
        w->rows[1][r] = r % buffer;
    }
    const int d = m->base.config.width;
    k->core->copy_rows(k, w->x, NULL, m->class_emb, w->rows[0], m->encoder_pos, w->rows[1], rows, d);
    mar_watch(k, m, NULL, "class_emb", w->x, 1, rows, d);
    mar_layer_norm(k, m, w->x, NULL, rows, m->z_proj_ln, class_rows, 1);
    mar_watch(k, m, NULL, "z_proj_ln", class_rows, 1, rows, d);
}

void mar_embed_tokens(const mar_masked_model *m, mar_workspace *w, const float *tokens, int n, const int *image,
                      const int *position, float *token_rows)
{
    kern_queue *k = w->k;
    const int d = m->base.config.width;
    for (int r = 0; r < n; r++) {
        w->rows[0][r] = m->base.config.buffer + position[r];
        w->rows[1][r] = image[r] * m->base.config.seq_len + position[r];
    }
    k->core->linear(k, m->z_proj, tokens, n, w->x);
    mar_watch(k, m, NULL, "z_proj", w->x, 1, n, d);
    k->core->copy_rows(k, w->x, NULL, w->x, NULL, m->encoder_pos, w->rows[0], n, d);
    mar_watch(k, m, NULL, "encoder_pos_embed_learned", w->x, 1, n, d);
    mar_layer_norm(k, m, w->x, NULL, n, m->z_proj_ln, w->memory, 1);
    mar_watch(k, m, NULL, "z_proj_ln", w->memory, 1, n, d);
    k->core->copy_rows(k, token_rows, w->rows[1], w->memory, NULL, NULL, NULL, n, d);
}

/* Position in the order of known token i: the most recently predicted come first. */
static int known_position(const mar_masked_model *m, const mar_pass *p, int sequence, int i)
{
    return p->order[sequence % p->images][m->base.config.seq_len - p->known + i];
}

void mar_encoder_input(const mar_masked_model *m, mar_workspace *w, const mar_pass *p, int count)
{
    kern_queue *k = w->k;
    const mar_model_config *c = &m->base.config;
    const int length = c->buffer + count;
    int n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < c->buffer; i++) w->rows[0][n++] = s * length + i;
    k->core->copy_rows(k, w->x, w->rows[0], p->class_rows, NULL, NULL, NULL, n, c->width);
    n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < count; i++, n++) {
            w->rows[0][n] = s * length + c->buffer + i;
            w->rows[1][n] = s % p->images * c->seq_len + known_position(m, p, s, i);
        }
    k->core->copy_rows(k, w->x, w->rows[0], p->token_rows, w->rows[1], NULL, NULL, n, c->width);
}

void mar_encode(const mar_masked_model *m, mar_workspace *w, const mar_pass *p)
{
    const mar_spans spans = {.sequences = p->sequences, .rows = p->sequences * (m->base.config.buffer + p->known)};
    mar_encoder_input(m, w, p, p->known);
    for (int b = 0; b < m->base.config.encoder_depth; b++) mar_block_run(m, w, &m->encoder[b], &spans);
}

void mar_decoder_visible(const mar_masked_model *m, mar_workspace *w, const mar_pass *p, int count, float *input)
{
    kern_queue *k = w->k;
    const mar_model_config *c = &m->base.config;
    const int visible = c->buffer + count, length = c->buffer + c->seq_len, rows = p->sequences * visible;
    mar_layer_norm(k, m, w->x, NULL, rows, m->encoder_norm, w->normed, 0);
    mar_watch(k, m, NULL, "encoder_norm", w->normed, 0, rows, c->width);
    k->core->linear(k, m->decoder_embed, w->normed, rows, w->memory);
    mar_watch(k, m, NULL, "decoder_embed", w->memory, 1, rows, c->width);
    int n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < visible; i++, n++) {
            const int position = i < c->buffer ? i : c->buffer + known_position(m, p, s, i - c->buffer);
            w->rows[0][n] = s * length + position;
            w->rows[1][n] = position;
        }
    k->core->copy_rows(k, input, w->rows[0], w->memory, NULL, m->decoder_pos, w->rows[1], n, c->width);
}

void mar_decoder_input(const mar_masked_model *m, mar_workspace *w, const mar_pass *p)
{
    kern_queue *k = w->k;
    const mar_model_config *c = &m->base.config;
    const int length = c->buffer + c->seq_len;
    mar_decoder_visible(m, w, p, p->known, w->x);
    int n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < c->seq_len - p->known; i++, n++) {
            const int position = c->buffer + p->order[s % p->images][i];
            w->rows[0][n] = s * length + position;
            w->rows[1][n] = position;
            w->rows[2][n] = 0;
        }
    k->core->copy_rows(k, w->x, w->rows[0], m->mask_token, w->rows[2], m->decoder_pos, w->rows[1], n, c->width);
    mar_watch(k, m, NULL, "decoder_pos_embed_learned", w->x, 1, p->sequences * length, c->width);
}

int mar_predicted_positions(const mar_masked_model *m, const mar_pass *p, int count, int *position)
{
    int n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < count; i++)
            position[n++] = p->order[s % p->images][m->base.config.seq_len - p->known - count + i];
    return n;
}

void mar_conditions(kern_queue *k, const mar_masked_model *m, const float *y, const int *position, int n, float *normed,
                    float *z, const int *z_index)
{
    const int d = m->base.config.width;
    mar_layer_norm(k, m, y, NULL, n, m->decoder_norm, normed, 1);
    mar_watch(k, m, NULL, "decoder_norm", normed, 1, n, d);
    k->core->copy_rows(k, z, z_index, normed, NULL, m->diffusion_pos, position, n, d);
}

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
    mar_block_keys(m, w, last, w->x, keys.rows);
    mar_block_ask(m, w, last, w->x, w->rows[0], &queries, w->qkv, &keys, w->memory);
    mar_conditions(w->k, m, w->memory, w->rows[1], n, w->x, z, z_index);
}

mar_status mar_block_plan(kern_queue *k, const mar_block *b, int rows, int kv_rows, mar_err *err)
{
    struct {
        kern_linear *layer;
        int rows;
    } use[] = {{b->qkv, rows}, {b->q, rows}, {b->kv, kv_rows}, {b->proj, rows}, {b->fc1, rows}, {b->fc2, rows}};
    mar_status status = MAR_OK;
    for (size_t i = 0; status == MAR_OK && i < sizeof use / sizeof *use; i++)
        if (use[i].layer) status = k->core->linear_plan(k, use[i].layer, use[i].rows, err);
    return status;
}

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
    const int shapes[3][4] = {
        {encoded, encoded, 3 * d, 3 * d}, {decoded, decoded, 3 * d, 3 * d}, {predicted, decoded, d, 2 * d}};
    for (int i = 0; status == MAR_OK && i < 3; i++)
        status = k->core->attention_plan(k, shapes[i][0], shapes[i][1], c->heads, head_dim(m), shapes[i][2],
                                         shapes[i][3], err);
    return status;
}

double mar_block_flop(const mar_masked_model *m, double rows, double kv_rows, double kv_length)
{
    const double d = m->base.config.width, hidden = m->base.config.mlp_hidden;
    return 2 * (rows * (2 * d * d + 2 * d * hidden + 2 * kv_length * d) + kv_rows * 2 * d * d);
}

double mar_encode_flop(const mar_masked_model *m, int sequences, int known)
{
    const double length = m->base.config.buffer + known, rows = sequences * length;
    return m->base.config.encoder_depth * mar_block_flop(m, rows, rows, length);
}

double mar_decode_flop(const mar_masked_model *m, int sequences, int predicted)
{
    const double length = m->base.config.buffer + m->base.config.seq_len, rows = sequences * length,
                 d = m->base.config.width;
    return (m->base.config.decoder_depth - 1) * mar_block_flop(m, rows, rows, length) +
           mar_block_flop(m, (double)sequences * predicted, rows, length) + 2 * rows * d * d;
}

/* --- the passes of a plain step --------------------------------------------------------------------------------- */

static mar_status plan_step(kern_queue *k, const void *state, const mar_masked_model *m, int images, int conditions,
                            const mar_step *step, mar_err *err)
{
    (void)state;
    return mar_passes_plan(k, m, images * conditions, step->known, step->predicted, err);
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
    return mar_decode_flop(m, p->sequences, p->predicted);
}

const mar_passes mar_plain_passes = {.plan = plan_step, .encode = encode_step, .decode = decode_step};

/* --- a step's work, with its time and its recordings -------------------------------------------------------------- */

void mar_perform(kern_queue *k, const char *part, kern_recording **recording, void (*body)(void *arg), void *arg,
                 double *seconds)
{
    k->watch.part = part;
    k->core->lap(k, NULL);
    if (recording && !k->watch.on) /* the search for layers waits in between */
        k->core->replay(k, recording, body, arg);
    else
        body(arg);
    k->core->lap(k, seconds);
}

static void perform(const mar_runner *r, kern_recording **recording, void (*body)(void *arg), void *arg,
                    double *seconds)
{
    mar_perform(r->work.k, r->chain.part, recording, body, arg, seconds);
}

/* Where the z of a step's token goes: `i` of all `sequences`, `images` of them conditional. */
static int z_row(const mar_step *step, int sequences, int images, int i, int first, int total)
{
    const int s = i / step->predicted, place = i % step->predicted, others = step->predicted - step->detailed;
    if (step->detailed == 0) return s / images * total + first + i % (images * step->predicted);
    return place >= others ? s * step->detailed + place - others : sequences * step->detailed + s * others + place;
}

/* The arguments of the bodies of mar_runner_predict. */
typedef struct {
    mar_runner *r;
    mar_pass pass;
    const mar_step *step;
    double encoder_flop, decoder_flop; /* what encode and decode took */
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
    const int sequences = batch->images * r->conditions;
    prediction p = {.r = r,
                    .step = step,
                    .pass = {.sequences = sequences,
                             .images = batch->images,
                             .known = step->known,
                             .predicted = step->predicted,
                             .order = batch->order,
                             .token_rows = batch->token_rows ? batch->token_rows : r->token_rows,
                             .class_rows = batch->class_rows ? batch->class_rows : r->class_rows}};
    for (int i = 0; i < sequences * step->predicted; i++)
        r->z_index[i] = z_row(step, sequences, batch->images, i, first, total);
    perform(r, recordings ? &recordings->encode : NULL, encode, &p, &r->encoder_s);
    perform(r, recordings && !step->reads_back ? &recordings->decode : NULL, decode, &p, &r->decoder_s);
    r->encoder_flop += p.encoder_flop;
    r->decoder_flop += p.decoder_flop;
}

typedef struct {
    mar_runner *r;
    const float *tokens;
    int n;
    const int *image, *position;
} learning;

static void learn(void *arg)
{
    const learning *l = arg;
    mar_embed_tokens(l->r->model, &l->r->work, l->tokens, l->n, l->image, l->position, l->r->token_rows);
}

void mar_runner_learn(mar_runner *r, const float *tokens, int n, const int *image, const int *position,
                      kern_recording **recording)
{
    learning l = {r, tokens, n, image, position};
    perform(r, recording, learn, &l, &r->encoder_s);
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
    perform(r, recording, draw, &w, &r->head_s);
    r->head_flop += diff_chain_flop(&r->chain, d->count) * (first - last + 1) / r->chain.schedule.steps;
}

void mar_runner_begin(mar_runner *r, int images, const int *label)
{
    kern_queue *k = r->work.k;
    for (int i = 0; i < images; i++) {
        r->labels[i] = label[i];
        if (r->conditions == 2) r->labels[images + i] = r->model->base.config.classes;
    }
    r->encoder_s = r->decoder_s = r->head_s = r->encoder_flop = r->decoder_flop = r->head_flop = 0;
    k->watch.part = r->chain.part;
    k->core->lap(k, NULL);
    mar_embed_classes(r->model, &r->work, images * r->conditions, r->labels, r->class_rows);
    k->core->lap(k, &r->encoder_s);
}

/* --- memory and plans --------------------------------------------------------------------------------------------- */

void mar_workspace_lay_out(mar_workspace *w, char *base, size_t *used, size_t rows, size_t d, size_t hidden)
{
    const size_t act_size = w->k->device->act_size;
    w->x = arena_carve(base, used, rows * d, sizeof(float));
    w->memory = arena_carve(base, used, rows * d, sizeof(float));
    w->normed = arena_carve(base, used, rows * d, act_size);
    w->qkv = arena_carve(base, used, rows * 3 * d, act_size);
    w->mixed = arena_carve(base, used, rows * d, act_size);
    w->hidden = arena_carve(base, used, rows * hidden, act_size);
}

size_t mar_runner_lay_out(mar_runner *r, char *base)
{
    const mar_model_config *c = &r->model->base.config;
    const size_t images = (size_t)r->max_images, sequences = images * (size_t)r->conditions, d = (size_t)c->width;
    const size_t rows = sequences * (size_t)(c->buffer + c->seq_len), seq = (size_t)c->seq_len;
    size_t used = 0;
    mar_workspace_lay_out(&r->work, base, &used, rows, d,
                          (size_t)(c->mlp_hidden > c->width ? c->mlp_hidden : c->width));
    r->token_rows = arena_carve(base, &used, images * seq * d, sizeof(float));
    r->class_rows = arena_carve(base, &used, sequences * (size_t)c->buffer * d, sizeof(float));
    r->z = arena_carve(base, &used, sequences * (size_t)r->max_tokens * d, sizeof(float));
    used += diff_chain_lay_out(&r->chain, base ? base + used : NULL);
    return used;
}

mar_status mar_runner_create(kern_queue *k, const mar_masked_model *model, int max_images, int conditions,
                             int max_tokens, const diff_spec *specs, int n, float temperature, mar_runner *out,
                             mar_err *err)
{
    const mar_model_config *c = &model->base.config;
    *out = (mar_runner){.model = model,
                        .max_images = max_images,
                        .conditions = conditions,
                        .max_tokens = max_tokens,
                        .work = {.k = k},
                        .passes = &mar_plain_passes};
    mar_status status = diff_chain_create_for(k, &model->head, specs, n, temperature, max_images * max_tokens,
                                              conditions == 2, &out->chain, err);
    if (status != MAR_OK) { /* nothing is owned yet */
        out->model = NULL;
        return status;
    }
    const size_t sequences = (size_t)max_images * (size_t)conditions;
    int *rows[3];
    for (int i = 0; i < 3; i++)
        rows[i] = out->work.rows[i] = calloc(sequences * (size_t)(c->buffer + c->seq_len), sizeof *rows[i]);
    out->z_index = calloc(sequences * (size_t)max_tokens, sizeof *out->z_index);
    out->labels = calloc(sequences, sizeof *out->labels);
    if (rows[0] && rows[1] && rows[2] && out->z_index && out->labels) return MAR_OK;
    mar_runner_free(out);
    return err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", max_images);
}

void mar_runner_free(mar_runner *r)
{
    if (!r->model) return;
    diff_chain_free(&r->chain);
    for (int i = 0; i < 3; i++) free(r->work.rows[i]);
    free(r->z_index);
    free(r->labels);
    *r = (mar_runner){0};
}

void mar_recordings_free(kern_queue *k, mar_recordings *t)
{
    kern_recording *recordings[] = {t->encode, t->decode, t->draw[0], t->draw[1], t->learn};
    for (int i = 0; i < 5; i++) k->core->recording_free(k, recordings[i]);
    *t = (mar_recordings){0};
}

mar_status mar_runner_plan(mar_runner *r, int images, const mar_step *step, mar_err *err)
{
    mar_status status = mar_runner_plan_learn(r, images * step->predicted, err);
    if (status != MAR_OK) return status;
    return r->passes->plan(r->work.k, r->passes_state, r->model, images, r->conditions, step, err);
}

mar_status mar_runner_plan_learn(mar_runner *r, int tokens, mar_err *err)
{
    return r->work.k->core->linear_plan(r->work.k, r->model->z_proj, tokens, err);
}

mar_status mar_runner_plan_head(mar_runner *r, int tokens, mar_err *err)
{
    return diff_chain_plan(&r->chain, tokens, err);
}
