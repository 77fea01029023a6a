#include "tests/support/path_mutants.h"

#include "kernels/path.h"

#include <stdlib.h>

const char *const path_mutant_names[PATH_MUTANTS] = {
    [PATH_UNCHANGED] = "no mutant",
    [PATH_SWAPPED] = "P and Q swapped",
    [PATH_STEP_LEFT_OUT] = "one step left out of the sum",
    [PATH_KEEPS_ALL] = "residual without the 1 - Q/P",
    [PATH_LAST_COUNTED] = "the last index's density counted",
};

static const path_mutation *mutation_of(const kern_queue *k)
{
    return (const path_mutation *)k->head;
}

/* Returns the term of an index, summed over channels. */
static double term_of(const kern_path_job *job, int path, int index)
{
    double sum = 0;
    for (int c = 0; c < job->channels; c++) sum += kern_path_term(job, path, index, c);
    return sum;
}

/* Returns the term that index 0 would have if it added noise. The record's mean at index 0 is the path's token. */
static double last_term(const kern_path_job *job, int path)
{
    const kern_chain_coef *coef = &job->coef[0];
    const float *record = kern_path_record(job, path, 0), *v = kern_path_output(job, 0, path, 0) + job->channels;
    double sum = 0;
    for (int c = 0; c < job->channels; c++) {
        const float x0 = record[KERN_EVALUATED_X0 * job->channels + c];
        const double own = kern_chain_log_std(coef, record[KERN_EVALUATED_FRACTION * job->channels + c]);
        const double other = kern_chain_log_std(coef, kern_chain_fraction(v[c]));
        const double gap = (double)kern_chain_mean_of(coef, record[c], x0) - kern_path_mean(job, path, 0, c);
        const double p = gap * exp(-other - job->log_temperature);
        sum += own - other - 0.5 * p * p;
    }
    return sum;
}

static void mutated_ratio(kern_queue *k, const kern_path_job *job)
{
    const path_mutation *m = mutation_of(k);
    const int left_out = m->left_out < 0 ? job->steps + m->left_out : m->left_out;
    m->real->path_ratio(k, job);
    if (kern_check(k, NULL) != MAR_OK) return;
    for (int path = 0; path < job->paths; path++) {
        double *ratio = &job->log_ratio[path];
        if (m->mutant == PATH_SWAPPED) *ratio = -*ratio;
        if (m->mutant == PATH_STEP_LEFT_OUT) *ratio -= term_of(job, path, left_out);
        if (m->mutant == PATH_LAST_COUNTED) *ratio += last_term(job, path);
    }
}

static void mutated_decide(kern_queue *k, const kern_path_verdict *job)
{
    const path_mutation *m = mutation_of(k);
    kern_path_verdict verdict = *job;
    double *all = NULL;
    if (m->mutant == PATH_KEEPS_ALL && job->candidates) {
        all = malloc(((size_t)job->rows + 1) * sizeof *all);
        for (int r = 0; all && r < job->rows; r++) all[r] = -INFINITY;
        verdict.log_ratio = all;
        if (!all) abort();
    }
    m->real->path_decide(k, &verdict);
    free(all);
}

void path_mutant_begin(path_mutation *m, kern_queue *k, path_mutant mutant, int left_out)
{
    *m = (path_mutation){*k->head, k->head, mutant, left_out};
    m->ops.path_ratio = mutated_ratio;
    m->ops.path_decide = mutated_decide;
    k->head = &m->ops;
}

void path_mutant_end(path_mutation *m, kern_queue *k)
{
    k->head = m->real;
}
