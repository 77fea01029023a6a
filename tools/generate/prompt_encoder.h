/* Prompts to features of a T5, or to ids of the model's vocabulary. */
#ifndef TOOLS_PROMPT_ENCODER_H
#define TOOLS_PROMPT_ENCODER_H

#include "mar.h"
#include "tools/cli/progress.h"
#include "tools/generate/captions.h"
#include "tools/generate/prompts.h"

enum { PROMPT_BATCH = 16 }; /* prompts encoded at a time */

typedef struct {
    mar *library;
    mar_text *text;
    const char *folder; /* of the T5 or the model, as given */
    int is_decoder;     /* 1: of a model that writes images among text: nothing is cleaned or cut */
    int batch;          /* prompts encoded at a time, 1 to PROMPT_BATCH */
    mar_clean clean;
    const char *positive; /* added to each prompt, after a space; NULL: nothing */
    int tokens, dim;      /* positions of a prompt, as the image model takes them; values of a position */
    int quiet;            /* 1: no warning of a prompt that is cut */
    float *features;      /* [batch][tokens][dim] of the last batch, padding in front */
    uint8_t *mask;        /* [batch][tokens] of the last batch */
} prompt_encoder;

/* Loads the T5 or the model's text side in `folder`, which `file` is, or NULL: it is opened, and makes room for a
 * batch. `tokens` 0: what such a model has room for. `expected`: values of a position that `model` takes; 0: any. `bar`
 * may be NULL. Returns 0; or 1 with *e empty after printing the error. */
int prompt_encoder_open(prompt_encoder *e, mar *library, const char *folder, const mar_file *file, int tokens,
                        int expected, const char *model, progress *bar);
/* Encodes prompts [n], n up to e->batch, with e->positive behind each, to e->features and e->mask. Returns what
 * mar_text_encode does: MAR_EARG for a prompt that cannot be encoded. The reason is prompt_encoder_error's. */
mar_status prompt_encoder_encode(const prompt_encoder *e, char *const *text, int n, int tokens, int *counts);
const char *prompt_encoder_error(const prompt_encoder *e, mar_status status);
/* Does the same for e->tokens, and warns of each that has more tokens than fit. */
mar_status prompt_encoder_run(prompt_encoder *e, char *const *text, int n);
/* Encodes the second context of guidance of a model that writes images among text, and sets it in *out, a set with e's
 * tokens and dim. `text`: the negative prompt; NULL: the model's own. Returns 0, or 1 with the error printed. */
int prompt_encoder_negative(prompt_encoder *e, const char *text, captions *out);
/* Reports the prompts from i on, n of them, that cannot be encoded, and leaves them out. Call it after MAR_EARG: it
 * encodes each alone. Returns 0; or 1 after printing an error if none is bad or none is left in all. */
int prompt_encoder_drop_bad(prompt_encoder *e, prompts *p, int i, int n);
/* Encodes all prompts, and adds them to the empty *out, which keeps pointers to their texts. Reports those that cannot
 * be encoded, and leaves them out. Returns 0; or 1 with *out empty after printing the error. */
int prompt_encoder_run_all(prompt_encoder *e, prompts *p, progress *bar, captions *out);
void prompt_encoder_close(prompt_encoder *e); /* frees all; {0} is fine */

#endif
