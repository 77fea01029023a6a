/* The model files of a command's runs. Each is loaded once, however many runs use it. */
#ifndef TOOLS_MODELS_H
#define TOOLS_MODELS_H

#include "mar.h"
#include "tools/generate/captions.h"
#include "tools/cli/progress.h"
#include "tools/cli/run_options.h"

enum {
    MODELS_RUNS_MAX = 32,
    MODELS_FILES_MAX = 3 * MODELS_RUNS_MAX /* model, draft and image decoder of each run */
};

/* The models of one run. The store owns them. */
typedef struct {
    mar *library;
    mar_model *model;
    mar_model *draft;         /* NULL: none */
    mar_vae *vae;             /* NULL: none */
    const captions *captions; /* of a text-to-image model; NULL: it has classes */
    int class_count;          /* classes, or captions */
} run_models;

/* A loaded file: a model or an image decoder. */
typedef struct {
    const mar *library; /* what it was loaded with */
    const char *path;   /* as given; not copied */
    int heads;          /* as asked for, see mar_model_load */
    mar_model *model;   /* NULL: it is an image decoder */
    mar_vae *vae;       /* NULL: it is a model */
} model_file;

/* Initialise with {0}. */
typedef struct {
    struct {
        mar_options options;        /* as asked for */
        mar *library;               /* opened with them */
    } handles[2 * MODELS_RUNS_MAX]; /* one for each set of library options; a run may need two: learn_tokens */
    int handle_count;               /* of handles in use */
    model_file files[MODELS_FILES_MAX];
    int file_count; /* of files in use */
    struct {
        const char *path; /* as given; not copied */
        captions captions;
    } texts[MODELS_RUNS_MAX]; /* one for each file and shape */
    int text_count;           /* of texts in use */
    int quiet;                /* 1: no warnings. Set it before the first models_load */
    int warned;               /* models_load has said that there are fewer threads than asked for */
} model_store;

/* Opens the library for a run. Loads the files that the store does not have yet. A demo model brings its image
 * decoder. Sets o->vae and o->params.draft, and what o->fast stands for, which it says on stderr once. `bar` may be
 * NULL. Serves MODELS_RUNS_MAX runs. Says on stderr if it uses fewer threads than asked for. Returns 0, or 1 with the
 * error printed. */
int models_load(model_store *store, run_options *o, progress *bar, run_models *out);
/* Opens the library alone, as models_load does, for networks without a head; the store owns it. `dtype`: the option
 * that options->dtype is from, for errors. A handle that is there serves if it is the same, by what auto has become,
 * too, whatever the arithmetic of its heads. NULL after printing an error. */
mar *models_open(model_store *store, const mar_options *options, const char *dtype);
/* class_name of a label of the run; captions have none. */
const char *models_class_name(const run_models *models, int label, char *text, size_t size);
/* Whether models_load has nothing to load for the run. */
int models_have(const model_store *store, const run_options *o);
/* Prints that the run has no image decoder, or that its model is one or cannot be read. Returns 1. */
int models_lack_vae(const run_options *o);
/* mar_session_create. Sets o->used. Returns 0, or 1 with the error printed. */
int models_session(const run_models *models, run_options *o, int max_batch, mar_session **out);
/* Frees all that was loaded; free the sessions first. */
void models_free(model_store *store);

#endif
