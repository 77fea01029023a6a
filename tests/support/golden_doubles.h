/* Double-precision golden data, stored as two float tensors: `name` and its rounding error `name.rest`. */
#ifndef TESTS_GOLDEN_DOUBLES_H
#define TESTS_GOLDEN_DOUBLES_H

#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>

/* Returns the sum of both tensors. The caller frees it. */
static inline double *golden_f64(const wt_file *f, const char *name, int64_t count)
{
    char rest_name[128];
    snprintf(rest_name, sizeof rest_name, "%s.rest", name);
    float *first = golden_f32(f, name, count), *rest = golden_f32(f, rest_name, count);
    double *sum = malloc(sizeof(double) * (size_t)count);
    assert_non_null(sum);
    for (int64_t i = 0; i < count; i++) sum[i] = (double)first[i] + (double)rest[i];
    free(first);
    free(rest);
    return sum;
}

/* Fails the test unless |a - b| <= tolerance. */
static inline void assert_near(double a, double b, double tolerance)
{
    if (!(a - b <= tolerance && b - a <= tolerance)) fail_msg("%.12g, expected %.12g within %g", a, b, tolerance);
}

#endif
