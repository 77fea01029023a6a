/* Every allocation of the command's own code fails once. So do those of the C library, libpng and cJSON for it. A
 * subcommand ends with one line that says so, or writes its usual output. It leaves no block and no half-written file.
 * tests/mar/test_no_memory.c does the same for libmar. Skipped under the sanitizers (failing_allocations.h). */
#include "tools/cli/command.h"
#include "tools/eval/report.h"
#include "tools/images/image.h"
#include "tools/cli/subcommands.h"

#define OWN_COUNTS
#include "tests/support/failing_allocations.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cjson/cJSON.h>
#include <ctype.h>
#include <dirent.h>
#include <link.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef HAS_SANITIZER

int main(void)
{
    puts("SKIPPED: command.no_memory: the allocator here is the sanitizer's, and not the test's to replace");
    return 77;
}

#else

/* --- counted allocations ------------------------------------------------------------------------------------------ */

static struct {
    uintptr_t begin, end;
} code[64]; /* of the program and the libraries that work for it */
static int code_count;

static int note_code(struct dl_phdr_info *info, size_t size, void *user)
{
    static const char *const others[] = {"libmar.", "libcjson.", "libgcc_s.", "ld-", "libcmocka."};
    (void)size, (void)user;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strstr(info->dlpi_name, others[i])) return 0;
    for (int i = 0; i < info->dlpi_phnum && code_count < 64; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X)) continue;
        code[code_count].begin = (uintptr_t)(info->dlpi_addr + p->p_vaddr);
        code[code_count].end = code[code_count].begin + p->p_memsz;
        code_count++;
    }
    return 0;
}

static int counts(const void *caller)
{
    const uintptr_t at = (uintptr_t)caller;
    for (int i = 0; i < code_count; i++)
        if (at >= code[i].begin && at < code[i].end) return 1;
    return 0;
}

/* --- a subcommand in this process --------------------------------------------------------------------------------- */

enum { FILES = 8, TEXT = 1 << 18, STORE = 1 << 22 };

/* Files that a run leaves in the directory, which it empties, and its output on the two streams. */
typedef struct {
    int status;
    int files;
    struct {
        char name[300];
        size_t size;
        char *data; /* not counted by this test: kept in `store` */
    } file[FILES];
    char out[TEXT], err[TEXT];
    char store[STORE];
} outcome;

static char directory[256];

static size_t read_into(const char *path, char *data, size_t room)
{
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s: cannot open", path);
    const size_t n = fread(data, 1, room - 1, f);
    fclose(f);
    assert_true(n + 1 < room);
    data[n] = '\0';
    return n;
}

/* Replaces every number with one digit: seconds differ from run to run. */
static void forget_numbers(char *text)
{
    char *to = text;
    for (const char *from = text; *from;) {
        if (!isdigit((unsigned char)*from)) {
            *to++ = *from++;
            continue;
        }
        *to++ = '0';
        while (*from && strchr("0123456789.e+-", *from)) from++;
    }
    *to = '\0';
}

/* Reads and removes the files under a folder whose names begin with prefix. */
static void collect(outcome *o, const char *folder, const char *prefix, size_t *used)
{
    DIR *d = opendir(folder);
    if (!d) fail_msg("%s: cannot open", folder);
    for (struct dirent *e; (e = readdir(d));) {
        char path[512], name[300];
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        snprintf(name, sizeof name, "%s%s", prefix, e->d_name);
        assert_int_equal(stat(path, &st), 0);
        if (S_ISDIR(st.st_mode)) {
            char below[310];
            snprintf(below, sizeof below, "%s/", name);
            collect(o, path, below, used);
            assert_int_equal(rmdir(path), 0);
            continue;
        }
        assert_in_range(o->files, 0, FILES - 1);
        snprintf(o->file[o->files].name, sizeof o->file[0].name, "%s", name);
        o->file[o->files].data = o->store + *used;
        o->file[o->files].size = read_into(path, o->store + *used, sizeof o->store - *used);
        *used += o->file[o->files++].size + 1;
        unlink(path);
    }
    closedir(d);
}

typedef int subcommand(int argc, char **argv);

/* Runs a line such as "generate --num 1". Counted allocation `failing` fails. With `last`, all later ones fail, too. */
static void run(subcommand *command, const char *line, long failing, int last, outcome *o)
{
    char words[700], *argv[64], saved_folder[512];
    char out_path[300], err_path[300];
    int argc = 0;
    size_t used = 0;
    o->files = 0;
    snprintf(words, sizeof words, "%s", line);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    argv[argc] = NULL;
    snprintf(out_path, sizeof out_path, "%s.out", directory);
    snprintf(err_path, sizeof err_path, "%s.err", directory);
    fflush(NULL);
    const int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    if (!getcwd(saved_folder, sizeof saved_folder) || chdir(directory) != 0 || !freopen(out_path, "w", stdout) ||
        !freopen(err_path, "w", stderr))
        _exit(99);
    static char buffer[BUFSIZ]; /* otherwise the stream would allocate one and keep it */
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    setvbuf(stderr, NULL, _IONBF, 0);
    failures = 0;
    failures_last = last;
    until_failure = failing;
    o->status = command(argc, argv);
    until_failure = -1;
    fflush(NULL);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    if (chdir(saved_folder) != 0) _exit(99);
    read_into(out_path, o->out, sizeof o->out);
    read_into(err_path, o->err, sizeof o->err);
    forget_numbers(o->out);
    collect(o, directory, "", &used);
}

/* --- each allocation in turn -------------------------------------------------------------------------------------- */

static int same_file(const outcome *a, int i, const outcome *b)
{
    const char *name = a->file[i].name, *end = strrchr(name, '.');
    for (int k = 0; k < b->files; k++) {
        if (strcmp(b->file[k].name, name) != 0) continue;
        if (end && (strcmp(end, ".html") == 0 || strcmp(end, ".svg") == 0)) { /* they contain seconds */
            const size_t n = a->file[i].size;
            return n > 8 && strcmp(a->file[i].data + n - 8, b->file[k].data + b->file[k].size - 8) == 0;
        }
        return a->file[i].size == b->file[k].size && memcmp(a->file[i].data, b->file[k].data, a->file[i].size) == 0;
    }
    return 0;
}

/* Every file that exists is complete. */
static void check_files(const char *line, long round, const outcome *o, const outcome *expected)
{
    for (int i = 0; i < o->files; i++)
        if (!same_file(o, i, expected))
            fail_msg("%s: %s is not as it should be after allocation %ld failed", line, o->file[i].name, round);
}

/* Returns whether nothing, or only the line about finished images, follows the error. */
static int is_rest(const char *rest, const outcome *o)
{
    static const char kept[] = " they are in x; --resume goes on\n";
    const char *end = strstr(rest, kept);
    return !*rest || (o->files > 0 && strncmp(rest, "mar: ", 5) == 0 && end && !end[strlen(kept)]);
}

static void check(const char *line, long round, const outcome *o, const outcome *expected)
{
    const char *newline = strchr(o->err, '\n');
    check_files(line, round, o, expected);
    if (o->status == 0) {
        if (o->files != expected->files || strcmp(o->out, expected->out) != 0 || *o->err)
            fail_msg("%s: allocation %ld fails without a word: %d files, \"%s\" \"%s\"", line, round, o->files, o->out,
                     o->err);
        return;
    }
    if (strncmp(o->err, "mar: ", 5) != 0 || !newline || !is_rest(newline + 1, o))
        fail_msg("%s: allocation %ld: exit status %d, \"%s\"", line, round, o->status, o->err);
    if (*o->out && strcmp(o->out, expected->out) != 0)
        fail_msg("%s: allocation %ld: half of the output: \"%s\"", line, round, o->out);
}

/* Fails the first allocation, then the one `step` later, and so on, until the line makes fewer. In every second round
 * all later allocations fail, too. */
static void fail_each(subcommand *command, const char *line, int step)
{
    static outcome expected, o;
    run(command, line, -1, 0, &o); /* makes objects that are made only once */
    run(command, line, -1, 0, &expected);
    if (expected.status != 0) fail_msg("%s: %s", line, expected.err);
    long round = -step;
    do {
        round += step;
        const long before = held;
        run(command, line, round, round % 2, &o);
        if (held > before) fail_msg("%s: %ld blocks leak when allocation %ld fails", line, held - before, round);
        check(line, round, &o, &expected);
    } while (failures);
    if (o.status != 0) fail_msg("%s: %s", line, o.err);
    assert_in_range(round, 5, 100000);
}

#define TINY " --num_iter 1 --num_sampling_steps 2 --threads 1 --dtype f32 "

static void generating(void **state)
{
    (void)state;
    fail_each(cmd_generate, "generate --class 1 --num 1 --quiet --out x.png" TINY, 1);
    fail_each(
        cmd_generate,
        "generate --class 1 --num 1 --out x.png --draft demo-draft --spec cspd --gamma 1 --accept_map map.png" TINY, 1);
    /* The draft is loaded once more to see whether it is for --spec path. */
    fail_each(cmd_generate, "generate --class 1 --num 1 --quiet --out x.png --draft demo-draft" TINY, 7);
    /* Steps: most allocations are the record's, which are alike, and those of text in the pictures. */
    fail_each(cmd_generate, "generate --class 1,2 --num 1 --out x --overwrite --grid --json" TINY, 9);
    fail_each(cmd_generate, "generate --class 1 --num 1 --quiet --out x.jpg" TINY, 5);
    if (!image_format_lacks(IMAGE_WEBP))
        fail_each(cmd_generate, "generate --class 1 --num 1 --quiet --out x.webp" TINY, 5);

    char line[512], made_path[300];
    snprintf(made_path, sizeof made_path, "%s.png", directory);
    snprintf(line, sizeof line, "generate --class 1 --num 1 --quiet --out %s" TINY, made_path);
    static outcome made;
    run(cmd_generate, line, -1, 0, &made);
    snprintf(line, sizeof line, "generate --like %s --quiet --threads 1 --out x.png", made_path);
    fail_each(cmd_generate, line, 3);
    unlink(made_path);
}

static void write_list(const char *path, const char *text)
{
    FILE *list = fopen(path, "w");
    assert_non_null(list);
    fputs(text, list);
    assert_int_equal(fclose(list), 0);
}

static void reading(void **state)
{
    (void)state;
    fail_each(cmd_inspect, "inspect demo-vae", 1);
    fail_each(cmd_inspect, "inspect demo-vae --json", 1);
    fail_each(cmd_methods, "methods --name cspd --json", 1);
    fail_each(cmd_classes, "classes crane --json", 1);

    /* class list from a file */
    char path[300], line[512];
    snprintf(path, sizeof path, "%s.list", directory);
    write_list(path, "0-2 # three\n7\n");
    snprintf(line, sizeof line, "generate --class @%s --num 1 --quiet --out x.png" TINY, path);
    fail_each(cmd_generate, line, 5);
    write_list(path, "zero,null\none\n2\n3\n4\n5\n6\n7\n8\n9\n");
    snprintf(line, sizeof line, "classes --class_names %s --json null", path);
    fail_each(cmd_classes, line, 1);
    snprintf(line, sizeof line, "generate --class one --class_names %s --num 1 --quiet --out x.png" TINY, path);
    fail_each(cmd_generate, line, 5);
    unlink(path);
}

static void converting(void **state)
{
    (void)state;
    fail_each(cmd_convert, "convert demo-vae x.safetensors", 1);
}

static void comparing(void **state)
{
    (void)state;
    /* Steps: the statistics take time. Most allocations are those of the record and of the pictures in the page. */
    fail_each(cmd_fidelity,
              "fidelity --num 20 --class 1 --batch 20 --out p.html --plot p.svg --json --draft demo-draft --spec cspd "
              "--gamma 1" TINY "--against --num_iter 1 --num_sampling_steps 2",
              11);
}

/* Writes the files of mar eval: a result and its page. argv[1]: a result to read. */
static int evaluated(int argc, char **argv)
{
    static eval_result r;
    static uint8_t rgb[8 * 8 * 3];
    const eval_report_image shown = {1, 2, 4, 3, rgb, 8, 8};
    assert_int_equal(argc, 2);
    if (eval_result_read(argv[1], &r) != 0) return 1;
    const image_text settings = {"model", "demo"};
    const eval_report_extras x = {NULL, &settings, 1, &shown, 1, &shown, 1, NULL, 0};
    return eval_result_write(&r, "result.json") || eval_report_write(&r, &x, "report.html");
}

static void evaluating(void **state)
{
    static eval_result r;
    char result[300], line[400];
    (void)state;
    snprintf(result, sizeof result, "%s.result", directory);
    r.fid = 2, r.images = 100, r.generate_s = 5, r.steps = 3, r.accepted[1] = 5, r.stats.drafted = 9, r.accuracy = NAN;
    r.clip_cosine = r.clip_score = r.clip_cosine_prefixed = NAN;
    r.hps_cosine = r.hps_score = r.image_reward = NAN;
    strcpy(r.published, "MAR-H");
    assert_int_equal(eval_result_write(&r, result), 0);
    snprintf(line, sizeof line, "evaluated %s", result);
    fail_each(evaluated, line, 3);
    unlink(result);
}

static int open_directory(void **state)
{
    (void)state;
    dl_iterate_phdr(note_code, NULL);
    const char *base = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/mar-test-XXXXXX", base ? base : "/tmp");
    return mkdtemp(directory) ? 0 : 1;
}

static int remove_directory(void **state)
{
    char path[300];
    (void)state;
    snprintf(path, sizeof path, "%s.out", directory);
    unlink(path);
    snprintf(path, sizeof path, "%s.err", directory);
    unlink(path);
    return rmdir(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(evaluating), cmocka_unit_test(generating),
                                       cmocka_unit_test(reading), cmocka_unit_test(converting),
                                       cmocka_unit_test(comparing)};
    return cmocka_run_group_tests(tests, open_directory, remove_directory);
}

#endif
