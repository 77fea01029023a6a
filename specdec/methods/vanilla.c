#include "specdec/verifier.h"

#include <math.h>

static double log_accept(const spec_site *s, const double *parameter, spec_token x, double log_ratio)
{
    (void)s, (void)parameter, (void)x;
    return fmin(0, log_ratio);
}

const spec_method spec_vanilla = {
    .name = "vanilla",
    .source = "Leviathan et al. 2023; Chen et al. 2023; Cool-SD Eq. 1 and 2",
    .summary = "accept with min(1, p/q), else draw from the positive part of p - q",
    .tokens = SPEC_DISCRETE,
    .topologies = SPEC_CHAIN | SPEC_TREE,
    .policy = SPEC_STOP,
    .exact = 1,
    .guarantee = "the target's law",
    .log_accept = log_accept,
};
