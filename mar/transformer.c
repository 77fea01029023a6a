#include "mar/transformer.h"

static const float ln_eps = 1e-6f; /* norm_layer=partial(nn.LayerNorm, eps=1e-6) in every MAR model */

static int head_dim(const mar_model *m)
{
    return m->config.width / m->config.heads;
}

static void norm(const mar_model *m, const float *x, const int *index, int rows, mar_norm n, void *y, int f32)
{
    kern *k = m->m->kern;
    const int d = m->config.width;
    k->ops->layer_norm(k, x, index, rows, d, n, n + d, ln_eps, y, f32);
}

static const act *at(const mar_model *m, const act *p, int elements)
{
    return (const char *)p + (size_t)elements * m->m->kern->act_size;
}

/* x += fc2(gelu(fc1(LN2(x)))) */
static void mlp(const mar_model *m, mar_workspace *w, const mar_block *b, float *x, int rows)
{
    kern *k = m->m->kern;
    norm(m, x, NULL, rows, b->norm2, w->normed, 0);
    k->ops->linear(k, b->fc1, w->normed, rows, w->hidden);
    k->ops->linear(k, b->fc2, w->hidden, rows, x);
}

/* One block over `sequences` sequences of `length` rows in w->x. */
static void block(const mar_model *m, mar_workspace *w, const mar_block *b, int sequences, int length)
{
    kern *k = m->m->kern;
    const int d = m->config.width, rows = sequences * length;
    norm(m, w->x, NULL, rows, b->norm1, w->normed, 0);
    k->ops->linear(k, b->qkv, w->normed, rows, w->qkv);
    k->ops->attention(k, w->qkv, 3 * d, at(m, w->qkv, d), at(m, w->qkv, 2 * d), 3 * d, sequences, length, length,
                      m->config.heads, head_dim(m), w->mixed);
    k->ops->linear(k, b->proj, w->mixed, rows, w->x);
    mlp(m, w, b, w->x, rows);
}

/* The last decoder block: keys and values of all rows of w->x, everything else for `count` rows picked by w->rows[0],
 * which end up in w->memory. */
static void last_block(const mar_model *m, mar_workspace *w, const mar_block *b, int sequences, int length, int count)
{
    kern *k = m->m->kern;
    const int d = m->config.width;
    norm(m, w->x, NULL, sequences * length, b->norm1, w->normed, 0);
    k->ops->linear(k, b->kv, w->normed, sequences * length, w->qkv);
    norm(m, w->x, w->rows[0], sequences * count, b->norm1, w->normed, 0);
    act *query = w->hidden; /* at least D wide */
    k->ops->linear(k, b->q, w->normed, sequences * count, query);
    k->ops->attention(k, query, d, w->qkv, at(m, w->qkv, d), 2 * d, sequences, count, length, m->config.heads,
                      head_dim(m), w->mixed);
    k->ops->copy_rows(k, w->memory, NULL, w->x, w->rows[0], NULL, NULL, sequences * count, d);
    k->ops->linear(k, b->proj, w->mixed, sequences * count, w->memory);
    mlp(m, w, b, w->memory, sequences * count);
}

void mar_embed_classes(const mar_model *m, mar_workspace *w, int sequences, const int *label, float *class_rows)
{
    kern *k = m->m->kern;
    const int buffer = m->config.buffer, rows = sequences * buffer;
    for (int r = 0; r < rows; r++) {
        w->rows[0][r] = label[r / buffer];
        w->rows[1][r] = r % buffer;
    }
    k->ops->copy_rows(k, w->x, NULL, m->class_emb, w->rows[0], m->encoder_pos, w->rows[1], rows, m->config.width);
    norm(m, w->x, NULL, rows, m->z_proj_ln, class_rows, 1);
}

void mar_embed_tokens(const mar_model *m, mar_workspace *w, const float *tokens, int n, const int *image,
                      const int *position, float *token_rows)
{
    kern *k = m->m->kern;
    const int d = m->config.width;
    for (int r = 0; r < n; r++) {
        w->rows[0][r] = m->config.buffer + position[r];
        w->rows[1][r] = image[r] * m->config.seq_len + position[r];
    }
    k->ops->linear(k, m->z_proj, tokens, n, w->x);
    k->ops->copy_rows(k, w->x, NULL, w->x, NULL, m->encoder_pos, w->rows[0], n, d);
    norm(m, w->x, NULL, n, m->z_proj_ln, w->memory, 1);
    k->ops->copy_rows(k, token_rows, w->rows[1], w->memory, NULL, NULL, NULL, n, d);
}

/* Position in the order of known token i: the most recently predicted come first. */
static int known_position(const mar_model *m, const mar_pass *p, int sequence, int i)
{
    return p->order[sequence % p->images][m->config.seq_len - p->known + i];
}

void mar_encode(const mar_model *m, mar_workspace *w, const mar_pass *p)
{
    kern *k = m->m->kern;
    const mar_model_config *c = &m->config;
    const int length = c->buffer + p->known;
    int n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < c->buffer; i++) w->rows[0][n++] = s * length + i;
    k->ops->copy_rows(k, w->x, w->rows[0], p->class_rows, NULL, NULL, NULL, n, c->width);
    n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < p->known; i++, n++) {
            w->rows[0][n] = s * length + c->buffer + i;
            w->rows[1][n] = s % p->images * c->seq_len + known_position(m, p, s, i);
        }
    k->ops->copy_rows(k, w->x, w->rows[0], p->token_rows, w->rows[1], NULL, NULL, n, c->width);
    for (int b = 0; b < c->encoder_depth; b++) block(m, w, &m->encoder[b], p->sequences, length);
}

/* w->x [sequences][buffer + seq_len][D] = (encoder output or mask token) + decoder position. */
static void decoder_input(const mar_model *m, mar_workspace *w, const mar_pass *p)
{
    kern *k = m->m->kern;
    const mar_model_config *c = &m->config;
    const int known_length = c->buffer + p->known, length = c->buffer + c->seq_len;
    norm(m, w->x, NULL, p->sequences * known_length, m->encoder_norm, w->normed, 0);
    k->ops->linear(k, m->decoder_embed, w->normed, p->sequences * known_length, w->memory);
    int n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < known_length; i++, n++) {
            const int position = i < c->buffer ? i : c->buffer + known_position(m, p, s, i - c->buffer);
            w->rows[0][n] = s * length + position;
            w->rows[1][n] = position;
        }
    k->ops->copy_rows(k, w->x, w->rows[0], w->memory, NULL, m->decoder_pos, w->rows[1], n, c->width);
    n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < c->seq_len - p->known; i++, n++) {
            const int position = c->buffer + p->order[s % p->images][i];
            w->rows[0][n] = s * length + position;
            w->rows[1][n] = position;
            w->rows[2][n] = 0;
        }
    k->ops->copy_rows(k, w->x, w->rows[0], m->mask_token, w->rows[2], m->decoder_pos, w->rows[1], n, c->width);
}

void mar_decode(const mar_model *m, mar_workspace *w, const mar_pass *p, float *z, const int *z_index)
{
    kern *k = m->m->kern;
    const mar_model_config *c = &m->config;
    const int length = c->buffer + c->seq_len, first = c->seq_len - p->known - p->predicted;
    decoder_input(m, w, p);
    for (int b = 0; b + 1 < c->decoder_depth; b++) block(m, w, &m->decoder[b], p->sequences, length);
    int n = 0;
    for (int s = 0; s < p->sequences; s++)
        for (int i = 0; i < p->predicted; i++, n++) {
            w->rows[1][n] = p->order[s % p->images][first + i];
            w->rows[0][n] = s * length + c->buffer + w->rows[1][n];
        }
    last_block(m, w, &m->decoder[c->decoder_depth - 1], p->sequences, length, p->predicted);
    norm(m, w->memory, NULL, n, m->decoder_norm, w->x, 1);
    k->ops->copy_rows(k, z, z_index, w->x, NULL, m->diffusion_pos, w->rows[1], n, c->width);
}

static mar_status plan_block(const mar_model *m, const mar_block *b, int rows, int kv_rows, mar_err *err)
{
    kern *k = m->m->kern;
    struct {
        kern_linear *layer;
        int rows;
    } use[] = {{b->qkv, rows}, {b->q, rows}, {b->kv, kv_rows}, {b->proj, rows}, {b->fc1, rows}, {b->fc2, rows}};
    mar_status status = MAR_OK;
    for (size_t i = 0; status == MAR_OK && i < sizeof use / sizeof *use; i++)
        if (use[i].layer) status = k->ops->linear_plan(k, use[i].layer, use[i].rows, err);
    return status;
}

mar_status mar_passes_plan(const mar_model *m, int sequences, int known, int predicted, mar_err *err)
{
    kern *k = m->m->kern;
    const mar_model_config *c = &m->config;
    const int d = c->width, encoded = c->buffer + known, decoded = c->buffer + c->seq_len;
    mar_status status = k->ops->linear_plan(k, m->decoder_embed, sequences * encoded, err);
    if (status == MAR_OK) status = k->ops->linear_plan(k, m->z_proj, sequences * predicted, err);
    for (int b = 0; status == MAR_OK && b < c->encoder_depth; b++)
        status = plan_block(m, &m->encoder[b], sequences * encoded, 0, err);
    for (int b = 0; status == MAR_OK && b + 1 < c->decoder_depth; b++)
        status = plan_block(m, &m->decoder[b], sequences * decoded, 0, err);
    if (status == MAR_OK)
        status = plan_block(m, &m->decoder[c->decoder_depth - 1], sequences * predicted, sequences * decoded, err);
    const int shapes[3][4] = {
        {encoded, encoded, 3 * d, 3 * d}, {decoded, decoded, 3 * d, 3 * d}, {predicted, decoded, d, 2 * d}};
    for (int i = 0; status == MAR_OK && i < 3; i++)
        status = k->ops->attention_plan(k, shapes[i][0], shapes[i][1], c->heads, head_dim(m), shapes[i][2],
                                        shapes[i][3], err);
    return status;
}

/* Multiply-adds of a block in which `rows` rows ask and `kv_rows` rows answer. */
static double block_macs(const mar_model *m, double rows, double kv_rows, double kv_length)
{
    const double d = m->config.width, hidden = m->config.mlp_hidden;
    return rows * (2 * d * d + 2 * d * hidden + 2 * kv_length * d) + kv_rows * 2 * d * d;
}

double mar_encode_flop(const mar_model *m, int sequences, int known)
{
    const double length = m->config.buffer + known, rows = sequences * length;
    return 2 * m->config.encoder_depth * block_macs(m, rows, rows, length);
}

double mar_decode_flop(const mar_model *m, int sequences, int predicted)
{
    const double length = m->config.buffer + m->config.seq_len, rows = sequences * length, d = m->config.width;
    return 2 * ((m->config.decoder_depth - 1) * block_macs(m, rows, rows, length) +
                block_macs(m, (double)sequences * predicted, rows, length) + rows * d * d);
}
