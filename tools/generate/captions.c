#include "tools/generate/captions.h"

#include "base/printable.h"
#include "tools/cli/command.h"
#include "tools/cli/file_sum.h"
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

static int captions_refuse(const char *why)
{
    return tool_error("--captions %s", why);
}

/* Adds memory of `bytes` bytes, 1 or more, that the set owns. Returns NULL after printing "out of memory". */
static void *captions_add_block(captions *c, size_t bytes)
{
    void **larger = realloc(c->blocks, ((size_t)c->block_count + 1) * sizeof *larger), *block = malloc(bytes);
    if (larger) c->blocks = larger;
    if (larger && block) return c->blocks[c->block_count++] = block;
    free(block);
    tool_error("out of memory for captions of %zu MB", bytes >> 20);
    return NULL;
}

/* Finds the array of that name. The array of a .npy has no name. */
static int captions_find(npz *file, const char *name, const npz_array **out)
{
    char why[NPZ_WHY_MAX];
    const int alone = npz_count(file) == 1 && !*npz_name_at(file, 0);
    *out = npz_find(file, alone ? "" : name);
    if (*out) return 0;
    npz_explain(file, alone ? "" : name, why);
    return captions_refuse(why);
}

/* Reads the sizes of an array of `rank` dimensions. The first, the captions, may be missing. */
static int captions_measure(const char *path, const npz_array *a, int rank, table *out)
{
    char text[NPZ_WHY_MAX];
    const int64_t *shape = a->shape + (a->rank == rank);
    const int good = (a->rank == rank || a->rank == rank - 1) && a->count > 0;
    *out = (table){a, a->rank == rank ? a->shape[0] : 1, good ? shape[0] : 0, good && rank == 3 ? shape[1] : 1};
    if (good && out->count <= CAPTIONS_MAX) return 0;
    return tool_error("--captions %s: %s is %s, expected %s", path, *a->name ? a->name : "its array",
                      npz_describe(a, text), rank == 3 ? "[captions, positions, numbers]" : "[captions, positions]");
}

/* Reads a table to memory of the set. */
static int captions_read_table(npz *file, const table *t, captions *c, float **out)
{
    char why[NPZ_WHY_MAX];
    *out = captions_add_block(c, (size_t)t->array->count * sizeof **out);
    if (!*out) return 1;
    return npz_read_f32(file, t->array, *out, why) == MAR_OK ? 0 : captions_refuse(why);
}

/* Finds the first of a caption's positions and their number; without a mask all. */
static int find_caption(const char *path, const float *mask, const table *t, int64_t index, int64_t *first, int64_t *n)
{
    int64_t end = t->positions;
    *first = 0, *n = t->positions;
    if (!mask) return 0;
    mask += index * t->positions;
    while (*first < end && mask[*first] == 0) ++*first;
    while (end > *first && mask[end - 1] == 0) end--;
    *n = end - *first;
    for (int64_t i = *first; i < end; i++)
        if (mask[i] != 1)
            return tool_error(
                "--captions %s: the mask of caption %lld is %g at position %lld, expected 1 without gaps, "
                "and 0 on either side",
                path, (long long)index, (double)mask[i], (long long)i);
    return *n > 0 ? 0
                  : tool_error("--captions %s: the mask of caption %lld has no 1, expected one at least", path,
                               (long long)index);
}

/* Finds the captions in the table. */
static int captions_locate(const char *path, const float *features, const float *mask, const table *t, captions *c)
{
    const size_t dim = (size_t)c->dim;
    for (int i = 0; i < c->count; i++) {
        int64_t first, n;
        if (find_caption(path, mask, t, i, &first, &n) != 0) return 1;
        if (n > c->tokens)
            return tool_error("--captions %s: caption %d has %lld positions, expected %d at most", path, i,
                              (long long)n, c->tokens);
        const float *from = features + ((size_t)i * (size_t)t->positions + (size_t)first) * dim;
        for (size_t k = 0; k < (size_t)n * dim; k++)
            if (!isfinite(from[k]))
                return tool_error("--captions %s: caption %d has a feature that is no number, expected finite ones",
                                  path, i);
        c->list[i] = (caption){.features = from, .positions = (int)n};
    }
    return 0;
}

/* Reads an array of bytes to memory of the set, with a NUL behind them. Returns NULL with the error printed. */
static char *captions_read_text(npz *file, const npz_array *a, captions *c)
{
    char why[NPZ_WHY_MAX];
    char *text = captions_add_block(c, (size_t)a->count + 1);
    if (!text) return NULL;
    text[a->count] = '\0';
    if (npz_stream_begin(file, a, why) == MAR_OK &&
        npz_stream_read(file, (size_t)a->count, (uint8_t *)text, why) == MAR_OK)
        return text;
    captions_refuse(why);
    return NULL;
}

/* Reads the prompts, bytes of UTF-8 with a NUL behind each. */
static int captions_read_prompts(const char *path, npz *file, captions *c)
{
    const npz_array *a = npz_find(file, "prompts");
    if (!a || a->dtype != NPZ_U8 || a->rank != 1 || a->count == 0) return 0; /* another program's */
    char *text = captions_read_text(file, a, c);
    if (!text) return 1;
    const char *const end = text + a->count;
    int n = 0;
    for (char *at = text, *nul; at < end && (nul = memchr(at, '\0', (size_t)(end - at))) != NULL; at = nul + 1) {
        unsigned code;
        for (size_t k = 0, bytes; at + k < nul; k += bytes)
            if ((bytes = utf8_decode(at + k, (size_t)(nul - at) - k, &code)) == 0)
                return tool_error("--captions %s: prompt %d is no UTF-8, expected that", path, n);
        if (n++ < c->count) c->list[n - 1].prompt = at;
    }
    if (n == c->count && end[-1] == '\0') return 0;
    return tool_error("--captions %s: prompts has %d texts with a NUL behind each, expected %d as the features have",
                      path, n, c->count);
}

const char *captions_made_for(const char *family, const char *image_size, char text[CAPTIONS_MADE_FOR])
{
    snprintf(text, CAPTIONS_MADE_FOR, "%s%s%s", family, image_size ? " --size " : "", image_size ? image_size : "");
    return text;
}

/* Reads what the captions were made for. */
static int read_made_for(const char *path, npz *file, captions *c)
{
    char why[NPZ_WHY_MAX];
    const npz_array *a = npz_find(file, "made_for");
    if (!a) return 0;
    if (a->dtype != NPZ_U8 || a->rank != 1 || a->count < 1 || a->count >= CAPTIONS_MADE_FOR)
        return tool_error("--captions %s: made_for is %s, expected a text", path, npz_describe(a, why));
    c->made_for = captions_read_text(file, a, c);
    return !c->made_for;
}

/* Reads the second context of guidance. */
static int read_negative(const char *path, npz *file, captions *c)
{
    char text[NPZ_WHY_MAX];
    const npz_array *a = npz_find(file, "negative");
    if (!a) return 0;
    if (a->rank != 2 || a->shape[1] != c->dim || a->shape[0] < 1 || a->shape[0] > c->tokens)
        return tool_error("--captions %s: negative is %s, expected [1 to %d, %d]", path, npz_describe(a, text),
                          c->tokens, c->dim);
    const table t = {.array = a};
    float *features;
    if (captions_read_table(file, &t, c, &features) != 0) return 1;
    for (int64_t i = 0; i < a->count; i++)
        if (!isfinite(features[i]))
            return tool_error("--captions %s: negative has a feature that is no number, expected finite ones", path);
    c->negative = (caption){.features = features, .positions = (int)a->shape[0]};
    return 0;
}

static int captions_read_file(const char *path, npz *file, captions *c)
{
    char text[NPZ_WHY_MAX];
    const npz_array *array;
    table t, m = {0};
    float *features = NULL, *mask = NULL;
    if (captions_find(file, "features", &array) != 0 || captions_measure(path, array, 3, &t) != 0) return 1;
    if (t.dim != c->dim)
        return tool_error("--captions %s: features of %lld numbers, %s, expected %d as the model has", path,
                          (long long)t.dim, npz_describe(array, text), c->dim);
    if (*array->name && npz_find(file, "mask")) {
        if (captions_find(file, "mask", &array) != 0 || captions_measure(path, array, 2, &m) != 0) return 1;
        if (m.count != t.count || m.positions != t.positions)
            return tool_error("--captions %s: a mask of %lldx%lld, expected %lldx%lld as the features have", path,
                              (long long)m.count, (long long)m.positions, (long long)t.count, (long long)t.positions);
    }
    c->count = (int)t.count;
    c->list = calloc((size_t)c->count, sizeof *c->list);
    if (!c->list) return tool_error("out of memory for %d captions", c->count);
    return captions_read_table(file, &t, c, &features) || (m.array && captions_read_table(file, &m, c, &mask)) ||
           captions_locate(path, features, mask, &t, c) || captions_read_prompts(path, file, c) ||
           read_negative(path, file, c) || read_made_for(path, file, c);
}

int captions_read(const char *path, int tokens, int dim, captions *out)
{
    char why[NPZ_WHY_MAX];
    npz *file;
    *out = (captions){.tokens = tokens, .dim = dim};
    if (npz_open(path, &file, why) != MAR_OK) return captions_refuse(why);
    const int failed = captions_read_file(path, file, out);
    npz_close(file);
    if (failed) captions_free(out);
    return failed;
}

int captions_add(captions *c, int count, const float *features, const uint8_t *mask, char *const *prompts)
{
    const size_t dim = (size_t)c->dim;
    size_t positions = 0;
    for (int i = 0; i < count * c->tokens; i++) positions += mask[i];
    float *to = captions_add_block(c, positions * dim * sizeof *to);
    if (!to) return 1;
    for (int i = 0; i < count; i++) {
        int n = 0;
        for (int k = 0; k < c->tokens; k++) n += mask[i * c->tokens + k];
        const size_t first = (size_t)(i + 1) * (size_t)c->tokens - (size_t)n;
        memcpy(to, features + first * dim, (size_t)n * dim * sizeof *to);
        c->list[c->count++] = (caption){.features = to, .positions = n, .prompt = prompts[i]};
        to += (size_t)n * dim;
    }
    return 0;
}

int captions_set_negative(captions *c, const float *features, const uint8_t *mask)
{
    int first = 0;
    while (first < c->tokens - 1 && !mask[first]) first++;
    const size_t dim = (size_t)c->dim, n = (size_t)(c->tokens - first);
    float *to = captions_add_block(c, n * dim * sizeof *to);
    if (!to) return 1;
    memcpy(to, features + (size_t)first * dim, n * dim * sizeof *to);
    c->negative = (caption){.features = to, .positions = (int)n};
    return 0;
}

void captions_place(const captions *c, int i, float *features, uint8_t *mask)
{
    const caption *a = i < 0 ? &c->negative : &c->list[i];
    const size_t dim = (size_t)c->dim, padding = (size_t)(c->tokens - a->positions);
    memset(features, 0, padding * dim * sizeof *features);
    memcpy(features + padding * dim, a->features, (size_t)a->positions * dim * sizeof *features);
    memset(mask, 0, padding);
    memset(mask + padding, 1, (size_t)a->positions);
}

uint64_t captions_sum(const captions *c, int i)
{
    uint64_t sums[2] = {0, 0};
    const int first = i < 0 ? 0 : i, end = i < 0 ? c->count : i + 1;
    for (int k = first; k < end; k++) {
        const size_t bytes = (size_t)c->list[k].positions * (size_t)c->dim * sizeof(float);
        sums[1] = memory_sum(c->list[k].features, bytes);
        sums[0] = memory_sum(sums, sizeof sums);
    }
    return sums[0];
}

void captions_free(captions *c)
{
    for (int i = 0; i < c->block_count; i++) free(c->blocks[i]);
    free(c->blocks);
    free(c->list);
    *c = (captions){0};
}
