#include "specdec/laws.h"

double spec_log_ratio(const spec_site *site, spec_token x)
{
    return site->log_p ? spec_discrete_log_ratio(site, x.id) : spec_gaussian_log_ratio(site, x.x);
}

int spec_accepts(const spec_method *m, const double *parameter, const spec_site *site, spec_token draft,
                 const spec_address *address, int sibling)
{
    const double log_ratio = spec_discrete_log_ratio(site, draft.id);
    const double log_f = isnan(log_ratio) ? NAN : m->log_accept(site, parameter, draft, log_ratio);
    if (isnan(log_f)) return 0; /* a NaN in a law rejects; the replacement shows it */
    return log_f >= 0 || log(kern_uniform_at(address, KERN_NOISE_VERIFY, (uint32_t)sibling)) < log_f;
}

spec_verdict spec_replace(const spec_method *m, const double *parameter, const spec_site *s, int draft,
                          const spec_address *address, int *id)
{
    const double uniform = kern_uniform_at(address, KERN_NOISE_RESIDUAL, 0);
    *id = spec_residual_draw(m, parameter, s, draft, uniform);
    if (*id >= 0) return SPEC_REPLACED;
    *id = s->log_p[draft] > -INFINITY ? draft : spec_law_draw(s->log_p, s->size, NULL, 0, uniform);
    return *id == draft ? SPEC_ACCEPTED : SPEC_REPLACED; /* p = q up to rounding */
}

spec_verdict spec_verify_one(const spec_method *m, const double *parameter, const spec_site *site, spec_token draft,
                             const spec_address *address, float *replacement, int *id, long *tries)
{
    if (!site->log_p) return spec_gaussian_verify(m, parameter, site, draft.x, address, replacement, tries);
    *tries = 0;
    if (spec_accepts(m, parameter, site, draft, address, 0)) return SPEC_ACCEPTED;
    return spec_replace(m, parameter, site, draft.id, address, id);
}
