#include "mar/api/source.h"

#include "eval/clip.h"
#include "eval/reward.h"
#include "mar/api/kinds.h"
#include "mar/core/sized.h"
#include "weights/shape.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* --- arguments ---------------------------------------------------------------------------------------------------- */

void mar_source_init(mar_source *source, size_t size)
{
    mar_sized_init(source, size, &(const mar_source){.fd = -1}, sizeof *source);
}

mar_status mar_check_load(const mar *m, const char *path, const void *out, mar_err *err)
{
    mar_status status = mar_check_handle(m, err);
    if (status == MAR_OK) status = mar_check_given(path, "path", err);
    return status == MAR_OK ? mar_check_given(out, "out", err) : status;
}

/* Returns MAR_EARG unless exactly one of path, data and fd is given. */
static mar_status check_given_once(const mar_source *s, mar_err *err)
{
    static const char *const more[] = {
        [3] = "path and data", [5] = "path and fd", [6] = "data and fd", [7] = "path, data and fd"};
    const int given = (s->path != NULL) | (s->data != NULL) << 1 | (s->fd >= 0) << 2;
    if (!given)
        return err_set(err, MAR_EARG, "path is NULL, data is NULL and fd is %d: expected one of the three", s->fd);
    if (more[given]) return err_set(err, MAR_EARG, "mar_source gives %s: expected one of them", more[given]);
    return MAR_OK;
}

mar_status mar_check_source(const mar *m, const mar_source *source, const void *out, mar_source *copy, mar_err *err)
{
    mar_status status = mar_check_handle(m, err);
    if (status == MAR_OK) status = mar_check_given(source, "source", err);
    if (status != MAR_OK) return status;
    mar_source_init(copy, sizeof *copy);
    status = mar_sized_read(source, copy, sizeof *copy, "mar_source", err);
    if (status == MAR_OK) status = check_given_once(copy, err);
    if (status == MAR_OK && copy->bytes > PTRDIFF_MAX)
        status = err_set(err, MAR_EARG, "mar_source.bytes is %zu: expected the size of the data", copy->bytes);
    if (status == MAR_OK && copy->encoder != 0 && copy->encoder != 1)
        status = err_set(err, MAR_EARG, "mar_source.encoder is %d: expected 0 or 1", copy->encoder);
    return status == MAR_OK ? mar_check_given(out, "out", err) : status;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

/* Returns whether the name ends like a checkpoint's. */
static int has_ending(const char *name)
{
    static const char *const endings[] = {".safetensors", ".pth", ".pt", ".ckpt", ".bin"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++)
        if (strcmp(dot, endings[i]) == 0) return 1;
    return 0;
}

/* Returns MAR_EIO for a directory that wt_open_folder does not take, naming the first checkpoint in it. */
static mar_status refuse_directory(const char *path, mar_err *err)
{
    char name[256] = "";
    int count = 0;
    DIR *d = opendir(path);
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.' || !has_ending(e->d_name)) continue;
        if (count++ == 0 || strcmp(e->d_name, name) < 0) snprintf(name, sizeof name, "%s", e->d_name);
    }
    if (d) closedir(d);
    const char *slash = path[strlen(path) - 1] == '/' ? "" : "/";
    if (count == 0)
        return err_set(err, MAR_EIO, "%s: is a directory, expected a file: .safetensors, .pth, .pt or .ckpt", path);
    return err_set(err, MAR_EIO, "%s: is a directory: give %s%s%s%s", path,
                   count > 1 ? "one of its checkpoints, such as " : "", path, slash, name);
}

/* Returns whether the names are those of a file that this library knows. */
static int is_known(const wt_file *f)
{
    return mar_kind_of(f) || clip_config_recognise(f) || reward_config_recognise(f);
}

/* Takes Lightning's "model." off names that are known without it. Closes the file on failure. */
static mar_status name_tensors(wt_file **f, mar_err *err)
{
    const mar_status status = wt_take_off_model(*f, is_known, err);
    if (status == MAR_OK) return MAR_OK;
    wt_close(*f);
    *f = NULL;
    return status;
}

/* Opens a file that is not built in. If nothing chooses among its sets of weights, its kind does. */
static mar_status open_file(const mar_source *source, mar_weights weights, wt_file **out, mar_err *err)
{
    mar_status status = wt_open_source(source, weights, out, err);
    if (status == MAR_OK) status = name_tensors(out, err);
    if (status != MAR_OK || weights || wt_other_weights(*out) != MAR_WEIGHTS_EMA) return status;
    const mar_file_kind *kind = mar_kind_of(*out);
    if (!kind || !kind->takes_ema) return MAR_OK;
    wt_close(*out);
    status = wt_open_source(source, MAR_WEIGHTS_EMA, out, err);
    return status == MAR_OK ? name_tensors(out, err) : status;
}

mar_status mar_open_folder(const char *path, mar_weights weights, wt_file **out, mar_err *err)
{
    mar_status status = wt_open_folder(path, weights, out, err);
    if (status != MAR_OK) return status;
    status = text_grammar_rename(*out, err);
    if (status == MAR_OK) return name_tensors(out, err);
    wt_close(*out);
    *out = NULL;
    return status;
}

mar_status mar_open_source(const mar_source *source, int is_vae, mar_weights weights, wt_file **out, mar_err *err)
{
    struct stat st;
    const char *path = source->path;
    if (!path) return open_file(source, weights, out, err);
    const wt_demo *demo = is_vae ? wt_demo_vae(path) : wt_demo_mar(path);
    if (!demo) demo = is_vae ? wt_demo_mar(path) : wt_demo_vae(path); /* opened for the message about its kind */
    if (demo) return wt_open_demo(demo, out, err);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return wt_is_folder(path) ? mar_open_folder(path, weights, out, err) : refuse_directory(path, err);
    return open_file(source, weights, out, err);
}

mar_status mar_open_checkpoint(const char *path, int is_vae, mar_weights weights, wt_file **out, mar_err *err)
{
    return mar_open_source(&(mar_source){.path = path, .fd = -1}, is_vae, weights, out, err);
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

/* Calls the host outside the queue's bindings, so that it may use the handle. */
static int report(void *user, uint64_t done, uint64_t total)
{
    const mar_loader *l = user;
    l->k->core->unbind(l->k);
    const int cancel = l->source->progress(l->source->user, done, total);
    l->k->core->bind(l->k);
    return cancel;
}

/* Unbinds and frees the queue. */
static void free_queue(mar_loader *l)
{
    l->k->core->unbind(l->k);
    l->k->core->queue_free(l->k);
}

mar_status mar_loader_begin(mar_loader *l, mar *m, wt_file *file, const mar_source *source, mar_err *err)
{
    *l = (mar_loader){.file = file, .source = source, .progress = {.report = report, .user = l}};
    mar_status status = m->device->core->queue_create(m->device, &l->k, err);
    if (status != MAR_OK) return status;
    l->k->core->bind(l->k);
    if (source->progress) status = wt_progress_begin(file, &l->progress, err);
    if (status != MAR_OK) free_queue(l);
    return status;
}

mar_status mar_loader_end(mar_loader *l, mar_status status, mar_err *err)
{
    l->k->core->finish(l->k);
    if (status == MAR_OK) status = kern_check(l->k, err);
    status = wt_check_unchanged(l->file, status, err);
    if (status == MAR_OK) status = wt_progress_end(l->file, err);
    free_queue(l);
    return status;
}
