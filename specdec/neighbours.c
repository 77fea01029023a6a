#include "specdec/neighbours.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double squared_distance(const float *a, const float *b, int dim)
{
    double sum = 0;
    for (int i = 0; i < dim; i++) sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sum;
}

/* Inserts `token` into the sorted list of at most k tokens, after equal ones. Returns the new length. */
static int insert(int *row, double *distance, int count, int k, int token, double d)
{
    if (count == k && d >= distance[k - 1]) return count;
    int low = 0, high = count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (distance[middle] <= d)
            low = middle + 1;
        else
            high = middle;
    }
    if (count < k) count++;
    memmove(row + low + 1, row + low, (size_t)(count - low - 1) * sizeof *row);
    memmove(distance + low + 1, distance + low, (size_t)(count - low - 1) * sizeof *distance);
    row[low] = token, distance[low] = d;
    return count;
}

int spec_neighbour_table(const float *codebook, int size, int dim, int k, int *table)
{
    double *distance = malloc((size_t)k * sizeof *distance);
    if (!distance) return -1;
    for (int x = 0; x < size; x++) {
        int *row = table + (size_t)x * (size_t)k, count = insert(row, distance, 0, k, x, -1); /* itself before twins */
        for (int y = 0; y < size; y++)
            if (y != x) {
                const double d =
                    squared_distance(codebook + (size_t)x * (size_t)dim, codebook + (size_t)y * (size_t)dim, dim);
                count = insert(row, distance, count, k, y, d);
            }
    }
    free(distance);
    return 0;
}

static int at_most(const spec_site *s, double k)
{
    return k < s->neighbour_count ? (int)k : s->neighbour_count;
}

int spec_neighbour_set(const spec_site *s, int x, double k, double bound, double *p_sum)
{
    const int *row = s->neighbours + (size_t)x * (size_t)s->neighbour_count;
    const int most = at_most(s, k);
    double others = 0;
    int count = 1;
    for (; count < most; count++) {
        const double p = exp((double)s->log_p[row[count]]);
        if (!(others + p < bound)) break;
        others += p;
    }
    *p_sum = exp((double)s->log_p[x]) + others;
    return count;
}

double spec_neighbour_keep(const spec_site *s, int candidate, int rejected, double k, double bound, double log_ratio)
{
    if (!(log_ratio > 0)) return -INFINITY;
    const int *row = s->neighbours + (size_t)rejected * (size_t)s->neighbour_count;
    const int most = at_most(s, k);
    double p_sum;
    for (int i = 0; i < most; i++) /* the set is only built for candidates near `rejected` */
        if (row[i] == candidate && i < spec_neighbour_set(s, rejected, k, bound, &p_sum)) return -INFINITY;
    return log1p(-exp(-log_ratio));
}
