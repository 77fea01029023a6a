#include "specdec/verifier.h"

/* The path's ratio is log Sigma; [Sigma p - q]+ is Sigma [p - q / Sigma]+. */
static kern_gaussian_rule paper_rule(const double *parameter)
{
    (void)parameter;
    return (kern_gaussian_rule){.temper = 1, .path_accept = 1, .path_scale = -1};
}

const spec_method spec_paper = {
    .name = "paper",
    .source = "continuous SD Eq. 4, 5 and 11",
    .summary = "as conditional, but the ratio has the paper's factor Sigma of the noisy steps above",
    .tokens = SPEC_CONTINUOUS,
    .topologies = SPEC_CHAIN,
    .policy = SPEC_INDEPENDENT,
    .guarantee = "none: Sigma biases the tokens",
    .rule = paper_rule,
};
