#include "nets/causal.h"
#include "weights/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Source, destination and errors of the loading functions. */
typedef struct {
    kern_queue *k;
    const wt_file *file;
    mar_err *err;
} loader;

/* --- arrays ------------------------------------------------------------------------------------------------------- */

/* Loads a matrix [rows][columns], or with `columns` 0 a vector [rows]. */
static mar_status causal_load_array(loader *l, const char *name, int rows, int columns, float **out)
{
    const int64_t shape[2] = {rows, columns};
    return wt_load_array(l->k, l->file, name, columns ? 2 : 1, shape, out, l->err);
}

/* Loads the weights of a norm of heads, or its bias: [rows][size], or a vector for all heads. */
static mar_status load_head_norm(loader *l, const char *name, const causal_shape *s, int heads, int rows, float **out)
{
    const int size = s->head_dim, vector = s->norm_shape == CAUSAL_VECTOR;
    const int64_t shape[2] = {vector ? size : rows, size};
    const size_t n = (size_t)heads * (size_t)size;
    float *host = NULL, *all = malloc(n * sizeof *all);
    if (!all) return err_set(l->err, MAR_ENOMEM, "%s: out of memory for tensor %s", wt_path(l->file), name);
    mar_status status = wt_load_f32(l->file, name, vector ? 1 : 2, shape, &host, l->err);
    for (int i = 0; status == MAR_OK && i < (int)n; i++)
        all[i] = host[(s->norm_shape == CAUSAL_ROWS ? i / size * size : 0) +
                      (s->halves ? wt_place_in_head(i % size, size) : i % size)];
    if (status == MAR_OK) status = kern_new_array(l->k, all, n, out, l->err);
    free(host);
    free(all);
    return status;
}

static mar_status load_qk_norm(loader *l, const char *prefix, const causal_shape *s, causal_part part, int heads,
                               float **weight, float **bias)
{
    char name[CAUSAL_TENSOR_NAME], text[CAUSAL_TENSOR_NAME];
    int rows;
    if (!causal_layer_name(prefix, s, part, 0, name, &rows)) return MAR_OK;
    const mar_status status = load_head_norm(l, name, s, heads, rows, weight);
    if (status != MAR_OK || s->qk_norm != CAUSAL_LAYER_NORM) return status;
    return load_head_norm(l, causal_bias_name(name, text), s, heads, rows, bias);
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* Lists the pieces of a layer's product, one after another. Returns its outputs. */
static int list_pieces(const char *prefix, const causal_shape *s, causal_part part, wt_rows *w)
{
    const int size = s->head_dim;
    int out = 0;
    for (wt_piece *p = w->piece; w->count < WT_PIECES; w->count++, p++) {
        if (!causal_layer_name(prefix, s, part, w->count, p->name, &p->rows)) break;
        p->head = part == CAUSAL_WQKV && s->halves && w->count < 2 ? size : 0;
        out += p->rows;
    }
    return out;
}

/* Loads a product of a layer, which runs after `before` and, if norm is not NULL, behind this norm. */
static mar_status causal_load_product(loader *l, const char *prefix, const causal_shape *s, causal_part part, int in,
                                      int flags, const float *norm, kern_linear *before, kern_linear **layer)
{
    wt_rows w = {.file = l->file, .in = in, .bias = s->bias >> part & 1};
    const kern_linear_spec spec = {
        .out = list_pieces(prefix, s, part, &w), .flags = flags | KERN_LOW, .previous = before, .norm = norm};
    return wt_create_linear(l->k, &w, spec, layer, l->err);
}

/* Loads a product and, if the layer has it, the RMS norm in front of it. */
static mar_status causal_load_normed(loader *l, const char *prefix, const causal_shape *s, causal_part norm_part,
                                     causal_part part, kern_linear *before, float **norm, kern_linear **layer)
{
    char name[CAUSAL_TENSOR_NAME];
    const int64_t width = s->width;
    float *host = NULL;
    int rows;
    mar_status status = MAR_OK;
    if (causal_layer_name(prefix, s, norm_part, 0, name, &rows)) {
        status = wt_load_f32(l->file, name, 1, &width, &host, l->err);
        if (status == MAR_OK) status = kern_new_array(l->k, host, (size_t)width, norm, l->err);
    }
    if (status == MAR_OK) status = causal_load_product(l, prefix, s, part, s->width, 0, host, before, layer);
    free(host);
    return status;
}

/* Loads a matrix [out][in] as a product f32 -> f32: of numbers from outside. */
static mar_status causal_load_linear(loader *l, const char *name, int out, int in, int bias, kern_activation activation,
                                     kern_linear **layer)
{
    wt_rows w = {.file = l->file, .in = in, .count = 1, .piece = {{.rows = out}}, .bias = bias};
    snprintf(w.piece[0].name, sizeof w.piece[0].name, "%s", name);
    const kern_linear_spec spec = {.out = out, .activation = activation, .flags = KERN_IN_F32 | KERN_OUT_F32};
    return wt_create_linear(l->k, &w, spec, layer, l->err);
}

/* --- layers ------------------------------------------------------------------------------------------------------- */

mar_status causal_layer_load(kern_queue *k, const wt_file *f, const char *prefix, const causal_shape *s,
                             kern_linear *before, causal_layer *b, mar_err *err)
{
    const int sums = KERN_OUT_F32 | KERN_OUT_ADD;
    loader l = {k, f, err};
    mar_status status =
        causal_load_normed(&l, prefix, s, CAUSAL_ATTENTION_NORM, CAUSAL_WQKV, before, &b->attention_norm, &b->qkv);
    if (status == MAR_OK)
        status = causal_load_product(&l, prefix, s, CAUSAL_WO, causal_q_width(s), sums, NULL, b->qkv, &b->wo);
    if (status == MAR_OK)
        status = causal_load_normed(&l, prefix, s, CAUSAL_FFN_NORM, CAUSAL_W13, b->wo, &b->ffn_norm, &b->w13);
    if (status == MAR_OK) status = causal_load_product(&l, prefix, s, CAUSAL_W2, s->hidden, sums, NULL, b->w13, &b->w2);
    if (status == MAR_OK) status = load_qk_norm(&l, prefix, s, CAUSAL_Q_NORM, s->heads, &b->q_norm, &b->q_norm_bias);
    return status == MAR_OK ? load_qk_norm(&l, prefix, s, CAUSAL_K_NORM, s->kv_heads, &b->k_norm, &b->k_norm_bias)
                            : status;
}

void causal_layer_free(kern_device *d, causal_layer *b)
{
    kern_linear *products[] = {b->qkv, b->wo, b->w13, b->w2};
    for (int i = 0; i < 4; i++) d->core->linear_free(d, products[i]);
    float *arrays[] = {b->attention_norm, b->ffn_norm, b->q_norm, b->q_norm_bias, b->k_norm, b->k_norm_bias};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) d->core->free(d, arrays[i]);
    *b = (causal_layer){0};
}

/* --- the prefix and tokens that are vectors ------------------------------------------------------------------------
 */

static mar_status load_prefix(loader *l, causal_model *m)
{
    const causal_shape *s = &m->shape;
    const causal_names *names = s->names;
    const int d = s->width;
    if (s->prompt) return MAR_OK;
    if (!s->caption_dim) return causal_load_array(l, names->class_table, s->classes + 1, s->prefix * d, &m->class_emb);
    mar_status status = causal_load_array(l, names->no_caption, s->prefix, s->caption_dim, &m->no_caption);
    if (status == MAR_OK)
        status = causal_load_linear(l, names->caption[0], d, s->caption_dim, 0, KERN_GELU_TANH, &m->caption_fc1);
    if (status == MAR_OK) status = causal_load_linear(l, names->caption[1], d, d, 0, KERN_LINEAR, &m->caption_fc2);
    return status;
}

static mar_status causal_load_projection(loader *l, causal_model *m)
{
    const causal_shape *s = &m->shape;
    const char *const *name = s->names->project;
    if (!s->token_dim) return MAR_OK;
    if (!s->project_hidden)
        return causal_load_linear(l, name[0], s->width, s->token_dim, 1, KERN_LINEAR, &m->project[0]);
    const mar_status status =
        causal_load_linear(l, name[0], s->project_hidden, s->token_dim, 1, KERN_SILU, &m->project[0]);
    if (status != MAR_OK) return status;
    return causal_load_linear(l, name[1], s->width, s->project_hidden, 1, KERN_LINEAR, &m->project[1]);
}

/* Loads what makes the head's condition of a hidden row. */
static mar_status causal_load_condition(loader *l, causal_model *m)
{
    const causal_shape *s = &m->shape;
    const int64_t table[3] = {1, s->next_rows, s->width};
    wt_rows w = {.file = l->file, .in = s->width, .count = 1, .piece = {{.rows = s->width}}, .bias = 1};
    const kern_linear_spec spec = {.out = s->width, .flags = KERN_OUT_F32, .previous = m->layers[s->depth - 1].w2};
    mar_status status = MAR_OK;
    if (s->names->next_position && s->next_rows)
        status = wt_load_array(l->k, l->file, s->names->next_position, 3, table, &m->next_position, l->err);
    else if (s->names->next_position)
        status = causal_load_array(l, s->names->next_position, s->seq_len, s->width, &m->next_position);
    if (status != MAR_OK || !s->names->condition) return status;
    snprintf(w.piece[0].name, sizeof w.piece[0].name, "%s", s->names->condition);
    return wt_create_linear(l->k, &w, spec, &m->condition, l->err);
}

/* --- rotary positions --------------------------------------------------------------------------------------------- */

/* Writes precompute_freqs_cis_2d, in f32 as there: a quarter of a head's numbers turns by the row, the other by the
 * column. In gpt.py cos and sin are 0 at the prefix, so q and k become 0 there. So every later query gives a prefix
 * position the score 0. SphereAR's layers.py does not turn the prefix. Its columns come first, and its positions begin
 * at 1.5. */
static void causal_write_grid(const causal_shape *s, float *rope)
{
    const int size = s->head_dim, quarter = size / 4, columns_first = s->rotation == CAUSAL_GRID_COLUMNS;
    float *at = rope + (size_t)s->prefix * (size_t)size;
    for (float *x = rope; columns_first && x < at; x += 2) *x = 1;
    for (int i = 0; i < s->seq_len; i++)
        for (int pair = 0; pair < 2 * quarter; pair++, at += 2) {
            const float frequency = 1 / powf(s->rope_base, (float)(pair % quarter * 2) / (float)(size / 2));
            const int place = (pair < quarter) != columns_first ? i / s->columns : i % s->columns;
            const float angle = ((float)place + (columns_first ? 1.5f : 0)) * frequency;
            at[0] = cosf(angle);
            at[1] = sinf(angle);
        }
}

/* Writes Llama's positions, counted along the sequence, in f32 as transformers does. */
static void causal_write_line(const causal_shape *s, int positions, float *rope)
{
    for (int i = 0; i < positions; i++)
        for (int pair = 0; pair < s->head_dim / 2; pair++, rope += 2) {
            const float angle = (float)i * (1 / powf(s->rope_base, (float)(2 * pair) / (float)s->head_dim));
            rope[0] = cosf(angle);
            rope[1] = sinf(angle);
        }
}

static mar_status make_rope(loader *l, causal_model *m)
{
    const causal_shape *s = &m->shape;
    const int positions = s->prefix + causal_positions(s);
    const size_t n = (size_t)positions * (size_t)s->head_dim;
    float *rope = calloc(n, sizeof *rope);
    if (!rope) return err_set(l->err, MAR_ENOMEM, "out of memory for %d positions", positions);
    if (s->rotation == CAUSAL_LINE)
        causal_write_line(s, positions, rope);
    else
        causal_write_grid(s, rope);
    const mar_status status = kern_new_array(l->k, rope, n, &m->rope, l->err);
    free(rope);
    return status;
}

/* --- models ------------------------------------------------------------------------------------------------------- */

static mar_status load_layers(loader *l, causal_model *m)
{
    const causal_shape *s = &m->shape;
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < s->depth; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "%s.%d", s->names->layers, i);
        status = causal_layer_load(l->k, l->file, prefix, s, i ? m->layers[i - 1].w2 : NULL, &m->layers[i], l->err);
    }
    const kern_decoder_spec spec = {.layers = m->layers,
                                    .depth = s->depth,
                                    .heads = s->heads,
                                    .kv_heads = s->kv_heads,
                                    .head_dim = s->head_dim,
                                    .eps = s->eps,
                                    .head_eps = CAUSAL_HEAD_EPS};
    return status == MAR_OK ? l->k->fused->decoder_create(l->k, &spec, &m->decoder, l->err) : status;
}

/* Loads rows of the embedding, a part at a time. */
static mar_status causal_load_embedding(loader *l, causal_model *m, wt_rows *w, int rows)
{
    enum { PART = 256 };
    const size_t d = (size_t)w->in;
    void *p = NULL;
    float *part = malloc(PART * d * sizeof *part);
    if (!part) return err_set(l->err, MAR_ENOMEM, "%s: out of memory for the embedding", wt_path(l->file));
    mar_status status = l->k->core->alloc(l->k->device, (size_t)rows * d * sizeof *part, &p, l->err);
    m->token_emb = p;
    const kern_linear_rows source = wt_linear_rows(w);
    for (int first = 0, n; status == MAR_OK && first < rows; first += n) {
        n = rows - first < PART ? rows - first : PART;
        status = source.read(w, first, n, part, l->err);
        if (status == MAR_OK)
            l->k->core->upload(l->k, m->token_emb + (size_t)first * d, part, (size_t)n * d * sizeof *part);
    }
    free(part);
    return status;
}

/* Loads embedding and output layer of ids. */
static mar_status load_ends(loader *l, causal_model *m, const int *image_id)
{
    const causal_shape *s = &m->shape;
    wt_rows w = {.file = l->file, .in = s->width, .count = 1, .id = image_id};
    if (!s->vocabulary) return MAR_OK;
    w.piece[0].rows = image_id ? s->rows : s->vocabulary;
    snprintf(w.piece[0].name, sizeof w.piece[0].name, "%s", s->names->embedding);
    const mar_status status = causal_load_embedding(l, m, &w, s->vocabulary + s->line_end);
    if (!s->tied) snprintf(w.piece[0].name, sizeof w.piece[0].name, "%s", s->names->output);
    const kern_linear_spec spec = {.out = s->vocabulary, .flags = KERN_OUT_F32, .previous = m->layers[s->depth - 1].w2};
    return status == MAR_OK ? wt_create_linear(l->k, &w, spec, &m->output, l->err) : status;
}

static mar_status causal_load_model(loader *l, causal_model *m, const int *image_id)
{
    const causal_shape *s = &m->shape;
    const causal_names *names = s->names;
    mar_status status = load_prefix(l, m);
    if (status == MAR_OK) status = causal_load_projection(l, m);
    if (status == MAR_OK && names->input_norm)
        status = causal_load_array(l, names->input_norm, s->width, 0, &m->input_norm);
    if (status == MAR_OK) status = load_layers(l, m);
    if (status == MAR_OK) status = causal_load_array(l, names->norm, s->width, 0, &m->norm);
    if (status == MAR_OK) status = load_ends(l, m, image_id);
    if (status == MAR_OK) status = causal_load_condition(l, m);
    return status == MAR_OK ? make_rope(l, m) : status;
}

mar_status causal_model_load(kern_queue *k, const wt_file *f, const causal_shape *shape, const int *image_id,
                             causal_model **out, mar_err *err)
{
    *out = NULL;
    if (shape->rotation != CAUSAL_LINE && shape->seq_len != shape->columns * shape->columns)
        return err_set(err, MAR_EARG, "%s: %d tokens of an image, expected a square number", wt_path(f),
                       shape->seq_len);
    causal_model *m = calloc(1, sizeof *m);
    if (!m) return err_set(err, MAR_ENOMEM, "out of memory");
    m->device = k->device;
    m->shape = *shape;
    m->prompt_file = shape->prompt ? f : NULL;
    m->layers = calloc((size_t)shape->depth, sizeof *m->layers);
    loader l = {k, f, err};
    const mar_status status =
        m->layers ? causal_load_model(&l, m, image_id) : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) {
        *out = m;
    } else {
        k->core->finish(k); /* waits for uploads that have begun */
        causal_model_free(m);
    }
    return status;
}

void causal_model_free(causal_model *m)
{
    if (!m) return;
    kern_device *d = m->device;
    float *arrays[] = {m->class_emb, m->no_caption, m->token_emb, m->norm, m->input_norm, m->next_position, m->rope};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) d->core->free(d, arrays[i]);
    kern_linear *linears[] = {m->caption_fc1, m->caption_fc2, m->project[0], m->project[1], m->output, m->condition};
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) d->core->linear_free(d, linears[i]);
    if (m->decoder) d->fused.decoder_free(d, m->decoder);
    for (int i = 0; m->layers && i < m->shape.depth; i++) causal_layer_free(d, &m->layers[i]);
    free(m->layers);
    free(m);
}
