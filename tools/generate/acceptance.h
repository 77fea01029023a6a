/* Statistics of the drafted tokens of a run by autoregressive step, position and staleness, and pictures of them. */
#ifndef TOOLS_ACCEPTANCE_H
#define TOOLS_ACCEPTANCE_H

#include "mar.h"

typedef struct cJSON cJSON;

typedef struct {
    long verified, accepted; /* drafts that were verified; of these, accepted */
} acceptance_count;

typedef struct {
    int tokens;                  /* tokens of an image */
    int columns;                 /* tokens in a row */
    int steps;                   /* autoregressive steps of an image */
    acceptance_count *at;        /* [tokens] by position */
    acceptance_count *in;        /* [steps] by autoregressive step */
    acceptance_count *stale;     /* [steps] by steps of staleness; [0]: none */
    const uint8_t *token_status; /* [n][tokens] of the last batch; the caller's */
} acceptance;

/* Returns 0, or 1 without memory. */
int acceptance_create(int tokens, int columns, int steps, acceptance *out);
void acceptance_free(acceptance *a);
/* Adds a batch of n images: arrays [n][tokens] of mar_session_token_status and mar_session_staleness. */
void acceptance_add(acceptance *a, const uint8_t *token_status, const int *steps, const int *staleness, int n);
/* Draws the token status of image i of the last batch to rgb [height][width][3], while the caller keeps it. Dark green
 * is accepted, light green replaced (the colours of Wang et al., Fig. 16), grey made by the target alone. */
void acceptance_draw(const acceptance *a, int i, int width, int height, uint8_t *rgb);
/* Adds "acceptance_per_step": [...], "acceptance_per_position": [...], "acceptance_per_lateness": [...]. The last one
 * goes from 0 to the greatest staleness, and is empty if no draft was stale. Entries without verified drafts are
 * null. */
void acceptance_record(const acceptance *a, cJSON *record);

#endif
