/* One step of the denoising chain, and addressed noise: the arithmetic of kernels/cpu/chain.c. A thread has a quad, the
 * four channels that share a Philox block.
 *
 * Floor: a token reads out (16 C bytes with guidance) and reads and writes x (8 C): 384 bytes at C = 16, negligible
 * beside the launch. The noise is computed in double, about 200 operations a channel. */
#include "kernels/cuda/head.h"

#include <math.h>
#include <stdlib.h>

enum { THREADS = 128 };

static unsigned quad_blocks(int rows, int channels)
{
    return cuda_blocks((size_t)rows * (size_t)((channels + 3) / 4), THREADS);
}

/* Finds the row and the first channel of this thread's quad. Returns 0 if it has none. */
static __device__ inline int quad_of(int rows, int channels, int *r, int *c)
{
    const int quads = (channels + 3) / 4;
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    *r = (int)(i / (size_t)quads);
    *c = 4 * (int)(i % (size_t)quads);
    return *r < rows;
}

static __global__ void normal_kernel(float *x, int rows, int channels, const uint64_t *seed, kern_noise purpose,
                                     const uint64_t *image, const int *position, const int *step)
{
    int r, c;
    float noise[4];
    uint32_t words[4];
    if (!quad_of(rows, channels, &r, &c)) return;
    kern_random_words(seed[r], purpose, image[r], (uint32_t)position[r], (uint32_t)*step, (uint32_t)c / 4, words);
    kern_normal4(words, noise);
    for (int j = 0; j < 4 && c + j < channels; j++) x[(size_t)r * channels + c + j] = noise[j];
}

void cuda_normal(kern_queue *k, float *x, int rows, int channels, const uint64_t *seed, kern_noise purpose,
                 const uint64_t *image, const int *position, int step)
{
    cuda_queue *c = cuda_of(k);
    seed = cuda_stage(c, seed, (size_t)rows);
    image = cuda_stage(c, image, (size_t)rows);
    position = cuda_stage(c, position, (size_t)rows);
    const int *at = cuda_stage(c, &step, 1);
    cuda_launch(c, normal_kernel, quad_blocks(rows, channels), THREADS, 0, x, rows, channels, seed, purpose, image,
                position, at);
}

/* Returns the head's output rows of token r. Without guidance both are the same. */
static __device__ inline const float *cond_row(const kern_chain_job &j, int channels, int r)
{
    return j.out + (size_t)r * 2 * channels;
}
static __device__ inline const float *uncond_row(const kern_chain_job &j, int channels, int r)
{
    return cond_row(j, channels, j.cfg ? j.tokens + r : r);
}

static __global__ void step_kernel(kern_chain_job j, int channels, int index)
{
    int r, c;
    float noise[4] = {0, 0, 0, 0};
    if (!quad_of(j.tokens, channels, &r, &c)) return;
    const kern_chain_coef coef = j.coef[index];
    const float *cond = cond_row(j, channels, r), *uncond = uncond_row(j, channels, r), cfg = j.cfg ? j.cfg[r] : 1;
    float *x = j.x + (size_t)r * channels;
    if (coef.noise != 0) cuda_step_noise(j, index, r, c, noise);
    for (int i = c; i < c + 4 && i < channels; i++)
        x[i] = kern_chain_next(&coef, x[i], kern_chain_eps(cond[i], uncond[i], cfg), cond[channels + i], noise[i - c]);
}

static __global__ void ode_step_kernel(kern_chain_job j, int channels, int index)
{
    int r, c;
    if (!quad_of(j.tokens, channels, &r, &c)) return;
    const kern_ode_coef coef = j.ode[index];
    const float *cond = cond_row(j, channels, r), *uncond = uncond_row(j, channels, r), cfg = j.cfg ? j.cfg[r] : 1;
    float *x = j.x + (size_t)r * channels, *x0 = j.x0 + (size_t)r * channels;
    for (int i = c; i < c + 4 && i < channels; i++)
        x[i] = kern_chain_ode_next(&coef, x[i], kern_chain_eps(cond[i], uncond[i], cfg), &x0[i]);
}

void cuda_chain_advance(cuda_queue *c, const kern_chain_job *job, int channels, int index)
{
    cuda_launch(c, job->coef ? step_kernel : ode_step_kernel, quad_blocks(job->tokens, channels), THREADS, 0, *job,
                channels, index);
}

/* Returns a job of one step, with the guidance on the device. The kernels only read `out`. */
static kern_chain_job job_of(cuda_queue *c, float *x, const float *out, int rows, const float *cfg)
{
    kern_chain_job j = {};
    j.tokens = rows, j.x = x, j.out = (float *)out, j.cfg = cuda_stage(c, cfg, (size_t)rows);
    return j;
}

void cuda_chain_step(kern_queue *k, float *x, const float *out, int rows, int channels, const float *cfg,
                     const kern_chain_coef *coef, const uint64_t *seed, const uint64_t *image, const int *position,
                     int step)
{
    cuda_queue *c = cuda_of(k);
    kern_chain_job j = job_of(c, x, out, rows, cfg);
    j.seed = cuda_stage(c, seed, (size_t)rows);
    j.image = cuda_stage(c, image, (size_t)rows);
    j.position = cuda_stage(c, position, (size_t)rows);
    j.coef = cuda_stage(c, coef, 1);
    j.t = cuda_stage(c, &step, 1);
    cuda_chain_advance(c, &j, channels, 0);
}

void cuda_chain_ode_step(kern_queue *k, float *x, float *x0, const float *out, int rows, int channels, const float *cfg,
                         const kern_ode_coef *coef)
{
    cuda_queue *c = cuda_of(k);
    kern_chain_job j = job_of(c, x, out, rows, cfg);
    j.x0 = x0;
    j.ode = cuda_stage(c, coef, 1);
    cuda_chain_advance(c, &j, channels, 0);
}

/* Computes the Gaussians of a step; job.coef [rows] is each row's own step. */
static __global__ void gaussian_kernel(kern_chain_job j, int channels, float log_temperature, float *mean,
                                       float *log_std)
{
    int r, c;
    if (!quad_of(j.tokens, channels, &r, &c)) return;
    const float *cond = cond_row(j, channels, r), *uncond = uncond_row(j, channels, r), cfg = j.cfg ? j.cfg[r] : 1;
    const size_t row = (size_t)r * channels;
    for (int i = c; i < c + 4 && i < channels; i++) {
        mean[row + i] = kern_chain_mean(&j.coef[r], j.x[row + i], kern_chain_eps(cond[i], uncond[i], cfg));
        log_std[row + i] = kern_chain_log_std(&j.coef[r], kern_chain_fraction(cond[channels + i])) + log_temperature;
    }
}

void cuda_chain_gaussian(kern_queue *k, const float *x, const float *out, int rows, int channels, const float *cfg,
                         const kern_chain_coef *const *coef, float temperature, float *mean, float *log_std)
{
    cuda_queue *c = cuda_of(k);
    kern_chain_coef *each = (kern_chain_coef *)malloc(((size_t)rows + 1) * sizeof *each);
    if (!each) {
        cuda_fail(c, MAR_ENOMEM, "out of memory: %zu bytes of host memory", rows * sizeof *each);
        return;
    }
    for (int r = 0; r < rows; r++) each[r] = *coef[r];
    kern_chain_job j = job_of(c, (float *)x, out, rows, cfg); /* x is only read */
    j.coef = cuda_stage(c, each, (size_t)rows);
    free(each);
    cuda_launch(c, gaussian_kernel, quad_blocks(rows, channels), THREADS, 0, j, channels, logf(temperature), mean,
                log_std);
}

static __global__ void add_log_std_kernel(double *path, const float *log_std, int rows, int channels)
{
    const int r = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (r >= rows) return;
    double sum = path[r]; /* in the order of the CPU's sum */
    for (int c = 0; c < channels; c++) sum += log_std[(size_t)r * channels + c];
    path[r] = sum;
}

void cuda_add_log_std(kern_queue *k, double *path, const float *log_std, int rows, int channels)
{
    cuda_launch(cuda_of(k), add_log_std_kernel, cuda_blocks((size_t)rows, THREADS), THREADS, 0, path, log_std, rows,
                channels);
}
