/* The run store: results by what they depend on. An image is a pure function of its run (model, parameters, seed), its
 * number and its label. So a range of images has an address:
 *
 *     DIR/runs/RUN/run.json                         what the run's images depend on; RUN is a hash of it
 *     DIR/runs/RUN/lock                             the file whose bytes lock ranges that are being made
 *     DIR/runs/RUN/000016-000031.LABELS.npz         tokens of images 16 to 31, with labels of this hash
 *     DIR/runs/RUN/000016-000031.LABELS.KIND.npz    results derived from them: KIND is "features-" and a hash
 *
 * A piece, one of these .npz files, is written beside and renamed. It is whole or absent, and has checksums. Any number
 * of processes work in a store. Links and pipes in the place of its files are refused. */
#ifndef TOOLS_STORE_H
#define TOOLS_STORE_H

#include "tools/images/image.h"
#include "tools/store/lock.h"
#include "weights/npz.h"

enum {
    STORE_PATH = 4400, /* bytes of a path in it */
    STORE_KIND = 48    /* bytes of a kind */
};

/* One run's part of a store. Initialise with {0}. */
typedef struct {
    char path[STORE_PATH]; /* DIR/runs/RUN */
    uint64_t hash;         /* RUN */
    int lock;              /* descriptor of its lock plus 1; 0: opened for reading only */
} store_run;

/* A range of images. */
typedef struct {
    long first;        /* number of the first */
    int n;             /* images; at least 1 */
    const int *labels; /* [n] label of each */
} store_range;

/* Opens the run whose images depend on the texts, and makes its directory. Returns 0, or 1 with the error printed. */
int store_open(const char *directory, const image_text *texts, int count, store_run *out);
/* Opens a run for reading only. It need not exist. Returns 0, or 1 with the error printed. */
int store_find(const char *directory, uint64_t hash, store_run *out);
void store_close(store_run *r);

/* Returns a hash of texts, for the name of a kind. */
uint64_t store_hash(const image_text *texts, int count);

/* An array of a piece. */
typedef struct {
    const char *name;
    npz_dtype dtype;
    int rank;         /* 1..3 */
    int64_t shape[3]; /* sizes */
    void *data;       /* source of a write, destination of a read; NULL: not read */
} store_array;

typedef enum { STORE_THERE, STORE_MISSING, STORE_DAMAGED, STORE_ERROR } store_state;

/* Writes the path of a piece to path, char [STORE_PATH]. `kind` NULL: the tokens. Returns path. */
const char *store_path(const store_run *r, const store_range *at, const char *kind, char *path);
/* Returns whether the piece's file exists. */
int store_has(const store_run *r, const store_range *at, const char *kind);
/* Reads a piece that must have these arrays. Prints errors, and that a piece is damaged or another's; the arrays may
 * then hold anything. */
store_state store_read(const store_run *r, const store_range *at, const char *kind, const store_array *arrays,
                       int count);
/* Writes a piece in place of the existing one. Returns 0, or 1 with the error printed. */
int store_write(const store_run *r, const store_range *at, const char *kind, const store_array *arrays, int count);

/* The parts of a range that are locked while made: the tokens, or everything derived from them. */
typedef enum { STORE_TOKENS, STORE_DERIVED } store_part;
lock_status store_lock(const store_run *r, const store_range *at, store_part part);
lock_status store_lock_wait(const store_run *r, const store_range *at, store_part part);
void store_unlock(const store_run *r, const store_range *at, store_part part);

#endif
