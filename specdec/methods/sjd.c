#include "specdec/verifier.h"

static kern_discrete_rule sjd_rule(const double *parameter, int index, int length)
{
    (void)parameter, (void)index, (void)length;
    return (kern_discrete_rule){0};
}

const spec_method spec_sjd = {
    .name = "sjd",
    .source = "Speculative Jacobi Decoding (Teng et al. 2024); SJD-PAC section 3.3",
    .summary = "drafts are the target's own from the last round; after a rejection the tail is drawn anew",
    .tokens = SPEC_DISCRETE,
    .topologies = SPEC_CHAIN,
    .policy = SPEC_STOP,
    .exact = 1,
    .guarantee = "",
    .stale = 1,
    .discrete_rule = sjd_rule,
};
