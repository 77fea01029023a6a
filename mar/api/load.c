/* Opening, recognising and loading checkpoints: each is opened once, read once, and hashed on the way. */
#include "mar/api/load.h"

#include "eval/clip.h"
#include "eval/reward.h"
#include "mar/api/kinds.h"
#include "mar/core/engine.h"
#include "mar/core/sized.h"
#include "vae/vae.h"
#include "weights/shape.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Returns MAR_EARG unless exactly one of path, data, fd and file is given. */
static mar_status check_given_once(const mar_source *s, mar_err *err)
{
    static const char *const names[] = {"path", "data", "fd", "file"};
    const int given[] = {s->path != NULL, s->data != NULL, s->fd >= 0, s->file != NULL};
    int first = -1;
    for (int i = 0; i < 4; i++) {
        if (given[i] && first >= 0)
            return err_set(err, MAR_EARG, "mar_source gives %s and %s: expected one of them", names[first], names[i]);
        if (given[i]) first = i;
    }
    if (first >= 0) return MAR_OK;
    return err_set(err, MAR_EARG, "path is NULL, data is NULL and fd is %d, and there is no file: expected one of them",
                   s->fd);
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
static int load_is_known(const wt_file *f)
{
    return mar_kind_of(f) || clip_config_recognise(f) || reward_config_recognise(f);
}

/* Gives the tensors the names that this library has for them, takes Lightning's "model." off those that are known
 * without it, and adds what stands in a file beside theirs. Closes the file on failure. */
static mar_status name_tensors(wt_file **f, mar_err *err)
{
    mar_status status = family_rename(*f, err);
    if (status == MAR_OK) status = wt_take_off_model(*f, load_is_known, err);
    if (status == MAR_OK) status = vae_config_complete(*f, err);
    if (status == MAR_OK) return MAR_OK;
    wt_close(*f);
    *f = NULL;
    return status;
}

/* Opens a file that is not built in. If nothing chooses among its sets of weights, its kind does. */
static mar_status load_open_file(const mar_source *source, mar_weights weights, wt_file **out, mar_err *err)
{
    mar_status status = wt_open_source(source, weights, out, err);
    if (status == MAR_OK) status = name_tensors(out, err);
    if (status != MAR_OK || weights || wt_other_weights(*out) != MAR_WEIGHTS_EMA) return status;
    const wt_kind *kind = mar_kind_of(*out);
    if (!kind || !kind->takes_ema) return MAR_OK;
    wt_close(*out);
    status = wt_open_source(source, MAR_WEIGHTS_EMA, out, err);
    return status == MAR_OK ? name_tensors(out, err) : status;
}

mar_status mar_open_folder(const char *path, mar_weights weights, wt_file **out, mar_err *err)
{
    const mar_status status = wt_open_folder(path, weights, out, err);
    return status == MAR_OK ? name_tensors(out, err) : status;
}

mar_status mar_open_source(const mar_source *source, int is_vae, mar_weights weights, wt_file **out, mar_err *err)
{
    struct stat st;
    const char *path = source->path;
    if (source->file) return wt_view(source->file->f, out, err);
    if (!path) return load_open_file(source, weights, out, err);
    const wt_demo *demo = is_vae ? wt_demo_vae(path) : wt_demo_mar(path);
    if (!demo) demo = is_vae ? wt_demo_mar(path) : wt_demo_vae(path); /* opened for the message about its kind */
    if (demo) {
        const mar_status status = wt_open_demo(demo, out, err);
        return status == MAR_OK ? name_tensors(out, err) : status;
    }
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return wt_is_folder(path) ? mar_open_folder(path, weights, out, err) : refuse_directory(path, err);
    return load_open_file(source, weights, out, err);
}

mar_status mar_open_checkpoint(const char *path, int is_vae, mar_weights weights, wt_file **out, mar_err *err)
{
    return mar_open_source(&(mar_source){.path = path, .fd = -1}, is_vae, weights, out, err);
}

/* --- open files --------------------------------------------------------------------------------------------------- */

mar_status mar_file_open(const char *path, mar_weights weights, mar_file **out)
{
    mar_err err = {0};
    mar_status status = mar_check_given(out, "out", &err);
    if (status == MAR_OK) *out = NULL;
    if (status == MAR_OK) status = mar_check_given(path, "path", &err);
    if (status == MAR_OK && ((int)weights < MAR_WEIGHTS_AUTO || (int)weights > MAR_WEIGHTS_MODEL))
        status = err_set(&err, MAR_EARG, "weights is %d: expected auto, ema or model, which are 0 to 2", (int)weights);
    mar_file *f = status == MAR_OK ? calloc(1, sizeof *f) : NULL;
    if (status == MAR_OK && !f) status = err_set(&err, MAR_ENOMEM, "%s: out of memory", path);
    if (status == MAR_OK) status = wt_demo_folder(path, f->folder, &err);
    if (status == MAR_OK) status = mar_open_checkpoint(path, 0, weights, &f->f, &err);
    if (status != MAR_OK) {
        free(f);
        return mar_result(NULL, status, &err);
    }
    if (!*f->folder) snprintf(f->folder, sizeof f->folder, "%s", path);
    const wt_kind *kind = mar_kind_of(f->f);
    f->info = (mar_file_info){.size = sizeof f->info, .kind = kind ? kind->kind : MAR_KIND_UNKNOWN};
    f->info.folder = wt_is_folder(f->folder);
    f->info.prompts = kind && kind->has_prompts;
    if (mar_has_low(f->f, WT_I8)) f->info.stored = MAR_DTYPE_INT8;
    if (mar_has_low(f->f, WT_I4)) f->info.stored = MAR_DTYPE_INT4;
    f->references = 1;
    *out = f;
    return MAR_OK;
}

void mar_file_retain(const mar_file *f)
{
    atomic_fetch_add(&((mar_file *)(uintptr_t)f)->references, 1);
}

void mar_file_close(mar_file *f)
{
    if (!f || atomic_fetch_sub(&f->references, 1) > 1) return;
    wt_close(f->f);
    free(f);
}

const mar_file_info *mar_file_get_info(const mar_file *f)
{
    return f ? &f->info : NULL;
}

wt_asked mar_asked(const mar *m, int heads)
{
    return (wt_asked){heads, m->seq_len, m->patch_size, m->image_width, m->image_height};
}

/* Derives the facts of a model's file, which the caller frees (free_facts). Returns MAR_EMODEL for another kind. */
static mar_status derive_facts(const mar *m, const wt_file *f, int heads, family_facts **out, mar_err *err)
{
    *out = NULL;
    mar_status status = mar_check_kind(f, WT_KINDS_OF_MODELS, "a MAR, SphereAR or LlamaGen model", err);
    if (status == MAR_OK) status = mar_check_heads(f, heads, err);
    if (status != MAR_OK) return status;
    const wt_asked asked = mar_asked(m, heads);
    *out = calloc(1, sizeof **out);
    if (!*out) return err_set(err, MAR_ENOMEM, "%s: out of memory", wt_path(f));
    return mar_kind_of(f)->derive(f, &asked, *out, err);
}

static void free_facts(const wt_file *f, family_facts *facts)
{
    if (facts && mar_kind_of(f)->release) mar_kind_of(f)->release(facts);
    free(facts);
}

mar_status mar_file_get_model(mar *m, const mar_file *f, int heads, mar_model_config *out)
{
    mar_err err = {0};
    family_facts *facts = NULL;
    mar_status status = mar_check_handle(m, &err);
    if (status == MAR_OK) status = mar_check_given(f, "file", &err);
    if (status == MAR_OK) status = mar_sized_check(out, sizeof *out, "mar_model_config", &err);
    if (status == MAR_OK) status = derive_facts(m, f->f, heads, &facts, &err);
    if (facts) facts->config.warning = NULL; /* the facts are freed */
    if (status == MAR_OK) mar_sized_write(out, &facts->config, sizeof *out);
    if (facts) free_facts(f->f, facts);
    return mar_result(m, status, &err);
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

/* Calls the host outside the queue's bindings, so that it may use the handle. */
static int load_report(void *user, uint64_t done, uint64_t total)
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
    *l = (mar_loader){.file = file, .source = source, .progress = {.report = load_report, .user = l}};
    mar_status status = m->device->core->queue_create(m->device, &l->k, err);
    if (status != MAR_OK) return status;
    l->k->core->bind(l->k);
    status = wt_digest_begin(file, err);
    if (status == MAR_OK && source->progress) status = wt_progress_begin(file, &l->progress, err);
    if (status != MAR_OK) free_queue(l);
    return status;
}

mar_status mar_loader_end(mar_loader *l, mar_status status, mar_err *err)
{
    l->k->core->finish(l->k);
    if (status == MAR_OK) status = kern_check(l->k, err);
    if (status == MAR_OK) status = wt_digest_end(l->file, &l->hash, err);
    status = wt_check_unchanged(l->file, status, err);
    if (status == MAR_OK) status = wt_progress_end(l->file, err);
    free_queue(l);
    return status;
}

/* --- models ------------------------------------------------------------------------------------------------------- */

const mar_engine *const *mar_engines(void)
{
    extern const mar_engine mar_masked_engine, mar_raster_vectors_engine, mar_raster_ids_engine;
    static const mar_engine *const list[] = {&mar_masked_engine, &mar_raster_vectors_engine, &mar_raster_ids_engine,
                                             NULL};
    return list;
}

static const mar_engine *engine_of(const mar_model_config *c)
{
    extern const mar_engine mar_eagle_engine;
    const char *tokens = c->head == MAR_HEAD_SOFTMAX ? "discrete" : "continuous";
    const mar_engine *const *e = mar_engines();
    if (c->conditioning == MAR_CONDITION_NONE) return &mar_eagle_engine;
    while ((*e)->order != c->order || strcmp((*e)->tokens, tokens) != 0) e++;
    return *e;
}

/* Loads the model on a queue of its own. Once that queue has finished, all queues can use the model. */
static mar_status load_model_file(mar *m, wt_file *file, const mar_source *source, const family_facts *facts,
                                  mar_model **out, mar_err *err)
{
    mar_loader l;
    const mar_engine *engine = engine_of(&facts->config);
    mar_status status = mar_loader_begin(&l, m, file, source, err);
    if (status != MAR_OK) return status;
    /* Prompts read rows of the embedding later. They are part of the hash. */
    if (facts->language.family) status = wt_digest_tensor(file, language_embedding(file), err);
    if (status == MAR_OK) status = engine->load(m, l.k, file, facts, out, err);
    const int loaded = status == MAR_OK;
    status = mar_loader_end(&l, status, err);
    if (loaded && status != MAR_OK) {
        engine->unload(*out);
        *out = NULL;
    }
    if (status != MAR_OK) return status;
    (*out)->engine = engine;
    (*out)->config.hash = l.hash;
    (*out)->config.int8_weights = mar_has_low(file, WT_I8);
    (*out)->references = 1;
    mar_retain(m);
    return MAR_OK;
}

/* Derives the file's facts, and loads it. */
static mar_status derive_and_load(mar *m, wt_file *file, const mar_source *source, mar_model **out, mar_err *err)
{
    family_facts *facts;
    mar_status status = derive_facts(m, file, source->heads, &facts, err);
    if (status == MAR_OK && source->encoder)
        status =
            err_set(err, MAR_EARG, "mar_source.encoder is 1: %s is a model, expected an image decoder", wt_path(file));
    if (status == MAR_OK && facts->config.heads_guessed) status = mar_refuse_heads(file, facts->config.width, err);
    if (status == MAR_OK) status = load_model_file(m, file, source, facts, out, err);
    if (facts) free_facts(file, facts);
    return status;
}

static void log_loaded(const mar *m, const mar_model *model, const wt_file *file, double seconds)
{
    char how[ERR_TEXT_MAX], weights[160];
    mar_weights_text(file, weights, sizeof weights);
    model->engine->describe(model, how, sizeof how);
    mar_log(m, MAR_LOG_INFO, "model %s: %ld parameters%s, loaded in %.3g s; %s%s", wt_path(file),
            model->config.parameters, weights, seconds, how,
            model->config.int8_weights && !m->device->int8
                ? "; its int8 weights are restored, where --dtype int8 would multiply them as they are"
            : mar_has_low(file, WT_I4) && !m->device->int4
                ? "; its int4 weights are restored, where --dtype int4 would multiply them as they are"
                : "");
    if (model->config.warning) mar_log(m, MAR_LOG_WARNING, "model %s: %s", wt_path(file), model->config.warning);
}

mar_status mar_model_load_from(mar *m, const mar_source *source, mar_model **out)
{
    const double start = mar_now();
    mar_err err = {0};
    mar_source s;
    wt_file *file = NULL;
    if (out) *out = NULL;
    mar_status status = mar_check_source(m, source, out, &s, &err);
    if (status == MAR_OK) status = mar_open_source(&s, 0, m->weights, &file, &err);
    if (status == MAR_OK) {
        wt_allow_nonfinite(file, m->allow_nonfinite);
        status = derive_and_load(m, file, &s, out, &err);
        if (status == MAR_OK) log_loaded(m, *out, file, mar_now() - start);
        if (status == MAR_OK && (*out)->config.conditioning == MAR_CONDITION_IDS) {
            (*out)->file = file;
            if (((*out)->opened = s.file) != NULL) mar_file_retain(s.file);
            status = wt_outlive_source(file, language_embedding(file)->name, &err);
            if (status != MAR_OK) mar_model_free(*out);
            if (status != MAR_OK) *out = NULL;
        } else {
            wt_close(file);
        }
    }
    return mar_result(m, status, &err);
}

mar_status mar_model_load(mar *m, const char *path, int heads, mar_model **out)
{
    mar_source source;
    mar_source_init(&source, sizeof source);
    source.path = path;
    source.heads = heads;
    return mar_model_load_from(m, &source, out);
}

void mar_model_free(mar_model *model)
{
    if (!model || mar_in_forked_child(model->m) || atomic_fetch_sub(&model->references, 1) > 1) return;
    mar *m = model->m;
    wt_file *file = model->file;
    const mar_file *opened = model->opened;
    model->engine->unload(model);
    wt_close(file);
    mar_file_close((mar_file *)(uintptr_t)opened);
    mar_release(m);
}

const mar_model_config *mar_model_get_config(const mar_model *model)
{
    return model ? &model->config : NULL;
}
