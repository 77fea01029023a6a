/* Which of several processes this one is: by MPI, by the batch scheduler, or alone. */
#ifndef TOOLS_LAUNCH_H
#define TOOLS_LAUNCH_H

typedef enum {
    LAUNCH_ALONE, /* one process */
    LAUNCH_SHARD, /* part index of count, as --shard i/n or the scheduler's variables say: each makes its own shards */
    LAUNCH_MPI    /* rank index of count in one job: shards are dealt out as they come */
} launch_kind;

typedef struct {
    launch_kind kind;
    int index, count; /* 0-based */
    int local_index;  /* among the job's processes on this machine: the number of its GPU modulo their count */
    int local_count;  /* how many these are */
    char source[64];  /* what said so: "--shard 2/5", "SLURM_ARRAY_TASK_ID", "MPI (Open MPI v4.1.4)" */
} launch;

/* Finds it out. `shard`: what --shard was given, "2/5" (from 1) or NULL. Without it the variables, in this order:
 * SLURM_ARRAY_TASK_ID with _MIN and _COUNT; an MPI job (OMPI_COMM_WORLD_SIZE, PMI_SIZE, PMIX_RANK above one process),
 * which is asked through the plug-in libmar-mpi.so if that is there, else by the launcher's variables; SLURM_PROCID and
 * SLURM_NTASKS. Says so, and fails, if MPI was started with N processes and each finds itself alone: another MPI's
 * mpirun. Returns 0, or 1 after printing an error. */
int launch_find(const char *shard, launch *out);

#endif
