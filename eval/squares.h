/* Squared distances between the points of two sets, a square of them at a time, on a device. */
#ifndef EVAL_SQUARES_H
#define EVAL_SQUARES_H

#include "kernels/ops.h"

typedef struct {
    kern_queue *k;
    int dim;          /* numbers of a point */
    int side;         /* points of a square along a side, at most */
    int count;        /* points in `rows` */
    float *rows;      /* device [side][dim] */
    float *columns;   /* device [side][dim] */
    float *distances; /* device [side][side] */
    float *host;      /* [count][columns] squared distances, as kern_core_ops.distances has them */
} eval_squares;

/* Allocates room for squares of up to `most` points along a side, fewer if these are large. Returns MAR_ENOMEM or the
 * device's failure, with nothing left. */
mar_status eval_squares_open(kern_device *d, int most, int dim, eval_squares *out, mar_err *err);
void eval_squares_close(eval_squares *s);

/* Takes the points of the rows, x [count][dim], up to `side`. */
void eval_squares_rows(eval_squares *s, const float *x, int count);
/* Computes to host the distances of these points from y [count][dim], up to `side`. Returns the device's failure. */
mar_status eval_squares_distances(eval_squares *s, const float *y, int count, mar_err *err);

/* Checks that all numbers of x [n][dim] are finite. Returns MAR_EARG with the vector's number, from 0. */
mar_status eval_squares_check(const char *name, const float *x, int n, int dim, mar_err *err);

#endif
