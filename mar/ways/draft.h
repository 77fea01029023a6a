/* The way "draft": a smaller model at work beside the target. What it is for, speculation inside the head or across
 * tokens, is up to the ways head_spec and spec. */
#ifndef MAR_WAYS_DRAFT_H
#define MAR_WAYS_DRAFT_H

#include "mar/masked/masked.h"

typedef struct {
    mar_masked *g;
    mar_runner runner;
    mar_recordings *recordings; /* [num_iter] what was recorded of the draft's step */
} mar_draft;

/* Whether the verifier, if there is one, decides on whole paths of the chain: that is one way of the option spec, the
 * others are another. */
int mar_verifies_paths(const mar_params *p);
extern const mar_way mar_way_draft; /* its state is a mar_draft */

#endif
