#include "specdec/verifier.h"

static kern_discrete_rule rule(const double *parameter, int index, int length)
{
    (void)parameter, (void)index, (void)length;
    return (kern_discrete_rule){0};
}

const spec_method spec_sjd_pac = {
    .name = "sjd-pac",
    .source = "SJD-PAC Alg. 1, Eq. 7 and 8",
    .summary = "as sjd, but verification goes on behind a rejection, and a tree is drafted there",
    .tokens = SPEC_DISCRETE,
    .topologies = SPEC_CHAIN | SPEC_CHAIN_TREE,
    .policy = SPEC_CONTINUE,
    .exact = 1,
    .guarantee = "the target's law",
    .stale = 1,
    .parameters = {{"children", 4, 1, 8, "drafts at a position of the tree, without replacement (K)"},
                   {"depth", 3, 0, 4, "positions of the tree (D); 0: none"},
                   {"continue", 1, 0, 1, "whether verification goes on behind a rejection"}},
    .discrete_rule = rule,
};
