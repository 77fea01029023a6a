/* Comparison of whole chain paths under two distributions, and the decision (kernels/path.h). */
#include "kernels/path.h"
#include "kernels/cpu/cpu.h"

#include <limits.h>

enum { TERM_WORK = 100 }; /* multiply-adds equivalent to a term: two exponentials */

static void ratio_body(void *arg, int first, int last, int thread)
{
    const kern_path_job *job = *(const kern_path_job **)arg;
    (void)thread;
    for (int path = first; path < last; path++) {
        job->log_ratio[path] = kern_path_terms(job, path, 0, 1);
        for (int c = 0; c < job->channels; c++)
            job->last[(size_t)path * (size_t)job->channels + (size_t)c] = kern_path_mean(job, path, 0, c);
    }
}

void cpu_path_ratio(kern_queue *k, const kern_path_job *job)
{
    const double terms = (double)job->paths * job->steps * job->channels;
    if (kern_live(k)) cpu_for(cpu_of(k), job->paths, TERM_WORK * terms, ratio_body, &job);
}

void cpu_path_decide(kern_queue *k, const kern_path_verdict *job)
{
    if (!kern_live(k)) return;
    for (int g = 0; g < job->groups; g++) job->first[g] = INT_MAX;
    for (int r = 0; r < job->rows; r++) {
        int *first = &job->first[job->group[r]];
        job->marked[r] = kern_path_marked(job, r);
        if (job->marked[r] && job->order[r] < *first) *first = job->order[r];
    }
}
