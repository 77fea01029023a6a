/* Continuous tokens on the host. kernels/gaussian.h verifies them here as in every backend. */
#include "specdec/verifier.h"

#include <string.h>

static kern_gaussians laws_of(const spec_site *s)
{
    return (kern_gaussians){s->size, s->mean_p, s->mean_q, s->log_std_p, s->log_std_q};
}

double spec_log_ratio(const spec_site *s, const float *x)
{
    const kern_gaussians laws = laws_of(s);
    return kern_gaussian_log_ratio(&laws, x);
}

spec_verdict spec_verify_one(const spec_method *m, const double *parameter, const spec_site *s, const float *draft,
                             const spec_address *address, float *replacement, long *tries)
{
    const kern_gaussian_rule rule = m->rule(parameter);
    const kern_gaussians laws = laws_of(s);
    const double log_f = kern_gaussian_log_accept(&rule, &laws, s->path_log_ratio, draft);
    const double log_c = kern_gaussian_log_scale(&rule, s->path_log_ratio);
    kern_residual residual;
    const int replaced = kern_gaussian_settle(&residual, &laws, log_f, log_c, address, draft, replacement, tries);
    return replaced ? SPEC_REPLACED : SPEC_ACCEPTED;
}

spec_outcome spec_verify(const spec_method *m, const double *parameter, const spec_block *block, spec_verdict *verdict,
                         float *x)
{
    spec_outcome o = {0};
    for (int n = 0; n < block->count; n++) verdict[n] = SPEC_DROPPED;
    for (int n = 0; n < block->count; n++) {
        const spec_site *s = &block->site[n];
        float *token = x + (size_t)n * (size_t)s->size;
        long tries;
        verdict[n] = spec_verify_one(m, parameter, s, block->draft[n], &block->address[n], token, &tries);
        o.tries += tries;
        o.final++;
        if (verdict[n] == SPEC_ACCEPTED) {
            memmove(token, block->draft[n], (size_t)s->size * sizeof *token);
            o.accepted++;
        } else if (block->stop || m->policy == SPEC_STOP) {
            break;
        }
    }
    return o;
}
