/* Verification of draft tokens against the target (kernels/gaussian.h); a warp takes a row.
 *
 * Memory is no limit, with 24 bytes a channel. Double arithmetic dominates: two exponentials a channel of every row. A
 * rejected row adds two more, some evaluations of the tilt's slope, and the ratio of each candidate. A lane computes
 * its candidate's channels one after the other. One warp is enough for a row: a tilted candidate is kept after a few
 * tries, and the multiprocessor's other warps have their own rows. */
#include "kernels/cuda/cuda.h"

extern "C" {
#include "kernels/residual.h"
}

#include <limits.h>

enum { ROWS = 4 }; /* rows of a block; a round's rows should spread over the multiprocessors */

static __global__ void clear_kernel(int *first_replaced, int groups)
{
    const int g = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (g < groups) first_replaced[g] = INT_MAX;
}

static __global__ void verify_kernel(kern_verify_job job)
{
    const int row = (int)(blockIdx.x * ROWS + threadIdx.x / 32);
    kern_residual *residual = (kern_residual *)cuda_shared() + threadIdx.x / 32;
    if (row >= job.rows) return;
    if (kern_verify_row(&job, row, residual) && kern_lane() == 0)
        atomicMin(&job.first_replaced[job.group[row]], job.order[row]);
}

void cuda_verify(kern_queue *k, const kern_verify_job *job)
{
    cuda_queue *c = cuda_of(k);
    const size_t rows = (size_t)job->rows;
    kern_verify_job device = *job;
    cuda_stage_hold(c);
    device.seed = cuda_stage(c, job->seed, rows);
    device.image = cuda_stage(c, job->image, rows);
    device.position = cuda_stage(c, job->position, rows);
    device.group = cuda_stage(c, job->group, rows);
    device.order = cuda_stage(c, job->order, rows);
    cuda_stage_send(c);
    cuda_launch(c, clear_kernel, cuda_blocks((size_t)job->groups, 128), 128, 0, job->first_replaced, job->groups);
    cuda_launch(c, verify_kernel, cuda_blocks(rows, ROWS), 32 * ROWS, ROWS * sizeof(kern_residual), device);
}
