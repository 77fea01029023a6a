/* Comparison of whole chain paths under two distributions (kernels/path.h). A block takes a path.
 * Paths are few, with up to some thousand terms each; two double exponentials a term dominate. Beside the head's
 * evaluation at all these states the kernel is negligible. */
#include "kernels/cuda/cuda.h"

extern "C" {
#include "kernels/path.h"
}

enum { THREADS = 256, WARPS = THREADS / 32 };

static __global__ void ratio_kernel(kern_path_job job)
{
    double *sums = (double *)cuda_shared(); /* [WARPS] */
    const int path = (int)blockIdx.x;
    const double sum = kern_lanes_sum(kern_path_terms(&job, path, (int)threadIdx.x, THREADS));
    if (kern_lane() == 0) sums[threadIdx.x / 32] = sum;
    for (int c = (int)threadIdx.x; c < job.channels; c += THREADS)
        job.last[(size_t)path * (size_t)job.channels + (size_t)c] = kern_path_mean(&job, path, 0, c);
    __syncthreads();
    if (threadIdx.x != 0) return;
    double all = 0;
    for (int w = 0; w < WARPS; w++) all += sums[w];
    job.log_ratio[path] = all;
}

void cuda_path_ratio(kern_queue *k, const kern_path_job *job)
{
    cuda_queue *c = cuda_of(k);
    kern_path_job device = *job;
    device.coef = cuda_stage(c, job->coef, (size_t)job->steps);
    device.cfg = job->conditions == 2 ? cuda_stage(c, job->cfg, (size_t)job->paths) : NULL;
    cuda_launch(c, ratio_kernel, (unsigned)job->paths, THREADS, WARPS * sizeof(double), device);
}
