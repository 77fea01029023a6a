/* The plug-in's interface. libmar-mpi.so alone is linked with MPI, so that the command runs without an MPI. */
#ifndef TOOLS_MPI_PLUGIN_H
#define TOOLS_MPI_PLUGIN_H

typedef struct {
    int rank, size;             /* in the job; 0-based */
    int local_rank, local_size; /* among the job's processes that share this machine's memory */
    char version[64];           /* version of the MPI: "Open MPI v4.1.4" */
    char error[256];            /* reason of failure, one line */
} mpi_place;

/* Initialises MPI, asks, and finalises it. All processes of the job are there at the start; later none waits for one
 * that may have died. The process goes on without MPI. A second call repeats the first answer. Returns 0, or 1 with
 * out->error. */
typedef int mpi_find_place(mpi_place *out);

/* The plug-in's one symbol, and its file. */
#define MPI_PLUGIN_SYMBOL "mar_mpi_find_place"
#define MPI_PLUGIN_FILE   "libmar-mpi.so"

__attribute__((visibility("default"))) mpi_find_place mar_mpi_find_place;

#endif
