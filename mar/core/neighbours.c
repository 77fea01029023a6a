#include "mar/core/neighbours.h"

#include "specdec/neighbours.h"
#include "weights/npz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A table and its identity. */
typedef struct {
    const float *codebook; /* [size][dim] */
    int size, dim, k;
    mar_metric metric;
    int *table; /* [size][k] */
} neighbours;

/* Returns the file's path; the caller frees it. Returns NULL without memory, and for a model that is not a file. */
static char *path_of(const mar_vae *vae, const neighbours *n)
{
    char *path = NULL;
    if (!vae->path) return NULL;
    if (asprintf(&path, "%s.neighbours-%s-%d.npz", vae->path, n->metric == MAR_METRIC_L2 ? "l2" : "cosine", n->k) < 0)
        return NULL;
    return path;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* A file with a cached table. */
typedef struct {
    const char *path;
    npz *z;
    char *why; /* [NPZ_WHY_MAX] reason for rejecting it */
} cache;

/* Returns an array of the file by name; NULL if it is missing or has another type or shape. */
static const npz_array *neighbours_find(const cache *c, const char *name, npz_dtype dtype, int rank,
                                        const int64_t *shape)
{
    char found[NPZ_WHY_MAX];
    const npz_array *a = npz_find(c->z, name);
    if (!a) {
        npz_explain(c->z, name, c->why);
    } else if (a->dtype != dtype || a->rank != rank || memcmp(a->shape, shape, sizeof *shape * (size_t)rank) != 0) {
        err_line(c->why, NPZ_WHY_MAX, "%s: its array %s is %s", c->path, name, npz_describe(a, found));
        a = NULL;
    }
    return a;
}

/* Returns whether the file's table is of this codebook and metric. */
static int is_of(const cache *c, const neighbours *n)
{
    const size_t count = (size_t)n->size * (size_t)n->dim;
    const npz_array *a = neighbours_find(c, "codebook", NPZ_F32, 2, (int64_t[]){n->size, n->dim});
    const npz_array *b = a ? neighbours_find(c, "metric", NPZ_I32, 1, (int64_t[]){1}) : NULL;
    float metric, *codebook = b ? malloc(count * sizeof *codebook) : NULL;
    if (b && !codebook) err_line(c->why, NPZ_WHY_MAX, "%s: out of memory", c->path);
    int ok = codebook && npz_read_f32(c->z, a, codebook, c->why) == MAR_OK &&
             npz_read_f32(c->z, b, &metric, c->why) == MAR_OK;
    if (ok && memcmp(codebook, n->codebook, count * sizeof *codebook) != 0) {
        err_line(c->why, NPZ_WHY_MAX, "%s: is of another codebook", c->path);
        ok = 0;
    } else if (ok && metric != (float)n->metric) {
        err_line(c->why, NPZ_WHY_MAX, "%s: is of another metric", c->path);
        ok = 0;
    }
    free(codebook);
    return ok;
}

/* Converts the floats in the table's memory to token ids in place. Returns 0 if one is invalid. */
static int take_tokens(const neighbours *n)
{
    const size_t count = (size_t)n->size * (size_t)n->k;
    for (size_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, n->table + i, sizeof value);
        if (!(value >= 0 && value < (float)n->size)) return 0;
        n->table[i] = (int)value;
        if (i % (size_t)n->k == 0 && (size_t)n->table[i] != i / (size_t)n->k) return 0;
    }
    return 1;
}

/* Reads the table from a file. Returns 0 if it cannot. Token ids are exact in f32, and an int has a float's size. */
static int read_table(const char *path, const neighbours *n, char *why)
{
    _Static_assert(sizeof(float) == sizeof *n->table, "a float takes the place of a number");
    cache c = {.path = path, .why = why};
    if (npz_open(path, &c.z, why) != MAR_OK) return 0;
    const npz_array *a =
        is_of(&c, n) ? neighbours_find(&c, "neighbours", NPZ_I32, 2, (int64_t[]){n->size, n->k}) : NULL;
    int ok = a && npz_read_f32(c.z, a, (float *)(void *)n->table, why) == MAR_OK;
    if (ok && !take_tokens(n)) {
        err_line(why, NPZ_WHY_MAX, "%s: has numbers that are none of its tokens", path);
        ok = 0;
    }
    npz_close(c.z);
    return ok;
}

/* --- making and writing ------------------------------------------------------------------------------------------- */

static mar_status neighbours_make_table(const neighbours *n, mar_err *err)
{
    const spec_metric metric = n->metric == MAR_METRIC_L2 ? SPEC_METRIC_L2 : SPEC_METRIC_COSINE;
    if (spec_neighbour_table(n->codebook, n->size, n->dim, n->k, metric, n->table) == 0) return MAR_OK;
    return err_set(err, MAR_ENOMEM, "out of memory for the %d tokens near each of %d", n->k, n->size);
}

static mar_status write_table(const char *path, const neighbours *n, char *why)
{
    const int metric = (int)n->metric;
    npz_writer *w;
    mar_status status = npz_writer_open(path, 0, &w, why);
    if (status != MAR_OK) return status;
    status = npz_writer_add(w, "codebook", NPZ_F32, 2, (int64_t[]){n->size, n->dim}, n->codebook, why);
    if (status == MAR_OK) status = npz_writer_add(w, "metric", NPZ_I32, 1, (int64_t[]){1}, &metric, why);
    if (status == MAR_OK)
        status = npz_writer_add(w, "neighbours", NPZ_I32, 2, (int64_t[]){n->size, n->k}, n->table, why);
    if (status == MAR_OK) return npz_writer_commit(w, why);
    npz_writer_discard(w);
    return status;
}

mar_status mar_neighbours(const mar_vae *vae, mar_metric metric, int k, int *table, mar_err *err)
{
    const mar_vae_config *c = vae_decoder_config(vae->decoder);
    const neighbours n = {vae_decoder_embedding(vae->decoder), c->codebook, c->z_channels, k, metric, table};
    const double start = mar_now();
    char why[NPZ_WHY_MAX], *path = path_of(vae, &n);
    const int exists = path && access(path, F_OK) == 0;
    if (exists && read_table(path, &n, why)) {
        mar_log(vae->m, MAR_LOG_INFO, "near tokens: read from %s", path);
        free(path);
        return MAR_OK;
    }
    if (exists) mar_log(vae->m, MAR_LOG_INFO, "near tokens are looked for anew: %s", why);
    const mar_status status = neighbours_make_table(&n, err);
    if (status == MAR_OK)
        mar_log(vae->m, MAR_LOG_INFO, "near tokens: %d of each of %d found in %.3g s", k, n.size, mar_now() - start);
    if (status == MAR_OK && path && write_table(path, &n, why) != MAR_OK)
        mar_log(vae->m, MAR_LOG_INFO, "near tokens are not kept for next time: %s", why);
    free(path);
    return status;
}
