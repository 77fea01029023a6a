/* What became of the drafted tokens of a run: counts by autoregressive step, by position and by how late their drafts
 * were, and pictures. */
#ifndef TOOLS_ACCEPTANCE_H
#define TOOLS_ACCEPTANCE_H

#include "mar.h"

typedef struct cJSON cJSON;

typedef struct {
    int tokens;           /* of an image */
    int steps;            /* autoregressive steps of an image */
    long *verified_at;    /* [tokens] drafts verified at a position */
    long *taken_at;       /* [tokens] drafts accepted at a position */
    long *verified_in;    /* [steps] drafts verified in an autoregressive step */
    long *taken_in;       /* [steps] drafts accepted in an autoregressive step */
    long *verified_late;  /* [steps] drafts verified whose conditions were so many steps late; [0]: none are */
    long *taken_late;     /* [steps] of these, drafts accepted */
    const uint8_t *fates; /* [n][tokens] of the batch added last; the caller's */
} acceptance;

/* Returns 0, or 1 if out of memory. */
int acceptance_create(int tokens, int steps, acceptance *out);
void acceptance_free(acceptance *a);
/* Adds a batch of n images: arrays [n][tokens] of mar_session_fates and mar_session_lateness. */
void acceptance_add(acceptance *a, const uint8_t *fates, const int *steps, const int *late, int n);
/* The fates of image i of that batch, as long as the caller has them, as a picture, rgb [height][width][3]: dark green
 * accepted, light green replaced (the colours of Wang et al., Fig. 16), grey made by the target alone. */
void acceptance_draw(const acceptance *a, int i, int width, int height, uint8_t *rgb);
/* Behind the greatest lateness that any draft had; 0: no draft was late. */
int acceptance_latest(const acceptance *a);
/* "acceptance_per_step": [...], "acceptance_per_position": [...], "acceptance_per_lateness": [...], the last one from 0
 * to the greatest there is, empty if no draft was late; null where nothing was verified. */
void acceptance_record(const acceptance *a, cJSON *record);

#endif
