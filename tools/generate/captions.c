#include "tools/generate/captions.h"

#include "tools/cli/command.h"
#include "weights/npz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CAPTIONS_MAX = 1000000 };

/* An array of the file as [count][positions][dim]; dim is 1 for a mask. */
typedef struct {
    const npz_array *array;
    int64_t count, positions, dim;
} table;

static int refuse(const char *why)
{
    return tool_error("--captions %s", why);
}

/* Finds the array of that name. The array of a .npy has no name. */
static int find(npz *file, const char *name, const npz_array **out)
{
    char why[NPZ_WHY_MAX];
    const int alone = npz_count(file) == 1 && !*npz_name_at(file, 0);
    *out = npz_find(file, alone ? "" : name);
    if (*out) return 0;
    npz_explain(file, alone ? "" : name, why);
    return refuse(why);
}

/* Reads the sizes of an array of `rank` dimensions. The first, the captions, may be missing. */
static int measure(const char *path, const npz_array *a, int rank, table *out)
{
    char text[NPZ_WHY_MAX];
    const int64_t *shape = a->shape + (a->rank == rank);
    const int good = (a->rank == rank || a->rank == rank - 1) && a->count > 0;
    *out = (table){a, a->rank == rank ? a->shape[0] : 1, good ? shape[0] : 0, good && rank == 3 ? shape[1] : 1};
    if (good && out->count <= CAPTIONS_MAX) return 0;
    return tool_error("--captions %s: %s is %s, expected %s", path, *a->name ? a->name : "its array",
                      npz_describe(a, text), rank == 3 ? "[captions, positions, numbers]" : "[captions, positions]");
}

static int read_table(npz *file, const table *t, float **out)
{
    char why[NPZ_WHY_MAX];
    *out = malloc((size_t)t->array->count * sizeof **out);
    if (!*out) return tool_error("out of memory for %lld captions", (long long)t->count);
    return npz_read_f32(file, t->array, *out, why) == MAR_OK ? 0 : refuse(why);
}

/* Finds the first of a caption's positions and their number; without a mask all. */
static int find_caption(const char *path, const float *mask, const table *t, int64_t caption, int64_t *first,
                        int64_t *n)
{
    int64_t end = t->positions;
    *first = 0, *n = t->positions;
    if (!mask) return 0;
    mask += caption * t->positions;
    while (*first < end && mask[*first] == 0) ++*first;
    while (end > *first && mask[end - 1] == 0) end--;
    *n = end - *first;
    for (int64_t i = *first; i < end; i++)
        if (mask[i] != 1)
            return tool_error(
                "--captions %s: the mask of caption %lld is %g at position %lld, expected 1 without gaps, "
                "and 0 on either side",
                path, (long long)caption, (double)mask[i], (long long)i);
    return *n > 0 ? 0
                  : tool_error("--captions %s: the mask of caption %lld has no 1, expected one at least", path,
                               (long long)caption);
}

/* Moves every caption to the end of its positions. */
static int place(const char *path, const float *features, const float *mask, const table *t, captions *c)
{
    const size_t dim = (size_t)c->dim;
    for (int i = 0; i < c->count; i++) {
        int64_t first, n;
        if (find_caption(path, mask, t, i, &first, &n) != 0) return 1;
        if (n > c->tokens)
            return tool_error("--captions %s: caption %d has %lld positions, expected %d at most", path, i,
                              (long long)n, c->tokens);
        const float *from = features + ((size_t)i * (size_t)t->positions + (size_t)first) * dim;
        const size_t at = (size_t)i * (size_t)c->tokens + (size_t)(c->tokens - n);
        for (size_t k = 0; k < (size_t)n * dim; k++)
            if (!isfinite(from[k]))
                return tool_error("--captions %s: caption %d has a feature that is no number, expected finite ones",
                                  path, i);
        memcpy(c->features + at * dim, from, (size_t)n * dim * sizeof *from);
        memset(c->mask + at, 1, (size_t)n);
    }
    return 0;
}

static int read_file(const char *path, npz *file, captions *c)
{
    char text[NPZ_WHY_MAX];
    const npz_array *array;
    table t, m = {0};
    float *features = NULL, *mask = NULL;
    if (find(file, "features", &array) != 0 || measure(path, array, 3, &t) != 0) return 1;
    if (t.dim != c->dim)
        return tool_error("--captions %s: features of %lld numbers, %s, expected %d as the model has", path,
                          (long long)t.dim, npz_describe(array, text), c->dim);
    if (*array->name && npz_find(file, "mask")) {
        if (find(file, "mask", &array) != 0 || measure(path, array, 2, &m) != 0) return 1;
        if (m.count != t.count || m.positions != t.positions)
            return tool_error("--captions %s: a mask of %lldx%lld, expected %lldx%lld as the features have", path,
                              (long long)m.count, (long long)m.positions, (long long)t.count, (long long)t.positions);
    }
    c->count = (int)t.count;
    c->features = calloc((size_t)c->count * (size_t)c->tokens * (size_t)c->dim, sizeof *c->features);
    c->mask = calloc((size_t)c->count * (size_t)c->tokens, 1);
    int failed = !c->features || !c->mask ? tool_error("out of memory for %d captions", c->count) : 0;
    if (!failed) failed = read_table(file, &t, &features);
    if (!failed && m.array) failed = read_table(file, &m, &mask);
    if (!failed) failed = place(path, features, mask, &t, c);
    free(features);
    free(mask);
    return failed;
}

int captions_read(const char *path, int tokens, int dim, captions *out)
{
    char why[NPZ_WHY_MAX];
    npz *file;
    *out = (captions){.tokens = tokens, .dim = dim};
    if (npz_open(path, &file, why) != MAR_OK) return refuse(why);
    const int failed = read_file(path, file, out);
    npz_close(file);
    if (failed) captions_free(out);
    return failed;
}

void captions_free(captions *c)
{
    free(c->features);
    free(c->mask);
    *c = (captions){0};
}
