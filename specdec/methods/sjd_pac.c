#include "specdec/verifier.h"

static kern_discrete_rule sjd_pac_rule(const double *parameter, int index, int length)
{
    (void)parameter, (void)index, (void)length;
    return (kern_discrete_rule){0};
}

/* As in the authors' code, the tree's depth D counts the token before the drafts. K = 4 and D = 3 are 4 drafts of the
 * next token and 4 drafts after each: 21 tokens with the one before. The window is the drafts of a round: those of the
 * tree, and of the chain after its first path. The authors' L counts the token before, too. So their 64 is a window of
 * 63: 20 drafts and a chain of 43. A level of the tree that would leave no draft for the chain is left out. */
const spec_method spec_sjd_pac = {
    .name = "sjd-pac",
    .source = "SJD-PAC Alg. 1, Eq. 7 and 8",
    .summary = "as sjd, but verification goes on behind a rejection, and a tree is drafted there",
    .tokens = SPEC_DISCRETE,
    .topologies = SPEC_CHAIN | SPEC_CHAIN_TREE,
    .policy = SPEC_CONTINUE,
    .exact = 1,
    .guarantee = "",
    .stale = 1,
    .parameters = {{"children", 4, 1, 8, "drafts at a position of the tree, without replacement (K)"},
                   {"depth", 3, 0, 5, "tokens of a path of the tree, with the one in front of it (D); 0, 1: none"},
                   {"continue", 1, 0, 1, "whether verification goes on behind a rejection"}},
    .discrete_rule = sjd_pac_rule,
};
