#include "specdec/verifier.h"

#include <math.h>

static kern_discrete_rule uniform_rsd_rule(const double *parameter, int index, int length)
{
    (void)index, (void)length;
    return (kern_discrete_rule){.log_omega = log(parameter[0])};
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
    .discrete_rule = uniform_rsd_rule,
};
