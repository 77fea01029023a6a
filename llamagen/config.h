/* The shape of a decoder of Llama's kind, and its tensors' names: LlamaGen (Sun et al. 2024,
 * autoregressive/models/gpt.py), SphereAR's transformer, and decoders that write images among text, of text/grammar.h:
 * Lumina-mGPT, Anole, Emu3. */
#ifndef LLAMAGEN_CONFIG_H
#define LLAMAGEN_CONFIG_H

#include "nets/causal_shape.h"
#include "text/grammar.h"

/* The release that a model comes from, which gives its tensors their names. */
typedef enum {
    GPT_LLAMAGEN,
    GPT_SPHEREAR, /* layers alone: no embedding of tokens, no output layer */
    GPT_LLAMA,    /* names of transformers' Llama: Chameleon and Emu3 in folders of Hugging Face, LANTERN's drafters */
    GPT_META,     /* names of Chameleon's release (consolidated.pth) */
} gpt_family;

typedef struct {
    causal_shape shape;
    gpt_family family;
    long parameters;
    int heads_guessed;   /* 1: the number of heads is a guess, since no source tells it and the width is not official */
    int seq_len_guessed; /* 1: seq_len is a guess, since no source tells it */
    long image_size;     /* options of train_c2i.py in the file; 0: absent, or not looked at, as mar.seq_len is there */
    long downsample_size;
    const text_family *grammar; /* of a decoder of text/grammar.h; NULL in others */
} gpt_config;

enum { GPT_GUESS_TEXT = 224 };
/* Writes why seq_len is a guess, and the numbers of train_c2i.py's sizes, to text and returns it. */
const char *gpt_config_guess_text(const gpt_config *c, char text[GPT_GUESS_TEXT]);

/* Derives the shape from the tensors. `heads` 0 takes the heads from the metadata (mar.heads), else from the official
 * widths, else guesses them. seq_len is in no tensor: it comes from the metadata (mar.seq_len), else from the
 * options of train_c2i.py beside the weights (args.image_size, args.downsample_size), else it is a guess: with its
 * default for a missing option, or 256.
 * Positions are computed, so the caller may set it to another square with gpt_config_set_seq_len (384-pixel models
 * have 576). Returns MAR_EMODEL,
 * naming the tensor, if the file is not a LlamaGen model; other wrong tensors are found when they are loaded. Returns
 * MAR_EARG if `heads` does not fit the width (causal_heads_divide). */
mar_status gpt_config_derive(const wt_file *f, int heads, gpt_config *config, mar_err *err);
/* Derives the shape of a decoder of text/grammar.h, for images of width x height pixels; 0 x 0: its family's. Numbers
 * that no tensor shows come from config.json, else from the metadata. Errors are those of gpt_config_derive,
 * text_grammar_open and text_grammar_size. */
mar_status gpt_config_derive_decoder(const wt_file *f, int width, int height, gpt_config *config, mar_err *err);
/* Sets *out to the rows of embedding and output layer that are image tokens, as causal_model_load takes them; NULL:
 * all, of LlamaGen. The caller frees it. Errors are those of text_grammar_open, and MAR_ENOMEM. */
mar_status gpt_config_image_ids(const wt_file *f, const gpt_config *c, int **out, mar_err *err);
/* Sets heads and heads_guessed of a config with a width, as gpt_config_derive does. */
mar_status gpt_config_derive_heads(const wt_file *f, int heads, gpt_config *c, mar_err *err);
/* Sets the tokens of an image, of which the columns are the square's side. */
void gpt_config_set_seq_len(gpt_config *c, int seq_len);
/* Returns the names of a family's tensors. */
const causal_names *gpt_names_of(gpt_family family);

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
#endif
