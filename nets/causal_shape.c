#include "nets/causal_shape.h"

#include "kernels/causal.h"

#include <stdio.h>
#include <string.h>

int causal_side(int seq_len)
{
    int side = 1;
    while (side * side < seq_len) side++;
    return side * side == seq_len ? side : 0;
}

int causal_heads_divide(long heads, int width)
{
    const long size = heads < 1 || heads > width ? 0 : width / heads;
    return size > 0 && size <= KERN_CACHE_HEAD_MAX && size * heads == width && size % 4 == 0;
}

/* Returns the rows of a piece of a layer's tensor; of the joined one with `piece` -1. */
static int part_rows(const causal_shape *s, causal_part part, int piece)
{
    switch (part) {
    case CAUSAL_WQKV:
        return piece < 0 ? causal_qkv_width(s) : piece == 0 ? causal_q_width(s) : causal_k_width(s);
    case CAUSAL_W13:
        return piece < 0 ? 2 * s->hidden : s->hidden;
    case CAUSAL_Q_NORM:
        return s->norm_shape == CAUSAL_ONE_ROW ? 1 : s->heads;
    case CAUSAL_K_NORM:
        return s->norm_shape == CAUSAL_ONE_ROW ? 1 : s->kv_heads;
    default:
        return s->width;
    }
}

/* Returns the columns of a layer's tensor; 0 of a vector. */
static int part_columns(const causal_shape *s, causal_part part)
{
    switch (part) {
    case CAUSAL_ATTENTION_NORM:
    case CAUSAL_FFN_NORM:
        return 0;
    case CAUSAL_Q_NORM:
    case CAUSAL_K_NORM:
        return s->head_dim;
    case CAUSAL_WO:
        return causal_q_width(s);
    default:
        return part == CAUSAL_W2 ? s->hidden : s->width;
    }
}

const char *causal_layer_name(const char *prefix, const causal_shape *s, causal_part part, int piece,
                              char text[CAUSAL_TENSOR_NAME], int *rows)
{
    const causal_names *names = s->names;
    const int apart = (part == CAUSAL_WQKV && !s->joined_qkv) || (part == CAUSAL_W13 && !s->joined_w13);
    const int most = !apart ? 1 : part == CAUSAL_WQKV ? 3 : 2;
    if (piece >= most || (part == CAUSAL_ATTENTION_NORM && s->no_first_norm)) return NULL;
    if ((part == CAUSAL_Q_NORM || part == CAUSAL_K_NORM) && s->qk_norm == CAUSAL_NO_NORM) return NULL;
    const char *name = !apart ? names->joined[part] : part == CAUSAL_WQKV ? names->qkv[piece] : names->w13[piece];
    *rows = part_rows(s, part, apart ? piece : -1);
    snprintf(text, CAUSAL_TENSOR_NAME, "%s.%s.weight", prefix, name);
    return text;
}

const char *causal_bias_name(const char *weight, char text[CAUSAL_TENSOR_NAME])
{
    snprintf(text, CAUSAL_TENSOR_NAME, "%.*sbias", (int)(strlen(weight) - strlen("weight")), weight);
    return text;
}

/* --- all tensors -------------------------------------------------------------------------------------------------- */

typedef struct {
    causal_tensor_visitor *visit;
    void *user;
} visitor;

/* Visits a matrix [out][in], or with `in` 0 a vector [out]. */
static void shape_visit(const visitor *v, const char *name, int64_t out, int64_t in)
{
    const int64_t shape[2] = {out, in};
    v->visit(v->user, name, in ? 2 : 1, shape);
}

void causal_layer_tensors(const char *prefix, const causal_shape *s, causal_tensor_visitor *visit, void *user)
{
    const visitor v = {visit, user};
    for (int part = 0; part < CAUSAL_LAYER_TENSORS; part++) {
        char name[CAUSAL_TENSOR_NAME], bias[CAUSAL_TENSOR_NAME];
        const int columns = part_columns(s, (causal_part)part), is_qk = part == CAUSAL_Q_NORM || part == CAUSAL_K_NORM;
        int rows;
        for (int piece = 0; causal_layer_name(prefix, s, (causal_part)part, piece, name, &rows); piece++) {
            const int vector = is_qk && s->norm_shape == CAUSAL_VECTOR;
            shape_visit(&v, name, vector ? columns : rows, vector ? 0 : columns);
            if (is_qk && s->qk_norm == CAUSAL_LAYER_NORM)
                shape_visit(&v, causal_bias_name(name, bias), vector ? columns : rows, vector ? 0 : columns);
            if (part <= CAUSAL_W2 && s->bias >> part & 1) shape_visit(&v, causal_bias_name(name, bias), rows, 0);
        }
    }
}

static void visit_prefix(const causal_shape *s, const visitor *v)
{
    const causal_names *names = s->names;
    if (s->prompt) return;
    if (!s->caption_dim) {
        shape_visit(v, names->class_table, (int64_t)s->classes + 1, (int64_t)s->prefix * s->width);
        return;
    }
    shape_visit(v, names->no_caption, s->prefix, s->caption_dim);
    shape_visit(v, names->caption[0], s->width, s->caption_dim);
    shape_visit(v, names->caption[1], s->width, s->width);
}

/* Visits a layer's weight and bias. */
static void visit_layer(const visitor *v, const char *weight, int out, int in)
{
    char bias[CAUSAL_TENSOR_NAME];
    shape_visit(v, weight, out, in);
    shape_visit(v, causal_bias_name(weight, bias), out, 0);
}

static void visit_projection(const causal_shape *s, const visitor *v)
{
    const int layers = s->project_hidden ? 2 : 1;
    for (int i = 0; i < layers; i++) {
        const int out = i + 1 < layers ? s->project_hidden : s->width, in = i ? s->project_hidden : s->token_dim;
        visit_layer(v, s->names->project[i], out, in);
    }
}

void causal_tensors(const causal_shape *s, causal_tensor_visitor *visit, void *user)
{
    const visitor v = {visit, user};
    const causal_names *names = s->names;
    visit_prefix(s, &v);
    if (s->token_dim) visit_projection(s, &v);
    if (names->input_norm) shape_visit(&v, names->input_norm, s->width, 0);
    if (s->rows) shape_visit(&v, names->embedding, s->rows, s->width);
    for (int i = 0; i < s->depth; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "%s.%d", names->layers, i);
        causal_layer_tensors(prefix, s, visit, user);
    }
    shape_visit(&v, names->norm, s->width, 0);
    if (s->vocabulary && !s->tied) shape_visit(&v, names->output, s->rows, s->width);
    if (names->next_position && s->next_rows)
        v.visit(v.user, names->next_position, 3, (const int64_t[]){1, s->next_rows, s->width});
    else if (names->next_position)
        shape_visit(&v, names->next_position, s->seq_len, s->width);
    if (names->condition) visit_layer(&v, names->condition, s->width, s->width);
}
