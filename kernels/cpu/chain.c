/* One step of the denoising chain, and addressed noise. */
#include "kernels/chain.h"
#include "kernels/cpu/cpu.h"

enum { NUMBER_WORK = 200 }; /* multiply-adds equivalent to drawing or updating a number */

/* Writes e [channels], the normals at addresses (seed, purpose, image, position, step, 0..channels-1). */
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

/* A loop over rows; each operation below uses some fields. */
typedef struct {
    float *x, *x0;
    const float *out;
    int rows, channels;
    const float *cfg;
    const kern_chain_coef *coef;
    const kern_chain_coef *const *row_coef;
    const kern_ode_coef *ode;
    kern_noise purpose;
    const uint64_t *seed;
    const uint64_t *image;
    const int *position;
    int step;
    float log_temperature, *mean, *log_std;
} rows_loop;

static void chain_rows_run(kern_queue *k, rows_loop *l, parallel_body *body)
{
    if (kern_live(k)) cpu_for(cpu_of(k), l->rows, (double)NUMBER_WORK * l->rows * l->channels, body, l);
}

/* Returns the head's conditional outputs of row r. */
static const float *conditional(const rows_loop *l, int r)
{
    return l->out + 2 * (size_t)r * (size_t)l->channels;
}
static const float *unconditional(const rows_loop *l, int r)
{
    return conditional(l, l->cfg ? l->rows + r : r);
}

static void normal_body(void *arg, int first, int last, int thread)
{
    const rows_loop *l = arg;
    (void)thread;
    for (int r = first; r < last; r++)
        row_noise(l->x + (size_t)r * (size_t)l->channels, l->channels, l->seed[r], l->purpose, l->image[r],
                  l->position[r], l->step);
}

void cpu_normal(kern_queue *k, float *x, int rows, int channels, const uint64_t *seed, kern_noise purpose,
                const uint64_t *image, const int *position, int step)
{
    rows_loop l = {.x = x,
                   .rows = rows,
                   .channels = channels,
                   .seed = seed,
                   .purpose = purpose,
                   .image = image,
                   .position = position,
                   .step = step};
    chain_rows_run(k, &l, normal_body);
}

static void step_body(void *arg, int first, int last, int thread)
{
    const rows_loop *l = arg;
    const int channels = l->channels;
    (void)thread;
    for (int r = first; r < last; r++) {
        float *state = l->x + (size_t)r * (size_t)channels;
        const float *cond = conditional(l, r), *uncond = unconditional(l, r);
        const float scale = l->cfg ? l->cfg[r] : 1;
        for (int c = 0; c < channels; c += 4) {
            float noise[4] = {0};
            if (l->coef->noise != 0) {
                uint32_t words[4];
                kern_random_words(l->seed[r], KERN_NOISE_STEP, l->image[r], (uint32_t)l->position[r], (uint32_t)l->step,
                                  (uint32_t)c / 4, words);
                kern_normal4(words, noise);
            }
            for (int j = 0; j < 4 && c + j < channels; j++)
                state[c + j] = kern_chain_next(l->coef, state[c + j], kern_chain_eps(cond[c + j], uncond[c + j], scale),
                                               cond[channels + c + j], noise[j]);
        }
    }
}

void cpu_chain_step(kern_queue *k, float *x, const float *out, int rows, int channels, const float *cfg,
                    const kern_chain_coef *coef, const uint64_t *seed, const uint64_t *image, const int *position,
                    int step)
{
    rows_loop l = {.x = x,
                   .out = out,
                   .rows = rows,
                   .channels = channels,
                   .cfg = cfg,
                   .coef = coef,
                   .seed = seed,
                   .image = image,
                   .position = position,
                   .step = step};
    chain_rows_run(k, &l, step_body);
}

static void ode_body(void *arg, int first, int last, int thread)
{
    const rows_loop *l = arg;
    const int channels = l->channels;
    (void)thread;
    for (int r = first; r < last; r++) {
        float *state = l->x + (size_t)r * (size_t)channels, *data = l->x0 + (size_t)r * (size_t)channels;
        const float *cond = conditional(l, r), *uncond = unconditional(l, r);
        const float scale = l->cfg ? l->cfg[r] : 1;
        for (int c = 0; c < channels; c++)
            state[c] = kern_chain_ode_next(l->ode, state[c], kern_chain_eps(cond[c], uncond[c], scale), &data[c]);
    }
}

void cpu_chain_ode_step(kern_queue *k, float *x, float *x0, const float *out, int rows, int channels, const float *cfg,
                        const kern_ode_coef *coef)
{
    rows_loop l = {.x = x, .x0 = x0, .out = out, .rows = rows, .channels = channels, .cfg = cfg, .ode = coef};
    chain_rows_run(k, &l, ode_body);
}

static void gaussian_body(void *arg, int first, int last, int thread)
{
    const rows_loop *l = arg;
    const int channels = l->channels;
    (void)thread;
    for (int r = first; r < last; r++) {
        const float *cond = conditional(l, r), *uncond = unconditional(l, r);
        for (int c = 0; c < channels; c++) {
            const size_t at = (size_t)r * (size_t)channels + (size_t)c;
            l->mean[at] =
                kern_chain_mean(l->row_coef[r], l->x[at], kern_chain_eps(cond[c], uncond[c], l->cfg ? l->cfg[r] : 1));
            l->log_std[at] =
                kern_chain_log_std(l->row_coef[r], kern_chain_fraction(cond[channels + c])) + l->log_temperature;
        }
    }
}

void cpu_chain_gaussian(kern_queue *k, const float *x, const float *out, int rows, int channels, const float *cfg,
                        const kern_chain_coef *const *coef, float temperature, float *mean, float *log_std)
{
    rows_loop l = {.x = (float *)(uintptr_t)x,
                   .out = out,
                   .rows = rows,
                   .channels = channels,
                   .cfg = cfg,
                   .row_coef = coef,
                   .log_temperature = logf(temperature),
                   .mean = mean,
                   .log_std = log_std};
    chain_rows_run(k, &l, gaussian_body);
}
