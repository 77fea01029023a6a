/* Captions that some T5 has encoded elsewhere, for text-to-image models. */
#ifndef TOOLS_CAPTIONS_H
#define TOOLS_CAPTIONS_H

#include "mar.h"

typedef struct {
    int count;       /* captions */
    int tokens, dim; /* positions of a caption, and numbers of each, the model's */
    float *features; /* [count][tokens][dim] */
    uint8_t *mask;   /* [count][tokens] 1 where the caption is, which is at the end */
} captions;

/* Reads captions for a model of so many positions and numbers. The file is a .npz with `features`, of shape [n,
 * positions, dim] or [positions, dim], and, if captions are padded, `mask` [n, positions] or [positions] of 0 and 1; or
 * a .npy with features alone. Padding may be in front of a caption or behind it, as T5 has it; shorter captions than
 * the model's are padded. Features of padding are not read. Returns 0, or 1 after printing an error that names the
 * file, with *out empty. */
int captions_read(const char *path, int tokens, int dim, captions *out);
void captions_free(captions *c); /* {0} is fine */

#endif
