/* The command with too little memory. Limits are set on its address space or on its allocations. One allocation fails
 * in any library, or all later ones fail, too, or no second thread starts. The command makes its usual output, or ends
 * with status 1, one line that says so, and no file. Skipped under the sanitizers, which replace the allocator. */
#include "tests/support/command.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)

int main(void)
{
    puts("SKIPPED: command.memory_limits: the sanitizers replace the allocator and take an address space of their own");
    return 77;
}

#else

/* --- a job and its end -------------------------------------------------------------------------------------------- */

#define SHORT "--num_iter", "1", "--num_sampling_steps", "2"
#define ONE   "--class", "1", "--num", "1", "--out", "out.png"

typedef struct {
    const char *name, *argv[24];
    int same_text; /* it prints the same each time, or nothing; others print times */
} job;

static const job generate_f32 = {
    "generate f32", {"mar", "generate", ONE, SHORT, "--threads", "1", "--dtype", "f32"}, 0};
static const job generate_best = {"generate", {"mar", "generate", ONE, SHORT, "--threads", "2"}, 0};
static const job inspect = {"inspect", {"mar", "inspect", "demo"}, 1};
static const job convert = {"convert", {"mar", "convert", "demo", "out.safetensors"}, 1};
static const job bench = {"bench", {"mar", "bench", "--batch", "1", SHORT, "--threads", "2"}, 0};

typedef struct {
    int status;           /* as returned by wait */
    char *out, *err;      /* its output on both streams */
    char *file;           /* the file that it wrote, or NULL */
    size_t bytes;         /* size of the file */
    int files;            /* in its directory */
    long calls, failures; /* of allocations; -1: not reported */
    long most;            /* bytes */
} ending;

static char *directory, *outside; /* of the job; of files about the job */

static void ending_free(ending *e)
{
    free(e->out);
    free(e->err);
    free(e->file);
}

static void send_to(const char *name, int fd)
{
    const int file = open(path_in(outside, "%s", name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || dup2(file, fd) < 0) _exit(98);
    close(file);
}

/* Becomes the job, in the child. */
static void become(const job *j, const char *settings, rlim_t address_space)
{
    char words[256];
    const char *command = getenv("MAR_COMMAND");
    send_to("out", STDOUT_FILENO);
    send_to("err", STDERR_FILENO);
    if (settings) {
        setenv("FAIL_COUNT", path_in(outside, "count"), 1);
        setenv("LD_PRELOAD", FAILING_PROCESS, 1);
        snprintf(words, sizeof words, "%s", settings);
        for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) putenv(word);
    }
    const struct rlimit limit = {address_space, address_space}, none = {0, 0};
    if (chdir(directory) != 0 || setrlimit(RLIMIT_CORE, &none) != 0) _exit(98);
    if (address_space && setrlimit(RLIMIT_AS, &limit) != 0) _exit(98);
    alarm(60); /* ends a hanging job */
    execv(command, (char *const *)(uintptr_t)j->argv);
    _exit(127);
}

/* Runs the job with settings such as "FAIL_AT=3 FAIL_LAST=1" (tests/support/failing_process.c), or none if NULL.
 * `address_space` is a limit in bytes (0: none). */
static ending run(const job *j, const char *settings, rlim_t address_space)
{
    char path[512];
    ending e = {.calls = -1, .failures = -1};
    unlink(path_in(outside, "count"));
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) become(j, settings, address_space);
    assert_int_equal(waitpid(child, &e.status, 0), child);
    e.out = read_whole_file(outside, "out", NULL);
    e.err = read_whole_file(outside, "err", NULL);
    e.files = count_files(directory);
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "out.safetensors" : "out.png";
        snprintf(path, sizeof path, "%s/%s", directory, name);
        if (access(path, F_OK) != 0) continue;
        e.file = read_whole_file(directory, name, &e.bytes);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/count", outside);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%ld %ld %ld", &e.calls, &e.failures, &e.most) != 3) fail_msg("%s: cannot read", path);
    if (f) fclose(f);
    return e;
}

/* Returns its standard error without the warning about fewer threads than requested. */
static const char *complaint(const ending *e)
{
    static const char *const warnings[] = {
        "mar: warning: --threads 2: 1 is used, the system starts no more\n",
        "mar: warning: --threads 2: 1 is used, as many as there are cores for this process\n"};
    for (int i = 0; i < 2; i++)
        if (strncmp(e->err, warnings[i], strlen(warnings[i])) == 0) return e->err + strlen(warnings[i]);
    return e->err;
}

/* Returns whether it succeeded. Fails the test unless it succeeded or ended cleanly without memory. */
static int check(const job *j, const char *how, const ending *e, const ending *expected)
{
    if (!WIFEXITED(e->status)) fail_msg("%s, %s: signal %d: %s", j->name, how, WTERMSIG(e->status), e->err);
    const int status = WEXITSTATUS(e->status);
    const char *err = complaint(e);
    if (status == 0) {
        if (e->files != expected->files || e->bytes != expected->bytes ||
            (e->file && memcmp(e->file, expected->file, e->bytes) != 0) || *err ||
            (j->same_text ? strcmp(e->out, expected->out) != 0 : !*e->out))
            fail_msg("%s, %s: does something else than it should: \"%s\" \"%s\"", j->name, how, e->out, e->err);
        return 1;
    }
    const char *end = strchr(err, '\n');
    if (status != 1 || strncmp(err, "mar: ", 5) != 0 || !end || end[1] ||
        !(strstr(err, "memory") || strstr(err, "allocate")))
        fail_msg("%s, %s: exit status %d: \"%s\"", j->name, how, status, e->err);
    if (e->files != 0) fail_msg("%s, %s: fails and leaves a file", j->name, how);
    return 0;
}

/* Runs the job with unlimited memory. */
static ending whole(const job *j, const char *settings)
{
    const ending e = run(j, settings, 0);
    if (e.status != 0 || *complaint(&e)) fail_msg("%s: %s", j->name, e.err);
    return e;
}

/* --- one call fails ----------------------------------------------------------------------------------------------- */

/* Fails about `rounds` of the job's calls, evenly spread, one in each run. A second series also fails all later calls.
 * */
static void calls_fail(const job *j, long rounds)
{
    char settings[64];
    ending expected = whole(j, "FAIL_AT=-1");
    assert_in_range(expected.calls, 100, 1000000);
    const long step = expected.calls / rounds | 1;
    for (int last = 0; last <= 1; last++) {
        long failed = 0;
        for (long n = last ? step / 2 : 0; n < expected.calls; n += step) {
            snprintf(settings, sizeof settings, "FAIL_AT=%ld FAIL_LAST=%d", n, last);
            ending e = run(j, settings, 0);
            failed += !check(j, settings, &e, &expected);
            if (e.failures == 0 && n < expected.calls / 2) fail_msg("%s, %s: nothing failed", j->name, settings);
            ending_free(&e);
        }
        assert_in_range(failed, rounds / 2, 2 * rounds);
    }
    ending_free(&expected);
}

static void test_calls_fail(void **state)
{
    (void)state;
    calls_fail(&generate_f32, 120);
    calls_fail(&generate_best, 60);
    calls_fail(&inspect, 30);
    calls_fail(&convert, 30);
}

/* --- limits ------------------------------------------------------------------------------------------------------- */

static void test_budget(void **state)
{
    (void)state;
    enum { ROUNDS = 40 };
    static const job *const jobs[] = {&generate_f32, &generate_best, &inspect, &convert};
    for (size_t i = 0; i < LENGTH(jobs); i++) {
        char settings[64];
        int failed = 0;
        ending expected = whole(jobs[i], "FAIL_AT=-1");
        for (int r = 0; r < ROUNDS; r++) {
            snprintf(settings, sizeof settings, "FAIL_BUDGET=%ld", expected.most / ROUNDS * r);
            ending e = run(jobs[i], settings, 0);
            failed += !check(jobs[i], settings, &e, &expected);
            ending_free(&e);
        }
        assert_in_range(failed, ROUNDS / 2, ROUNDS);
        ending_free(&expected);
    }
}

/* Raises the limit from where the program cannot be loaded to where it has enough. */
static void test_address_space(void **state)
{
    (void)state;
    static const job *const jobs[] = {&generate_f32, &generate_best, &inspect, &convert, &bench};
    int failed = 0;
    for (size_t i = 0; i < LENGTH(jobs); i++) {
        int good = 0;
        ending expected = whole(jobs[i], NULL);
        for (rlim_t megabytes = 20; good < 10; megabytes += 2) {
            char how[64];
            snprintf(how, sizeof how, "ulimit -v of %ld MB", (long)megabytes);
            ending e = run(jobs[i], NULL, megabytes << 20);
            const int loaded = !strstr(e.err, "error while loading shared libraries");
            if (loaded && check(jobs[i], how, &e, &expected))
                good++;
            else
                failed += loaded;
            ending_free(&e);
            assert_in_range(megabytes, 20, 2000);
        }
        ending_free(&expected);
    }
    assert_true(failed > 0);
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

/* Checks that the picture is the same without a second thread. */
static void test_no_threads(void **state)
{
    (void)state;
    ending expected = whole(&generate_best, NULL);
    ending e = run(&generate_best, "FAIL_THREAD=-1", 0);
    assert_int_equal(check(&generate_best, "no thread starts", &e, &expected), 1);
    cpu_set_t cores;
    assert_int_equal(sched_getaffinity(0, sizeof cores, &cores), 0);
    const int processors = CPU_COUNT(&cores);
    if (processors > 1) assert_true(e.failures > 0);
    ending_free(&e);
    ending_free(&expected);
    e = run(&bench, "FAIL_THREAD=-1", 0);
    if (e.status != 0 || !strstr(e.out, processors > 1 ? "1 thread (of 2" : "1 thread"))
        fail_msg("bench without a second thread: \"%s\" \"%s\"", e.out, e.err);
    ending_free(&e);
}

static int open_directories(void **state)
{
    (void)state;
    directory = temporary_directory();
    outside = temporary_directory();
    return directory && outside ? 0 : 1;
}

static int remove_directories(void **state)
{
    (void)state;
    remove_directory(directory);
    remove_directory(outside);
    free(directory);
    free(outside);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls_fail), cmocka_unit_test(test_budget),
                                       cmocka_unit_test(test_address_space), cmocka_unit_test(test_no_threads)};
    return cmocka_run_group_tests(tests, open_directories, remove_directories);
}

#endif
