/* Verification of draft tokens against the target (kernels/gaussian.h), where a warp takes a row, and of paths
 * (kernels/path.h).
 *
 * Memory is no limit, with 24 bytes a channel. Double arithmetic dominates: two exponentials a channel of every row. A
 * rejected row adds two more, some evaluations of the tilt's slope, and the ratio of each candidate. A lane computes
 * its candidate's channels one after the other. One warp is enough for a row: a tilted candidate is kept after a few
 * tries, and the multiprocessor's other warps have their own rows. */
#include "kernels/cuda/cuda.h"

extern "C" {
#include "kernels/path.h"
#include "kernels/residual.h"
}

#include <limits.h>

enum { ROWS = 4, THREADS = 128 }; /* rows of a block; a round's rows should spread over the multiprocessors */

static __global__ void clear_kernel(int *first, int groups)
{
    const int g = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (g < groups) first[g] = INT_MAX;
}

/* Returns the job with its rows' lists on the device. Sets first [groups] to INT_MAX. */
template <typename J> static J begin(cuda_queue *c, const J &job, int *first)
{
    const size_t rows = (size_t)job.rows;
    J device = job;
    device.seed = cuda_stage(c, job.seed, rows);
    device.image = cuda_stage(c, job.image, rows);
    device.position = cuda_stage(c, job.position, rows);
    device.group = cuda_stage(c, job.group, rows);
    device.order = cuda_stage(c, job.order, rows);
    cuda_launch(c, clear_kernel, cuda_blocks((size_t)job.groups, THREADS), THREADS, 0, first, job.groups);
    return device;
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
    const kern_verify_job device = begin(c, *job, job->first_replaced);
    cuda_launch(c, verify_kernel, cuda_blocks((size_t)job->rows, ROWS), 32 * ROWS, ROWS * sizeof(kern_residual),
                device);
}

/* --- paths -------------------------------------------------------------------------------------------------- */

static __global__ void decide_kernel(kern_path_verdict job)
{
    const int row = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (row >= job.rows) return;
    const int marked = kern_path_marked(&job, row);
    job.marked[row] = marked;
    if (marked) atomicMin(&job.first[job.group[row]], job.order[row]);
}

void cuda_path_decide(kern_queue *k, const kern_path_verdict *job)
{
    cuda_queue *c = cuda_of(k);
    const kern_path_verdict device = begin(c, *job, job->first);
    cuda_launch(c, decide_kernel, cuda_blocks((size_t)job->rows, THREADS), THREADS, 0, device);
}
