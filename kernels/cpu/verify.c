/* Verifies draft tokens against the target (kernels/gaussian.h), a row at a time. */
#include "kernels/cpu/cpu.h"
#include "kernels/residual.h"

#include <limits.h>

enum { ROW_WORK = 20000 }; /* multiply-adds equivalent to a row: its logarithms, and sometimes a rejection */

void cpu_add_log_std(kern_queue *k, double *path, const float *log_std, int rows, int channels)
{
    for (int r = 0; r < rows && kern_live(k); r++)
        for (int c = 0; c < channels; c++) path[r] += log_std[(size_t)r * (size_t)channels + (size_t)c];
}

static void gaussian_verify_body(void *arg, int first, int last, int thread)
{
    const kern_verify_job *job = *(const kern_verify_job **)arg;
    kern_residual residual;
    (void)thread;
    for (int r = first; r < last; r++) kern_verify_row(job, r, &residual);
}

void cpu_verify(kern_queue *k, const kern_verify_job *job)
{
    if (!kern_live(k)) return;
    cpu_for(cpu_of(k), job->rows, (double)ROW_WORK * job->rows, gaussian_verify_body, &job);
    for (int g = 0; g < job->groups; g++) job->first_replaced[g] = INT_MAX;
    for (int r = 0; r < job->rows; r++) {
        int *first = &job->first_replaced[job->group[r]];
        if (job->replaced[r] && job->order[r] < *first) *first = job->order[r];
    }
}
