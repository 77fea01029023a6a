/* The accelerator "draft": a smaller model beside the target. The accelerators head_spec and spec use it, for
 * speculation inside the head and across tokens. */
#ifndef MAR_ACCEL_DRAFT_H
#define MAR_ACCEL_DRAFT_H

#include "mar/masked.h"

typedef struct {
    mar_masked *g;
    mar_runner runner;
    mar_recordings *recordings; /* [num_iter] recordings of the draft's steps */
} mar_draft;

/* Tells whether a verifier is set and decides on whole paths of the chain. The option spec has two accelerators: one
 * for these, one for the other verifiers. */
int mar_verifies_paths(const mar_params *p);
extern const mar_accel mar_accel_draft; /* its state is a mar_draft */

#endif
