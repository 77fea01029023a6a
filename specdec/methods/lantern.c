#include "specdec/verifier.h"

static kern_discrete_rule lantern_rule(const double *parameter, int index, int length)
{
    (void)index, (void)length;
    return (kern_discrete_rule){.neighbours = (int)parameter[0], .bound = parameter[1], .exclude_neighbours = 1};
}

const spec_method spec_lantern = {
    .name = "lantern",
    .source = "LANTERN Alg. 1 and Appendix D",
    .summary = "accept with min(1, p(A)/q), A the neighbours of the token, in all below delta",
    .tokens = SPEC_DISCRETE,
    .topologies = SPEC_CHAIN | SPEC_TREE,
    .policy = SPEC_STOP,
    .guarantee = "the distribution a draft is tested against is within TV delta of the target's",
    .neighbours = 1,
    .parameters = {{"k", 1000, 1, 1e6, "neighbours looked at, the token itself among them"},
                   {"delta", 0.2, 0, 1, "the neighbours may have less than this probability"}},
    .discrete_rule = lantern_rule,
};
