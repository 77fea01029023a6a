/* One `mar eval` of a model: what was asked for, what it was resolved to, and where it goes.
 *
 * model.c prepares and ends it, settings.c writes down what its numbers depend on, make.c makes what is missing in the
 * run store, merge.c adds up what is there. */
#ifndef TOOLS_EVAL_JOB_H
#define TOOLS_EVAL_JOB_H

#include "tools/eval/batch.h"
#include "tools/eval/options.h"
#include "tools/eval/run_directory.h"
#include "tools/generate/images.h"
#include "tools/generate/record.h"

/* What the result says of the model, and where in the store its images are. It follows from the settings and is kept
 * beside them, so that numbers can be added up without the model. */
typedef struct {
    char network[64];                                                 /* mar_features_config.name */
    char published[EVAL_TEXT], guarantee[EVAL_TEXT], ways[EVAL_TEXT]; /* as in eval_result */
    char asked[17];                                                   /* eval_options.asked; "" for 0 */
    char images[17];                                                  /* the run of the images, in hexadecimal digits */
    char judged[STORE_KIND];   /* the kind of pieces with what the network says */
    char pictures[STORE_KIND]; /* the kind of pieces with the pixels of an image that the report shows */
    int classes;               /* that the model knows */
    int demo;                  /* 1: the images are digits, and the network is the classifier of digits */
} eval_facts;

typedef struct {
    eval_options *options;
    progress *bar;
    launch who;
    run_directory directory; /* RUN */
    output store_directory;  /* --store, if it was given */
    store_run store;         /* of the images */
    char stats_id[RECORD_ID], inception_id[RECORD_ID];
    record_texts settings; /* what the numbers depend on, in a fixed order */
    cJSON *taken;          /* the file that --merge has them of, whose keys they are; else NULL */
    eval_layout layout;
    eval_facts facts;
    int *classes;      /* [class_count], as listed */
    int class_count;   /* 1 or more */
    uint64_t seed;     /* that labels are drawn with */
    int is_random;     /* 1: with --class_sampling random */
    int *labels;       /* [batch] of the range that eval_range has returned last */
    model_store files; /* the models that are loaded */

    /* Not with --merge: */
    record_ids ids; /* of the model files */
    run_models models;
    mar_session *session; /* NULL with --merge */

    mar *library; /* of the network: the models', if its arithmetic is theirs, or one of its own; the store's */
    mar_features *network;
    long made;        /* images that this process has made */
    uint8_t *written; /* [images] 1: this process has written its files, and synced them at the end of a round */
} eval_job;

/* Fills job->settings, and the kinds of pieces in job->facts, once all else is known. Returns 0, or 1 after printing.
 */
int eval_settings_make(eval_job *job);
/* Compares them with RUN/settings.json, if it is there: 1, after printing the first difference, if the run was begun
 * otherwise. Else *is_new is 1. In RUN_LOCK_SETTINGS. */
int eval_settings_agree(const eval_job *job, int *is_new);
/* Writes it. The same. */
int eval_settings_write(eval_job *job);
/* Whether RUN is free or a run: 1, after printing, if it has files that the run would replace, or take for its own,
 * and no settings that say what they belong to. */
int eval_settings_check_place(const eval_job *job);
/* For --merge: takes settings, layout and facts from RUN/settings.json. The options that were given must agree. */
int eval_settings_take(eval_job *job, const option_set *given);
/* For --merge: whether the network that was loaded is of the layout. Returns 0, or 1 after printing. */
int eval_settings_check_network(const eval_job *job);
/* The value of a setting, "" if there is none. */
const char *eval_setting(const eval_job *job, const char *key);

/* The range of batch `first` and its labels, which stay until the next call. */
store_range eval_range(eval_job *job, long first);

/* Makes all ranges that this process is to make and that are missing. Returns 0; 1 after an error, which was printed;
 * or the exit status after an interruption, which was not said. */
int eval_make_shards(eval_job *job);
/* How many shards, and images, are not all there. */
int eval_missing_shards(eval_job *job);
int eval_is_missing_shard(eval_job *job, int shard);
long eval_images_there(eval_job *job);
/* Makes the pixels of a batch again, of tokens in the store, and hands them to `take`. Needs the session. Returns as
 * eval_make_shards. */
int eval_make_pixels(eval_job *job, long first, image_sink take);

/* Adds up all shards, writes RUN/images.npz if asked for, RUN/result.json and RUN/report.html, and fills *r. Returns 0,
 * 1 after an error, which was printed, or EVAL_MERGE_AGAIN if something was missing or damaged, which was said; what is
 * damaged is removed, unless nothing is to be made. */
enum { EVAL_MERGE_AGAIN = -1 };
int eval_merge(eval_job *job, eval_result *r);

#endif
