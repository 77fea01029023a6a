/* Captions of text-to-image models, as features of a T5 or as ids of the model's vocabulary. */
#ifndef TOOLS_CAPTIONS_H
#define TOOLS_CAPTIONS_H

#include "mar.h"

/* A caption without its padding. */
typedef struct {
    const float *features; /* [positions][dim]; ids: dim 1 */
    int positions;         /* 1 to those of the set */
    const char *prompt;    /* UTF-8; NULL: not known */
} caption;

typedef struct {
    int count;            /* captions */
    int tokens, dim;      /* positions of the model; values of a position */
    int encoded;          /* 1: of this command's prompts, so that no file has their numbers */
    const char *family;   /* of the model whose ids they are (mar_text_config), static; NULL: a T5, or a file */
    const char *made_for; /* of a file: what captions_made_for wrote to it; NULL: it does not say */
    caption *list;        /* [count] */
    caption negative;     /* second context of guidance; positions 0: none */
    void **blocks;        /* [block_count] memory of features and prompts */
    int block_count;
} captions;

/* Reads captions for a model of `tokens` positions and `dim` values. The file is a .npz with `features` of shape [n,
 * positions, dim] or [positions, dim]. Padded captions need a `mask` [n, positions] or [positions] of 0 and 1. A .npy
 * has features alone. Padding may precede or follow a caption, as with T5. Features of padding are not used. `prompts`
 * and `negative` [positions, dim], as mar captions writes them, are optional. Returns 0, or 1 with *out empty, after
 * printing an error that names the file. */
int captions_read(const char *path, int tokens, int dim, captions *out);
/* Adds `count` captions with padding in front, features [count][tokens][dim] and mask [count][tokens] of 0 and 1, with
 * at least one 1 each. Copies features; the set keeps pointers to the prompts [count]. Room for them must be in list.
 * Returns 0, or 1 with the error printed. */
int captions_add(captions *c, int count, const float *features, const uint8_t *mask, char *const *prompts);
/* Sets the second context from features [tokens][dim] and mask [tokens], padding in front. Copies them. Returns 0, or 1
 * with the error printed. */
int captions_set_negative(captions *c, const float *features, const uint8_t *mask);
/* Writes caption i as sessions take it: features [tokens][dim] with 0 in front, mask [tokens] with 1 at its end. -1:
 * the second context. */
void captions_place(const captions *c, int i, float *features, uint8_t *mask);
/* Returns a hash of features and positions of caption i; -1: of all captions in their order. */
uint64_t captions_sum(const captions *c, int i);
/* Writes to text what ids of a prompt depend on: its family, and the size of images if one was
 * asked for. Returns text. */
enum { CAPTIONS_MADE_FOR = 64 };
const char *captions_made_for(const char *family, const char *image_size, char text[CAPTIONS_MADE_FOR]);
void captions_free(captions *c); /* frees a caption set; {0} is fine */

#endif
