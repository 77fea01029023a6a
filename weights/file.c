/* A checkpoint as a table of tensors, whatever its format. */
#include "weights/reader.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the table ------------------------------------------------------------------------------------ */

static uint64_t hash_name(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a, 64 bit */
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 0x100000001b3u;
    return h;
}

/* The slot that holds `name`, or the empty one where it belongs. */
static size_t find_slot(const wt_file *f, const char *name)
{
    size_t i = hash_name(name) & (f->n_slots - 1);
    while (f->slots[i] >= 0 && strcmp(f->tensors[f->slots[i]].name, name) != 0) i = (i + 1) & (f->n_slots - 1);
    return i;
}

/* Room for one more tensor, slots at most half full. */
static int grow(wt_file *f)
{
    if (f->count < f->capacity) return 1;
    int capacity = f->capacity ? 2 * f->capacity : 256;
    wt_tensor *tensors = realloc(f->tensors, (size_t)capacity * sizeof *tensors);
    if (!tensors) return 0;
    f->tensors = tensors;
    size_t n_slots = 2 * (size_t)capacity;
    int *slots = malloc(n_slots * sizeof *slots);
    if (!slots) return 0;
    free(f->slots);
    f->slots = slots;
    f->n_slots = n_slots;
    f->capacity = capacity;
    memset(slots, 0xff, n_slots * sizeof *slots);
    for (int i = 0; i < f->count; i++) slots[find_slot(f, tensors[i].name)] = i;
    return 1;
}

mar_status wt_add(wt_file *f, const wt_tensor *t, size_t name_length, mar_err *err)
{
    if (memchr(t->name, 0, name_length))
        return err_set(err, MAR_EFORMAT, "%s: the tensor name \"%s\" contains a NUL", f->path, t->name);
    char *name = wt_pool_text(&f->pool, t->name, name_length);
    if (!name || !grow(f)) return err_set(err, MAR_ENOMEM, "%s: out of memory for the tensor table", f->path);
    size_t slot = find_slot(f, name);
    if (f->slots[slot] >= 0) return err_set(err, MAR_EFORMAT, "%s: tensor \"%s\" appears twice", f->path, name);
    f->slots[slot] = f->count;
    f->tensors[f->count] = *t;
    f->tensors[f->count].name = name;
    f->count++;
    return MAR_OK;
}

int wt_measure(wt_tensor *t, uint64_t *bytes)
{
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] < 0 || __builtin_mul_overflow(count, t->shape[i], &count)) return 0;
    t->count = count;
    return !__builtin_mul_overflow((uint64_t)count, (uint64_t)wt_dtype_size(t->dtype), bytes);
}

/* --- opening -------------------------------------------------------------------------------------- */

/* The file begins with something else: show it, since a web page or a Git LFS pointer in place of a
 * checkpoint is the usual reason. */
static mar_status refuse_unknown(const wt_file *f, mar_err *err)
{
    char start[25];
    size_t n = f->size < sizeof start - 1 ? f->size : sizeof start - 1;
    for (size_t i = 0; i < n; i++) start[i] = (char)(f->data[i] < 0x80 && isprint(f->data[i]) ? f->data[i] : '.');
    start[n] = 0;
    return err_set(err, MAR_EFORMAT, "%s: %zu bytes that begin with \"%s\", expected safetensors or a PyTorch zip file",
                   f->path, f->size, start);
}

static mar_status read_any(wt_file *f, mar_err *err)
{
    if (wt_pytorch_recognise(f)) return wt_pytorch_read(f, err);
    if (wt_safetensors_recognise(f)) return wt_safetensors_read(f, err);
    return refuse_unknown(f, err);
}

static mar_status open_file(const char *path, const void *data, size_t size, wt_file **out, mar_err *err)
{
    *out = NULL;
    wt_file *f = calloc(1, sizeof *f);
    if (!f) return err_set(err, MAR_ENOMEM, "%s: out of memory", path);
    f->pool.limit = SIZE_MAX;
    f->path = wt_pool_text(&f->pool, path, strlen(path));
    mar_status status = MAR_OK;
    if (!f->path || !grow(f)) {
        status = err_set(err, MAR_ENOMEM, "%s: out of memory", path);
    } else if (data) {
        f->data = data;
        f->size = size;
    } else {
        status = file_map_open(path, &f->map, err);
        f->data = f->map.data;
        f->size = f->map.size;
    }
    if (status == MAR_OK) status = read_any(f, err);
    if (status != MAR_OK)
        wt_close(f);
    else
        *out = f;
    return status;
}

mar_status wt_open(const char *path, wt_file **out, mar_err *err)
{
    return open_file(path, NULL, 0, out, err);
}

mar_status wt_open_memory(const void *data, size_t size, const char *label, wt_file **out, mar_err *err)
{
    return open_file(label, data ? data : "", data ? size : 0, out, err);
}

void wt_close(wt_file *f)
{
    if (!f) return;
    file_map_close(&f->map);
    free(f->tensors);
    free(f->slots);
    free(f->metadata);
    wt_pool_free(&f->pool);
    free(f);
}

/* --- looking -------------------------------------------------------------------------------------- */

const char *wt_path(const wt_file *f)
{
    return f->path;
}

const char *wt_format(const wt_file *f)
{
    return f->format;
}

int wt_count(const wt_file *f)
{
    return f->count;
}

const wt_tensor *wt_at(const wt_file *f, int i)
{
    return &f->tensors[i];
}

const wt_tensor *wt_find(const wt_file *f, const char *name)
{
    int i = f->slots[find_slot(f, name)];
    return i < 0 ? NULL : &f->tensors[i];
}

const char *wt_metadata(const wt_file *f, const char *key)
{
    for (int i = 0; i < f->n_metadata; i++)
        if (strcmp(f->metadata[i].key, key) == 0) return f->metadata[i].value;
    return NULL;
}

int wt_metadata_count(const wt_file *f)
{
    return f->n_metadata;
}

const char *wt_metadata_at(const wt_file *f, int i, const char **value)
{
    *value = f->metadata[i].value;
    return f->metadata[i].key;
}

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [WT_F64] = {"F64", 8}, [WT_F32] = {"F32", 4},   [WT_F16] = {"F16", 2}, [WT_BF16] = {"BF16", 2},
    [WT_I64] = {"I64", 8}, [WT_I32] = {"I32", 4},   [WT_I16] = {"I16", 2}, [WT_I8] = {"I8", 1},
    [WT_U8] = {"U8", 1},   [WT_BOOL] = {"BOOL", 1},
};

const char *wt_dtype_name(wt_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t wt_dtype_size(wt_dtype dtype)
{
    return dtypes[dtype].size;
}

static const char *shape_text(int rank, const int64_t *shape, char *buffer, size_t size)
{
    size_t n = (size_t)snprintf(buffer, size, "[");
    for (int i = 0; i < rank && n < size; i++)
        n += (size_t)snprintf(buffer + n, size - n, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (n < size) snprintf(buffer + n, size - n, "]");
    return buffer;
}

const char *wt_shape_text(const wt_tensor *t, char *buffer, size_t size)
{
    return shape_text(t->rank, t->shape, buffer, size);
}

mar_status wt_load_f32(const wt_file *f, const char *name, int rank, const int64_t *shape, float **out, mar_err *err)
{
    char found[128], expected[128];
    *out = NULL;
    shape_text(rank, shape, expected, sizeof expected);
    const wt_tensor *t = wt_find(f, name);
    if (!t) return err_set(err, MAR_EMODEL, "%s: tensor %s is missing, expected shape %s", f->path, name, expected);
    if (t->rank != rank || memcmp(t->shape, shape, (size_t)rank * sizeof *shape) != 0)
        return err_set(err, MAR_EMODEL, "%s: tensor %s has shape %s, expected %s", f->path, name,
                       wt_shape_text(t, found, sizeof found), expected);
    size_t bytes;
    float *values = NULL;
    if (!__builtin_mul_overflow((size_t)t->count, sizeof *values, &bytes)) values = malloc(bytes ? bytes : 1);
    if (!values) return err_set(err, MAR_ENOMEM, "%s: out of memory for tensor %s %s as f32", f->path, name, expected);
    mar_status status = wt_read_f32(f, t, values, err);
    if (status != MAR_OK)
        free(values);
    else
        *out = values;
    return status;
}
