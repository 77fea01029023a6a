/* Discrete tokens. The resampler is a weight for each token of the vocabulary; a draw takes two passes and no memory.
 */
#include "specdec/laws.h"

double spec_residual_weight(const spec_method *m, const double *parameter, const spec_site *s, int x, int rejected)
{
    const double p = exp((double)s->log_p[x]);
    if (p == 0) return 0; /* never a token that the target excludes */
    const double ratio = spec_discrete_log_ratio(s, x);
    if (m->log_keep) return p * exp(m->log_keep(s, parameter, x, rejected, ratio));
    const double log_f = m->log_accept(s, parameter, (spec_token){.id = x}, ratio);
    return fmax(0, p - exp((double)s->log_q[x] + log_f));
}

int spec_residual_draw(const spec_method *m, const double *parameter, const spec_site *s, int rejected, double uniform)
{
    double total = 0;
    for (int x = 0; x < s->size; x++) total += spec_residual_weight(m, parameter, s, x, rejected);
    if (!(total > 0)) return -1;
    int last = -1;
    double rest = uniform * total;
    for (int x = 0; x < s->size; x++) {
        const double weight = spec_residual_weight(m, parameter, s, x, rejected);
        if (weight > 0) last = x;
        if (weight > rest) break;
        rest -= weight;
    }
    return last;
}

static double weight_without(const float *log_law, int x, const int *without, int count)
{
    for (int i = 0; i < count; i++)
        if (without[i] == x) return 0;
    return exp((double)log_law[x]);
}

int spec_law_draw(const float *log_law, int size, const int *without, int count, double uniform)
{
    double total = 0;
    for (int x = 0; x < size; x++) total += weight_without(log_law, x, without, count);
    if (!(total > 0)) return -1;
    int last = -1;
    double rest = uniform * total;
    for (int x = 0; x < size; x++) {
        const double weight = weight_without(log_law, x, without, count);
        if (weight > 0) last = x;
        if (weight > rest) break;
        rest -= weight;
    }
    return last;
}
