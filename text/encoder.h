/* A transformer encoder with norms in front of its parts: T5's encoder and both towers of CLIP. A layer is
 *
 *   x += out(attention(query(norm1(x)), key(norm1(x)), value(norm1(x))))
 *   x += fc2(activation(fc1(norm2(x))))             or, gated, fc2(activation(fc1(norm2(x))) * up(norm2(x)))
 *
 * It runs over sequences of different lengths that lie one after another: no row is padding. */
#ifndef TEXT_ENCODER_H
#define TEXT_ENCODER_H

#include "kernels/ops.h"
#include "weights/weights.h"

/* RMS: x / sqrt(mean of x^2 + eps) * weight. LAYER: layer norm with weight and bias. */
typedef enum { TEXT_NORM_RMS, TEXT_NORM_LAYER } text_norm_kind;

typedef struct {
    int width, depth;
    int heads, head_dim; /* heads * head_dim may differ from width */
    int hidden;          /* of the MLP */
    text_norm_kind norm;
    float eps;                  /* of the norms */
    kern_activation activation; /* of the MLP; gated: KERN_SILU or KERN_GELU_TANH */
    int quick_gelu;             /* 1: the activation is CLIP's QuickGELU, x * sigmoid(1.702 x); not gated */
    int gated;                  /* 1: fc1's activation is multiplied by `up` */
    int bias;                   /* 1: all matrices have biases */
    int unscaled;               /* 1: scores are not divided by sqrt(head_dim), as in T5 */
    int causal;                 /* 1: a token attends to itself and those before it */
    int int8;                   /* 1: products are int8 or int4 where the device has it */
} text_encoder_config;

/* Names of a layer's tensors: `layers`, the layer's number, the name, ".weight" or ".bias". A name that ends with "_"
 * gets no point: PyTorch's ".attn.in_proj_weight". */
typedef struct {
    const char *layers;                    /* "encoder.block." */
    const char *norm1;                     /* ".layer.0.layer_norm" */
    const char *query, *key, *value, *out; /* query, key and value may be one matrix `qkv` instead, if scaled */
    const char *norm2;
    const char *fc1, *fc2;
    const char *up;  /* NULL unless gated */
    const char *qkv; /* [3 * heads * head_dim][width]; NULL: three matrices */
} text_encoder_names;

/* A norm's weights in backend memory. */
typedef struct {
    text_norm_kind kind;
    int width;
    float eps;
    float *weight, *bias; /* [width]; bias NULL: RMS */
} text_norm;

/* Loads NAME.weight and, for a layer norm, NAME.bias of the configuration's kind. The caller frees it, also after an
 * error, but then calls finish before: uploads may be under way. */
mar_status text_norm_load(kern_queue *k, const wt_file *f, const text_encoder_config *c, const char *name,
                          text_norm *out, mar_err *err);
void text_norm_free(kern_device *d, text_norm *n);
/* y[r] = norm(x[index ? index[r] : r]); x float [..][width], index host; y act [rows][width], or float if y_f32. */
void text_norm_run(kern_queue *k, const text_norm *n, const float *x, const int *index, int rows, void *y, int y_f32);

typedef struct text_encoder text_encoder;

/* Loads the layers. bias host float [heads][2 * reach + 1], or NULL, is added to the scores of all layers as in
 * attention_spans (kernels/ops.h), and copied. A causal encoder has its own and takes NULL. Reads a matrix at a time.
 * After an error it finishes the queue, as memory may be freed only after the uploads to it.
 *
 * Factors are folded into the weights. `unscaled` multiplies query by sqrt(head_dim), which the attention divides by:
 * exactly for 64, where it is 8. QuickGELU is silu(1.702 x) / 1.702: fc1 is multiplied by 1.702, fc2 divided. */
mar_status text_encoder_create(kern_queue *k, const wt_file *f, const text_encoder_config *c,
                               const text_encoder_names *names, const float *bias, int reach, text_encoder **out,
                               mar_err *err);
/* Frees an encoder that no queue works on; NULL is fine. */
void text_encoder_free(kern_device *d, text_encoder *e);

/* Calls visit for each tensor of the layers. */
void text_encoder_tensors(const text_encoder_config *c, const text_encoder_names *names,
                          void (*visit)(void *user, const char *name, int rank, const int64_t *shape), void *user);

/* Sequences of a call: sequence s has rows first[s] .. first[s] + length[s] - 1, and no other has them. */
typedef struct {
    int count, rows;
    const int *first, *length; /* host [count] */
} text_spans;

/* Returns the bytes of working memory for this number of rows. */
size_t text_encoder_bytes(const kern_device *d, const text_encoder *e, int rows);
/* Prepares for calls on this queue with up to `rows` rows, in sequences of up to `longest`. */
mar_status text_encoder_plan(kern_queue *k, const text_encoder *e, int rows, int longest, mar_err *err);
/* Runs the layers on x float [spans.rows][width], in place: embeddings in, the last layer's residual stream out. work
 * has text_encoder_bytes(..., spans->rows). `name` begins the names of layers in the search for a number that is not
 * finite (kern_watch). */
void text_encoder_run(kern_queue *k, const text_encoder *e, const text_spans *spans, float *x, void *work,
                      const char *name);

#endif
