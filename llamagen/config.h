/* The shape of a decoder of Llama's kind, and its tensors' names: LlamaGen (Sun et al. 2024,
 * autoregressive/models/gpt.py), SphereAR's transformer, and decoders that write images among text, of text/grammar.h:
 * Lumina-mGPT, Anole, Emu3. */
#ifndef LLAMAGEN_CONFIG_H
#define LLAMAGEN_CONFIG_H

#include "text/grammar.h"
#include "weights/weights.h"

/* What differs among these transformers by the release they come from: the names of their tensors, and what no file
 * tells: epsilon, rotary positions, which pieces are joined (gpt_config_layer). */
typedef enum {
    GPT_LLAMAGEN,
    GPT_SPHEREAR, /* layers alone: no embedding of tokens, no output layer */
    GPT_LLAMA,    /* names of transformers' Llama: Chameleon and Emu3 in folders of Hugging Face, LANTERN's drafters */
    GPT_META,     /* names of Chameleon's release (consolidated.pth) */
} gpt_family;

/* The norm of each head's query and key before their rotation. */
typedef enum { GPT_NO_NORM, GPT_RMS_NORM, GPT_LAYER_NORM } gpt_norm;

/* The shape of its weights: a row for each head (Anole), a vector for all heads (Meta's release), or a matrix of one
 * row for all heads (Lumina-mGPT, whose model_parallel_size is 1). */
typedef enum { GPT_ROWS, GPT_VECTOR, GPT_ONE_ROW } gpt_norm_shape;

/* The shape of a layer. */
typedef struct {
    gpt_family family;
    int width, hidden;
    int heads, kv_heads; /* kv_heads: heads of keys and values */
    int joined_qkv;      /* 1: q, k and v are one tensor */
    int joined_w13;      /* 1: w1 and w3 are one tensor */
    int first_norm;      /* 1: there is an attention_norm; an EAGLE drafter's layer may have none */
    unsigned bias;       /* bits of the products that have a bias, 1u << GPT_WQKV to 1u << GPT_W2 */
    gpt_norm qk_norm;
    gpt_norm_shape norm_shape;
    int halves; /* 1: RoPE rotates a head's number i with i + head_dim / 2, else neighbours */
} gpt_layer_shape;

typedef struct {
    gpt_family family;
    int width;       /* dim */
    int depth;       /* n_layer */
    int heads;       /* n_head */
    int hidden;      /* width of the SwiGLU */
    int vocabulary;  /* image tokens, by their numbers in the codebook */
    int seq_len;     /* tokens of an image */
    int classes;     /* class-conditional: class_emb has one row more, the unconditional class. 0 with captions */
    int prefix;      /* positions before the image tokens: 1 for a class, 120 for a caption, for a prompt at most */
    int caption_dim; /* text-to-image: width of a caption's features; else 0 */
    long parameters;
    int heads_guessed;   /* 1: the number of heads is a guess, since no source tells it and the width is not official */
    int seq_len_guessed; /* 1: seq_len is a guess, since no source tells it */
    long image_size;     /* options of train_c2i.py in the file; 0: absent, or not looked at, as mar.seq_len is there */
    long downsample_size;
    int kv_heads; /* heads of keys and values; 0: as many as heads */
    int columns;  /* tokens in a row of the image; 0: the image is a square */
    /* Decoders of text/grammar.h; 0 in others. A caption's features are embeddings: no layer is in front of them. */
    const text_family *grammar;
    int line_end;               /* 1: a token that is no image token stands behind each row but the last */
    int rows;                   /* of the file's embedding, text included */
    int tied;                   /* 1: the output layer is the embedding */
    float eps;                  /* of the RMS norms; 0: the form's */
    float rope_base;            /* 0: 10000 */
    int joined_qkv, joined_w13; /* as in gpt_layer_shape, of family GPT_META and GPT_LLAMA */
    unsigned bias;              /* likewise */
    gpt_norm qk_norm;
    gpt_norm_shape norm_shape;
} gpt_config;

enum { GPT_GUESS_TEXT = 224 };
/* Writes why seq_len is a guess, and the numbers of train_c2i.py's sizes, to text and returns it. */
const char *gpt_config_guess_text(const gpt_config *c, char text[GPT_GUESS_TEXT]);

/* Derives the shape from the tensors. `heads` 0 takes the heads from the metadata (mar.heads), else from the official
 * widths, else guesses them. seq_len is in no tensor: it comes from the metadata (mar.seq_len), else from the
 * options of train_c2i.py beside the weights (args.image_size, args.downsample_size), else it is a guess: with its
 * default for a missing option, or 256.
 * Positions are computed, so the caller may set it to another square (384-pixel models have 576). Returns MAR_EMODEL,
 * naming the tensor, if the file is not a LlamaGen model; other wrong tensors are found when they are loaded. Returns
 * MAR_EARG if `heads` does not fit the width (gpt_heads_divide). */
mar_status gpt_config_derive(const wt_file *f, int heads, gpt_config *config, mar_err *err);
/* Derives the shape of a decoder of text/grammar.h, for images of width x height pixels; 0 x 0: its family's. Numbers
 * that no tensor shows come from config.json, else from the metadata. Errors are those of gpt_config_derive,
 * text_grammar_open and text_grammar_size. */
mar_status gpt_config_derive_decoder(const wt_file *f, int width, int height, gpt_config *config, mar_err *err);
/* Sets heads and heads_guessed of a config with a width, as gpt_config_derive does. */
mar_status gpt_config_derive_heads(const wt_file *f, int heads, gpt_config *c, mar_err *err);
/* Tells whether this many heads divide the width into supported sizes: multiples of 4, up to KERN_CACHE_HEAD_MAX
 * (kernels/ops.h). RoPE rotates half of a head's pairs by the row and half by the column: hence multiples of 4. */
int gpt_heads_divide(long heads, int width);
/* Calls `visit` for every tensor of the model, in the official order. */
typedef void gpt_tensor_visitor(void *user, const char *name, int rank, const int64_t *shape);
void gpt_config_tensors(const gpt_config *c, gpt_tensor_visitor *visit, void *user);

/* The tensors of a layer. GPT_WQKV and GPT_W13 have several pieces unless they are joined. */
typedef enum {
    GPT_WQKV,
    GPT_WO,
    GPT_W13,
    GPT_W2,
    GPT_ATTENTION_NORM,
    GPT_FFN_NORM,
    GPT_Q_NORM,
    GPT_K_NORM,
    GPT_LAYER_TENSORS
} gpt_part;
enum { GPT_TENSOR_NAME = 96 };
/* Returns the shape of the model's layers. */
gpt_layer_shape gpt_config_layer(const gpt_config *c);
/* Writes the name of a layer's tensor, of which `piece` 0.. has a part of the rows, and its number of rows to *rows.
 * Names begin with `prefix`, "layers.3". Returns NULL if there is no such piece. */
const char *gpt_layer_name(const char *prefix, const gpt_layer_shape *l, gpt_part part, int piece,
                           char text[GPT_TENSOR_NAME], int *rows);
/* Calls `visit` for the tensors of one layer. */
void gpt_layer_tensors(const char *prefix, const gpt_layer_shape *l, gpt_tensor_visitor *visit, void *user);
/* Writes the name of a bias beside the name of its weight. */
const char *gpt_bias_name(const char *weight, char text[GPT_TENSOR_NAME]);

/* Names of the tensors beside the layers. */
typedef struct {
    const char *embedding, *layers, *norm, *output;
} gpt_names;
const gpt_names *gpt_config_names(gpt_family family);

/* Tells whether the file looks like LlamaGen: it has layers.0.attention.wqkv.weight or tok_embeddings.weight. */
int gpt_config_recognise(const wt_file *f);
/* Tells whether the file looks like a decoder of text/grammar.h: layers and an embedding by its names. */
int gpt_config_recognise_decoder(const wt_file *f);
/* Tells whether an extra tensor is harmless: one that can be computed (freqs_cis, causal_mask), or a key-value
 * cache. */
int gpt_config_ignores(const char *name);
/* Tells the same of a decoder's file: also an image encoder beside it (Anole's model.vqmodel). */
int gpt_config_ignores_decoder(const char *name);
/* Tells whether the tensor is a layer's matrix that dtype int8 multiplies in int8 and an int8 file stores as I8
 * (weights/weights.h). An EAGLE drafter's layer counts. */
int gpt_config_is_int8(const char *tensor);
/* Returns the side of the square of seq_len tokens; 0 if seq_len is not a square. */
int gpt_config_side(int seq_len);

enum { GPT_USUAL_PROMPT = 32 }; /* positions of a prompt in measurements */

/* Returns the heads of keys and values. */
static inline int gpt_kv_heads(const gpt_config *c)
{
    return c->kv_heads ? c->kv_heads : c->heads;
}

/* Returns the tokens in a row of the image. */
static inline int gpt_columns(const gpt_config *c)
{
    return c->columns ? c->columns : gpt_config_side(c->seq_len);
}

/* Returns the position of token i among the image's tokens and line ends. */
static inline int gpt_place(const gpt_config *c, int i)
{
    return c->line_end && i > 0 ? i + i / c->columns : i;
}

/* Tells whether a line end stands behind token i. Nothing is computed behind the last one. */
static inline int gpt_ends_line(const gpt_config *c, int i)
{
    return c->line_end && (i + 1) % c->columns == 0 && i + 1 < c->seq_len;
}

/* Returns the tokens of half an image, for measurements: behind the last of them is no line end. */
static inline int gpt_half(const gpt_config *c)
{
    const int half = c->seq_len / 2;
    return half > 1 && gpt_ends_line(c, half - 1) && c->columns > 1 ? half - 1 : half;
}

/* Returns the number of tokens and line ends. */
static inline int gpt_positions(const gpt_config *c)
{
    return gpt_place(c, c->seq_len - 1) + 1;
}

#endif
