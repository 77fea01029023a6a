/* Draft tokens against the target: kernels/gaussian.h with a warp a row.
 *
 * 24 bytes a channel move, which is nothing; what takes time is arithmetic in double: two exponentials a channel of
 * every row, and of a rejected one half a Box-Muller transform and up to five exponentials a channel of a candidate,
 * one channel after the other in a candidate's lane. */
#include "kernels/cuda/cuda.h"

extern "C" {
#include "kernels/gaussian.h"
}

#include <limits.h>

enum { ROWS = 4 }; /* of a block: a round has few, which are to spread over the multiprocessors */

static __global__ void clear_kernel(int *first_replaced, int groups)
{
    const int g = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (g < groups) first_replaced[g] = INT_MAX;
}

static __global__ void verify_kernel(kern_verify_job job)
{
    const int row = (int)(blockIdx.x * ROWS + threadIdx.x / 32);
    if (row >= job.rows) return;
    if (kern_verify_row(&job, row) && kern_lane() == 0) atomicMin(&job.first_replaced[job.group[row]], job.order[row]);
}

void cuda_verify(kern *k, const kern_verify_job *job)
{
    cuda_kern *c = cuda_of(k);
    const size_t rows = (size_t)job->rows;
    kern_verify_job device = *job;
    device.image = cuda_stage(c, job->image, rows);
    device.position = cuda_stage(c, job->position, rows);
    device.group = cuda_stage(c, job->group, rows);
    device.order = cuda_stage(c, job->order, rows);
    cuda_launch(c, clear_kernel, cuda_blocks((size_t)job->groups, 128), 128, 0, job->first_replaced, job->groups);
    cuda_launch(c, verify_kernel, cuda_blocks(rows, ROWS), 32 * ROWS, 0, device);
}
