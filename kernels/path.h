/* Comparison of whole chain paths under two distributions, and the decision: the formulas of both backends.
 * diffusion/paths.h defines a path and its ratio.
 *
 * The path's own distribution is stored as x0 and variance fraction (kern_speculation.evaluated). Its means are
 * recomputed from x0. The other distribution's means also go through x0. So equal outputs of the head give bit-equal
 * distributions (kern_multiply_add), and equal distributions give a log ratio of exactly 0. */
#ifndef KERNELS_PATH_H
#define KERNELS_PATH_H

#include "kernels/speculation.h"

/* Returns the record of a path at an index: [KERN_EVALUATED][C]. */
KERN_FN const float *kern_path_record(const kern_path_job *job, int path, int index)
{
    return job->path + (size_t)path * (size_t)job->stride + (size_t)index * KERN_EVALUATED * (size_t)job->channels;
}

/* Returns the head's output of a path at an index under the other distribution: [2C]. */
KERN_FN const float *kern_path_output(const kern_path_job *job, int condition, int path, int index)
{
    const size_t row = ((size_t)condition * (size_t)job->paths + (size_t)path) * (size_t)job->steps + (size_t)index;
    return job->out + row * 2 * (size_t)job->channels;
}

/* Returns the other distribution's mean after an index. */
KERN_FN float kern_path_mean(const kern_path_job *job, int path, int index, int c)
{
    const float *cond = kern_path_output(job, 0, path, index);
    const float *uncond = job->conditions == 2 ? kern_path_output(job, 1, path, index) : cond;
    const float scale = job->conditions == 2 ? job->cfg[path] : 1;
    return kern_chain_mean(&job->coef[index], kern_path_record(job, path, index)[c],
                           kern_chain_eps(cond[c], uncond[c], scale));
}

/* Returns log(other density / own density) of channel c of the state after a noisy index. */
KERN_ONCE_FN double kern_path_term(const kern_path_job *job, int path, int index, int c)
{
    const kern_chain_coef *coef = &job->coef[index];
    const float *record = kern_path_record(job, path, index), x = record[KERN_EVALUATED_STATE * job->channels + c];
    const float after = kern_path_record(job, path, index - 1)[KERN_EVALUATED_STATE * job->channels + c];
    const float v = kern_path_output(job, 0, path, index)[job->channels + c];
    const float own = kern_chain_mean_of(coef, x, record[KERN_EVALUATED_X0 * job->channels + c]);
    const float other = kern_chain_mean_of(coef, x, kern_speculation_x0(coef, x, kern_path_mean(job, path, index, c)));
    if (job->log_temperature == -INFINITY) { /* points: each is its mean */
        const double gap = (double)other - own;
        return gap == 0 || isnan(gap) ? gap : -INFINITY;
    }
    const double own_log_std = kern_chain_log_std(coef, record[KERN_EVALUATED_FRACTION * job->channels + c]);
    const double other_log_std = kern_chain_log_std(coef, kern_chain_fraction(v));
    /* Quotients: of products a compiler would round only one when it fuses q - p, which is then not 0 where they are
     * equal. */
    const double q = kern_divide((double)after - own, kern_exp(own_log_std + job->log_temperature));
    const double p = kern_divide((double)after - other, kern_exp(other_log_std + job->log_temperature));
    return own_log_std - other_log_std + 0.5 * (q - p) * (q + p);
}

/* Returns part of a path's log ratio: the terms first, first + stride, ... of its noisy indices, from the top down, by
 * channel. */
KERN_LANE_FN double kern_path_terms(const kern_path_job *job, int path, int first, int stride)
{
    const int terms = (job->steps - 1) * job->channels;
    double sum = 0;
    KERN_ROLLED
    for (int i = first; i < terms; i += stride)
        sum += kern_path_term(job, path, job->steps - 1 - i / job->channels, i % job->channels);
    return sum;
}

/* Returns 1 if row r of a verdict is marked. A NaN marks it. */
KERN_LANE_FN int kern_path_marked(const kern_path_verdict *job, int r)
{
    const kern_address a = {job->seed[r], job->image[r], (uint32_t)job->position[r], job->step};
    const double log_ratio = job->log_ratio[r];
    if (isnan(log_ratio)) return 1;
    if (log_ratio >= 0) return 0;
    const double u = kern_uniform_at(&a, KERN_NOISE_VERIFY, 0);
    /* -expm1 keeps its digits where the distributions are close and a candidate is rarely kept */
    return job->candidates ? u < -kern_expm1(log_ratio) : !(kern_log(u) < log_ratio);
}

#endif
