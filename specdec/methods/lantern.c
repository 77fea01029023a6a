#include "specdec/neighbours.h"

#include <math.h>

static double log_accept(const spec_site *s, const double *parameter, spec_token x, double log_ratio)
{
    (void)log_ratio;
    double p_sum;
    spec_neighbour_set(s, x.id, parameter[0], parameter[1], &p_sum);
    return p_sum > 0 ? fmin(0, log(p_sum) - s->log_q[x.id]) : s->log_q[x.id] > -INFINITY ? -INFINITY : 0;
}

static double log_keep(const spec_site *s, const double *parameter, int candidate, int rejected, double log_ratio)
{
    return spec_neighbour_keep(s, candidate, rejected, parameter[0], parameter[1], log_ratio);
}

const spec_method spec_lantern = {
    .name = "lantern",
    .source = "LANTERN Alg. 1 and Appendix D",
    .summary = "accept with min(1, p(A)/q), A the neighbours of the token, in all below delta",
    .tokens = SPEC_DISCRETE,
    .topologies = SPEC_CHAIN | SPEC_TREE,
    .policy = SPEC_STOP,
    .guarantee = "the law a draft is tested against is within TV delta of the target's",
    .neighbours = 1,
    .parameters = {{"k", 1000, 1, 1e6, "neighbours looked at, the token itself among them"},
                   {"delta", 0.2, 0, 1, "the neighbours may have less than this probability"}},
    .log_accept = log_accept,
    .log_keep = log_keep,
};
