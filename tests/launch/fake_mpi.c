/* A plug-in without MPI. $FAKE_MPI is "rank size local_rank local_size", or an error. It prints a line when loaded. */
#include "tools/cli/mpi_plugin.h"

#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void loaded(void)
{
    fprintf(stderr, "MPI is loaded\n");
}

int mar_mpi_find_place(mpi_place *out)
{
    const char *answer = getenv("FAKE_MPI");
    *out = (mpi_place){.version = "Fake MPI 1"};
    if (!answer) answer = "no FAKE_MPI";
    if (sscanf(answer, "%d %d %d %d", &out->rank, &out->size, &out->local_rank, &out->local_size) == 4) return 0;
    snprintf(out->error, sizeof out->error, "%s", answer);
    return 1;
}
