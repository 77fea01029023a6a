/* Captions encoded by a T5 elsewhere, for text-to-image models. */
#ifndef TOOLS_CAPTIONS_H
#define TOOLS_CAPTIONS_H

#include "mar.h"

typedef struct {
    int count;       /* captions */
    int tokens, dim; /* positions of a caption; values of a position */
    float *features; /* [count][tokens][dim] */
    uint8_t *mask;   /* [count][tokens] 1: part of the caption, at the end */
} captions;

/* Reads captions for a model of `tokens` positions and `dim` values. The file is a .npz with `features` of shape [n,
 * positions, dim] or [positions, dim]. Padded captions need a `mask` [n, positions] or [positions] of 0 and 1. A .npy
 * has features alone. Padding may precede or follow a caption, as with T5. Captions shorter than the model's are
 * padded. Features of padding are not read. Returns 0, or 1 with *out empty, after printing an error that names the
 * file. */
int captions_read(const char *path, int tokens, int dim, captions *out);
void captions_free(captions *c); /* frees a caption set; {0} is fine */

#endif
