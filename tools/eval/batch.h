/* The stored results of a batch of images: the network's output, and statistics of making them. */
#ifndef TOOLS_EVAL_BATCH_H
#define TOOLS_EVAL_BATCH_H

#include "tools/eval/prompt_score.h"
#include "mar_measure.h"
#include "tools/eval/result.h"
#include "tools/store/store.h"

/* The division of the images, and the sizes of an image's results. All processes of a run have the same. */
typedef struct {
    long images;           /* of the run */
    int batch;             /* images made and judged at a time, a range of the store; the last may have fewer */
    int shard_images;      /* images of a shard, a multiple of batch; the last may have fewer */
    int features;          /* numbers of a feature vector; 0: no network */
    int classes;           /* logits of an image */
    int spatial;           /* values of a spatial feature vector; 0: none */
    int vgg;               /* numbers of VGG16's feature vector; 0: precision and recall are of the network's */
    score_columns columns; /* of the scores that are kept */
    int keeps_features;    /* 1: the features of all images are kept, for precision and recall */
    int steps;             /* autoregressive steps with counts of drafts; 0: no drafts are verified */
    int width, height;     /* of an image, in pixels */
    int samples;           /* images on the page, evenly spread */
} eval_layout;

int eval_shard_count(const eval_layout *l);
/* Return the number of a shard's first image, and of that behind its last. */
long eval_shard_first(const eval_layout *l, int shard);
long eval_shard_end(const eval_layout *l, int shard);
/* Returns the images of the batch that begins with image `first`. */
int eval_batch_size(const eval_layout *l, long first);
/* Returns the number of samples of `images` images, at most `room`. */
int eval_sample_count(long images, int room);
/* Return the number of sample k; whether image i is a sample. */
long eval_sample_at(const eval_layout *l, int k);
int eval_is_sample(const eval_layout *l, long i);
size_t eval_pixel_bytes(const eval_layout *l);
/* Returns the numbers of the features that precision and recall compare. */
int eval_feature_dim(const eval_layout *l);

/* Counts of drafted tokens, by autoregressive step and by staleness. */
enum { EVAL_ACCEPTED, EVAL_REPLACED, EVAL_TOKENS, EVAL_ACCEPTED_LATE, EVAL_REPLACED_LATE, EVAL_CURVES };

/* A piece of the store. One block has all arrays. */
typedef struct {
    int n;             /* its images */
    float *features;   /* [n][features] */
    float *logits;     /* [n][classes] */
    float *spatial;    /* [n][spatial] */
    float *vgg;        /* [n][vgg] */
    double *scores;    /* [n][columns.count] as in judged */
    int32_t *crc;      /* [n] CRC-32 of the pixels, as bits */
    int32_t *labels;   /* [n] the class of each */
    int32_t *verified; /* [n] tokens that were drafted and verified */
    int32_t *replaced; /* [n] of these, drafts not accepted */
    double *curves;    /* [EVAL_CURVES][steps] */
    mar_stats *stats;  /* of generating and decoding */
    double *seconds;   /* [2] judging; writing pictures */
    int32_t *process;  /* [1] number of the judging process, among those at work together */
    void *block;
} eval_batch;

/* Allocates room for any batch. Returns 0, or 1 after printing "out of memory". */
int eval_batch_create(const eval_layout *l, eval_batch *out);
void eval_batch_free(eval_batch *b);
/* Zeroes the counts of a batch of n images. */
void eval_batch_begin(const eval_layout *l, int n, eval_batch *b);

/* Reads the piece of that kind for the range `at`. Prints what is damaged or cannot be read. */
store_state eval_batch_read(const store_run *r, const store_range *at, const char *kind, const eval_layout *l,
                            eval_batch *b);
int eval_batch_write(const store_run *r, const store_range *at, const char *kind, const eval_layout *l,
                     const eval_batch *b);

#endif
