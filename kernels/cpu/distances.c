/* Squared distances between all rows of two matrices. An item is a square of SIDE x SIDE pairs, whose operands stay in
 * a core's L2 cache (1 MB with 2048 numbers a row). */
#include "kernels/cpu/cpu.h"

enum { SIDE = 64 };

typedef struct {
    const kern_rows *kernels;
    const float *a, *b;
    int rows, columns, dim;
    float *y;
} distances_loop;

static void distances_body(void *arg, int first, int last, int thread)
{
    const distances_loop *s = arg;
    const int across = (s->columns + SIDE - 1) / SIDE;
    const size_t dim = (size_t)s->dim, columns = (size_t)s->columns;
    (void)thread;
    for (int i = first; i < last; i++) {
        const int row = i / across * SIDE, column = i % across * SIDE;
        s->kernels->distances(s->a + (size_t)row * dim, cpu_lesser(SIDE, s->rows - row), s->b + (size_t)column * dim,
                              cpu_lesser(SIDE, s->columns - column), s->dim,
                              s->y + (size_t)row * columns + (size_t)column, columns);
    }
}

void cpu_distances(kern_queue *k, const float *a, int rows, const float *b, int columns, int dim, float *y)
{
    distances_loop s = {cpu_of(k)->d->rows, a, b, rows, columns, dim, y};
    const int items = (rows + SIDE - 1) / SIDE * ((columns + SIDE - 1) / SIDE);
    if (kern_live(k)) cpu_for(cpu_of(k), items, 2.0 * rows * columns * dim, distances_body, &s);
}
