/* Opening a checkpoint: the reader of its format fills the table of tensors. */
#include "weights/reader.h"
#include "weights/table.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Shows how the file begins: the usual reason is a web page or a Git LFS pointer in place of a checkpoint. */
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
    if (!f->path || !wt_table_grow(f)) {
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

mar_status wt_load_f32(const wt_file *f, const char *name, int rank, const int64_t *shape, float **out, mar_err *err)
{
    char found[128], expected[128];
    *out = NULL;
    wt_format_shape(rank, shape, expected, sizeof expected);
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
