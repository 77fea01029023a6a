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
 * position of an image or none of the vocabulary. */
mar_status gpt_request_check(const gpt_config *c, int images, int drafts, const spec_request *q, mar_err *err);

enum { GPT_RECORDINGS = 16 };

/* Recordings of passes by their shape: passes of one shape differ in contents of host arrays only. */
typedef struct {
    struct {
        int kind, rows, spans, laws;
        const float *log_law;
        kern_recording *recording;
    } shape[GPT_RECORDINGS];
    int count;
} gpt_recordings;

/* The place of the recording for this shape. NULL: there are too many of them already. */
kern_recording **gpt_recordings_find(gpt_recordings *r, int kind, int rows, int spans, int laws, const float *log_law);
void gpt_recordings_free(kern_queue *k, gpt_recordings *r); /* and leaves it empty */

#endif
