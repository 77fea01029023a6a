#include "eval/squares.h"

#include <math.h>
#include <stdlib.h>

/* Points of a square along a side, at most, and numbers of that many points. */
enum { SIDE = 2048, NUMBERS = 4 << 20 };

void eval_squares_close(eval_squares *s)
{
    kern_device *d = s->k->device;
    s->k->core->finish(s->k);
    d->core->free(d, s->rows);
    d->core->free(d, s->columns);
    d->core->free(d, s->distances);
    s->k->core->unbind(s->k);
    s->k->core->queue_free(s->k);
    free(s->host);
}

mar_status eval_squares_open(kern_device *d, int most, int dim, eval_squares *s, mar_err *err)
{
    const int fit = NUMBERS / dim > 1 ? NUMBERS / dim : 1;
    *s = (eval_squares){.dim = dim, .side = most < SIDE ? most : SIDE};
    if (s->side > fit) s->side = fit;
    const size_t side = (size_t)s->side, bytes = side * (size_t)dim * sizeof(float);
    mar_status status = d->core->queue_create(d, &s->k, err);
    if (status != MAR_OK) return status;
    s->k->core->bind(s->k);
    status = d->core->alloc(d, bytes, (void **)&s->rows, err);
    if (status == MAR_OK) status = d->core->alloc(d, bytes, (void **)&s->columns, err);
    if (status == MAR_OK) status = d->core->alloc(d, side * side * sizeof(float), (void **)&s->distances, err);
    if (status == MAR_OK) s->host = malloc(side * side * sizeof *s->host);
    if (status == MAR_OK && !s->host)
        status = err_set(err, MAR_ENOMEM, "out of memory: distances of %d points", s->side);
    if (status != MAR_OK) eval_squares_close(s);
    return status;
}

static void squares_upload(eval_squares *s, float *to, const float *x, int count)
{
    s->k->core->upload(s->k, to, x, (size_t)count * (size_t)s->dim * sizeof *to);
}

void eval_squares_rows(eval_squares *s, const float *x, int count)
{
    s->count = count;
    squares_upload(s, s->rows, x, count);
}

mar_status eval_squares_distances(eval_squares *s, const float *y, int count, mar_err *err)
{
    const kern_core_ops *core = s->k->core;
    squares_upload(s, s->columns, y, count);
    core->distances(s->k, s->rows, s->count, s->columns, count, s->dim, s->distances);
    core->download(s->k, s->host, s->distances, (size_t)s->count * (size_t)count * sizeof *s->host);
    return kern_check(s->k, err);
}

mar_status eval_squares_check(const char *name, const float *x, int n, int dim, mar_err *err)
{
    for (size_t i = 0; i < (size_t)n * (size_t)dim; i++)
        if (!isfinite(x[i]))
            return err_set(err, MAR_EARG, "%s: vector %zu has a number that is not finite", name, i / (size_t)dim);
    return MAR_OK;
}
