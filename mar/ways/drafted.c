/* Speculation over discrete tokens with a draft model: a chain or tree of drafts, verified in one pass of the target.
 * llamagen/engine.c runs it. */
#include "mar/masked/way.h"

#include "specdec/verifier.h"

static int is_on(const mar_params *p)
{
    const spec_method *m = p->spec ? spec_method_find(p->spec) : NULL;
    return m && (m->tokens & SPEC_DISCRETE) && !m->stale;
}

enum { GAMMA_AUTO = 8 }; /* what gamma's automatic value stands for: its default */

static void resolve(mar_params *p)
{
    if (p->draft && !p->spec) p->spec = "vanilla";
    if (p->gamma == 0 && is_on(p)) p->gamma = GAMMA_AUTO;
}

const mar_way mar_way_drafted = {
    .name = "spec",
    .asks_for = "draft",
    .default_with = "draft",
    .tokens = "discrete",
    .is_on = is_on,
    .resolve = resolve,
};
