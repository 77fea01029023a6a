#include "specdec/verifier.h"

#include <math.h>

static double log_accept(const spec_site *s, const double *parameter, spec_token x, double log_ratio)
{
    (void)s, (void)x;
    return fmin(0, log(parameter[0]) + log_ratio);
}

const spec_method spec_uniform_rsd = {
    .name = "uniform-rsd",
    .source = "Cool-SD Eq. 5 and 7 (UniformRSD)",
    .summary = "accept with min(1, delta p/q)",
    .tokens = SPEC_DISCRETE,
    .topologies = SPEC_CHAIN | SPEC_TREE,
    .policy = SPEC_STOP,
    .guarantee = "TV bound of Cool-SD Eq. 4, for a chain",
    .parameters = {{"delta", 1.1, 1e-3, 1e3, "relaxation budget; 1 is exact"}},
    .log_accept = log_accept,
};
