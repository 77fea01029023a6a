/* The place of a process among several: from --shard, Slurm's variables, mpirun's variables, or MPI. tests/launch/shown
 * prints it. $SHOWN has no plug-in beside it, $SHOWN_MPI has one that reports $FAKE_MPI. */
#include "tests/support/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Runs `program` with these variables and no others. */
static command_result run(const char *program, const char *variables, const char *shard)
{
    char line[2048];
    snprintf(line, sizeof line, "env -i ASAN_OPTIONS=detect_leaks=0 %s '%s' %s", variables, program, shard);
    return command_run(".", line);
}

static void check(const char *program, const char *variables, const char *shard, int status, const char *said)
{
    command_result r = run(program, variables, shard);
    const char *text = status ? r.err : r.out;
    const int lines = (int)(strchr(text, '\n') ? strchr(text, '\n') - text + 1 : 0);
    if (r.status != status || strstr(text, said) == NULL || (size_t)lines != strlen(text))
        fail_msg("%s %s: status %d, \"%s\" \"%s\", expected %d and \"%s\"", variables, shard, r.status, r.out, r.err,
                 status, said);
    if (!status) assert_string_equal(r.err, "");
    command_result_free(&r);
}

static void finds(const char *variables, const char *said)
{
    check(SHOWN, variables, "", 0, said);
}

static void refuses(const char *variables, const char *said)
{
    check(SHOWN, variables, "", 1, said);
}

TEST_CASE(alone)
{
    finds("", "alone 0/1 local 0/1 by one process\n");
    finds("SLURM_JOB_ID=7 SLURM_ARRAY_TASK_ID=", "alone 0/1 ");                     /* empty is not set */
    finds("SLURM_PROCID=0 SLURM_NTASKS=1", "alone 0/1 local 0/1 by one process\n"); /* srun -n 1, salloc */
    finds("SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=8", "alone 0/1 ");            /* the script of sbatch -n 8 */
    finds("SLURM_JOB_ID=7 SLURM_STEP_ID=4294967290 SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=1", "alone 0/1 ");
    finds("SLURM_NTASKS=8", "alone 0/1 ");                                             /* a shell of salloc -n 8 */
    finds("OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0", "alone 0/1 local 0/1 by "); /* mpirun -n 1 */
    finds("PMIX_RANK=0 SLURM_PROCID=0 SLURM_NTASKS=1", "alone 0/1 ");                  /* srun -n 1 with PMIx */
    /* mpirun -n 1 on a machine where Slurm has started its daemon */
    finds("OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0", "alone 0/1 ");
}

TEST_CASE(shard)
{
    check(SHOWN, "", "2/5", 0, "shard 1/5 local 0/1 by --shard 2/5\n");
    check(SHOWN, "", "1/1", 0, "alone 0/1 local 0/1 by --shard 1/1\n");
    /* --shard overrides the variables, except for the place on this machine. */
    check(SHOWN, "SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=4", "1/2", 0, "shard 0/2 local 0/1 by --shard 1/2\n");
    check(SHOWN, "SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_TASKS_PER_NODE='4(x2)'", "6/8", 0,
          "shard 5/8 local 1/4 by --shard 6/8\n");
    check(SHOWN, "PMIX_RANK=3", "1/2", 0, "shard 0/2 local 3/4 by --shard 1/2\n");
    static const char *const wrong[] = {"0/5",  "6/5",  "5",  "1/0",           "/5",    "1/",
                                        "1/5x", "-1/5", "''", "1/99999999999", "' 1/2'"};
    for (size_t i = 0; i < LENGTH(wrong); i++)
        check(SHOWN, "", wrong[i], 1, "expected i/n with i from 1 to n, such as 2/5\n");
}

TEST_CASE(arrays)
{
    finds("SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=5", "shard 3/5 local 0/1 by SLURM_ARRAY_TASK_ID\n");
    finds("SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=5 SLURM_ARRAY_TASK_COUNT=5", "shard 0/5 ");
    finds("SLURM_ARRAY_TASK_ID=5 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=5 SLURM_ARRAY_TASK_COUNT=5", "shard 4/5 ");
    /* --array=1-9:2, without _STEP and without _COUNT */
    finds("SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=9 SLURM_ARRAY_TASK_STEP=2 "
          "SLURM_ARRAY_TASK_COUNT=5",
          "shard 3/5 ");
    finds("SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=9 SLURM_ARRAY_TASK_COUNT=5", "shard 3/5 ");
    finds("SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=9 SLURM_ARRAY_TASK_STEP=2", "shard 3/5 ");
    finds("SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=10 SLURM_ARRAY_TASK_STEP=2", "shard 3/5 ");
    /* --array=3,7 is two places, for any _STEP. --array=4 runs one failed task again. */
    finds("SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_MIN=3 SLURM_ARRAY_TASK_MAX=7 SLURM_ARRAY_TASK_STEP=1 "
          "SLURM_ARRAY_TASK_COUNT=2",
          "shard 1/2 ");
    finds("SLURM_ARRAY_TASK_ID=4 SLURM_ARRAY_TASK_MIN=4 SLURM_ARRAY_TASK_MAX=4 SLURM_ARRAY_TASK_COUNT=1", "alone 0/1 ");
    /* The processes of a task divide its part. */
    finds("SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_COUNT=3 SLURM_PROCID=1 SLURM_NTASKS=4 "
          "SLURM_LOCALID=1 SLURM_TASKS_PER_NODE=4",
          "shard 5/12 local 1/4 by SLURM_ARRAY_TASK_ID and SLURM_PROCID\n");
    check(SHOWN_MPI,
          "SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_COUNT=3 OMPI_COMM_WORLD_RANK=1 "
          "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1",
          "", 0, "shard 3/6 local 0/1 by SLURM_ARRAY_TASK_ID and OMPI_COMM_WORLD_RANK\n");

    refuses("SLURM_ARRAY_TASK_ID=x SLURM_ARRAY_TASK_COUNT=5",
            "SLURM_ARRAY_TASK_ID is \"x\", expected a number from 0 to 2147483646\n");
    refuses("SLURM_ARRAY_TASK_ID=-1 SLURM_ARRAY_TASK_COUNT=5", "is \"-1\", expected a number from 0 to 2147483646\n");
    refuses("SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_COUNT=0",
            "SLURM_ARRAY_TASK_COUNT is \"0\", expected a number from 1 to 2147483646\n");
    refuses("SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_STEP=0", "SLURM_ARRAY_TASK_STEP is \"0\"");
    refuses("SLURM_ARRAY_TASK_ID=1", "but not SLURM_ARRAY_TASK_COUNT");
    refuses("SLURM_ARRAY_TASK_ID=5 SLURM_ARRAY_TASK_COUNT=5", "SLURM_ARRAY_TASK_ID 5 is no place among 5 tasks");
    refuses("SLURM_ARRAY_TASK_ID=0 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_COUNT=5", "is no place among 5 tasks");
    refuses("SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_MAX=4 SLURM_ARRAY_TASK_COUNT=3", /* 0,1,4 */
            "is no place among 3 tasks that begin with 0 in steps of 2: expected an array such as --array=0-2, or "
            "--shard\n");
    refuses("SLURM_ARRAY_TASK_ID=0 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_MAX=2147483647",
            "SLURM_ARRAY_TASK_MAX is \"2147483647\", expected a number from 0 to 2147483646\n");
    refuses("SLURM_ARRAY_TASK_ID=0 SLURM_ARRAY_TASK_COUNT=2 PMIX_RANK=1", "none says of how many processes");
    refuses("SLURM_ARRAY_TASK_ID=0 SLURM_ARRAY_TASK_COUNT=100000 SLURM_PROCID=0 SLURM_NTASKS=100000", "are too many");
}

TEST_CASE(steps_of_slurm)
{
    finds("SLURM_PROCID=2 SLURM_NTASKS=3", "shard 2/3 local 2/3 by SLURM_PROCID\n");
    finds("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=3", "shard 0/3 local 0/1 by SLURM_PROCID\n");
    finds("SLURM_PROCID=5 SLURM_NTASKS=7 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_TASKS_PER_NODE='4,3'",
          "shard 5/7 local 1/3 ");
    finds("SLURM_PROCID=9 SLURM_NTASKS=11 SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE='4(x2),3' "
          "SLURM_TASKS_PER_NODE=16",
          "shard 9/11 local 1/3 ");
    finds("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_TASKS_PER_NODE='x('", "shard 1/2 local 1/2 ");
    finds("SLURM_PROCID=1 SLURM_NTASKS=9 SLURM_STEP_NUM_TASKS=2", "shard 1/2 ");
    refuses("SLURM_PROCID=3 SLURM_NTASKS=3", "the variable SLURM_PROCID is 3, expected less than SLURM_NTASKS, 3\n");
    refuses("SLURM_PROCID=1 SLURM_NTASKS=many", "SLURM_NTASKS is \"many\", expected a number from 1 to 2147483646\n");
    refuses("SLURM_PROCID=1.5 SLURM_NTASKS=2", "SLURM_PROCID is \"1.5\", expected a number from 0 to 2147483646\n");
    refuses("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=-", "SLURM_LOCALID is \"-\"");
    refuses("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=2147483647", /* one more than the limit */
            "SLURM_LOCALID is \"2147483647\", expected a number from 0 to 2147483646\n");
}

/* Tests mpirun where the command was built without MPI, or where MPI is missing. */
TEST_CASE(mpirun_without_mpi)
{
    finds("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
          "mpi 3/4 local 1/2 by OMPI_COMM_WORLD_RANK\n");
    finds("PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", "mpi 3/4 local 1/2 by PMI_RANK\n");
    finds("PMI_RANK=3 PMI_SIZE=4", "mpi 3/4 local 3/4 by PMI_RANK\n");
    finds("PMIX_RANK=3 SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=0", "mpi 3/4 local 0/1 by PMIX_RANK\n");
    /* In a step of Slurm, the ranks within it count. */
    finds("PMI_RANK=1 PMI_SIZE=2 SLURM_PROCID=0 SLURM_NTASKS=8", "mpi 1/2 ");
    refuses("PMIX_RANK=3", "PMIX_RANK is 3, but none says of how many processes, and there is no libmar-mpi.so to ask");
    refuses("PMI_RANK=4 PMI_SIZE=4", "PMI_RANK is 4, expected less than PMI_SIZE, 4\n");
    refuses("PMI_SIZE=4", "PMI_SIZE is set, but not PMI_RANK");
    refuses("OMPI_COMM_WORLD_SIZE=four OMPI_COMM_WORLD_RANK=0",
            "OMPI_COMM_WORLD_SIZE is \"four\", expected a number from 1 to 2147483646\n");
}

/* The first line on stderr is the plug-in's, which it prints when it is loaded. */
TEST_CASE(mpirun_with_mpi)
{
    static const struct {
        const char *variables;
        int status;
        const char *said;
    } cases[] = {
        {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 FAKE_MPI='3 4 1 2'", 0,
         "mpi 3/4 local 1/2 by MPI (Fake MPI 1)\n"},
        {"PMIX_RANK=3 FAKE_MPI='3 4 1 2'", 0, "mpi 3/4 local 1/2 by MPI (Fake MPI 1)\n"},
        {"PMIX_RANK=0 FAKE_MPI='0 1 0 1'", 0, "alone 0/1 local 0/1 by MPI (Fake MPI 1)\n"},
        {"PMI_SIZE=4 PMI_RANK=3 FAKE_MPI='0 1 0 1'", 1, /* N worlds of one process */
         "mar: PMI_SIZE says that 4 processes were started, but each finds itself alone by Fake MPI 1: their launcher "
         "is "
         "of another MPI than libmar-mpi.so; start them with that of Fake MPI 1, or give each its --shard\n"},
        {"PMIX_RANK=1 FAKE_MPI='0 1 0 1'", 1,
         "mar: PMIX_RANK says that several processes were started, but each finds"},
        {"PMI_SIZE=4 PMI_RANK=3 FAKE_MPI='0 2 0 1'", 1, "mar: PMI_SIZE is 4, but Fake MPI 1 finds 2 processes"},
        {"PMI_SIZE=4 PMI_RANK=3 FAKE_MPI='MPI_Init: no network'", 1, "mar: MPI (Fake MPI 1): MPI_Init: no network\n"},
    };
    static const char loaded[] = "MPI is loaded\n";
    for (size_t i = 0; i < LENGTH(cases); i++) {
        command_result r = run(SHOWN_MPI, cases[i].variables, "");
        if (strncmp(r.err, loaded, strlen(loaded)) != 0)
            fail_msg("%s: MPI is not loaded: %s", cases[i].variables, r.err);
        const char *text = cases[i].status ? r.err + strlen(loaded) : r.out;
        if (r.status != cases[i].status || strncmp(text, cases[i].said, strlen(cases[i].said)) != 0)
            fail_msg("%s: status %d, \"%s\" \"%s\", expected \"%s\"", cases[i].variables, r.status, r.out, r.err,
                     cases[i].said);
        command_result_free(&r);
    }
}

/* Checks that MPI is loaded only if mpirun has started several processes. */
TEST_CASE(mpi_is_not_loaded)
{
    static const char *const variables[] = {
        "", "SLURM_PROCID=1 SLURM_NTASKS=2", "SLURM_ARRAY_TASK_ID=0 SLURM_ARRAY_TASK_COUNT=2",
        "OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0", "PMIX_RANK=0 SLURM_NTASKS=1"};
    for (size_t i = 0; i < LENGTH(variables); i++) check(SHOWN_MPI, variables[i], "", 0, "/");
    check(SHOWN_MPI, "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1", "1/3", 0, "shard 0/3 local 1/2 by --shard 1/3\n");
}

/* Tests the installed layout: the plug-in is in ../lib. A plug-in that cannot be opened counts as missing. */
COMMAND_CASE(installed)
{
    const char *const variables = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1";
    char line[2048];
    snprintf(line, sizeof line,
             "mkdir -p bin " MAR_LIBDIR " && cp '" SHOWN "' bin/shown && cp '" FAKE "' " MAR_LIBDIR
             "/libmar-mpi.so && env -i FAKE_MPI='1 2 0 1' %s bin/shown",
             variables);
    command_result r = command_run(*state, line);
    assert_int_equal(r.status, 0);
    assert_string_equal(r.out, "mpi 1/2 local 0/1 by MPI (Fake MPI 1)\n");
    command_result_free(&r);
    snprintf(line, sizeof line, "echo no library >" MAR_LIBDIR "/libmar-mpi.so && env -i %s bin/shown", variables);
    r = command_run(*state, line);
    assert_int_equal(r.status, 0);
    assert_string_equal(r.out, "mpi 1/2 local 1/2 by OMPI_COMM_WORLD_RANK\n");
    assert_string_equal(r.err, "");
    command_result_free(&r);
}
