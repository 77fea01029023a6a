/* Speculation over discrete tokens without a draft model: Jacobi decoding, whose drafts are drawn from the laws of the
 * target's last pass. mar/raster_softmax.c runs it. */
#include "mar/accel.h"

#include "specdec/verifier.h"

static int is_on(const mar_params *p)
{
    const spec_method *m = p->spec ? spec_method_find(p->spec) : NULL;
    return m && (m->tokens & SPEC_DISCRETE) && m->stale;
}

const mar_accel mar_accel_jacobi = {
    .name = "spec",
    .needs = MAR_STAGE_DRAFT,
    .tokens = "discrete",
    .exceptions = (const mar_accel_exception[]){{"gamma", NULL}, {"tree", NULL}, {0}},
    .is_on = is_on,
};
