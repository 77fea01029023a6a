#include "specdec/verifier.h"

static kern_discrete_rule lantern_pp_rule(const double *parameter, int index, int length)
{
    (void)index, (void)length;
    return (kern_discrete_rule){.neighbours = (int)parameter[0], .bound_p = parameter[1], .exclude_neighbours = 1};
}

const spec_method spec_lantern_pp = {
    .name = "lantern-pp",
    .source = "LANTERN++; Cool-SD section 3.1",
    .summary = "accept with min(1, p(A)/q), A the neighbours of the token, in all below lambda p",
    .tokens = SPEC_DISCRETE,
    .topologies = SPEC_CHAIN | SPEC_TREE,
    .policy = SPEC_STOP,
    .guarantee = "none",
    .neighbours = 1,
    .parameters = {{"k", 10, 1, 1e6, "neighbours looked at, the token itself among them"},
                   {"lambda", 2, 0, 1e3, "the neighbours may have less than lambda times the token's own probability"}},
    .discrete_rule = lantern_pp_rule,
};
