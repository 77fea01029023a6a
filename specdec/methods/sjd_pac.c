#include "specdec/verifier.h"

#include <math.h>

static double log_accept(const spec_site *s, const double *parameter, spec_token x, double log_ratio)
{
    (void)s, (void)parameter, (void)x;
    return fmin(0, log_ratio);
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
                   {"depth", 3, 0, 4, "positions of the tree (D); 0: none"}},
    .log_accept = log_accept,
};
