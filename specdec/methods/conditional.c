#include "specdec/verifier.h"

#include <math.h>

/* Given the noise above it that draft and target share, a state of the chain is a draw from one known Gaussian, and
 * the target's is another: no factor from earlier steps belongs in the ratio. */
static double log_accept(const spec_site *s, const double *parameter, spec_token x, double log_ratio)
{
    (void)s, (void)parameter, (void)x;
    return fmin(0, log_ratio);
}

const spec_method spec_conditional = {
    .name = "conditional",
    .source = "continuous SD Eq. 1 and 10, at one step of the chain given the noise above it",
    .summary = "accept with min(1, p/q) of the last noisy step, else draw from the positive part of p - q",
    .tokens = SPEC_CONTINUOUS,
    .topologies = SPEC_CHAIN,
    .policy = SPEC_INDEPENDENT,
    .exact = 1,
    .guarantee = "the target's law, given the context",
    .log_accept = log_accept,
};
