#include "specdec/verifier.h"

#include <math.h>

static double log_accept(const spec_site *s, const double *parameter, spec_token x, double log_ratio)
{
    (void)parameter, (void)x;
    return fmin(0, log_ratio + s->path_log_ratio);
}

/* [Sigma p - q]+ is Sigma [p - q / Sigma]+. */
static double log_scale(const spec_site *s, const double *parameter)
{
    (void)parameter;
    return -s->path_log_ratio;
}

const spec_method spec_paper = {
    .name = "paper",
    .source = "continuous SD Eq. 4, 5 and 11",
    .summary = "as conditional, but the ratio has the paper's factor Sigma of the noisy steps above",
    .tokens = SPEC_CONTINUOUS,
    .topologies = SPEC_CHAIN,
    .policy = SPEC_INDEPENDENT,
    .guarantee = "none: Sigma biases the tokens",
    .log_accept = log_accept,
    .log_scale = log_scale,
};
