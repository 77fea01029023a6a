#include "llamagen/model.h"
#include "kernels/int4.h"

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

static mar_status to_backend(loader *l, const float *host, size_t n, float **out)
{
    void *p = NULL;
    const mar_status status = l->k->core->alloc(l->k->device, n * sizeof *host, &p, l->err);
    if (status == MAR_OK) l->k->core->upload(l->k, p, host, n * sizeof *host);
    *out = p;
    return status;
}

/* Loads a matrix [rows][columns], or with `columns` 0 a vector [rows]. */
static mar_status load_array(loader *l, const char *name, int rows, int columns, float **out)
{
    const int64_t shape[2] = {rows, columns};
    float *host = NULL;
    mar_status status = wt_load_f32(l->file, name, columns ? 2 : 1, shape, &host, l->err);
    if (status == MAR_OK) status = to_backend(l, host, (size_t)rows * (size_t)(columns ? columns : 1), out);
    free(host);
    return status;
}

/* Returns the place in a head of number i of a pair's order: i itself, or with `halves` that of the number which RoPE
 * rotates beside its neighbour. */
static int place_in_head(int i, int size, int halves)
{
    return halves ? i % 2 * (size / 2) + i / 2 : i;
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
        all[i] = host[(s->norm_shape == GPT_ROWS ? i / size * size : 0) + place_in_head(i % size, size, s->halves)];
    if (status == MAR_OK) status = to_backend(l, all, n, out);
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

/* The rows of a product's weights in the file, in the order of its outputs. */
typedef struct {
    const wt_file *file;
    int in, pieces;
    struct {
        char name[GPT_TENSOR_NAME];
        int rows, head; /* head: size of heads whose rows go from halves to neighbours; 0: they stay */
    } piece[GPT_PIECES];
    const int *id; /* NULL, or the rows to take of the only piece */
} weight_rows;

/* Returns the piece with row r, and sets *row to its row there. */
static int place_of(const weight_rows *w, int r, int *row)
{
    int piece = 0;
    if (w->id) return *row = w->id[r], 0;
    while (r >= w->piece[piece].rows) r -= w->piece[piece++].rows;
    const int head = w->piece[piece].head;
    *row = head ? r / head * head + place_in_head(r % head, head, 1) : r;
    return piece;
}

/* Returns how many rows from r on, at most n, follow one another in the file. */
static int run_of(const weight_rows *w, int r, int n, int *piece, int *first)
{
    int count = 1, row;
    *piece = place_of(w, r, first);
    while (count < n && place_of(w, r + count, &row) == *piece && row == *first + count) count++;
    return count;
}

/* Implements kern_linear_rows.read. */
static mar_status read_rows(void *user, int first, int n, float *to, mar_err *err)
{
    const weight_rows *w = user;
    mar_status status = MAR_OK;
    for (int done = 0, count, piece, row; status == MAR_OK && done < n; done += count) {
        count = run_of(w, first + done, n - done, &piece, &row);
        status = wt_load_matrix_rows(w->file, w->piece[piece].name, w->piece[piece].rows, w->in, row, count,
                                     to + (size_t)done * (size_t)w->in, err);
    }
    return status;
}

/* Implements kern_linear_rows.read_int8. */
static mar_status read_int8_rows(void *user, int first, int n, int8_t *to, float *scale, mar_err *err)
{
    const weight_rows *w = user;
    mar_status status = MAR_OK;
    for (int done = 0, count, piece, row; status == MAR_OK && done < n; done += count) {
        count = run_of(w, first + done, n - done, &piece, &row);
        status = wt_load_int8(w->file, w->piece[piece].name, w->piece[piece].rows, w->in, row, count,
                              to + (size_t)done * (size_t)w->in, scale + done, err);
    }
    return status;
}

/* Implements kern_linear_rows.read_int4. */
static mar_status read_int4_rows(void *user, int first, int n, uint8_t *to, uint16_t *scale, mar_err *err)
{
    const weight_rows *w = user;
    const size_t in = (size_t)w->in;
    mar_status status = MAR_OK;
    for (int done = 0, count, piece, row; status == MAR_OK && done < n; done += count) {
        count = run_of(w, first + done, n - done, &piece, &row);
        status = wt_load_int4(w->file, w->piece[piece].name, w->piece[piece].rows, w->in, row, count,
                              to + (size_t)done * in / 2, scale + (size_t)done * in / KERN_INT4_GROUP, err);
    }
    return status;
}

/* Lists the pieces of a layer's product, one after another. Returns its outputs. */
static int list_pieces(const char *prefix, const gpt_layer_shape *s, gpt_part part, int in, weight_rows *w)
{
    const int size = s->heads ? s->width / s->heads : 0;
    int out = 0, *rows;
    for (w->pieces = 0; w->pieces < GPT_PIECES; w->pieces++) {
        rows = &w->piece[w->pieces].rows;
        if (!gpt_layer_name(prefix, s, part, w->pieces, w->piece[w->pieces].name, rows)) break;
        w->piece[w->pieces].head = part == GPT_WQKV && s->halves && w->pieces < 2 ? size : 0;
        out += *rows;
    }
    w->in = in;
    return out;
}

/* Loads the biases of a product's pieces, in the order of its outputs. */
static mar_status load_bias(loader *l, const weight_rows *w, int out, float **bias)
{
    char name[GPT_TENSOR_NAME];
    float *part[GPT_PIECES] = {NULL};
    mar_status status = MAR_OK;
    *bias = malloc((size_t)out * sizeof **bias);
    if (!*bias) return err_set(l->err, MAR_ENOMEM, "%s: out of memory for a bias", wt_path(l->file));
    for (int i = 0; status == MAR_OK && i < w->pieces; i++) {
        const int64_t rows = w->piece[i].rows;
        status = wt_load_f32(l->file, gpt_bias_name(w->piece[i].name, name), 1, &rows, &part[i], l->err);
    }
    for (int r = 0, row; status == MAR_OK && r < out; r++) {
        const int piece = place_of(w, r, &row);
        (*bias)[r] = part[piece][row];
    }
    for (int i = 0; i < GPT_PIECES; i++) free(part[i]);
    return status;
}

/* Creates a product of these rows that runs after `before`. It has KERN_LOW if gpt_config_is_int8. */
static mar_status create_linear(loader *l, weight_rows *w, int out, kern_linear_spec spec, kern_linear **layer)
{
    int int8 = w->pieces > 0, int4 = int8;
    w->file = l->file;
    for (int i = 0; i < w->pieces; i++) {
        int8 = int8 && wt_is_int8(l->file, w->piece[i].name);
        int4 = int4 && wt_is_int4(l->file, w->piece[i].name);
    }
    const kern_linear_rows rows = {.read = read_rows,
                                   .read_int8 = int8 ? read_int8_rows : NULL,
                                   .read_int4 = int4 ? read_int4_rows : NULL,
                                   .user = w};
    spec.out = out;
    spec.in = w->in;
    spec.rows = &rows;
    if (gpt_config_is_int8(w->piece[0].name)) spec.flags |= KERN_LOW;
    return l->k->core->linear_create(l->k, &spec, layer, l->err);
}

/* Loads a product of a layer. */
static mar_status load_product(loader *l, const char *prefix, const gpt_layer_shape *s, gpt_part part, int in,
                               int flags, kern_linear *before, kern_linear **layer)
{
    weight_rows w = {.in = in};
    float *bias = NULL;
    const int out = list_pieces(prefix, s, part, in, &w);
    mar_status status = s->bias >> part & 1 ? load_bias(l, &w, out, &bias) : MAR_OK;
    const kern_linear_spec spec = {.bias = bias, .flags = flags, .previous = before};
    if (status == MAR_OK) status = create_linear(l, &w, out, spec, layer);
    free(bias);
    return status;
}

/* Loads a matrix [out][in] as a product. */
static mar_status load_linear(loader *l, const char *name, int out, int in, kern_activation activation, int flags,
                              kern_linear **layer)
{
    weight_rows w = {.in = in, .pieces = 1};
    snprintf(w.piece[0].name, sizeof w.piece[0].name, "%s", name);
    w.piece[0].rows = out;
    return create_linear(l, &w, out, (kern_linear_spec){.activation = activation, .flags = flags}, layer);
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
    const mar_status status = to_backend(l, rope, n, &m->rope);
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
static mar_status load_embedding(loader *l, gpt_model *m, weight_rows *w, int rows)
{
    enum { PART = 256 };
    const size_t d = (size_t)w->in;
    void *p = NULL;
    float *part = malloc(PART * d * sizeof *part);
    if (!part) return err_set(l->err, MAR_ENOMEM, "%s: out of memory for the embedding", wt_path(l->file));
    mar_status status = l->k->core->alloc(l->k->device, (size_t)rows * d * sizeof *part, &p, l->err);
    m->token_emb = p;
    w->file = l->file;
    for (int first = 0, n; status == MAR_OK && first < rows; first += n) {
        n = rows - first < PART ? rows - first : PART;
        status = read_rows(w, first, n, part, l->err);
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
    weight_rows w = {.in = c->width, .pieces = 1, .id = id};
    w.piece[0].rows = id ? c->rows : c->vocabulary;
    snprintf(w.piece[0].name, sizeof w.piece[0].name, "%s", names->embedding);
    mar_status status = load_embedding(l, m, &w, c->vocabulary + c->line_end);
    if (!c->tied) snprintf(w.piece[0].name, sizeof w.piece[0].name, "%s", names->output);
    const kern_linear_spec spec = {.flags = KERN_OUT_F32, .previous = m->layers[c->depth - 1].w2};
    return status == MAR_OK ? create_linear(l, &w, c->vocabulary, spec, &m->output) : status;
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
