/* Transformer passes over contexts (nets/masked_contexts.h): the plain pass (nets/masked_runner.c) over sequences of
 * different lengths. */
#include "nets/masked_contexts.h"

#include "base/arena.h"

#include <stdlib.h>

enum { CHUNK_ROWS = 16384 }; /* decoder rows of a branch: bounds the memory, and far exceeds one image's */

static int contexts_buffer_of(const masked_contexts *c)
{
    return c->model->shape.buffer;
}

static int contexts_seq_of(const masked_contexts *c)
{
    return c->model->shape.seq_len;
}

static int contexts_width_of(const masked_contexts *c)
{
    return c->model->shape.width;
}

/* Returns the rows of a sequence in the decoder. */
static int contexts_length_of(const masked_contexts *c)
{
    return contexts_buffer_of(c) + contexts_seq_of(c);
}

/* --- the size of a chunk ------------------------------------------------------------------------------------------ */

typedef struct {
    int sequences;
    int encoded;   /* rows of the encoder */
    int n_queries; /* rows of the last decoder block */
} extent;

static int contexts_decoded(const masked_contexts *c, const extent *e)
{
    return e->sequences * contexts_length_of(c);
}

static int contexts_encoded_branches(const masked_contexts *c)
{
    return masked_encoded_branches(c->model, c->branches);
}

static extent contexts_survey(const masked_contexts *c, const masked_context *list, int n)
{
    extent e = {.sequences = n * c->branches};
    for (int i = 0; i < n; i++) {
        e.encoded += contexts_encoded_branches(c) * (contexts_buffer_of(c) + list[i].known);
        e.n_queries += c->branches * list[i].n_queries;
    }
    return e;
}

static int contexts_chunk_size(const masked_contexts *c, int from, int n)
{
    return n - from < c->chunk ? n - from : c->chunk;
}

/* Returns the j-th token that became known in this order. The last known tokens of a context come first. */
static int contexts_known_token(const masked_contexts *c, const int *order, int j)
{
    return order[contexts_seq_of(c) - 1 - j];
}

/* --- a chunk's pass ----------------------------------------------------------------------------------------------- */

typedef struct {
    masked_contexts *c;
    const masked_context *list; /* contexts of the chunk */
    int n;
    extent extent;
    const masked_embeddings *embedded;
} chunk_pass;

static const masked_context *contexts_context_of(const chunk_pass *p, int sequence)
{
    return &p->list[sequence / p->c->branches];
}

/* Adds a sequence of `count` rows to a list of spans, after `rows` others. Returns the new number of rows. */
static int contexts_add_span(int *first, int *length, int sequence, int rows, int count)
{
    first[sequence] = rows;
    length[sequence] = count;
    return rows + count;
}

static void contexts_list_spans(const chunk_pass *p)
{
    masked_contexts *c = p->c;
    const int encoded = contexts_encoded_branches(c);
    int encoder = 0, decoder = 0, n_queries = 0;
    for (int s = 0; s < p->n * encoded; s++)
        encoder =
            contexts_add_span(c->span[0], c->span[1], s, encoder, contexts_buffer_of(c) + p->list[s / encoded].known);
    for (int s = 0; s < p->extent.sequences; s++) {
        const masked_context *x = contexts_context_of(p, s);
        decoder = contexts_add_span(c->span[2], c->span[3], s, decoder, contexts_length_of(c));
        n_queries = contexts_add_span(c->span[4], c->span[5], s, n_queries, x->n_queries);
    }
}

/* Writes the encoder's input to w->x. */
static void contexts_encoder_input(const chunk_pass *p)
{
    masked_contexts *c = p->c;
    masked_workspace *w = &c->work;
    const masked_net *m = c->model;
    const int buffer = contexts_buffer_of(c), branches = contexts_encoded_branches(c);
    int n = 0;
    for (int s = 0; s < p->n * branches; s++)
        for (int i = 0; i < buffer; i++, n++) {
            w->rows[0][n] = c->span[0][s] + i;
            w->rows[1][n] = masked_class_row(m, p->embedded, p->list[s / branches].image, s % branches) + i;
        }
    masked_gather_classes(m, w, p->embedded, n);
    n = 0;
    for (int s = 0; s < p->n * branches; s++) {
        const masked_context *x = &p->list[s / branches];
        for (int i = 0; i < x->known; i++, n++) {
            w->rows[0][n] = c->span[0][s] + buffer + i;
            w->rows[1][n] = x->image * contexts_seq_of(c) + contexts_known_token(c, x->order, x->known - 1 - i);
        }
    }
    masked_gather_tokens(m, w, p->embedded, n);
}

/* Gives every branch the rows of its context, which stand in w->x once. */
static void contexts_spread(const chunk_pass *p)
{
    masked_contexts *c = p->c;
    masked_workspace *w = &c->work;
    const int d = contexts_width_of(c);
    int n = 0;
    for (int s = 0; s < p->extent.sequences; s++)
        for (int i = 0; i < c->span[1][s / c->branches]; i++) w->rows[0][n++] = c->span[0][s / c->branches] + i;
    w->k->core->copy_rows(w->k, w->memory, NULL, w->x, NULL, NULL, NULL, p->extent.encoded, d);
    w->k->core->copy_rows(w->k, w->x, NULL, w->memory, w->rows[0], NULL, NULL, n, d);
}

static void contexts_encode(void *arg)
{
    const chunk_pass *p = arg;
    masked_contexts *c = p->c;
    const masked_net *m = c->model;
    const int branches = contexts_encoded_branches(c);
    const masked_spans spans = {p->n * branches, p->extent.encoded, c->span[0], c->span[1]};
    contexts_list_spans(p);
    contexts_encoder_input(p);
    masked_blocks_run(m, &c->work, m->encoder, m->shape.encoder_depth, &spans);
    if (branches < c->branches) contexts_spread(p);
}

/* Writes the decoder's input to w->x. */
static void contexts_decoder_input(const chunk_pass *p)
{
    masked_contexts *c = p->c;
    masked_workspace *w = &c->work;
    const masked_net *m = c->model;
    const int buffer = contexts_buffer_of(c);
    int n = 0, masked = 0;
    for (int s = 0; s < p->extent.sequences; s++) {
        const masked_context *x = contexts_context_of(p, s);
        w->list[s] = (masked_sequence){x->image, s % c->branches, buffer + x->known};
        for (int i = 0; i < buffer + x->known; i++, n++) {
            w->rows[1][n] = i < buffer ? i : buffer + contexts_known_token(c, x->order, x->known - 1 - (i - buffer));
            w->rows[0][n] = c->span[2][s] + w->rows[1][n];
        }
    }
    masked_decoder_embed(m, w, p->extent.sequences, n);
    w->k->core->copy_rows(w->k, w->x, w->rows[0], w->memory, NULL, m->decoder_pos, w->rows[1], n, contexts_width_of(c));
    for (int s = 0; s < p->extent.sequences; s++) {
        const masked_context *x = contexts_context_of(p, s);
        for (int i = 0; i < contexts_seq_of(c) - x->known; i++, masked++) {
            w->rows[2][masked] = x->order[i];
            w->rows[1][masked] = c->span[2][s] + buffer + x->order[i];
        }
    }
    masked_decoder_masked(m, w, p->embedded, n, masked);
}

/* Runs the last block for the query tokens, and computes their z. */
static void contexts_run_last_block(const chunk_pass *p, const masked_spans *keys, const act *x_act)
{
    masked_contexts *c = p->c;
    masked_workspace *w = &c->work;
    const masked_net *m = c->model;
    const masked_block *last = &m->decoder[m->shape.decoder_depth - 1];
    const masked_spans queries = {p->extent.sequences, p->extent.n_queries, c->span[4], c->span[5]};
    int n = 0;
    for (int s = 0; s < p->extent.sequences; s++) {
        const masked_context *x = contexts_context_of(p, s);
        for (int i = 0; i < x->n_queries; i++, n++) {
            w->rows[1][n] = x->order[contexts_seq_of(c) - x->known - x->n_queries + i];
            w->rows[0][n] = c->span[2][s] + contexts_buffer_of(c) + w->rows[1][n];
            c->z_index[n] = x->z_row[s % c->branches] + i;
        }
    }
    masked_last_block_kv(m, w, last, w->x, x_act, keys->rows);
    masked_last_block_run(m, w, last, w->x, w->rows[0], &queries, w->qkv, keys, w->memory);
    masked_compute_z(w->k, m, w->memory, w->rows[1], n, w->x, c->z, c->z_index);
}

static void contexts_decode(void *arg)
{
    const chunk_pass *p = arg;
    masked_contexts *c = p->c;
    const masked_net *m = c->model;
    const masked_spans spans = {p->extent.sequences, contexts_decoded(c, &p->extent), c->span[2], c->span[3]};
    contexts_list_spans(p);
    contexts_decoder_input(p);
    contexts_run_last_block(p, &spans, masked_blocks_run(m, &c->work, m->decoder, m->shape.decoder_depth - 1, &spans));
}

/* --- arithmetic --------------------------------------------------------------------------------------------------- */

static void contexts_count(const chunk_pass *p)
{
    masked_contexts *c = p->c;
    for (int i = 0; i < p->n; i++) {
        c->encoder_flop += masked_encode_flop(c->model, contexts_encoded_branches(c), p->list[i].known);
        c->decoder_flop += masked_decode_flop(c->model, c->branches, p->list[i].known, p->list[i].n_queries);
    }
}

/* --- passes ------------------------------------------------------------------------------------------------------- */

void masked_contexts_begin(masked_contexts *c)
{
    c->encoder_s = c->decoder_s = c->encoder_flop = c->decoder_flop = 0;
}

void masked_contexts_place(masked_context *list, int n)
{
    int total = 0;
    for (int i = 0; i < n; i++) list[i].z_row[0] = total, total += list[i].n_queries;
    for (int i = 0; i < n; i++) list[i].z_row[1] = total + list[i].z_row[0];
}

void masked_contexts_run(masked_contexts *c, const masked_context *list, int n, const masked_embeddings *embedded,
                         masked_recordings *recordings)
{
    kern_queue *k = c->work.k;
    chunk_pass p = {.c = c, .embedded = embedded};
    masked_recordings *recorded = n <= c->chunk ? recordings : NULL;
    for (int i = 0; i < n; i += p.n) {
        p.list = list + i;
        p.n = contexts_chunk_size(c, i, n);
        p.extent = contexts_survey(c, p.list, p.n);
        kern_run_recorded(k, c->part, recorded ? &recorded->encode : NULL, contexts_encode, &p, &c->encoder_s);
        kern_run_recorded(k, c->part, recorded && !c->work.between ? &recorded->decode : NULL, contexts_decode, &p,
                          &c->decoder_s);
        contexts_count(&p);
    }
}

/* --- memory and plans --------------------------------------------------------------------------------------------- */

mar_status masked_contexts_plan(masked_contexts *c, mar_err *err)
{
    kern_queue *k = c->work.k;
    const masked_net *m = c->model;
    const masked_shape *config = &m->shape;
    const int sequences = c->chunk * c->cfg_branches, rows = sequences * contexts_length_of(c),
              queries = sequences * contexts_seq_of(c);
    const int d = contexts_width_of(c), heads = config->heads, decoder_heads = config->decoder_heads;
    mar_status status = k->core->linear_plan(k, m->decoder_embed, rows, err);
    for (int b = 0; status == MAR_OK && b < config->encoder_depth; b++)
        status = masked_block_plan(k, &m->encoder[b], rows, 0, err);
    for (int b = 0; status == MAR_OK && b + 1 < config->decoder_depth; b++)
        status = masked_block_plan(k, &m->decoder[b], rows, 0, err);
    if (status == MAR_OK) status = masked_block_plan(k, &m->decoder[config->decoder_depth - 1], queries, rows, err);
    if (status == MAR_OK)
        status = k->core->attention_plan(k, contexts_length_of(c), contexts_length_of(c), heads, d / heads, 3 * d,
                                         3 * d, err);
    if (status == MAR_OK)
        status = k->core->attention_plan(k, contexts_length_of(c), contexts_length_of(c), decoder_heads,
                                         d / decoder_heads, 3 * d, 3 * d, err);
    if (status != MAR_OK || !c->work.between) return status;
    return c->work.between->plan(c->work.between, sequences, contexts_length_of(c), err);
}

size_t masked_contexts_lay_out(masked_contexts *c, char *base)
{
    const size_t d = (size_t)contexts_width_of(c);
    const size_t rows = (size_t)c->chunk * (size_t)c->cfg_branches * (size_t)contexts_length_of(c);
    size_t used = 0;
    if (c->runner) {
        c->work = c->runner->work;
        c->z = c->runner->z;
        return 0;
    }
    masked_workspace_lay_out(&c->work, base, &used, rows, d, masked_hidden_width(c->model));
    c->z = arena_carve(base, &used, (size_t)c->cfg_branches * (size_t)c->max_queries * d, sizeof(float));
    return used;
}

static mar_status contexts_allocate_host(masked_contexts *c, mar_err *err)
{
    const size_t sequences = (size_t)c->chunk * (size_t)c->cfg_branches,
                 rows = sequences * (size_t)contexts_length_of(c);
    int complete = 1;
    for (int i = 0; i < 6; i++) complete &= (c->span[i] = calloc(sequences, sizeof(int))) != NULL;
    if (!c->runner) {
        for (int i = 0; i < 3; i++) complete &= (c->work.rows[i] = calloc(rows, sizeof(int))) != NULL;
        complete &= (c->work.list = calloc(sequences, sizeof *c->work.list)) != NULL;
        c->z_index = calloc((size_t)c->cfg_branches * (size_t)c->max_queries, sizeof *c->z_index);
    }
    if (complete && c->z_index) return MAR_OK;
    return err_set(err, MAR_ENOMEM, "out of memory for %d contexts", c->max_contexts);
}

mar_status masked_contexts_create(kern_queue *k, const masked_net *m, int max_contexts, int max_queries,
                                  int cfg_branches, masked_contexts *out, mar_err *err)
{
    const masked_shape *config = &m->shape;
    const int most = CHUNK_ROWS / (config->buffer + config->seq_len), chunk = most > 0 ? most : 1;
    *out = (masked_contexts){.model = m,
                             .max_contexts = max_contexts,
                             .max_queries = max_queries,
                             .cfg_branches = cfg_branches,
                             .branches = cfg_branches,
                             .chunk = max_contexts < chunk ? max_contexts : chunk,
                             .work = {.k = k},
                             .part = ""};
    const mar_status status = contexts_allocate_host(out, err);
    if (status != MAR_OK) masked_contexts_free(out);
    return status;
}

mar_status masked_contexts_create_in(masked_runner *r, masked_contexts *out, mar_err *err)
{
    *out = (masked_contexts){.model = r->net,
                             .max_contexts = r->max_images,
                             .max_queries = r->max_images * r->max_tokens,
                             .cfg_branches = r->cfg_branches,
                             .branches = r->cfg_branches,
                             .chunk = r->max_images,
                             .runner = r,
                             .work = r->work,
                             .z_index = r->z_index,
                             .part = r->part};
    const mar_status status = contexts_allocate_host(out, err);
    if (status != MAR_OK) masked_contexts_free(out);
    return status;
}

void masked_contexts_free(masked_contexts *c)
{
    for (int i = 0; i < 3 && !c->runner; i++) free(c->work.rows[i]);
    if (!c->runner) free(c->work.list);
    for (int i = 0; i < 6; i++) free(c->span[i]);
    if (!c->runner) free(c->z_index);
    *c = (masked_contexts){0};
}
