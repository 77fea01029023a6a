/* Scales of low-bit and fp8 weights: their names, and how they lie on a matrix. A weight is its stored value times its
 * scale. */
#include "weights/table.h"

#include <stdio.h>
#include <string.h>

static const char suffix[] = "_scale";

const char *wt_scale_name(const char *name, char *text, size_t size)
{
    snprintf(text, size, "%s%s", name, suffix);
    return text;
}

static int scales_is_low(wt_dtype dtype)
{
    return dtype == WT_I8 || dtype == WT_I4;
}

/* The names of scales. fp8 has all of them: compressed-tensors' and ModelOpt's, DeepSeek's, and ComfyUI's. */
static const struct {
    const char *matrix, *scale; /* ends of the names */
} endings[] = {{"", suffix}, {"", "_scale_inv"}, {".weight", ".scale_weight"}};
enum { ENDINGS = sizeof endings / sizeof *endings };

/* Replaces the end `from` of a name by `to`, in text [WT_INT8_NAME]. Returns 0 if the name ends otherwise, or is too
 * long. */
static int replace_end(const char *name, const char *from, const char *to, char *text)
{
    const size_t length = strlen(name), end = strlen(from);
    if (length <= end || strcmp(name + length - end, from) != 0) return 0;
    return snprintf(text, WT_INT8_NAME, "%.*s%s", (int)(length - end), name, to) < WT_INT8_NAME;
}

/* Finds all scales of t, I8, I4 or fp8, and returns their number; more than one is an error. */
static int find_all(const wt_file *f, const wt_tensor *t, const wt_tensor *out[ENDINGS])
{
    char name[WT_INT8_NAME];
    int n = 0;
    const int count = scales_is_low(t->dtype) ? 1 : wt_is_fp8(t->dtype) ? ENDINGS : 0;
    for (int i = 0; i < count; i++) {
        const int has_end = replace_end(t->name, endings[i].matrix, endings[i].scale, name);
        const wt_tensor *scale = has_end ? wt_find(f, name) : NULL;
        if (scale) out[n++] = scale;
    }
    return n;
}

const wt_tensor *wt_scale_of(const wt_file *f, const wt_tensor *t)
{
    const wt_tensor *scales[ENDINGS];
    return find_all(f, t, scales) ? scales[0] : NULL;
}

const wt_tensor *wt_matrix_of(const wt_file *f, const wt_tensor *scale)
{
    char name[WT_INT8_NAME];
    for (int i = 0; i < ENDINGS; i++) {
        const wt_tensor *t =
            replace_end(scale->name, endings[i].scale, endings[i].matrix, name) ? wt_find(f, name) : NULL;
        if (t && (wt_is_fp8(t->dtype) || (i == 0 && scales_is_low(t->dtype)))) return t;
    }
    return NULL;
}

long wt_count_parameters(const wt_file *f)
{
    long sum = 0;
    for (int i = 0; i < f->count; i++) {
        const wt_tensor *t = &f->tensors[i], *matrix = wt_matrix_of(f, t);
        const int is_scale = matrix && wt_is_float(matrix->dtype);
        if (t->dtype != WT_I64 && t->dtype != WT_UNREAD && !is_scale) sum += (long)t->count;
    }
    return sum;
}

/* --- fp8 ---------------------------------------------------------------------------------------------------------- */

enum { BLOCK = 128 }; /* DeepSeek's */

static mar_status refuse_scale(const wt_file *f, const wt_tensor *t, const wt_tensor *s, mar_err *err)
{
    char found[256], shape[256];
    return err_set(err, MAR_EMODEL,
                   "%s: tensor %s has shape %s, expected scales of %s %s: one number, one for each row, or, as "
                   "_scale_inv, one for each block of 128x128",
                   wt_path(f), s->name, wt_shape_text(s, found, sizeof found), t->name,
                   wt_shape_text(t, shape, sizeof shape));
}

mar_status wt_find_scales(const wt_file *f, const wt_tensor *t, wt_scale_layout *out, mar_err *err)
{
    static const char inverse[] = "_scale_inv";
    const wt_tensor *scales[ENDINGS];
    const int count = find_all(f, t, scales);
    const wt_tensor *s = count ? scales[0] : NULL;
    *out = (wt_scale_layout){.scale = s, .rows = 1, .columns = t->count, .width = t->count, .blocks = 1};
    if (!s || t->count == 0) return MAR_OK;
    if (count > 1)
        return err_set(err, MAR_EMODEL, "%s: tensor %s has two scales, %s and %s", wt_path(f), t->name, s->name,
                       scales[1]->name);
    if (s->dtype != WT_F32 && s->dtype != WT_BF16 && s->dtype != WT_F16)
        return err_set(err, MAR_EMODEL, "%s: tensor %s has type %s, expected scales in F32, BF16 or F16", wt_path(f),
                       s->name, s->dtype == WT_UNREAD ? s->type : wt_dtype_name(s->dtype));
    const size_t length = strlen(s->name), end = sizeof inverse - 1;
    if (length > end && strcmp(s->name + length - end, inverse) == 0) {
        if (t->rank != 2) return refuse_scale(f, t, s, err);
        out->rows = out->columns = BLOCK;
        out->width = t->shape[1];
        out->blocks = (out->width + BLOCK - 1) / BLOCK;
        const int good = s->rank == 2 && s->shape[0] == (t->shape[0] + BLOCK - 1) / BLOCK && s->shape[1] == out->blocks;
        return good ? MAR_OK : refuse_scale(f, t, s, err);
    }
    if (s->count == 1) return MAR_OK;
    int good = t->rank > 0 && s->rank > 0 && s->shape[0] == t->shape[0] && s->count == t->shape[0];
    out->width = out->columns = good ? t->count / t->shape[0] : 1;
    return good ? MAR_OK : refuse_scale(f, t, s, err);
}
