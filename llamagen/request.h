/* What a transformer and an EAGLE drafter over it have in common as models of a sampler: their requests, what makes
 * laws of logits, and the recordings of their passes. */
#ifndef LLAMAGEN_REQUEST_H
#define LLAMAGEN_REQUEST_H

#include "kernels/ops.h"
#include "llamagen/config.h"
#include "specdec/sampler.h"

/* What turns logits into laws (kernels/discrete.h). */
typedef struct {
    float cfg;        /* above 1: guidance, and two sequences an image */
    int cfg_interval; /* -1: none; else tokens of a position above cfg_interval + 1 are drawn without guidance */
    float temperature;
    int top_k;
    float top_p;
} gpt_sampling;

int gpt_conditions(const gpt_sampling *s); /* 2 with guidance, else 1 */
/* The number of an image's sequence under a condition: all images of condition 0 come first. */
int gpt_sequence(int images, int image, int condition);
/* The guidance of token number `token`, as decode_n_tokens of generate.py: decode step i makes token i + 1. */
float gpt_guidance(const gpt_sampling *s, int token);

/* Drafts from the prefix to this one, itself included; 0 of draft -1. */
int gpt_request_depth(const spec_request *q, int draft);
/* MAR_EARG if the request is not of one of so many images, has more drafts, or has a token or draft that is at no
 * position of an image or none of the vocabulary. Tokens that the host has not read are none only with `drawn`. */
mar_status gpt_request_check(const gpt_config *c, int images, int drafts, const spec_request *q, mar_err *err);

/* What passes of one recording have in common; they differ in contents of host arrays. Only the numbers of all
 * sequences together count: which of them a row or a law is of, the lists say. */
typedef struct {
    int kind; /* the caller's own */
    int rows, spans, laws;
    const float *log_law;
    const int *drawn; /* as in spec_request */
    int with_sequel;  /* 1: a sequel of this shape is part of it */
    int sequel[4];    /* spec_sequel.shape */
} gpt_shape;

enum { GPT_RECORDINGS = 32 };

/* Recordings of passes by their shape. Rounds of a batch whose images are at different places recur, too: of a chain or
 * a tree of fixed size a pass has so many rows for each image that is not finished, and a token or two more for some
 * images in a draft model's pass. Rows that would make all passes alike are not added: where the numbers recur without,
 * they win nothing, and a product of more rows may round differently. Shapes that do not recur, at an image's end and
 * of trees whose laws have too few tokens, are run as they are; the shape that has not been used for longest makes room
 * for a new one. */
typedef struct {
    struct {
        gpt_shape shape;
        long used; /* when it was last, by `uses` */
        kern_recording *recording;
    } entry[GPT_RECORDINGS];
    int count;
    long uses;
} gpt_recordings;

/* The place of the recording for this shape. */
kern_recording **gpt_recordings_find(kern_queue *k, gpt_recordings *r, const gpt_shape *shape);
void gpt_recordings_free(kern_queue *k, gpt_recordings *r); /* and leaves it empty */

#endif
