/* The place of this process among several: by MPI, by the batch scheduler, or alone. */
#ifndef TOOLS_LAUNCH_H
#define TOOLS_LAUNCH_H

typedef enum {
    LAUNCH_ALONE, /* one process */
    LAUNCH_SHARD, /* part index of count (--shard i/n, or the scheduler's variables): each makes its own shards */
    LAUNCH_MPI    /* rank index of count in one job: shards are claimed as they come */
} launch_kind;

typedef struct {
    launch_kind kind;
    int index, count; /* 0-based */
    int local_index;  /* index among the job's processes on this machine; its GPU has this number modulo their count */
    int local_count;  /* number of those processes */
    char source[64];  /* source of the above: "--shard 2/5", "SLURM_ARRAY_TASK_ID", "MPI (Open MPI v4.1.4)" */
} launch;

/* Finds the place of this process. `shard`: the value of --shard, "2/5" (from 1), or NULL. Without it the variables
 * decide, in this order: SLURM_ARRAY_TASK_ID with _MIN and _COUNT; an MPI job (OMPI_COMM_WORLD_SIZE, PMI_SIZE,
 * PMIX_RANK above one process); SLURM_PROCID and SLURM_NTASKS. An MPI job is asked through the plug-in libmar-mpi.so if
 * it is there, else by the launcher's variables. If MPI was started with N processes and each finds itself alone, by
 * another MPI's mpirun, it fails. Returns 0, or 1 with the error printed. */
int launch_find(const char *shard, launch *out);

#endif
