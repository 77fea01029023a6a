/* One `mar eval` of a model: its options, what they resolve to, and its directory.
 *
 * model.c prepares and ends it. settings.c records what its numbers depend on. make.c makes what the run store lacks.
 * merge.c sums what is stored. ranges.c is below both. protocol.c writes the protocol line. */
#ifndef TOOLS_EVAL_JOB_H
#define TOOLS_EVAL_JOB_H

#include "tools/eval/batch.h"
#include "mar_eval.h"
#include "tools/eval/options.h"
#include "tools/eval/run_directory.h"
#include "tools/generate/devices.h"
#include "tools/generate/images.h"
#include "tools/generate/record.h"

/* Facts of the model for the result, and the addresses of its images. They follow from the settings and are kept with
 * them, so that the numbers can be computed without the model. */
typedef struct {
    char published[EVAL_TEXT], guarantee[EVAL_TEXT], accelerators[EVAL_TEXT]; /* as in eval_result */
    char images[17];           /* the run of the images, in hexadecimal digits */
    char judged[STORE_KIND];   /* kind of the pieces with the network's output */
    char pictures[STORE_KIND]; /* kind of the pieces with the pixels of a picture on the page */
    int classes;               /* classes of the model */
    int demo;                  /* 1: the images are digits, judged by the classifier of digits */
} eval_facts;

typedef struct {
    eval_options *options;
    progress *bar;
    launch process;
    run_directory directory; /* RUN */
    output store_directory;  /* --store, if given */
    store_run store;         /* of the images */
    record_texts settings;   /* what the numbers depend on, in a fixed order */
    cJSON *taken;            /* with --merge: file that owns the keys of `settings`; else NULL */
    eval_layout layout;
    eval_facts facts;
    int *classes;      /* [class_count], as listed */
    int class_count;   /* 1 or more */
    uint64_t seed;     /* seed of the labels */
    int is_random;     /* 1: --class_sampling random */
    int *labels;       /* [batch] of the last eval_range */
    model_store files; /* the loaded models */

    /* NULL or unset with --merge: */
    run_models models;
    mar_session *session; /* NULL with --merge */
    run_devices devices;  /* the other GPUs of --devices */

    judge judge;        /* without scorer for --merge */
    prompts prompts;    /* of --prompts, for it */
    const char **texts; /* prompts of the captions, for it; NULL without it */
    long made;          /* images made by this process */
    uint8_t *written;   /* [images], NULL for --merge. 1: this process has written its files, and synced them at the end
                           of a round */
} eval_job;

/* Fills job->settings, and the kinds of pieces in job->facts, once all else is known. Returns 0, or 1 with the error
 * printed. */
int eval_settings_make(eval_job *job);
/* Takes the times of rounds from RUN/settings.json, if it is there. Returns 0, or 1 with the error printed. */
int eval_settings_take_costs(eval_job *job);
/* Compares the settings with RUN/settings.json under RUN_LOCK_SETTINGS. Sets *is_new to 1 if there is no file. Returns
 * 1, with the first difference printed, if the run was begun with others; else 0. */
int eval_settings_agree(const eval_job *job, int *is_new);
/* Writes RUN/settings.json, under the same lock. Returns 0, or 1 with the error printed. */
int eval_settings_write(eval_job *job);
/* Checks that RUN is free or a run. Returns 1, with the error printed, if it has no settings but files that the run
 * would replace or read as its own. */
int eval_settings_check_place(const eval_job *job);
/* For --merge: reads settings, layout and facts from RUN/settings.json. The given options must agree. The sizes of the
 * network's output are the loaded one's. */
int eval_settings_take(eval_job *job, const option_set *given);
/* Returns the value of a setting; "" if there is none. */
const char *eval_setting(const eval_job *job, const char *key);

/* Returns the range of batch `first`, with labels that stay until the next call. */
store_range eval_range(eval_job *job, long first);

/* Makes the missing ranges of this process. Returns 0; 1 with the error printed; or the exit status of an interruption,
 * not printed. */
int eval_make_shards(eval_job *job);
/* Return the number of incomplete shards; whether a shard is incomplete; the number of stored images. */
int eval_missing_shards(eval_job *job);
int eval_is_missing_shard(eval_job *job, int shard);
long eval_images_there(eval_job *job);
/* Completes the plan, of a range or with `choose`, and makes or reads its images; the latter on all GPUs. Needs the
 * session. Returns as eval_make_shards. */
int eval_make_images(eval_job *job, image_plan *plan, const image_sink *sink);
/* Decodes the pixels of a batch again from stored tokens, and hands them to `take`. Returns as
 * eval_make_shards. */
int eval_make_pixels(eval_job *job, long first, image_sink take);

/* Sums all shards, fills *r, writes RUN/result.json, RUN/report.html and, if requested, RUN/images.npz. Returns 0, or 1
 * with the error printed. Returns EVAL_MERGE_AGAIN, after printing, if a piece is missing or damaged. A damaged piece
 * is then removed, unless this process makes none. */
enum { EVAL_MERGE_AGAIN = -1 };
int eval_merge(eval_job *job, eval_result *r);

#endif
