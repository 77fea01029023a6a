/* The image loop of the command. A plan says which images are made; sinks take every finished batch.
 *
 * The loop goes batch by batch and, within a batch, run by run, one right after the other. Other load on the machine
 * therefore affects all runs equally. Such a round, the same images of every run, is a turn. In turn t run t %
 * run_count comes first and the others follow in order, so that no run is always first.
 *
 *     run_images(plan, sinks, n):  for every turn, for every run: begin, step ..., and hand the batch to each sink
 *
 * A run may have a place in a run store. A batch whose tokens are stored is read, and decoded if pixels are wanted. A
 * new batch is stored before a sink gets it. The sinks get the same bits either way.
 *
 * With several workers each makes the next turn that is not begun, on a GPU of its own. The sinks get the turns in the
 * same order as from one worker, one after the other, so they need no locks.
 *
 * A signal ends the loop (interruption.h). The current batch is dropped. Sinks keep the batches they have taken. */
#ifndef TOOLS_IMAGES_H
#define TOOLS_IMAGES_H

#include "mar.h"
#include "mar_measure.h"
#include "tools/generate/captions.h"
#include "tools/cli/progress.h"
#include "tools/store/store.h"

/* A run of the loop: one way to make the images. The plan owns nothing of it. */
typedef struct {
    const mar_model *model;   /* the session's model */
    mar_session *session;     /* with room for plan.batch images */
    const captions *captions; /* of a text-to-image model, whose labels are caption numbers; else NULL */
    const store_run *store;   /* store of its tokens; NULL: none */
    int has_drafts;           /* 1: the token status is stored, too */
} image_run;

typedef struct {
    const image_run *runs; /* [workers][run_count]; a worker's session may occur more than once */
    int run_count;         /* 1 or more */
    int workers;           /* turns made at a time, each by a thread with sessions of its own; 0: 1 */
    long first;            /* each run makes images first..first+images-1 of its seed's sequence */
    long images;           /* 1 or more */
    int batch;             /* images at a time; the last turn may have fewer */
    const int *labels;     /* [images] label of each, as in mar_session_begin; NULL: by `classes` */
    const int *classes;    /* [class_count], in 0..classes-1 of the model, or -1: unconditional */
    int class_count;       /* 1 or more */
    long class_images;     /* consecutive images of one class; after the last class the first follows */
    /* Chooses each turn's images in place of these numbers: a range of at most `batch` images, with labels that stay
     * until the next call; n is 0 after the last. Returns 0, or the exit status that ends the loop. One thread at a
     * time calls it. NULL: none */
    int (*choose)(void *chooser, store_range *at);
    void *chooser;
    const uint8_t *have; /* [images] 1: exists and is not made again; NULL: all are made */
    int takes_parts;     /* 1: the sinks get the decoded images of an interrupted batch */
    /* Called after each step of the first worker's batch of n images, with rgb NULL, and after the sinks have taken it
     * with the pixels of the finished ones, uint8_t rgb[n][height][width][3]. NULL: none */
    void (*watch)(void *watcher, mar_session *session, int n, const uint8_t *rgb);
    void *watcher;
    progress *bar;    /* progress bar; NULL: none */
    long bar_before;  /* images of others that the bar counts as finished */
    long bar_total;   /* images that the bar counts, begun by the caller; 0: the loop's own */
    long *made;       /* counter of images made, not read; NULL: none */
    const char *kept; /* clause of an interruption's message on the images made: "they are in DIR"; NULL: the caller
                         prints the message */
} image_plan;

/* A finished batch: images first..first+n-1 of a run. The loop owns it; it is valid until the sink returns. */
typedef struct {
    int run;             /* index in plan.runs */
    int turn;            /* from 0 */
    long first;          /* number of its first image */
    int n;               /* images, 1..plan.batch; after an interruption the statistics may cover more */
    const int *labels;   /* [n], as in mar_session_begin */
    const float *tokens; /* [n][seq_len][token_dim]; NULL unless a sink takes tokens */
    const uint8_t *rgb;  /* [n][height][width][3]; NULL unless a sink takes pixels and the run has an image decoder */
    const uint8_t *token_status; /* [n][seq_len] mar_token_status; NULL unless a sink takes the status */
    const int *steps;            /* [n][seq_len] autoregressive steps of mar_session_token_status; NULL likewise */
    const int *staleness;        /* [n][seq_len] mar_session_staleness; NULL likewise */
    const mar_stats *stats;      /* statistics of this batch when it was made; the seconds exclude the sinks */
} image_batch;

typedef struct {
    int (*take)(void *self, const image_batch *batch); /* returns 0, or 1 with the error printed; 1 ends the loop */
    void *self;                                        /* argument of take */
    int takes_tokens;                                  /* 1: batch->tokens is set */
    int takes_pixels;                                  /* 1: batch->rgb is set if the run has an image decoder */
    int takes_status;                                  /* 1: batch->token_status, steps and staleness are set */
} image_sink;

/* Returns the label of image i of the plan. */
int image_plan_label(const image_plan *plan, long i);

/* Makes the missing images of the plan, and hands every batch to sinks[0..sink_count-1] in this order. All memory is
 * allocated before the first batch. A batch is images first + k * plan.batch up to the next multiple, or a part of them
 * if some exist. Returns 0; 1 with the error printed; or 128 + the signal's number after an interruption, reported in
 * one line: "mar: interrupted: 32 of 100 images were made, they are in DIR". */
int run_images(const image_plan *plan, const image_sink *sinks, int sink_count);

#endif
