#include "tools/cli/launch.h"

#include "tools/cli/command.h"
#include "tools/cli/mpi_plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- variables -------------------------------------------------------------------------------------------------- */

static const char *variable(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    return value && *value ? value : NULL;
}

/* Reads a number from 0 to `most` at `text`, up to `end`. */
static int number_at(const char *text, char end, int most, int *out, const char **rest)
{
    long value = 0;
    const char *c = text;
    for (; *c >= '0' && *c <= '9' && value <= most; c++) value = 10 * value + (*c - '0');
    if (c == text || value > most || *c != end) return 1;
    *out = (int)value;
    if (rest) *rest = c;
    return 0;
}

/* Reads the number in a variable; `absent` if it is not set. Returns 0, or 1 with the error printed. */
static int read_variable(const char *name, int least, int absent, int *out)
{
    const char *value = variable(name);
    *out = absent;
    const int most = INT_MAX - 1; /* a count is the last number plus one */
    if (!value || (number_at(value, 0, most, out, NULL) == 0 && *out >= least)) return 0;
    return tool_error("the variable %s is \"%s\", expected a number from %d to %d", name, value, least, most);
}

/* --- processes of one job ----------------------------------------------------------------------------------------- */

typedef struct {
    const char *source;       /* variable of the rank; NULL: there is no job */
    const char *size_said_by; /* variable of the size */
    int rank, size;           /* size 0: unknown */
    int local_rank, local_size;
    int mpi;
} job;

/* Reads rank and size; `absent` is the size if its variable is not set. Returns 0, or 1 with the error printed. */
static int read_place(const char *rank, const char *size, int absent, job *out)
{
    out->source = rank;
    out->size_said_by = size;
    return read_variable(rank, 0, 0, &out->rank) || read_variable(size, 1, absent, &out->size);
}

/* Returns the processes on node `node` by SLURM_TASKS_PER_NODE, "4(x2),3"; 0 if unknown. */
static int tasks_on_node(const char *list, int node)
{
    for (const char *c = list; c && *c;) {
        char *end;
        const long tasks = strtol(c, &end, 10);
        long nodes = 1;
        if (end == c || tasks < 1 || tasks > INT_MAX) return 0;
        if (strncmp(end, "(x", 2) == 0) {
            nodes = strtol(end + 2, &end, 10);
            if (*end++ != ')' || nodes < 1) return 0;
        }
        if (node < nodes) return (int)tasks;
        node -= (int)nodes;
        c = *end == ',' ? end + 1 : "";
    }
    return 0;
}

static const char *slurm_size_variable(void)
{
    return variable("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
}

/* Finds the rank on the node by Slurm, if it is known. */
static int find_slurm_local(job *out)
{
    int node;
    if (read_variable("SLURM_LOCALID", 0, out->rank, &out->local_rank) || read_variable("SLURM_NODEID", 0, 0, &node))
        return 1;
    const char *list = variable("SLURM_STEP_TASKS_PER_NODE");
    out->local_size = tasks_on_node(list ? list : variable("SLURM_TASKS_PER_NODE"), node);
    return 0;
}

/* Finds the rank and size in a step of Slurm. A batch script is no step: SLURM_PROCID is 0, and SLURM_NTASKS counts the
 * tasks it may start. It runs alone, as does the shell of salloc, a step of one task. */
static int find_step(job *out)
{
    const int script = variable("SLURM_JOB_ID") && !variable("SLURM_STEP_ID") && !variable("SLURM_STEPID");
    const char *size = slurm_size_variable();
    if (script || !variable("SLURM_PROCID") || !variable(size)) return 0;
    return read_place("SLURM_PROCID", size, 1, out) || find_slurm_local(out);
}

/* Finds rank and size by the variables of mpirun and its relatives. */
static int find_mpirun(job *out)
{
    static const struct {
        const char *rank, *size, *local_rank, *local_size;
    } known[] = {
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    };
    out->mpi = 1;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (!variable(known[i].size)) continue;
        if (!variable(known[i].rank))
            return tool_error("the variable %s is set, but not %s: expected both, as mpirun sets them", known[i].size,
                              known[i].rank);
        return read_place(known[i].rank, known[i].size, 1, out) ||
               read_variable(known[i].local_rank, 0, out->rank, &out->local_rank) ||
               read_variable(known[i].local_size, 1, 0, &out->local_size);
    }
    if (!variable("PMIX_RANK")) return 0;
    return read_place("PMIX_RANK", slurm_size_variable(), 0, out) || find_slurm_local(out);
}

/* Finds the job by variables alone. The innermost launcher counts: mpirun starts its daemons as steps of Slurm. */
static int find_job(job *out)
{
    *out = (job){0};
    if (find_mpirun(out) != 0) return 1;
    if (!out->source) {
        *out = (job){0};
        if (find_step(out) != 0) return 1;
    }
    if (out->source && out->size > 0 && out->rank >= out->size)
        return tool_error("the variable %s is %d, expected less than %s, %d", out->source, out->rank, out->size_said_by,
                          out->size);
    return 0;
}

/* --- MPI ------------------------------------------------------------------------------------------------------------
 */

/* Opens FOLDER-OF-THE-COMMAND/`between`/libmar-mpi.so. Returns NULL on failure. */
static void *open_beside(const char *between)
{
    char path[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    if (length <= 0 || (size_t)length >= sizeof path) return NULL;
    path[length] = 0;
    char *end = strrchr(path, '/');
    if (!end) return NULL;
    const size_t left = sizeof path - (size_t)(end - path);
    if ((size_t)snprintf(end, left, "/%s%s", between, MPI_PLUGIN_FILE) >= left) return NULL;
    /* The parts that an MPI opens need its symbols to be global. */
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

/* Asks the plug-in. Returns 1 with an answer, 0 without a plug-in or a usable MPI, -1 with the error printed. The
 * plug-in stays open: an MPI does not always survive being closed. */
static int ask_mpi(mpi_place *out)
{
    void *plugin = open_beside("");
    if (!plugin) plugin = open_beside("../" MAR_LIBDIR "/");
    if (!plugin) return 0;
    mpi_find_place *find = NULL;
    *(void **)&find = dlsym(plugin, MPI_PLUGIN_SYMBOL);
    if (!find) return 0;
    if (find(out) == 0) return 1;
    tool_error("MPI (%s): %s", out->version, out->error);
    return -1;
}

/* Checks that MPI and the launcher agree. Returns 0, or 1 with the error printed. */
static int check_place(const mpi_place *place, const job *j)
{
    if (place->size == 1 && (j->size > 1 || j->rank > 0)) {
        char count[48] = "several";
        if (j->size > 0) snprintf(count, sizeof count, "%d", j->size);
        return tool_error(
            "%s says that %s processes were started, but each finds itself alone by %s: their launcher is of "
            "another MPI than " MPI_PLUGIN_FILE "; start them with that of %s, or give each its --shard",
            j->size > 0 ? j->size_said_by : j->source, count, place->version, place->version);
    }
    if (j->size > 0 && place->size != j->size)
        return tool_error("%s is %d, but %s finds %d processes: expected one launcher for all of them", j->size_said_by,
                          j->size, place->version, place->size);
    return 0;
}

/* Finds the place in a job of mpirun, of several processes or of an unknown number. */
static int find_by_mpi(const job *j, launch *out)
{
    mpi_place place = {0};
    const int answered = ask_mpi(&place);
    if (answered < 0) return 1;
    if (answered > 0) {
        if (check_place(&place, j) != 0) return 1;
        out->index = place.rank, out->count = place.size;
        out->local_index = place.local_rank, out->local_count = place.local_size;
        snprintf(out->source, sizeof out->source, "MPI (%.50s)", place.version);
    } else if (j->size == 0) {
        return tool_error("the variable %s is %d, but none says of how many processes, and there is no " MPI_PLUGIN_FILE
                          " to ask: give each its --shard",
                          j->source, j->rank);
    } else {
        snprintf(out->source, sizeof out->source, "%s", j->source);
    }
    out->kind = out->count > 1 ? LAUNCH_MPI : LAUNCH_ALONE;
    return 0;
}

/* --- shards of a run ---------------------------------------------------------------------------------------------- */

/* Reads --shard i/n. */
static int read_shard(const char *shard, launch *out)
{
    const char *slash;
    int part, count;
    if (number_at(shard, '/', INT_MAX, &part, &slash) != 0 || number_at(slash + 1, 0, INT_MAX, &count, NULL) != 0 ||
        part < 1 || part > count)
        return tool_error("--shard is \"%s\", expected i/n with i from 1 to n, such as 2/5", shard);
    out->index = part - 1, out->count = count;
    snprintf(out->source, sizeof out->source, "--shard %d/%d", part, count);
    return 0;
}

/* Reads the place in an array of Slurm. Its numbers begin at _MIN and advance in steps. _STEP does not tell the step of
 * a list such as --array=3,7. */
static int find_array(int *index, int *count)
{
    int id, least, most, step;
    if (read_variable("SLURM_ARRAY_TASK_ID", 0, 0, &id) || read_variable("SLURM_ARRAY_TASK_MIN", 0, 0, &least) ||
        read_variable("SLURM_ARRAY_TASK_MAX", 0, -1, &most) || read_variable("SLURM_ARRAY_TASK_STEP", 1, 1, &step) ||
        read_variable("SLURM_ARRAY_TASK_COUNT", 1, 0, count))
        return 1;
    if (*count == 0 && most < least)
        return tool_error("SLURM_ARRAY_TASK_ID is set, but not SLURM_ARRAY_TASK_COUNT: expected both, or --shard");
    if (*count == 0) *count = (most - least) / step + 1;
    if (most > least && *count > 1 && (most - least) / step + 1 != *count && (most - least) % (*count - 1) == 0)
        step = (most - least) / (*count - 1);
    *index = (id - least) / step;
    if (id < least || (id - least) % step != 0 || *index >= *count)
        return tool_error(
            "SLURM_ARRAY_TASK_ID %d is no place among %d tasks that begin with %d in steps of %d: expected an "
            "array such as --array=0-%d, or --shard",
            id, *count, least, step, *count - 1);
    return 0;
}

/* Divides the shard of an array's task among the task's processes. */
static int find_in_array(const job *j, launch *out)
{
    int index = 0, count = 1;
    if (find_array(&index, &count) != 0) return 1;
    if (j->source && j->size == 0)
        return tool_error("the variable %s is set in a task of an array, but none says of how many processes: expected "
                          "SLURM_NTASKS, or --shard",
                          j->source);
    if (out->count > INT_MAX / count)
        return tool_error("%d tasks of %d processes are too many, expected at most %d", count, out->count, INT_MAX);
    snprintf(out->source, sizeof out->source, "SLURM_ARRAY_TASK_ID%s%s", out->count > 1 ? " and " : "",
             out->count > 1 ? j->source : "");
    out->index += index * out->count;
    out->count *= count;
    return 0;
}

int launch_find(const char *shard, launch *out)
{
    job j;
    *out = (launch){.kind = LAUNCH_ALONE, .count = 1, .local_count = 1, .source = "one process"};
    if (find_job(&j) != 0) return 1;
    if (j.source) {
        out->index = j.rank, out->count = j.size > 0 ? j.size : 1;
        out->local_index = j.local_rank;
        out->local_count = j.local_size > j.local_rank ? j.local_size : j.local_rank + 1;
    }
    if (shard || variable("SLURM_ARRAY_TASK_ID")) {
        if ((shard ? read_shard(shard, out) : find_in_array(&j, out)) != 0) return 1;
        out->kind = out->count > 1 ? LAUNCH_SHARD : LAUNCH_ALONE;
        return 0;
    }
    if (j.source && j.mpi && j.size != 1) return find_by_mpi(&j, out);
    if (j.source && j.size > 1) {
        out->kind = LAUNCH_SHARD;
        snprintf(out->source, sizeof out->source, "%s", j.source);
    }
    return 0;
}
