#include "eval/moments.h"

#include "eval/products.h"

#include <stdlib.h>

static size_t pairs(int dim)
{
    return (size_t)dim * ((size_t)dim + 1) / 2;
}

mar_status eval_moments_create(int dim, eval_moments *m)
{
    *m = (eval_moments){.dim = dim};
    m->sum = calloc((size_t)dim, sizeof(double));
    m->products = calloc(pairs(dim), sizeof(double));
    m->panels = malloc(eval_panels_size(dim) * sizeof(double));
    if (m->sum && m->products && m->panels) return MAR_OK;
    eval_moments_free(m);
    return MAR_ENOMEM;
}

void eval_moments_free(eval_moments *m)
{
    free(m->sum);
    free(m->products);
    free(m->panels);
    *m = (eval_moments){0};
}

/* A product of two floats is exact in double, and each element is summed in row order. So the bits depend neither on
 * the calls nor on the instruction set. */
void eval_moments_add(eval_moments *m, const float *x, int n)
{
    const size_t dim = (size_t)m->dim;
    for (int done = 0; done < n; done += EVAL_PANEL_ROWS) {
        const int rows = n - done < EVAL_PANEL_ROWS ? n - done : EVAL_PANEL_ROWS;
        const float *first = x + (size_t)done * dim;
        for (int k = 0; k < rows; k++)
            for (size_t i = 0; i < dim; i++) m->sum[i] += (double)first[(size_t)k * dim + i];
        eval_pack_f32(first, rows, m->dim, m->panels);
        eval_add_squares(m->panels, rows, m->dim, m->products);
    }
    m->count += (uint64_t)n;
}

void eval_moments_merge(eval_moments *m, const eval_moments *other)
{
    m->count += other->count;
    for (int i = 0; i < m->dim; i++) m->sum[i] += other->sum[i];
    for (size_t i = 0; i < pairs(m->dim); i++) m->products[i] += other->products[i];
}

void eval_moments_finish(const eval_moments *m, double *mean, double *covariance)
{
    const size_t dim = (size_t)m->dim;
    const double n = (double)m->count;
    const double *products = m->products;
    for (size_t i = 0; i < dim; i++) mean[i] = m->sum[i] / n;
    for (size_t i = 0; i < dim; i++)
        for (size_t j = 0; j <= i; j++) {
            const double c = (*products++ - m->sum[i] * mean[j]) / (n - 1);
            covariance[i * dim + j] = c;
            covariance[j * dim + i] = c;
        }
}
