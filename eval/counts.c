#include "eval/counts.h"

#include "eval/statistics.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

/* A cell in an image, and its count in run a minus that in run b. */
typedef struct {
    uint64_t cell;
    int32_t image, excess;
} entry;

/* All cells' totals, and the entries with nonzero excess, sorted by cell, then image. */
typedef struct {
    entry *entries; /* [count] */
    size_t count;
    double *total;   /* [cells] A + B */
    uint32_t *index; /* [count] cell number of an entry */
    size_t cells;
    double occurrences; /* per run */
} table;

enum { RIGHT, BELOW, DIRECTIONS };
typedef enum { TOKENS, PLACES, NEIGHBOURS } kind;

/* Writes the cells of a position of an image to cell[DIRECTIONS]. Returns their number. */
static int cells_at(kind k, const float *image, int width, int height, int at, uint64_t *cell)
{
    const uint64_t token = (uint64_t)image[at];
    int n = 0;
    switch (k) {
    case TOKENS:
        cell[n++] = token;
        break;
    case PLACES:
        cell[n++] = (uint64_t)at << 32 | token;
        break;
    case NEIGHBOURS:
        if (at % width + 1 < width) cell[n++] = token << 32 | (uint64_t)image[at + 1] << 1 | RIGHT;
        if (at / width + 1 < height) cell[n++] = token << 32 | (uint64_t)image[at + width] << 1 | BELOW;
        break;
    }
    return n;
}

static int by_cell_and_image(const void *x, const void *y)
{
    const entry *a = x, *b = y;
    if (a->cell != b->cell) return a->cell < b->cell ? -1 : 1;
    return (a->image > b->image) - (a->image < b->image);
}

/* Lists all occurrences as entries. Returns their number. */
static size_t list(const eval_token_pairs *x, kind k, entry *out)
{
    const int positions = x->width * x->height;
    size_t n = 0;
    uint64_t cell[DIRECTIONS];
    for (int i = 0; i < x->images; i++)
        for (int run = 0; run < 2; run++)
            for (int at = 0; at < positions; at++) {
                const float *image = (run ? x->b : x->a) + (size_t)i * (size_t)positions;
                const int found = cells_at(k, image, x->width, x->height, at, cell);
                for (int j = 0; j < found; j++) out[n++] = (entry){cell[j], i, run ? -1 : 1};
            }
    return n;
}

/* Numbers the cells, sums their totals, and merges the sorted entries of a cell in an image. Entries that cancel are
 * dropped: swapping their image changes nothing. */
static void merge(table *t)
{
    size_t kept = 0;
    t->cells = 0;
    for (size_t i = 0; i < t->count; i++) {
        const entry e = t->entries[i];
        const int opens = i == 0 || e.cell != t->entries[i - 1].cell;
        if (opens) t->total[t->cells++] = 0;
        t->total[t->cells - 1]++;
        const uint32_t number = (uint32_t)(t->cells - 1);
        if (kept > 0 && t->index[kept - 1] == number && t->entries[kept - 1].image == e.image)
            t->entries[kept - 1].excess += e.excess;
        else
            t->index[kept] = number, t->entries[kept++] = e;
    }
    size_t left = 0;
    for (size_t i = 0; i < kept; i++)
        if (t->entries[i].excess != 0) t->index[left] = t->index[i], t->entries[left++] = t->entries[i];
    t->count = left;
}

static void table_free(table *t)
{
    free(t->entries);
    free(t->total);
    free(t->index);
}

static mar_status counts_make_table(const eval_token_pairs *x, kind k, table *t)
{
    const size_t most = (size_t)x->images * 2 * DIRECTIONS * (size_t)x->width * (size_t)x->height;
    *t = (table){.entries = malloc(most * sizeof *t->entries)};
    if (!t->entries) return MAR_ENOMEM;
    t->count = list(x, k, t->entries);
    t->occurrences = (double)t->count / 2;
    qsort(t->entries, t->count, sizeof *t->entries, by_cell_and_image);
    t->total = malloc((t->count + 1) * sizeof *t->total);
    t->index = malloc((t->count + 1) * sizeof *t->index);
    if (!t->total || !t->index) return MAR_ENOMEM;
    merge(t);
    return MAR_OK;
}

/* Computes chi-square and total variation with pairs swapped where the sign is negative. difference is scratch,
 * [cells]. */
static void counts_compare(const table *t, const float *sign, double *difference, double *chi2, double *tv)
{
    *chi2 = *tv = 0;
    for (size_t c = 0; c < t->cells; c++) difference[c] = 0;
    for (size_t i = 0; i < t->count; i++)
        difference[t->index[i]] += (double)sign[t->entries[i].image] * t->entries[i].excess;
    for (size_t c = 0; c < t->cells; c++) {
        *chi2 += difference[c] * difference[c] / t->total[c];
        *tv += fabs(difference[c]);
    }
    if (t->occurrences > 0) *tv /= 2 * t->occurrences;
}

static int counts_ascending(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static mar_status test(const table *t, const float *signs, int images, int permutations, eval_counts_test *out)
{
    double *difference = malloc((t->cells + 1) * sizeof *difference);
    double *tv = malloc(((size_t)permutations + 1) * sizeof *tv), chi2;
    mar_status status = difference && tv ? MAR_OK : MAR_ENOMEM;
    if (status == MAR_OK) {
        counts_compare(t, signs, difference, &out->chi2, &out->tv);
        out->cells = (long)t->cells;
        out->p = 1;
        for (int k = 1; k <= permutations; k++) {
            counts_compare(t, signs + (size_t)k * (size_t)images, difference, &chi2, &tv[k - 1]);
            out->p += chi2 >= out->chi2 * (1 - 1e-9); /* equality up to rounding counts */
        }
        out->p /= permutations + 1;
        qsort(tv, (size_t)permutations, sizeof *tv, counts_ascending);
        out->tv_95 = permutations > 0 ? tv[(int)(0.95 * (permutations - 1))] : 0;
    }
    free(difference);
    free(tv);
    return status;
}

mar_status eval_token_counts(const eval_token_pairs *x, int permutations, eval_counts_test *tokens,
                             eval_counts_test *places, eval_counts_test *neighbours)
{
    eval_counts_test *const out[] = {tokens, places, neighbours};
    float *signs = eval_permutation_signs(permutations, x->images);
    mar_status status = signs ? MAR_OK : MAR_ENOMEM;
    for (int k = TOKENS; status == MAR_OK && k <= NEIGHBOURS; k++) {
        table t;
        *out[k] = (eval_counts_test){0};
        status = counts_make_table(x, (kind)k, &t);
        if (status == MAR_OK) status = test(&t, signs, x->images, permutations, out[k]);
        table_free(&t);
    }
    free(signs);
    return status;
}
