/* Reads safetensors: u64 header length, JSON header, tensor data without holes or overlaps.
 * https://github.com/huggingface/safetensors#format */
#include "weights/number.h"
#include "weights/reader.h"
#include "weights/table.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

/* The format allows 100 MB. The largest MAR header has 60 kB, and parsing takes about 30 times the text. */
static const uint64_t header_max = 16u << 20;
static const double exact_max = (double)WT_DIMENSION_MAX;

typedef struct {
    uint64_t begin, end;
    const char *name;
} span;

int wt_safetensors_recognise(const wt_file *f)
{
    return f->n_start >= 9 && f->start[8] == '{';
}

static int whole_number(const cJSON *item, int64_t *out)
{
    if (!cJSON_IsNumber(item)) return 0;
    double value = item->valuedouble;
    if (!(value >= 0 && value <= exact_max) || value != (double)(int64_t)value) return 0;
    *out = (int64_t)value;
    return 1;
}

static int dtype_from_name(const char *name, wt_dtype *out)
{
    for (int d = WT_F64; d <= WT_BOOL; d++)
        if (strcmp(name, wt_dtype_name((wt_dtype)d)) == 0) {
            *out = (wt_dtype)d;
            return 1;
        }
    return 0;
}

static int compare_keys(const void *a, const void *b)
{
    const wt_pair *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

static mar_status check_keys(const wt_file *f, mar_err *err)
{
    const wt_pair **sorted = malloc(((size_t)f->n_metadata + 1) * sizeof *sorted);
    if (!sorted) return err_set(err, MAR_ENOMEM, "%s: out of memory for the metadata", f->path);
    mar_status status = MAR_OK;
    for (int i = 0; i < f->n_metadata; i++) sorted[i] = &f->metadata[i];
    qsort(sorted, (size_t)f->n_metadata, sizeof *sorted, compare_keys);
    for (int i = 1; i < f->n_metadata && status == MAR_OK; i++)
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0)
            status = err_set(err, MAR_EFORMAT, "%s: metadata \"%s\" appears twice", f->path, sorted[i]->key);
    free(sorted);
    return status;
}

static mar_status read_metadata(wt_file *f, const cJSON *object, mar_err *err)
{
    if (f->metadata) return err_set(err, MAR_EFORMAT, "%s: __metadata__ appears twice", f->path);
    if (!cJSON_IsObject(object)) return err_set(err, MAR_EFORMAT, "%s: __metadata__ is not an object", f->path);
    int n = 0;
    for (const cJSON *item = object->child; item; item = item->next) n++;
    f->metadata = calloc((size_t)n + 1, sizeof *f->metadata);
    if (!f->metadata) return err_set(err, MAR_ENOMEM, "%s: out of memory for the metadata", f->path);
    for (const cJSON *item = object->child; item; item = item->next) {
        if (!cJSON_IsString(item))
            return err_set(err, MAR_EFORMAT, "%s: metadata \"%s\" is not a string", f->path, item->string);
        mar_status status = wt_check_text(f, "metadata key", item->string, strlen(item->string), err);
        if (status == MAR_OK)
            status = wt_check_text(f, "metadata value", item->valuestring, strlen(item->valuestring), err);
        if (status != MAR_OK) return status;
        wt_pair *pair = &f->metadata[f->n_metadata];
        pair->key = wt_pool_text(&f->pool, item->string, strlen(item->string));
        pair->value = wt_pool_text(&f->pool, item->valuestring, strlen(item->valuestring));
        if (!pair->key || !pair->value) return err_set(err, MAR_ENOMEM, "%s: out of memory for the metadata", f->path);
        f->n_metadata++;
    }
    return check_keys(f, err);
}

/* Finds the tensor's three fields, each exactly once. Ignores other fields: a later version may add some. */
static mar_status find_fields(const wt_file *f, const cJSON *entry, const cJSON *fields[3], mar_err *err)
{
    static const char *const names[3] = {"dtype", "shape", "data_offsets"};
    memset(fields, 0, 3 * sizeof *fields);
    if (!cJSON_IsObject(entry))
        return err_set(err, MAR_EFORMAT, "%s: header entry \"%s\" is not an object", f->path, entry->string);
    for (const cJSON *item = entry->child; item; item = item->next)
        for (int i = 0; i < 3; i++) {
            if (strcmp(item->string, names[i]) != 0) continue;
            if (fields[i])
                return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": %s appears twice", f->path, entry->string,
                               names[i]);
            fields[i] = item;
        }
    for (int i = 0; i < 3; i++)
        if (!fields[i])
            return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\" has no %s", f->path, entry->string, names[i]);
    return MAR_OK;
}

static mar_status read_shape(const wt_file *f, const cJSON *shape, wt_tensor *t, mar_err *err)
{
    if (!cJSON_IsArray(shape))
        return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": shape is not an array", f->path, t->name);
    for (const cJSON *item = shape->child; item; item = item->next) {
        if (t->rank == WT_MAX_RANK)
            return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\" has more than %d dimensions", f->path, t->name,
                           WT_MAX_RANK);
        if (!cJSON_IsNumber(item))
            return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": dimension %d of its shape is no number", f->path,
                           t->name, t->rank);
        if (!whole_number(item, &t->shape[t->rank]))
            return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": dimension %d of its shape is %g, expected %s", f->path,
                           t->name, t->rank, item->valuedouble,
                           item->valuedouble > exact_max ? "at most 2^53" : "a whole number that is not negative");
        t->rank++;
    }
    return MAR_OK;
}

/* Reads data_offsets [begin, end]. They must lie in the data section and match dtype and shape. */
static mar_status read_offsets(const wt_file *f, const cJSON *offsets, uint64_t data_size, wt_tensor *t, span *s,
                               mar_err *err)
{
    int64_t begin, end;
    uint64_t bytes;
    const cJSON *first = cJSON_IsArray(offsets) ? offsets->child : NULL;
    if (!first || !first->next || first->next->next || !whole_number(first, &begin) ||
        !whole_number(first->next, &end) || begin > end)
        return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": data_offsets is not [begin, end]", f->path, t->name);
    if (!wt_measure(t, &bytes))
        return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": its shape is too large", f->path, t->name);
    if ((uint64_t)(end - begin) != bytes)
        return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": data_offsets span %lld bytes, its shape needs %llu",
                       f->path, t->name, (long long)(end - begin), (unsigned long long)bytes);
    if ((uint64_t)end > data_size)
        return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\" ends at byte %lld of %llu bytes of data; file truncated?",
                       f->path, t->name, (long long)end, (unsigned long long)data_size);
    *s = (span){(uint64_t)begin, (uint64_t)end, NULL};
    return MAR_OK;
}

/* Reads one entry. `data` is the offset of the data section in the file. */
static mar_status read_tensor(wt_file *f, const cJSON *entry, uint64_t data, uint64_t data_size, span *s, mar_err *err)
{
    const cJSON *fields[3];
    wt_tensor t = {.name = entry->string};
    mar_status status = wt_check_text(f, "tensor name", t.name, strlen(t.name), err);
    if (status == MAR_OK) status = find_fields(f, entry, fields, err);
    if (status != MAR_OK) return status;
    if (!cJSON_IsString(fields[0]) || !dtype_from_name(fields[0]->valuestring, &t.dtype))
        return err_set(err, MAR_EFORMAT,
                       "%s: tensor \"%s\" has dtype \"%s\", expected F64, F32, F16, BF16, I8 to I64, U8 "
                       "or BOOL",
                       f->path, t.name, cJSON_IsString(fields[0]) ? fields[0]->valuestring : "(no string)");
    status = read_shape(f, fields[1], &t, err);
    if (status == MAR_OK) status = read_offsets(f, fields[2], data_size, &t, s, err);
    if (status != MAR_OK) return status;
    t.offset = data + s->begin;
    status = wt_add(f, &t, strlen(t.name), err);
    if (status == MAR_OK) s->name = f->tensors[f->count - 1].name;
    return status;
}

static int compare_spans(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end); /* an empty tensor sorts before the one that starts there */
}

/* Checks that the tensors cover the data exactly, as the format requires. An overlap or a gap means that the header is
 * wrong. */
static mar_status check_cover(const wt_file *f, span *spans, uint64_t data_size, mar_err *err)
{
    uint64_t end = 0;
    qsort(spans, (size_t)f->count, sizeof *spans, compare_spans);
    for (int i = 0; i < f->count; i++) {
        if (spans[i].begin != end)
            return err_set(err, MAR_EFORMAT,
                           "%s: tensor \"%s\" begins at byte %llu of the data, the one before ends at %llu", f->path,
                           spans[i].name, (unsigned long long)spans[i].begin, (unsigned long long)end);
        end = spans[i].end;
    }
    if (end != data_size)
        return err_set(err, MAR_EFORMAT, "%s: %llu bytes of data after the last tensor", f->path,
                       (unsigned long long)(data_size - end));
    return MAR_OK;
}

static mar_status read_entries(wt_file *f, const cJSON *root, uint64_t data, uint64_t data_size, mar_err *err)
{
    int n = 0;
    for (const cJSON *entry = root->child; entry; entry = entry->next) n++;
    span *spans = calloc((size_t)n + 1, sizeof *spans);
    if (!spans) return err_set(err, MAR_ENOMEM, "%s: out of memory for %d tensors", f->path, n);
    mar_status status = MAR_OK;
    for (const cJSON *entry = root->child; entry && status == MAR_OK; entry = entry->next)
        status = strcmp(entry->string, "__metadata__") == 0
                     ? read_metadata(f, entry, err)
                     : read_tensor(f, entry, data, data_size, &spans[f->count], err);
    if (status == MAR_OK) status = check_cover(f, spans, data_size, err);
    free(spans);
    return status;
}

/* Returns 1 if memory was the reason why parsing failed, since cJSON does not tell. Parsing takes about 30 times the
 * length. So either that allocation fails, or a second attempt succeeds. */
static int is_out_of_memory(const char *header, uint64_t length)
{
    void *needed = malloc(32 * (size_t)length);
    free(needed);
    if (!needed) return 1;
    cJSON *again = cJSON_ParseWithLength(header, length);
    cJSON_Delete(again);
    return again != NULL;
}

/* Returns the position of a NUL in the header, plain or as \u0000, or -1. It would truncate names. Backslashes only
 * occur in strings, where each escapes the next character. */
static int64_t find_nul(const char *header, uint64_t length)
{
    static const char escape[6] = {'\\', 'u', '0', '0', '0', '0'};
    const char *end = header + length, *nul = memchr(header, 0, length);
    if (nul) end = nul;
    for (const char *at = header; at < end && (at = memchr(at, '\\', (size_t)(end - at))); at += 2)
        if ((size_t)(end - at) >= sizeof escape && memcmp(at, escape, sizeof escape) == 0) return at - header;
    return nul ? nul - header : -1;
}

/* cJSON recurses once per level. A checkpoint has three; this limit protects a small stack. */
enum { LEVELS_MAX = 16 };

/* Returns the position of the first bracket deeper than LEVELS_MAX, or -1. */
static int64_t find_deep(const char *header, uint64_t length)
{
    int depth = 0, in_string = 0;
    for (uint64_t i = 0; i < length; i++) {
        const char c = header[i];
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == '[' || c == '{') && ++depth > LEVELS_MAX)
            return (int64_t)i;
        else if (!in_string && (c == ']' || c == '}'))
            depth--;
    }
    return -1;
}

static mar_status read_header(wt_file *f, const char *header, uint64_t length, mar_err *err)
{
    const char *end = NULL;
    const int64_t deep = find_deep(header, length);
    if (deep >= 0)
        return err_set(err, MAR_EFORMAT, "%s: the header has more than %d levels at byte %lld, expected 3", f->path,
                       LEVELS_MAX, (long long)deep);
    cJSON *root = cJSON_ParseWithLengthOpts(header, length, &end, 0);
    if (!root && is_out_of_memory(header, length))
        return err_set(err, MAR_ENOMEM, "%s: out of memory for the header of %llu bytes", f->path,
                       (unsigned long long)length);
    if (!root)
        return err_set(err, MAR_EFORMAT, "%s: the header is no valid JSON near byte %lld", f->path,
                       end ? (long long)(end - header) : 0LL);
    while (end < header + length && *end == ' ') end++;
    const int64_t nul = find_nul(header, (uint64_t)(end - header));
    mar_status status;
    if (end != header + length)
        status = err_set(err, MAR_EFORMAT, "%s: the header goes on after its JSON object, at byte %lld", f->path,
                         (long long)(end - header));
    else if (nul >= 0)
        status = err_set(err, MAR_EFORMAT, "%s: the header has a NUL at byte %lld, expected names and metadata without",
                         f->path, (long long)nul);
    else if (!cJSON_IsObject(root))
        status = err_set(err, MAR_EFORMAT, "%s: the header is no JSON object", f->path);
    else
        status = read_entries(f, root, 8 + length, f->source.size - 8 - length, err);
    cJSON_Delete(root);
    return status;
}

mar_status wt_safetensors_read(wt_file *f, mar_err *err)
{
    const uint64_t length = wt_le64(f->start);
    if (length > f->source.size - 8)
        return err_set(err, MAR_EFORMAT, "%s: the header says %llu bytes, the file has %llu; truncated?", f->path,
                       (unsigned long long)length, (unsigned long long)f->source.size);
    if (length > header_max)
        return err_set(err, MAR_EFORMAT, "%s: the header has %llu bytes, more than the %llu allowed", f->path,
                       (unsigned long long)length, (unsigned long long)header_max);
    char *header = malloc(length + 1);
    if (!header)
        return err_set(err, MAR_ENOMEM, "%s: out of memory for the header of %llu bytes", f->path,
                       (unsigned long long)length);
    mar_status status = file_source_read(&f->source, 8, length, header, err);
    if (status == MAR_OK) status = read_header(f, header, length, err);
    free(header);
    strcpy(f->format, "safetensors");
    return status;
}
