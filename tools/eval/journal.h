/* The journal of a shard in progress: a record for every finished batch, in order. A process that is killed, at any
 * moment, loses what it had not yet written of one; whoever goes on reads the records that are whole. */
#ifndef TOOLS_EVAL_JOURNAL_H
#define TOOLS_EVAL_JOURNAL_H

#include "tools/eval/record.h"
#include "tools/cli/run_directory.h"

#include <sys/types.h>

typedef struct {
    const eval_layout *layout;
    char path[RUN_PATH];
    int fd;     /* -1: none */
    int shard;  /* whose it is */
    long next;  /* the image that comes next: those of the shard before it have been read or appended */
    off_t end;  /* where that record begins */
    int is_cut; /* 1: nothing lies behind `end` */
} eval_journal;

/* Opens the shard's journal, or begins one; nothing has been read of it then. One that is not of this run and shard
 * makes room for a new one. The layout must stay. Returns 0, or 1 after printing an error. */
int eval_journal_open(const run_directory *d, const eval_layout *l, int shard, eval_journal *out);
void eval_journal_close(eval_journal *j);

/* Goes back to the first record. */
void eval_journal_rewind(eval_journal *j);
/* Reads the next record into r. Returns 1; 0 at the end, or where what follows is not whole, or after the shard's last
 * image; -1 after printing an error. */
int eval_journal_read(eval_journal *j, eval_record *r);
/* Takes back the record that was read last: it counts as not there. */
void eval_journal_drop(eval_journal *j, const eval_record *r);
/* Appends the record, which eval_record_finish has completed, at the place of the next one; what lay there is gone.
 * Returns 0, or 1 after printing an error; the journal is as it was then. */
int eval_journal_append(eval_journal *j, const eval_record *r);

#endif
