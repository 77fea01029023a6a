/* The options of `mar eval`. eval_model_run makes a run directory, eval_images_run judges images made
 * elsewhere. */
#ifndef TOOLS_EVAL_OPTIONS_H
#define TOOLS_EVAL_OPTIONS_H

#include "tools/eval/prompt_score.h"
#include "tools/eval/judge.h"
#include "tools/eval/result.h"
#include "tools/generate/models.h"
#include "tools/cli/options.h"
#include "tools/cli/progress.h"
#include "tools/cli/run_options.h"

/* The class of each image. */
typedef enum {
    EVAL_BALANCED, /* image i of n is of class i * classes / n, as in MAR's code: the images of a class are consecutive
                    */
    EVAL_RANDOM    /* a random class for each image, a function of its number and the seed */
} eval_class_sampling;

typedef struct {
    run_options run;    /* the model and its sampling */
    const char *images; /* images made elsewhere, a directory or an npz; NULL: the model's */
    const char *out;    /* run directory; NULL: none */
    const char *store;  /* directory of the run store; NULL: the run's */
    const char *class;  /* as given; NULL: all classes of the model */
    int num_images;     /* 0: the default */
    int class_sampling; /* eval_class_sampling */

    /* The judging network: */
    judge_options judge;
    score_options scores;
    const char *stats;    /* reference statistics, or "demo"; NULL: none. eval_options_done fills in the demo's */
    int precision_recall; /* 1: keep all features for precision and recall, whatever the reference has */

    /* Division of the work: */
    int batch;           /* images made and judged at a time; affects the numbers' last bits */
    int shard_images;    /* images of a shard; 0: the default */
    const char *devices; /* list of GPUs; NULL: one device */
    const char *shard;   /* "2/5": this process makes every fifth shard; NULL: see tools/cli/launch.h */
    int merge;           /* 1: make nothing, sum the existing shards */

    int save_images; /* 1: PNGs in RUN/images */
    int save_npz;    /* 1: RUN/images.npz */
    int json, quiet;

    const option_set *given; /* the parsed set, for the options that were given; eval_options_done sets it */
} eval_options;

/* Sets the defaults, and adds the options that set the fields. */
void eval_options_set_up(eval_options *o, option_set *set);
/* Fills in defaults that depend on other options, after parsing. Rejects options that conflict or have no effect.
 * Returns 0, or 1 with the error printed. */
int eval_options_done(eval_options *o, const option_set *set);

/* Evaluates a model in the run directory o->out, created or resumed. Returns 0 with *done 1 and *r filled in. With
 * --shard and other shards missing, *done is 0, and it prints which. Returns 1 with the error printed, or the exit
 * status of an interruption, printed. Prints nothing else. */
int eval_model_run(eval_options *o, progress *bar, eval_result *r, int *done);

/* Runs mar eval --images and fills in *r. Returns the exit status. */
int eval_images_run(const eval_options *o, progress *bar, eval_result *r);

/* Exit status of a run that SIGTERM has ended behind a finished batch: the same command resumes it. */
enum { EVAL_STATUS_GOES_ON = 75 }; /* EX_TEMPFAIL of <sysexits.h> */

#endif
