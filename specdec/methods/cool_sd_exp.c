#include "specdec/verifier.h"

#include <math.h>

/* Late in the block omega_i is below 1. Norm[p - q]+ would be wrong there, so the resampler is the general form. */
static kern_discrete_rule cool_sd_exp_rule(const double *parameter, int index, int length)
{
    const double delta = parameter[0], nu = parameter[1];
    double sum = 0; /* of exp(-nu j), scaled by exp(nu i) so that nothing overflows */
    for (int j = 1; j <= length; j++) sum += exp(-nu * (j - index));
    return (kern_discrete_rule){.log_omega = log(delta * length / sum)};
}

const spec_method spec_cool_sd_exp = {
    .name = "cool-sd-exp",
    .source = "Cool-SD Eq. 5, 7 and 10",
    .summary = "accept with min(1, omega_i p/q), omega_i falling exponentially along the block",
    .tokens = SPEC_DISCRETE,
    .topologies = SPEC_CHAIN | SPEC_TREE,
    .policy = SPEC_STOP,
    .guarantee = "TV bound of Cool-SD Eq. 4, for a chain",
    .parameters = {{"delta", 1.1, 1e-3, 1e3, "relaxation budget, the mean of omega_i"},
                   {"nu", 0.7, 0, 10, "rate of the fall"}},
    .discrete_rule = cool_sd_exp_rule,
};
