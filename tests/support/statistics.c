#include "tests/support/statistics.h"
#include "kernels/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns Q(a, x), the regularised upper incomplete gamma function: series below a + 1, continued fraction above. */
static double gamma_q(double a, double x)
{
    const double front = exp(a * log(x) - x - lgamma(a));
    if (x <= 0) return 1;
    if (x < a + 1) {
        double term = 1 / a, sum = term;
        for (int n = 1; n < 10000 && fabs(term) > 1e-15 * sum; n++) sum += term *= x / (a + n);
        return 1 - front * sum;
    }
    double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
    for (int n = 1; n < 10000; n++) {
        const double an = -n * (n - a);
        b += 2;
        d = 1 / (an * d + b);
        c = b + an / c;
        h *= d * c;
        if (fabs(d * c - 1) < 1e-15) break;
    }
    return front * h;
}

double stat_chi2_p(const long *count, const double *probability, int cells)
{
    double n = 0, total = 0, chi2 = 0, pooled_count = 0, pooled = 0;
    int groups = 0;
    for (int i = 0; i < cells; i++) n += (double)count[i], total += probability[i];
    for (int i = 0; i < cells; i++) {
        const double expected = n * probability[i] / total;
        if (expected == 0 && count[i] > 0) return 0;
        if (expected < 5) {
            pooled += expected, pooled_count += (double)count[i];
        } else {
            chi2 += ((double)count[i] - expected) * ((double)count[i] - expected) / expected;
            groups++;
        }
    }
    if (pooled >= 1) {
        chi2 += (pooled_count - pooled) * (pooled_count - pooled) / pooled;
        groups++;
    }
    return gamma_q((groups - 1) / 2.0, chi2 / 2);
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Returns P(sqrt(n) D > t) in the limit of large n. */
static double kolmogorov(double t)
{
    double sum = 0;
    if (t < 0.2) return 1;
    for (int k = 1; k < 100; k++) sum += (k % 2 ? 2 : -2) * exp(-2.0 * k * k * t * t);
    return fmin(1, fmax(0, sum));
}

double stat_ks_normal_p(float *x, int n, double mean, double std)
{
    double worst = 0;
    qsort(x, (size_t)n, sizeof *x, by_value);
    for (int i = 0; i < n; i++) {
        const double cdf = 0.5 * erfc(-(x[i] - mean) / std / sqrt(2.0));
        worst = fmax(worst, fmax(fabs(cdf - (double)i / n), fabs(cdf - (i + 1.0) / n)));
    }
    return kolmogorov(worst * sqrt(n));
}

double stat_ks_two_sample_p(float *a, int n_a, float *b, int n_b)
{
    double worst = 0;
    qsort(a, (size_t)n_a, sizeof *a, by_value);
    qsort(b, (size_t)n_b, sizeof *b, by_value);
    for (int i = 0, j = 0; i < n_a && j < n_b;) {
        const float x = a[i] < b[j] ? a[i] : b[j];
        while (i < n_a && a[i] == x) i++;
        while (j < n_b && b[j] == x) j++;
        worst = fmax(worst, fabs((double)i / n_a - (double)j / n_b));
    }
    return kolmogorov(worst * sqrt((double)n_a * n_b / (n_a + n_b)));
}

/* --- energy distance --- */

enum { LINES = 3, PERMUTATIONS = 99, ENOUGH = 10 };

typedef struct {
    float at;
    int owner; /* a_i: i, b_i: n + i */
} projected;

static int by_place(const void *a, const void *b)
{
    const float x = ((const projected *)a)->at, y = ((const projected *)b)->at;
    return (x > y) - (x < y);
}

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static void random_line(uint64_t *state, int dim, float *line)
{
    double norm = 0;
    for (int i = 0; i < dim; i++) {
        float normal[4];
        uint64_t words[2] = {next_random(state), next_random(state)};
        uint32_t w[4];
        memcpy(w, words, sizeof w);
        kern_normal4(w, normal);
        line[i] = dim == 1 ? 1 : normal[0];
        norm += (double)line[i] * line[i];
    }
    for (int i = 0; i < dim; i++) line[i] = (float)(line[i] / sqrt(norm));
}

/* Projects both samples onto one line and sorts them. */
static void project(const float *a, const float *b, int n, int dim, const float *line, projected *out)
{
    for (int i = 0; i < 2 * n; i++) {
        const float *x = i < n ? a + (size_t)i * (size_t)dim : b + (size_t)(i - n) * (size_t)dim;
        double sum = 0;
        for (int j = 0; j < dim; j++) sum += (double)x[j] * line[j];
        out[i] = (projected){(float)sum, i};
    }
    qsort(out, 2 * (size_t)n, sizeof *out, by_place);
}

/* Returns n^2 integral (F - G)^2. Labels are +1 for one sample, -1 for the other. */
static double squared_area(const projected *x, int n, const signed char *label)
{
    double sum = 0;
    long level = 0;
    for (int i = 0; i + 1 < 2 * n; i++) {
        level += label[x[i].owner];
        sum += (double)(level * level) * ((double)x[i + 1].at - x[i].at);
    }
    return sum;
}

static void relabel(signed char *label, int n, int paired, uint64_t *state)
{
    if (paired) {
        for (int i = 0; i < n; i++) {
            label[i] = next_random(state) & 1 ? 1 : -1;
            label[n + i] = (signed char)-label[i];
        }
        return;
    }
    for (int i = 2 * n - 1; i > 0; i--) {
        const int j = (int)(next_random(state) % (uint64_t)(i + 1));
        const signed char swap = label[i];
        label[i] = label[j], label[j] = swap;
    }
}

double stat_energy_p(const float *a, const float *b, int n, int dim, int paired, uint64_t seed)
{
    const int lines = dim == 1 ? 1 : LINES;
    const size_t both = 2 * (size_t)n;
    projected *x = malloc(both * (size_t)lines * sizeof *x);
    signed char *label = malloc(both);
    float *line = malloc((size_t)dim * sizeof *line);
    double p = NAN, observed = 0;
    if (x && label && line) {
        int above = 0, tried = 0;
        for (int l = 0; l < lines; l++) {
            random_line(&seed, dim, line);
            project(a, b, n, dim, line, x + both * (size_t)l);
        }
        for (size_t i = 0; i < both; i++) label[i] = i < (size_t)n ? 1 : -1;
        for (; tried <= PERMUTATIONS && above < ENOUGH; tried++) {
            double area = 0;
            for (int l = 0; l < lines; l++) area += squared_area(x + both * (size_t)l, n, label);
            if (tried == 0) observed = area;
            above += area >= observed;
            relabel(label, n, paired, &seed);
        }
        p = (double)above / tried;
    }
    free(x), free(label), free(line);
    return p;
}
