/* Speculation over discrete tokens. The softmax head runs it (mar/raster_softmax.c); the accelerators here have no
 * hooks. They say which of its methods is on, and which options have an effect with it. */
#include "mar/accel.h"

#include "specdec/verifier.h"

#include <string.h>

/* Speculation over discrete tokens with a draft model: a chain or tree of drafts, verified in one pass of the target.
 */
static int drafted_is_on(const mar_params *p)
{
    const spec_method *m = p->spec ? spec_method_find(p->spec) : NULL;
    return m && (m->tokens & SPEC_DISCRETE) && !m->stale;
}

static void drafted_resolve(mar_params *p)
{
    if (p->draft && !p->spec) p->spec = "vanilla";
}

const mar_accel mar_accel_drafted = {
    .name = "spec",
    .asks_for = "draft",
    .default_with = "draft",
    .tokens = "discrete",
    .is_on = drafted_is_on,
    .resolve = drafted_resolve,
};

/* Speculation over discrete tokens without a draft model: Jacobi decoding, whose drafts are drawn from the
 * distributions of the target's last pass. */
static int jacobi_is_on(const mar_params *p)
{
    const spec_method *m = p->spec ? spec_method_find(p->spec) : NULL;
    return m && (m->tokens & SPEC_DISCRETE) && m->stale;
}

const mar_accel mar_accel_jacobi = {
    .name = "spec",
    .needs = MAR_STAGE_DRAFT,
    .tokens = "discrete",
    .exceptions = (const mar_accel_exception[]){{"gamma", NULL}, {"tree", NULL}, {0}},
    .is_on = jacobi_is_on,
};

/* Dynamic trees of drafts of discrete tokens (EAGLE-2), which have options of their own. */
static int tree_is_on(const mar_params *p)
{
    return strcmp(p->tree, "dynamic") == 0;
}

const mar_accel mar_accel_tree = {
    .name = "tree",
    .asks_for = "draft",
    .exact = 1,
    .is_on = tree_is_on,
};

/* Static trees of drafts of discrete tokens, whose depth they say themselves. */
static int levels_is_on(const mar_params *p)
{
    return strcmp(p->tree, "chain") != 0 && strcmp(p->tree, "dynamic") != 0;
}

const mar_accel mar_accel_levels = {
    .name = "tree",
    .asks_for = "draft",
    .exact = 1,
    .replaces = "gamma",
    .in_place = "the levels of --tree",
    .exceptions = (const mar_accel_exception[]){{"tree_top", NULL}, {"tree_total", NULL}, {0}},
    .is_on = levels_is_on,
};
