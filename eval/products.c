#include "eval/products.h"

#include "eval/tile.h"
#include "kernels/cpu/rows.h"

#include <string.h>

/* Packed columns lie in panels of the tile's width, [n][width] each. Columns after the last are zero. */

static const eval_tile *best_tile(void)
{
#if defined(__x86_64__)
    const char *isa = kern_rows_best()->isa;
    if (strcmp(isa, "avx512") == 0) return &eval_tile_avx512;
    if (strcmp(isa, "avx2") == 0) return &eval_tile_avx2;
#endif
    return &eval_tile_generic;
}

size_t eval_panels_size(int columns)
{
    return (size_t)EVAL_PANEL_ROWS * ((size_t)columns + EVAL_TILE_WIDTH_MAX);
}

void eval_pack_f32(const float *x, int n, int columns, double *panels)
{
    const int width = best_tile()->width;
    for (int first = 0; first < columns; first += width)
        for (int k = 0; k < n; k++)
            for (int j = first; j < first + width; j++)
                *panels++ = j < columns ? (double)x[(size_t)k * (size_t)columns + (size_t)j] : 0;
}

void eval_pack_f64(const double *x, int n, int columns, double *panels)
{
    const int width = best_tile()->width;
    for (int first = 0; first < columns; first += width)
        for (int k = 0; k < n; k++)
            for (int j = first; j < first + width; j++)
                *panels++ = j < columns ? x[(size_t)k * (size_t)columns + (size_t)j] : 0;
}

/* Adds a tile to rows [height]. Row r takes only the first valid[r] columns; 0: the row does not exist. */
static void add_tile(const eval_tile *t, const double *a, const double *b, int n, double *const *rows, const int *valid)
{
    double edge[EVAL_TILE_HEIGHT_MAX][EVAL_TILE_WIDTH_MAX], *c[EVAL_TILE_HEIGHT_MAX] = {NULL};
    const int height = t->height < EVAL_TILE_HEIGHT_MAX ? t->height : EVAL_TILE_HEIGHT_MAX; /* GCC warns otherwise */
    for (int r = 0; r < height; r++) {
        c[r] = rows[r];
        if (valid[r] >= t->width) continue;
        memset(edge[r], 0, sizeof edge[r]);
        if (valid[r] > 0) memcpy(edge[r], rows[r], (size_t)valid[r] * sizeof(double));
        c[r] = edge[r];
    }
    t->add(a, b, n, c);
    for (int r = 0; r < height; r++)
        if (valid[r] > 0 && valid[r] < t->width) memcpy(rows[r], edge[r], (size_t)valid[r] * sizeof(double));
}

/* Returns the packed column i of n rows. */
static const double *column(const eval_tile *t, const double *panels, int n, int i)
{
    return panels + (size_t)(i / t->width) * (size_t)n * (size_t)t->width + i % t->width;
}

void eval_add_squares(const double *panels, int n, int columns, double *sums)
{
    const eval_tile *t = best_tile();
    for (int j = 0; j < columns; j += t->width) /* panel j stays in the cache */
        for (int i = j; i < columns; i += t->height) {
            double *rows[EVAL_TILE_HEIGHT_MAX];
            int valid[EVAL_TILE_HEIGHT_MAX];
            for (int r = 0; r < t->height; r++) {
                const size_t row = (size_t)(i + r);
                rows[r] = i + r < columns ? sums + row * (row + 1) / 2 + j : NULL;
                valid[r] = i + r < columns ? i + r - j + 1 : 0;
            }
            add_tile(t, column(t, panels, n, i), column(t, panels, n, j), n, rows, valid);
        }
}

void eval_add_products(const double *a, int columns_a, const double *b, int columns_b, int n, double *sums)
{
    const eval_tile *t = best_tile();
    for (int j = 0; j < columns_b; j += t->width)
        for (int i = 0; i < columns_a; i += t->height) {
            double *rows[EVAL_TILE_HEIGHT_MAX];
            int valid[EVAL_TILE_HEIGHT_MAX];
            for (int r = 0; r < t->height; r++) {
                rows[r] = i + r < columns_a ? sums + (size_t)(i + r) * (size_t)columns_b + j : NULL;
                valid[r] = i + r < columns_a ? columns_b - j : 0;
            }
            add_tile(t, column(t, a, n, i), column(t, b, n, j), n, rows, valid);
        }
}
