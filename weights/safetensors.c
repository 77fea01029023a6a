/* Reads safetensors: u64 header length, JSON header, tensor data without holes or overlaps.
 * https://github.com/huggingface/safetensors#format */
#include "base/json.h"
#include "weights/number.h"
#include "weights/reader.h"
#include "weights/table.h"

#include <stdlib.h>
#include <string.h>

/* The format allows 100 MB. The largest MAR header has 60 kB, and reading takes up to 9 times the text. */
static const uint64_t header_max = 16u << 20;

typedef struct {
    uint64_t begin, end;
    const char *name;
} span;

int wt_safetensors_recognise(const wt_file *f)
{
    return f->n_start >= 9 && f->start[8] == '{';
}

/* Reads an integer. Refuses 2.0 and 2e3, as the format's own reader does. */
static int whole_number(const json_value *v, int64_t *out)
{
    return json_integer(v, out) && *out >= 0 && *out <= WT_DIMENSION_MAX;
}

/* Reads the type, of any name: only a model that needs the tensor minds one that is not read. */
static mar_status read_dtype(const wt_file *f, const json_value *v, wt_tensor *t, mar_err *err)
{
    if (v->type != JSON_STRING)
        return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": its dtype is no string, expected \"F32\" or the like",
                       f->path, t->name);
    t->dtype = WT_UNREAD;
    t->type = v->text;
    for (int d = WT_F64; d <= WT_F8_E5M2; d++)
        if (json_is(v, wt_dtype_name((wt_dtype)d))) t->dtype = (wt_dtype)d;
    return wt_check_text(f, "dtype", v->text, v->length, err);
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

static mar_status read_metadata(wt_file *f, const json_value *object, mar_err *err)
{
    if (object->type == JSON_NULL) return MAR_OK;
    if (f->metadata) return err_set(err, MAR_EFORMAT, "%s: __metadata__ appears twice", f->path);
    if (object->type != JSON_OBJECT) return err_set(err, MAR_EFORMAT, "%s: __metadata__ is not an object", f->path);
    f->metadata = calloc(json_children(object) + 1, sizeof *f->metadata);
    if (!f->metadata) return err_set(err, MAR_ENOMEM, "%s: out of memory for the metadata", f->path);
    for (const json_value *key = object + 1, *value; key < json_next(object); key = json_next(value)) {
        value = key + 1;
        if (value->type != JSON_STRING)
            return err_set(err, MAR_EFORMAT, "%s: metadata \"%s\" is not a string", f->path, key->text);
        mar_status status = wt_check_text(f, "metadata key", key->text, key->length, err);
        if (status == MAR_OK) status = wt_check_text(f, "metadata value", value->text, value->length, err);
        if (status != MAR_OK) return status;
        wt_pair *pair = &f->metadata[f->n_metadata];
        pair->key = wt_pool_text(&f->pool, key->text, key->length);
        pair->value = wt_pool_text(&f->pool, value->text, value->length);
        if (!pair->key || !pair->value) return err_set(err, MAR_ENOMEM, "%s: out of memory for the metadata", f->path);
        f->n_metadata++;
    }
    return check_keys(f, err);
}

/* Finds the three fields of a tensor, each exactly once. Ignores other fields: a later version may add some. */
static mar_status find_fields(const wt_file *f, const json_value *name, const json_value *fields[3], mar_err *err)
{
    static const char *const names[3] = {"dtype", "shape", "data_offsets"};
    const json_value *const entry = name + 1;
    memset(fields, 0, 3 * sizeof *fields);
    if (entry->type != JSON_OBJECT)
        return err_set(err, MAR_EFORMAT, "%s: header entry \"%s\" is not an object", f->path, name->text);
    for (const json_value *field = entry + 1; field < json_next(entry); field = json_next(field + 1))
        for (int i = 0; i < 3; i++) {
            if (!json_is(field, names[i])) continue;
            if (fields[i])
                return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": %s appears twice", f->path, name->text, names[i]);
            fields[i] = field + 1;
        }
    for (int i = 0; i < 3; i++)
        if (!fields[i]) return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\" has no %s", f->path, name->text, names[i]);
    return MAR_OK;
}

static mar_status read_shape(const wt_file *f, const json_value *shape, wt_tensor *t, mar_err *err)
{
    if (shape->type != JSON_ARRAY)
        return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": shape is not an array", f->path, t->name);
    for (const json_value *item = shape + 1; item < json_next(shape); item = json_next(item)) {
        if (t->rank == WT_MAX_RANK)
            return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\" has more than %d dimensions", f->path, t->name,
                           WT_MAX_RANK);
        if (item->type != JSON_NUMBER)
            return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": dimension %d of its shape is no number", f->path,
                           t->name, t->rank);
        if (!whole_number(item, &t->shape[t->rank]))
            return err_set(err, MAR_EFORMAT,
                           "%s: tensor \"%s\": dimension %d of its shape is %.*s, expected an integer from 0 to 2^53",
                           f->path, t->name, t->rank, item->length < 32 ? (int)item->length : 32, item->text);
        t->rank++;
    }
    return MAR_OK;
}

/* Reads data_offsets [begin, end]. They must lie in the data section and match dtype and shape. */
static mar_status read_offsets(const wt_file *f, const json_value *offsets, uint64_t data_size, wt_tensor *t, span *s,
                               mar_err *err)
{
    int64_t begin, end;
    uint64_t bytes;
    if (offsets->type != JSON_ARRAY || json_children(offsets) != 2 || !whole_number(offsets + 1, &begin) ||
        !whole_number(json_next(offsets + 1), &end) || begin > end)
        return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": data_offsets is not [begin, end]", f->path, t->name);
    if (!wt_measure(t, &bytes))
        return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": its shape is too large", f->path, t->name);
    if (t->dtype != WT_UNREAD && (uint64_t)(end - begin) != bytes)
        return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\": data_offsets span %lld bytes, its shape needs %llu",
                       f->path, t->name, (long long)(end - begin), (unsigned long long)bytes);
    if ((uint64_t)end > data_size)
        return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\" ends at byte %lld of %llu bytes of data; file truncated?",
                       f->path, t->name, (long long)end, (unsigned long long)data_size);
    *s = (span){(uint64_t)begin, (uint64_t)end, NULL};
    return MAR_OK;
}

/* Reads the entry with this name. `data` is the offset of the data section in the file. */
static mar_status safetensors_read_tensor(wt_file *f, const json_value *name, uint64_t data, uint64_t data_size,
                                          span *s, mar_err *err)
{
    const json_value *fields[3];
    wt_tensor t = {.name = name->text};
    mar_status status = wt_check_text(f, "tensor name", name->text, name->length, err);
    if (status == MAR_OK) status = find_fields(f, name, fields, err);
    if (status != MAR_OK) return status;
    status = read_dtype(f, fields[0], &t, err);
    if (status == MAR_OK) status = read_shape(f, fields[1], &t, err);
    if (status == MAR_OK) status = read_offsets(f, fields[2], data_size, &t, s, err);
    if (status != MAR_OK) return status;
    t.offset = data + s->begin;
    status = wt_add(f, &t, name->length, err);
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

static mar_status safetensors_read_entries(wt_file *f, const json_value *root, uint64_t data, uint64_t data_size,
                                           mar_err *err)
{
    const size_t n = json_children(root);
    span *spans = calloc(n + 1, sizeof *spans);
    if (!spans) return err_set(err, MAR_ENOMEM, "%s: out of memory for %zu tensors", f->path, n);
    mar_status status = MAR_OK;
    for (const json_value *name = root + 1; name < json_next(root) && status == MAR_OK; name = json_next(name + 1))
        status = json_is(name, "__metadata__")
                     ? read_metadata(f, name + 1, err)
                     : safetensors_read_tensor(f, name, data, data_size, &spans[f->count], err);
    if (status == MAR_OK) status = check_cover(f, spans, data_size, err);
    free(spans);
    return status;
}

/* A checkpoint has three levels. */
enum { LEVELS_MAX = 16 };

static mar_status refuse_header(const wt_file *f, json_error error, const json *j, uint64_t length, mar_err *err)
{
    const long long at = (long long)j->at;
    switch (error) {
    case JSON_NO_MEMORY:
        return err_set(err, MAR_ENOMEM, "%s: out of memory for the header of %llu bytes", f->path,
                       (unsigned long long)length);
    case JSON_DEEP:
        return err_set(err, MAR_EFORMAT, "%s: the header has more than %d levels at byte %lld, expected 3", f->path,
                       LEVELS_MAX, at);
    case JSON_TRAILING:
        return err_set(err, MAR_EFORMAT, "%s: the header goes on after its JSON object, at byte %lld", f->path, at);
    default:
        return err_set(err, MAR_EFORMAT, "%s: the header is no valid JSON near byte %lld", f->path, at);
    }
}

static mar_status refuse_nul(const wt_file *f, size_t at, mar_err *err)
{
    return err_set(err, MAR_EFORMAT, "%s: the header has a NUL at byte %zu, expected names and metadata without",
                   f->path, at);
}

static mar_status safetensors_read_header(wt_file *f, char *header, uint64_t length, mar_err *err)
{
    json j;
    const json_error error = json_read(header, length, LEVELS_MAX, &j);
    if (error == JSON_SYNTAX && j.at < length && !header[j.at]) return refuse_nul(f, j.at, err);
    if (error != JSON_OK) return refuse_header(f, error, &j, length, err);
    mar_status status;
    if (j.nul < length)
        status = refuse_nul(f, j.nul, err);
    else if (j.values->type != JSON_OBJECT) /* the file has changed since its start was read */
        status = err_set(err, MAR_EFORMAT, "%s: the header is no JSON object", f->path);
    else
        status = safetensors_read_entries(f, j.values, 8 + length, f->source.size - 8 - length, err);
    if (status == MAR_OK && j.not_utf8 < length)
        status = err_set(err, MAR_EFORMAT, "%s: the header is no valid UTF-8 at byte %zu", f->path, j.not_utf8);
    json_free(&j);
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
    header[length] = '\0';
    mar_status status = file_source_read(&f->source, 8, length, header, err);
    if (status == MAR_OK) status = safetensors_read_header(f, header, length, err);
    free(header);
    strcpy(f->format, "safetensors");
    return status;
}
