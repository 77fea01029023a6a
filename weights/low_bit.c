/* Low-bit weights: a matrix and the tensor of its scales. */
#include "kernels/int4.h"
#include "kernels/int8.h"
#include "weights/number.h"
#include "weights/table.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int low_bit_is_low(wt_dtype dtype)
{
    return dtype == WT_I8 || dtype == WT_I4;
}

int wt_is_int8(const wt_file *f, const char *name)
{
    const wt_tensor *t = wt_find(f, name);
    return t && t->dtype == WT_I8;
}

int wt_is_int4(const wt_file *f, const char *name)
{
    const wt_tensor *t = wt_find(f, name);
    return t && t->dtype == WT_I4;
}

void wt_find_int4(wt_file *f)
{
    char name[WT_INT8_NAME];
    for (int i = 0; i < f->count; i++) {
        wt_tensor *t = &f->tensors[i];
        if (t->dtype != WT_U8 || t->rank != 2 || t->shape[1] > INT_MAX || t->shape[1] % KERN_INT4_BYTES != 0) continue;
        const wt_tensor *scale = wt_find(f, wt_scale_name(t->name, name, sizeof name));
        if (!scale || scale->dtype != WT_BF16 || scale->rank != 2 || scale->shape[0] != t->shape[0] ||
            scale->shape[1] != t->shape[1] / KERN_INT4_BYTES)
            continue;
        t->dtype = WT_I4;
        t->shape[1] *= 2;
        t->count *= 2;
    }
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

/* Finds a low-bit matrix of this type and shape. */
static mar_status find_low(const wt_file *f, const char *name, wt_dtype dtype, int out, int in, const wt_tensor **t,
                           mar_err *err)
{
    char shape[128];
    const wt_tensor *found = *t = wt_find(f, name);
    if (found && found->dtype == dtype && found->rank == 2 && found->shape[0] == out && found->shape[1] == in)
        return MAR_OK;
    return err_set(err, MAR_EMODEL, "%s: tensor %s is %s, expected int%d weights [%d, %d]", f->path, name,
                   found ? wt_shape_text(found, shape, sizeof shape) : "missing", dtype == WT_I8 ? 8 : 4, out, in);
}

/* Reads the scales of rows first .. first+n-1 of t, I8. They must be F32 [out], not negative, and finite unless the
 * file allows otherwise. */
static mar_status read_scale(const wt_file *f, const wt_tensor *t, int first, int n, float *scale, mar_err *err)
{
    char name[WT_INT8_NAME], shape[128], expected[128];
    const wt_tensor *s = wt_find(f, wt_scale_name(t->name, name, sizeof name));
    wt_format_shape(1, t->shape, expected, sizeof expected);
    if (!s) return err_set(err, MAR_EMODEL, "%s: tensor %s is missing, expected shape %s", f->path, name, expected);
    if (s->dtype != WT_F32)
        return err_set(err, MAR_EMODEL, "%s: tensor %s has dtype %s, expected F32, the scales of int8 weights", f->path,
                       name, wt_dtype_name(s->dtype));
    if (s->rank != 1 || s->shape[0] != t->shape[0])
        return err_set(err, MAR_EMODEL, "%s: tensor %s has shape %s, expected %s", f->path, name,
                       wt_shape_text(s, shape, sizeof shape), expected);
    const mar_status status = wt_convert_f32(f, s, first, (size_t)n, scale, err);
    for (int i = 0; status == MAR_OK && i < n; i++) {
        if (!isfinite(scale[i]) && !f->allow_nonfinite) return wt_refuse_nonfinite(f, s, err);
        if (scale[i] < 0)
            return err_set(err, MAR_EMODEL, "%s: tensor %s has the value %g at %d, expected scales of 0 or more",
                           f->path, name, (double)scale[i], first + i);
    }
    return status;
}

mar_status wt_load_int8(const wt_file *f, const char *name, int out, int in, int first, int n, int8_t *q, float *scale,
                        mar_err *err)
{
    const wt_tensor *t;
    const size_t begin = (size_t)first * (size_t)in, count = (size_t)n * (size_t)in;
    mar_status status = find_low(f, name, WT_I8, out, in, &t, err);
    if (status == MAR_OK) status = read_scale(f, t, first, n, scale, err);
    if (status == MAR_OK) status = wt_read_bytes(f, t, begin, count, q, err);
    const int8_t *least = status == MAR_OK ? memchr(q, 0x80, count) : NULL;
    if (!least) return status;
    return err_set(err, MAR_EMODEL, "%s: tensor %s has the value -128 at %zu, expected int8 weights from -127 to 127",
                   f->path, name, begin + (size_t)(least - q));
}

mar_status wt_load_int4(const wt_file *f, const char *name, int out, int in, int first, int n, uint8_t *q,
                        uint16_t *scale, mar_err *err)
{
    const wt_tensor *t;
    const size_t begin = (size_t)first * (size_t)in, count = (size_t)n * (size_t)in, group = KERN_INT4_GROUP;
    mar_status status = find_low(f, name, WT_I4, out, in, &t, err);
    if (status != MAR_OK) return status;
    const wt_tensor *s = wt_scale_of(f, t);
    if (!s) return err_set(err, MAR_EMODEL, "%s: tensor %s has no scales", f->path, name);
    status = wt_read_bytes(f, s, begin / group * sizeof *scale, count / group * sizeof *scale, scale, err);
    for (size_t i = 0; status == MAR_OK && i < count / group && !f->allow_nonfinite; i++)
        if (!isfinite(wt_f32_from_bf16(scale[i]))) return wt_refuse_nonfinite(f, s, err);
    return status == MAR_OK ? wt_read_bytes(f, t, begin / 2, count / 2, q, err) : status;
}

mar_status wt_restore_rows(const wt_file *f, const wt_tensor *t, int first, int n, float *dst, mar_err *err)
{
    enum { PIECE = 256 * 1024 }; /* weights at a time */
    const int out = (int)t->shape[0], in = (int)t->shape[1], piece = in < PIECE ? PIECE / (in ? in : 1) : 1;
    const size_t room = (size_t)piece * (size_t)in + 1;
    void *q = malloc(room),
         *scale = malloc((t->dtype == WT_I8 ? (size_t)piece * sizeof(float) : room / KERN_INT4_GROUP * 2 + 2));
    mar_status status =
        q && scale ? MAR_OK : err_set(err, MAR_ENOMEM, "%s: out of memory for tensor %s", f->path, t->name);
    for (int i = 0, rows; i < n && status == MAR_OK; i += rows, dst += (size_t)rows * (size_t)in) {
        rows = n - i < piece ? n - i : piece;
        status = t->dtype == WT_I8 ? wt_load_int8(f, t->name, out, in, first + i, rows, q, scale, err)
                                   : wt_load_int4(f, t->name, out, in, first + i, rows, q, scale, err);
        if (status == MAR_OK && t->dtype == WT_I8)
            kern_int8_restore(q, scale, rows, in, dst);
        else if (status == MAR_OK)
            kern_int4_restore(q, scale, rows, in, dst);
    }
    free(q);
    free(scale);
    return status;
}

mar_status wt_load_matrix_rows(const wt_file *f, const char *name, int out, int in, int first, int n, float *dst,
                               mar_err *err)
{
    const wt_tensor *t = wt_find(f, name);
    if (!t || !low_bit_is_low(t->dtype) || t->rank != 2 || t->shape[0] != out || t->shape[1] != in)
        return wt_load_rows(f, name, out, in, first, n, dst, err); /* reports what is wrong */
    return wt_restore_rows(f, t, first, n, dst, err);
}
