/* Sequences of decoders that write images among text: Lumina-mGPT and Anole (Chameleon's vocabulary), Emu3. What comes
 * before the image tokens, which ids these have, and what stands behind a row of them. The data are a table of
 * families; what a model's own files say takes precedence. */
#ifndef TEXT_GRAMMAR_H
#define TEXT_GRAMMAR_H

#include "weights/weights.h"

/* A family of models. Templates are texts as the family's tokenizer reads them, special tokens by name. In them {prompt}
 * is the prompt; {W} and {H} the image's size in pixels, {columns} and {rows} in tokens; {size_w} and {size_h} are the
 * names of the family's size tokens. */
typedef struct {
    const char *name;            /* "lumina-mgpt", as in mar_model_config.family */
    const char *title;           /* "Lumina-mGPT", for messages */
    const char *prompt;          /* what comes before the first image token */
    const char *negative;        /* the same in the second context of guidance */
    const char *negative_prompt; /* default of {prompt} in `negative`; NULL: it has none */
    const char *line_end;        /* name of the token behind each row of image tokens; NULL: none */
    int stride;                  /* pixels of a token's side */
    int unit;                    /* sides are multiples of so many pixels */
    int width, height;           /* default size in pixels */
    int fixed_size;              /* 1: no other size */
} text_family;

/* The grammar of one model. */
typedef struct {
    const text_family *family;
    int vocabulary; /* rows of the embedding */
    int codebook;   /* image tokens */
    int *image_id;  /* [codebook] id of each, by its number in the codebook */
    int line_end;   /* id; -1: none */
    int context;    /* positions of a sequence at most */
} text_grammar;

/* Reads the grammar of a decoder: of a folder from config.json and its tokenizer's files, of a file that mar_convert has
 * written from its metadata. Returns MAR_EMODEL, naming the file, for a family that is not in the table and for a
 * vocabulary without image tokens; MAR_EIO, MAR_EFORMAT and MAR_ENOMEM. */
mar_status text_grammar_open(const wt_file *f, text_grammar *out, mar_err *err);
void text_grammar_free(text_grammar *g); /* leaves it empty */
/* Sets the tokens in a row and the rows of an image of width x height pixels; 0 x 0: the family's size. Returns MAR_EARG
 * for a size that the family does not have, or one whose tokens the context does not hold. */
mar_status text_grammar_size(const text_grammar *g, int width, int height, int *columns, int *rows, mar_err *err);

#endif
