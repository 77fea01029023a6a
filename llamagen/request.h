/* Parts shared by the transformer and an EAGLE drafter over it, as models of a sampler: requests, sampling parameters,
 * and the recordings of passes. */
#ifndef LLAMAGEN_REQUEST_H
#define LLAMAGEN_REQUEST_H

#include "kernels/ops.h"
#include "llamagen/config.h"
#include "specdec/sampler.h"

/* Parameters that turn logits into log probabilities (kernels/discrete.h). */
typedef struct {
    float cfg;        /* above 1: guidance, with two sequences an image, whose scale each image has for itself */
    int cfg_interval; /* -1: off; else tokens at positions above cfg_interval + 1 are drawn without guidance */
    float temperature;
    int top_k;
    float top_p;
} gpt_sampling;

int gpt_cfg_branches(const gpt_sampling *s); /* 2 with guidance, else 1 */
/* Returns the number of an image's sequence in a branch. Conditional sequences come first. */
int gpt_sequence(int images, int image, int branch);
/* Returns the guidance scale of a token of an image whose scale is cfg. As decode_n_tokens of generate.py: decode step
 * i makes token i + 1. */
float gpt_guidance(const gpt_sampling *s, float cfg, int token);

/* An image to start, in place of image 0 <= image < images of a runner. */
typedef struct {
    int image;
    int label;             /* class; -1: unconditional. Unused by a model of captions */
    const float *features; /* caption host [prefix][caption_dim]. Unused by a model of classes */
    const uint8_t *mask;   /* host [prefix], 1 at positions of the caption; NULL: all. Unused by a model of classes */
    float cfg;             /* guidance scale; 1 or less: none. Unused without guidance in gpt_sampling */
    const int *token;      /* host [given] its first tokens, in the vocabulary */
    int given;
} gpt_start;

/* Returns the depth of a draft: itself and its ancestors. Returns 0 for draft -1. */
int gpt_request_depth(const spec_request *q, int draft);
/* Checks a request. Returns MAR_EARG if its sequence is not below `images` or it has more than `drafts` drafts. Also
 * returns it for a token or draft outside the vocabulary or beyond seq_len. SPEC_UNREAD is a valid token only with
 * `drawn`. */
mar_status gpt_request_check(const gpt_config *c, int images, int drafts, const spec_request *q, mar_err *err);

/* Key of a recording. Passes of one recording differ only in contents of host arrays. The key has numbers summed over
 * sequences. The arrays say to which sequence a row belongs. */
typedef struct {
    int kind; /* chosen by the caller */
    int rows, spans, logit_rows;
    const float *log_probs;
    const int *drawn;      /* as in spec_request */
    int with_continuation; /* 1: the recording includes a continuation of this shape */
    int continuation[4];   /* spec_continuation.shape */
} gpt_shape;

enum { GPT_RECORDINGS = 32 };

/* Recordings of passes by their shape; the least recently used one makes room for a new one. Shapes recur even if the
 * images of a batch are at different places. With chains or trees of fixed size, each unfinished image has a fixed
 * number of rows; a draft model's pass has one or two rows more for some images. Rows are not padded to make all passes
 * alike: where shapes recur padding gains nothing, and a product of more rows may round differently. Shapes at an
 * image's end, and of trees that lack tokens, do not recur, and run unrecorded. */
typedef struct {
    struct {
        gpt_shape shape;
        long used; /* value of `uses` at the last use */
        kern_recording *recording;
    } entry[GPT_RECORDINGS];
    int count;
    long uses;
} gpt_recordings;

/* Returns the place of the recording for this shape; it holds NULL if there is none yet. */
kern_recording **gpt_recordings_find(kern_queue *k, gpt_recordings *r, const gpt_shape *shape);
void gpt_recordings_free(kern_queue *k, gpt_recordings *r); /* leaves it empty */

#endif
