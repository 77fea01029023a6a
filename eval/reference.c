#include "eval/reference.h"

#include "base/error.h"
#include "weights/npz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits against decompression bombs. Inception has 2048 features and 2023 spatial ones. */
enum {
    DIM_MAX = 1 << 13,     /* length of a feature vector: a covariance takes at most 512 MB */
    FEATURES_MAX = 1 << 29 /* numbers in compressed data, 2 GB: 262144 images of Inception */
};

/* eval/reference.S; hidden visibility keeps references inside the library */
#pragma GCC visibility push(hidden)
extern const uint8_t eval_file_reference[], eval_file_reference_end[];
#pragma GCC visibility pop

typedef struct {
    const char *path;
    npz *file;
    mar_err err;
} reader;

static mar_status reference_fail(reader *r, mar_status status, const char *why)
{
    return err_set(&r->err, status, "%s", why);
}

/* Returns 1 if the file has the array, readable or not. */
static int reference_has(const reader *r, const char *name)
{
    for (int i = 0; i < npz_count(r->file); i++)
        if (strcmp(npz_name_at(r->file, i), name) == 0) return 1;
    return 0;
}

/* Writes "[2048][2048]" to text and returns it. */
static const char *shape_text(const npz_array *a, char *text, size_t size)
{
    size_t n = (size_t)snprintf(text, size, a->rank ? "" : "one number");
    for (int i = 0; i < a->rank && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "[%lld]", (long long)a->shape[i]);
    return text;
}

/* Finds an array of `rank` dimensions. Nonzero entries of shape[] must match; zeros are filled in. */
static mar_status reference_find(reader *r, const char *name, int rank, int64_t *shape, const npz_array **out)
{
    char why[NPZ_WHY_MAX], text[128];
    const npz_array *a = *out = npz_find(r->file, name);
    if (!a) {
        npz_explain(r->file, name, why);
        return reference_fail(r, MAR_EMODEL, why);
    }
    int right = a->rank == rank;
    for (int i = 0; i < rank && right; i++) right = a->shape[i] > 0 && (!shape[i] || a->shape[i] == shape[i]);
    if (!right) {
        char expected[128] = "one number";
        size_t n = 0;
        for (int i = 0; i < rank; i++)
            n += (size_t)(shape[i] ? snprintf(expected + n, sizeof expected - n, "[%lld]", (long long)shape[i])
                                   : snprintf(expected + n, sizeof expected - n, "[n]"));
        return err_set(&r->err, MAR_EMODEL, "%s: %s is %s, expected %s", r->path, name,
                       shape_text(a, text, sizeof text), expected);
    }
    for (int i = 0; i < rank; i++) shape[i] = a->shape[i];
    return MAR_OK;
}

static mar_status reference_no_memory(reader *r, const char *name)
{
    return err_set(&r->err, MAR_ENOMEM, "%s: out of memory for %s", r->path, name);
}

static mar_status reference_check_finite(reader *r, const char *name, double x)
{
    if (isfinite(x)) return MAR_OK;
    return err_set(&r->err, MAR_EMODEL, "%s: %s has a number that is not finite", r->path, name);
}

static mar_status read_f64(reader *r, const char *name, const npz_array *a, double **out)
{
    char why[NPZ_WHY_MAX];
    *out = malloc((size_t)a->count * sizeof **out);
    if (!*out) return reference_no_memory(r, name);
    mar_status status = npz_read_f64(r->file, a, *out, why);
    if (status != MAR_OK) return reference_fail(r, status, why);
    for (int64_t i = 0; i < a->count && status == MAR_OK; i++) status = reference_check_finite(r, name, (*out)[i]);
    return status;
}

/* Averages the two halves of a covariance: float32 or rounding makes it asymmetric. Returns MAR_EMODEL if it is not
 * nearly symmetric, or a variance is negative. */
static mar_status make_symmetric(reader *r, const char *name, size_t n, double *x)
{
    double largest = 0, gap = 0;
    for (size_t i = 0; i < n * n; i++) largest = fmax(largest, fabs(x[i]));
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) {
            gap = fmax(gap, fabs(x[i * n + j] - x[j * n + i]));
            x[i * n + j] = x[j * n + i] = (x[i * n + j] + x[j * n + i]) / 2;
        }
    if (gap > 1e-6 * largest)
        return err_set(&r->err, MAR_EMODEL, "%s: %s is not symmetric, expected a covariance", r->path, name);
    for (size_t i = 0; i < n; i++)
        if (x[i * n + i] < -1e-6 * largest)
            return err_set(&r->err, MAR_EMODEL, "%s: %s has a variance of %g, expected none below 0", r->path, name,
                           x[i * n + i]);
    return MAR_OK;
}

/* Reads mean and covariance if either is present. */
static mar_status read_gaussian(reader *r, const char *mean, const char *covariance, int *dim, double **mu,
                                double **sigma)
{
    if (!reference_has(r, mean) && !reference_has(r, covariance)) return MAR_OK;
    int64_t shape[2] = {0};
    const npz_array *a = NULL;
    mar_status status = reference_find(r, mean, 1, shape, &a);
    if (status == MAR_OK && shape[0] > DIM_MAX)
        status = err_set(&r->err, MAR_EMODEL, "%s: %s has %lld numbers, expected %d at most", r->path, mean,
                         (long long)shape[0], DIM_MAX);
    if (status == MAR_OK) status = read_f64(r, mean, a, mu);
    shape[1] = shape[0];
    if (status == MAR_OK) status = reference_find(r, covariance, 2, shape, &a);
    if (status == MAR_OK) status = read_f64(r, covariance, a, sigma);
    if (status == MAR_OK) status = make_symmetric(r, covariance, (size_t)shape[0], *sigma);
    *dim = (int)shape[0];
    return status;
}

static mar_status reference_read_features(reader *r, eval_reference *out)
{
    if (!reference_has(r, "features")) return MAR_OK;
    int64_t shape[2] = {0, out->dim};
    const npz_array *a = NULL;
    char why[NPZ_WHY_MAX];
    mar_status status = reference_find(r, "features", 2, shape, &a);
    if (status != MAR_OK) return status;
    if (a->deflated && a->count > FEATURES_MAX)
        return err_set(
            &r->err, MAR_EMODEL,
            "%s: features are %lld images, compressed, expected at most %d, or a file that is not compressed", r->path,
            (long long)shape[0], FEATURES_MAX / out->dim);
    out->features = malloc((size_t)a->count * sizeof *out->features);
    if (!out->features) return reference_no_memory(r, "features");
    out->feature_dim = out->dim;
    status = npz_read_f32(r->file, a, out->features, why);
    if (status != MAR_OK) return reference_fail(r, status, why);
    for (int64_t i = 0; i < a->count && status == MAR_OK; i++)
        status = reference_check_finite(r, "features", (double)out->features[i]);
    out->feature_count = (long)shape[0];
    return status;
}

/* Checks arr_0 without reading the images. */
static mar_status find_images(reader *r, eval_reference *out)
{
    if (!reference_has(r, "arr_0")) return MAR_OK;
    int64_t shape[4] = {0, 0, 0, 3};
    const npz_array *a = NULL;
    mar_status status = reference_find(r, "arr_0", 4, shape, &a);
    if (status == MAR_OK && a->dtype != NPZ_U8)
        status =
            err_set(&r->err, MAR_EMODEL, "%s: arr_0 has numbers of another type, expected images in uint8", r->path);
    if (status != MAR_OK) return status;
    out->pictures = (long)shape[0];
    if (!out->dim) out->images = out->pictures;
    return MAR_OK;
}

/* Reads num_images, as mar stats writes it. */
static mar_status read_count(reader *r, eval_reference *out)
{
    if (!reference_has(r, "num_images")) return MAR_OK;
    char why[NPZ_WHY_MAX];
    const npz_array *a = NULL;
    double count = 0;
    mar_status status = reference_find(r, "num_images", 0, NULL, &a);
    if (status != MAR_OK) return status;
    status = npz_read_f64(r->file, a, &count, why);
    if (status != MAR_OK) return reference_fail(r, status, why);
    if (!(count >= 1 && count <= 1e15))
        return err_set(&r->err, MAR_EMODEL, "%s: num_images is %g, expected 1 or more", r->path, count);
    out->images = (long)count;
    return MAR_OK;
}

/* Reads clean_resize, as mar stats writes it. */
static mar_status read_resize(reader *r, eval_reference *out)
{
    char why[NPZ_WHY_MAX];
    const npz_array *a = NULL;
    double value = 0;
    out->resize = -1;
    if (!reference_has(r, "clean_resize")) return MAR_OK;
    mar_status status = reference_find(r, "clean_resize", 0, NULL, &a);
    if (status != MAR_OK) return status;
    status = npz_read_f64(r->file, a, &value, why);
    if (status != MAR_OK) return reference_fail(r, status, why);
    if (value != 0 && value != 1)
        return err_set(&r->err, MAR_EMODEL, "%s: clean_resize is %g, expected 0 or 1", r->path, value);
    out->resize = (int)value;
    return MAR_OK;
}

static mar_status reference_read_all(reader *r, eval_reference *out)
{
    mar_status status = read_gaussian(r, "mu", "sigma", &out->dim, &out->mu, &out->sigma);
    if (status == MAR_OK) status = read_gaussian(r, "mu_s", "sigma_s", &out->spatial, &out->mu_s, &out->sigma_s);
    if (status == MAR_OK && out->dim) status = reference_read_features(r, out);
    if (status == MAR_OK) status = find_images(r, out);
    if (status == MAR_OK && out->dim) status = read_count(r, out);
    if (status == MAR_OK) status = read_resize(r, out);
    if (status == MAR_OK && !out->dim && !out->pictures) {
        char why[NPZ_WHY_MAX];
        npz_explain(r->file, "mu", why);
        status = err_set(&r->err, MAR_EMODEL, "%s, expected mu and sigma, or images in arr_0", why);
    }
    return status;
}

mar_status eval_reference_load(const char *path, eval_reference *out, char *why, size_t size)
{
    char reason[NPZ_WHY_MAX] = "";
    const int is_demo = strcmp(path, "demo") == 0;
    const uintptr_t begin = (uintptr_t)eval_file_reference, end = (uintptr_t)eval_file_reference_end;
    reader r = {.path = is_demo ? "demo reference" : path};
    *out = (eval_reference){.path = path};
    mar_status status = is_demo ? npz_open_memory(eval_file_reference, (size_t)(end - begin), r.path, &r.file, reason)
                                : npz_open(path, &r.file, reason);
    status = status != MAR_OK ? reference_fail(&r, status, reason) : reference_read_all(&r, out);
    npz_close(r.file);
    if (status == MAR_OK) return MAR_OK;
    err_line(why, size, "%s", r.err.text);
    eval_reference_free(out);
    return status;
}

void eval_reference_free(eval_reference *r)
{
    free(r->mu);
    free(r->sigma);
    free(r->mu_s);
    free(r->sigma_s);
    free(r->features);
    *r = (eval_reference){0};
}

/* Adds the arrays that are set. */
static mar_status add_all(npz_writer *w, const eval_reference *r, char *why)
{
    const int64_t count = r->images, resize = r->resize;
    const struct {
        const char *name;
        npz_dtype dtype;
        int rank;
        int64_t shape[2];
        const void *data;
    } arrays[] = {
        {"mu", NPZ_F64, 1, {r->dim}, r->mu},
        {"sigma", NPZ_F64, 2, {r->dim, r->dim}, r->sigma},
        {"mu_s", NPZ_F64, 1, {r->spatial}, r->mu_s},
        {"sigma_s", NPZ_F64, 2, {r->spatial, r->spatial}, r->sigma_s},
        {"num_images", NPZ_I64, 0, {0}, count ? &count : NULL},
        {"clean_resize", NPZ_I64, 0, {0}, resize >= 0 ? &resize : NULL},
        {"features", NPZ_F32, 2, {r->feature_count, r->dim}, r->features},
    };
    mar_status status = MAR_OK;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays && status == MAR_OK; i++)
        if (arrays[i].data)
            status = npz_writer_add(w, arrays[i].name, arrays[i].dtype, arrays[i].rank, arrays[i].shape, arrays[i].data,
                                    why);
    return status;
}

mar_status eval_reference_save(const char *path, const eval_reference *r, char *why, size_t size)
{
    char reason[NPZ_WHY_MAX] = "";
    npz_writer *w = NULL;
    mar_status status = npz_writer_open(path, 0, &w, reason);
    if (status == MAR_OK) {
        status = add_all(w, r, reason);
        if (status == MAR_OK)
            status = npz_writer_commit(w, reason);
        else
            npz_writer_discard(w);
    }
    if (status != MAR_OK) err_line(why, size, "%s", reason);
    return status;
}
