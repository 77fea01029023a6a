/* The model files of a command's runs. Each is loaded once, whatever the number of runs. */
#ifndef TOOLS_MODELS_H
#define TOOLS_MODELS_H

#include "mar.h"
#include "mar_files.h"
#include "tools/generate/captions.h"
#include "tools/generate/classes.h"
#include "tools/generate/prompt_encoder.h"
#include "tools/cli/progress.h"
#include "tools/cli/run_options.h"

enum {
    MODELS_RUNS_MAX = 32,
    MODELS_HANDLES_MAX = 2 * MODELS_RUNS_MAX,
    MODELS_FILES_MAX = 3 * MODELS_RUNS_MAX /* model, draft and image decoder of each run */
};

/* The identity of a model file, beside its name: a hash of what was loaded (mar_model_config.hash). "" for a built-in
 * or unused one. */
enum { RECORD_ID = 48 };
typedef struct {
    char model[RECORD_ID], vae[RECORD_ID], draft[RECORD_ID], captions[RECORD_ID];
} record_ids;

/* The models of one run, owned by the store. */
typedef struct {
    mar *library;
    mar_model *model;
    mar_model *draft;         /* NULL: none */
    mar_vae *vae;             /* NULL: none */
    const captions *captions; /* captions of a text-to-image model; NULL: it has classes, or prompts to come */
    const captions *negative; /* set with the second context of guidance; NULL: the model needs none */
    class_choices classes;    /* classes and their names, or captions */
    record_ids ids;           /* identities of the files; record_identify sets them */
} run_models;

/* Whether image decoders are loaded with their encoders. */
typedef enum { MODELS_NO_ENCODER = 0, MODELS_ENCODER, MODELS_ENCODER_IF_THERE } models_encoder;

/* A loaded file: model or image decoder. */
typedef struct {
    const mar *library; /* the handle it was loaded with */
    const char *path;   /* as given; not copied */
    int heads;          /* as in mar_model_load */
    mar_model *model;   /* NULL: an image decoder */
    mar_vae *vae;       /* NULL: a model */
} model_file;

/* Initialise with {0}. */
typedef struct {
    struct {
        mar_options options;       /* as given */
        mar *library;              /* handle opened with them */
    } handles[MODELS_HANDLES_MAX]; /* one for each set of library options; a run may need two (learn_tokens) */
    int handle_count;              /* handles in use */
    model_file files[MODELS_FILES_MAX];
    int file_count; /* files in use */
    struct {
        const char *path; /* as given; not copied */
        mar_weights weights;
        mar_file *file;
    } open[MODELS_FILES_MAX]; /* files that were opened, once for all that is loaded from them */
    int open_count;           /* in use */
    struct {
        char *key;          /* options that name the prompts, or the file */
        const mar *library; /* the handle that encoded the prompts; NULL: a file's */
        captions captions;
        prompts prompts;         /* texts that the captions point into */
    } texts[MODELS_RUNS_MAX];    /* one for each file, or set of prompts and arithmetic, and shape */
    int text_count;              /* texts in use */
    int keeps_encoder;           /* 1: a T5 is loaded for prompts to come; set before the first models_load */
    prompt_encoder encoder_kept; /* with keeps_encoder, if the model takes captions */
    captions negative_kept;      /* with it: the second context of guidance alone */
    struct {
        const char *path; /* as given; not copied */
        class_table table;
    } names[MODELS_RUNS_MAX]; /* one for each file of --class_names */
    int name_count;           /* names in use */
    int needs_all;            /* 1: a bad prompt is an error; set before the first models_load */
    int needs_vae;            /* 1: a run without image decoder is an error; set before the first models_load */
    models_encoder encoder;   /* of the image decoders; set before the first models_load */
    int quiet;                /* 1: no warnings; set before the first models_load */
    int warned;               /* 1: models_load has reported fewer threads than requested */
    char warning[512];        /* the library's last one about a model */
} model_store;

/* Opens the library for a run and loads the files that the store lacks. A demo model brings its image decoder. Encodes
 * the run's prompts first, and frees the T5 before it loads a model. Sets o->t5 and
 * o->vae, which can be the model's own file, o->params.draft, o->machine.dtype if it is auto and a decoder's weights
 * are stored in int8 or int4, and the options of o->fast, printed once on stderr. Prints there if fewer threads than
 * requested are used. `bar` may be NULL. Serves MODELS_RUNS_MAX runs. Returns 0, or 1 with the error printed. */
int models_load(model_store *store, run_options *o, progress *bar, run_models *out);
/* Loads the files of such a run, which `first` has, with o->machine again: on another GPU. The captions are those of
 * `first`. Returns 0, or 1 with the error printed. */
int models_load_again(model_store *store, const run_options *o, const run_models *first, progress *bar,
                      run_models *out);
/* Opens the library alone, as models_load does, for networks without a head. The store owns it. `dtype`: the option
 * that options->dtype is from, for errors. An open handle with the same options, resolved, is reused, whatever the
 * arithmetic of its heads. Returns NULL with the error printed. */
mar *models_open(model_store *store, const mar_options *options, const char *dtype);
/* Writes class_name of a label of the run; captions and -1 have none. */
const char *models_class_name(const run_models *models, int label, char *text, size_t size);
/* Returns the exit status of a command: `status`, or 1 for success with prompts that were left out. */
int models_status(const model_store *store, int status);
/* Returns 1 with the error printed if `classes`, the value of --class or NULL, is given beside prompts. */
int models_refuse_classes(const run_options *o, const char *classes);
/* Gives a session the second context of guidance if the model needs one. Returns 0, or 1 with the error printed. */
int models_set_negative(const run_models *models, mar_session *s);
/* Calls mar_session_create, models_set_negative, and sets o->used. Later sessions have the times of --window auto that
 * the first one has measured. Returns 0, or 1 with the error printed. */
int models_session(const run_models *models, run_options *o, int max_batch, mar_session **out);
/* Frees everything loaded. Free the sessions first. */
void models_free(model_store *store);

#endif
