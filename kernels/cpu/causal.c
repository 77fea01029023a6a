/* Operations of a causal transformer besides products and norms: gated products, embedding. */
#include "kernels/cpu/cpu.h"
#include "kernels/discrete.h"

/* A loop over items of gated products. */
typedef struct {
    const cpu_device *d;
    int dim;
    const void *in;
    void *y;
    int bf16; /* y is bf16 */
    kern_activation activation;
} gated_loop;

enum { GATED_COLUMNS = 512 }; /* columns of an item: a few rows suffice for all threads */

static void gated_body(void *arg, int first, int last, int thread)
{
    const gated_loop *l = arg;
    const kern_device *d = &l->d->base;
    const int across = cpu_divide_up(l->dim, GATED_COLUMNS);
    (void)thread;
    for (int i = first; i < last; i++) {
        const size_t row = (size_t)(i / across), hidden = (size_t)l->dim;
        const size_t from = (size_t)(i % across) * GATED_COLUMNS;
        const size_t n = hidden - from < GATED_COLUMNS ? hidden - from : GATED_COLUMNS;
        const char *x = act_at(d, l->in, row * 2 * hidden + from);
        l->d->rows->gated(x, act_at(d, x, hidden), n, l->activation, act_at(d, l->y, row * hidden + from), l->bf16);
    }
}

void cpu_gated(kern_queue *k, const act *x, int rows, int hidden, kern_activation activation, act *y)
{
    cpu_queue *q = cpu_of(k);
    gated_loop l = {.d = q->d, .in = x, .dim = hidden, .y = y, .bf16 = q->d->bf16, .activation = activation};
    if (kern_live(k)) cpu_for(q, rows * cpu_divide_up(hidden, GATED_COLUMNS), 16.0 * rows * hidden, gated_body, &l);
}

typedef struct {
    const float *table;
    int size, dim;
    const float *x;
    float *y;
} look_up_loop;

static void look_up_body(void *arg, int first, int last, int thread)
{
    const look_up_loop *l = arg;
    const size_t dim = (size_t)l->dim;
    (void)thread;
    for (int r = first; r < last; r++)
        memcpy(l->y + (size_t)r * dim, l->table + (size_t)kern_token_row(l->x[r], l->size) * dim, dim * sizeof(float));
}

void cpu_look_up(kern_queue *k, const float *table, int size, int dim, const float *x, int rows, float *y)
{
    cpu_queue *q = cpu_of(k);
    look_up_loop l = {table, size, dim, x, y};
    if (kern_live(k)) cpu_for(q, rows, 16.0 * rows * dim, look_up_body, &l);
}

void cpu_embed(kern_queue *k, const float *table, int size, int dim, const int *token, const int *place, int rows,
               float *y)
{
    for (int r = 0; r < rows && kern_live(k); r++)
        memcpy(y + (size_t)r * (size_t)dim, table + (size_t)kern_embedded_row(token, place[r], size) * (size_t)dim,
               (size_t)dim * sizeof *y);
}
