/* The runs of a comparison: their models, sessions and images, made in turns. */
#ifndef TOOLS_FIDELITY_RUNS_H
#define TOOLS_FIDELITY_RUNS_H

#include "tools/fidelity/job.h"
#include "tools/generate/job.h"
#include "tools/store/store.h"

/* The models and sessions of all runs. Initialise with {0}. */
typedef struct {
    model_store files;                        /* owns the models */
    run_models models[FIDELITY_RUNS_MAX];     /* the models of each run, owned by files */
    mar_session *sessions[FIDELITY_RUNS_MAX]; /* NULL: not open */
    output directory;                         /* directory of --store */
    store_run stores[FIDELITY_RUNS_MAX];      /* the store of each run */
    struct {
        const char *path; /* as given; not copied */
        char id[RECORD_ID];
    } known[MODELS_FILES_MAX]; /* [known_count] identities of files already read */
    int known_count;
} fidelity_sessions;

/* Loads the models, opens a session for each run, and takes sizes and classes of f from the reference's. All runs are
 * opened before the first image, so that a wrong option is found early. Returns 0, or 1 with the error printed. */
int fidelity_open(fidelity *f, progress *bar, fidelity_sessions *open);

/* Opens the stores of f->runs[run..run+run_count-1], whose sessions are open, if --store is given. Returns 0, or 1 with
 * the error printed. */
int fidelity_open_stores(const fidelity *f, int run, int run_count, fidelity_sessions *open);

/* Allocates the buffers of a run's images, once the sizes of f are known. Returns 0, or 1 after printing that memory
 * ran out. Free it either way. */
int fidelity_allocate_run(const fidelity *f, fidelity_run *r);
/* Frees the buffers. The options stay. */
void fidelity_free_run(fidelity_run *r);

/* A range of images of some runs. */
typedef struct {
    int run, run_count; /* f->runs[run..run+run_count-1], allocated */
    int first, images;  /* images first..first+images-1; all batches are whole except the very last */
    int only_timed; /* a run whose images exist: only its turns are timed. The others are made again for their times if
                       the store has them. -1: no such run */
    const char *kept; /* as in image_plan */
} fidelity_range;

/* Makes the range in turns (images.h): tokens, samples, figures and times of f->runs. Returns the exit status, with
 * errors and interruptions printed. */
int fidelity_make_range(fidelity *f, progress *bar, const fidelity_sessions *open, const fidelity_range *range);

/* Makes the images of all runs. Returns as fidelity_make_range. */
int fidelity_make_images(fidelity *f, progress *bar, const fidelity_sessions *open);

void fidelity_close(fidelity_sessions *open);

#endif
