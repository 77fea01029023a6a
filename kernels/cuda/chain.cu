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

static __device__ inline void quad_noise(uint64_t seed, kern_noise purpose, uint64_t image, int position, int step,
                                         int c, float noise[4])
{
    uint32_t words[4];
    kern_random_words(seed, purpose, image, (uint32_t)position, (uint32_t)step, (uint32_t)c / 4, words);
    kern_normal4(words, noise);
}

static __global__ void normal_kernel(float *x, int rows, int channels, const uint64_t *seed, kern_noise purpose,
                                     const uint64_t *image, const int *position, const int *step)
{
    int r, c;
    float noise[4];
    if (!quad_of(rows, channels, &r, &c)) return;
    quad_noise(seed[r], purpose, image[r], position[r], *step, c, noise);
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

/* Returns the head's conditional output row of token r. */
static __device__ inline const float *cond_row(const cuda_chain_state *s, int r)
{
    return s->out + (size_t)r * 2 * s->channels;
}
static __device__ inline const float *uncond_row(const cuda_chain_state *s, int r)
{
    return s->out + (size_t)(s->cfg ? s->tokens + r : r) * 2 * s->channels;
}

static __global__ void step_kernel(cuda_chain_state s, const kern_chain_coef *coef_at, const int *t)
{
    int r, c;
    float noise[4] = {0, 0, 0, 0};
    if (!quad_of(s.tokens, s.channels, &r, &c)) return;
    const kern_chain_coef coef = *coef_at;
    const float *cond = cond_row(&s, r), *uncond = uncond_row(&s, r), cfg = s.cfg ? s.cfg[r] : 1;
    float *x = s.x + (size_t)r * s.channels;
    if (coef.noise != 0) quad_noise(s.seed[r], KERN_NOISE_STEP, s.image[r], s.position[r], *t, c, noise);
    for (int j = 0; j < 4 && c + j < s.channels; j++) {
        const int i = c + j;
        x[i] = kern_chain_next(&coef, x[i], kern_chain_eps(cond[i], uncond[i], cfg), cond[s.channels + i], noise[j]);
    }
}

void cuda_chain_advance(cuda_queue *c, const cuda_chain_state *s, const kern_chain_coef *coef, const int *t)
{
    cuda_launch(c, step_kernel, quad_blocks(s->tokens, s->channels), THREADS, 0, *s, coef, t);
}

void cuda_chain_step(kern_queue *k, float *x, const float *out, int rows, int channels, const float *cfg,
                     const kern_chain_coef *coef, const uint64_t *seed, const uint64_t *image, const int *position,
                     int step)
{
    cuda_queue *c = cuda_of(k);
    cfg = cuda_stage(c, cfg, (size_t)rows);
    seed = cuda_stage(c, seed, (size_t)rows);
    image = cuda_stage(c, image, (size_t)rows);
    position = cuda_stage(c, position, (size_t)rows);
    coef = cuda_stage(c, coef, 1);
    const int *t = cuda_stage(c, &step, 1);
    const cuda_chain_state s = {rows, channels, x, NULL, out, cfg, seed, image, position};
    cuda_chain_advance(c, &s, coef, t);
}

static __global__ void ode_step_kernel(cuda_chain_state s, const kern_ode_coef *coef_at)
{
    int r, c;
    if (!quad_of(s.tokens, s.channels, &r, &c)) return;
    const kern_ode_coef coef = *coef_at;
    const float *cond = cond_row(&s, r), *uncond = uncond_row(&s, r), cfg = s.cfg ? s.cfg[r] : 1;
    float *x = s.x + (size_t)r * s.channels, *x0 = s.x0 + (size_t)r * s.channels;
    for (int i = c; i < c + 4 && i < s.channels; i++)
        x[i] = kern_chain_ode_next(&coef, x[i], kern_chain_eps(cond[i], uncond[i], cfg), &x0[i]);
}

void cuda_chain_ode_advance(cuda_queue *c, const cuda_chain_state *s, const kern_ode_coef *coef)
{
    cuda_launch(c, ode_step_kernel, quad_blocks(s->tokens, s->channels), THREADS, 0, *s, coef);
}

void cuda_chain_ode_step(kern_queue *k, float *x, float *x0, const float *out, int rows, int channels, const float *cfg,
                         const kern_ode_coef *coef)
{
    cuda_queue *c = cuda_of(k);
    cfg = cuda_stage(c, cfg, (size_t)rows);
    coef = cuda_stage(c, coef, 1);
    const cuda_chain_state s = {rows, channels, x, x0, out, cfg, NULL, NULL, NULL};
    cuda_chain_ode_advance(c, &s, coef);
}

/* Computes the Gaussians of a step; coef [rows] is each row's own step. */
static __global__ void gaussian_kernel(cuda_chain_state s, const kern_chain_coef *coef, float log_temperature,
                                       float *mean, float *log_std)
{
    int r, c;
    if (!quad_of(s.tokens, s.channels, &r, &c)) return;
    const float *cond = cond_row(&s, r), *uncond = uncond_row(&s, r), cfg = s.cfg ? s.cfg[r] : 1;
    const size_t row = (size_t)r * s.channels;
    for (int i = c; i < c + 4 && i < s.channels; i++) {
        mean[row + i] = kern_chain_mean(&coef[r], s.x[row + i], kern_chain_eps(cond[i], uncond[i], cfg));
        log_std[row + i] = kern_chain_log_std(&coef[r], kern_chain_fraction(cond[s.channels + i])) + log_temperature;
    }
}

void cuda_chain_gaussian(kern_queue *k, const float *x, const float *out, int rows, int channels, const float *cfg,
                         const kern_chain_coef *const *coef, float temperature, float *mean, float *log_std)
{
    cuda_queue *c = cuda_of(k);
    kern_chain_coef *each = (kern_chain_coef *)malloc(((size_t)rows + 1) * sizeof *each);
    if (!each) {
        mar_err err = {};
        kern_fail(k, err_set(&err, MAR_ENOMEM, "out of memory: %zu bytes of host memory", rows * sizeof *each), &err);
        return;
    }
    for (int r = 0; r < rows; r++) each[r] = *coef[r];
    cfg = cuda_stage(c, cfg, (size_t)rows);
    const kern_chain_coef *staged = cuda_stage(c, each, (size_t)rows);
    free(each);
    const cuda_chain_state s = {rows, channels, (float *)x, NULL, out, cfg, NULL, NULL, NULL}; /* x is only read */
    cuda_launch(c, gaussian_kernel, quad_blocks(rows, channels), THREADS, 0, s, staged, logf(temperature), mean,
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
