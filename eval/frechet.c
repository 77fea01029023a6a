#include "eval/frechet.h"

#include "base/error.h"
#include "eval/products.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

/* Let A = L L', B = M M' and K = M'L. Then A B and K'K have the same nonzero eigenvalues. tr (A B)^1/2 is the sum of
 * their roots. L has rank(A) columns, so K'K is as small as the smaller rank. Zero eigenvalues of a singular
 * covariance, from few images, do not become rounding errors. */

/* LAPACK. Fortran passes the lengths of character arguments last. */
extern void dpstrf_(const char *uplo, const int *n, double *a, const int *lda, int *pivots, int *rank,
                    const double *tolerance, double *work, int *info, size_t uplo_length);
extern void dsyev_(const char *jobz, const char *uplo, const int *n, double *a, const int *lda, double *w, double *work,
                   const int *lwork, int *info, size_t jobz_length, size_t uplo_length);

typedef struct {
    double *rows; /* [dim][rank] */
    int rank;
} factor;

static mar_status frechet_no_memory(mar_err *err)
{
    return err_set(err, MAR_ENOMEM, "out of memory for the Frechet distance");
}

/* Factorises covariance = rows rows' by pivoted Cholesky, stopping at rounding error. */
static mar_status factorise(int dim, const double *covariance, factor *f, mar_err *err)
{
    const size_t n = (size_t)dim;
    const double tolerance = -1; /* LAPACK's default: dim * rounding unit * largest variance */
    double *a = malloc(n * n * sizeof *a), *work = malloc(2 * n * sizeof *work);
    int *pivots = malloc(n * sizeof *pivots), info = 0;
    mar_status status = MAR_OK;
    *f = (factor){0};
    if (!a || !work || !pivots) status = frechet_no_memory(err);
    if (status == MAR_OK) {
        for (size_t i = 0; i < n * n; i++) a[i] = covariance[i];
        dpstrf_("L", &dim, a, &dim, pivots, &f->rank, &tolerance, work, &info, 1);
        if (info < 0) status = err_set(err, MAR_EARG, "LAPACK's dpstrf refuses its argument %d", -info);
    }
    if (status == MAR_OK) {
        const size_t rank = (size_t)f->rank;
        f->rows = calloc(n * rank + 1, sizeof *f->rows);
        if (!f->rows) status = frechet_no_memory(err);
        for (size_t i = 0; i < n && f->rows; i++) /* column k of LAPACK's result is at a + k * n */
            for (size_t k = 0; k < rank && k <= i; k++) f->rows[(size_t)(pivots[i] - 1) * rank + k] = a[k * n + i];
    }
    free(a);
    free(work);
    free(pivots);
    return status;
}

/* Computes k [m->rank][l->rank] = m' l. */
static mar_status frechet_multiply(int dim, const factor *m, const factor *l, double **k, mar_err *err)
{
    double *left = malloc(eval_panels_size(m->rank) * sizeof *left);
    double *right = malloc(eval_panels_size(l->rank) * sizeof *right);
    *k = calloc((size_t)m->rank * (size_t)l->rank, sizeof **k);
    mar_status status = left && right && *k ? MAR_OK : frechet_no_memory(err);
    for (int first = 0; first < dim && status == MAR_OK; first += EVAL_PANEL_ROWS) {
        const int n = dim - first < EVAL_PANEL_ROWS ? dim - first : EVAL_PANEL_ROWS;
        eval_pack_f64(m->rows + (size_t)first * (size_t)m->rank, n, m->rank, left);
        eval_pack_f64(l->rows + (size_t)first * (size_t)l->rank, n, l->rank, right);
        eval_add_products(left, m->rank, right, l->rank, n, *k);
    }
    free(left);
    free(right);
    return status;
}

/* Computes out [columns][columns] = k'k, k [rows][columns]. */
static mar_status frechet_square(const double *k, int rows, int columns, double **out, mar_err *err)
{
    const size_t size = (size_t)columns;
    double *panels = malloc(eval_panels_size(columns) * sizeof *panels);
    double *sums = calloc(size * (size + 1) / 2, sizeof *sums);
    *out = malloc(size * size * sizeof **out);
    const mar_status status = panels && sums && *out ? MAR_OK : frechet_no_memory(err);
    for (int first = 0; first < rows && status == MAR_OK; first += EVAL_PANEL_ROWS) {
        const int n = rows - first < EVAL_PANEL_ROWS ? rows - first : EVAL_PANEL_ROWS;
        eval_pack_f64(k + (size_t)first * size, n, columns, panels);
        eval_add_squares(panels, n, columns, sums);
    }
    const double *next = sums;
    for (size_t i = 0; i < size && status == MAR_OK; i++)
        for (size_t j = 0; j <= i; j++) {
            (*out)[i * size + j] = *next;
            (*out)[j * size + i] = *next++;
        }
    free(panels);
    free(sums);
    return status;
}

/* Computes the sum of the square roots of the eigenvalues of a symmetric matrix [n][n]. Overwrites the matrix. */
static mar_status sum_of_roots(double *a, int n, double *sum, mar_err *err)
{
    int info = 0, size = -1;
    double best = 0, *values = malloc((size_t)n * sizeof *values), *work = NULL;
    *sum = 0;
    if (values) {
        dsyev_("N", "L", &n, a, &n, values, &best, &size, &info, 1, 1);
        size = info == 0 ? (int)best : 3 * n;
        work = malloc((size_t)size * sizeof *work);
    }
    mar_status status = values && work ? MAR_OK : frechet_no_memory(err);
    if (status == MAR_OK) {
        dsyev_("N", "L", &n, a, &n, values, work, &size, &info, 1, 1);
        if (info != 0)
            status = err_set(err, MAR_EARG, "LAPACK's dsyev finds no eigenvalues of a %dx%d matrix (%d)", n, n, info);
    }
    for (int i = 0; i < n && status == MAR_OK; i++) *sum += values[i] > 0 ? sqrt(values[i]) : 0;
    free(values);
    free(work);
    return status;
}

/* Computes tr (A B)^1/2. */
static mar_status trace_of_root(int dim, const double *a, const double *b, double *trace, mar_err *err)
{
    factor l = {0}, m = {0};
    double *k = NULL, *squared = NULL;
    *trace = 0;
    mar_status status = factorise(dim, a, &l, err);
    if (status == MAR_OK) status = factorise(dim, b, &m, err);
    if (status == MAR_OK && l.rank > 0 && m.rank > 0) {
        const factor *small = l.rank < m.rank ? &l : &m, *large = small == &l ? &m : &l;
        status = frechet_multiply(dim, large, small, &k, err);
        if (status == MAR_OK) status = frechet_square(k, large->rank, small->rank, &squared, err);
        if (status == MAR_OK) status = sum_of_roots(squared, small->rank, trace, err);
    }
    free(l.rows);
    free(m.rows);
    free(k);
    free(squared);
    return status;
}

static int all_finite(const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return 0;
    return 1;
}

mar_status eval_frechet(int dim, const eval_gaussian *a, const eval_gaussian *b, double *distance, char *why,
                        size_t size)
{
    const size_t n = (size_t)dim;
    const eval_gaussian *const both[] = {a, b};
    mar_err err = {0};
    mar_status status = MAR_OK;
    double trace = 0, sum = 0;
    for (int i = 0; i < 2 && status == MAR_OK; i++)
        if (!all_finite(both[i]->mean, n) || !all_finite(both[i]->covariance, n * n))
            status =
                err_set(&err, MAR_EARG, "the %s of %s is not finite, expected numbers",
                        all_finite(both[i]->mean, n) ? "covariance" : "mean", i == 0 ? "the images" : "the reference");
    if (status == MAR_OK) status = trace_of_root(dim, a->covariance, b->covariance, &trace, &err);
    for (size_t i = 0; i < n && status == MAR_OK; i++) {
        const double gap = a->mean[i] - b->mean[i];
        sum += gap * gap + a->covariance[i * n + i] + b->covariance[i * n + i];
    }
    *distance = status == MAR_OK ? sum - 2 * trace : NAN;
    if (status != MAR_OK) err_line(why, size, "%s", err.text);
    return status;
}
