/* The directory of an evaluation, for any number of processes, at a time or one after another:
 *
 *     RUN/settings.json        what its numbers depend on (tools/eval/job.h)
 *     RUN/lock                 the file whose bytes are locked, with a line about each process
 *     RUN/runs/                the store of its images (tools/store/store.h), unless --store names another
 *     RUN/images/000000.png    with --save_images
 *     RUN/images.npz           with --save_npz; RUN/images.npz.part until it is complete
 *     RUN/result.json, report.html
 *
 * Every lock is on a byte of RUN/lock, and ends with its process. */
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

/* Writes RUN/name to path, char [RUN_PATH]. Returns path. */
const char *run_path(const run_directory *d, const char *name, char *path);

/* Checks that `path` can be a run directory and can be written. Leaves nothing behind. Returns 0, or 1 with the error
 * printed. */
int run_directory_check(const char *path, run_directory *out);

/* Makes the directory and its subdirectories, and locks it for this process. A process alone must be the only one; a
 * shard's or rank's must be the only one of its number. process NULL: sums only (--merge), beside others of --shard.
 * Returns 0, or 1 with the error printed, such as "RUN: another mar eval is at work there: process 4711 on HOST, since
 * 2026-11-22 02:11:04 UTC". */
int run_directory_begin(run_directory *d, const launch *process);

/* Ends the use of the directory. With `failed` 1 removes the empty directories that run_directory_begin made. */
void run_directory_end(run_directory *d, int failed);

/* Locks held for a while. */
enum {
    RUN_LOCK_SETTINGS, /* reads or writes RUN/settings.json, or makes RUN/images.npz.part */
    RUN_LOCK_MERGE     /* sums */
};

/* Return as lock_take, lock_wait and lock_release. */
lock_status run_lock(run_directory *d, int number);
lock_status run_lock_wait(run_directory *d, int number);
void run_unlock(run_directory *d, int number);

#endif
