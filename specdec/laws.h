/* What the verifier calls for the two kinds of laws, continuous and discrete. Private to specdec/. */
#ifndef SPECDEC_LAWS_H
#define SPECDEC_LAWS_H

#include "specdec/verifier.h"

#include <math.h>

/* --- continuous: diagonal Gaussians (gaussian.c) --- */

double spec_gaussian_log_ratio(const spec_site *s, const float *x);
spec_verdict spec_gaussian_verify(const spec_method *m, const double *parameter, const spec_site *s, const float *draft,
                                  const spec_address *address, float *replacement, long *tries);

/* --- discrete (discrete.c) --- */

static inline double spec_discrete_log_ratio(const spec_site *s, int x)
{
    const double p = s->log_p[x], q = s->log_q[x];
    return p == q ? 0 : p - q; /* 0/0 = 1 */
}

/* Whether the uniform of its address accepts a draft. `sibling` is the draft's number among those of its position. */
int spec_accepts(const spec_method *m, const double *parameter, const spec_site *site, spec_token draft,
                 const spec_address *address, int sibling);

/* Draws the replacement *id of a rejected draft. Returns SPEC_ACCEPTED if nothing can replace it, else SPEC_REPLACED.
 */
spec_verdict spec_replace(const spec_method *m, const double *parameter, const spec_site *s, int draft,
                          const spec_address *address, int *id);

/* G(x) up to a factor, the resampler's law when `rejected` was rejected. */
double spec_residual_weight(const spec_method *m, const double *parameter, const spec_site *s, int x, int rejected);

/* A draw from the resampler with one uniform; -1 if no token has weight. */
int spec_residual_draw(const spec_method *m, const double *parameter, const spec_site *s, int rejected, double uniform);

/* A draw from exp(log_law[0..size-1]) without the `count` tokens in `without`. The law need not be normalised. Returns
 * -1 if no token has weight. */
int spec_law_draw(const float *log_law, int size, const int *without, int count, double uniform);

#endif
