/* Products of matrix columns, summed over rows in double precision. */
#ifndef EVAL_PRODUCTS_H
#define EVAL_PRODUCTS_H

#include <stddef.h>

enum { EVAL_PANEL_ROWS = 128 }; /* most rows packed at a time */

/* Returns the length of a packed matrix of EVAL_PANEL_ROWS rows and `columns` columns. */
size_t eval_panels_size(int columns);

/* Packs rows x [n][columns], n <= EVAL_PANEL_ROWS, into panels [eval_panels_size(columns)]. */
void eval_pack_f32(const float *x, int n, int columns, double *panels);
void eval_pack_f64(const double *x, int n, int columns, double *panels);

/* Adds x_ki x_kj, j <= i, to sums[i * (i + 1) / 2 + j], over the n packed rows k in order. */
void eval_add_squares(const double *panels, int n, int columns, double *sums);
/* Adds a_ki b_kj to sums[i][j], [columns_a][columns_b], over the n packed rows k of two matrices in order. */
void eval_add_products(const double *a, int columns_a, const double *b, int columns_b, int n, double *sums);

#endif
