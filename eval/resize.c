#include "eval/resize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PRECISION = 32 - 8 - 2 }; /* bits of an integer weight: eight for a byte, two for sums beyond it */

/* The weights of one axis. Output i is the sum over k < n[i] of weight[i * most + k] * input[first[i] + k]. */
typedef struct {
    int most;       /* weights of an output */
    int *first, *n; /* [outputs] */
    double *weight; /* [outputs][most], of each output 1 in all */
    int *integer;   /* [outputs][most] the same times 2^PRECISION, rounded */
} axis;

static double bilinear(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double bicubic(double x)
{
    static const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double sinc(double x)
{
    return x == 0 ? 1 : sin(x * M_PI) / (x * M_PI);
}

static double lanczos(double x)
{
    return -3 <= x && x < 3 ? sinc(x) * sinc(x / 3) : 0;
}

static const struct {
    double (*at)(double x);
    double half_width;
} filters[] = {[EVAL_BILINEAR] = {bilinear, 1}, [EVAL_BICUBIC] = {bicubic, 2}, [EVAL_LANCZOS] = {lanczos, 3}};

static void axis_free(axis *a)
{
    free(a->first);
    free(a->n);
    free(a->weight);
    free(a->integer);
}

/* Computes the weights of output i, centred at `centre` of the input. */
static void weigh(axis *a, int i, double centre, double half_width, double scale, int in, eval_filter filter)
{
    int first = (int)(centre - half_width + 0.5), end = (int)(centre + half_width + 0.5);
    double *w = a->weight + (size_t)i * (size_t)a->most, sum = 0;
    if (first < 0) first = 0;
    if (end > in) end = in;
    a->first[i] = first;
    a->n[i] = end - first;
    for (int k = 0; k < a->n[i]; k++) {
        w[k] = filters[filter].at((k + first - centre + 0.5) * (1 / scale));
        sum += w[k];
    }
    for (int k = 0; k < a->n[i]; k++) {
        if (sum != 0) w[k] /= sum;
        const double integer = w[k] * (1 << PRECISION);
        a->integer[(size_t)i * (size_t)a->most + (size_t)k] = (int)(integer < 0 ? integer - 0.5 : integer + 0.5);
    }
}

/* Part of an axis of the result: pixels first .. first+n-1 of `out`. */
typedef struct {
    int out, first, n;
} extent;

/* Computes the weights of an axis of `in` pixels (precompute_coeffs there). Returns 0 without memory; axis_free frees
 * it either way. */
static int axis_create(int in, const extent *e, eval_filter filter, axis *a)
{
    const double step = (double)in / e->out, scale = step < 1 ? 1 : step;
    const double half_width = filters[filter].half_width * scale;
    const size_t n = (size_t)e->n;
    *a = (axis){.most = (int)ceil(half_width) * 2 + 1};
    a->first = malloc(n * sizeof *a->first);
    a->n = malloc(n * sizeof *a->n);
    a->weight = malloc(n * (size_t)a->most * sizeof *a->weight);
    a->integer = malloc(n * (size_t)a->most * sizeof *a->integer);
    if (!a->first || !a->n || !a->weight || !a->integer) return 0;
    for (int i = 0; i < e->n; i++) weigh(a, i, (e->first + i + 0.5) * step, half_width, scale, in, filter);
    return 1;
}

static uint8_t clip(int sum)
{
    sum >>= PRECISION;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

/* Writes pixel i along an axis of pixels `stride` bytes apart. */
static void mix_bytes(const axis *a, int i, const uint8_t *x, size_t stride, uint8_t y[3])
{
    const int *w = a->integer + (size_t)i * (size_t)a->most;
    int sum[3] = {1 << (PRECISION - 1), 1 << (PRECISION - 1), 1 << (PRECISION - 1)};
    x += (size_t)a->first[i] * stride;
    for (int k = 0; k < a->n[i]; k++, x += stride)
        for (int c = 0; c < 3; c++) sum[c] += x[c] * w[k];
    for (int c = 0; c < 3; c++) y[c] = clip(sum[c]);
}

static void mix_floats(const axis *a, int i, const float *x, size_t stride, float y[3])
{
    const double *w = a->weight + (size_t)i * (size_t)a->most;
    double sum[3] = {0};
    x += (size_t)a->first[i] * stride;
    for (int k = 0; k < a->n[i]; k++, x += stride)
        for (int c = 0; c < 3; c++) sum[c] += (double)x[c] * w[k];
    for (int c = 0; c < 3; c++) y[c] = (float)sum[c];
}

/* The two passes over a picture. An axis that keeps its size is copied. */
typedef struct {
    axis x, y; /* y.first counts from `first` */
    extent columns, rows;
    int copies_x, copies_y;
    int first, between; /* rows of the picture that the second pass reads */
} plan;

static int plan_create(const eval_picture *p, eval_filter filter, extent columns, extent rows, plan *out)
{
    *out = (plan){
        .columns = columns, .rows = rows, .copies_x = columns.out == p->width, .copies_y = rows.out == p->height};
    if (!axis_create(p->width, &columns, filter, &out->x) || !axis_create(p->height, &rows, filter, &out->y)) return 0;
    axis *y = &out->y;
    for (int i = 0; i < rows.n && out->copies_y; i++) y->first[i] = rows.first + i, y->n[i] = 1;
    out->first = y->first[0];
    out->between = y->first[rows.n - 1] + y->n[rows.n - 1] - out->first;
    for (int i = 0; i < rows.n; i++) y->first[i] -= out->first;
    return 1;
}

static void plan_free(plan *p)
{
    axis_free(&p->x);
    axis_free(&p->y);
}

static mar_status resize_refuse_memory(const eval_picture *p, mar_err *err)
{
    return err_set(err, MAR_ENOMEM, "out of memory to resize a picture of %dx%d pixels", p->width, p->height);
}

/* --- bytes -------------------------------------------------------------------------------------------------------- */

static void run_bytes(const eval_picture *p, const plan *a, uint8_t *between, uint8_t *y)
{
    const size_t in = (size_t)p->width * 3, out = (size_t)a->columns.n * 3;
    for (int r = 0; r < a->between; r++) {
        const uint8_t *x = p->rgb + (size_t)(a->first + r) * in;
        uint8_t *to = between + (size_t)r * out;
        if (a->copies_x) memcpy(to, x + (size_t)a->columns.first * 3, out);
        for (int i = 0; i < a->columns.n && !a->copies_x; i++) mix_bytes(&a->x, i, x, 3, to + (size_t)i * 3);
    }
    if (a->copies_y) memcpy(y, between, (size_t)a->rows.n * out);
    for (int r = 0; r < a->rows.n && !a->copies_y; r++)
        for (int i = 0; i < a->columns.n; i++)
            mix_bytes(&a->y, r, between + (size_t)i * 3, out, y + (size_t)r * out + (size_t)i * 3);
}

static mar_status resize_bytes(const eval_picture *p, eval_filter filter, extent columns, extent rows, uint8_t *y,
                               mar_err *err)
{
    plan a;
    uint8_t *between = NULL; /* [a.between][columns.n][3] */
    int failed = !plan_create(p, filter, columns, rows, &a);
    if (!failed) failed = !(between = malloc((size_t)a.between * (size_t)columns.n * 3));
    if (!failed) run_bytes(p, &a, between, y);
    free(between);
    plan_free(&a);
    return failed ? resize_refuse_memory(p, err) : MAR_OK;
}

mar_status eval_resize_bytes(const eval_picture *p, eval_filter filter, int width, int height, uint8_t *y, mar_err *err)
{
    return resize_bytes(p, filter, (extent){width, 0, width}, (extent){height, 0, height}, y, err);
}

/* Returns the middle of the longer side after a resize of the shorter one to `side`. */
static extent cut_middle(const eval_picture *p, int side, int to_even)
{
    const int is_tall = p->height > p->width;
    const int shorter = is_tall ? p->width : p->height, longer = is_tall ? p->height : p->width;
    const int other = (int)((int64_t)side * longer / shorter), first = (other - side) / 2;
    const int rounds_up = to_even && (other - side) % 2 && first % 2;
    return (extent){other, first + rounds_up, side};
}

mar_status eval_resize_square(const eval_picture *p, eval_filter filter, int side, int to_even, uint8_t *y,
                              mar_err *err)
{
    const int is_tall = p->height > p->width;
    const extent whole = {side, 0, side}, middle = cut_middle(p, side, to_even);
    return resize_bytes(p, filter, is_tall ? whole : middle, is_tall ? middle : whole, y, err);
}

/* --- floats ------------------------------------------------------------------------------------------------------- */

/* line is float [p->width][3] of working memory. */
static void run_floats(const eval_picture *p, const plan *a, float *line, float *between, float *y)
{
    const size_t in = (size_t)p->width * 3, out = (size_t)a->columns.n * 3;
    for (int r = 0; r < a->between; r++) {
        const uint8_t *x = p->rgb + (size_t)(a->first + r) * in;
        float *to = between + (size_t)r * out;
        for (size_t i = 0; i < out && a->copies_x; i++) to[i] = x[(size_t)a->columns.first * 3 + i];
        for (size_t i = 0; i < in && !a->copies_x; i++) line[i] = x[i];
        for (int i = 0; i < a->columns.n && !a->copies_x; i++) mix_floats(&a->x, i, line, 3, to + (size_t)i * 3);
    }
    if (a->copies_y) memcpy(y, between, (size_t)a->rows.n * out * sizeof *y);
    for (int r = 0; r < a->rows.n && !a->copies_y; r++)
        for (int i = 0; i < a->columns.n; i++)
            mix_floats(&a->y, r, between + (size_t)i * 3, out, y + (size_t)r * out + (size_t)i * 3);
}

static mar_status resize_floats(const eval_picture *p, eval_filter filter, extent columns, extent rows, float *y,
                                mar_err *err)
{
    plan a;
    float *between = NULL, *line = malloc((size_t)p->width * 3 * sizeof *line); /* between: [a.between][columns.n][3] */
    int failed = !plan_create(p, filter, columns, rows, &a) || !line;
    if (!failed) failed = !(between = malloc((size_t)a.between * (size_t)columns.n * 3 * sizeof *between));
    if (!failed) run_floats(p, &a, line, between, y);
    free(between);
    free(line);
    plan_free(&a);
    return failed ? resize_refuse_memory(p, err) : MAR_OK;
}

mar_status eval_resize_floats(const eval_picture *p, eval_filter filter, int width, int height, float *y, mar_err *err)
{
    const size_t n = (size_t)width * (size_t)height * 3;
    const mar_status status = resize_floats(p, filter, (extent){width, 0, width}, (extent){height, 0, height}, y, err);
    for (size_t i = 0; i < n && status == MAR_OK; i++) y[i] = y[i] < 0 ? 0 : y[i] > 255 ? 255 : y[i];
    return status;
}

mar_status eval_resize_square_floats(const eval_picture *p, eval_filter filter, int side, float *y, mar_err *err)
{
    const int is_tall = p->height > p->width;
    const extent whole = {side, 0, side}, middle = cut_middle(p, side, 1);
    return resize_floats(p, filter, is_tall ? whole : middle, is_tall ? middle : whole, y, err);
}
