/* Sequences of decoders that write images among text: Lumina-mGPT and Anole (Chameleon's vocabulary), Emu3. What comes
 * before the image tokens, which ids these have, and what stands behind a row of them. The data are a table of
 * families; what a model's own files say takes precedence. */
#ifndef TEXT_GRAMMAR_H
#define TEXT_GRAMMAR_H

#include "weights/weights.h"

/* A family of models. A template is a text as the family's tokenizer reads it. In it {prompt} is the prompt; {W} and
 * {H} are the image's size in pixels, {columns} and {rows} in tokens; {size_w} and {size_h} are the family's size
 * tokens, and {<name>} is the token of this name. The text between such tokens is divided into tokens as a whole. */
typedef struct {
    const char *name;            /* "lumina-mgpt", as in mar_model_config.family */
    const char *title;           /* "Lumina-mGPT", for messages */
    const char *prompt;          /* what comes before the first image token */
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
} text_family;

/* The grammar of one model. */
typedef struct {
    const text_family *family;
    int vocabulary;    /* rows of the embedding */
    int codebook;      /* image tokens */
    int *image_id;     /* [codebook] id of each, by its number in the codebook */
    int line_end;      /* id; -1: none */
    int context;       /* positions of a sequence at most */
    int width, height; /* default size in pixels */
} text_grammar;

enum {
    TEXT_PROMPT_MIN = 16, /* positions that an image must leave for the prompt */
    TEXT_PROMPT_MAX = 512 /* positions for a prompt at most */
};

/* Returns 1 if the file's configuration or metadata name a family of the table. */
int text_grammar_recognise(const wt_file *f);
/* Reads the grammar of a decoder: of a folder from config.json (Meta's layout: params.json) and its tokenizer's files,
 * of a file that mar_convert has written from its metadata. Returns MAR_EMODEL, naming the file, for a family that is
 * not in the table and for a vocabulary without image tokens; MAR_EIO, MAR_EFORMAT and MAR_ENOMEM. */
mar_status text_grammar_open(const wt_file *f, text_grammar *out, mar_err *err);
void text_grammar_free(text_grammar *g); /* leaves it empty */
/* Gives the text model in a file of Emu3ForConditionalGeneration the names of Emu3ForCausalLM. Returns MAR_EFORMAT if
 * it has both, and MAR_ENOMEM. */
mar_status text_grammar_rename(wt_file *f, mar_err *err);
/* Returns the embedding's tensor, [vocabulary][width]; NULL if there is none. */
const wt_tensor *text_grammar_embedding(const wt_file *f);

/* Reads a size as "768x512", sides of 1 to TEXT_SIDE_MAX pixels. Returns 0 for another text. */
int text_read_size(const char *text, int *width, int *height);
enum { TEXT_SIDE_MAX = 16384 };
/* Sets the tokens in a row and the rows of an image of width x height pixels; 0 x 0: the model's size. Returns MAR_EARG
 * for a size that the family does not have, or one whose tokens the context does not hold. `path`: the model, for the
 * message. */
mar_status text_grammar_size(const text_grammar *g, const char *path, int width, int height, int *columns, int *rows,
                             mar_err *err);
/* Sets the size in pixels that is nearest to a checked one among those that a release is trained on: of the release
 * nearest in area, whose images the context holds, the size nearest in the ratio of its sides. Sets the size itself if
 * the family has no such release. */
void text_grammar_nearest(const text_grammar *g, int columns, int rows, int *width, int *height);
/* Returns the positions of the context that such an image leaves in front of its first token. */
int text_grammar_left(const text_grammar *g, int columns, int rows);
/* Returns how many of them a prompt may have: TEXT_PROMPT_MAX at most, as their keys and values take memory. */
int text_grammar_room(const text_grammar *g, int columns, int rows);

/* The grammar as metadata of a converted file. */
typedef struct {
    const char *pairs[5][2]; /* [count] key and value */
    int count;
    char *text; /* owned: the values */
} text_grammar_pairs;

/* Writes them. text_grammar_open reads the same grammar from a file with this metadata. Returns MAR_ENOMEM. */
mar_status text_grammar_put(const text_grammar *g, text_grammar_pairs *out, mar_err *err);
void text_grammar_pairs_free(text_grammar_pairs *p); /* leaves it empty */

#endif
