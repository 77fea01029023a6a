/* LazyMAR's reuse inside the head (its release's diffloss_cached.py; diff_chain_reuse). */
#include "mar/masked.h"

static mar_status lazy_head_create(mar_masked *g, void **state, mar_err *err)
{
    (void)state, (void)err;
    diff_chain_reuse(&g->target.chain);
    return MAR_OK;
}

static const mar_masked_hooks lazy_head_hooks = {
    .create = lazy_head_create,
};

const mar_accel mar_accel_lazy_head = {
    .name = "lazy_head",
    .changes = MAR_STAGE_HEAD,
    .needs = MAR_STAGE_SOLVER | MAR_STAGE_COUNTS, /* it reuses six steps of seven, which need to be many */
    .methods =
        (const mar_accel_method[]){{.name = "lazymar-head",
                                    .guarantee = "none",
                                    .source = "LazyMAR's release (diffloss_cached.py)",
                                    .summary = "in 6 of 7 steps the head uses again what its blocks gave, on the "
                                               "conditional rows only"},
                                   {0}},
    .masked = &lazy_head_hooks,
};
