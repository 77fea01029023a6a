/* Families whose backbone is a language model: a prompt becomes ids of its own vocabulary, by a template, and images
 * may have several sizes. A family is a row of data (families/chameleon.c, emu3.c); what a model's own files say takes
 * precedence. */
#ifndef FAMILIES_LANGUAGE_H
#define FAMILIES_LANGUAGE_H

#include "nets/causal_shape.h"
#include "text/template.h"
#include "text/vocabulary.h"
#include "weights/kind.h"

struct language;

/* In a template {prompt} is the prompt; {W} and {H} are the image's size in pixels, {columns} and {rows} in tokens;
 * {size_w} and {size_h} are size tokens; and {<name>} is the token of this name. */
typedef struct language_family {
    const char *name;            /* "lumina-mgpt", as in mar_model_config.family */
    const char *title;           /* "Lumina-mGPT", for messages */
    const char *prompt;          /* template of what comes before the first image token */
    const char *negative;        /* the same in the second context of guidance */
    const char *negative_prompt; /* default of {prompt} in `negative`; NULL: it has none */
    const char *line_end;        /* name of the token behind each row of image tokens; NULL: none */
    int stride;                  /* pixels of a token's side */
    int unit;                    /* sides are multiples of so many pixels */
    int ratio;                   /* of the sides at most; 0: any */
    int trained[4];    /* sides of the images that its releases are trained on, as squares; 0 ends; none: any */
    int width, height; /* default size in pixels */
    int fixed_size;    /* 1: no other size */
    int size_token;    /* n units have the size token <reserved05d> of this number plus n; 0: none */
    int context;       /* positions of a sequence if the model's files do not say */
    /* Tells whether a configuration with this architecture or model type, NULL: none, is of the family. A family
     * without it is named by the metadata alone. */
    int (*recognise)(const wt_file *f, const char *name);
    /* Finds the ids of the image tokens and of the line end in a file whose metadata do not say them. NULL: the model's
     * image tokens are vectors, and a language model alone is none of the family's models. */
    mar_status (*find_ids)(const wt_file *f, const struct language_family *family, text_vocabulary *v, mar_err *err);
    int behind; /* positions behind an image's tokens */
    /* Reads what else the configuration and the metadata say of sizes; NULL: nothing. */
    mar_status (*read)(const wt_file *f, struct language *l, mar_err *err);
} language_family;

/* The families. */
extern const language_family language_lumina_mgpt, language_anole, language_demo, language_emu3, language_harmon,
    language_nextstep;

/* What a model's files say of its prompts and images. */
typedef struct language {
    const language_family *family;
    text_vocabulary vocabulary;
    int context;         /* positions of a sequence at most */
    int width, height;   /* default size in pixels */
    int stride, unit;    /* the family's, or what the files say instead */
    const char *picture; /* text that may stand for a picture to the model: no prompt may have it; NULL: none */
} language;

enum {
    LANGUAGE_PROMPT_MIN = 16, /* positions that an image must leave for the prompt */
    LANGUAGE_PROMPT_MAX = 512 /* positions for a prompt at most */
};

/* Tells whether the file's configuration or metadata name a family of these. */
int language_recognise(const wt_file *f);
/* Reads it: of a folder from config.json (Meta's layout: params.json) and its tokenizer's files, of a file that
 * mar_convert has written from its metadata. Returns MAR_EMODEL, naming the file, for another family and for a
 * vocabulary without image tokens; MAR_EIO, MAR_EFORMAT and MAR_ENOMEM. */
mar_status language_open(const wt_file *f, language *out, mar_err *err);
void language_free(language *l); /* leaves it empty */
/* Makes the language of a tokenizer without a model beside it, as Harmon's releases need one: Qwen2.5's. Returns 0 if
 * it has no token <|im_start|>. */
int language_open_tokenizer(const text_tokenizer *t, language *out);
/* Returns the embedding's tensor, [rows][width]; NULL if there is none. */
const wt_tensor *language_embedding(const wt_file *f);

/* Reads a size as "768x512", sides of 1 to LANGUAGE_SIDE_MAX pixels. Returns 0 for another text. */
int language_read_size(const char *text, int *width, int *height);
enum { LANGUAGE_SIDE_MAX = 16384 };
/* Sets the tokens in a row and the rows of an image of width x height pixels; 0 x 0: the model's size. Returns MAR_EARG
 * for a size that the family does not have, or one whose tokens the context does not hold. `path`: the model, for the
 * message. */
mar_status language_size(const language *l, const char *path, int width, int height, int *columns, int *rows,
                         mar_err *err);
/* Sets the size in pixels that is nearest to a checked one among those that a release is trained on: of the release
 * nearest in area, whose images the context holds, the size nearest in the ratio of its sides. Sets the size itself if
 * the family has no such release. */
void language_nearest(const language *l, int columns, int rows, int *width, int *height);
/* Returns the positions of the context that such an image leaves in front of its first token. */
int language_left(const language *l, int columns, int rows);
/* Returns how many of them a prompt may have: LANGUAGE_PROMPT_MAX at most, as their keys and values take memory. */
int language_room(const language *l, int columns, int rows);

/* Writes the ids in front of an image of columns x rows tokens, or with `negative` those of the second context, as
 * text_template_ids does. `prompt`, UTF-8; NULL: the family's negative prompt. Returns MAR_EARG, too, for a prompt with
 * l->picture. */
mar_status language_ids(const language *l, const text_tokenizer *t, int columns, int rows, int negative,
                        const char *prompt, int *ids, int max, int *count, mar_err *err);

/* Writes what the tokenizer and config.json say, which a single file does not have beside it: language_open reads the
 * same from a file with these metadata. Returns MAR_ENOMEM. */
mar_status language_put(const language *l, wt_pairs *m, mar_err *err);

/* The members of causal_names for transformers' Llama, whose names begin with `prefix`. */
#define LANGUAGE_LLAMA_NAMES(prefix)                                                                                   \
    .layers = prefix "layers",                                                                                         \
    .joined = {NULL,                                                                                                   \
               "self_attn.o_proj",                                                                                     \
               NULL,                                                                                                   \
               "mlp.down_proj",                                                                                        \
               "input_layernorm",                                                                                      \
               "post_attention_layernorm",                                                                             \
               "self_attn.q_norm",                                                                                     \
               "self_attn.k_norm"},                                                                                    \
    .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, .w13 = {"mlp.gate_proj", "mlp.up_proj"},      \
    .norm = prefix "norm.weight", .embedding = prefix "embed_tokens.weight", .output = "lm_head.weight"

/* --- the configuration: config.json, or the release's params.json ------------------------------------------------- */

/* Returns a member of the configuration, or of the part about the transformer (text_config; the release's model; llm);
 * NULL if there is none, or null. */
const json_value *language_member(const wt_file *f, const char *key);
/* Reads a whole number from `least` on. Leaves *out unchanged if the configuration has none. */
mar_status language_number(const wt_file *f, const char *key, int least, int *out, mar_err *err);
/* Reads a positive number that no tensor shows: from the configuration by `key`, else from the metadata by `name`.
 * Leaves *out unchanged if both lack it. */
mar_status language_read_number(const wt_file *f, const char *key, const char *name, double *out, mar_err *err);
/* Derives the shape of a transformer of Llama's kind whose tensors have these names (families/language_shape.c): from
 * the tensors, and numbers that no tensor shows from the configuration, else from the metadata. `release`: with the
 * keys of Meta's params.json. Where the metadata are of a model around the transformer, `out` has heads, eps and
 * rope_base that count without a configuration, and the metadata's are mar.llm_heads, ...; else it is 0. Does not set
 * what is about images and prompts. */
mar_status language_shape(const wt_file *f, const causal_names *names, int release, causal_shape *out, mar_err *err);

#endif
