/* Tensors' values: reading them, with progress, and converting them to f32, piece by piece. */
#include "weights/number.h"
#include "weights/table.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint16_t load16(const uint8_t *p)
{
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return bits;
}

static void widen(wt_dtype dtype, const uint8_t *src, size_t n, float *dst)
{
    switch (dtype) {
    case WT_F64:
        for (size_t i = 0; i < n; i++) {
            double value;
            memcpy(&value, src + 8 * i, sizeof value);
            dst[i] = (float)value;
        }
        break;
    case WT_F16:
        for (size_t i = 0; i < n; i++) dst[i] = wt_f32_from_f16(load16(src + 2 * i));
        break;
    case WT_BF16:
        for (size_t i = 0; i < n; i++) dst[i] = wt_f32_from_bf16(load16(src + 2 * i));
        break;
    case WT_F8_E4M3:
        for (size_t i = 0; i < n; i++) dst[i] = wt_f32_from_f8_e4m3(src[i]);
        break;
    case WT_F8_E5M2:
        for (size_t i = 0; i < n; i++) dst[i] = wt_f32_from_f8_e5m2(src[i]);
        break;
    default:
        break; /* F32 needs no conversion; callers have checked wt_is_float */
    }
}

/* --- progress ----------------------------------------------------------------------------------------------------- */

static mar_status convert_report(const wt_file *f, uint64_t done, mar_err *err)
{
    wt_progress *p = f->progress;
    p->next = done + p->total / WT_PROGRESS_STEPS + 1;
    if (!p->report(p->user, done, p->total)) return MAR_OK;
    p->next = UINT64_MAX;
    return err_set(err, MAR_ECANCELLED, "%s: loading was cancelled at %llu of %llu bytes", f->path,
                   (unsigned long long)done, (unsigned long long)p->total);
}

mar_status wt_progress_begin(wt_file *f, wt_progress *p, mar_err *err)
{
    p->done = p->total = 0;
    for (int i = 0; i < f->count; i++) p->total += wt_bytes_of(&f->tensors[i]);
    f->progress = p;
    return convert_report(f, 0, err);
}

mar_status wt_progress_end(wt_file *f, mar_err *err)
{
    const mar_status status = f->progress ? convert_report(f, f->progress->total, err) : MAR_OK;
    f->progress = NULL;
    return status;
}

/* Adds n bytes. Leaves the report of all bytes to wt_progress_end. */
static mar_status add_progress(const wt_file *f, size_t n, mar_err *err)
{
    wt_progress *p = f->progress;
    p->done += n;
    return p->done >= p->next && p->done < p->total ? convert_report(f, p->done, err) : MAR_OK;
}

/* --- values ------------------------------------------------------------------------------------------------------- */

mar_status wt_read_bytes(const wt_file *f, const wt_tensor *t, uint64_t first, size_t n, void *dst, mar_err *err)
{
    mar_status status = MAR_OK;
    if (!t->copy)
        status = file_source_read(f->parts ? &f->parts[t->part]->source : &f->source, t->offset + first, n, dst, err);
    else if (n)
        memcpy(dst, t->copy + first, n);
    wt_digest *d = f->digests ? &f->digests[t - f->tensors] : NULL;
    if (status == MAR_OK && d && d->bytes < wt_bytes_of(t)) wt_digest_add(d, first, n, dst);
    return status == MAR_OK && f->progress ? add_progress(f, n, err) : status;
}

/* Multiplies values [n], the elements first .. first+n-1 of t, fp8, by their scales, if the file has some. */
static mar_status scale_fp8(const wt_file *f, const wt_tensor *t, int64_t first, size_t n, float *values, mar_err *err)
{
    enum { ROOM = 256 };
    float scale[ROOM]; /* those from number `begin` on */
    int64_t begin = 0, end = 0;
    wt_scale_layout l;
    mar_status status = wt_find_scales(f, t, &l, err);
    if (!l.scale) return status;
    for (size_t i = 0, run; i < n && status == MAR_OK; i += run) {
        const int64_t at = first + (int64_t)i, column = at % l.width;
        const int64_t k = at / l.width / l.rows * l.blocks + column / l.columns;
        int64_t next = (column / l.columns + 1) * l.columns; /* the columns up to there share this scale */
        if (next > l.width) next = l.width;
        run = (size_t)(next - column) < n - i ? (size_t)(next - column) : n - i;
        if (k < begin || k >= end) {
            begin = k;
            end = l.scale->count - k < ROOM ? l.scale->count : k + ROOM;
            status = wt_convert_f32(f, l.scale, begin, (size_t)(end - begin), scale, err);
        }
        for (size_t j = i; j < i + run && status == MAR_OK; j++) values[j] *= scale[k - begin];
    }
    return status;
}

mar_status wt_convert_f32(const wt_file *f, const wt_tensor *t, int64_t first, size_t n, float *dst, mar_err *err)
{
    const size_t size = wt_dtype_size(t->dtype);
    const uint64_t begin = (uint64_t)first * size;
    if (t->dtype == WT_F32) return wt_read_bytes(f, t, begin, n * size, dst, err);
    uint8_t stored[16 * 1024];
    mar_status status = MAR_OK;
    for (size_t done = 0, piece; done < n && status == MAR_OK; done += piece) {
        piece = n - done < sizeof stored / size ? n - done : sizeof stored / size;
        status = wt_read_bytes(f, t, begin + done * size, piece * size, stored, err);
        if (status == MAR_OK) widen(t->dtype, stored, piece, dst + done);
    }
    return status == MAR_OK && wt_is_fp8(t->dtype) ? scale_fp8(f, t, first, n, dst, err) : status;
}

/* Returns 1 if any of n values is NaN or infinite: all its exponent bits are set. */
static int any_nonfinite(const float *values, size_t n)
{
    const uint32_t exponent = 0x7f800000;
    uint32_t found = 0;
    for (size_t i = 0; i < n; i++) found |= (wt_f32_bits(values[i]) & exponent) == exponent;
    return found != 0;
}

/* Counts the non-finite among values[n], the elements first .. first+n-1. */
static void count_nonfinite(const float *values, size_t n, int64_t first, wt_nonfinite *out)
{
    if (!any_nonfinite(values, n)) return;
    for (size_t i = 0; i < n; i++) {
        if (isfinite(values[i])) continue;
        if (out->nan + out->inf == 0) out->first = first + (int64_t)i;
        if (isnan(values[i]))
            out->nan++;
        else
            out->inf++;
    }
}

mar_status wt_check_float(const wt_file *f, const wt_tensor *t, mar_err *err)
{
    if (wt_is_float(t->dtype)) return MAR_OK;
    if (t->dtype == WT_UNREAD)
        return err_set(err, MAR_EMODEL,
                       "%s: tensor %s has type %s, which is not read; expected F32, BF16, F16, F64, F8_E4M3 or F8_E5M2",
                       f->path, t->name, t->type);
    return err_set(err, MAR_EMODEL, "%s: tensor %s has dtype %s, expected F32, BF16, F16, F64, F8_E4M3 or F8_E5M2",
                   f->path, t->name, wt_dtype_name(t->dtype));
}

enum { PIECE = 16 * 1024 }; /* values: checked while they are in the nearest caches */

/* Reads a tensor to dst [t->count], or without dst piece by piece through scratch [PIECE]. Counts non-finite values
 * unless `out` is NULL. */
static mar_status read_values(const wt_file *f, const wt_tensor *t, float *dst, float *scratch, wt_nonfinite *out,
                              mar_err *err)
{
    if (out) *out = (wt_nonfinite){0};
    mar_status status = wt_check_float(f, t, err);
    for (int64_t first = 0; first < t->count && status == MAR_OK; first += PIECE) {
        const size_t n = t->count - first < PIECE ? (size_t)(t->count - first) : PIECE;
        float *values = dst ? dst + first : scratch;
        status = wt_convert_f32(f, t, first, n, values, err);
        if (status == MAR_OK && out) count_nonfinite(values, n, first, out);
    }
    return status;
}

mar_status wt_read_f32(const wt_file *f, const wt_tensor *t, float *dst, mar_err *err)
{
    return read_values(f, t, dst, NULL, NULL, err);
}

mar_status wt_count_nonfinite(const wt_file *f, const wt_tensor *t, wt_nonfinite *out, mar_err *err)
{
    float *scratch = malloc(PIECE * sizeof *scratch); /* the caller's stack may be small */
    if (!scratch) return err_set(err, MAR_ENOMEM, "%s: out of memory for a piece of tensor %s", f->path, t->name);
    const mar_status status = read_values(f, t, NULL, scratch, out, err);
    free(scratch);
    return status;
}

/* Sets the message "tensor w has 2 values that are NaN and 1 that is infinite, the first at 17: expected ...". */
static mar_status refuse_nonfinite(const wt_file *f, const wt_tensor *t, const wt_nonfinite *found, mar_err *err)
{
    const int64_t counts[2] = {found->nan ? found->nan : found->inf, found->nan ? found->inf : 0};
    char more[64] = "";
    if (counts[1])
        snprintf(more, sizeof more, " and %" PRId64 " that %s infinite", counts[1], counts[1] == 1 ? "is" : "are");
    return err_set(err, MAR_EMODEL,
                   "%s: tensor %s has %" PRId64 " value%s that %s %s%s, the first at %" PRId64
                   ": expected finite weights (--allow_nonfinite loads it all the same)",
                   f->path, t->name, counts[0], counts[0] == 1 ? "" : "s", counts[0] == 1 ? "is" : "are",
                   found->nan ? "NaN" : "infinite", more, found->first);
}

mar_status wt_refuse_nonfinite(const wt_file *f, const wt_tensor *t, mar_err *err)
{
    wt_nonfinite bad;
    const mar_status status = wt_count_nonfinite(f, t, &bad, err);
    return status == MAR_OK ? refuse_nonfinite(f, t, &bad, err) : status;
}

/* Finds a tensor of this shape. Writes the shape to expected, char [128]. */
static mar_status find_shaped(const wt_file *f, const char *name, int rank, const int64_t *shape, const wt_tensor **out,
                              char expected[128], mar_err *err)
{
    char found[256];
    wt_format_shape(rank, shape, expected, 128);
    const wt_tensor *t = *out = wt_find(f, name);
    if (!t) return err_set(err, MAR_EMODEL, "%s: tensor %s is missing, expected shape %s", f->path, name, expected);
    if (t->rank != rank || (rank && memcmp(t->shape, shape, (size_t)rank * sizeof *shape) != 0))
        return err_set(err, MAR_EMODEL, "%s: tensor %s has shape %s, expected %s", f->path, name,
                       wt_shape_text(t, found, sizeof found), expected);
    return MAR_OK;
}

mar_status wt_load_rows(const wt_file *f, const char *name, int rows, int columns, int first, int n, float *dst,
                        mar_err *err)
{
    char expected[128];
    const int64_t shape[] = {rows, columns};
    const wt_tensor *t;
    mar_status status = find_shaped(f, name, 2, shape, &t, expected, err);
    if (status == MAR_OK) status = wt_check_float(f, t, err);
    const int64_t end = ((int64_t)first + n) * columns;
    for (int64_t at = (int64_t)first * columns; at < end && status == MAR_OK; at += PIECE) {
        const size_t count = end - at < PIECE ? (size_t)(end - at) : PIECE;
        float *values = dst + (at - (int64_t)first * columns);
        status = wt_convert_f32(f, t, at, count, values, err);
        if (status == MAR_OK && !f->allow_nonfinite && any_nonfinite(values, count))
            status = wt_refuse_nonfinite(f, t, err);
    }
    return status;
}

mar_status wt_load_f32(const wt_file *f, const char *name, int rank, const int64_t *shape, float **out, mar_err *err)
{
    char expected[128];
    const wt_tensor *t;
    wt_nonfinite bad;
    *out = NULL;
    mar_status status = find_shaped(f, name, rank, shape, &t, expected, err);
    if (status == MAR_OK) status = wt_check_float(f, t, err);
    if (status != MAR_OK) return status;
    size_t bytes;
    float *values = NULL;
    if (!__builtin_mul_overflow((size_t)t->count, sizeof *values, &bytes)) values = malloc(bytes ? bytes : 1);
    if (!values) return err_set(err, MAR_ENOMEM, "%s: out of memory for tensor %s %s as f32", f->path, name, expected);
    status = read_values(f, t, values, NULL, &bad, err);
    if (status == MAR_OK && bad.nan + bad.inf > 0 && !f->allow_nonfinite) status = refuse_nonfinite(f, t, &bad, err);
    if (status != MAR_OK)
        free(values);
    else
        *out = values;
    return status;
}
