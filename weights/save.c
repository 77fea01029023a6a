/* Writes safetensors, tensor by tensor. */
#include "base/json.h"
#include "kernels/int4.h"
#include "kernels/int8.h"
#include "weights/number.h"
#include "weights/table.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 64 * 1024, DATA_ALIGN = 64 };

static int64_t elements(const wt_output *t)
{
    int64_t count = 1;
    for (int d = 0; d < t->rank; d++) count *= t->shape[d];
    return count;
}

/* Returns the bytes of n elements. */
static uint64_t save_bytes_of(wt_dtype dtype, int64_t n)
{
    const wt_tensor t = {.dtype = dtype, .count = n};
    return wt_bytes_of(&t);
}

/* A text that is written twice: first only to count it. */
typedef struct {
    char *text; /* [size]; NULL: counts */
    size_t size, length;
} header_text;

static void save_put(header_text *h, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void save_put(header_text *h, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    h->length +=
        (size_t)vsnprintf(h->text ? h->text + h->length : NULL, h->text ? h->size - h->length : 0, format, arguments);
    va_end(arguments);
}

static void put_string(header_text *h, const char *text)
{
    h->length += json_quote(text, h->text ? h->text + h->length : NULL);
}

/* Puts {"__metadata__":{...},"NAME":{"dtype":...,"shape":[...],"data_offsets":[begin,end]},...}. */
static void put_header(header_text *h, const wt_output *tensors, int count, const char *const (*metadata)[2],
                       int n_metadata)
{
    uint64_t offset = 0;
    save_put(h, "{");
    for (int i = 0; i < n_metadata; i++) {
        save_put(h, i ? "," : "\"__metadata__\":{");
        put_string(h, metadata[i][0]);
        save_put(h, ":");
        put_string(h, metadata[i][1]);
    }
    if (n_metadata > 0) save_put(h, "}");
    for (int i = 0; i < count; i++) {
        const wt_output *t = &tensors[i];
        if (i > 0 || n_metadata > 0) save_put(h, ",");
        put_string(h, t->name);
        const int int4 = t->dtype == WT_I4; /* two in a byte */
        save_put(h, ":{\"dtype\":\"%s\",\"shape\":[", wt_dtype_name(int4 ? WT_U8 : t->dtype));
        for (int d = 0; d < t->rank; d++)
            save_put(h, d ? ",%lld" : "%lld", (long long)t->shape[d] / (int4 && d == t->rank - 1 ? 2 : 1));
        save_put(h, "],\"data_offsets\":[%llu,", (unsigned long long)offset);
        offset += save_bytes_of(t->dtype, elements(t));
        save_put(h, "%llu]}", (unsigned long long)offset);
    }
    save_put(h, "}");
}

/* Returns the header as JSON text for the caller to free, or NULL without memory. */
static char *make_header(const wt_output *tensors, int count, const char *const (*metadata)[2], int n_metadata)
{
    header_text h = {0};
    put_header(&h, tensors, count, metadata, n_metadata);
    h = (header_text){.text = malloc(h.length + 1), .size = h.length + 1};
    if (h.text) put_header(&h, tensors, count, metadata, n_metadata);
    return h.text;
}

/* Converts n floats to dtype, F16 or BF16. Returns 0 if a finite value overflows. */
static int save_encode(wt_dtype dtype, const float *values, size_t n, uint16_t *halves)
{
    int fits = 1;
    for (size_t i = 0; i < n; i++) {
        int infinite;
        if (dtype == WT_BF16) {
            halves[i] = wt_bf16_from_f32(values[i]);
            infinite = (halves[i] & 0x7fff) == 0x7f80;
        } else {
            halves[i] = wt_f16_from_f32(values[i]);
            infinite = (halves[i] & 0x7fff) == 0x7c00;
        }
        if (infinite && isfinite(values[i])) fits = 0;
    }
    return fits;
}

/* Buffers for the conversion of a piece of a tensor. */
typedef struct {
    float *values;    /* [n] */
    uint16_t *halves; /* [n]; also int4's scales */
    int8_t *q;        /* [n] or int4 [n/2] */
    float *scale;     /* [rows] */
} buffers;

static mar_status get_buffers(buffers *b, size_t n, size_t rows, const char *path, mar_err *err)
{
    *b = (buffers){.values = malloc(n * sizeof *b->values),
                   .halves = malloc(n * sizeof *b->halves),
                   .q = malloc(n),
                   .scale = malloc(rows * sizeof *b->scale)};
    return b->values && b->halves && b->q && b->scale ? MAR_OK : err_set(err, MAR_ENOMEM, "%s: out of memory", path);
}

static void free_buffers(buffers *b)
{
    free(b->values);
    free(b->halves);
    free(b->q);
    free(b->scale);
}

/* Writes n values of b->values as t's dtype. */
static mar_status write_values(FILE *stream, const char *path, const wt_output *t, const buffers *b, size_t n,
                               mar_err *err)
{
    if (t->dtype == WT_F32)
        fwrite(b->values, sizeof *b->values, n, stream);
    else if (save_encode(t->dtype, b->values, n, b->halves))
        fwrite(b->halves, sizeof *b->halves, n, stream);
    else
        return err_set(err, MAR_EMODEL, "%s: tensor %s has a value too large for %s; use f32 or bf16", path, t->name,
                       wt_dtype_name(t->dtype));
    return MAR_OK;
}

/* Applies t->factor to the n values in b->values; they start at value `first` of the source. */
static void apply_factor(const wt_output *t, const buffers *b, int64_t first, size_t n)
{
    const int64_t width = t->factor ? t->source->shape[t->source->rank - 1] : 0;
    for (size_t i = 0; t->factor && i < n; i++) {
        const float factor = t->factor[(first + (int64_t)i) % width];
        if (t->content == WT_VALUES)
            b->values[i] /= factor;
        else
            b->values[i] *= factor;
    }
}

/* Converts and writes `rows` rows of the source, from row `first`, each of `in` values. */
static mar_status save_write_rows(FILE *stream, const char *path, const wt_output *t, const buffers *b, int64_t first,
                                  int rows, int in, mar_err *err)
{
    const size_t n = (size_t)rows * (size_t)in;
    const int low = t->source->dtype == WT_I8 || t->source->dtype == WT_I4;
    const mar_status status = low ? wt_restore_rows(t->file, t->source, (int)first, rows, b->values, err)
                                  : wt_convert_f32(t->file, t->source, first * in, n, b->values, err);
    if (status != MAR_OK) return status;
    apply_factor(t, b, first * in, n);
    if (t->content == WT_VALUES || t->content == WT_DEQUANTISED) return write_values(stream, path, t, b, n, err);
    const int int4 = t->dtype == WT_I4 || t->dtype == WT_BF16;
    if (int4)
        kern_int4_quantise(b->values, rows, in, (uint8_t *)b->q, b->halves);
    else
        kern_int8_quantise(b->values, rows, in, b->q, b->scale);
    if (t->content == WT_QUANTISED)
        fwrite(b->q, 1, int4 ? n / 2 : n, stream);
    else if (int4)
        fwrite(b->halves, sizeof *b->halves, n / KERN_INT4_GROUP, stream);
    else
        fwrite(b->scale, sizeof *b->scale, (size_t)rows, stream);
    return MAR_OK;
}

static mar_status copy_tensor(FILE *stream, const char *path, const wt_output *t, mar_err *err)
{
    const uint64_t bytes = wt_bytes_of(t->source);
    char *piece = malloc(CHUNK);
    mar_status status = piece ? MAR_OK : err_set(err, MAR_ENOMEM, "%s: out of memory", path);
    for (uint64_t first = 0, n; first < bytes && status == MAR_OK && !ferror(stream); first += n) {
        n = bytes - first < CHUNK ? bytes - first : CHUNK;
        status = wt_read_bytes(t->file, t->source, first, (size_t)n, piece, err);
        if (status == MAR_OK) fwrite(piece, 1, (size_t)n, stream);
    }
    free(piece);
    return status;
}

static int is_by_rows(const wt_output *t)
{
    return t->content == WT_QUANTISED || t->content == WT_SCALES || t->content == WT_DEQUANTISED;
}

static mar_status write_tensor(FILE *stream, const char *path, const wt_output *t, mar_err *err)
{
    if (t->content == WT_COPIED) return copy_tensor(stream, path, t, err);
    const int in = is_by_rows(t) ? (int)t->source->shape[1] : 1, most = in < CHUNK ? CHUNK / (in ? in : 1) : 1;
    const int64_t rows = is_by_rows(t) ? t->source->shape[0] : t->source->count;
    buffers b;
    mar_status status = get_buffers(&b, (size_t)most * (size_t)in + 1, (size_t)most, path, err);
    for (int64_t first = 0; first < rows && status == MAR_OK && !ferror(stream);
         first += most) /* commit reports a write error */
        status = save_write_rows(stream, path, t, &b, first, rows - first < most ? (int)(rows - first) : most, in, err);
    free_buffers(&b);
    return status;
}

static int is_half_or_single(wt_dtype dtype)
{
    return dtype == WT_F32 || dtype == WT_F16 || dtype == WT_BF16;
}

static int is_matrix(const wt_tensor *t)
{
    return t->rank == 2 && t->shape[0] <= INT_MAX && t->shape[1] <= INT_MAX;
}

/* Returns 1 if the types allow this output of the source. */
static int can_write(const wt_output *t)
{
    const wt_tensor *s = t->source, *scale = wt_scale_of(t->file, s);
    const int low =
        scale && is_matrix(s) &&
        (s->dtype == WT_I4 || (s->dtype == WT_I8 && wt_is_float(scale->dtype) && scale->count == s->shape[0]));
    const int quantises = (wt_is_float(s->dtype) && is_matrix(s)) || low;
    const int groups = is_matrix(s) && s->shape[1] % KERN_INT4_GROUP == 0;
    switch (t->content) {
    case WT_VALUES:
        return wt_is_float(s->dtype) && is_half_or_single(t->dtype);
    case WT_QUANTISED:
        return quantises && (t->dtype == WT_I8 || (t->dtype == WT_I4 && groups));
    case WT_SCALES:
        return quantises && (t->dtype == WT_F32 || (t->dtype == WT_BF16 && groups));
    case WT_DEQUANTISED:
        return low && is_half_or_single(t->dtype);
    case WT_COPIED:
        return s->dtype == t->dtype;
    }
    return 0;
}

static mar_status check_outputs(const char *path, const wt_output *tensors, int count, mar_err *err)
{
    for (int i = 0; i < count; i++) {
        const wt_output *t = &tensors[i];
        if (!can_write(t))
            return err_set(err, MAR_EARG, "%s: tensor %s cannot be written as %s from %s", path, t->name,
                           wt_dtype_name(t->dtype), wt_dtype_name(t->source->dtype));
        const int64_t all = t->source->count;
        const int64_t expected = t->content != WT_SCALES ? all
                                 : t->dtype == WT_BF16   ? all / KERN_INT4_GROUP
                                                         : t->source->shape[0];
        if (elements(t) != expected)
            return err_set(err, MAR_EARG, "%s: tensor %s has %lld values, its new shape %lld", path, t->name,
                           (long long)expected, (long long)elements(t));
    }
    return MAR_OK;
}

mar_status wt_save_safetensors(const char *path, const wt_output *tensors, int count, const char *const (*metadata)[2],
                               int n_metadata, mar_err *err)
{
    mar_status status = check_outputs(path, tensors, count, err);
    if (status != MAR_OK) return status;
    char *header = make_header(tensors, count, metadata, n_metadata);
    if (!header) return err_set(err, MAR_ENOMEM, "%s: out of memory for the header of %d tensors", path, count);
    file_writer w;
    status = file_writer_open(path, &w, err);
    if (status == MAR_OK) {
        /* Spaces after the JSON align the data, and so every tensor whose size allows it. */
        uint64_t length = strlen(header), padded = (length + 8 + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN - 8;
        uint8_t prefix[8];
        for (int i = 0; i < 8; i++) prefix[i] = (uint8_t)(padded >> 8 * i);
        fwrite(prefix, 1, sizeof prefix, w.stream);
        fprintf(w.stream, "%s%*s", header, (int)(padded - length), "");
        for (int i = 0; i < count && status == MAR_OK && !ferror(w.stream); i++)
            status = write_tensor(w.stream, path, &tensors[i], err);
        for (int i = 0; i < count; i++)
            if (i == 0 || tensors[i].file != tensors[i - 1].file)
                status = wt_check_unchanged(tensors[i].file, status, err);
        if (status == MAR_OK)
            status = file_writer_commit(&w, err);
        else
            file_writer_discard(&w);
    }
    free(header);
    return status;
}
