/* The options of `mar eval`, and what its parts have in common. A run directory is made by eval_model_run, images made
 * elsewhere are judged by eval_images_run, and a grid of runs is made by eval_sweep_run. */
#ifndef TOOLS_EVAL_OPTIONS_H
#define TOOLS_EVAL_OPTIONS_H

#include "tools/eval/result.h"
#include "tools/generate/models.h"
#include "tools/cli/options.h"
#include "tools/cli/progress.h"
#include "tools/cli/run_options.h"

/* Which class an image is of. */
typedef enum {
    EVAL_BALANCED, /* image i of n is of class i * classes / n: MAR's, the images of a class are consecutive */
    EVAL_RANDOM    /* a random class for every image, by its number and the seed alone */
} eval_class_sampling;

typedef struct {
    run_options run;     /* the model, and how its images are made */
    const char *images;  /* images made elsewhere: a directory or an npz; NULL: those of the model */
    const char *sweep;   /* the file of a grid of runs; NULL: one run */
    const char *out;     /* the run directory; NULL: none was given */
    const char *store;   /* the directory of the run store; NULL: the run directory, of a sweep that of the sweep */
    const char *classes; /* as given, or NULL: all classes of the model */
    int num_images;      /* 0: the default */
    int class_sampling;  /* eval_class_sampling */

    /* What judges the images: */
    const char *features;  /* "inception" or "demo"; eval_options_done fills it in */
    const char *inception; /* Inception's weights; NULL: none given */
    int features_dtype;    /* judge_dtype, of Inception */
    const char *stats;    /* reference statistics, or "demo"; NULL: none. eval_options_done fills in that of the demo */
    int precision_recall; /* 1: features of all images are kept for precision and recall, whatever the reference has */

    /* How the work is divided: */
    int batch;         /* images made, and judged, at a time: part of what the numbers' last bits depend on */
    int shard_images;  /* images of a shard; 0: the default */
    const char *shard; /* "2/5": this process makes every fifth shard; NULL: tools/cli/launch.h finds out */
    int merge;         /* 1: make nothing, add up the shards that are there */

    int save_images; /* PNG in RUN/images */
    int save_npz;    /* RUN/images.npz */
    int json, quiet;

    uint64_t asked;      /* of a point of a sweep: a hash of its options, by which it is known again; else 0 */
    model_store *models; /* loaded files that several runs share; NULL: the run loads its own. Never an option */

    const option_set *given; /* what was parsed, and knows which options were given; eval_options_done sets it */
} eval_options;

/* Defaults, and the options that set the fields. A sweep reads the options of its runs with it, too. */
void eval_options_set_up(eval_options *o, option_set *set);
/* After parsing: fills in the defaults that depend on other options, and refuses what does not belong together, or has
 * no effect. Returns 0, or 1 after printing. */
int eval_options_done(eval_options *o, const option_set *set);

/* Evaluates a model in the run directory o->out, which it makes or goes on with. Returns 0: *done is 1 and *r filled
 * in, or, with a part of the shards only (--shard), *done is 0 and it has said what is missing. Returns 1 after an
 * error, which was printed, or the exit status of an interruption, which was said. Prints nothing else. */
int eval_model_run(eval_options *o, progress *bar, eval_result *r, int *done);

/* What a run directory's settings have as `asked`; 0: nothing. Returns 0, or 1 after printing an error. */
int eval_settings_asked(const char *out, uint64_t *asked);

/* mar eval --images. Prints what it finds. Returns the exit status. */
int eval_images_run(const eval_options *o, progress *bar);

/* mar eval --sweep: calls eval_model_run for each point. Prints what it finds. Returns the exit status. */
int eval_sweep_run(const eval_options *o, progress *bar);

/* The exit status of a run that SIGTERM has ended behind a finished batch: the same command goes on. */
enum { EVAL_STATUS_GOES_ON = 75 }; /* EX_TEMPFAIL of <sysexits.h> */

#endif
