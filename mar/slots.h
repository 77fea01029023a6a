/* Places for the images in progress: what the loops over all orders share. A loop decides which tokens a step makes;
 * the slots keep the images' noise addresses, their tokens, and how each token came to be. */
#ifndef MAR_SLOTS_H
#define MAR_SLOTS_H

#include "mar/core/engine.h"

/* A place for an image. */
typedef struct {
    int busy;              /* 1: an image is in progress, or finished and not released */
    uint64_t seed, number; /* noise address */
    float cfg;             /* guidance scale */
    int given;             /* tokens that it began with */
    int known;             /* its tokens so far, with those; raster order: the position of its next token */
    int step;              /* next step of the plan, where an order has one */
    mar_err failure;       /* its error; "": it has not failed */
} mar_slot;

typedef struct {
    kern_queue *k;                  /* the session's */
    const mar_model_config *config; /* the model's */
    int count;

    void *host;            /* memory of the host arrays below */
    mar_slot *slot;        /* [count] */
    uint8_t *is_given;     /* [count][seq_len] 1: the image began with this token */
    uint8_t *token_status; /* [count][seq_len] mar_token_status */
    int *ar_step;          /* [count][seq_len] step that made the token; -1: none yet, or it was given */
    int *staleness;        /* [count][seq_len] steps by which the z of the token's draft was stale; 0: no such draft */
    float *given;          /* [seq_len][token_dim] an image's known tokens, while it begins; others 0 */

    float *tokens; /* backend [count][seq_len][token_dim] tokens so far, from mar_slots_lay_out */
} mar_slots;

/* Creates `count` free slots. k and config must outlive them. */
mar_status mar_slots_create(kern_queue *k, const mar_model_config *config, int count, mar_slots *out, mar_err *err);
void mar_slots_free(mar_slots *s);
/* Assigns the images' tokens, with room for `spare` more tokens behind them, as an engine's lay_out. */
size_t mar_slots_lay_out(mar_slots *s, int spare, char *base);

/* Return whether no image is here, and the first slot that has one, or `count`. */
int mar_slots_are_free(const mar_slots *s);
int mar_slots_first(const mar_slots *s);

/* Returns MAR_EARG unless the session has memory for the image's guidance, `branches` rows a token. It has `most`, for
 * its own guidance of `session`. */
mar_status mar_slots_check_guidance(const mar_image *image, int branches, int most, float session, mar_err *err);
/* Returns MAR_EARG unless the image's known tokens, if it has any, are its first: discrete tokens in raster order. */
mar_status mar_slots_check_prefix(const mar_model_config *c, const mar_image *image, mar_err *err);
/* Places an image in a slot. Its given tokens are known. */
void mar_slots_begin(mar_slots *s, int slot, const mar_image *image);
/* Writes an image's given tokens, if it has any, to its place in `tokens`; the others become 0. */
void mar_slots_give(mar_slots *s, int slot, const mar_image *image);
void mar_slots_release(mar_slots *s, int slot);
/* Raster order: return whether the image began with this token, and the number of those from its next token on that it
 * did not. */
int mar_slots_is_given(const mar_slots *s, int slot, int position);
int mar_slots_left(const mar_slots *s, int slot);
/* Raster order: makes the first token that is not given the next one, or the end if there is none. */
void mar_slots_seek(mar_slots *s, int slot);
/* Raster order: notes that a step made an image's next token, and how. The next one that is not given follows. */
void mar_slots_add(mar_slots *s, int slot, mar_token_status status);

/* Returns the position of a slot's first non-finite token, by step, then position; -1 if there is none. Given tokens
 * have been checked. */
int mar_slots_find_nonfinite(const mar_slots *s, int slot);
/* Returns MAR_EMODEL with the image's failure, or for its first non-finite token; `hint` ends that message. */
mar_status mar_slots_examine(const mar_slots *s, int slot, const char *hint, mar_err *err);
/* Returns MAR_EMODEL for a layer whose output has a NaN or an infinity, k->watch.layer, in this step of the first
 * image. Returns MAR_OK if a token is not finite: the image's own error says more. */
mar_status mar_slots_refuse_layer(const mar_slots *s, int step, mar_err *err);

/* Implement the engine's snapshot, token_status and staleness (mar/core/engine.h). */
void mar_slots_snapshot(const mar_slots *s, int slot, float *tokens, uint8_t *known);
void mar_slots_token_status(const mar_slots *s, int slot, uint8_t *map, int *ar_step);
void mar_slots_staleness(const mar_slots *s, int slot, int *staleness);

#endif
