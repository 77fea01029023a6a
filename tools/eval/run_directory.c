#include "tools/eval/run_directory.h"

#include "tools/cli/command.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* --- paths ---------------------------------------------------------------------------------------------- */

const char *run_path(const run_directory *d, const char *name, char *path)
{
    const size_t n = strlen(d->out.path);
    snprintf(path, RUN_PATH, "%s%s%s", d->out.path, n > 0 && d->out.path[n - 1] == '/' ? "" : "/", name);
    return path;
}

int run_directory_check(const char *path, run_directory *out)
{
    if (strlen(path) > RUN_PATH - 100) return tool_error("--out: has %zu bytes, expected a shorter path", strlen(path));
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode))
        return tool_error("--out %s: is a file, expected a directory", path);
    if (output_check(&out->out, path, IMAGE_PNG) != 0) return 1;
    if (out->out.is_file) return tool_error("--out %s: expected a directory, which gets several files", path);
    return 0;
}

/* --- locks ---------------------------------------------------------------------------------------------- */

/* Locked bytes of the lock file, independent of its content. */
static const off_t byte_alone = 0;             /* exclusive: one process alone; shared: one of several */
static const off_t byte_process = 16;          /* plus the process's number; apart, as adjacent locks merge */
static const off_t byte_held = (off_t)1 << 32; /* plus RUN_LOCK_... */
enum { PROCESSES_MAX = 1 << 20, LINE = 128 };  /* bytes of a process's line */

static lock_status take_run_byte(const run_directory *d, off_t byte, int shared)
{
    char path[RUN_PATH];
    return lock_take(d->lock - 1, byte, shared, run_path(d, "lock", path));
}

lock_status run_lock(run_directory *d, int number)
{
    return take_run_byte(d, byte_held + number, 0);
}

lock_status run_lock_wait(run_directory *d, int number)
{
    char path[RUN_PATH];
    return lock_wait(d->lock - 1, byte_held + number, run_path(d, "lock", path));
}

void run_unlock(run_directory *d, int number)
{
    lock_release(d->lock - 1, byte_held + number);
}

/* --- lines about processes ---------------------------------------------------------------------------------------- */

/* Reads the line about process `number`; "" if there is none. */
static void read_process_line(const run_directory *d, off_t number, char line[LINE + 1])
{
    const ssize_t n = pread(d->lock - 1, line, LINE, number * LINE);
    line[n > 0 ? n : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    for (size_t i = strlen(line); i > 0 && line[i - 1] == ' '; i--) line[i - 1] = '\0';
}

/* Writes a line of fixed size, so that others can find theirs. Nothing depends on it. */
static void write_process_line(const run_directory *d, off_t number)
{
    char host[64] = "", when[40], line[LINE], padded[LINE];
    const time_t now = time(NULL);
    struct tm utc;
    gethostname(host, sizeof host - 1);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &utc));
    snprintf(line, sizeof line, "process %ld on %s, since %s", (long)getpid(), host, when);
    memset(padded, ' ', sizeof padded);
    memcpy(padded, line, strlen(line));
    padded[LINE - 1] = '\n';
    if (pwrite(d->lock - 1, padded, LINE, number * LINE) != LINE) return; /* the lock alone counts */
}

static int refuse_busy_run(const run_directory *d, off_t first, off_t count)
{
    char line[LINE + 1] = "";
    const off_t held = lock_holder(d->lock - 1, byte_process + first, count);
    if (held >= byte_process) read_process_line(d, held - byte_process, line);
    return tool_error("%s: another mar eval is at work there%s%s", d->out.path, *line ? ": " : "", line);
}

/* --- begin and end ------------------------------------------------------------------------------------------------ */

static int open_lock(run_directory *d)
{
    static const char begin[] = "process "; /* a process's line begins so; skipped lines are zero */
    char path[RUN_PATH], found[sizeof begin - 1];
    const int fd = lock_open(run_path(d, "lock", path));
    if (fd < 0) return 1;
    d->lock = fd + 1;
    const ssize_t n = pread(fd, found, sizeof found, 0);
    if (n > 0 && *found && memcmp(found, begin, (size_t)n) != 0)
        return tool_error("%s: is no lock of a run, expected another --out", path);
    return 0;
}

/* Takes the lock of a process among several, or of one alone. */
static int take_place(run_directory *d, const launch *process)
{
    const int alone = process && process->kind == LAUNCH_ALONE;
    const off_t number = process && !alone ? process->index : 0;
    lock_status status = take_run_byte(d, byte_alone, !alone);
    if (status == LOCK_BUSY) return refuse_busy_run(d, 0, PROCESSES_MAX);
    if (status == LOCK_FAILED) return 1;
    if (!process) return 0;
    status = take_run_byte(d, byte_process + number, 0);
    if (status == LOCK_BUSY) return refuse_busy_run(d, number, 1);
    if (status == LOCK_FAILED) return 1;
    write_process_line(d, number);
    return 0;
}

int run_directory_begin(run_directory *d, const launch *process)
{
    if (output_begin(&d->out) != 0) return 1;
    return open_lock(d) || take_place(d, process);
}

void run_directory_end(run_directory *d, int failed)
{
    if (d->lock) close(d->lock - 1);
    if (failed) output_abandon(&d->out);
    output_free(&d->out);
    *d = (run_directory){0};
}
