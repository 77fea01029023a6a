/* Transformer passes over contexts (mar/contexts.h). Behind the first block, in which rows are shared, a pass is the
 * plain one (mar/runner.c) over sequences of different lengths. */
#include "mar/contexts.h"

#include "base/arena.h"

#include <stdlib.h>

enum { CHUNK_ROWS = 16384 }; /* decoder rows of a condition: bounds the memory, and is far more than one image has */

static int buffer_of(const mar_contexts *c)
{
    return c->model->base.config.buffer;
}

static int seq_of(const mar_contexts *c)
{
    return c->model->base.config.seq_len;
}

static int width_of(const mar_contexts *c)
{
    return c->model->base.config.width;
}

/* Rows of a sequence in the decoder. */
static int length_of(const mar_contexts *c)
{
    return buffer_of(c) + seq_of(c);
}

/* NULL if the first decoder block is the last, whose operands are other ones. */
static const mar_block *shared_decoder_block(const mar_contexts *c)
{
    return c->model->base.config.decoder_depth > 1 ? c->model->decoder : NULL;
}

/* --- what a chunk consists of ------------------------------------------------------------------------------------- */

typedef struct {
    int sequences;
    int images, tokens; /* the chunk's images; their tokens that are known in a context */
    int encoded;        /* rows in the encoder */
    int asked;          /* rows in the last decoder block */
} extent;

static int decoded(const mar_contexts *c, const extent *e)
{
    return e->sequences * length_of(c);
}

static int shared(const mar_contexts *c, const extent *e)
{
    return e->images * c->conditions * buffer_of(c) + e->tokens;
}

/* Lists the chunk's images. */
static extent survey(mar_contexts *c, const mar_image_context *list, int n)
{
    extent e = {.sequences = n * c->conditions};
    for (int i = 0; i < n; i++) c->place[list[i].image] = -1;
    for (int i = 0; i < n; i++) {
        const mar_image_context *x = &list[i];
        int *place = &c->place[x->image];
        if (*place < 0) {
            *place = e.images++;
            c->image[*place] = (mar_context_image){.image = x->image, .order = x->order};
        }
        if (x->known > c->image[*place].known) c->image[*place].known = x->known;
        e.encoded += c->conditions * (buffer_of(c) + x->known);
        e.asked += c->conditions * x->asked;
    }
    for (int i = 0; i < e.images; i++) {
        c->image[i].first = e.tokens;
        e.tokens += c->image[i].known;
    }
    return e;
}

static int chunk_size(const mar_contexts *c, int from, int n)
{
    return n - from < c->chunk ? n - from : c->chunk;
}

/* The j-th token that became known in this order; the last known tokens of a context come first. */
static int known_token(const mar_contexts *c, const int *order, int j)
{
    return order[seq_of(c) - 1 - j];
}

/* --- a chunk's pass ----------------------------------------------------------------------------------------------- */

typedef struct {
    mar_contexts *c;
    const mar_image_context *list; /* the chunk's */
    int n;
    extent extent;
    int images; /* of the rows below */
    const float *token_rows, *class_rows;
    int z_first, z_total; /* asked tokens in the chunks before this one, and in all */
} chunk_pass;

static const mar_image_context *context_of(const chunk_pass *p, int sequence)
{
    return &p->list[sequence / p->c->conditions];
}

/* Adds a sequence of `length` rows to a list of spans, behind `rows` others. */
static int add_span(int *first, int *length, int sequence, int rows, int count)
{
    first[sequence] = rows;
    length[sequence] = count;
    return rows + count;
}

static void list_spans(const chunk_pass *p)
{
    mar_contexts *c = p->c;
    int encoder = 0, decoder = 0, asked = 0;
    for (int s = 0; s < p->extent.sequences; s++) {
        const mar_image_context *x = context_of(p, s);
        encoder = add_span(c->span[0], c->span[1], s, encoder, buffer_of(c) + x->known);
        decoder = add_span(c->span[2], c->span[3], s, decoder, length_of(c));
        asked = add_span(c->span[4], c->span[5], s, asked, x->asked);
    }
}

static int floats_of_operands(const mar_contexts *c)
{
    return (int)(3 * (size_t)width_of(c) * c->work.k->device->act_size / sizeof(float));
}

static act *at(const mar_contexts *c, act *p, int rows)
{
    return (char *)p + (size_t)rows * (size_t)width_of(c) * c->work.k->device->act_size;
}

/* w->hidden = a first block's queries, keys and values of w->normed. */
static void first_operands(mar_contexts *c, const mar_block *b, int rows)
{
    mar_workspace *w = &c->work;
    kern_queue *k = w->k;
    const int d = width_of(c);
    mar_watch(k, c->model, b, "norm1", w->normed, 0, rows, d);
    k->core->linear(k, b->qkv, w->normed, rows, w->hidden);
    mar_watch(k, c->model, b, "attn.qkv", w->hidden, 0, rows, 3 * d);
}

/* w->hidden = the first encoder block's operands of the chunk's embeddings, each computed once: classes [images]
 * [conditions][buffer], then the images' tokens, in the order in which they became known. */
static void share_embeddings(const chunk_pass *p)
{
    mar_contexts *c = p->c;
    mar_workspace *w = &c->work;
    const mar_block *b = &c->model->encoder[0];
    int classes = 0, tokens = 0;
    for (int i = 0; i < p->extent.images; i++)
        for (int j = 0; j < c->conditions * buffer_of(c); j++)
            w->rows[0][classes++] =
                (j / buffer_of(c) * p->images + c->image[i].image) * buffer_of(c) + j % buffer_of(c);
    mar_layer_norm(w->k, c->model, p->class_rows, w->rows[0], classes, b->norm1, w->normed, 0);
    for (int i = 0; i < p->extent.images; i++)
        for (int j = 0; j < c->image[i].known; j++)
            w->rows[0][tokens++] = c->image[i].image * seq_of(c) + known_token(c, c->image[i].order, j);
    mar_layer_norm(w->k, c->model, p->token_rows, w->rows[0], tokens, b->norm1, at(c, w->normed, classes), 0);
    first_operands(c, b, classes + tokens);
}

/* w->x = the encoder's input, w->qkv = its first block's operands. */
static void encoder_input(const chunk_pass *p)
{
    mar_contexts *c = p->c;
    mar_workspace *w = &c->work;
    kern_queue *k = w->k;
    const int buffer = buffer_of(c), d = width_of(c);
    int n = 0;
    for (int s = 0; s < p->extent.sequences; s++)
        for (int i = 0; i < buffer; i++, n++) {
            w->rows[0][n] = c->span[0][s] + i;
            w->rows[1][n] = (s % c->conditions * p->images + context_of(p, s)->image) * buffer + i;
        }
    k->core->copy_rows(k, w->x, w->rows[0], p->class_rows, w->rows[1], NULL, NULL, n, d);
    n = 0;
    for (int s = 0; s < p->extent.sequences; s++) {
        const mar_image_context *x = context_of(p, s);
        for (int i = 0; i < x->known; i++, n++) {
            w->rows[0][n] = c->span[0][s] + buffer + i;
            w->rows[1][n] = x->image * seq_of(c) + known_token(c, x->order, x->known - 1 - i);
        }
    }
    k->core->copy_rows(k, w->x, w->rows[0], p->token_rows, w->rows[1], NULL, NULL, n, d);
    n = 0;
    for (int s = 0; s < p->extent.sequences; s++) {
        const int place = c->place[context_of(p, s)->image], known = context_of(p, s)->known;
        const int classes = (place * c->conditions + s % c->conditions) * buffer;
        const int tokens = p->extent.images * c->conditions * buffer + c->image[place].first;
        for (int i = 0; i < buffer; i++) w->rows[0][n++] = classes + i;
        for (int i = 0; i < known; i++) w->rows[0][n++] = tokens + known - 1 - i;
    }
    k->core->copy_rows(k, w->qkv, NULL, w->hidden, w->rows[0], NULL, NULL, n, floats_of_operands(c));
}

static void encode(void *arg)
{
    const chunk_pass *p = arg;
    mar_contexts *c = p->c;
    const mar_masked_model *m = c->model;
    const mar_spans spans = {p->extent.sequences, p->extent.encoded, c->span[0], c->span[1]};
    list_spans(p);
    share_embeddings(p);
    encoder_input(p);
    mar_block_attend(m, &c->work, &m->encoder[0], &spans);
    for (int b = 1; b < m->base.config.encoder_depth; b++) mar_block_run(m, &c->work, &m->encoder[b], &spans);
}

/* w->x = the decoder's input. Leaves in w->rows[0] the rows that the encoder's output goes to, in w->rows[1] those of
 * masked positions, and in w->rows[2] these positions. Returns how many these are. */
static int decoder_input(const chunk_pass *p)
{
    mar_contexts *c = p->c;
    mar_workspace *w = &c->work;
    kern_queue *k = w->k;
    const mar_masked_model *m = c->model;
    const int d = width_of(c), buffer = buffer_of(c), visible = p->extent.encoded;
    mar_layer_norm(k, m, w->x, NULL, visible, m->encoder_norm, w->normed, 0);
    mar_watch(k, m, NULL, "encoder_norm", w->normed, 0, visible, d);
    k->core->linear(k, m->decoder_embed, w->normed, visible, w->memory);
    mar_watch(k, m, NULL, "decoder_embed", w->memory, 1, visible, d);
    int n = 0, masked = 0;
    for (int s = 0; s < p->extent.sequences; s++) {
        const mar_image_context *x = context_of(p, s);
        for (int i = 0; i < buffer + x->known; i++, n++) {
            w->rows[1][n] = i < buffer ? i : buffer + known_token(c, x->order, x->known - 1 - (i - buffer));
            w->rows[0][n] = c->span[2][s] + w->rows[1][n];
        }
    }
    k->core->copy_rows(k, w->x, w->rows[0], w->memory, NULL, m->decoder_pos, w->rows[1], n, d);
    for (int s = 0; s < p->extent.sequences; s++) {
        const mar_image_context *x = context_of(p, s);
        for (int i = 0; i < seq_of(c) - x->known; i++, masked++) {
            w->rows[2][masked] = x->order[i];
            w->rows[1][masked] = c->span[2][s] + buffer + x->order[i];
        }
    }
    k->core->copy_rows(k, w->x, w->rows[1], c->mask_rows, w->rows[2], NULL, NULL, masked, d);
    mar_watch(k, m, NULL, "decoder_pos_embed_learned", w->x, 1, decoded(c, &p->extent), d);
    return masked;
}

/* w->qkv = the first decoder block's operands, with the lists that decoder_input leaves. */
static void decoder_operands(const chunk_pass *p, const mar_block *b, int masked)
{
    mar_contexts *c = p->c;
    mar_workspace *w = &c->work;
    kern_queue *k = w->k;
    const int visible = p->extent.encoded, floats = floats_of_operands(c);
    mar_layer_norm(k, c->model, w->x, w->rows[0], visible, b->norm1, w->normed, 0);
    first_operands(c, b, visible);
    k->core->copy_rows(k, w->qkv, w->rows[0], w->hidden, NULL, NULL, NULL, visible, floats);
    k->core->copy_rows(k, w->qkv, w->rows[1], c->mask_operands, w->rows[2], NULL, NULL, masked, floats);
}

/* The last block, for the tokens asked for, and their conditions. */
static void ask(const chunk_pass *p, const mar_spans *keys)
{
    mar_contexts *c = p->c;
    mar_workspace *w = &c->work;
    const mar_masked_model *m = c->model;
    const mar_block *last = &m->decoder[m->base.config.decoder_depth - 1];
    const mar_spans queries = {p->extent.sequences, p->extent.asked, c->span[4], c->span[5]};
    int n = 0, before = p->z_first;
    for (int s = 0; s < p->extent.sequences; s++) {
        const mar_image_context *x = context_of(p, s);
        const int condition = s % c->conditions;
        for (int i = 0; i < x->asked; i++, n++) {
            w->rows[1][n] = x->order[seq_of(c) - x->known - x->asked + i];
            w->rows[0][n] = c->span[2][s] + buffer_of(c) + w->rows[1][n];
            c->z_index[n] = condition * p->z_total + before + i;
        }
        if (condition == c->conditions - 1) before += x->asked;
    }
    mar_block_keys(m, w, last, w->x, keys->rows);
    mar_block_ask(m, w, last, w->x, w->rows[0], &queries, w->qkv, keys, w->memory);
    mar_conditions(w->k, m, w->memory, w->rows[1], n, w->x, c->z, c->z_index);
}

static void decode(void *arg)
{
    const chunk_pass *p = arg;
    mar_contexts *c = p->c;
    const mar_masked_model *m = c->model;
    const mar_block *first = shared_decoder_block(c);
    const mar_spans spans = {p->extent.sequences, decoded(c, &p->extent), c->span[2], c->span[3]};
    list_spans(p);
    const int masked = decoder_input(p);
    if (first) {
        decoder_operands(p, first, masked);
        mar_block_attend(m, &c->work, first, &spans);
    }
    for (int b = 1; b + 1 < m->base.config.decoder_depth; b++) mar_block_run(m, &c->work, &m->decoder[b], &spans);
    ask(p, &spans);
}

/* --- arithmetic --------------------------------------------------------------------------------------------------- */

/* Of the queries, keys and values of so many rows. */
static double operands_flop(const mar_contexts *c, double rows)
{
    const double d = width_of(c);
    return 2 * rows * 3 * d * d;
}

static void count(const chunk_pass *p)
{
    mar_contexts *c = p->c;
    const mar_model_config *config = &c->model->base.config;
    const double d = width_of(c), length = length_of(c), visible = p->extent.encoded;
    for (int i = 0; i < p->n; i++) {
        const double encoded = buffer_of(c) + p->list[i].known;
        c->encoder_flop += c->conditions * config->encoder_depth * mar_block_flop(c->model, encoded, encoded, encoded);
        c->decoder_flop +=
            c->conditions * ((config->decoder_depth - 1) * mar_block_flop(c->model, length, length, length) +
                             mar_block_flop(c->model, p->list[i].asked, length, length));
    }
    c->encoder_flop -= operands_flop(c, visible - shared(c, &p->extent));
    c->decoder_flop += 2 * visible * d * d;
    if (shared_decoder_block(c)) c->decoder_flop -= operands_flop(c, decoded(c, &p->extent) - visible);
}

/* --- passes ------------------------------------------------------------------------------------------------------- */

static void make_masks(void *arg)
{
    mar_contexts *c = arg;
    const mar_masked_model *m = c->model;
    mar_workspace *w = &c->work;
    kern_queue *k = w->k;
    const mar_block *first = shared_decoder_block(c);
    const int n = seq_of(c);
    for (int i = 0; i < n; i++) {
        w->rows[0][i] = 0;
        w->rows[1][i] = buffer_of(c) + i;
    }
    k->core->copy_rows(k, c->mask_rows, NULL, m->mask_token, w->rows[0], m->decoder_pos, w->rows[1], n, width_of(c));
    mar_watch(k, m, NULL, "decoder_pos_embed_learned", c->mask_rows, 1, n, width_of(c));
    if (!first) return;
    mar_layer_norm(k, m, c->mask_rows, NULL, n, first->norm1, w->normed, 0);
    first_operands(c, first, n);
    k->core->copy_rows(k, c->mask_operands, NULL, w->hidden, NULL, NULL, NULL, n, floats_of_operands(c));
    c->decoder_flop += operands_flop(c, n);
}

void mar_contexts_begin(mar_contexts *c)
{
    c->encoder_s = c->decoder_s = c->encoder_flop = c->decoder_flop = 0;
    mar_perform(c->work.k, c->part, NULL, make_masks, c, &c->decoder_s);
}

void mar_contexts_run(mar_contexts *c, const mar_image_context *list, int n, int images, const float *token_rows,
                      const float *class_rows, mar_recordings *recordings)
{
    kern_queue *k = c->work.k;
    chunk_pass p = {.c = c, .images = images, .token_rows = token_rows, .class_rows = class_rows};
    mar_recordings *recorded = n <= c->chunk ? recordings : NULL;
    for (int i = 0; i < n; i++) p.z_total += list[i].asked;
    for (int i = 0; i < n; i += p.n) {
        p.list = list + i;
        p.n = chunk_size(c, i, n);
        p.extent = survey(c, p.list, p.n);
        mar_perform(k, c->part, recorded ? &recorded->encode : NULL, encode, &p, &c->encoder_s);
        mar_perform(k, c->part, recorded ? &recorded->decode : NULL, decode, &p, &c->decoder_s);
        count(&p);
        p.z_first += p.extent.asked / c->conditions;
    }
}

/* --- memory and plans --------------------------------------------------------------------------------------------- */

static mar_status plan_attention(const mar_contexts *c, int n_q, int n_k, int q_width, int kv_width, mar_err *err)
{
    kern_queue *k = c->work.k;
    const mar_model_config *config = &c->model->base.config;
    return k->core->attention_plan(k, n_q, n_k, config->heads, config->width / config->heads, q_width * config->width,
                                   kv_width * config->width, err);
}

static mar_status plan_chunk(mar_contexts *c, const mar_image_context *list, int n, mar_err *err)
{
    kern_queue *k = c->work.k;
    const mar_masked_model *m = c->model;
    const mar_model_config *config = &m->base.config;
    const mar_block *first = shared_decoder_block(c), *last = &m->decoder[config->decoder_depth - 1];
    const extent e = survey(c, list, n);
    mar_status status = k->core->linear_plan(k, m->decoder_embed, e.encoded, err);
    if (status == MAR_OK) status = k->core->linear_plan(k, m->encoder[0].qkv, shared(c, &e), err);
    if (status == MAR_OK && first) status = k->core->linear_plan(k, first->qkv, e.encoded, err);
    for (int b = 0; status == MAR_OK && b < config->encoder_depth; b++)
        status = mar_block_plan(k, &m->encoder[b], e.encoded, 0, err);
    for (int b = 0; status == MAR_OK && b + 1 < config->decoder_depth; b++)
        status = mar_block_plan(k, &m->decoder[b], decoded(c, &e), 0, err);
    if (status == MAR_OK) status = mar_block_plan(k, last, e.asked, decoded(c, &e), err);
    for (int i = 0; status == MAR_OK && i < n; i++) {
        const int encoded = buffer_of(c) + list[i].known;
        status = plan_attention(c, encoded, encoded, 3, 3, err);
        if (status == MAR_OK) status = plan_attention(c, list[i].asked, length_of(c), 1, 2, err);
    }
    return status;
}

mar_status mar_contexts_plan(mar_contexts *c, const mar_image_context *list, int n, mar_err *err)
{
    mar_status status = plan_attention(c, length_of(c), length_of(c), 3, 3, err);
    for (int i = 0; status == MAR_OK && i < n; i += c->chunk)
        status = plan_chunk(c, list + i, chunk_size(c, i, n), err);
    return status;
}

size_t mar_contexts_lay_out(mar_contexts *c, char *base)
{
    const mar_model_config *config = &c->model->base.config;
    const size_t d = (size_t)c->model->base.config.width, seq = (size_t)seq_of(c);
    const size_t rows = (size_t)c->chunk * (size_t)c->conditions * (size_t)length_of(c);
    const size_t act_size = c->work.k->device->act_size;
    /* which takes a first block's operands, too */
    const size_t hidden = config->mlp_hidden > 3 * config->width ? (size_t)config->mlp_hidden : 3 * d;
    size_t used = 0;
    mar_workspace_lay_out(&c->work, base, &used, rows, d, hidden);
    c->z = arena_carve(base, &used, (size_t)c->conditions * (size_t)c->max_asked * d, sizeof(float));
    c->mask_rows = arena_carve(base, &used, seq * d, sizeof(float));
    c->mask_operands = arena_carve(base, &used, seq * 3 * d, act_size);
    return used;
}

static mar_status allocate_host(mar_contexts *c, mar_err *err)
{
    const size_t sequences = (size_t)c->chunk * (size_t)c->conditions, rows = sequences * (size_t)length_of(c);
    int complete = 1;
    for (int i = 0; i < 3; i++) complete &= (c->work.rows[i] = calloc(rows, sizeof(int))) != NULL;
    for (int i = 0; i < 6; i++) complete &= (c->span[i] = calloc(sequences, sizeof(int))) != NULL;
    c->image = calloc((size_t)c->max_images, sizeof *c->image);
    c->place = calloc((size_t)c->max_images, sizeof *c->place);
    c->z_index = calloc((size_t)c->conditions * (size_t)c->max_asked, sizeof *c->z_index);
    if (complete && c->image && c->place && c->z_index) return MAR_OK;
    return err_set(err, MAR_ENOMEM, "out of memory for %d contexts", c->max_contexts);
}

mar_status mar_contexts_create(kern_queue *k, const mar_masked_model *m, int max_images, int max_contexts,
                               int max_asked, int conditions, mar_contexts *out, mar_err *err)
{
    const mar_model_config *config = &m->base.config;
    const int most = CHUNK_ROWS / (config->buffer + config->seq_len), chunk = most > 0 ? most : 1;
    *out = (mar_contexts){0};
    if ((size_t)config->width * k->device->act_size % sizeof(float)) /* rows of operands are copied as floats */
        return err_set(err, MAR_EARG, "spec: expected a model of even width, not %d", config->width);
    *out = (mar_contexts){.model = m,
                          .max_images = max_images,
                          .max_contexts = max_contexts,
                          .max_asked = max_asked,
                          .conditions = conditions,
                          .chunk = max_contexts < chunk ? max_contexts : chunk,
                          .work = {.k = k},
                          .part = ""};
    mar_status status = allocate_host(out, err);
    if (status == MAR_OK && shared_decoder_block(out)) /* for make_masks */
        status = k->core->linear_plan(k, shared_decoder_block(out)->qkv, config->seq_len, err);
    if (status != MAR_OK) mar_contexts_free(out);
    return status;
}

void mar_contexts_free(mar_contexts *c)
{
    for (int i = 0; i < 3; i++) free(c->work.rows[i]);
    for (int i = 0; i < 6; i++) free(c->span[i]);
    free(c->image);
    free(c->place);
    free(c->z_index);
    *c = (mar_contexts){0};
}
