#include "specdec/verifier.h"

static kern_discrete_rule lantern_pp_gstar_rule(const double *parameter, int index, int length)
{
    (void)index, (void)length;
    return (kern_discrete_rule){.neighbours = (int)parameter[0], .bound_p = parameter[1]};
}

const spec_method spec_lantern_pp_gstar = {
    .name = "lantern-pp-gstar",
    .source = "LANTERN++; resampler Cool-SD Eq. 5 and Fig. 4",
    .summary = "accept with min(1, p(A)/q), A the neighbours of the token, in all below lambda p; best resampler",
    .tokens = SPEC_DISCRETE,
    .topologies = SPEC_CHAIN | SPEC_TREE,
    .policy = SPEC_STOP,
    .guarantee = "TV bound of Cool-SD Eq. 4, for a chain",
    .neighbours = 1,
    .parameters = {{"k", 10, 1, 1e6, "neighbours looked at, the token itself among them"},
                   {"lambda", 2, 0, 1e3, "the neighbours may have less than lambda times the token's own probability"}},
    .discrete_rule = lantern_pp_gstar_rule,
};
