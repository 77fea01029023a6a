/* Speculative Coupled Decoding: Jacobi decoding whose drafts keep their noise.
 *
 * SJD draws the tail anew in each round, so that drafts jump although their distributions hardly change. Here the draft
 * of position k is the winner of a race, the token of the least E_k(x) / q(x), with E_k exponential and addressed by
 * seed, image, position and token (kern_race_time). -log E is the Gumbel noise of the paper: the winner is the largest
 * log q + g. Two rounds with distributions q and q' give the same draft with a probability of at least
 * (1 - TV(q, q')) / (1 + TV(q, q')).
 *
 * Exact to p. Let H be all that happens before position k is tested, E_k excepted: the noise E_j of the positions j <
 * k, and all coins and replacements of their tests.
 *  1. The distributions of position k depend on tokens and drafts at positions before k only. The drafts there are
 *     functions of E_j, j < k, and of such distributions. So every q_k of every round is a function of H, and p_k is,
 *     too. Which round tests k, and whether a path of the tree reaches it, is decided by tests of earlier positions.
 *  2. Position k is tested once. A test ends with a final token: an accepted draft or a replacement. After a
 * replacement the round stops (SPEC_STOP), and positions behind it are not tested. So E_k has entered no decision: only
 * drafts of k, which condition distributions of positions after k.
 *  3. Hence E_k is independent of H. The draft, the winner under q_k, has the distribution q_k given H. The coin and
 * the noise of the replacement have their own addresses (VERIFY and RESIDUAL, with the round), and are independent of H
 *     and E_k. Accepting with min(1, p/q), else drawing from Norm[p - q]+, gives a token from p_k given H.
 *  4. Position k + 1 has H' of H, E_k, and the coins of k. p_{k+1} is that of the final tokens. By induction the
 * sequence has the target's distribution. Positions that are not final keep their E.
 *
 * The noise of a replacement is fresh because E_k is spent: given H and the rejected draft x, the race among the other
 * tokens is conditioned on x having won. The bonus token behind a leaf of the tree, where no draft is tested, could
 * take E_k; it takes fresh noise as well.
 *
 * The tree of sjd-pac: a position's siblings are the K least times in their order. That is the order of draws without
 * replacement from q_k (Plackett-Luce), which SJD-PAC's Eq. 7 and 8 assume. Step 3 holds for the K winners together.
 *
 * SJD-PAC's continuation is the other coupling. It tests positions behind a rejection: they keep their draft with
 * min(1, p/q) or take a replacement, so the draft of the next round is coupled maximally with its last one. Then E_k
 * has entered the test, and step 2 fails for any later race of k. So the two exclude each other. The maximal coupling
 * of SCD's released code is `sjd-pac` with `--pac_children 1`. */
#include "specdec/verifier.h"

static kern_discrete_rule scd_rule(const double *parameter, int index, int length)
{
    (void)parameter, (void)index, (void)length;
    return (kern_discrete_rule){0};
}

const spec_method spec_scd = {
    .name = "scd",
    .source = "Speculative Coupled Decoding (arXiv 2510.24211), with Gumbel noise",
    .summary = "as sjd, but a draft keeps its noise from round to round, with a tree as sjd-pac's",
    .tokens = SPEC_DISCRETE,
    .topologies = SPEC_CHAIN | SPEC_CHAIN_TREE,
    .policy = SPEC_STOP,
    .exact = 1,
    .guarantee = "",
    .stale = 1,
    .coupled = 1,
    .parameters = {{"children", 1, 1, KERN_RACE_MOST, "drafts at a position of the tree, without replacement (K)"},
                   {"depth", 3, 0, 5, "tokens of a path of the tree, with the one in front of it (D); 0, 1: none"}},
    .discrete_rule = scd_rule,
};
