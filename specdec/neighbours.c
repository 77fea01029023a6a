#include "specdec/neighbours.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 64 }; /* entries whose distances are summed together */

/* Writes the codebook by columns, float [dim + 1][columns], columns a multiple of COLUMNS. For cosines, entries are
 * scaled to length 1. Entries of length 0 get a 1 in an extra dimension where all others have 0. So they are at a right
 * angle to all others. */
static void neighbours_transpose(const float *codebook, int size, int dim, int columns, spec_metric metric, float *y)
{
    memset(y, 0, (size_t)columns * ((size_t)dim + 1) * sizeof *y);
    for (int x = 0; x < size; x++) {
        const float *entry = codebook + (size_t)x * (size_t)dim;
        double length = 0;
        for (int i = 0; i < dim; i++) length += (double)entry[i] * entry[i];
        const double scale = metric == SPEC_METRIC_COSINE && length > 0 ? 1 / sqrt(length) : 1;
        for (int i = 0; i < dim; i++) y[(size_t)i * (size_t)columns + (size_t)x] = (float)(entry[i] * scale);
        if (metric == SPEC_METRIC_COSINE && length == 0) y[(size_t)dim * (size_t)columns + (size_t)x] = 1;
    }
}

/* Computes squared distances of entry x to COLUMNS entries from `first` on. */
static void neighbours_distances(const float *by_column, int dim, int columns, int x, int first, float d[COLUMNS])
{
    for (int j = 0; j < COLUMNS; j++) d[j] = 0;
    for (int i = 0; i < dim; i++) {
        const float *column = by_column + (size_t)i * (size_t)columns, a = column[x];
        for (int j = 0; j < COLUMNS; j++) d[j] += (column[first + j] - a) * (column[first + j] - a);
    }
}

/* Fills keys that order all tokens as neighbours of x: by the bits of the distance (it is not negative), then by
 * number. */
static void neighbours_fill_keys(const float *by_column, int size, int dim, int columns, int x, uint64_t *key)
{
    for (int first = 0; first < size; first += COLUMNS) {
        float d[COLUMNS];
        neighbours_distances(by_column, dim, columns, x, first, d);
        for (int j = 0; j < COLUMNS && first + j < size; j++) {
            uint32_t bits;
            memcpy(&bits, &d[j], sizeof bits);
            key[first + j] = ((uint64_t)bits + 1) << 32 | (uint32_t)(first + j);
        }
    }
    key[x] = (uint32_t)x; /* before equal entries */
}

static void neighbours_swap(uint64_t *a, uint64_t *b)
{
    const uint64_t c = *a;
    *a = *b, *b = c;
}

/* Moves the k least of n keys, all different, to the front. */
static void neighbours_select_least(uint64_t *key, int n, int k)
{
    int low = 0, high = n - 1;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (key[middle] < key[low]) neighbours_swap(&key[middle], &key[low]);
        if (key[high] < key[low]) neighbours_swap(&key[high], &key[low]);
        if (key[high] < key[middle]) neighbours_swap(&key[high], &key[middle]);
        const uint64_t pivot = key[middle];
        int i = low, j = high;
        while (i <= j) {
            while (key[i] < pivot) i++;
            while (key[j] > pivot) j--;
            if (i <= j) neighbours_swap(&key[i++], &key[j--]);
        }
        if (k <= j)
            high = j;
        else if (k > i)
            low = i;
        else
            return;
    }
}

static int neighbours_by_key(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int spec_neighbour_table(const float *codebook, int size, int dim, int k, spec_metric metric, int *table)
{
    const int columns = (size + COLUMNS - 1) / COLUMNS * COLUMNS;
    float *by_column = malloc((size_t)columns * ((size_t)dim + 1) * sizeof *by_column);
    uint64_t *key = malloc((size_t)size * sizeof *key);
    for (int x = 0; x < size && by_column && key; x++) {
        if (x == 0) neighbours_transpose(codebook, size, dim, columns, metric, by_column);
        neighbours_fill_keys(by_column, size, metric == SPEC_METRIC_COSINE ? dim + 1 : dim, columns, x, key);
        neighbours_select_least(key, size, k);
        qsort(key, (size_t)k, sizeof *key, neighbours_by_key);
        for (int i = 0; i < k; i++) table[(size_t)x * (size_t)k + (size_t)i] = (int)(uint32_t)key[i];
    }
    const int made = by_column && key;
    free(by_column), free(key);
    return made ? 0 : -1;
}
