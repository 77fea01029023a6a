/* How pictures are stored, checked by recording the system calls of this process. A file gets its name only when
 * complete. A directory is synced once, a single file by itself. A failure to store is an error. Also: missing parents,
 * standard output. */
#include "tests/support/command.h"
#include "tools/cli/subcommands.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TINY      "--num_iter", "1", "--num_sampling_steps", "2", "--threads", "1", "--quiet"
#define TINY_TEXT " --num_iter 1 --num_sampling_steps 2 "

/* --- system calls ------------------------------------------------------------------------------------------------- */

static struct {
    int fsyncs, syncfss, links, hidden; /* calls; hidden: files opened by a hidden name */
    int no_unnamed, no_proc;            /* 1: a file system without O_TMPFILE, a machine without /proc */
    int sync_fails;                     /* errno of syncfs; 0: it works */
    const char *place;                  /* where no name may be before a file is complete */
    int early;                          /* names that were there too early */
} calls;

int fsync(int fd)
{
    calls.fsyncs++;
    return (int)syscall(SYS_fsync, fd);
}

int syncfs(int fd)
{
    calls.syncfss++;
    if (!calls.sync_fails) return (int)syscall(SYS_syncfs, fd);
    errno = calls.sync_fails;
    return -1;
}

int linkat(int from, const char *old, int to, const char *new, int flags)
{
    calls.links++;
    if (calls.place && access(calls.place, F_OK) == 0) calls.early++;
    if (!calls.no_proc) return (int)syscall(SYS_linkat, from, old, to, new, flags);
    errno = ENOENT;
    return -1;
}

int access(const char *path, int mode)
{
    if (!calls.no_proc || strncmp(path, "/proc/", 6) != 0) return faccessat(AT_FDCWD, path, mode, 0);
    errno = ENOENT;
    return -1;
}

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    if ((flags & O_TMPFILE) == O_TMPFILE && calls.no_unnamed) {
        errno = EOPNOTSUPP;
        return -1;
    }
    calls.hidden += (flags & O_CREAT) && strstr(path, "/.mar-") != NULL;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static void watch(const char *place)
{
    memset(&calls, 0, sizeof calls);
    calls.place = place;
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

/* Runs mar generate in this process. Returns its exit status. */
static int generate(char *num, const char *out, char *more)
{
    char *argv[] = {"generate", "--class", "1", "--num", num, "--out", (char *)(uintptr_t)out, TINY, more, NULL};
    int argc = 0;
    while (argv[argc]) argc++;
    return cmd_generate(argc, argv);
}

/* Checks for one sync for 20 images and their grid, and one for a file. */
COMMAND_CASE(syncs)
{
    const char *d = path_in(*state, "d"), *file = path_in(*state, "x.png");
    watch(NULL);
    assert_int_equal(generate("20", d, "--grid"), 0);
    assert_int_equal(calls.fsyncs, 0);
    assert_int_equal(calls.syncfss, 1);
    assert_int_equal(count_files(d), 21);
    watch(NULL);
    assert_int_equal(generate("20", file, NULL), 0);
    assert_int_equal(calls.fsyncs, 1);
    assert_int_equal(calls.syncfss, 0);
}

/* Checks that an image has no name before it is complete. It needs a hidden one only to replace another file. */
COMMAND_CASE(unnamed_until_whole)
{
    const char *file = path_in(*state, "x.png");
    watch(file);
    assert_int_equal(generate("1", file, NULL), 0);
    assert_int_equal(calls.links, 1);
    assert_int_equal(calls.early, 0);
    assert_int_equal(calls.hidden, 0);
    assert_int_equal(generate("1", file, NULL), 0);
    assert_int_equal(calls.links, 3); /* to its name, which is taken, and to a hidden one, which is renamed */
    assert_int_equal(calls.hidden, 0);
    assert_int_equal(count_files(*state), 1);
}

/* Checks that the files are the same on a file system without unnamed files and on a machine without /proc. */
COMMAND_CASE(without_unnamed_files)
{
    const char *plain = path_in(*state, "plain"), *other = path_in(*state, "other"), *bare = path_in(*state, "bare");
    watch(NULL);
    assert_int_equal(generate("3", plain, NULL), 0);
    calls.no_unnamed = 1;
    for (int again = 0; again < 2; again++) {
        calls.hidden = 0;
        assert_int_equal(generate("3", other, "--overwrite"), 0);
        assert_in_range(calls.hidden, 3, 4); /* and one to try the directory */
        sh_ok(*state, "diff -r plain other");
    }
    watch(NULL);
    calls.no_proc = 1;
    for (int again = 0; again < 2; again++) {
        assert_int_equal(generate("3", bare, "--overwrite"), 0);
        sh_ok(*state, "diff -r plain bare");
    }
    watch(NULL);
}

/* Checks that a disk error during the sync fails the run. */
COMMAND_CASE(a_sync_that_fails)
{
    static const int reasons[] = {EIO, ENOSPC, EDQUOT};
    const char *d = path_in(*state, "d");
    char expected[200];
    for (int i = 0; i < 3; i++) {
        watch(NULL);
        calls.sync_fails = reasons[i];
        capture_begin();
        command_result r = capture_end(generate("2", d, "--overwrite"));
        assert_int_equal(r.status, 1);
        snprintf(expected, sizeof expected, ": cannot store the pictures: %s\n", strerror(reasons[i]));
        assert_has(r.err, expected);
        assert_int_equal(strncmp(r.err, "mar: ", 5), 0);
        assert_int_equal(strncmp(r.err + 5, d, strlen(d)), 0);
        command_result_free(&r);
    }
    watch(NULL);
}

/* Checks that missing parents are made, and that a failed run leaves none. */
COMMAND_CASE(parents)
{
    command_ok(*state, "generate --class 1 --num 2 --quiet --out a/b//c/" TINY_TEXT);
    command_ok(*state, "generate --class 1 --num 2 --quiet --out e/f/x.png" TINY_TEXT);
    command_ok(*state, "generate --class 1 --num 2 --quiet --out ./a/b/x.png" TINY_TEXT);
    const char *c = path_in(*state, "a/b/c"), *b = path_in(*state, "a/b"), *f = path_in(*state, "e/f");
    assert_int_equal(count_files(c), 2);
    assert_int_equal(count_files(b), 2);
    assert_int_equal(count_files(f), 1);

    static const char *const outs[] = {"g/h/i", "g/h/x.png", "a/g/h"};
    for (int i = 0; i < 3; i++) {
        char line[300];
        snprintf(line, sizeof line, "ulimit -f 1; $MAR generate --class 1 --num 2 --out %s" TINY_TEXT, outs[i]);
        command_refused(*state, line, "File too large", "");
        assert_int_equal(count_files(b), 2);
    }
    command_refused(*state, "$MAR generate --class 11 --num 2 --out g/h/i" TINY_TEXT, "class 11", ""); /* fails early */
}

/* Checks that standard output has the bytes of the file and nothing else. */
COMMAND_CASE(standard_output)
{
    command_ok(*state, "generate --class 1 --num 1 --out one.png --quiet" TINY_TEXT);
    command_ok(*state, "generate --class 1,2 --num 2 --out grid.png --quiet" TINY_TEXT);
    command_result r =
        command_run(*state, "$MAR generate --class 1 --num 1 --out -" TINY_TEXT "| cmp - one.png && "
                            "$MAR generate --class 1,2 --num 2 --quiet --out -" TINY_TEXT "| cmp - grid.png");
    assert_string_equal(r.out, "");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.err, "wrote standard output: 1 image of 32x32 in "));
    assert_string_equal(strchr(r.err, '\n'),
                        "\nexact to: plain sampling, 1 step of 2; not the model's defaults: num_iter 1 (64), "
                        "num_sampling_steps 2 (100)\n");
    command_result_free(&r);
    assert_int_equal(count_files(*state), 2);

    /* A closed pipe ends the command silently, like other tools. With SIGPIPE ignored it prints a line. */
    r = command_run(*state,
                    "{ $MAR generate --num 4 --quiet --out -" TINY_TEXT "; echo $? >status; } | true; cat status");
    assert_string_equal(r.out, "141\n");
    assert_string_equal(r.err, "");
    command_result_free(&r);
    r = command_run(*state, "trap '' PIPE; { $MAR generate --num 4 --quiet --out -" TINY_TEXT
                            "; echo $? >status; } | true; cat status");
    assert_string_equal(r.out, "1\n");
    assert_non_null(strstr(r.err, "mar: standard output: cannot write "));
    assert_non_null(strstr(r.err, " bytes: Broken pipe\n"));
    command_result_free(&r);
}

/* Checks that a picture is not written to a terminal. */
COMMAND_CASE(not_on_a_terminal)
{
    command_result r = command_run(*state, "script -qec \"$MAR generate --num 1 --out -\" /dev/null");
    assert_string_equal(r.out, "\r\033[Kmar: --out -: standard output is a terminal, expected a pipe or a file\r\n");
    command_result_free(&r);
}
