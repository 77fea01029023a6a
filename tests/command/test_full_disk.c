/* A full disk at every write of a command: one line with the file and the reason, status 1. Finished files stay, an
 * unfinished one leaves nothing, and an older file in its place is kept. The disk is a small tmpfs where one can be
 * mounted, and a limit on file sizes. */
#include "tests/support/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TINY " --num_iter 1 --num_sampling_steps 2 --threads 1 --dtype f32 "

enum { FILES_MAX = 8 };

/* Files that a command writes, in this order. */
typedef struct {
    const char *arguments;
    const char *files[FILES_MAX]; /* on the disk; ends with NULL */
    const char *folder;           /* folder that it makes, or NULL */
    int varies;                   /* 1: the files contain times */
} writer;

static const writer writers[] = {
    {"generate --class 1 --num 1 --out x.png" TINY, {"x.png"}, NULL, 0},
    {"generate --class 1,2 --num 2 --batch 1 --out d --grid" TINY,
     {"d/000000.png", "d/000001.png", "d/000002.png", "d/000003.png", "d/grid.png"},
     "d",
     0},
    {"generate --class 1 --num 9 --draft demo-draft --gamma 1 --out x.png --accept_map m.png" TINY,
     {"x.png", "m.png"},
     NULL,
     0},
    {"convert demo-vae x.safetensors --overwrite", {"x.safetensors"}, NULL, 0},
    {"fidelity --num 20 --class 1 --out p.html --plot p.svg --sampler ddim" TINY "--against" TINY,
     {"p.html", "p.svg"},
     NULL,
     1},
};
enum { WRITERS = LENGTH(writers) };

static int exists(const char *directory, const char *name)
{
    return access(path_in(directory, "%s", name), F_OK) == 0;
}

/* Returns whether the file in `directory` equals the complete one in `expected`. */
static int is_whole(const writer *w, const char *directory, const char *expected, const char *name)
{
    size_t n, m;
    char *a = read_whole_file(directory, name, &n), *b = read_whole_file(expected, name, &m);
    const int same = w->varies ? n > 8 && m > 8 && memcmp(a + n - 8, b + m - 8, 8) == 0 : n == m && !memcmp(a, b, n);
    free(a);
    free(b);
    return same;
}

static int is_old(const char *directory, const char *name)
{
    char *text = read_whole_file(directory, name, NULL);
    const int old = strcmp(text, "old") == 0;
    free(text);
    return old;
}

/* Counts the entries of a directory and of the writer's folder in it. */
static int count_all(const writer *w, const char *directory)
{
    char folder[1400];
    int n = count_files(directory);
    if (!w->folder || !exists(directory, w->folder)) return n;
    snprintf(folder, sizeof folder, "%s/%s", directory, w->folder);
    return n - 1 + count_files(folder);
}

/* Returns the writer's file that the error names; -1 if there is none. */
static int file_of(const writer *w, const char *error)
{
    for (int i = 0; w->files[i]; i++) {
        char part[100];
        snprintf(part, sizeof part, "mar: %s: ", w->files[i]);
        if (strncmp(error, part, strlen(part)) == 0) return i;
    }
    return -1;
}

/* Checks the files left in `disk` by a run under a full disk. `old`: all places had older files. Returns whether it
 * failed. */
static int check(const writer *w, const char *what, const command_result *r, const char *disk, const char *expected,
                 int old)
{
    int files = 0, reached = 0;
    while (w->files[files]) files++;
    if (r->status == 0) {
        reached = files;
    } else {
        const char *newline = strchr(r->err, '\n');
        reached = file_of(w, r->err);
        /* Without room for one more entry, the folder or a file in it cannot be made. */
        if (reached < 0 && w->folder && strncmp(r->err, "mar: d: cannot ", 15) == 0) reached = 0;
        char kept[100] = ""; /* a second line: the images that were finished before */
        if (w->folder && reached > 0)
            snprintf(kept, sizeof kept, "mar: %d of %d images were made, they are in %s; --resume goes on\n", reached,
                     files - 1, w->folder);
        if (r->status != 1 || reached < 0 || !newline || strcmp(newline + 1, kept) != 0)
            fail_msg("%s: %s: exit status %d, \"%s\"", w->arguments, what, r->status, r->err);
        if (!strstr(r->err, "No space left on device") && !strstr(r->err, "File too large"))
            fail_msg("%s: %s: no reason in \"%s\"", w->arguments, what, r->err);
    }
    for (int i = 0; i < files; i++) {
        const char *name = w->files[i];
        const int there = exists(disk, name);
        if (i < reached ? !there || !is_whole(w, disk, expected, name) : old ? !there || !is_old(disk, name) : there)
            fail_msg("%s: %s: %s is not as it should be", w->arguments, what, name);
    }
    if (w->folder && !old && reached == 0 && exists(disk, w->folder))
        fail_msg("%s: %s: left an empty folder behind", w->arguments, what);
    if (count_all(w, disk) != (old ? files : reached)) fail_msg("%s: %s: left a file behind", w->arguments, what);
    return r->status != 0;
}

/* Runs the writer in `disk` below *state by `line`, a format with its arguments. Checks the files left and removes
 * them. Returns whether it failed. */
static int attempt(const char *directory, const writer *w, const char *what, const char *before, const char *after,
                   int old)
{
    old &= !w->folder; /* a folder with pictures is refused, or they are removed first */
    char script[4000], *to = script, *end = script + sizeof script, disk[600], expected[600];
    to += snprintf(to, (size_t)(end - to), "rm -rf disk left && mkdir disk left && %s cd disk && ", before);
    for (int i = 0; old && w->files[i]; i++) to += snprintf(to, (size_t)(end - to), "printf old >%s && ", w->files[i]);
    snprintf(to, (size_t)(end - to), "%s", after);
    snprintf(disk, sizeof disk, "%s/left", directory);
    snprintf(expected, sizeof expected, "%s/expected", directory);
    command_result r = command_run(directory, script);
    const int failed = check(w, what, &r, disk, expected, old);
    command_result_free(&r);
    return failed;
}

/* Writes the complete files of the writer to `expected`. */
static void expect(const char *directory, const writer *w)
{
    const char *quiet = strncmp(w->arguments, "convert", 7) == 0 ? "" : " --quiet";
    sh_ok(directory, "rm -rf expected && mkdir expected && cd expected && $MAR %s%s", w->arguments, quiet);
}

/* Sets limits on file sizes. Files below the limit are written, the first one above it is not. */
COMMAND_CASE(limits)
{
    static const int blocks[] = {1, 2, 3, 4, 8, 12, 20, 100}; /* of 512 bytes; the message needs one */
    const char *directory = *state;
    for (int w = 0; w < WRITERS; w++) {
        int failures = 0;
        expect(directory, &writers[w]);
        for (size_t i = 0; i < LENGTH(blocks); i++) {
            char after[1000], what[50];
            snprintf(what, sizeof what, "files of %d blocks at most", blocks[i]);
            snprintf(after, sizeof after,
                     "{ (ulimit -f %d; exec $MAR %s >/dev/null); s=$?; cp -a . ../left; exit $s; }", blocks[i],
                     writers[w].arguments);
            failures += attempt(directory, &writers[w], what, "", after, i % 2);
        }
        assert_in_range(failures, 2, 8);
    }
}

/* Runs the writer in its own file system with these mount options. */
static int on_disk(const char *directory, const writer *w, const char *options, int old)
{
    char before[200], after[1000];
    snprintf(before, sizeof before,
             "unshare -m sh -c \"mount -t tmpfs -o %s none disk && head -c 4096 /dev/zero >disk/filler && ", options);
    snprintf(after, sizeof after, "{ $MAR %s >/dev/null; s=\\$?; rm filler; cp -a . ../left; exit \\$s; }\"",
             w->arguments);
    return attempt(directory, w, options, before, after, old);
}

/* Mounts a tmpfs with room for a number of 4 kB pages, or of entries. */
COMMAND_CASE(disks)
{
    const char *directory = *state;
    if (!can_mount(directory)) skip();
    for (int w = 0; w < WRITERS; w++) {
        int failures = 0, last = 1;
        expect(directory, &writers[w]);
        for (int pages = 0; last && pages < 2000; pages += 1 + pages / 4) {
            char options[50];
            snprintf(options, sizeof options, "size=%dk", 4 * pages + 4);
            last = on_disk(directory, &writers[w], options, 0);
            failures += last;
        }
        assert_in_range(failures, 1, 100);
        assert_false(last);
        last = 1;
        for (int entries = 2; last && entries < 20; entries++) {
            char options[50];
            snprintf(options, sizeof options, "nr_inodes=%d", entries);
            last = on_disk(directory, &writers[w], options, 0);
        }
        assert_false(last);
    }
}

/* Fills standard output at once, or after 512 bytes. */
COMMAND_CASE(standard_output)
{
    static const struct {
        const char *arguments;
        int is_long; /* exceeds 512 bytes, on standard output alone */
    } lines[] = {
        {"--help", 1},
        {"--version", 0},
        {"generate --help", 1},
        {"generate --class 1 --num 1 --out x.png" TINY, 0},
        {"generate --class 1 --num 1 --out x.png --json" TINY, 0},
        {"inspect demo", 0},
        {"inspect demo --json", 1},
        {"methods", 1},
        {"methods --json", 1},
        {"fidelity --num 20 --class 1 --out p.html" TINY "--against" TINY, 0},
        {"fidelity --num 20 --class 1 --out p.html --json" TINY "--against" TINY, 0},
        {"bench --batch 1 --json" TINY, 0},
    };
    const char *directory = *state;
    for (size_t i = 0; i < LENGTH(lines); i++)
        for (int limited = 0; limited <= lines[i].is_long; limited++) {
            char line[600];
            snprintf(line, sizeof line, limited ? "ulimit -f 1; $MAR %s >text" : "$MAR %s >/dev/full",
                     lines[i].arguments);
            command_result r = command_run(directory, line);
            const char *expected = limited ? "mar: standard output: cannot write: File too large\n"
                                           : "mar: standard output: cannot write: No space left on device\n";
            if (r.status != 1 || strcmp(r.err, expected) != 0)
                fail_msg("%s: exit status %d, \"%s\"", line, r.status, r.err);
            command_result_free(&r);
        }
}
