/* What an evaluation keeps of a batch of images: what the network says of them, and what they took. */
#ifndef TOOLS_EVAL_RECORD_H
#define TOOLS_EVAL_RECORD_H

#include "tools/eval/result.h"

#include <stdint.h>

/* How images are divided, and what is kept of one. The same for all shards and processes of a run. */
typedef struct {
    uint64_t settings;   /* a hash of the run's settings: files of other settings are not taken for its own */
    long images;         /* of the run */
    int batch;           /* images made, and judged, at a time; the last batch of a shard may have less */
    int shard_images;    /* images of a shard, a multiple of batch; the last one may have less */
    int features;        /* numbers of a feature vector */
    int classes;         /* logits of an image */
    int spatial;         /* numbers of a spatial feature vector; 0: none */
    int keeps_features;  /* 1: shards keep the features of every image, for precision and recall */
    int width, height;   /* of an image, in pixels */
    int samples;         /* images of the run, evenly spread, whose pixels are kept for the report */
    int rejected_images; /* of each shard: images with the largest share of drafts replaced whose pixels are kept, too
                          */
} eval_layout;

int eval_shard_count(const eval_layout *l);
/* Number of a shard's first image, and how many it has. */
long eval_shard_first(const eval_layout *l, int shard);
int eval_shard_size(const eval_layout *l, int shard);
/* Images of the batch that begins with image `first`. */
int eval_batch_size(const eval_layout *l, long first);
/* Whether the pixels of image i are kept whatever it shows. */
int eval_is_sample(const eval_layout *l, long i);
size_t eval_pixel_bytes(const eval_layout *l);
/* Whether `replaced` of `verified` drafts is a larger share than other_replaced of other_verified. */
int eval_is_larger_share(uint32_t replaced, uint32_t verified, uint32_t other_replaced, uint32_t other_verified);

/* Numbers that are added up, over batches, then over shards. Integers, and seconds, which are no part of what is
 * compared. */
typedef struct {
    mar_stats stats;
    double generate_s, features_s, write_s;
    int64_t recognised; /* images whose greatest logit is that of their class; with --features demo only */
    int64_t accepted[EVAL_CURVE_MAX], replaced[EVAL_CURVE_MAX], tokens[EVAL_CURVE_MAX]; /* of autoregressive step i */
    int64_t accepted_late[EVAL_CURVE_MAX], replaced_late[EVAL_CURVE_MAX]; /* of drafts that were i steps late */
} eval_figures;

/* Returns 1 if n images can have such figures, so that no sum over a run overflows; else 0. */
int eval_figures_check(const eval_figures *f, int n);
void eval_figures_add(eval_figures *sum, const eval_figures *f);

/* A record and its parts, all in one block, as it is in the journal. */
typedef struct {
    uint8_t *bytes;        /* the block */
    size_t capacity;       /* of it */
    size_t size;           /* bytes in use: head and parts */
    long first;            /* number of its first image */
    int n;                 /* its images */
    eval_figures *figures; /* of this batch */
    float *features;       /* [n][features] */
    float *logits;         /* [n][classes] */
    float *spatial;        /* [n][spatial] */
    uint32_t *crc;         /* [n] CRC-32 of the pixels */
    int32_t *labels;       /* [n] the class of each */
    uint32_t *verified;    /* [n] tokens that were drafted and verified */
    uint32_t *replaced;    /* [n] of these, those that were not accepted */
    uint32_t *kept;        /* [n] 1: the pixels are behind this, in the order of the images */
    uint8_t *pixels;       /* of those; uint8_t [height][width][3] each */
} eval_record;

/* Room for any batch. Returns 0, or 1 after printing "out of memory". */
int eval_record_create(const eval_layout *l, eval_record *out);
void eval_record_free(eval_record *r);

/* Begins the record of the batch from image `first` on: zeroes the figures, points the parts. */
void eval_record_begin(const eval_layout *l, long first, eval_record *r);
/* Once the rest is there: keeps the pixels of samples, and of the images with the most drafts replaced. rgb
 * [n][height][width][3]. The record is complete then, and has its checksum. */
void eval_record_finish(const eval_layout *l, const uint8_t *rgb, eval_record *r);

/* Bytes of a record's head, at its beginning. */
enum { EVAL_RECORD_HEAD = 48 };
/* The size that a head says, or 0 if it is not that of the record of the batch from image `first` on. */
size_t eval_record_size(const eval_layout *l, long first, const void *head);
/* Whether r->bytes, which have been read, are that record, whole, with figures that can be; points the parts then. */
int eval_record_check(const eval_layout *l, long first, eval_record *r);

#endif
