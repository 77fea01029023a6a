#include "specdec/verifier.h"

#include <math.h>

static double log_accept(const spec_site *s, const double *parameter, spec_token x, double log_ratio)
{
    (void)s, (void)parameter, (void)x;
    return fmin(0, log_ratio);
}

const spec_method spec_sjd = {
    .name = "sjd",
    .source = "Speculative Jacobi Decoding (Teng et al. 2024); SJD-PAC section 3.3",
    .summary = "drafts are the target's own from the last round; after a rejection the tail is drawn anew",
    .tokens = SPEC_DISCRETE,
    .topologies = SPEC_CHAIN,
    .policy = SPEC_STOP,
    .exact = 1,
    .guarantee = "the target's law",
    .stale = 1,
    .log_accept = log_accept,
};
