/* Opening a checkpoint: recognises the format and lets its reader fill the table of tensors. */
#include "weights/reader.h"
#include "weights/start.h"
#include "weights/table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mar_status refuse_unknown(const wt_file *f, mar_err *err)
{
    char start[sizeof f->start + 1];
    if (f->n_start >= 4 && memcmp(f->start, "GGUF", 4) == 0)
        return err_set(err, MAR_EFORMAT, "%s: is a GGUF file, expected safetensors or a file of torch.save", f->path);
    if (f->n_start == sizeof f->start && memcmp(f->start, "version https://git-lfs", 23) == 0)
        return err_set(err, MAR_EFORMAT, "%s: is a Git LFS pointer of %llu bytes, expected the file: run git lfs pull",
                       f->path, (unsigned long long)f->source.size);
    return err_set(err, MAR_EFORMAT,
                   "%s: %llu bytes that begin with \"%s\", expected safetensors or a file of torch.save", f->path,
                   (unsigned long long)f->source.size, wt_start_text(f->start, f->n_start, start));
}

static mar_status read_any(wt_file *f, mar_err *err)
{
    f->n_start = f->source.size < sizeof f->start ? (size_t)f->source.size : sizeof f->start;
    const mar_status status = file_source_read(&f->source, 0, f->n_start, f->start, err);
    if (status != MAR_OK) return status;
    if (wt_pytorch_recognise(f)) return wt_pytorch_read(f, err);
    if (wt_safetensors_recognise(f)) return wt_safetensors_read(f, err);
    return refuse_unknown(f, err);
}

/* Opens the source's bytes, under the label f->path. */
static mar_status open_bytes(wt_file *f, const mar_source *source, mar_err *err)
{
    if (source->path) return file_source_open(f->path, &f->source, err);
    if (!source->data) return file_source_of_fd(source->fd, f->path, &f->source, err);
    f->source = file_source_of_memory(source->data, source->bytes, f->path);
    return MAR_OK;
}

wt_file *wt_file_new(const char *path, mar_weights which)
{
    wt_file *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->source.fd = -1;
    f->pool.limit = SIZE_MAX;
    f->seed = wt_hash_random();
    f->weights = which;
    f->path = f->place = wt_pool_text(&f->pool, path, strlen(path));
    if (f->path && wt_table_grow(f)) return f;
    wt_close(f);
    return NULL;
}

mar_status wt_open_source(const mar_source *source, mar_weights which, wt_file **out, mar_err *err)
{
    char label[32] = "memory";
    if (!source->data) snprintf(label, sizeof label, "fd %d", source->fd);
    const char *path = source->path ? source->path : source->name ? source->name : label;
    *out = NULL;
    wt_file *f = wt_file_new(path, which);
    if (!f) return err_set(err, MAR_ENOMEM, "%s: out of memory", path);
    mar_status status = open_bytes(f, source, err);
    if (status == MAR_OK) status = read_any(f, err);
    if (status == MAR_OK) wt_find_int4(f);
    if (status != MAR_OK) status = wt_check_unchanged(f, status, err); /* a change of the file may explain the error */
    if (status != MAR_OK)
        wt_close(f);
    else
        *out = f;
    return status;
}

mar_status wt_open(const char *path, wt_file **out, mar_err *err)
{
    return wt_open_source(&(mar_source){.path = path, .fd = -1}, MAR_WEIGHTS_AUTO, out, err);
}

mar_status wt_open_memory(const void *data, size_t size, const char *label, wt_file **out, mar_err *err)
{
    const mar_source source = {.data = data ? data : "", .bytes = data ? size : 0, .fd = -1, .name = label};
    return wt_open_source(&source, MAR_WEIGHTS_AUTO, out, err);
}

mar_status wt_view(const wt_file *f, wt_file **out, mar_err *err)
{
    wt_file *v = malloc(sizeof *v);
    *out = NULL;
    if (!v) return err_set(err, MAR_ENOMEM, "%s: out of memory", f->path);
    *v = *f;
    v->whole = f;
    v->pool = (wt_pool){.limit = SIZE_MAX};
    v->progress = NULL;
    v->digests = NULL;
    v->tensors = malloc((size_t)f->capacity * sizeof *f->tensors);
    v->slots = malloc(f->n_slots * sizeof *f->slots);
    if (!v->tensors || !v->slots) {
        wt_close(v);
        return err_set(err, MAR_ENOMEM, "%s: out of memory for the tensor table", f->path);
    }
    memcpy(v->tensors, f->tensors, (size_t)f->count * sizeof *f->tensors);
    memcpy(v->slots, f->slots, f->n_slots * sizeof *f->slots);
    *out = v;
    return MAR_OK;
}

/* Frees what a view has of its own, or the rest of a file. */
static void free_table(wt_file *f)
{
    free(f->tensors);
    free(f->slots);
    free(f->digests);
    wt_pool_free(&f->pool);
    free(f);
}

void wt_close(wt_file *f)
{
    if (!f) return;
    if (f->whole) {
        free_table(f);
        return;
    }
    for (int i = 0; i < f->n_parts; i++) wt_close(f->parts[i]);
    free(f->parts);
    json_free(&f->config);
    free(f->config_text);
    file_source_close(&f->source);
    free(f->metadata);
    free_table(f);
}

/* Gives a tensor a copy of its bytes. */
static mar_status copy_tensor(wt_file *f, wt_tensor *t, mar_err *err)
{
    if (t->copy) return MAR_OK;
    void *copy = wt_pool_alloc(&f->pool, wt_bytes_of(t));
    if (!copy) return err_set(err, MAR_ENOMEM, "%s: out of memory for tensor %s", f->path, t->name);
    const mar_status status = wt_read_bytes(f, t, 0, wt_bytes_of(t), copy, err);
    if (status == MAR_OK) t->copy = copy;
    return status;
}

mar_status wt_outlive_source(wt_file *f, const char *tensor, mar_err *err)
{
    const wt_tensor *t = wt_find(f, tensor), *scale = t && wt_is_fp8(t->dtype) ? wt_scale_of(f, t) : NULL;
    mar_status status = MAR_OK;
    if (f->source.fd >= 0 && f->source.borrowed) {
        const int fd = fcntl(f->source.fd, F_DUPFD_CLOEXEC, 0);
        if (fd < 0) return err_set(err, MAR_EIO, "%s: cannot duplicate the descriptor: %s", f->path, strerror(errno));
        f->source.fd = fd;
        f->source.borrowed = 0;
    }
    if (!f->source.memory) return MAR_OK;
    if (t) status = copy_tensor(f, &f->tensors[t - f->tensors], err);
    return status == MAR_OK && scale ? copy_tensor(f, &f->tensors[scale - f->tensors], err) : status;
}

void wt_set_label(wt_file *f, const char *label)
{
    f->path = f->source.path = label;
}

void wt_allow_nonfinite(wt_file *f, int allow)
{
    f->allow_nonfinite = allow;
}

mar_status wt_check_unchanged(const wt_file *f, mar_status status, mar_err *err)
{
    if (status == MAR_ECANCELLED) return status;
    mar_status changed = file_source_check(&f->source, err);
    for (int i = 0; i < f->n_parts && changed == MAR_OK; i++) changed = file_source_check(&f->parts[i]->source, err);
    return changed != MAR_OK ? changed : status;
}
