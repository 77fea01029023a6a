/* The image loop of the command: a plan says which images are made, sinks take every batch when it is finished.
 *
 * The loop goes batch by batch and, within a batch, run by run, one right after the other. Other load on the machine
 * therefore affects all runs equally. Such a round, the same images of every run, is a turn. In turn t run t %
 * run_count comes first and the others follow in order, so that no run is always first.
 *
 *     run_images(plan, sinks, n):  for every turn, for every run: begin, step ..., and hand the batch to each sink
 *
 * A run may have a place in a run store. Then a batch whose tokens are there is read, and decoded if pixels are asked
 * for; what is made goes there before a sink gets it. The sinks get the same bits either way.
 *
 * A signal ends it (interruption.h): the batch in hand is dropped, or with plan.finishes_batch finished; batches that
 * the sinks have taken stay with them. */
#ifndef TOOLS_IMAGES_H
#define TOOLS_IMAGES_H

#include "mar.h"
#include "tools/generate/captions.h"
#include "tools/cli/progress.h"
#include "tools/store/store.h"

/* One way to make the images. The plan owns none of it. */
typedef struct {
    const mar_model *model;   /* the session's: it knows the shape of tokens */
    mar_session *session;     /* made for plan.batch images at least */
    const captions *captions; /* of a text-to-image model: an image's label is its caption's number; else NULL */
    const store_run *store;   /* where its tokens are kept; NULL: nowhere */
    int has_drafts;           /* 1: the status of tokens is kept, too */
    int remakes;              /* 1: what is there is made again all the same, for its time */
} image_run;

typedef struct {
    const image_run *runs; /* [run_count]. The same session may be there more than once */
    int run_count;         /* 1 or more */
    long first;            /* each run makes images first..first+images-1 of its seed's sequence */
    long images;           /* 1 or more */
    int batch;             /* images made at a time. The last turn has the rest */
    const int *labels;     /* [images] the class of each, as in mar_session_begin; NULL: by `classes` */
    const int *classes;    /* [class_count], in 0..classes-1 of the model, or -1: unconditional */
    int class_count;       /* 1 or more */
    long class_images;   /* this many images in a row are of one class, then comes the next; after the last the first */
    const uint8_t *have; /* [images] 1: is there already and is not made again; NULL: all are made */
    int takes_parts;     /* 1: of a batch that was interrupted the sinks get the images that were decoded whole */
    int finishes_batch;  /* 1: a signal does not drop the batch in hand; the loop ends behind it */
    progress *bar;       /* shows how far the loop is; NULL: nothing does */
    long bar_before;     /* images of others that the bar counts as finished */
    long bar_total;      /* of how many the bar tells, and the caller has begun it; 0: of the loop's own */
    long *made;          /* counts images that were made, not read; NULL: nothing does */
    const char *kept;    /* what an interruption's message says of the images that were made: "they are in DIR"; NULL:
                            the caller prints the message */
} image_plan;

/* A finished batch: images first..first+n-1 of a run. Everything in it is the loop's, and valid until the sink returns.
 */
typedef struct {
    int run;              /* index in plan.runs */
    int turn;             /* from 0 */
    long first;           /* number of its first image */
    int n;                /* its images, 1..plan.batch. The statistics may be of more after an interruption */
    const int *labels;    /* [n], as in mar_session_begin */
    const float *tokens;  /* [n][seq_len][token_dim]; NULL unless a sink takes tokens */
    const uint8_t *rgb;   /* [n][height][width][3]; NULL unless a sink takes pixels and the run has an image decoder */
    const uint8_t *fates; /* [n][seq_len] mar_token_fate; NULL unless a sink takes the status of tokens */
    const int *steps;     /* [n][seq_len] of mar_session_fates; the same */
    const int *late;      /* [n][seq_len] mar_session_lateness; the same */
    const mar_stats *stats; /* of this batch, when it was made; its seconds hold no sink's work */
} image_batch;

typedef struct {
    int (*take)(void *self,
                const image_batch *batch); /* returns 0, or 1 after printing an error, which ends the loop */
    void *self;                            /* the sink's own, handed to take */
    int takes_tokens;                      /* 1: batch->tokens is there */
    int takes_pixels;                      /* 1: batch->rgb is there if the run has an image decoder */
    int takes_status;                      /* 1: batch->fates, steps and late are there */
} image_sink;

/* The label of image i, one of the plan's. */
int image_plan_label(const image_plan *plan, long i);

/* Images of each run over images at a time, rounded up; none of them may be there already. */
int image_plan_turns(const image_plan *plan);

/* Makes the plan's images, those that are not there, and hands every batch to sinks[0..sink_count-1] in this order. All
 * memory is allocated before the first batch. A batch is images first + k * plan.batch up to the next one, or a part of
 * these where some are there. Returns 0; 1 after an error, which was printed; or 128 + the signal's number after an
 * interruption, which was said in one line: "mar: interrupted: 32 of 100 images were made, they are in DIR". */
int run_images(const image_plan *plan, const image_sink *sinks, int sink_count);

#endif
