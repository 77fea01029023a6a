/* Writing safetensors, tensor by tensor. */
#include "weights/number.h"
#include "weights/table.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 64 * 1024, DATA_ALIGN = 64 };

/* A whole number with all its digits, of which cJSON prints 15. */
static cJSON *whole_number(uint64_t value)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRIu64, value);
    return cJSON_CreateRaw(digits);
}

/* Adds {"dtype": ..., "shape": [...], "data_offsets": [begin, end]} for one tensor. */
static int add_entry(cJSON *root, const wt_output *t, uint64_t begin, uint64_t end)
{
    cJSON *entry = cJSON_AddObjectToObject(root, t->name);
    if (!entry || !cJSON_AddStringToObject(entry, "dtype", wt_dtype_name(t->dtype))) return 0;
    cJSON *shape = cJSON_AddArrayToObject(entry, "shape"), *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
    if (!shape || !offsets) return 0;
    for (int i = 0; i < t->rank; i++)
        if (!cJSON_AddItemToArray(shape, whole_number((uint64_t)t->shape[i]))) return 0;
    return cJSON_AddItemToArray(offsets, whole_number(begin)) && cJSON_AddItemToArray(offsets, whole_number(end));
}

/* Makes the header as JSON text, which the caller frees. NULL without memory. */
static char *make_header(const wt_output *tensors, int count, const char *const (*metadata)[2], int n_metadata)
{
    cJSON *root = cJSON_CreateObject();
    int ok = root != NULL;
    if (n_metadata > 0) {
        cJSON *pairs = cJSON_AddObjectToObject(root, "__metadata__");
        for (int i = 0; i < n_metadata && ok; i++)
            ok = cJSON_AddStringToObject(pairs, metadata[i][0], metadata[i][1]) != NULL;
    }
    uint64_t offset = 0;
    for (int i = 0; i < count && ok; i++) {
        uint64_t bytes = (uint64_t)tensors[i].source->count * wt_dtype_size(tensors[i].dtype);
        ok = add_entry(root, &tensors[i], offset, offset + bytes);
        offset += bytes;
    }
    char *text = ok ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return text;
}

/* Converts n floats to halves of dtype. Returns 0 if a finite value becomes infinite. */
static int encode(wt_dtype dtype, const float *values, size_t n, uint16_t *halves)
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

static mar_status write_tensor(FILE *stream, const char *path, const wt_output *t, mar_err *err)
{
    static const size_t chunk = CHUNK;
    float *values = malloc(chunk * sizeof *values);
    uint16_t *halves = malloc(chunk * sizeof *halves);
    mar_status status = MAR_OK;
    if (!values || !halves) status = err_set(err, MAR_ENOMEM, "%s: out of memory", path);
    for (int64_t first = 0; first < t->source->count && status == MAR_OK; first += CHUNK) {
        int64_t left = t->source->count - first;
        size_t n = left < CHUNK ? (size_t)left : chunk;
        status = wt_convert_f32(t->file, t->source, first, n, values, err);
        if (status != MAR_OK) break;
        if (t->dtype == WT_F32)
            fwrite(values, sizeof *values, n, stream);
        else if (encode(t->dtype, values, n, halves))
            fwrite(halves, sizeof *halves, n, stream);
        else
            status = err_set(err, MAR_EMODEL, "%s: tensor %s has a value too large for %s; use f32 or bf16", path,
                             t->name, wt_dtype_name(t->dtype));
        if (status == MAR_OK && ferror(stream)) break; /* file_writer_commit reports it */
    }
    free(values);
    free(halves);
    return status;
}

static mar_status check_outputs(const char *path, const wt_output *tensors, int count, mar_err *err)
{
    for (int i = 0; i < count; i++) {
        const wt_output *t = &tensors[i];
        int64_t elements = 1;
        for (int d = 0; d < t->rank; d++) elements *= t->shape[d];
        if (!wt_is_float(t->source->dtype) || !wt_is_float(t->dtype) || t->dtype == WT_F64)
            return err_set(err, MAR_EARG, "%s: tensor %s cannot be written as %s from %s", path, t->name,
                           wt_dtype_name(t->dtype), wt_dtype_name(t->source->dtype));
        if (elements != t->source->count)
            return err_set(err, MAR_EARG, "%s: tensor %s has %lld values, its new shape %lld", path, t->name,
                           (long long)t->source->count, (long long)elements);
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
            if (i == 0 || tensors[i].file != tensors[i - 1].file) status = wt_settle(tensors[i].file, status, err);
        if (status == MAR_OK)
            status = file_writer_commit(&w, err);
        else
            file_writer_discard(&w);
    }
    cJSON_free(header);
    return status;
}
