/* int8 weights: a matrix I8 [out][in] and the tensor of its scales, F32 [out]. */
#include "kernels/int8.h"
#include "weights/table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char suffix[] = "_scale";

const char *wt_scale_name(const char *name, char *text, size_t size)
{
    snprintf(text, size, "%s%s", name, suffix);
    return text;
}

const wt_tensor *wt_scale_of(const wt_file *f, const wt_tensor *t)
{
    char name[WT_INT8_NAME];
    return t->dtype == WT_I8 ? wt_find(f, wt_scale_name(t->name, name, sizeof name)) : NULL;
}

const wt_tensor *wt_int8_of(const wt_file *f, const wt_tensor *scale)
{
    char name[WT_INT8_NAME];
    const size_t length = strlen(scale->name), end = sizeof suffix - 1;
    if (length <= end || length >= sizeof name || strcmp(scale->name + length - end, suffix) != 0) return NULL;
    snprintf(name, sizeof name, "%.*s", (int)(length - end), scale->name);
    const wt_tensor *t = wt_find(f, name);
    return t && t->dtype == WT_I8 ? t : NULL;
}

int wt_is_int8(const wt_file *f, const char *name)
{
    const wt_tensor *t = wt_find(f, name);
    return t && t->dtype == WT_I8;
}

int wt_is_layer(const char *name, const char *const *layers)
{
    char end[64];
    const size_t length = strlen(name);
    for (; *layers; layers++) {
        const size_t n = (size_t)snprintf(end, sizeof end, ".%s.weight", *layers);
        if (length > n && strcmp(name + length - n, end) == 0) return 1;
    }
    return 0;
}

/* Loads the scales of t. They must be F32, not negative, and finite unless the file allows otherwise. */
static mar_status load_scale(const wt_file *f, const wt_tensor *t, float **out, mar_err *err)
{
    char name[WT_INT8_NAME];
    const wt_tensor *scale = wt_scale_of(f, t);
    if (scale && scale->dtype != WT_F32)
        return err_set(err, MAR_EMODEL, "%s: tensor %s has dtype %s, expected F32, the scales of int8 weights", f->path,
                       scale->name, wt_dtype_name(scale->dtype));
    const mar_status status = wt_load_f32(f, wt_scale_name(t->name, name, sizeof name), 1, t->shape, out, err);
    for (int64_t i = 0; status == MAR_OK && i < t->shape[0]; i++)
        if ((*out)[i] < 0)
            return err_set(err, MAR_EMODEL, "%s: tensor %s has the value %g at %lld, expected scales of 0 or more",
                           f->path, name, (double)(*out)[i], (long long)i);
    return status;
}

static mar_status refuse_least(const wt_file *f, const wt_tensor *t, uint64_t at, mar_err *err)
{
    return err_set(err, MAR_EMODEL, "%s: tensor %s has the value -128 at %llu, expected int8 weights from -127 to 127",
                   f->path, t->name, (unsigned long long)at);
}

static mar_status read_quantised(const wt_file *f, const wt_tensor *t, int8_t *q, mar_err *err)
{
    const size_t n = (size_t)t->count;
    const mar_status status = wt_read_bytes(f, t, 0, n, q, err);
    const int8_t *least = status == MAR_OK ? memchr(q, 0x80, n) : NULL;
    return least ? refuse_least(f, t, (uint64_t)(least - q), err) : status;
}

static mar_status load_quantised(const wt_file *f, const wt_tensor *t, int8_t **out, mar_err *err)
{
    char shape[128];
    const size_t n = (size_t)t->count;
    *out = malloc(n ? n : 1);
    if (!*out)
        return err_set(err, MAR_ENOMEM, "%s: out of memory for tensor %s %s as int8", f->path, t->name,
                       wt_shape_text(t, shape, sizeof shape));
    return read_quantised(f, t, *out, err);
}

static mar_status dequantise(const wt_file *f, const wt_tensor *t, wt_matrix *m, mar_err *err)
{
    char shape[128];
    size_t bytes;
    if (!__builtin_mul_overflow((size_t)t->count, sizeof *m->weight, &bytes)) m->weight = malloc(bytes ? bytes : 1);
    if (!m->weight)
        return err_set(err, MAR_ENOMEM, "%s: out of memory for tensor %s %s as f32", f->path, t->name,
                       wt_shape_text(t, shape, sizeof shape));
    kern_int8_restore(m->quantised, m->scale, (int)t->shape[0], (int)t->shape[1], m->weight);
    free(m->quantised);
    free(m->scale);
    m->quantised = NULL;
    m->scale = NULL;
    return MAR_OK;
}

/* Reads the scales of rows first .. first + n - 1. */
static mar_status read_scale_rows(const wt_file *f, const wt_tensor *t, int first, int n, float *scale, mar_err *err)
{
    char name[WT_INT8_NAME];
    const wt_tensor *s = wt_scale_of(f, t);
    if (!s || s->dtype != WT_F32 || s->rank != 1 || s->shape[0] != t->shape[0])
        return err_set(err, MAR_EMODEL, "%s: tensor %s has no F32 [%lld] beside it, the scales of its int8 weights",
                       f->path, wt_scale_name(t->name, name, sizeof name), (long long)t->shape[0]);
    const mar_status status =
        wt_read_bytes(f, s, (uint64_t)first * sizeof *scale, (size_t)n * sizeof *scale, scale, err);
    for (int i = 0; status == MAR_OK && i < n; i++)
        if (scale[i] < 0 || (!f->allow_nonfinite && !isfinite(scale[i])))
            return err_set(err, MAR_EMODEL, "%s: tensor %s has the value %g at %d, expected finite scales of 0 or more",
                           f->path, s->name, (double)scale[i], first + i);
    return status;
}

mar_status wt_load_int8(const wt_file *f, const char *name, int rows, int columns, int first, int n, int8_t *q,
                        float *scale, mar_err *err)
{
    const wt_tensor *t = wt_find(f, name);
    const size_t count = (size_t)n * (size_t)columns;
    const uint64_t begin = (uint64_t)first * (uint64_t)columns;
    char shape[128];
    if (!t || t->dtype != WT_I8 || t->rank != 2 || t->shape[0] != rows || t->shape[1] != columns)
        return err_set(err, MAR_EMODEL, "%s: tensor %s is %s, expected int8 weights [%d, %d]", f->path, name,
                       t ? wt_shape_text(t, shape, sizeof shape) : "missing", rows, columns);
    mar_status status = read_scale_rows(f, t, first, n, scale, err);
    if (status == MAR_OK) status = wt_read_bytes(f, t, begin, count, q, err);
    const int8_t *least = status == MAR_OK ? memchr(q, 0x80, count) : NULL;
    return least ? refuse_least(f, t, begin + (uint64_t)(least - q), err) : status;
}

mar_status wt_load_matrix_rows(const wt_file *f, const char *name, int rows, int columns, int first, int n, float *dst,
                               mar_err *err)
{
    mar_status status = MAR_OK;
    if (!wt_is_int8(f, name)) return wt_load_rows(f, name, rows, columns, first, n, dst, err);
    for (int r = 0; r < n && status == MAR_OK; r++) {
        float *row = dst + (size_t)r * (size_t)columns, scale;
        int8_t *q =
            (int8_t *)row + 3 * (size_t)columns; /* at the row's end: each is read before its place is written */
        status = wt_load_int8(f, name, rows, columns, first + r, 1, q, &scale, err);
        for (int i = 0; status == MAR_OK && i < columns; i++) row[i] = (float)q[i] * scale;
    }
    return status;
}

mar_status wt_load_matrix(const wt_file *f, const char *name, int out, int in, int keep, wt_matrix *m, mar_err *err)
{
    const int64_t shape[2] = {out, in};
    const wt_tensor *t = wt_find(f, name);
    *m = (wt_matrix){0};
    /* wt_load_f32 reports a missing tensor, another type or another shape */
    if (!t || t->dtype != WT_I8 || t->rank != 2 || t->shape[0] != out || t->shape[1] != in)
        return wt_load_f32(f, name, 2, shape, &m->weight, err);
    mar_status status = load_scale(f, t, &m->scale, err);
    if (status == MAR_OK) status = load_quantised(f, t, &m->quantised, err);
    if (status == MAR_OK && !keep) status = dequantise(f, t, m, err);
    if (status != MAR_OK) wt_matrix_free(m);
    return status;
}

void wt_matrix_free(wt_matrix *m)
{
    free(m->weight);
    free(m->quantised);
    free(m->scale);
    *m = (wt_matrix){0};
}
