/* One step of the denoising chain, and addressed noise. */
#include "kernels/chain.h"
#include "kernels/cpu/cpu.h"

enum { PARALLEL_ROWS = 64 }; /* with fewer rows a fork costs more than the rows */

/* e [channels] = the normals at addresses (purpose, image, position, step, 0..channels-1). */
static void row_noise(float *e, int channels, uint64_t seed, kern_noise purpose, uint64_t image, int position, int step)
{
    uint32_t words[4];
    float four[4];
    for (int c = 0; c < channels; c += 4) {
        kern_random_words(seed, purpose, image, (uint32_t)position, (uint32_t)step, (uint32_t)c / 4, words);
        kern_normal4(words, four);
        for (int j = 0; j < 4 && c + j < channels; j++) e[c + j] = four[j];
    }
}

void cpu_normal(kern *k, float *x, int rows, int channels, uint64_t seed, kern_noise purpose, const uint64_t *image,
                const int *position, int step)
{
#pragma omp parallel for num_threads(cpu_of(k)->threads) if (rows >= PARALLEL_ROWS)
    for (int r = 0; r < rows; r++)
        row_noise(x + (size_t)r * (size_t)channels, channels, seed, purpose, image[r], position[r], step);
}

void cpu_chain_step(kern *k, float *x, const float *out, int rows, int channels, const float *cfg,
                    const kern_chain_coef *coef, uint64_t seed, const uint64_t *image, const int *position, int step)
{
#pragma omp parallel for num_threads(cpu_of(k)->threads) if (rows >= PARALLEL_ROWS)
    for (int r = 0; r < rows; r++) {
        float *state = x + (size_t)r * (size_t)channels;
        const float *cond = out + (size_t)r * 2 * (size_t)channels;
        const float *uncond = cfg ? out + (size_t)(rows + r) * 2 * (size_t)channels : cond;
        const float scale = cfg ? cfg[r] : 1;
        for (int c = 0; c < channels; c += 4) {
            float noise[4] = {0};
            if (coef->noise != 0) {
                uint32_t words[4];
                kern_random_words(seed, KERN_NOISE_STEP, image[r], (uint32_t)position[r], (uint32_t)step,
                                  (uint32_t)c / 4, words);
                kern_normal4(words, noise);
            }
            for (int j = 0; j < 4 && c + j < channels; j++)
                state[c + j] = kern_chain_next(coef, state[c + j], kern_chain_eps(cond[c + j], uncond[c + j], scale),
                                               cond[channels + c + j], noise[j]);
        }
    }
}

void cpu_chain_ode_step(kern *k, float *x, float *x0, const float *out, int rows, int channels, const float *cfg,
                        const kern_ode_coef *coef)
{
#pragma omp parallel for num_threads(cpu_of(k)->threads) if (rows >= PARALLEL_ROWS)
    for (int r = 0; r < rows; r++) {
        float *state = x + (size_t)r * (size_t)channels, *data = x0 + (size_t)r * (size_t)channels;
        const float *cond = out + (size_t)r * 2 * (size_t)channels;
        const float *uncond = cfg ? out + (size_t)(rows + r) * 2 * (size_t)channels : cond;
        const float scale = cfg ? cfg[r] : 1;
        for (int c = 0; c < channels; c++)
            state[c] = kern_chain_ode_next(coef, state[c], kern_chain_eps(cond[c], uncond[c], scale), &data[c]);
    }
}

void cpu_chain_law(kern *k, const float *x, const float *out, int rows, int channels, const float *cfg,
                   const kern_chain_coef *const *coef, float temperature, float *mean, float *log_std)
{
    const float log_temperature = logf(temperature);
#pragma omp parallel for num_threads(cpu_of(k)->threads) if (rows >= PARALLEL_ROWS)
    for (int r = 0; r < rows; r++) {
        const size_t first = (size_t)r * (size_t)channels;
        const float *cond = out + 2 * first;
        const float *uncond = cfg ? out + 2 * (size_t)(rows + r) * (size_t)channels : cond;
        for (int c = 0; c < channels; c++) {
            const size_t at = first + (size_t)c;
            mean[at] = kern_chain_mean(coef[r], x[at], kern_chain_eps(cond[c], uncond[c], cfg ? cfg[r] : 1));
            log_std[at] = kern_chain_log_std(coef[r], kern_chain_fraction(cond[channels + c])) + log_temperature;
        }
    }
}
