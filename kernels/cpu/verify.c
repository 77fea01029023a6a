/* Verifies draft tokens against the target (kernels/gaussian.h), a row at a time. */
#include "kernels/cpu/cpu.h"
#include "kernels/gaussian.h"

#include <limits.h>

enum { PARALLEL_ROWS = 16 }; /* with fewer rows a fork costs more than the rows */

void cpu_add_log_std(kern *k, double *path, const float *log_std, int rows, int channels)
{
    (void)k;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < channels; c++) path[r] += log_std[(size_t)r * (size_t)channels + (size_t)c];
}

void cpu_verify(kern *k, const kern_verify_job *job)
{
    /* dynamic: a rejected row takes many times as long as an accepted one */
#pragma omp parallel for num_threads(cpu_of(k)->threads) schedule(dynamic, 4) if (job->rows >= PARALLEL_ROWS)
    for (int r = 0; r < job->rows; r++) kern_verify_row(job, r);
    for (int g = 0; g < job->groups; g++) job->first_replaced[g] = INT_MAX;
    for (int r = 0; r < job->rows; r++) {
        int *first = &job->first_replaced[job->group[r]];
        if (job->replaced[r] && job->order[r] < *first) *first = job->order[r];
    }
}
