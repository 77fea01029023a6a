/* The run store: what was made of the images of a run, by what it depends on. An image is a pure function of its run
 * (model, parameters, seed), its number and its label. So a range of images has an address:
 *
 *     DIR/runs/RUN/run.json                         what the run's images depend on; RUN is a hash of it
 *     DIR/runs/RUN/lock                             whose bytes are locked by those who make a range
 *     DIR/runs/RUN/000016-000031.LABELS.npz         images 16 to 31, of labels with this hash: their tokens
 *     DIR/runs/RUN/000016-000031.LABELS.KIND.npz    what was derived of them: KIND is "features-" and a hash
 *
 * A piece, one of these .npz files, is written beside and renamed, so that it is there whole or not at all, and has
 * checksums. Any number of processes work in a store. Links and pipes in the place of its files are refused. */
#ifndef TOOLS_STORE_H
#define TOOLS_STORE_H

#include "tools/images/image.h"
#include "tools/store/lock.h"
#include "weights/npz.h"

enum {
    STORE_PATH = 4400, /* bytes of a path in it */
    STORE_KIND = 48    /* of a kind */
};

/* One run's part of a store. Initialise with {0}. */
typedef struct {
    char path[STORE_PATH]; /* DIR/runs/RUN */
    uint64_t hash;         /* RUN */
    int lock;              /* descriptor of its lock plus 1; 0: none, nothing can be made */
} store_run;

/* Some of its images. */
typedef struct {
    long first;        /* number of the first */
    int n;             /* how many; 1 or more */
    const int *labels; /* [n] what each shows */
} store_range;

/* Opens the run whose images depend on the texts, and makes its directory. Returns 0, or 1 after printing an error. */
int store_open(const char *directory, const image_text *texts, int count, store_run *out);
/* Opens a run to be read only. It need not be there. */
int store_find(const char *directory, uint64_t hash, store_run *out);
void store_close(store_run *r);

/* Makes a directory, or takes the one that is there; refuses a link. Returns 0, or 1 after printing an error. */
int store_make_directory(const char *path);

/* A hash of texts, which a kind may have in its name. */
uint64_t store_hash(const image_text *texts, int count);

/* An array of a piece. */
typedef struct {
    const char *name;
    npz_dtype dtype;
    int rank;         /* 1..3 */
    int64_t shape[3]; /* its sizes */
    void *data;       /* what is written, or where to it is read; NULL: it is not read */
} store_array;

typedef enum { STORE_THERE, STORE_MISSING, STORE_DAMAGED, STORE_ERROR } store_state;

/* The path of a piece, to path, char [STORE_PATH], which is returned. `kind` NULL: the tokens. */
const char *store_path(const store_run *r, const store_range *at, const char *kind, char *path);
/* Whether there is a file of that name. */
int store_has(const store_run *r, const store_range *at, const char *kind);
/* Reads a piece that must have these arrays. One that is damaged, or another's, is said, and may have left anything in
 * the arrays; so is an error. */
store_state store_read(const store_run *r, const store_range *at, const char *kind, const store_array *arrays,
                       int count);
/* Writes it, in place of what is there. Returns 0, or 1 after printing an error. */
int store_write(const store_run *r, const store_range *at, const char *kind, const store_array *arrays, int count);

/* Who makes a piece locks it: the tokens of a range, or all that is derived of it. */
typedef enum { STORE_TOKENS, STORE_DERIVED } store_part;
lock_status store_lock(const store_run *r, const store_range *at, store_part part);
lock_status store_lock_wait(const store_run *r, const store_range *at, store_part part);
void store_unlock(const store_run *r, const store_range *at, store_part part);

#endif
