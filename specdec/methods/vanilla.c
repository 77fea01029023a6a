#include "specdec/verifier.h"

static kern_discrete_rule vanilla_rule(const double *parameter, int index, int length)
{
    (void)parameter, (void)index, (void)length;
    return (kern_discrete_rule){0};
}

const spec_method spec_vanilla = {
    .name = "vanilla",
    .source = "Leviathan et al. 2023; Chen et al. 2023; Cool-SD Eq. 1 and 2",
    .summary = "accept with min(1, p/q), else draw from the positive part of p - q",
    .tokens = SPEC_DISCRETE,
    .topologies = SPEC_CHAIN | SPEC_TREE,
    .policy = SPEC_STOP,
    .exact = 1,
    .guarantee = "",
    .discrete_rule = vanilla_rule,
};
