#include "specdec/verifier.h"

#include <math.h>

/* omega_i ~ l - i. From i = l on omega_i is 0, so no draft is accepted there. The paper's l is 8 (Appendix C.3). The
 * default is 9, so that the eighth draft of a block can be accepted as well. */
static kern_discrete_rule cool_sd_linear_rule(const double *parameter, int index, int length)
{
    const double delta = parameter[0], l = parameter[1];
    double sum = 0;
    for (int j = 1; j <= length; j++) sum += fmax(0, l - j);
    const double omega = fmax(0, l - index);
    return (kern_discrete_rule){.log_omega = omega > 0 ? log(delta * length * omega / sum) : -INFINITY};
}

const spec_method spec_cool_sd_linear = {
    .name = "cool-sd-linear",
    .source = "Cool-SD Eq. 5, 7 and Appendix C.3 (Eq. 17)",
    .summary = "accept with min(1, omega_i p/q), omega_i falling linearly along the block",
    .tokens = SPEC_DISCRETE,
    .topologies = SPEC_CHAIN | SPEC_TREE,
    .policy = SPEC_STOP,
    .guarantee = "TV bound of Cool-SD Eq. 4, for a chain",
    .parameters = {{"delta", 1.1, 1e-3, 1e3, "relaxation budget, the mean of omega_i"},
                   {"ell", 9, 2, 1e6, "where the line meets zero; no draft from there on is accepted"}},
    .discrete_rule = cool_sd_linear_rule,
};
