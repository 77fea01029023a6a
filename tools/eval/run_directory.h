/* The directory of an evaluation that any number of processes may work in, now or one after another:
 *
 *     RUN/settings.json        what its numbers depend on (tools/eval/job.h)
 *     RUN/lock                 the file whose bytes are locked, with a line about each process
 *     RUN/runs/                the store of its images (tools/store/store.h), unless --store names another
 *     RUN/images/000000.png    with --save_images
 *     RUN/images.npz           with --save_npz; RUN/images.npz.part until all of it is there
 *     RUN/result.json, report.html
 *
 * Every lock is one on a byte of RUN/lock. It goes with the process that has it, however that ends. */
#ifndef TOOLS_RUN_DIRECTORY_H
#define TOOLS_RUN_DIRECTORY_H

#include "tools/cli/launch.h"
#include "tools/images/output.h"
#include "tools/store/lock.h"

#include <stddef.h>

enum { RUN_PATH = 4400 }; /* bytes of a path in it */

/* Initialise with {0}. */
typedef struct {
    output out; /* RUN itself */
    int lock;   /* descriptor of RUN/lock plus 1; 0: none */
} run_directory;

/* RUN/name, into path, char [RUN_PATH], which it returns. */
const char *run_path(const run_directory *d, const char *name, char *path);

/* Whether `path` can be a run directory, and can be written to. Nothing is left behind. Returns 0, or 1 after printing.
 */
int run_directory_check(const char *path, run_directory *out);

/* Makes the directory and those in it, and takes the lock of this process: alone it must be the only one; a shard's or
 * a rank's must be the only one of its number. With who NULL it adds up only (--merge), beside others of --shard.
 * Returns 0, or 1 after printing an error, such as "RUN: another mar eval is at work there: process 4711 on HOST, since
 * 2026-11-22 02:11:04 UTC". */
int run_directory_begin(run_directory *d, const launch *who);

/* After all. Directories that run_directory_begin has made and that are empty are removed with `failed` 1. */
void run_directory_end(run_directory *d, int failed);

/* Locks that are held for a while. */
enum {
    RUN_LOCK_SETTINGS, /* whoever reads or writes RUN/settings.json, and makes RUN/images.npz.part */
    RUN_LOCK_MERGE     /* whoever adds up */
};

/* As lock_take, lock_wait and lock_release. */
lock_status run_lock(run_directory *d, int number);
lock_status run_lock_wait(run_directory *d, int number);
void run_unlock(run_directory *d, int number);

#endif
