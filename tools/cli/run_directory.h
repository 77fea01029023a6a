/* The directory of an evaluation that any number of processes may work in, now or one after another:
 *
 *     RUN/settings.json        what its numbers depend on (tools/eval_settings.h)
 *     RUN/lock                 the file whose bytes are locked, with a line about each process
 *     RUN/shards/000012.part   journal of a shard in progress (tools/eval/journal.h)
 *     RUN/shards/000012.mars   a finished shard (tools/eval/shard.h)
 *     RUN/images/000000.png    with --save_images
 *     RUN/images.npz           with --save_npz; RUN/images.npz.part until all of it is there
 *     RUN/result.json, report.html
 *
 * Every lock is one on a byte of RUN/lock. It goes with the process that has it, however that ends. */
#ifndef TOOLS_RUN_DIRECTORY_H
#define TOOLS_RUN_DIRECTORY_H

#include "tools/cli/launch.h"
#include "tools/images/output.h"

#include <stddef.h>

enum { RUN_PATH = 4400 }; /* bytes of a path in it */

/* Initialise with {0}. */
typedef struct {
    output out; /* RUN itself */
    int lock;   /* descriptor of RUN/lock plus 1; 0: none */
} run_directory;

/* RUN/name, into path, char [RUN_PATH], which it returns. */
const char *run_path(const run_directory *d, const char *name, char *path);
/* RUN/shards/000012.mars of shard 12 and ".mars". */
const char *run_shard_path(const run_directory *d, int shard, const char *ending, char *path);

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
    RUN_LOCK_MERGE,    /* whoever adds up */
    RUN_LOCK_SHARDS    /* plus a shard's number: whoever makes it */
};

typedef enum { RUN_LOCKED, RUN_BUSY, RUN_FAILED } run_lock_status;

/* Takes the lock, or says that another process has it, or that it cannot be had, which was printed. */
run_lock_status run_lock(run_directory *d, int number);
/* Waits until the lock is there. Returns RUN_LOCKED or RUN_FAILED, or RUN_BUSY after a signal
 * (tools/cli/interruption.h).
 */
run_lock_status run_lock_wait(run_directory *d, int number);
void run_unlock(run_directory *d, int number);

/* Sleeps for a fraction of a second, or until a signal comes. */
void run_pause(void);

#endif
