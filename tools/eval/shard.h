/* A finished shard: what its images add up to, in one file with a checksum. */
#ifndef TOOLS_EVAL_SHARD_H
#define TOOLS_EVAL_SHARD_H

#include "eval/moments.h"
#include "tools/eval/journal.h"

/* Makes the shard's file of its journal, which has all its batches, and removes the journal. The sums are made of the
 * records in their order, so that their bits do not depend on who has written these. `process` is the number of this
 * process among those that work at a time. `scratch` has room for a record. Returns 0, or 1 after printing an error;
 * the journal is there then. */
int eval_shard_write(const run_directory *d, const eval_layout *l, eval_journal *j, int process, eval_record *scratch);

typedef enum { EVAL_SHARD_THERE, EVAL_SHARD_MISSING, EVAL_SHARD_DAMAGED, EVAL_SHARD_ERROR } eval_shard_state;

/* Whether there is a file of that name, which is left in path, char [RUN_PATH]. */
int eval_shard_exists(const run_directory *d, int shard, char *path);

/* Whether the shard is there, by its head and its size. A damaged one is said, an error printed. */
eval_shard_state eval_shard_look(const run_directory *d, const eval_layout *l, int shard);

/* A shard's file that is being read. */
typedef struct {
    const eval_layout *layout;
    char path[RUN_PATH];
    int fd;
    long first;       /* number of its first image */
    int n;            /* its images */
    int samples;      /* images whose pixels it has */
    uint64_t process; /* number of the process that has finished it */
    off_t figures, pooled, spatial, crc, logits, features, sample_table, pixels, sum; /* where its parts are */
} eval_shard;

/* Opens the file and reads all of it once, to see that it is whole and that its numbers can be. With EVAL_SHARD_THERE
 * the caller closes it. */
eval_shard_state eval_shard_open(const run_directory *d, const eval_layout *l, int shard, eval_shard *out);
void eval_shard_close(eval_shard *s);

/* Its parts. All return 0, or 1 after printing an error. */
int eval_shard_figures(const eval_shard *s, eval_figures *out);
/* *pooled, and *spatial if the layout has any, must be created; what they had is gone. */
int eval_shard_moments(const eval_shard *s, eval_moments *pooled, eval_moments *spatial);
int eval_shard_crc(const eval_shard *s, uint32_t *crc);                       /* [n] */
int eval_shard_logits(const eval_shard *s, int at, int n, float *logits);     /* of n images from image `at` of it on */
int eval_shard_features(const eval_shard *s, int at, int n, float *features); /* the same; the layout keeps them */

/* An image whose pixels are kept. */
typedef struct {
    int64_t image;               /* its number */
    int32_t label;               /* its class */
    uint32_t verified, replaced; /* as in eval_record */
    uint32_t reserved;           /* 0: a row has no padding */
} eval_sample;
/* Sample i, and its pixels, rgb [height][width][3]. */
int eval_shard_sample(const eval_shard *s, int i, eval_sample *out, uint8_t *rgb);

#endif
