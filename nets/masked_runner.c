#include "nets/masked_runner.h"

#include "base/arena.h"

#include <stdlib.h>

/* Returns the position of known token i. The most recently predicted ones come first. */
static int masked_known_position(const masked_net *m, const masked_pass *p, int sequence, int i)
{
    return p->order[sequence % p->images][m->shape.seq_len - p->known + i];
}

/* --- the encoder -------------------------------------------------------------------------------------------------- */

int masked_encoded_branches(const masked_net *m, int branches)
{
    return m->shape.classes ? branches : 1;
}

void masked_encode(const masked_net *m, masked_workspace *w, const masked_pass *p)
{
    const int branches = masked_encoded_branches(m, p->sequences / p->images), d = m->shape.width;
    masked_pass encoded = *p;
    encoded.sequences = branches * p->images;
    const int rows = encoded.sequences * (m->shape.buffer + p->known);
    const masked_spans spans = {.sequences = encoded.sequences, .rows = rows};
    masked_encoder_input(m, w, &encoded, p->known);
    masked_blocks_run(m, w, m->encoder, m->shape.encoder_depth, &spans);
    if (encoded.sequences < p->sequences)
        w->k->core->copy_rows(w->k, w->x + (size_t)rows * (size_t)d, NULL, w->x, NULL, NULL, NULL, rows, d);
}

void masked_encoder_input(const masked_net *m, masked_workspace *w, const masked_pass *p, int count)
{
    const masked_shape *c = &m->shape;
    const int length = c->buffer + count;
    int n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < c->buffer; i++, n++) {
            w->rows[0][n] = s * length + i;
            w->rows[1][n] = masked_class_row(m, p->embedded, p->first + s % p->images, s / p->images) + i;
        }
    masked_gather_classes(m, w, p->embedded, n);
    n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < count; i++, n++) {
            w->rows[0][n] = s * length + c->buffer + i;
            w->rows[1][n] = (p->first + s % p->images) * c->seq_len + masked_known_position(m, p, s, i);
        }
    masked_gather_tokens(m, w, p->embedded, n);
}

/* --- the decoder -------------------------------------------------------------------------------------------------- */

void masked_decode(const masked_net *m, masked_workspace *w, const masked_pass *p, float *z, const int *z_index)
{
    const masked_shape *c = &m->shape;
    const masked_block *last = &m->decoder[c->decoder_depth - 1];
    const int length = c->buffer + c->seq_len;
    const masked_spans keys = {.sequences = p->sequences, .rows = p->sequences * length};
    const masked_spans queries = {.sequences = p->sequences, .rows = p->sequences * p->predicted};
    masked_decoder_input(m, w, p);
    const act *x_act = masked_blocks_run(m, w, m->decoder, c->decoder_depth - 1, &keys);
    const int n = masked_predicted_positions(m, p, p->predicted, w->rows[1]);
    for (int i = 0; i < n; i++) w->rows[0][i] = i / p->predicted * length + c->buffer + w->rows[1][i];
    masked_last_block_kv(m, w, last, w->x, x_act, keys.rows);
    masked_last_block_run(m, w, last, w->x, w->rows[0], &queries, w->qkv, &keys, w->memory);
    masked_compute_z(w->k, m, w->memory, w->rows[1], n, w->x, z, z_index);
}

void masked_decoder_input(const masked_net *m, masked_workspace *w, const masked_pass *p)
{
    const masked_shape *c = &m->shape;
    const int visible = masked_decoder_visible(m, w, p, p->known, w->x);
    int masked = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < c->seq_len - p->known; i++, masked++) {
            w->rows[2][masked] = p->order[s % p->images][i];
            w->rows[1][masked] = s * (c->buffer + c->seq_len) + c->buffer + w->rows[2][masked];
        }
    masked_decoder_masked(m, w, p->embedded, visible, masked);
}

int masked_decoder_visible(const masked_net *m, masked_workspace *w, const masked_pass *p, int count, float *input)
{
    const masked_shape *c = &m->shape;
    const int visible = c->buffer + count, length = c->buffer + c->seq_len;
    int n = 0;
    for (int s = 0; s < p->sequences; s++) {
        w->list[s] = (masked_sequence){p->first + s % p->images, s / p->images, visible};
        for (int i = 0; i < visible; i++, n++) {
            const int position = i < c->buffer ? i : c->buffer + masked_known_position(m, p, s, i - c->buffer);
            w->rows[0][n] = s * length + position;
            w->rows[1][n] = position;
        }
    }
    masked_decoder_embed(m, w, p->sequences, n);
    w->k->core->copy_rows(w->k, input, w->rows[0], w->memory, NULL, m->decoder_pos, w->rows[1], n, c->width);
    return n;
}

void masked_decoder_embed(const masked_net *m, masked_workspace *w, int sequences, int rows)
{
    kern_queue *k = w->k;
    const int d = m->shape.width;
    if (w->between) {
        masked_layer_norm(k, m, w->x, NULL, rows, m->encoder_norm, w->memory, 1);
        masked_watch(k, m, NULL, "encoder_norm", w->memory, 1, rows, d);
        w->between->run(w->between, w->list, sequences, w->rows[1], rows, w->memory, w->normed);
    } else {
        masked_layer_norm(k, m, w->x, NULL, rows, m->encoder_norm, w->normed, 0);
        masked_watch(k, m, NULL, "encoder_norm", w->normed, 0, rows, d);
    }
    k->core->linear(k, m->decoder_embed, w->normed, rows, w->memory);
    masked_watch(k, m, NULL, "decoder_embed", w->memory, 1, rows, d);
}

void masked_decoder_masked(const masked_net *m, masked_workspace *w, const masked_embeddings *e, int visible,
                           int masked)
{
    const int d = m->shape.width;
    w->k->core->copy_rows(w->k, w->x, w->rows[1], e->mask_rows, w->rows[2], NULL, NULL, masked, d);
    masked_watch(w->k, m, NULL, "decoder_pos_embed_learned", w->x, 1, visible + masked, d);
}

int masked_predicted_positions(const masked_net *m, const masked_pass *p, int count, int *position)
{
    int n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < count; i++)
            position[n++] = p->order[s % p->images][m->shape.seq_len - p->known - count + i];
    return n;
}

void masked_compute_z(kern_queue *k, const masked_net *m, const float *y, const int *position, int n, float *normed,
                      float *z, const int *z_index)
{
    const int d = m->shape.width;
    masked_layer_norm(k, m, y, NULL, n, m->decoder_norm, normed, 1);
    masked_watch(k, m, NULL, "decoder_norm", normed, 1, n, d);
    k->core->copy_rows(k, z, z_index, normed, NULL, m->diffusion_pos, position, n, d);
}

/* --- plans and arithmetic of a pass ------------------------------------------------------------------------------- */

mar_status masked_passes_plan(kern_queue *k, const masked_net *m, int sequences, int known, int predicted, mar_err *err)
{
    const masked_shape *c = &m->shape;
    const int d = c->width, encoded = c->buffer + known, decoded = c->buffer + c->seq_len;
    mar_status status = k->core->linear_plan(k, m->decoder_embed, sequences * encoded, err);
    for (int b = 0; status == MAR_OK && b < c->encoder_depth; b++)
        status = masked_block_plan(k, &m->encoder[b], sequences * encoded, 0, err);
    for (int b = 0; status == MAR_OK && b + 1 < c->decoder_depth; b++)
        status = masked_block_plan(k, &m->decoder[b], sequences * decoded, 0, err);
    if (status == MAR_OK)
        status =
            masked_block_plan(k, &m->decoder[c->decoder_depth - 1], sequences * predicted, sequences * decoded, err);
    const int shapes[3][5] = {{c->heads, encoded, encoded, 3 * d, 3 * d},
                              {c->decoder_heads, decoded, decoded, 3 * d, 3 * d},
                              {c->decoder_heads, predicted, decoded, d, 2 * d}};
    for (int i = 0; status == MAR_OK && i < 3; i++)
        status = k->core->attention_plan(k, shapes[i][1], shapes[i][2], shapes[i][0], d / shapes[i][0], shapes[i][3],
                                         shapes[i][4], err);
    return status;
}

double masked_encode_flop(const masked_net *m, int sequences, int known)
{
    const double length = m->shape.buffer + known, rows = sequences * length;
    return m->shape.encoder_depth * masked_block_flop(m, rows, rows, length);
}

double masked_decode_flop(const masked_net *m, int sequences, int known, int predicted)
{
    const double length = m->shape.buffer + m->shape.seq_len, rows = sequences * length, d = m->shape.width,
                 masked = (double)sequences * (m->shape.seq_len - known);
    return (m->shape.decoder_depth - 1) * masked_block_flop(m, rows, rows, length) +
           masked_block_flop(m, (double)sequences * predicted, rows, length) + 2 * (rows - masked) * d * d;
}

/* --- the passes of a plain step ----------------------------------------------------------------------------------- */

static mar_status masked_plain_plan(kern_queue *k, const void *state, const masked_net *m, const masked_pass *p,
                                    mar_err *err)
{
    (void)state;
    return masked_passes_plan(k, m, p->sequences, p->known, p->predicted, err);
}

static double masked_plain_encode(void *state, const masked_net *m, masked_workspace *w, const masked_pass *p)
{
    (void)state;
    masked_encode(m, w, p);
    return masked_encode_flop(m, masked_encoded_branches(m, p->sequences / p->images) * p->images, p->known);
}

static double masked_plain_decode(void *state, const masked_net *m, masked_workspace *w, const masked_pass *p, float *z,
                                  const int *z_index)
{
    (void)state;
    masked_decode(m, w, p, z, z_index);
    return masked_decode_flop(m, p->sequences, p->known, p->predicted);
}

const masked_passes masked_plain_passes = {
    .plan = masked_plain_plan, .encode = masked_plain_encode, .decode = masked_plain_decode};

/* --- a step's work, with its time and its recordings -------------------------------------------------------------- */

/* Argument of the bodies below. */
typedef struct {
    masked_runner *r;
    const masked_pass *pass;
    double encoder_flop, decoder_flop; /* arithmetic of encode and decode */
} masked_prediction;

static void masked_encode_body(void *arg)
{
    masked_prediction *p = arg;
    masked_runner *r = p->r;
    p->encoder_flop = r->passes->encode(r->passes_state, r->net, &r->work, p->pass);
}

static void masked_decode_body(void *arg)
{
    masked_prediction *p = arg;
    masked_runner *r = p->r;
    p->decoder_flop = r->passes->decode(r->passes_state, r->net, &r->work, p->pass, r->z, r->z_index);
}

void masked_runner_run(masked_runner *r, const masked_pass *p, masked_recordings *recordings)
{
    masked_prediction a = {.r = r, .pass = p};
    kern_recording **encode = recordings ? &recordings->encode : NULL;
    const int same = !p->reads_back && !r->work.between; /* prompts differ in length */
    kern_recording **decode = recordings && same ? &recordings->decode : NULL;
    kern_run_recorded(r->work.k, r->part, encode, masked_encode_body, &a, &r->encoder_s);
    kern_run_recorded(r->work.k, r->part, decode, masked_decode_body, &a, &r->decoder_s);
    r->encoder_flop += a.encoder_flop;
    r->decoder_flop += a.decoder_flop;
}

typedef struct {
    masked_runner *r;
    const float *tokens;
    int n;
    const int *image, *position;
} masked_addition;

static void masked_add_body(void *arg)
{
    const masked_addition *l = arg;
    masked_embed_tokens(l->r->net, &l->r->work, &l->r->embedded, l->tokens, l->n, l->image, l->position);
}

void masked_runner_add_known_tokens(masked_runner *r, const float *tokens, int n, const int *image, const int *position,
                                    kern_recording **recording)
{
    masked_addition l = {r, tokens, n, image, position};
    kern_run_recorded(r->work.k, r->part, recording, masked_add_body, &l, &r->encoder_s);
}

void masked_runner_reset(masked_runner *r)
{
    r->encoder_s = r->decoder_s = r->encoder_flop = r->decoder_flop = 0;
}

void masked_runner_admit(masked_runner *r, int n, const int *slot, const int *label)
{
    kern_queue *k = r->work.k;
    k->watch.part = r->part;
    k->core->timer_mark(k, NULL);
    masked_embed_batch(r->net, &r->work, &r->embedded, n, slot, label);
    k->core->timer_mark(k, &r->encoder_s);
}

/* --- memory and plans --------------------------------------------------------------------------------------------- */

size_t masked_runner_lay_out(masked_runner *r, char *base)
{
    const masked_shape *c = &r->net->shape;
    const size_t images = (size_t)r->max_images, sequences = images * (size_t)r->cfg_branches, d = (size_t)c->width;
    const size_t rows = sequences * (size_t)(c->buffer + c->seq_len);
    size_t used = 0;
    masked_workspace_lay_out(&r->work, base, &used, rows, d, masked_hidden_width(r->net));
    masked_embeddings_lay_out(&r->embedded, r->net, base, &used);
    r->z = arena_carve(base, &used, sequences * (size_t)r->max_tokens * d, sizeof(float));
    return used;
}

mar_status masked_runner_create(kern_queue *k, const masked_net *net, int max_images, int cfg_branches, int max_tokens,
                                masked_runner *out, mar_err *err)
{
    const masked_shape *c = &net->shape;
    *out = (masked_runner){.net = net,
                           .max_images = max_images,
                           .cfg_branches = cfg_branches,
                           .max_tokens = max_tokens,
                           .work = {.k = k},
                           .embedded = {.images = max_images, .cfg_branches = cfg_branches},
                           .passes = &masked_plain_passes,
                           .part = ""};
    const size_t sequences = (size_t)max_images * (size_t)cfg_branches;
    int *rows[3];
    for (int i = 0; i < 3; i++)
        rows[i] = out->work.rows[i] = calloc(sequences * (size_t)(c->buffer + c->seq_len), sizeof *rows[i]);
    out->z_index = calloc(sequences * (size_t)max_tokens, sizeof *out->z_index);
    out->work.list = calloc(sequences, sizeof *out->work.list);
    if (rows[0] && rows[1] && rows[2] && out->z_index && out->work.list) return MAR_OK;
    masked_runner_free(out);
    return err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", max_images);
}

void masked_runner_free(masked_runner *r)
{
    for (int i = 0; i < 3; i++) free(r->work.rows[i]);
    free(r->work.list);
    free(r->z_index);
    *r = (masked_runner){0};
}

void masked_recordings_free(kern_queue *k, masked_recordings *t)
{
    kern_recording *recordings[] = {t->encode, t->decode, t->known_tokens};
    for (int i = 0; i < 3; i++) k->core->recording_free(k, recordings[i]);
    *t = (masked_recordings){0};
}

mar_status masked_runner_plan(masked_runner *r, const masked_pass *p, mar_err *err)
{
    masked_between *between = r->work.between;
    const mar_status status = r->passes->plan(r->work.k, r->passes_state, r->net, p, err);
    if (status != MAR_OK || !between) return status;
    return between->plan(between, p->sequences, r->net->shape.buffer + p->known, err);
}

mar_status masked_runner_plan_known_tokens(masked_runner *r, int tokens, mar_err *err)
{
    return r->work.k->core->linear_plan(r->work.k, r->net->z_proj, tokens, err);
}
