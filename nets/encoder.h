/* A transformer encoder: rows in, rows out. T5's encoder, the image and text towers of CLIP, and ImageReward's ViT and
 * BERT are configurations of it. With norms in front of the parts a layer is
 *
 *   x += out(attention(query(norm(x)), key(norm(x)), value(norm(x))))
 *   x += fc2(activation(fc1(norm(x))))             or, gated, fc2(activation(fc1(norm(x))) * up(norm(x)))
 *
 * With norms behind them, as in BERT, a part is x = norm(x + part(x)). A second attention may follow the first, whose
 * keys and values are made of the rows of another network. Sequences of different lengths lie one after another: no row
 * is padding. */
#ifndef NETS_ENCODER_H
#define NETS_ENCODER_H

#include "kernels/ops.h"
#include "weights/weights.h"

/* RMS: x / sqrt(mean of x^2 + eps) * weight. LAYER: layer norm with weight and bias. */
typedef enum { NETS_NORM_RMS, NETS_NORM_LAYER } nets_norm_kind;

typedef struct {
    int width, depth;
    int heads, head_dim; /* heads * head_dim may differ from width */
    int hidden;          /* of the MLP */
    nets_norm_kind norm;
    float eps;                  /* of the norms */
    int post_norm;              /* 1: norms stand behind the parts */
    kern_activation activation; /* of the MLP; gated: KERN_SILU or KERN_GELU_TANH */
    int quick_gelu;             /* 1: the activation is CLIP's QuickGELU, x * sigmoid(1.702 x); not gated */
    int gated;                  /* 1: fc1's activation is multiplied by `up` */
    int bias;                   /* 1: all matrices have biases */
    int unscaled;               /* 1: scores are not divided by sqrt(head_dim), as in T5 */
    int causal;                 /* 1: a token attends to itself and those before it */
    int cross;                  /* width of the other network's rows; 0: there is no second attention */
    int int8;                   /* 1: products are int8 or int4 where the device has it */
} nets_encoder_config;

/* Names of an attention's tensors in a layer. query, key and value may be one matrix `qkv`, if scaled. */
typedef struct {
    const char *norm; /* ".layer.0.layer_norm" */
    const char *query, *key, *value, *out;
    const char *qkv; /* [3 * heads * head_dim][width]; NULL: three matrices */
} nets_attention_names;

/* Names of tensors, without ".weight" and ".bias". Those of a layer follow `layers` and its number. After a name that
 * ends with "_" there is no point: PyTorch's ".attn.in_proj_weight". */
typedef struct {
    const char *before; /* norm of the embeddings; NULL: none */
    const char *layers; /* "encoder.block." */
    nets_attention_names self, cross;
    const char *norm; /* of the MLP */
    const char *fc1, *fc2;
    const char *up;    /* NULL unless gated */
    const char *after; /* norm of the last layer's rows; NULL: none */
} nets_encoder_names;

typedef struct nets_encoder nets_encoder;

/* Loads an encoder. bias host float [heads][2 * reach + 1], or NULL, is added to the scores of all layers as in
 * attention_spans (kernels/ops.h), and copied. A causal encoder has its own and takes NULL. Reads a matrix at a time.
 * After an error it finishes the queue, as memory may be freed only after the uploads to it.
 *
 * Factors are folded into the weights. `unscaled` multiplies query by sqrt(head_dim), which the attention divides by:
 * exactly for 64, where it is 8. QuickGELU is silu(1.702 x) / 1.702: fc1 is multiplied by 1.702, fc2 divided. */
mar_status nets_encoder_create(kern_queue *k, const wt_file *f, const nets_encoder_config *c,
                               const nets_encoder_names *names, const float *bias, int reach, nets_encoder **out,
                               mar_err *err);
/* Frees an encoder that no queue works on; NULL is fine. */
void nets_encoder_free(kern_device *d, nets_encoder *e);

/* Calls visit for each tensor of the layers, for an encoder without a second attention. */
void nets_encoder_tensors(const nets_encoder_config *c, const nets_encoder_names *names,
                          void (*visit)(void *user, const char *name, int rank, const int64_t *shape), void *user);

/* Most rows of a call, and of its longest sequence; the same of the other network's. */
typedef struct {
    int rows, longest;
    int cross_rows, cross_longest;
} nets_encoder_room;

/* Sequences of a call: sequence s has rows first[s] .. first[s] + length[s] - 1, and no other has them. */
typedef struct {
    int count, rows;
    const int *first, *length; /* host [count] */
} nets_spans;

/* The other network's rows: those of sequence s belong to sequence s of the call. */
typedef struct {
    const nets_spans *spans;
    const act *rows; /* backend [spans->rows][cross] */
} nets_cross;

/* Makes room for calls on this queue, which owns the encoder's working memory from then on. Room only grows. */
mar_status nets_encoder_reserve(kern_queue *k, nets_encoder *e, nets_encoder_room room, mar_err *err);
/* Returns where a call's embeddings go: backend float [room.rows][width]. */
float *nets_encoder_input(const nets_encoder *e);
/* Runs the encoder on the spans' embeddings, up to the norm `after`. Returns the rows, backend float
 * [spans->rows][width], which stay until the input of the next call is written. cross: NULL unless there is a second
 * attention. `name` begins the names of layers in the search for a number that is not finite (kern_watch). */
const float *nets_encoder_run(kern_queue *k, const nets_encoder *e, const nets_spans *spans, const nets_cross *cross,
                              const char *name);
/* y[r] = after(x[index ? index[r] : r]); x float [..][width], index host; y act [rows][width], or float if y_f32. */
void nets_encoder_norm(kern_queue *k, const nets_encoder *e, const float *x, const int *index, int rows, void *y,
                       int y_f32);

#endif
