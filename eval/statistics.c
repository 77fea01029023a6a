#include "eval/statistics.h"

#include "kernels/rng.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    LANES = 16, /* partial sums of floats: vectorises, and rounds less */
    BLOCK = 256 /* positions summed at a time */
};

float *eval_permutation_signs(int permutations, int n)
{
    static const uint64_t seed = 0x6669646c; /* fixed: reports are reproducible */
    float *signs = malloc((size_t)(permutations + 1) * (size_t)n * sizeof *signs);
    if (!signs) return NULL;
    for (int i = 0; i < n; i++) signs[i] = 1;
    for (int k = 1; k <= permutations; k++)
        for (int i = 0; i < n; i += 128) {
            const uint32_t counter[4] = {(uint32_t)i / 128, (uint32_t)k, 0, 0};
            uint32_t bits[4];
            kern_philox(seed, counter, bits);
            for (int j = 0; j < 128 && i + j < n; j++)
                signs[(size_t)k * (size_t)n + (size_t)(i + j)] = bits[j / 32] >> j % 32 & 1 ? -1 : 1;
        }
    return signs;
}

/* --- energy distance ---------------------------------------------------------------------------------------- */

/* Computes 1 / standard deviation of every channel of run b; 1 for a constant channel. */
static void channel_scales(const eval_pairs *x, float *scale)
{
    const size_t tokens = (size_t)x->images * (size_t)x->positions, c = (size_t)x->channels;
    for (size_t k = 0; k < c; k++) {
        double mean = 0, square = 0;
        for (size_t t = 0; t < tokens; t++) mean += (double)x->b[t * c + k] / (double)tokens;
        for (size_t t = 0; t < tokens; t++) square += pow((double)x->b[t * c + k] - mean, 2);
        scale[k] = square > 0 ? (float)sqrt((double)tokens / square) : 1;
    }
}

/* Scales and transposes tokens [N][S][C] to out [N][C][S]. */
static void scale_and_transpose(const eval_pairs *x, const float *tokens, const float *scale, float *out)
{
    const size_t s = (size_t)x->positions, c = (size_t)x->channels;
    for (size_t i = 0; i < (size_t)x->images; i++)
        for (size_t p = 0; p < s; p++)
            for (size_t k = 0; k < c; k++) out[(i * c + k) * s + p] = tokens[(i * s + p) * c + k] * scale[k];
}

typedef struct {
    float image, token; /* |x - y|; mean over positions of |x_p - y_p| */
} distances;

/* Computes the distances of images x, y [C][S]. */
static distances distance(const float *x, const float *y, int positions, int channels)
{
    double image = 0, token = 0;
    for (int first = 0; first < positions; first += BLOCK) {
        const int n = positions - first < BLOCK ? positions - first : BLOCK;
        float square[BLOCK] = {0}, norm[LANES] = {0}, sum[LANES] = {0};
        for (int k = 0; k < channels; k++) {
            const float *u = x + (size_t)k * (size_t)positions + first, *v = y + (size_t)k * (size_t)positions + first;
            for (int p = 0; p < n; p++) square[p] += (u[p] - v[p]) * (u[p] - v[p]);
        }
        for (int p = 0; p < n; p += LANES) /* the rest of the block is zero */
            for (int l = 0; l < LANES; l++) {
                sum[l] += square[p + l];
                norm[l] += sqrtf(square[p + l]);
            }
        for (int l = 0; l < LANES; l++) {
            image += (double)sum[l];
            token += (double)norm[l];
        }
    }
    return (distances){(float)sqrt(image), (float)(token / positions)};
}

/* Computes row i of K, columns i+1..N-1: K_ij = d(a_i,a_j) + d(b_i,b_j) - d(a_i,b_j) - d(b_i,a_j). Swapping pair i or j
 * negates it. So a permutation with signs s has the distance -sum_{i != j} s_i s_j K_ij / (N (N-1)). */
static void kernel_row(const eval_pairs *x, const float *a, const float *b, int i, float *image, float *token)
{
    const size_t d = (size_t)x->positions * (size_t)x->channels;
    const float *ai = a + (size_t)i * d, *bi = b + (size_t)i * d;
    for (int j = i + 1; j < x->images; j++) {
        const float *aj = a + (size_t)j * d, *bj = b + (size_t)j * d;
        const distances aa = distance(ai, aj, x->positions, x->channels),
                        bb = distance(bi, bj, x->positions, x->channels),
                        ab = distance(ai, bj, x->positions, x->channels),
                        ba = distance(bi, aj, x->positions, x->channels);
        image[j] = (aa.image + bb.image) - (ab.image + ba.image); /* exactly 0 for identical runs */
        token[j] = (aa.token + bb.token) - (ab.token + ba.token);
    }
}

static double dot(const float *x, const float *y, int n)
{
    float part[LANES] = {0};
    double sum = 0;
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) part[l] += x[i + l] * y[i + l];
    for (; i < n; i++) sum += (double)x[i] * (double)y[i];
    for (int l = 0; l < LANES; l++) sum += (double)part[l];
    return sum;
}

static int statistics_ascending(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Tests value [1+permutations], the observed one first. Sorts the others. */
static eval_energy_test permutation_test(double *value, int permutations)
{
    const double slack = 1e-6 * fabs(value[0]); /* equality up to rounding counts */
    eval_energy_test t = {.distance = value[0], .p = 1};
    for (int k = 1; k <= permutations; k++) t.p += value[k] >= value[0] - slack;
    t.p /= permutations + 1;
    qsort(value + 1, (size_t)permutations, sizeof *value, statistics_ascending);
    t.null_95 = value[1 + (int)(0.95 * (permutations - 1))];
    return t;
}

mar_status eval_energy(const eval_pairs *x, int permutations, eval_energy_test *image, eval_energy_test *token)
{
    const size_t n = (size_t)x->images, d = (size_t)x->positions * (size_t)x->channels;
    float *scale = malloc((size_t)x->channels * sizeof *scale);
    float *a = malloc(n * d * sizeof *a), *b = malloc(n * d * sizeof *b);
    float *rows = malloc(2 * n * sizeof *rows), *signs = eval_permutation_signs(permutations, x->images);
    double *values = calloc(2 * ((size_t)permutations + 1), sizeof *values);
    const int ready = scale && a && b && rows && signs && values;
    if (ready) {
        float *of_image = rows, *of_token = rows + n;
        double *images = values, *tokens = values + permutations + 1;
        channel_scales(x, scale);
        scale_and_transpose(x, x->a, scale, a);
        scale_and_transpose(x, x->b, scale, b);
        for (size_t i = 0; i + 1 < n; i++) {
            kernel_row(x, a, b, (int)i, of_image, of_token);
            const int rest = (int)(n - i) - 1;
            for (int k = 0; k <= permutations; k++) {
                const float *s = signs + (size_t)k * n + i;
                images[k] -= (double)s[0] * dot(s + 1, of_image + i + 1, rest);
                tokens[k] -= (double)s[0] * dot(s + 1, of_token + i + 1, rest);
            }
        }
        const double pairs = (double)n * (double)(n - 1) / 2;
        for (int k = 0; k < 2 * (permutations + 1); k++) values[k] /= pairs;
        *image = permutation_test(images, permutations);
        *token = permutation_test(tokens, permutations);
    }
    free(scale);
    free(a);
    free(b);
    free(rows);
    free(signs);
    free(values);
    return ready ? MAR_OK : MAR_ENOMEM;
}

/* --- Kolmogorov-Smirnov ------------------------------------------------------------------------------------- */

typedef struct {
    float value;
    uint32_t owner; /* image, or N + image for run b */
} ks_entry;

static int by_value(const void *x, const void *y)
{
    const float a = ((const ks_entry *)x)->value, b = ((const ks_entry *)y)->value;
    return (a > b) - (a < b);
}

/* Sorts channel k of both runs. step [2*N*S]: owner*2, plus 1 at the last of equal values. */
static void ks_sort(const eval_pairs *x, int k, ks_entry *entries, uint32_t *step)
{
    const size_t n = (size_t)x->images, s = (size_t)x->positions, c = (size_t)x->channels, half = n * s;
    for (size_t t = 0; t < half; t++) {
        entries[t] = (ks_entry){x->a[t * c + (size_t)k], (uint32_t)(t / s)};
        entries[half + t] = (ks_entry){x->b[t * c + (size_t)k], (uint32_t)(n + t / s)};
    }
    qsort(entries, 2 * half, sizeof *entries, by_value);
    for (size_t t = 0; t < 2 * half; t++)
        step[t] = entries[t].owner * 2 + (t + 1 == 2 * half || entries[t].value != entries[t + 1].value);
}

/* Returns sup |F_a - F_b| in units of 1/(N*S). weight [2N]: an owner's contribution to F_a - F_b. */
static int ks_scan(const uint32_t *step, size_t steps, const int8_t *weight)
{
    int sum = 0, best = 0;
    for (size_t t = 0; t < steps; t++) {
        sum += weight[step[t] >> 1];
        const int size = abs(sum);
        if (step[t] & 1 && size > best) best = size;
    }
    return best;
}

mar_status eval_ks(const eval_pairs *x, int permutations, double *d, double *p)
{
    const size_t n = (size_t)x->images, half = n * (size_t)x->positions;
    ks_entry *entries = malloc(2 * half * sizeof *entries);
    uint32_t *step = malloc(2 * half * sizeof *step);
    int8_t *weight = malloc(2 * n);
    int *largest = calloc((size_t)permutations + 1, sizeof *largest);
    int *observed = malloc((size_t)x->channels * sizeof *observed);
    float *signs = eval_permutation_signs(permutations, x->images);
    const int ready = entries && step && weight && largest && observed && signs;
    for (int c = 0; ready && c < x->channels; c++) {
        ks_sort(x, c, entries, step);
        for (int k = 0; k <= permutations; k++) {
            for (size_t i = 0; i < n; i++) {
                weight[i] = signs[(size_t)k * n + i] > 0 ? 1 : -1;
                weight[n + i] = (int8_t)-weight[i];
            }
            const int size = ks_scan(step, 2 * half, weight);
            if (k == 0) observed[c] = size;
            if (size > largest[k]) largest[k] = size;
        }
    }
    for (int c = 0; ready && c < x->channels; c++) {
        int above = 0;
        for (int k = 1; k <= permutations; k++) above += largest[k] >= observed[c];
        d[c] = observed[c] / (double)half;
        p[c] = (1 + above) / (1.0 + permutations);
    }
    free(entries);
    free(step);
    free(weight);
    free(largest);
    free(observed);
    free(signs);
    return ready ? MAR_OK : MAR_ENOMEM;
}

/* --- moments ------------------------------------------------------------------------------------------------ */

/* Computes mean [C] and covariance [C][C] of `count` tokens. */
static void moments(const float *tokens, size_t count, int channels, double *mean, double *covariance)
{
    const size_t c = (size_t)channels;
    memset(mean, 0, c * sizeof *mean);
    memset(covariance, 0, c * c * sizeof *covariance);
    for (size_t t = 0; t < count; t++)
        for (size_t k = 0; k < c; k++) mean[k] += (double)tokens[t * c + k] / (double)count;
    for (size_t t = 0; t < count; t++)
        for (size_t k = 0; k < c; k++)
            for (size_t l = 0; l < c; l++)
                covariance[k * c + l] +=
                    ((double)tokens[t * c + k] - mean[k]) * ((double)tokens[t * c + l] - mean[l]) / ((double)count - 1);
}

mar_status eval_moment_gaps(const eval_pairs *x, double *mean, double *covariance)
{
    const size_t c = (size_t)x->channels, size = c + c * c, count = (size_t)x->images * (size_t)x->positions;
    double *a = malloc(2 * size * sizeof *a);
    if (!a) return MAR_ENOMEM;
    double *b = a + size, mean_square = 0, difference = 0, norm = 0;
    moments(x->a, count, x->channels, a, a + c);
    moments(x->b, count, x->channels, b, b + c);
    for (size_t k = 0; k < c; k++) {
        const double variance = b[c + k * c + k], gap = a[k] - b[k];
        if (variance > 0) mean_square += gap * gap / variance / (double)c;
    }
    for (size_t k = c; k < size; k++) {
        difference += (a[k] - b[k]) * (a[k] - b[k]);
        norm += b[k] * b[k];
    }
    *mean = sqrt(mean_square);
    *covariance = norm > 0 ? sqrt(difference / norm) : 0;
    free(a);
    return MAR_OK;
}

void eval_holm(double *p, int n)
{
    int order[16];
    for (int i = 0; i < n; i++) { /* insertion sort, ascending */
        int at = i;
        for (; at > 0 && p[order[at - 1]] > p[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    double floor = 0;
    for (int rank = 0; rank < n; rank++) {
        const double corrected = fmin(1, (n - rank) * p[order[rank]]);
        floor = fmax(floor, corrected);
        p[order[rank]] = floor;
    }
}
