/* mar eval under a signal, beside another process and on a full disk; and its memory. */
#include "eval/reference.h"
#include "tests/support/brief.h"
#include "tests/support/command.h"

#include <errno.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define QUICK " --num_iter 2 --num_sampling_steps 2 "
#define RUN   "eval --num_images 40 --batch 2 --shard_images 4" QUICK

enum { GOES_ON = 75 };

/* Returns the number of files that match the pattern. */
static int count_of(const char *directory, const char *pattern)
{
    glob_t found;
    const int n = glob(path_in(directory, "%s", pattern), 0, NULL, &found) == 0 ? (int)found.gl_pathc : 0;
    if (n) globfree(&found);
    return n;
}

/* Waits until `count` files match the pattern. Returns 0 if the process has ended before. */
static int wait_for(const char *directory, const char *pattern, int count, pid_t child)
{
    int status;
    while (count_of(directory, pattern) < count) {
        if (waitpid(child, &status, WNOHANG) == child) return 0;
        usleep(500);
    }
    return 1;
}

/* Waits until the process has printed the words. Returns 0 if it has ended before. */
static int wait_for_line(const char *directory, const char *words, pid_t child)
{
    for (int is_over = 0;;) {
        char *errors = read_whole_file(directory, "errors", NULL);
        const int there = strstr(errors, words) != NULL;
        siginfo_t over = {0};
        free(errors);
        if (there || is_over) return there;
        waitid(P_PID, (id_t)child, &over, WEXITED | WNOHANG | WNOWAIT);
        is_over = over.si_pid != 0;
        usleep(500);
    }
}

static int is_at_work(const char *directory, const char *run, pid_t child)
{
    char pattern[100];
    snprintf(pattern, sizeof pattern, "%s/settings.json", run); /* images are made after this file */
    return wait_for(directory, pattern, 1, child);
}

/* --- signals -------------------------------------------------------------------------------------------- */

/* Sends a process at work the signal. Returns its wait status; 0 if it had ended before. */
static int interrupt(const char *directory, const char *arguments, int number)
{
    int status = 0;
    const pid_t child = command_start(directory, arguments);
    if (!wait_for(directory, "cut/runs/*/*.features-*", 1, child)) return 0;
    kill(child, number);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

/* Checks that each signal has its own status and a line that says how to go on, and that finished batches are kept. */
COMMAND_CASE(signals)
{
    static const struct {
        int number, status;
    } cases[] = {{SIGTERM, GOES_ON}, {SIGINT, 128 + SIGINT}, {SIGHUP, 128 + SIGHUP}};
    const char *d = *state;
    int status;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        while ((status = interrupt(d, "eval --num_images 200 --batch 20 --out cut" QUICK, cases[i].number)) == 0)
            sh_ok(d, "rm -r cut"); /* it had ended before */
        char *errors = read_whole_file(d, "errors", NULL);
        const char *says = strstr(errors, "mar: interrupted: ");
        const long made = says ? strtol(says + strlen("mar: interrupted: "), NULL, 10) : -1;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != cases[i].status || made < 20 || made % 20 != 0 ||
            !strstr(errors, "the same command goes on\n"))
            fail_msg("signal %d: wait status 0x%x, %s", cases[i].number, (unsigned)status, errors);
        free(errors);
        sh_ok(d, "rm -r cut");
    }
}

/* Sends the process at work the signal. Checks its status, and that it says how to go on: in its last line, or in that
 * of the alarm if it still worked a second later. Returns 0 if it had ended before. */
static int ends_by(const char *directory, pid_t child, int number, int expected, int with_alarm)
{
    kill(child, number);
    if (with_alarm && wait_for_line(directory, "mar: stopping", child)) kill(child, SIGALRM); /* the second is over */
    const int status = command_wait(child);
    char *errors = read_whole_file(directory, "errors", NULL);
    if (status != 0 &&
        (status != expected || !strstr(errors, "mar: interrupted: ") || !strstr(errors, "the same command goes on\n")))
        fail_msg("signal %d: exit status %d, %s", number, status, errors);
    free(errors);
    return status != 0;
}

static const int ending[][2] = {{SIGTERM, GOES_ON}, {SIGINT, 128 + SIGINT}};

/* Checks that a signal ends a run in the middle of a batch, which would take minutes. */
COMMAND_CASE(a_signal_within_a_batch)
{
    const char *d = *state;
    for (size_t i = 0; i < LENGTH(ending); i++) {
        const pid_t child = command_start(
            d, "eval --num_images 1024 --batch 1024 --num_sampling_steps 1000 --threads 1 --dtype f32 --out cut");
        assert_true(is_at_work(d, "cut", child));
        usleep(300000); /* until the batch has begun */
        assert_true(ends_by(d, child, ending[i][0], ending[i][1], 0));
        assert_int_equal(count_of(d, "cut/runs/*/*.npz"), 0);
        sh_ok(d, "rm -r cut");
    }
}

/* Starts a run, and ends it when some batches are there. Returns 0 if it had ended before. */
static int cut(const char *directory, const char *run, int batches, const int *by)
{
    const pid_t child = command_start(directory, run);
    return is_at_work(directory, "cut", child) && wait_for(directory, "cut/runs/*/*.features-*", batches, child) &&
           ends_by(directory, child, by[0], by[1], 1);
}

/* Checks that the alarm, which comes at a moment of its own, leaves whole files: the same command goes on to the same
 * numbers. The test sends it, so that no step has to last. */
COMMAND_CASE(an_alarm_at_any_moment)
{
#define MANY "eval --num_images 200 --batch 4 --shard_images 4" QUICK
    const char *d = *state;
    command_ok(d, MANY "--out whole --quiet");
    for (int batches = 0; batches < 16; batches += test_brief ? 5 : 3) {
        while (!cut(d, MANY "--out cut", batches, ending[batches % 2])) sh_ok(d, "rm -r cut"); /* it had ended before */
        sh_ok(d, "$MAR " MANY "--out cut --quiet && (cd cut && ls -A runs/*) >a && (cd whole && ls -A runs/*) >b && "
                 "cmp a b");
        assert_same_run(d, "whole", "cut");
        sh_ok(d, "rm -r cut");
    }
#undef MANY
}

/* Checks that a signal stops the judging of a reference's images. They come last and may be many. */
COMMAND_CASE(signal_to_the_judge)
{
    const char *d = *state;
    int status;
    char from[700], to[700];
    sh_ok(d, "$MAR " RUN "--out made --quiet --save_images && mkdir real");
    snprintf(from, sizeof from, "%s/made/images/000001.png", d);
    for (int i = 0; i < 8000; i++) {
        snprintf(to, sizeof to, "%s/real/%d.png", d, i);
        assert_int_equal(link(from, to), 0);
    }
    const pid_t child = command_start(d, RUN "--out cut --stats real");
    wait_for(d, "cut/runs/*/*.features-*", 20, child);
    usleep(300000); /* until it has merged the shards; the reference takes seconds */
    kill(child, SIGTERM);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != GOES_ON) fail_msg("wait status 0x%x", (unsigned)status);
    sh_ok(d, "test ! -e cut/result.json");
}

/* --- other processes ------------------------------------------------------------------------------------ */

/* Checks that `arguments` are refused while the process holds the directory, with a line that names it. */
static void expect_refused(const char *directory, const char *arguments, pid_t holder)
{
    char line[500], who[100];
    snprintf(line, sizeof line, "$MAR %s", arguments);
    snprintf(who, sizeof who, ": another mar eval is at work there: process %ld on ", (long)holder);
    command_result r = command_run(directory, line);
    if (r.status != 1 || *r.out || !strstr(r.err, who) || strchr(r.err, '\n') != r.err + strlen(r.err) - 1)
        fail_msg("%s: exit status %d, \"%s\", \"%s\"; expected \"%s\"", arguments, r.status, r.out, r.err, who);
    command_result_free(&r);
}

COMMAND_CASE(second_runs)
{
    const char *d = *state;
    int status;
    static const char whole[] = "eval --num_images 2000 --batch 4 --out cut --quiet" QUICK;
    pid_t child = command_start(d, whole);
    assert_true(is_at_work(d, "cut", child));
    kill(child, SIGSTOP);
    expect_refused(d, whole, child);
    expect_refused(d, "eval --num_images 2000 --batch 4 --out cut --shard 1/2" QUICK, child);
    expect_refused(d, "eval --num_images 2000 --batch 4 --out cut --shard 2/2" QUICK, child);
    expect_refused(d, "eval --out cut --merge", child);
    kill(child, SIGKILL); /* its locks end with it */
    assert_int_equal(waitpid(child, &status, 0), child);

    child = command_start(d, "eval --num_images 2000 --batch 4 --out cut --shard 1/2" QUICK);
    wait_for(d, "cut/runs/*/*.features-*", 2, child);
    kill(child, SIGSTOP);
    expect_refused(d, whole, child);
    expect_refused(d, "eval --num_images 2000 --batch 4 --out cut --shard 1/2" QUICK, child);
    expect_refused(d, "eval --num_images 2000 --batch 4 --out cut --shard 1/3" QUICK, child);
    sh_ok(d, "$MAR eval --out cut --merge 2>lines; test $? = 1 && grep -q 'shards are missing' lines");
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
}

/* Checks that other ranks continue the shard of a killed rank, with its images from the store. */
COMMAND_CASE(a_rank_that_is_killed)
{
    const char *d = *state;
    int status;
    command_ok(d, RUN "--out whole --quiet");
    sh_ok(d, "cp $MAR alone && ln -s \"$(dirname $MAR)/share\" share");
    setenv("PMI_SIZE", "2", 1);
    setenv("PMI_RANK", "0", 1);
    char *command = strdup(getenv("MAR_COMMAND"));
    setenv("MAR_COMMAND", path_in(d, "alone"), 1);
    const pid_t first = command_start(d, RUN "--out cut --quiet");
    assert_true(wait_for(d, "cut/runs/*/*.features-*", 1, first));
    kill(first, SIGSTOP);
    setenv("PMI_RANK", "1", 1);
    const pid_t second = command_start(d, RUN "--out cut --quiet");
    wait_for(d, "cut/runs/*/*.features-*", 8, second);
    kill(first, SIGKILL);
    assert_int_equal(waitpid(first, &status, 0), first);
    assert_int_equal(waitpid(second, &status, 0), second);
    assert_int_equal(status, 0);
    unsetenv("PMI_SIZE");
    unsetenv("PMI_RANK");
    setenv("MAR_COMMAND", command, 1);
    free(command);
    assert_same_run(d, "whole", "cut");
}

/* --- a full disk ---------------------------------------------------------------------------------------- */

/* Checks a limit on file sizes in place of a full disk. One line names the file and the reason. A later run continues.
 * */
COMMAND_CASE(full_disk)
{
    static const int blocks[] = {1, 2, 60, 70, 90, 100, 110, 115, 120, 130, 200, 240}; /* of 512 bytes */
    const char *d = *state;
    int failures = 0;
    command_ok(d, RUN "--out whole --save_npz --quiet");
    for (size_t i = 0; i < LENGTH(blocks); i += test_brief ? 4 : 1) {
        char line[600];
        snprintf(line, sizeof line, "rm -rf cut; (ulimit -f %d; exec $MAR " RUN "--out cut --save_npz --quiet)",
                 blocks[i]);
        command_result r = command_run(d, line);
        if (r.status != 0 && (r.status != 1 || strncmp(r.err, "mar: cut/", 9) != 0 ||
                              !strstr(r.err, "File too large") || strchr(r.err, '\n') != r.err + strlen(r.err) - 1))
            fail_msg("%d blocks: exit status %d, \"%s\"", blocks[i], r.status, r.err);
        failures += r.status != 0;
        command_result_free(&r);
        sh_ok(d, "$MAR " RUN "--out cut --save_npz --quiet && cmp whole/images.npz cut/images.npz && "
                 "(cd cut && ls -A runs/*) >a && (cd whole && ls -A runs/*) >b && cmp a b");
        assert_same_run(d, "whole", "cut");
    }
    assert_in_range(failures, test_brief ? 1 : 4, 12);
}

COMMAND_CASE(full_tmpfs)
{
    const char *d = *state;
    if (!can_mount(d)) return; /* the limits above test the same */
    command_ok(d, RUN "--out whole --quiet");
    for (int pages = 1; pages < 200; pages += 1 + (test_brief ? 7 : 1) * pages) {
        char line[800];
        snprintf(line, sizeof line,
                 "rm -rf cut && unshare -m sh -c \"mount -t tmpfs -o size=%dk none m && cd m && $MAR " RUN
                 "--out cut --quiet; s=\\$?; test ! -e cut || cp -a cut ..; exit \\$s\"",
                 4 * pages);
        command_result r = command_run(d, line);
        if (r.status != 0 && (r.status != 1 || !strstr(r.err, "No space left on device")))
            fail_msg("%d pages: exit status %d, \"%s\"", pages, r.status, r.err);
        command_result_free(&r);
        sh_ok(d, "$MAR " RUN "--out cut --quiet");
        assert_same_run(d, "whole", "cut");
    }
}

/* --- memory --------------------------------------------------------------------------------------------- */

/* Returns the peak memory of an evaluation in kB. */
static long peak_of(const char *directory, int images)
{
    char line[300];
    struct rusage usage;
    int status;
    snprintf(line, sizeof line,
             "eval --num_images %d --out memory --threads 1 --num_iter 1 --num_sampling_steps 2 --quiet", images);
    sh_ok(directory, "rm -rf memory");
    const pid_t child = command_start(directory, line);
    assert_int_equal(wait4(child, &status, 0, &usage), child);
    assert_int_equal(status, 0);
    return usage.ru_maxrss;
}

/* Writes a reference with mean and covariance alone. */
static void write_reference(const char *directory)
{
    enum { NUMBERS = 64 };
    static double mean[NUMBERS], covariance[NUMBERS * NUMBERS];
    char why[512];
    for (int i = 0; i < NUMBERS; i++) covariance[i * NUMBERS + i] = 1;
    const eval_reference r = {.dim = NUMBERS, .mu = mean, .sigma = covariance};
    assert_int_equal(eval_reference_save(path_in(directory, "plain.npz"), &r, why, sizeof why), MAR_OK);
}

/* Checks that memory does not grow with the images, except for some bytes of orders for each image. */
COMMAND_CASE(memory)
{
    const char *d = *state;
    setenv("ASAN_OPTIONS", "quarantine_size_mb=1", 1);
    write_reference(d);
    const int images = test_brief ? 600 : 1500;
    const long few = peak_of(d, 150), many = peak_of(d, images);
    if (many > few + 1500) fail_msg("%ld kB for 150 images, %ld kB for %d", few, many, images);
}
