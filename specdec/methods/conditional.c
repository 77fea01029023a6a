#include "specdec/verifier.h"

/* Draft and target share the noise above a state of the chain. Given that noise, the state is a draw from one known
 * Gaussian, and the target's is a draw from another. So the ratio has no factor from earlier steps. */
static kern_gaussian_rule conditional_rule(const double *parameter)
{
    (void)parameter;
    return (kern_gaussian_rule){.temper = 1};
}

const spec_method spec_conditional = {
    .name = "conditional",
    .source = "continuous SD Eq. 1 and 10, at one step of the chain given the noise above it",
    .summary = "accept with min(1, p/q) of the last noisy step, else draw from the positive part of p - q",
    .tokens = SPEC_CONTINUOUS,
    .topologies = SPEC_CHAIN,
    .policy = SPEC_INDEPENDENT,
    .exact = 1,
    .guarantee = ", given the context; of whole images with --gamma 1 only",
    .rule = conditional_rule,
};
