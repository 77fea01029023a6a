/* Evaluations that are killed at random moments. A round takes random settings and makes one uninterrupted run. Then
 * it makes the same run by one or several processes. One of them, or all, get SIGKILL, at times SIGTERM or SIGINT,
 * again and again. In the end the numbers of RUN/result.json, images.npz and the pictures must be the same, byte by
 * byte. The store must have the same pieces.
 *
 *     kills COMMAND COUNT [SEED]
 *
 * It ends after COUNT signals that reached a process at work. A round's settings depend on SEED and its number. The
 * moments are fractions of the first run's time. The directory of a round that found something stays.
 */
#include "tests/attack/random.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ARGS = 40, RANKS_MAX = 3, SIGNALS_MAX = 14, PATIENCE = 300, GOES_ON = 75 };

typedef struct {
    const char *command;
    uint64_t random;
    char directory[1024];
    char *args[ARGS]; /* without --out */
    int arg_count;
    int ranks;      /* 0: a single process */
    double seconds; /* of the uninterrupted run */
    long killed, stopped;
    int found;
} round_state;

static int below(round_state *r, int n)
{
    return (int)(random_next(&r->random) % (uint64_t)n);
}

__attribute__((format(printf, 2, 3))) static void add(round_state *r, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (r->arg_count + 4 >= ARGS || vasprintf(&r->args[r->arg_count++], format, arguments) < 0) abort();
    va_end(arguments);
}

__attribute__((format(printf, 2, 3))) static void find(round_state *r, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("kills: ");
    vprintf(format, arguments);
    printf("\n    in %s: mar", r->directory);
    for (int i = 1; i < r->arg_count; i++) printf(" %s", r->args[i]);
    printf("\n");
    fflush(stdout);
    va_end(arguments);
    r->found = 1;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void make_settings(round_state *r)
{
    const int batch = 1 + below(r, 5);
    add(r, "mar");
    add(r, "eval");
    add(r, "--quiet");
    add(r, "--seed=%d", below(r, 100));
    add(r, "--num_iter=%d", 1 + below(r, 3));
    add(r, "--num_sampling_steps=%d", 2 + below(r, 4));
    add(r, "--batch=%d", batch);
    add(r, "--num_images=%d", 40 + below(r, 60));
    add(r, "--shard_images=%d", batch * (1 + below(r, 8)));
    if (below(r, 2)) add(r, "--save_npz");
    if (below(r, 3) == 0) add(r, "--save_images");
    if (below(r, 3) == 0) add(r, "--class_sampling=random");
    if (below(r, 3) == 0) add(r, "--draft=demo-draft");
    r->ranks = below(r, 2) ? 0 : 2 + below(r, RANKS_MAX - 1);
}

/* Starts rank i of the run in the directory `out`. */
static pid_t start(round_state *r, const char *out, int rank)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child != 0) return child;
    char text[1100], size[16], number[16];
    snprintf(text, sizeof text, "--out=%s", out);
    r->args[r->arg_count] = text;
    r->args[r->arg_count + 1] = NULL;
    snprintf(size, sizeof size, "%d", r->ranks);
    snprintf(number, sizeof number, "%d", rank);
    if (r->ranks && (setenv("PMI_SIZE", size, 1) != 0 || setenv("PMI_RANK", number, 1) != 0)) _exit(125);
    if (chdir(r->directory) != 0 || !freopen("errors", "a", stderr) || !freopen("/dev/null", "w", stdout)) _exit(125);
    execv(r->command, r->args);
    _exit(126);
}

/* Waits for a process, `seconds` at most. Returns 1, or 0 if it still runs. */
static int wait_for(pid_t child, double seconds, int *status)
{
    const double until = now() + seconds;
    pid_t ended;
    while ((ended = waitpid(child, status, WNOHANG)) == 0 && now() < until) usleep(500);
    return ended == child;
}

/* Checks that a process ended by itself or by the signal it was sent, with a status from the manual. */
static void check_end(round_state *r, int status, int sent)
{
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == 0) return;
    if (sent == SIGKILL && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return;
    if (sent == SIGTERM && (code == GOES_ON || (WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM))) return;
    if (sent == SIGINT && (code == 130 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGINT))) return;
    find(r, "signal %d, wait status 0x%x", sent, (unsigned)status);
}

/* Starts all processes of the run once. After a while one or all get the signal `number`, or none if it is 0. */
static void start_and_stop(round_state *r, const char *out, int number, double after)
{
    pid_t children[RANKS_MAX];
    const int count = r->ranks ? r->ranks : 1, victim = below(r, count), all = below(r, 2);
    for (int i = 0; i < count; i++) children[i] = start(r, out, i);
    if (number) usleep((useconds_t)(after * 1e6));
    for (int i = 0; i < count; i++) {
        int status = 0, sent = 0;
        const int meant = number && (all || i == victim);
        if (meant && waitpid(children[i], &status, WNOHANG) == 0) {
            kill(children[i], sent = number);
            r->killed += number == SIGKILL;
            r->stopped += number != SIGKILL;
        } else if (meant) {
            check_end(r, status, 0);
            continue;
        }
        if (!wait_for(children[i], PATIENCE, &status)) {
            find(r, "did not end %d s after signal %d", PATIENCE, number);
            kill(children[i], SIGKILL);
            waitpid(children[i], &status, 0);
        }
        check_end(r, status, sent);
    }
}

static void must(round_state *r, const char *line)
{
    char *script;
    if (asprintf(&script, "cd '%s' && { %s\n} >>lines 2>&1", r->directory, line) < 0) abort();
    if (system(script) != 0) find(r, "%s", line);
    free(script);
}

static void compare(round_state *r)
{
    must(r, "for d in whole cut; do sed -n '/\"numbers\"/,/\"run\"/p' $d/result.json >$d.numbers; done; "
            "test -s cut.numbers && cmp whole.numbers cut.numbers");
    must(r, "diff -r whole cut -x runs -x lock -x result.json -x report.html");
    /* The report's pictures of rejected drafts depend on the images that each process has made. */
    must(r, "for d in whole cut; do (cd $d && ls -A runs/* | grep -v picture) >$d.pieces; done; "
            "cmp whole.pieces cut.pieces");
}

static void play(round_state *r, long most)
{
    const int times = 1 + below(r, SIGNALS_MAX), ranks = r->ranks;
    const double began = now();
    r->ranks = 0;
    start_and_stop(r, "whole", 0, 0);
    r->ranks = ranks;
    r->seconds = now() - began;
    for (int i = 0; i < times && r->killed + r->stopped < most && !r->found; i++) {
        const int number = below(r, 5) ? SIGKILL : below(r, 2) ? SIGTERM : SIGINT;
        start_and_stop(r, "cut", number, r->seconds * 1.2 * below(r, 1000) / 1000);
    }
    start_and_stop(r, "cut", 0, 0);
    compare(r);
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: kills COMMAND COUNT [SEED]\n");
        return 2;
    }
    const long count = atol(argv[2]);
    const uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    const char *base = getenv("TMPDIR");
    long killed = 0, stopped = 0, rounds = 0;
    int found = 0;
    setenv("ASAN_OPTIONS", "detect_leaks=1:allocator_may_return_null=1", 0);
    char *whole = realpath(argv[1], NULL), *slash = whole ? strrchr(whole, '/') : NULL, *data;
    if (!slash || asprintf(&data, "%.*s/share/libmar", (int)(slash - whole), whole) < 0) abort();
    setenv("MAR_DATA_DIR", data, 0); /* a copy of the command finds none beside it */
    free(data);
    free(whole);
    for (size_t i = 0; i < 3; i++) signal((const int[]){SIGINT, SIGTERM, SIGHUP}[i], SIG_DFL);
    while (killed + stopped < count && !found) {
        round_state r = {.random = seed * 0xd1342543de82ef95u ^ (uint64_t)rounds++};
        snprintf(r.directory, sizeof r.directory, "%s/kills-XXXXXX", base && *base ? base : "/tmp");
        char command[1100];
        if (!mkdtemp(r.directory)) abort();
        snprintf(command, sizeof command, "%s/mar", r.directory); /* a folder without an MPI plug-in */
        char *copy;
        if (asprintf(&copy, "cp '%s' '%s'", argv[1], command) < 0 || system(copy) != 0) abort();
        free(copy);
        r.command = command;
        make_settings(&r);
        play(&r, count - killed - stopped);
        killed += r.killed;
        stopped += r.stopped;
        found |= r.found;
        for (int i = 0; i < r.arg_count; i++) free(r.args[i]);
        char *removal;
        if (!r.found && asprintf(&removal, "rm -rf '%s'", r.directory) >= 0) {
            if (system(removal) != 0) abort();
            free(removal);
        }
    }
    printf("kills: %ld rounds, %ld processes killed, %ld stopped, %s\n", rounds, killed, stopped,
           found ? "something found" : "nothing found");
    return found;
}
