/* Reads a file in pieces, while it may change or fail. Writes a file completely or not at all. */
#include "tests/support/archive.h"
#include "tests/support/disturbed_files.h"
#include "tests/support/support.h"

#include "base/file.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { SIZE = 100000 };

typedef struct {
    char *dir, path[600];
    uint8_t data[SIZE];
} fixture;

static int set_up(void **state)
{
    fixture *x = calloc(1, sizeof *x);
    assert_non_null(x);
    memset(&disturbed, 0, sizeof disturbed);
    x->dir = temporary_directory();
    snprintf(x->path, sizeof x->path, "%s/file", x->dir);
    for (int i = 0; i < SIZE; i++) x->data[i] = (uint8_t)(i * 7 + i / 256);
    *state = x;
    return 0;
}

static int tear_down(void **state)
{
    fixture *x = *state;
    remove_directory(x->dir);
    free(x->dir);
    free(x);
    return 0;
}

static void write_data(const fixture *x, const char *path)
{
    const bytes b = {(uint8_t *)(uintptr_t)x->data, SIZE, SIZE};
    bytes_to_file(&b, path);
}

/* --- reading ---------------------------------------------------------------------------------------- */

static file_source open_source(const fixture *x)
{
    file_source s;
    mar_err err = {0};
    write_data(x, x->path);
    assert_ok(file_source_open(x->path, &s, &err), &err);
    assert_true(s.size == SIZE);
    return s;
}

static void reads_all(const fixture *x)
{
    static uint8_t got[SIZE];
    mar_err err = {0};
    file_source s = open_source(x);
    memset(got, 0, sizeof got);
    assert_ok(file_source_read(&s, 0, SIZE, got, &err), &err);
    assert_memory_equal(got, x->data, SIZE);
    assert_ok(file_source_read(&s, 77, 1000, got, &err), &err);
    assert_memory_equal(got, x->data + 77, 1000);
    assert_ok(file_source_read(&s, SIZE, 0, got, &err), &err);
    assert_ok(file_source_check(&s, &err), &err);
    file_source_close(&s);
}

TEST_WITH(short_and_interrupted_reads_go_on, set_up, tear_down)
{
    const fixture *x = *state;
    reads_all(x);
    disturbed.most = 13;
    disturbed.interrupts = 1;
    reads_all(x);
    assert_true(disturbed.reads > SIZE / 13);
}

static void expect_read(const file_source *s, uint64_t offset, size_t n, mar_status status, const char *line)
{
    uint8_t got[16];
    mar_err err = {0};
    char expected[800];
    assert_true(n <= sizeof got);
    assert_int_equal(file_source_read(s, offset, n, got, &err), status);
    snprintf(expected, sizeof expected, "%s: %s", s->path, line);
    assert_string_equal(err.text, expected);
}

TEST_WITH(a_failing_read_has_the_systems_reason, set_up, tear_down)
{
    file_source s = open_source(*state);
    disturbed.error = EIO;
    expect_read(&s, 5, 8, MAR_EIO, "cannot read 8 bytes at 5: Input/output error");
    file_source_close(&s);
}

TEST_WITH(what_was_never_there_is_not_read, set_up, tear_down)
{
    file_source s = open_source(*state);
    expect_read(&s, SIZE - 7, 8, MAR_EFORMAT, "8 bytes at 99993 reach past its end at 100000");
    expect_read(&s, UINT64_MAX, 8, MAR_EFORMAT, "8 bytes at 18446744073709551615 reach past its end at 100000");
    file_source_close(&s);
    const uint8_t memory[4] = {1, 2, 3, 4};
    file_source m = file_source_of_memory(memory, sizeof memory, "label");
    uint8_t got[2];
    mar_err err = {0};
    assert_ok(file_source_read(&m, 2, 2, got, &err), &err);
    assert_true(got[0] == 3 && got[1] == 4);
    assert_ok(file_source_check(&m, &err), &err);
    expect_read(&m, 3, 2, MAR_EFORMAT, "2 bytes at 3 reach past its end at 4");
    file_source_close(&m);
}

TEST_WITH(a_change_is_noticed, set_up, tear_down)
{
    const fixture *x = *state;
    mar_err err = {0};
    char expected[800];
    file_source s = open_source(x);
    assert_int_equal(truncate(x->path, 45), 0);
    expect_read(&s, 40, 8, MAR_EIO, "the file changed while it was read: was 100000 bytes, is 45");
    assert_int_equal(file_source_check(&s, &err), MAR_EIO);
    assert_int_equal(truncate(x->path, SIZE + 1), 0);
    assert_int_equal(file_source_check(&s, &err), MAR_EIO);
    assert_non_null(strstr(err.text, "was 100000 bytes, is 100001"));
    file_source_close(&s);

    s = open_source(x);
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    assert_int_equal(utimensat(AT_FDCWD, x->path, times, 0), 0); /* as if written to, then or later */
    assert_int_equal(file_source_check(&s, &err), MAR_EIO);
    snprintf(expected, sizeof expected, "%s: the file changed while it was read: it was written to", x->path);
    assert_string_equal(err.text, expected);
    file_source_close(&s);

    s = open_source(x); /* Another file in its place is no change: the open file stays as it was. */
    char other[700];
    snprintf(other, sizeof other, "%s.other", x->path);
    write_data(x, other);
    assert_int_equal(rename(other, x->path), 0);
    assert_ok(file_source_check(&s, &err), &err);
    file_source_close(&s);
}

/* --- writing ---------------------------------------------------------------------------------------- */

/* Returns whether the directory's file system supports unnamed files. */
static int has_unnamed(const char *dir)
{
    const int fd = open(dir, O_TMPFILE | O_WRONLY, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static file_writer start(const fixture *x)
{
    file_writer w;
    mar_err err = {0};
    assert_ok(file_writer_open(x->path, &w, &err), &err);
    assert_int_equal(fwrite(x->data, 1, SIZE, w.stream), SIZE);
    assert_int_equal(fflush(w.stream), 0);
    return w;
}

/* Writes the file with a umask, over an older one if it exists. */
static void write_whole(const fixture *x, mode_t mask)
{
    mar_err err = {0};
    struct stat st;
    const mode_t before = umask(mask);
    file_writer w = start(x);
    assert_ok(file_writer_commit(&w, &err), &err);
    umask(before);
    bytes b = bytes_from_file(x->path);
    assert_int_equal(b.size, SIZE);
    assert_memory_equal(b.data, x->data, SIZE);
    bytes_free(&b);
    assert_int_equal(stat(x->path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0666 & ~mask);
    assert_int_equal(st.st_nlink, 1);
    assert_int_equal(count_files(x->dir), 1);
}

/* Checks that every method writes the same file: an unnamed file, or a hidden one where those are not supported. */
TEST_WITH(every_way_writes_the_same, set_up, tear_down)
{
    const fixture *x = *state;
    for (int way = 0; way < 3; way++) {
        disturbed.no_tmpfile = way == 1;
        disturbed.no_proc = way == 2;
        unlink(x->path);
        write_whole(x, 022);
        write_whole(x, 077); /* the older file's permissions do not stay */
        write_whole(x, 0);
    }
}

static void while_it_is_written(const fixture *x, int visible)
{
    file_writer w = start(x);
    assert_int_equal(count_files(x->dir), visible);
    file_writer_discard(&w);
    assert_int_equal(count_files(x->dir), 0);
}

TEST_WITH(there_is_no_name_before_the_end, set_up, tear_down)
{
    const fixture *x = *state;
    while_it_is_written(x, has_unnamed(x->dir) ? 0 : 1);
    disturbed.no_tmpfile = 1;
    while_it_is_written(x, 1);
}

TEST_WITH(a_killed_process_leaves_nothing, set_up, tear_down)
{
    const fixture *x = *state;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        start(x);
        raise(SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(count_files(x->dir), has_unnamed(x->dir) ? 0 : 1);
}

/* Checks that the older file stays, and that the hidden name of the new one goes. */
TEST_WITH(a_failing_rename_leaves_the_older_file, set_up, tear_down)
{
    const fixture *x = *state;
    for (disturbed.no_tmpfile = 0; disturbed.no_tmpfile < 2; disturbed.no_tmpfile++) {
        bytes old = {0};
        mar_err err = {0};
        bytes_text(&old, "old");
        bytes_to_file(&old, x->path);
        file_writer w = start(x);
        disturbed.rename_fails = 1;
        assert_int_equal(file_writer_commit(&w, &err), MAR_EIO);
        disturbed.rename_fails = 0;
        assert_non_null(strstr(err.text, "Permission denied"));
        bytes left = bytes_from_file(x->path);
        assert_int_equal(left.size, 3);
        assert_int_equal(count_files(x->dir), 1);
        bytes_free(&left);
        bytes_free(&old);
    }
}

/* Without links the unnamed file is copied to a hidden one. Only the finished file is left. */
TEST_WITH(a_file_system_without_links_will_do, set_up, tear_down)
{
    const fixture *x = *state;
    for (int is_there = 0; is_there < 2; is_there++) {
        mar_err err = {0};
        file_writer w = start(x);
        disturbed.no_links = 1;
        assert_ok(file_writer_commit(&w, &err), &err);
        disturbed.no_links = 0;
        bytes found = bytes_from_file(x->path);
        assert_int_equal(found.size, SIZE);
        assert_memory_equal(found.data, x->data, SIZE);
        assert_int_equal(count_files(x->dir), 1);
        bytes_free(&found);
    }
}

/* Writes to a path without a directory, like most paths on a command line. */
TEST_WITH(the_current_directory_will_do, set_up, tear_down)
{
    const fixture *x = *state;
    char before[4096];
    mar_err err = {0};
    file_writer w;
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(x->dir), 0);
    for (disturbed.no_tmpfile = 0; disturbed.no_tmpfile < 2; disturbed.no_tmpfile++) {
        assert_ok(file_writer_open("file", &w, &err), &err);
        assert_ok(file_writer_commit(&w, &err), &err);
    }
    assert_int_equal(chdir(before), 0);
    assert_int_equal(count_files(x->dir), 1);
    assert_int_equal(access(x->path, F_OK), 0);
}
