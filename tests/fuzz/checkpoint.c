/* Properties of every checkpoint, whatever its bytes. */
#include "tests/fuzz/fuzz.h"

#include "kernels/int8.h"
#include "weights/number.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns t's values as f32, freed by the caller; NULL if its type is not floating-point. */
static float *read_values(const wt_file *f, const wt_tensor *t)
{
    mar_err err = {0};
    const size_t n = wt_is_float(t->dtype) ? (size_t)t->count : 0; /* a shape of what is not read may be any */
    float *values = malloc(n * sizeof *values + 1);
    if (!values) fuzz_fail("%s: no memory for %lld values", t->name, (long long)t->count);
    const mar_status status = wt_read_f32(f, t, values, &err);
    fuzz_check_error("wt_read_f32", status, &err);
    const int may_fail = wt_scale_of(f, t) != NULL; /* scales of another form */
    if (wt_is_float(t->dtype) ? status != MAR_OK && !may_fail : status == MAR_OK)
        fuzz_fail("%s: wt_read_f32 of %s", t->name, wt_dtype_name(t->dtype));
    if (status == MAR_OK) return values;
    free(values);
    return NULL;
}

/* Returns 1 for a floating-point tensor without scales, whose values have no reason to be refused. */
static int is_readable(const wt_file *f, const wt_tensor *t)
{
    return wt_is_float(t->dtype) && !wt_scale_of(f, t);
}

static int same_shape(const wt_tensor *a, const wt_tensor *b)
{
    return a->rank == b->rank && a->count == b->count &&
           memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0;
}

static int64_t product(const wt_tensor *t)
{
    int64_t count = 1;
    if (t->rank < 0 || t->rank > WT_MAX_RANK) fuzz_fail("%s: rank %d", t->name, t->rank);
    for (int i = 0; i < t->rank; i++) {
        if (t->shape[i] < 0 || __builtin_mul_overflow(count, t->shape[i], &count))
            fuzz_fail("%s: dimension %d is %lld", t->name, i, (long long)t->shape[i]);
    }
    return count;
}

static int is_matrix(const wt_tensor *t)
{
    return t->rank == 2 && t->shape[0] <= INT_MAX && t->shape[1] <= INT_MAX;
}

/* Checks that an int8 matrix loads both as stored and as f32, or neither way, and that the two agree. Another matrix
 * loads as f32 or not. */
static void check_matrix(const wt_file *f, const wt_tensor *t)
{
    const int out = (int)t->shape[0], in = (int)t->shape[1];
    mar_err err = {0}, other = {0};
    float *w = malloc(((size_t)t->count + 1) * sizeof *w), *scale = malloc(((size_t)out + 1) * sizeof *scale);
    int8_t *q = malloc((size_t)t->count + 1);
    if (!w || !scale || !q) fuzz_fail("%s: no memory for a matrix", t->name);
    const mar_status status = wt_load_matrix_rows(f, t->name, out, in, 0, out, w, &err);
    fuzz_check_error("wt_load_matrix_rows", status, &err);
    if (t->dtype == WT_I8) {
        const mar_status stored = wt_load_int8(f, t->name, out, in, 0, out, q, scale, &other);
        fuzz_check_error("wt_load_int8", stored, &other);
        if (status != stored || strcmp(err.text, other.text) != 0) fuzz_fail("%s: read in one way only", t->name);
    }
    for (int64_t i = 0; status == MAR_OK && t->dtype == WT_I8 && i < t->count; i++) {
        const float value = (float)q[i] * scale[i / in];
        if (q[i] == -128 || (value != w[i] && !isnan(value)))
            fuzz_fail("%s: value %lld is %g, expected %g", t->name, (long long)i, (double)w[i], (double)value);
    }
    free(w), free(scale), free(q);
}

/* Compares tensor i of two openings of one file. */
static void check_tensor(const wt_file *f, const wt_file *again, int i)
{
    char text[256];
    const wt_tensor *t = wt_at(f, i), *u = wt_at(again, i);
    if (t->count != product(t)) fuzz_fail("%s: %lld values", t->name, (long long)t->count);
    if (wt_find(f, t->name) != t) fuzz_fail("%s: is not found", t->name);
    if (strcmp(t->name, u->name) != 0 || t->dtype != u->dtype || !same_shape(t, u))
        fuzz_fail("%s: another tensor the second time", t->name);
    const char last = t->dtype == WT_UNREAD ? 'd' : ']'; /* "[2] of type C64, which is not read" */
    if (wt_shape_text(t, text, sizeof text) != text || text[0] != '[' ||
        (text[strlen(text) - 1] != last && strlen(text) < sizeof text - 1))
        fuzz_fail("%s: its shape is \"%s\"", t->name, text);
    if (is_matrix(t) && t->count > 0 && t->dtype != WT_UNREAD)
        check_matrix(f, t); /* one without columns may have any number of rows */
    float *a = read_values(f, t), *b = read_values(again, u);
    if (a && memcmp(a, b, (size_t)t->count * sizeof *a) != 0) fuzz_fail("%s: other values the second time", t->name);
    free(a);
    free(b);
}

static void check_metadata(const wt_file *f, const wt_file *again)
{
    for (int i = 0; i < wt_metadata_count(f); i++) {
        const char *value, *second, *key = wt_metadata_at(f, i, &value);
        if (strcmp(key, wt_metadata_at(again, i, &second)) != 0 || strcmp(value, second) != 0)
            fuzz_fail("metadata %s: another the second time", key);
        if (wt_metadata(f, key) != value) fuzz_fail("metadata %s: is not found", key);
    }
}

/* --- written and read back --------------------------------------------------------------------------------- */

static float rounded(float x, wt_dtype dtype)
{
    if (dtype == WT_BF16) return wt_f32_from_bf16(wt_bf16_from_f32(x));
    return dtype == WT_F16 ? wt_f32_from_f16(wt_f16_from_f32(x)) : x;
}

static void check_read_back(const wt_file *f, const wt_output *output, const wt_file *back)
{
    const wt_tensor *t = wt_find(back, output->name);
    if (!t) fuzz_fail("%s: is not in the file written", output->name);
    if (t->dtype != output->dtype || !same_shape(t, output->source)) fuzz_fail("%s: read back as another", t->name);
    float *values = read_values(f, output->source), *found = read_values(back, t);
    for (int64_t i = 0; i < t->count; i++) {
        const float expected = rounded(values[i], t->dtype);
        if (isnan(expected) ? !isnan(found[i]) : expected != found[i])
            fuzz_fail("%s: value %lld read back as %g, expected %g", t->name, (long long)i, (double)found[i],
                      (double)expected);
    }
    free(values);
    free(found);
}

static void check_saved(const wt_file *f, wt_dtype dtype)
{
    mar_err err = {0};
    wt_file *back = NULL;
    int n = 0;
    wt_output *outputs = calloc((size_t)wt_count(f) + 1, sizeof *outputs);
    const char *(*pairs)[2] = calloc((size_t)wt_metadata_count(f) + 1, sizeof *pairs);
    for (int i = 0; i < wt_count(f); i++) {
        const wt_tensor *t = wt_at(f, i);
        if (!is_readable(f, t)) continue;
        outputs[n] = (wt_output){.name = t->name, .dtype = dtype, .rank = t->rank, .file = f, .source = t};
        memcpy(outputs[n++].shape, t->shape, sizeof t->shape);
    }
    for (int i = 0; i < wt_metadata_count(f); i++) pairs[i][0] = wt_metadata_at(f, i, &pairs[i][1]);
    mar_status status =
        wt_save_safetensors("written", outputs, n, (const char *const(*)[2])pairs, wt_metadata_count(f), &err);
    fuzz_check_error("wt_save_safetensors", status, &err);
    if (status == MAR_OK) {
        status = wt_open_memory(fuzz_written, fuzz_written_size, "written", &back, &err);
        if (status != MAR_OK) fuzz_fail("the file written cannot be read: %s", err.text);
        if (wt_count(back) != n) fuzz_fail("%d tensors written, %d read back", n, wt_count(back));
        for (int i = 0; i < n; i++) check_read_back(f, &outputs[i], back);
        for (int i = 0; i < wt_metadata_count(f); i++) {
            const char *value = wt_metadata(back, pairs[i][0]);
            if (!value || strcmp(value, pairs[i][1]) != 0) fuzz_fail("metadata %s: not as written", pairs[i][0]);
        }
        wt_close(back);
    }
    fuzz_forget_written();
    free(outputs);
    free(pairs);
}

/* Checks a matrix, which must not be empty, as int8 weights. */
static void check_quantised(const wt_file *f, const wt_tensor *t)
{
    const int out = (int)t->shape[0], in = (int)t->shape[1];
    const wt_output outputs[2] = {{"w", WT_I8, 2, {out, in}, f, t, WT_QUANTISED, NULL},
                                  {"w_scale", WT_F32, 1, {out}, f, t, WT_SCALES, NULL}};
    const size_t n = (size_t)t->count;
    float *values = read_values(f, t), *scale = malloc((size_t)out * sizeof *scale + 1);
    int8_t *q = malloc(n + 1);
    mar_err err = {0};
    wt_file *back;
    if (!scale || !q) fuzz_fail("%s: no memory for int8 weights", t->name);
    kern_int8_quantise(values, out, in, q, scale);
    mar_status status = wt_save_safetensors("written", outputs, 2, NULL, 0, &err);
    if (status == MAR_OK) status = wt_open_memory(fuzz_written, fuzz_written_size, "written", &back, &err);
    if (status != MAR_OK) fuzz_fail("%s: int8 weights: %s", t->name, err.text);
    wt_allow_nonfinite(back, 1);
    float *scales = malloc((size_t)out * sizeof *scales + 1);
    int8_t *read = malloc(n + 1);
    if (!scales || !read) fuzz_fail("%s: no memory for int8 weights", t->name);
    if (wt_load_int8(back, "w", out, in, 0, out, read, scales, &err) != MAR_OK) fuzz_fail("%s: %s", t->name, err.text);
    if (memcmp(read, q, n) != 0 || memcmp(scales, scale, (size_t)out * sizeof *scale) != 0)
        fuzz_fail("%s: other int8 weights read back", t->name);
    free(scales), free(read);
    wt_close(back);
    fuzz_forget_written();
    free(values), free(scale), free(q);
}

void fuzz_check_checkpoint(const uint8_t *data, size_t size)
{
    static const wt_dtype dtypes[] = {WT_F32, WT_F32, WT_BF16, WT_F16};
    wt_file *f = NULL, *again = NULL;
    mar_err err = {0}, second = {0};
    const mar_status status = wt_open_memory(data, size, "input", &f, &err);
    fuzz_check_error("wt_open_memory", status, &err);
    if ((status == MAR_OK) != (f != NULL)) fuzz_fail("wt_open_memory: a file and a failure");
    const uint32_t h = fuzz_hash(data, size);
    if (status != MAR_OK) {
        if (strncmp(err.text, "input: ", 7) != 0) fuzz_fail("does not name the file: %s", err.text);
        if (h % 8) return; /* a refusal is the same again: seldom checked, as most inputs are refused */
    }
    if (wt_open_memory(data, size, "input", &again, &second) != status || strcmp(err.text, second.text) != 0)
        fuzz_fail("the second opening: \"%s\", the first: \"%s\"", second.text, err.text);
    if (status != MAR_OK) return;
    fuzz_check_line("wt_format", wt_format(f));
    if (wt_count(f) != wt_count(again) || wt_metadata_count(f) != wt_metadata_count(again))
        fuzz_fail("%d tensors, the second time %d", wt_count(f), wt_count(again));
    for (int i = 0; i < wt_count(f); i++) check_tensor(f, again, i);
    check_metadata(f, again);
    char *absent = malloc(size + 2); /* longer than all that was read, as a short name might occur in it */
    if (!absent) fuzz_fail("no memory for a name");
    memset(absent, 'x', size + 1);
    absent[size + 1] = 0;
    if (wt_find(f, absent) || wt_metadata(f, absent)) fuzz_fail("finds what is not there");
    free(absent);
    if (h % 16 == 0) check_saved(f, dtypes[h / 16 % 4]);
    for (int i = 0; h % 16 == 1 && i < wt_count(f); i++) {
        const wt_tensor *t = wt_at(f, i); /* one without columns may have any number of rows, each with a scale */
        if (is_matrix(t) && t->count > 0 && is_readable(f, t)) check_quantised(f, t);
    }
    wt_close(again);
    wt_close(f);
}
