/* The state of a runner, shared by the files behind causal_runner.h: causal_state.c (memory and plans), causal_admit.c
 * (images that start), causal_requests.c (ids) and causal_vectors.c. Private to nets/. */
#ifndef NETS_CAUSAL_STATE_H
#define NETS_CAUSAL_STATE_H

#include "nets/causal_lines.h"
#include "nets/causal_pass.h"
#include "nets/causal_runner.h"
#include "nets/causal_slots.h"

/* An image's cache, and the state of its request. */
typedef struct {
    causal_slots slots;
    causal_lines lines; /* its request */
    uint8_t *mask[2];   /* by branch: [prefix] 1: later positions attend to it */
    int begin[2];       /* by branch: first position that is computed */
    int branches;       /* sequences of the image */
    float cfg;          /* guidance scale */
    int known;          /* tokens computed */
    int tokens;         /* tokens to compute in this pass, from token `known` on */
    int drafts;         /* first draft to compute */
    int from;           /* first site whose log probabilities are missing */
} causal_image;

struct causal_runner {
    kern_queue *k;
    const causal_model *model;
    causal_sampling sampling;
    int images, cfg_branches, drafts;
    int rows; /* maximum rows of a sequence in a pass */
    const char *part;
    causal_image *image; /* [images] */
    uint8_t *mask;       /* [images][2][prefix], then [prefix] of the negative caption */
    causal_pass pass;
    float *cfg;              /* [images * (drafts + 1)] guidance scale of an logit row */
    int *place;              /* [images * (drafts + 1)] row of log_probs that it becomes */
    int *index;              /* [images * branches] first row of a sequence's prefix in the embedding table */
    float *prompt_rows;      /* [CAUSAL_PROMPT_ROWS][D] embeddings of a prompt on their way to caption_emb */
    causal_start *start;     /* [images] images that causal_runner_begin starts */
    causal_request *request; /* [images] given tokens of the images that start */
    net_recordings recordings;
    causal_runner_stats stats;

    /* Backend memory, from causal_runner_lay_out. */
    float *caption;        /* [images + 1][prefix][caption_dim]; the last is the unconditional one. No prompts */
    float *caption_hidden; /* [images + 1][prefix][D], likewise */
    float *caption_emb;    /* [images + 1][prefix][D] */
};

static inline int causal_lesser(int a, int b)
{
    return a < b ? a : b;
}

/* Returns the mask of the second branch's caption. */
static inline uint8_t *causal_negative_mask(const causal_runner *r)
{
    return r->mask + 2 * (size_t)r->images * (size_t)r->model->shape.prefix;
}

/* Adds the slots of those positions 0 .. end - 1 of the prefix that later ones attend to. Returns their number. */
int causal_add_visible(causal_runner *r, const causal_image *im, int branch, int sequence, int end);
/* Adds the listed pass to the statistics. */
void causal_count_pass(causal_runner *r);
/* causal_requests.c: computes the given tokens of images that start but the last, whose pass gives the first
 * distribution. Images that have some share the rows that a pass has for all images. */
void causal_compute_given(causal_runner *r, const causal_start *start, int n);

#endif
