/* The runs of a comparison: their models and sessions, and their images, made in turns. */
#ifndef TOOLS_FIDELITY_RUNS_H
#define TOOLS_FIDELITY_RUNS_H

#include "tools/fidelity/job.h"
#include "tools/generate/job.h"
#include "tools/store/store.h"

/* The models and sessions of all runs. Initialise with {0}. */
typedef struct {
    model_store files;                        /* owns the models */
    run_models models[FIDELITY_RUNS_MAX];     /* in it */
    mar_session *sessions[FIDELITY_RUNS_MAX]; /* NULL: not open */
    output directory;                         /* --store */
    store_run stores[FIDELITY_RUNS_MAX];      /* the runs' parts of it */
    struct {
        const char *path; /* as given; not copied */
        char id[RECORD_ID];
    } known[MODELS_FILES_MAX]; /* [known_count] files that were read, to know them again */
    int known_count;
} fidelity_sessions;

/* Loads the models, opens a session for each run and takes sizes and classes of f from the reference's. All runs are
 * opened before the first image, so a wrong option is found early. Returns 0, or 1 after printing an error. */
int fidelity_open(fidelity *f, progress *bar, fidelity_sessions *open);

/* Opens the stores of f->runs[run..run+run_count-1], whose sessions are open, if there is --store. Returns the same. */
int fidelity_open_stores(const fidelity *f, int run, int run_count, fidelity_sessions *open);

/* Allocates what the images of a run need, after the sizes of f are known. Returns 0, or 1 after printing that memory
 * ran out; free it either way. */
int fidelity_allocate_run(const fidelity *f, fidelity_run *r);
/* Frees it. The options stay. */
void fidelity_free_run(fidelity_run *r);

/* Some images of some runs. */
typedef struct {
    int run, run_count; /* f->runs[run..run+run_count-1], which are allocated */
    int first, images;  /* images first..first+images-1, whole batches but for the last of all */
    int only_timed;     /* this run's images are there already: only its turns are timed, and the others are made for
                           their times, too, if they are in the store; -1: none's */
    const char *kept;   /* as in image_plan */
} fidelity_range;

/* Makes them in turns (images.h): tokens, samples, figures and times of f->runs. Returns the exit status; errors and
 * interruptions are printed. */
int fidelity_make_range(fidelity *f, progress *bar, const fidelity_sessions *open, const fidelity_range *range);

/* The images of all runs. Returns as fidelity_make_range. */
int fidelity_make_images(fidelity *f, progress *bar, const fidelity_sessions *open);

void fidelity_close(fidelity_sessions *open);

#endif
