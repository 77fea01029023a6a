/* Precision and recall of images against a reference, by the manifolds of their features: around each point of a set a
 * ball that reaches to its k-th nearest neighbour of the same set.
 *
 * Distances come in squares of points (eval/squares.h), and never all of them are in memory. Within a set a pair's
 * distance is computed once, for both of its points. With n and m points that is n^2/2 + m^2/2 + n m distances of 3 dim
 * flop: 1.1e13 flop for 50000 images of 2048 features against 10000.
 *
 * ADM's evaluator computes |u|^2 + |v|^2 - 2 u v in fp16 and clips it at 0. There the distances of points that are
 * close to one another are what rounding leaves of the cancelled sum. Ours add up squared differences in f32: the error
 * of a distance is relative to itself, equal points have distance 0, and equal pairs have equal distances, to the bit,
 * in whatever square they are. So a ball's edge, whose point is a neighbour, is inside it, as it must be. */
#include "eval/manifold.h"

#include "eval/squares.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* The most points and numbers of a point: far more than anyone can wait for, and no sum of them overflows. */
enum { POINTS_MAX = 1 << 24, DIM_MAX = 1 << 20 };

/* One of the two sets. */
typedef struct {
    const char *name;
    const float *x; /* [n][dim] */
    int n;
    float *nearest;        /* [n][k] squared distances of the nearest neighbours, ascending; infinite: none yet */
    float *radius;         /* [n] the last of these */
    unsigned char *inside; /* [n] whether it is in a ball of the other set */
} points;

/* --- memory ------------------------------------------------------------------------------------------------------- */

static void points_free(points *p)
{
    free(p->nearest);
    free(p->radius);
    free(p->inside);
}

static mar_status points_create(points *p, int neighbours, mar_err *err)
{
    const size_t n = (size_t)p->n;
    p->nearest = malloc(n * (size_t)neighbours * sizeof *p->nearest);
    p->radius = malloc(n * sizeof *p->radius);
    p->inside = calloc(n, 1);
    if (!p->nearest || !p->radius || !p->inside)
        return err_set(err, MAR_ENOMEM, "out of memory: %d nearest neighbours of %d points", neighbours, p->n);
    for (size_t i = 0; i < n * (size_t)neighbours; i++) p->nearest[i] = INFINITY;
    for (size_t i = 0; i < n; i++) p->radius[i] = INFINITY;
    return MAR_OK;
}

/* --- distances ---------------------------------------------------------------------------------------------------- */

typedef struct {
    eval_squares squares;
    int neighbours;
} manifold;

static int points_of(const manifold *s, const points *p, int first)
{
    return p->n - first < s->squares.side ? p->n - first : s->squares.side;
}

static const float *points_at(const manifold *s, const points *p, int first)
{
    return p->x + (size_t)first * (size_t)s->squares.dim;
}

static void upload(manifold *s, const points *p, int first)
{
    eval_squares_rows(&s->squares, points_at(s, p, first), points_of(s, p, first));
}

/* Computes the distances of the uploaded points from those of p from `first` on. */
static mar_status manifold_square(manifold *s, const points *p, int first, mar_err *err)
{
    return eval_squares_distances(&s->squares, points_at(s, p, first), points_of(s, p, first), err);
}

/* Point i has a neighbour at this distance, which is less than its radius. */
static void add_neighbour(points *p, int i, int neighbours, float distance)
{
    float *nearest = p->nearest + (size_t)i * (size_t)neighbours;
    int at = neighbours - 1;
    for (; at > 0 && distance < nearest[at - 1]; at--) nearest[at] = nearest[at - 1];
    nearest[at] = distance;
    p->radius[i] = nearest[neighbours - 1];
}

/* The neighbours in the square of points i and on and j and on, j >= i, of one set. */
static void find_neighbours(const manifold *s, points *p, int i, int j)
{
    const int rows = points_of(s, p, i), columns = points_of(s, p, j);
    for (int r = 0; r < rows; r++)
        for (int c = i == j ? r + 1 : 0; c < columns; c++) {
            const float distance = s->squares.host[(size_t)r * (size_t)columns + (size_t)c];
            if (distance < p->radius[i + r]) add_neighbour(p, i + r, s->neighbours, distance);
            if (distance < p->radius[j + c]) add_neighbour(p, j + c, s->neighbours, distance);
        }
}

static mar_status find_radii(manifold *s, points *p, mar_err *err)
{
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < p->n; i += s->squares.side) {
        upload(s, p, i);
        for (int j = i; status == MAR_OK && j < p->n; j += s->squares.side) {
            status = manifold_square(s, p, j, err);
            if (status == MAR_OK) find_neighbours(s, p, i, j);
        }
    }
    for (int i = 0; status == MAR_OK && i < p->n; i++)
        if (!(p->radius[i] <= FLT_MAX))
            status = err_set(err, MAR_EARG,
                             "%s: vector %d is so far from its neighbours that the squared distance is beyond f32",
                             p->name, i);
    return status;
}

/* Which points of one set are in balls of the other, in the square of a's points i and on and b's j and on. */
static void find_inside(const manifold *s, points *a, int i, points *b, int j)
{
    const int rows = points_of(s, a, i), columns = points_of(s, b, j);
    for (int r = 0; r < rows; r++) {
        const float *distance = s->squares.host + (size_t)r * (size_t)columns, radius = a->radius[i + r];
        int inside = 0;
        for (int c = 0; c < columns; c++) {
            inside |= distance[c] <= b->radius[j + c];
            b->inside[j + c] |= distance[c] <= radius;
        }
        a->inside[i + r] |= (unsigned char)inside;
    }
}

static mar_status find_members(manifold *s, points *a, points *b, mar_err *err)
{
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < a->n; i += s->squares.side) {
        upload(s, a, i);
        for (int j = 0; status == MAR_OK && j < b->n; j += s->squares.side) {
            status = manifold_square(s, b, j, err);
            if (status == MAR_OK) find_inside(s, a, i, b, j);
        }
    }
    return status;
}

/* --- the call ----------------------------------------------------------------------------------------------------- */

static double fraction_inside(const points *p)
{
    int inside = 0;
    for (int i = 0; i < p->n; i++) inside += p->inside[i];
    return (double)inside / p->n;
}

static mar_status manifold_measure(kern_device *d, points *reference, points *images, int dim, int k, mar_err *err)
{
    manifold s = {.neighbours = k};
    mar_status status = points_create(reference, k, err);
    if (status == MAR_OK) status = points_create(images, k, err);
    if (status == MAR_OK)
        status = eval_squares_open(d, reference->n > images->n ? reference->n : images->n, dim, &s.squares, err);
    if (status != MAR_OK) return status;
    status = find_radii(&s, reference, err);
    if (status == MAR_OK) status = find_radii(&s, images, err);
    if (status == MAR_OK) status = find_members(&s, reference, images, err);
    eval_squares_close(&s.squares);
    return status;
}

/* Whether there are enough points, and all of them finite. */
static mar_status check_points(const points *p, int dim, int k, mar_err *err)
{
    if (p->n <= k || p->n > POINTS_MAX)
        return err_set(err, MAR_EARG, "%s: %d feature vectors, expected more than k, which is %d, and at most %d",
                       p->name, p->n, k, POINTS_MAX);
    return eval_squares_check(p->name, p->x, p->n, dim, err);
}

mar_status eval_precision_recall(kern_device *d, const float *reference, int reference_count, const float *images,
                                 int count, int dim, int k, double *precision, double *recall, mar_err *err)
{
    points a = {.name = "reference", .x = reference, .n = reference_count};
    points b = {.name = "images", .x = images, .n = count};
    mar_status status = MAR_OK;
    if (dim < 1 || dim > DIM_MAX) status = err_set(err, MAR_EARG, "dim %d: expected 1..%d", dim, DIM_MAX);
    if (status == MAR_OK && k < 1) status = err_set(err, MAR_EARG, "k %d: expected 1 or more", k);
    if (status == MAR_OK) status = check_points(&a, dim, k, err);
    if (status == MAR_OK) status = check_points(&b, dim, k, err);
    if (status == MAR_OK) status = manifold_measure(d, &a, &b, dim, k, err);
    if (status == MAR_OK) {
        *precision = fraction_inside(&b);
        *recall = fraction_inside(&a);
    }
    points_free(&a);
    points_free(&b);
    return status;
}
