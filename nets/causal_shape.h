/* The shape of a causal transformer of Llama's kind, and the names of its tensors. A family fills both in; the net
 * knows no family.
 *
 * A sequence is a prefix, then an image's tokens in raster order. The prefix is a class (rows of a table), a caption
 * (features through two layers) or a prompt (ids of the text embedding, padded on the left, one prompt for each branch
 * of guidance). A token is an id with a row of an embedding, or a vector of token_dim numbers behind a projection. */
#ifndef NETS_CAUSAL_SHAPE_H
#define NETS_CAUSAL_SHAPE_H

#include "weights/weights.h"

/* The norm of each head's query and key before their rotation. */
typedef enum { CAUSAL_NO_NORM, CAUSAL_RMS_NORM, CAUSAL_LAYER_NORM } causal_norm;

/* The shape of its weights: a row for each head (Anole), a vector for all heads (Meta's release), or a matrix of one
 * row for all heads (Lumina-mGPT, whose model_parallel_size is 1). */
typedef enum { CAUSAL_ROWS, CAUSAL_VECTOR, CAUSAL_ONE_ROW } causal_norm_shape;

/* What a head's pairs turn by. */
typedef enum {
    CAUSAL_LINE,         /* the position in the sequence: Llama */
    CAUSAL_GRID,         /* half of them by the row, then half by the column; q and k are 0 at the prefix: LlamaGen */
    CAUSAL_GRID_COLUMNS, /* by the column first, from 1.5 on; nothing turns at the prefix: SphereAR */
} causal_rotation;

/* The tensors of a layer. CAUSAL_WQKV and CAUSAL_W13 have several pieces unless they are joined. */
typedef enum {
    CAUSAL_WQKV,
    CAUSAL_WO,
    CAUSAL_W13,
    CAUSAL_W2,
    CAUSAL_ATTENTION_NORM,
    CAUSAL_FFN_NORM,
    CAUSAL_Q_NORM,
    CAUSAL_K_NORM,
    CAUSAL_LAYER_TENSORS
} causal_part;

enum { CAUSAL_TENSOR_NAME = 96 };

/* The names of the tensors. NULL: the family has none. A bias ends with "bias" where its weight ends with "weight". */
typedef struct {
    const char *layers;                       /* "model.layers", in front of ".3.NAME.weight" */
    const char *joined[CAUSAL_LAYER_TENSORS]; /* of a layer, of a tensor in one piece */
    const char *qkv[3], *w13[2];              /* of a layer, of the pieces */
    const char *norm;                         /* behind the layers */
    const char *embedding, *output;           /* of ids; output is unused if the shape is tied */
    const char *class_table;             /* [classes + 1][prefix * width]; the last row is the unconditional class */
    const char *no_caption, *caption[2]; /* the unconditional caption; the layers that a caption goes through */
    const char *project[2];              /* of vectors: a layer, or two with SiLU between them */
    const char *input_norm;              /* of all embeddings, before the layers */
    const char *next_position;           /* [seq_len][width], added to the hidden row in front of each token */
    const char *condition;               /* of vectors: a layer between that sum and the head */
} causal_names;

typedef struct {
    const causal_names *names;
    int width, depth, hidden;      /* hidden: width of the SwiGLU */
    int heads, kv_heads, head_dim; /* kv_heads: heads of keys and values, each for heads / kv_heads of q */
    int joined_qkv, joined_w13;    /* 1: q, k and v are one tensor; w1 and w3 are */
    int no_first_norm;             /* 1: there is no attention_norm (an EAGLE drafter's layer) */
    unsigned bias;                 /* bits of the products that have a bias, 1u << CAUSAL_WQKV to 1u << CAUSAL_W2 */
    causal_norm qk_norm;
    causal_norm_shape norm_shape;
    int halves; /* 1: the file's rotation pairs a head's number i with i + head_dim / 2, else neighbours */
    causal_rotation rotation;
    float rope_base;
    float eps;          /* of the RMS norms */
    int vocabulary;     /* image tokens, by their numbers in the codebook; 0: tokens are vectors */
    int rows;           /* of the file's embedding, text included */
    int tied;           /* 1: the output layer is the embedding */
    int token_dim;      /* numbers of a token that is a vector */
    int project_hidden; /* width between the two layers of its projection; 0: one layer */
    int next_rows;      /* the file's next_position is [1][next_rows][width]; 0: [seq_len][width] */
    int seq_len;        /* tokens of an image */
    int columns;        /* tokens in a row of the image */
    int line_end;       /* 1: a token that is no image token stands behind each row but the last */
    int prefix;         /* positions before the image tokens, at most */
    int classes;        /* 0 with captions; the table has one row more, the unconditional class */
    int caption_dim;    /* features of a caption's position; 1 with prompts, an id; 0 with classes */
    int prompt;         /* 1: a caption is a prompt */
} causal_shape;

/* Returns the numbers of a row of q. Without heads, q is as large as x. */
static inline int causal_q_width(const causal_shape *s)
{
    return s->heads ? s->heads * s->head_dim : s->width;
}

/* Returns the numbers of a row of k. */
static inline int causal_k_width(const causal_shape *s)
{
    return s->heads ? s->kv_heads * s->head_dim : s->width;
}

/* Returns the numbers of a row of q, k and v. */
static inline int causal_qkv_width(const causal_shape *s)
{
    return causal_q_width(s) + 2 * causal_k_width(s);
}

/* Returns the side of the square of seq_len tokens; 0 if seq_len is not a square. */
int causal_side(int seq_len);

/* Tells whether this many heads divide the width into supported sizes: multiples of 4, up to KERN_CACHE_HEAD_MAX
 * (kernels/ops.h). RoPE rotates half of a head's pairs by the row and half by the column: hence multiples of 4. */
int causal_heads_divide(long heads, int width);

/* Returns the position of token i among the image's tokens and line ends. */
static inline int causal_place(const causal_shape *s, int i)
{
    return s->line_end && i > 0 ? i + i / s->columns : i;
}

/* Tells whether a line end stands behind token i. Nothing is computed behind the last one. */
static inline int causal_ends_line(const causal_shape *s, int i)
{
    return s->line_end && (i + 1) % s->columns == 0 && i + 1 < s->seq_len;
}

/* Returns the number of tokens and line ends. */
static inline int causal_positions(const causal_shape *s)
{
    return causal_place(s, s->seq_len - 1) + 1;
}

/* Returns the tokens of half an image, for measurements: behind the last of them is no line end. */
static inline int causal_half(const causal_shape *s)
{
    const int half = s->seq_len / 2;
    return half > 1 && causal_ends_line(s, half - 1) && s->columns > 1 ? half - 1 : half;
}

/* Writes the name of a layer's tensor, of which `piece` 0.. has a part of the rows, and its number of rows to *rows.
 * Names begin with `prefix`, "layers.3". Returns NULL if there is no such piece. */
const char *causal_layer_name(const char *prefix, const causal_shape *s, causal_part part, int piece,
                              char text[CAUSAL_TENSOR_NAME], int *rows);
/* Writes the name of a bias beside the name of its weight. */
const char *causal_bias_name(const char *weight, char text[CAUSAL_TENSOR_NAME]);

/* Calls `visit` for every tensor, in the order of LlamaGen's files: the prefix's and tokens', the layers', the last
 * ones. */
typedef void causal_tensor_visitor(void *user, const char *name, int rank, const int64_t *shape);
void causal_tensors(const causal_shape *s, causal_tensor_visitor *visit, void *user);
/* Calls `visit` for the tensors of one layer. */
void causal_layer_tensors(const char *prefix, const causal_shape *s, causal_tensor_visitor *visit, void *user);

#endif
