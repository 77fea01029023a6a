/* Requests to a causal transformer of ids, as a sampler makes them (specdec/sampler.h), and the parameters of the
 * answers. */
#ifndef NETS_CAUSAL_REQUEST_H
#define NETS_CAUSAL_REQUEST_H

#include "nets/causal_shape.h"

/* A request to a model about one sequence. Draft n follows draft parent[n] < n, or the prefix if parent[n] is -1. The
 * log probabilities after the prefix go to row `row`, those after draft n to row + 1 + n. Rows before row + from are
 * already there, from the sequence's last request. That request had the same prefix, and these drafts continue its
 * drafts. Otherwise from is 0. */
typedef struct {
    int sequence;      /* 0..sequences-1 */
    const int *prefix; /* [length] final tokens */
    int length;
    const int *draft, *parent; /* [count] */
    int count;
    int from;
    int row;
    /* Backend array of drawn tokens that the host has not read, or NULL. The prefix then has CAUSAL_UNREAD in their
     * places, and its last token is drawn[last]. Such requests have no drafts. In one call either all requests are of
     * this kind or none is. */
    const int *drawn;
    int last;
} causal_request;

enum { CAUSAL_UNREAD = -1 };

/* Operations enqueued after a pass. They read its log probabilities. */
typedef struct {
    void (*run)(void *arg); /* as the body of a recording (kernels/ops.h, replay) */
    void *arg;
    int shape[4]; /* key of the recording: all that the operations depend on, besides contents of host arrays */
} causal_continuation;

/* Parameters that turn logits into log probabilities (kernels/discrete.h). A model of vectors knows cfg alone. */
typedef struct {
    float cfg;        /* above 1: guidance, with two sequences an image, whose scale each image has for itself */
    int cfg_interval; /* -1: off; else tokens at positions above cfg_interval + 1 are drawn without guidance */
    float temperature;
    int top_k;
    float top_p;
} causal_sampling;

int causal_cfg_branches(const causal_sampling *s); /* 2 with guidance, else 1 */
/* Returns the number of an image's sequence in a branch. Conditional sequences come first. */
int causal_sequence(int images, int image, int branch);
/* Returns the guidance scale of a token of an image whose scale is cfg. As decode_n_tokens of generate.py: decode step
 * i makes token i + 1. */
float causal_guidance(const causal_sampling *s, float cfg, int token);

/* An image to start, in place of image 0 <= image < images of a runner. */
typedef struct {
    int image;
    int label;             /* class; -1: unconditional. Unused by a model of captions */
    const float *features; /* caption host [prefix][caption_dim], ids of a prompt. Unused by a model of classes */
    const uint8_t *mask;   /* host [prefix], 1 at positions of the caption; NULL: all. Unused by a model of classes */
    float cfg;             /* guidance scale; 1 or less: none. Unused without guidance in causal_sampling */
    const int *token;      /* host [given] its first tokens, in the vocabulary; unused by a model of vectors */
    int given;
} causal_start;

/* Returns the depth of a draft: itself and its ancestors. Returns 0 for draft -1. */
int causal_request_depth(const causal_request *q, int draft);
/* Checks a request. Returns MAR_EARG if its sequence is not below `images` or it has more than `drafts` drafts. Also
 * returns it for a token or draft outside the vocabulary or beyond seq_len. CAUSAL_UNREAD is a valid token only with
 * `drawn`. */
mar_status causal_request_check(const causal_shape *s, int images, int drafts, const causal_request *q, mar_err *err);

#endif
