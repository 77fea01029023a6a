#include "llamagen/model.h"
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
static mar_status load_array(loader *l, const char *name, int rows, int columns, float **out)
{
    const int64_t shape[2] = {rows, columns};
    return wt_load_array(l->k, l->file, name, columns ? 2 : 1, shape, out, l->err);
}

/* Loads the weights of a norm of heads, or its bias: [rows][size], or a vector for all heads. */
static mar_status load_head_norm(loader *l, const char *name, const gpt_layer_shape *s, int heads, int rows,
                                 float **out)
{
    const int size = s->width / s->heads, vector = s->norm_shape == GPT_VECTOR;
    const int64_t shape[2] = {vector ? size : rows, size};
    const size_t n = (size_t)heads * (size_t)size;
    float *host = NULL, *all = malloc(n * sizeof *all);
    if (!all) return err_set(l->err, MAR_ENOMEM, "%s: out of memory for tensor %s", wt_path(l->file), name);
    mar_status status = wt_load_f32(l->file, name, vector ? 1 : 2, shape, &host, l->err);
    for (int i = 0; status == MAR_OK && i < (int)n; i++)
        all[i] = host[(s->norm_shape == GPT_ROWS ? i / size * size : 0) +
                      (s->halves ? wt_place_in_head(i % size, size) : i % size)];
    if (status == MAR_OK) status = kern_new_array(l->k, all, n, out, l->err);
    free(host);
    free(all);
    return status;
}

static mar_status load_qk_norm(loader *l, const char *prefix, const gpt_layer_shape *s, gpt_part part, int heads,
                               float **weight, float **bias)
{
    char name[GPT_TENSOR_NAME], text[GPT_TENSOR_NAME];
    int rows;
    if (!gpt_layer_name(prefix, s, part, 0, name, &rows)) return MAR_OK;
    const mar_status status = load_head_norm(l, name, s, heads, rows, weight);
    if (status != MAR_OK || s->qk_norm != GPT_LAYER_NORM) return status;
    return load_head_norm(l, gpt_bias_name(name, text), s, heads, rows, bias);
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* Lists the pieces of a layer's product, one after another. Returns its outputs. */
static int list_pieces(const char *prefix, const gpt_layer_shape *s, gpt_part part, wt_rows *w)
{
    const int size = s->heads ? s->width / s->heads : 0;
    int out = 0;
    for (wt_piece *p = w->piece; w->count < WT_PIECES; w->count++, p++) {
        if (!gpt_layer_name(prefix, s, part, w->count, p->name, &p->rows)) break;
        p->head = part == GPT_WQKV && s->halves && w->count < 2 ? size : 0;
        out += p->rows;
    }
    return out;
}

/* Creates a product of these rows. It has KERN_LOW if gpt_config_is_int8. */
static mar_status create_linear(loader *l, wt_rows *w, kern_linear_spec spec, kern_linear **layer)
{
    w->file = l->file;
    if (gpt_config_is_int8(w->piece[0].name)) spec.flags |= KERN_LOW;
    return wt_create_linear(l->k, w, spec, layer, l->err);
}

/* Loads a product of a layer, which runs after `before`. */
static mar_status load_product(loader *l, const char *prefix, const gpt_layer_shape *s, gpt_part part, int in,
                               int flags, kern_linear *before, kern_linear **layer)
{
    wt_rows w = {.in = in, .bias = s->bias >> part & 1};
    const kern_linear_spec spec = {.out = list_pieces(prefix, s, part, &w), .flags = flags, .previous = before};
    return create_linear(l, &w, spec, layer);
}

/* Loads a matrix [out][in] as a product. */
static mar_status load_linear(loader *l, const char *name, int out, int in, kern_activation activation, int flags,
                              kern_linear **layer)
{
    wt_rows w = {.in = in, .count = 1, .piece = {{.rows = out}}};
    snprintf(w.piece[0].name, sizeof w.piece[0].name, "%s", name);
    return create_linear(l, &w, (kern_linear_spec){.out = out, .activation = activation, .flags = flags}, layer);
}

/* --- layers ------------------------------------------------------------------------------------------------------- */

mar_status gpt_layer_load(kern_queue *k, const wt_file *f, const char *prefix, const gpt_layer_shape *s,
                          kern_linear *before, gpt_layer *b, mar_err *err)
{
    const int sums = KERN_OUT_F32 | KERN_OUT_ADD;
    loader l = {k, f, err};
    char name[GPT_TENSOR_NAME];
    int rows;
    mar_status status = load_product(&l, prefix, s, GPT_WQKV, s->width, 0, before, &b->qkv);
    if (status == MAR_OK) status = load_product(&l, prefix, s, GPT_WO, s->width, sums, b->qkv, &b->wo);
    if (status == MAR_OK) status = load_product(&l, prefix, s, GPT_W13, s->width, 0, b->wo, &b->w13);
    if (status == MAR_OK) status = load_product(&l, prefix, s, GPT_W2, s->hidden, sums, b->w13, &b->w2);
    if (status == MAR_OK) status = load_qk_norm(&l, prefix, s, GPT_Q_NORM, s->heads, &b->q_norm, &b->q_norm_bias);
    if (status == MAR_OK) status = load_qk_norm(&l, prefix, s, GPT_K_NORM, s->kv_heads, &b->k_norm, &b->k_norm_bias);
    if (status == MAR_OK && gpt_layer_name(prefix, s, GPT_ATTENTION_NORM, 0, name, &rows))
        status = load_array(&l, name, rows, 0, &b->attention_norm);
    if (status == MAR_OK) gpt_layer_name(prefix, s, GPT_FFN_NORM, 0, name, &rows);
    return status == MAR_OK ? load_array(&l, name, s->width, 0, &b->ffn_norm) : status;
}

void gpt_layer_free(kern_device *d, gpt_layer *b)
{
    kern_linear *products[] = {b->qkv, b->wo, b->w13, b->w2};
    for (int i = 0; i < 4; i++) d->core->linear_free(d, products[i]);
    float *arrays[] = {b->attention_norm, b->ffn_norm, b->q_norm, b->q_norm_bias, b->k_norm, b->k_norm_bias};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) d->core->free(d, arrays[i]);
    *b = (gpt_layer){0};
}

static mar_status load_condition(loader *l, gpt_model *m)
{
    const gpt_config *c = &m->config;
    const int d = c->width;
    if (c->grammar) return MAR_OK;
    if (!c->caption_dim) return load_array(l, "cls_embedding.embedding_table.weight", c->classes + 1, d, &m->class_emb);
    mar_status status = load_array(l, "cls_embedding.uncond_embedding", c->prefix, c->caption_dim, &m->no_caption);
    if (status == MAR_OK) /* caption features are f32, and so is their product */
        status = load_linear(l, "cls_embedding.cap_proj.fc1.weight", d, c->caption_dim, KERN_GELU_TANH,
                             KERN_IN_F32 | KERN_OUT_F32, &m->caption_fc1);
    if (status == MAR_OK)
        status = load_linear(l, "cls_embedding.cap_proj.fc2.weight", d, d, KERN_LINEAR, KERN_IN_F32 | KERN_OUT_F32,
                             &m->caption_fc2);
    return status;
}

/* --- rotary positions --------------------------------------------------------------------------------------------- */

/* Writes precompute_freqs_cis_2d, in f32 as there: a quarter of a head's numbers turns by the row, the other by the
 * column. In gpt.py cos and sin are 0 at the prefix, so q and k become 0 there. So every later query gives a prefix
 * position the score 0. SphereAR's layers.py does not turn the prefix. Its columns come first, and its positions begin
 * at 1.5. */
static void write_grid(const gpt_config *c, int size, float *rope)
{
    const int side = gpt_config_side(c->seq_len), quarter = size / 4;
    float *at = rope + (size_t)c->prefix * (size_t)size;
    const int sphere = c->family == GPT_SPHEREAR;
    for (float *x = rope; sphere && x < at; x += 2) *x = 1;
    for (int i = 0; i < c->seq_len; i++)
        for (int pair = 0; pair < 2 * quarter; pair++, at += 2) {
            const float frequency = 1 / powf(10000, (float)(pair % quarter * 2) / (float)(size / 2));
            const int place = (pair < quarter) != sphere ? i / side : i % side;
            const float angle = ((float)place + (sphere ? 1.5f : 0)) * frequency;
            at[0] = cosf(angle);
            at[1] = sinf(angle);
        }
}

/* Writes Llama's positions, counted along the sequence, in f32 as transformers does. */
static void write_line(const gpt_config *c, int size, int positions, float *rope)
{
    const float base = c->rope_base > 0 ? c->rope_base : 10000;
    for (int i = 0; i < positions; i++)
        for (int pair = 0; pair < size / 2; pair++, rope += 2) {
            const float angle = (float)i * (1 / powf(base, (float)(2 * pair) / (float)size));
            rope[0] = cosf(angle);
            rope[1] = sinf(angle);
        }
}

static mar_status make_rope(loader *l, gpt_model *m)
{
    const gpt_config *c = &m->config;
    const int size = c->width / c->heads, positions = c->prefix + gpt_positions(c);
    const size_t n = (size_t)positions * (size_t)size;
    float *rope = calloc(n, sizeof *rope);
    if (!rope) return err_set(l->err, MAR_ENOMEM, "out of memory for %d positions", positions);
    if (c->grammar)
        write_line(c, size, positions, rope);
    else
        write_grid(c, size, rope);
    const mar_status status = kern_new_array(l->k, rope, n, &m->rope, l->err);
    free(rope);
    return status;
}

/* --- models ------------------------------------------------------------------------------------------------------- */

static mar_status load_layers(loader *l, gpt_model *m)
{
    const gpt_config *c = &m->config;
    const gpt_layer_shape shape = gpt_config_layer(c);
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < c->depth; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "%s.%d", gpt_config_names(c->family)->layers, i);
        status = gpt_layer_load(l->k, l->file, prefix, &shape, i ? m->layers[i - 1].w2 : NULL, &m->layers[i], l->err);
    }
    return status;
}

/* Loads rows of the embedding, a part at a time. */
static mar_status load_embedding(loader *l, gpt_model *m, wt_rows *w, int rows)
{
    enum { PART = 256 };
    const size_t d = (size_t)w->in;
    void *p = NULL;
    float *part = malloc(PART * d * sizeof *part);
    if (!part) return err_set(l->err, MAR_ENOMEM, "%s: out of memory for the embedding", wt_path(l->file));
    mar_status status = l->k->core->alloc(l->k->device, (size_t)rows * d * sizeof *part, &p, l->err);
    m->token_emb = p;
    w->file = l->file;
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

/* Loads embedding and output layer: all rows in the file, or those at id [vocabulary] and of the line end behind. */
static mar_status load_ends(loader *l, gpt_model *m, const int *id)
{
    const gpt_config *c = &m->config;
    const gpt_names *names = gpt_config_names(c->family);
    wt_rows w = {.in = c->width, .count = 1, .id = id};
    w.piece[0].rows = id ? c->rows : c->vocabulary;
    snprintf(w.piece[0].name, sizeof w.piece[0].name, "%s", names->embedding);
    mar_status status = load_embedding(l, m, &w, c->vocabulary + c->line_end);
    if (!c->tied) snprintf(w.piece[0].name, sizeof w.piece[0].name, "%s", names->output);
    const kern_linear_spec spec = {.out = c->vocabulary, .flags = KERN_OUT_F32, .previous = m->layers[c->depth - 1].w2};
    return status == MAR_OK ? create_linear(l, &w, spec, &m->output) : status;
}

/* Does that for a decoder of text/grammar.h. */
static mar_status load_image_tokens(loader *l, gpt_model *m)
{
    const gpt_config *c = &m->config;
    text_grammar g = {0};
    mar_status status = text_grammar_open(l->file, &g, l->err);
    int *id = status == MAR_OK ? malloc(((size_t)c->vocabulary + 1) * sizeof *id) : NULL;
    if (status == MAR_OK && !id) status = err_set(l->err, MAR_ENOMEM, "%s: out of memory", wt_path(l->file));
    if (id) memcpy(id, g.image_id, (size_t)c->vocabulary * sizeof *id), id[c->vocabulary] = g.line_end;
    if (status == MAR_OK) status = load_ends(l, m, id);
    free(id);
    text_grammar_free(&g);
    return status;
}

static mar_status load_all(loader *l, gpt_model *m)
{
    const gpt_config *c = &m->config;
    const int tokens = c->family != GPT_SPHEREAR;
    mar_status status = tokens ? load_condition(l, m) : MAR_OK;
    if (status == MAR_OK) status = load_layers(l, m);
    if (status == MAR_OK) status = load_array(l, gpt_config_names(c->family)->norm, c->width, 0, &m->norm);
    if (status == MAR_OK && tokens) status = c->grammar ? load_image_tokens(l, m) : load_ends(l, m, NULL);
    if (status == MAR_OK) status = make_rope(l, m);
    return status;
}

mar_status gpt_model_load(kern_queue *k, const wt_file *f, const gpt_config *config, gpt_model **out, mar_err *err)
{
    *out = NULL;
    if (!config->grammar && !gpt_config_side(config->seq_len))
        return err_set(err, MAR_EARG, "%s: %d tokens of an image, expected a square number", wt_path(f),
                       config->seq_len);
    gpt_model *m = calloc(1, sizeof *m);
    if (!m) return err_set(err, MAR_ENOMEM, "out of memory");
    m->device = k->device;
    m->config = *config;
    m->norm_eps = config->eps > 0                  ? config->eps
                  : config->family == GPT_SPHEREAR ? 1e-6f
                                                   : 1e-5f; /* layers.py, gpt.py */
    m->layers = calloc((size_t)config->depth, sizeof *m->layers);
    loader l = {k, f, err};
    const mar_status status = m->layers ? load_all(&l, m) : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) {
        *out = m;
    } else {
        k->core->finish(k); /* waits for uploads that have begun */
        gpt_model_free(m);
    }
    return status;
}

void gpt_model_free(gpt_model *m)
{
    if (!m) return;
    kern_device *d = m->device;
    float *arrays[] = {m->class_emb, m->no_caption, m->token_emb, m->norm, m->rope};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) d->core->free(d, arrays[i]);
    kern_linear *linears[] = {m->caption_fc1, m->caption_fc2, m->output};
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) d->core->linear_free(d, linears[i]);
    for (int i = 0; m->layers && i < m->config.depth; i++) gpt_layer_free(d, &m->layers[i]);
    free(m->layers);
    free(m);
}
