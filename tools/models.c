#include "tools/models.h"

#include "tools/command.h"

#include <stdio.h>
#include <string.h>

static int same_options(const mar_options *a, const mar_options *b)
{
    return a->dtype == b->dtype && a->threads == b->threads && a->backend == b->backend && a->device == b->device;
}

/* The handle for these options. NULL after printing an error. */
static mar *open_library(model_store *store, const mar_options *options)
{
    for (int i = 0; i < store->handle_count; i++)
        if (same_options(&store->handles[i].options, options)) return store->handles[i].library;
    mar *library = NULL;
    if (tool_open(options, &library) != 0) return NULL;
    store->handles[store->handle_count].options = *options;
    store->handles[store->handle_count++].library = library;
    return library;
}

/* Loads a file that is not there yet, with the bar saying so. */
static mar_status load_file(mar *library, model_file *file, int is_model, progress *bar)
{
    char note[4200]; /* a path has room */
    snprintf(note, sizeof note, "loading %s", file->path);
    if (bar) progress_note(bar, note);
    mar_status status = is_model ? mar_model_load(library, file->path, file->heads, &file->model)
                                 : mar_vae_load(library, file->path, &file->vae);
    if (bar) progress_clear(bar);
    return status;
}

/* The file, loaded now or before. NULL after printing an error. */
static const model_file *get_file(model_store *store, mar *library, const char *path, int heads, int is_model,
                                  progress *bar)
{
    for (int i = 0; i < store->file_count; i++) {
        const model_file *f = &store->files[i];
        if (f->library == library && f->heads == heads && (f->model != NULL) == is_model && strcmp(f->path, path) == 0)
            return f;
    }
    model_file *f = &store->files[store->file_count];
    *f = (model_file){.library = library, .path = path, .heads = heads};
    if (load_file(library, f, is_model, bar) != MAR_OK) {
        tool_error("%s", mar_error(library));
        return NULL;
    }
    store->file_count++;
    return f;
}

int models_load(model_store *store, run_options *o, progress *bar, run_models *out)
{
    *out = (run_models){.library = open_library(store, &o->machine)};
    if (!out->library) return 1;
    if (!o->vae && run_is_demo(o->model)) o->vae = "demo";
    const model_file *model = get_file(store, out->library, o->model, o->heads, 1, bar), *draft = NULL, *vae = NULL;
    if (!model) return 1;
    if (o->draft && !(draft = get_file(store, out->library, o->draft, 0, 1, bar))) return 1;
    if (o->vae && !(vae = get_file(store, out->library, o->vae, 0, 0, bar))) return 1;
    out->model = model->model;
    out->draft = draft ? draft->model : NULL;
    out->vae = vae ? vae->vae : NULL;
    o->params.draft = out->draft;
    return 0;
}

mar_status models_session(const run_models *models, run_options *o, int max_batch, mar_session **out)
{
    const mar_status status = mar_session_create(models->model, models->vae, &o->params, max_batch, out);
    if (status == MAR_OK) o->used = *mar_session_get_params(*out);
    return status;
}

void models_free(model_store *store)
{
    for (int i = 0; i < store->file_count; i++) {
        mar_model_free(store->files[i].model);
        mar_vae_free(store->files[i].vae);
    }
    for (int i = 0; i < store->handle_count; i++) mar_close(store->handles[i].library);
    *store = (model_store){0};
}
