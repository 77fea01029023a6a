#include "specdec/verifier.h"

#include <math.h>

/* judge_accept of the released code: both exponents are divided by inner_temperature^2, the normalisers are not, and
 * its fixed_term is the inverse of the paper's Sigma. */
static double log_accept(const spec_site *s, const double *parameter, spec_token x, double log_ratio)
{
    (void)x;
    double normalisers = 0; /* of the ratio: log |std_q| - log |std_p| */
    for (int i = 0; i < s->size; i++) normalisers += (double)s->log_std_q[i] - s->log_std_p[i];
    const double exponents = log_ratio - normalisers;
    return fmin(0, exponents / (parameter[0] * parameter[0]) + normalisers - s->path_log_ratio);
}

/* subtracted_distribution_unormalize: [p - q / fixed_term]+, untempered. */
static double log_scale(const spec_site *s, const double *parameter)
{
    (void)parameter;
    return s->path_log_ratio;
}

const spec_method spec_cspd = {
    .name = "cspd",
    .source = "released code of continuous SD (CSpD), spec_decode_runner.py",
    .summary = "ratio of the last index, tempered, with the inverse of the paper's Sigma",
    .tokens = SPEC_CONTINUOUS,
    .topologies = SPEC_CHAIN,
    .policy = SPEC_INDEPENDENT,
    .guarantee = "none: the tempered ratio keeps drafts that the target would not draw",
    .last_index = 1,
    .parameters = {{"inner_temperature", 42, 1e-3, 1e6, "divides both exponents of the ratio, squared"}},
    .log_accept = log_accept,
    .log_scale = log_scale,
};
