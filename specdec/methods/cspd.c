#include "specdec/verifier.h"

/* judge_accept of the released code. It divides both exponents by inner_temperature^2, but not the normalisers. Its
 * fixed_term is the inverse of the paper's Sigma. Its subtracted_distribution_unormalize is [p - q / fixed_term]+,
 * untempered. */
static kern_gaussian_rule cspd_rule(const double *parameter)
{
    return (kern_gaussian_rule){.temper = parameter[0] * parameter[0], .path_accept = -1, .path_scale = 1};
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
    .rule = cspd_rule,
};
