#include "specdec/neighbours.h"

#include <math.h>

static double log_accept(const spec_site *s, const double *parameter, spec_token x, double log_ratio)
{
    (void)log_ratio;
    double p_sum;
    spec_neighbour_set(s, x.id, parameter[0], parameter[1] * exp((double)s->log_p[x.id]), &p_sum);
    return p_sum > 0 ? fmin(0, log(p_sum) - s->log_q[x.id]) : s->log_q[x.id] > -INFINITY ? -INFINITY : 0;
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
    .log_accept = log_accept,
};
