/* libmar-mpi.so: the only part linked with MPI. */
#include "tools/cli/mpi_plugin.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

/* Finds the library's version: its first line up to a comma, "Open MPI v4.1.4" or "MPICH Version: 4.0.2". */
static void find_version(mpi_place *out)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return;
    text[strcspn(text, ",\r\n")] = 0;
    for (char *c = text; (c = strpbrk(c, "\t")); c++) *c = ' ';
    snprintf(out->version, sizeof out->version, "%.63s", text);
}

static int failed(mpi_place *out, const char *call, int status)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(status, text, &length);
    text[strcspn(text, "\r\n")] = 0;
    snprintf(out->error, sizeof out->error, "%s: %.200s", call, text);
    return 1;
}

/* Asks rank and size in the job and on this machine. */
static int ask(mpi_place *out)
{
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); /* communicators made from it inherit this */
    int status = MPI_Comm_rank(MPI_COMM_WORLD, &out->rank);
    if (status == MPI_SUCCESS) status = MPI_Comm_size(MPI_COMM_WORLD, &out->size);
    if (status != MPI_SUCCESS) return failed(out, "MPI_Comm_size", status);

    MPI_Comm machine;
    status = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, out->rank, MPI_INFO_NULL, &machine);
    if (status != MPI_SUCCESS) return failed(out, "MPI_Comm_split_type", status);
    status = MPI_Comm_rank(machine, &out->local_rank);
    if (status == MPI_SUCCESS) status = MPI_Comm_size(machine, &out->local_size);
    MPI_Comm_free(&machine);
    return status == MPI_SUCCESS ? 0 : failed(out, "MPI_Comm_size", status);
}

static int find(mpi_place *out)
{
    find_version(out); /* allowed before MPI is initialised */
    int provided;
    const int status = MPI_Init_thread(NULL, NULL, MPI_THREAD_SINGLE, &provided);
    if (status != MPI_SUCCESS) return failed(out, "MPI_Init_thread", status);
    const int wrong = ask(out);
    MPI_Finalize();
    return wrong;
}

int mar_mpi_find_place(mpi_place *out)
{
    static mpi_place place; /* MPI can be initialised once */
    static int asked, wrong;
    if (!asked) wrong = find(&place);
    asked = 1;
    *out = place;
    return wrong;
}
