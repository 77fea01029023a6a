/* What an evaluation keeps of a batch of images: what the network says of them, and what they took. */
#ifndef TOOLS_EVAL_BATCH_H
#define TOOLS_EVAL_BATCH_H

#include "tools/eval/result.h"
#include "tools/store/store.h"

/* How images are divided, and what is kept of one. The same for all processes of a run. */
typedef struct {
    long images;        /* of the run */
    int batch;          /* images made, and judged, at a time: a range of the store; the last one may have less */
    int shard_images;   /* images of a shard, which is dealt out, a multiple of batch; the last one may have less */
    int features;       /* numbers of a feature vector */
    int classes;        /* logits of an image */
    int spatial;        /* numbers of a spatial feature vector; 0: none */
    int keeps_features; /* 1: the features of all images are compared, for precision and recall */
    int steps;          /* autoregressive steps whose drafts are counted; 0: none are verified */
    int width, height;  /* of an image, in pixels */
    int samples;        /* images of the run, evenly spread, that the report shows */
} eval_layout;

int eval_shard_count(const eval_layout *l);
/* Number of a shard's first image, and how many it has. */
long eval_shard_first(const eval_layout *l, int shard);
int eval_shard_size(const eval_layout *l, int shard);
/* Images of the batch that begins with image `first`. */
int eval_batch_size(const eval_layout *l, long first);
/* Number of sample k, and whether image i is one. */
long eval_sample_at(const eval_layout *l, int k);
int eval_is_sample(const eval_layout *l, long i);
size_t eval_pixel_bytes(const eval_layout *l);

/* Counts of drafted tokens, by autoregressive step, and by how many steps late they were. */
enum { EVAL_ACCEPTED, EVAL_REPLACED, EVAL_TOKENS, EVAL_ACCEPTED_LATE, EVAL_REPLACED_LATE, EVAL_CURVES };

/* A piece of the store. All arrays are in one block. */
typedef struct {
    int n;             /* its images */
    float *features;   /* [n][features] */
    float *logits;     /* [n][classes] */
    float *spatial;    /* [n][spatial] */
    int32_t *crc;      /* [n] the bits of the CRC-32 of the pixels */
    int32_t *labels;   /* [n] the class of each */
    int32_t *verified; /* [n] tokens that were drafted and verified */
    int32_t *replaced; /* [n] of these, those that were not accepted */
    double *curves;    /* [EVAL_CURVES][steps] */
    mar_stats *stats;  /* of making and decoding them */
    double *seconds;   /* [2] of judging, and of writing pictures */
    int32_t *process;  /* [1] number of the process that has judged them, among those at work at a time */
    void *block;
} eval_batch;

/* Room for any batch. Returns 0, or 1 after printing "out of memory". */
int eval_batch_create(const eval_layout *l, eval_batch *out);
void eval_batch_free(eval_batch *b);
/* Zeroes the counts of a batch of n images. */
void eval_batch_begin(const eval_layout *l, int n, eval_batch *b);

/* The piece of the range `at`, of that kind. Reading says what is damaged, or cannot be. */
store_state eval_batch_read(const store_run *r, const store_range *at, const char *kind, const eval_layout *l,
                            eval_batch *b);
int eval_batch_write(const store_run *r, const store_range *at, const char *kind, const eval_layout *l,
                     const eval_batch *b);

#endif
