/* The squared maximum mean discrepancy of two sets of m vectors of d numbers with the kernel k(x, y) = (x y / d + 1)^3,
 * estimated without bias: the mean of k over pairs of different vectors of one set, plus that of the other, minus twice
 * the mean over all pairs of both. It may be negative. It is averaged over subsets.
 *
 * Products come from squared distances, x y = (|x|^2 + |y|^2 - |x - y|^2) / 2, with |x|^2 and all sums of kernels in
 * double. torch-fidelity computes kernels and sums in f32. */
#include "eval/kernel_distance.h"

#include "eval/order.h"
#include "eval/squares.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEED = 2020, /* torch-fidelity's rng_seed */
    SIDE = 256,  /* of a square: within a set those below the diagonal are not computed */
    SUBSETS_MAX = 1 << 20,
    POINTS_MAX = 1 << 24,
    DIM_MAX = 1 << 20
};

/* One of the two sets. */
typedef struct {
    const char *name;
    const float *x; /* [n][dim] */
    int n;
    int *order;      /* [n] the subset is of its first numbers */
    float *subset;   /* [size][dim] */
    double *squares; /* [size] |x|^2 of these */
} sample;

typedef struct {
    eval_squares squares;
    eval_random random;
    int size;
} estimate;

/* --- subsets ------------------------------------------------------------------------------------------------------ */

static mar_status sample_create(sample *s, int size, int dim, mar_err *err)
{
    s->order = malloc((size_t)s->n * sizeof *s->order);
    s->subset = malloc((size_t)size * (size_t)dim * sizeof *s->subset);
    s->squares = malloc((size_t)size * sizeof *s->squares);
    if (s->order && s->subset && s->squares) return MAR_OK;
    return err_set(err, MAR_ENOMEM, "out of memory: a subset of %d vectors", size);
}

static void sample_free(sample *s)
{
    free(s->order);
    free(s->subset);
    free(s->squares);
}

static void draw_subset(estimate *e, sample *s)
{
    const size_t dim = (size_t)e->squares.dim;
    eval_random_permutation(&e->random, s->n, s->order);
    for (int i = 0; i < e->size; i++) {
        const float *x = memcpy(s->subset + (size_t)i * dim, s->x + (size_t)s->order[i] * dim, dim * sizeof *x);
        s->squares[i] = 0;
        for (size_t k = 0; k < dim; k++) s->squares[i] += (double)x[k] * (double)x[k];
    }
}

/* --- kernels ------------------------------------------------------------------------------------------------------ */

/* Returns the sum of the kernels of a's vector i and b's from `first` on, whose distances are given, [count]. */
static double sum_of_row(const estimate *e, const sample *a, int i, const sample *b, int first, int count,
                         const float *distances)
{
    const double scale = 0.5 / e->squares.dim, square = a->squares[i];
    double sum = 0;
    for (int c = 0; c < count; c++) {
        const double k = (square + b->squares[first + c] - (double)distances[c]) * scale + 1;
        sum += k * k * k;
    }
    return sum;
}

/* Adds to *sum the kernels of all pairs of a and b; if they are one set, of its pairs of different vectors, once. */
static mar_status add_kernels(estimate *e, const sample *a, const sample *b, double *sum, mar_err *err)
{
    const int side = e->squares.side, size = e->size;
    const size_t dim = (size_t)e->squares.dim;
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < size; i += side) {
        const int rows = size - i < side ? size - i : side;
        eval_squares_rows(&e->squares, a->subset + (size_t)i * dim, rows);
        for (int j = a == b ? i : 0; status == MAR_OK && j < size; j += side) {
            const int columns = size - j < side ? size - j : side;
            status = eval_squares_distances(&e->squares, b->subset + (size_t)j * dim, columns, err);
            for (int r = 0; status == MAR_OK && r < rows; r++) {
                const int from = a == b && i == j ? r + 1 : 0; /* behind the diagonal */
                *sum += sum_of_row(e, a, i + r, b, j + from, columns - from,
                                   e->squares.host + (size_t)r * (size_t)columns + from);
            }
        }
    }
    return status;
}

static mar_status discrepancy(estimate *e, sample *images, sample *reference, double *out, mar_err *err)
{
    double within = 0, between = 0;
    draw_subset(e, images);
    draw_subset(e, reference);
    mar_status status = add_kernels(e, images, images, &within, err);
    if (status == MAR_OK) status = add_kernels(e, reference, reference, &within, err);
    if (status == MAR_OK) status = add_kernels(e, images, reference, &between, err);
    *out = 2 * within / ((double)e->size * (e->size - 1)) - 2 * between / ((double)e->size * e->size);
    if (status == MAR_OK && !isfinite(*out))
        status = err_set(err, MAR_EARG, "the vectors are so large that a squared distance is beyond f32");
    return status;
}

/* --- the call ----------------------------------------------------------------------------------------------------- */

/* Computes the estimate of each subset, values [subsets]. */
static mar_status estimate_all(kern_device *d, sample *images, sample *reference, int dim, int size, int subsets,
                               double *values, mar_err *err)
{
    estimate e = {.size = size};
    mar_status status = sample_create(images, size, dim, err);
    if (status == MAR_OK) status = sample_create(reference, size, dim, err);
    if (status == MAR_OK) status = eval_squares_open(d, size < SIDE ? size : SIDE, dim, &e.squares, err);
    if (status != MAR_OK) return status;
    eval_random_seed(&e.random, SEED);
    for (int i = 0; status == MAR_OK && i < subsets; i++) status = discrepancy(&e, images, reference, &values[i], err);
    eval_squares_close(&e.squares);
    return status;
}

static mar_status check_sample(const sample *s, int dim, int size, mar_err *err)
{
    if (s->n < size || s->n > POINTS_MAX)
        return err_set(err, MAR_EARG, "%s: %d feature vectors, expected as many as a subset, %d, and at most %d",
                       s->name, s->n, size, POINTS_MAX);
    return eval_squares_check(s->name, s->x, s->n, dim, err);
}

mar_status eval_kernel_distance(kern_device *d, const float *reference, int reference_count, const float *images,
                                int count, int dim, int subsets, int size, double *mean, double *deviation,
                                mar_err *err)
{
    sample a = {.name = "images", .x = images, .n = count};
    sample b = {.name = "reference", .x = reference, .n = reference_count};
    double *values = NULL, sum = 0, square = 0;
    mar_status status = MAR_OK;
    if (dim < 1 || dim > DIM_MAX) status = err_set(err, MAR_EARG, "dim %d: expected 1..%d", dim, DIM_MAX);
    if (status == MAR_OK && (subsets < 1 || subsets > SUBSETS_MAX))
        status = err_set(err, MAR_EARG, "subsets %d: expected 1..%d", subsets, SUBSETS_MAX);
    if (status == MAR_OK && size < 2) status = err_set(err, MAR_EARG, "subset_size %d: expected 2 or more", size);
    if (status == MAR_OK) status = check_sample(&b, dim, size, err);
    if (status == MAR_OK) status = check_sample(&a, dim, size, err);
    if (status == MAR_OK && !(values = malloc((size_t)subsets * sizeof *values)))
        status = err_set(err, MAR_ENOMEM, "out of memory: %d estimates", subsets);
    if (status == MAR_OK) status = estimate_all(d, &a, &b, dim, size, subsets, values, err);
    for (int i = 0; status == MAR_OK && i < subsets; i++) sum += values[i];
    for (int i = 0; status == MAR_OK && i < subsets; i++) square += pow(values[i] - sum / subsets, 2);
    if (status == MAR_OK) *mean = sum / subsets, *deviation = sqrt(square / subsets);
    free(values);
    sample_free(&a);
    sample_free(&b);
    return status;
}
