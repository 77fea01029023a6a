/* Speculation over discrete tokens with a draft model: a chain or tree of drafts, verified in one pass of the target.
 * mar/raster_softmax.c runs it. */
#include "mar/accel.h"

#include "specdec/verifier.h"

static int is_on(const mar_params *p)
{
    const spec_method *m = p->spec ? spec_method_find(p->spec) : NULL;
    return m && (m->tokens & SPEC_DISCRETE) && !m->stale;
}

static void resolve(mar_params *p)
{
    if (p->draft && !p->spec) p->spec = "vanilla";
    if (p->gamma == 0 && is_on(p)) p->gamma = MAR_GAMMA_AUTO;
}

const mar_accel mar_accel_drafted = {
    .name = "spec",
    .asks_for = "draft",
    .default_with = "draft",
    .tokens = "discrete",
    .is_on = is_on,
    .resolve = resolve,
};
