/* An attack on the command with randomly damaged files, random sets of options, and signals at random moments. Each
 * case is one run of `mar` in a directory of its own. Checked afterwards:
 *
 *   - The run ended by itself, or by the signal it was sent, with an exit status from the manual. In cases without
 *     signals a long run gets SIGINT. It must say that it stops, and stop.
 *   - No sanitizer reports anything.
 *   - Every line on the standard error begins with "mar: " and is printable UTF-8. A failure prints at least one.
 *   - The output is there and whole. Nothing else is: no other file, and no empty directory.
 *
 *     attack COMMAND SOURCE KIND COUNT [FIRST [SEED]]     KIND: files, options or signals
 *
 * SOURCE is the repository. The cases' directories are made under TMPDIR. A case depends on (KIND, SEED, its number)
 * only, so `attack ... KIND 1 NUMBER` repeats it. The directory of a case that found something stays. Two cases run
 * at a time. The last line has the counts. The exit status is 0 if nothing was found.
 */
#include "mar.h"
#include "mar_methods.h"
#include "tests/attack/random.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <png.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    JOBS = 2,
    ARGS = 40,
    TEXT = 1 << 16,
    PATH = 1024,
    PATIENCE = 60,
    GRACE = 60
}; /* seconds until SIGINT, and then SIGKILL */

/* --- what a case knows -------------------------------------------------------------------------------------------- */

typedef struct {
    const char *command, *source;
    uint64_t seed;
} setting;

typedef struct {
    const setting *s;
    const char *kind;
    long number;
    uint64_t random;
    char directory[PATH], streams[PATH];
    char *args[ARGS];
    int arg_count;
    const char *wrote;      /* file in the directory, written if the exit status is 0; NULL: none */
    int problems_on_stdout; /* inspect: it may report a failure there */
    /* Afterwards: */
    int status;   /* exit status, or -1 */
    int ended_by; /* the signal that ended it, or 0 */
    int sent[2];  /* the signals sent to it, or 0 */
    int found;    /* 1 if anything was found */
    char err[TEXT];
} attack_case;

typedef struct {
    long cases, ok, refused, interrupted, found, crashes, hangs, leftovers, others;
} totals;

static size_t below(attack_case *c, size_t n)
{
    return (size_t)(random_next(&c->random) % n);
}

static const char *one_of(attack_case *c, const char *const *list)
{
    size_t n = 0;
    while (list[n]) n++;
    return list[below(c, n)];
}

__attribute__((format(printf, 2, 3))) static void add(attack_case *c, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (c->arg_count + 1 >= ARGS || vasprintf(&c->args[c->arg_count++], format, arguments) < 0) abort();
    va_end(arguments);
}

/* Adds the words of a line, separated by single spaces. */
static void add_words(attack_case *c, const char *line)
{
    for (const char *at = line; *at; at += strcspn(at, " "), at += *at == ' ')
        add(c, "%.*s", (int)strcspn(at, " "), at);
}

static int has(const attack_case *c, const char *argument)
{
    for (int i = 0; i < c->arg_count; i++)
        if (strcmp(c->args[i], argument) == 0) return 1;
    return 0;
}

/* Reports a finding with the command line, and keeps the directory. */
__attribute__((format(printf, 3, 4))) static void find(attack_case *c, long *count, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ++*count;
    char line[8192];
    size_t n =
        (size_t)snprintf(line, sizeof line, "%s %ld: %s\n    in %s: mar", c->kind, c->number, text, c->directory);
    for (int i = 1; i < c->arg_count && n < sizeof line; i++)
        n += (size_t)snprintf(line + n, sizeof line - n, " '%s'", c->args[i]);
    if (n < sizeof line) n += (size_t)snprintf(line + n, sizeof line - n, "\n    %.300s\n", c->err);
    fputs(line, stdout);
    fflush(stdout);
    c->found = 1;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static uint8_t *read_file(const char *directory, const char *name, size_t *size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "rb");
    *size = 0;
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    const long end = ftell(f);
    rewind(f);
    uint8_t *data = malloc((size_t)end + 1);
    if (!data) abort();
    *size = fread(data, 1, (size_t)end, f);
    data[*size] = 0;
    fclose(f);
    return data;
}

static void write_file(const char *directory, const char *name, const uint8_t *data, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0) {
        fprintf(stderr, "attack: %s: %s\n", path, strerror(errno));
        exit(2);
    }
}

static void remove_tree(const char *path)
{
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        char inside[4096];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(inside, sizeof inside, "%s/%s", path, e->d_name);
        struct stat st;
        if (lstat(inside, &st) == 0 && S_ISDIR(st.st_mode))
            remove_tree(inside);
        else
            unlink(inside);
    }
    if (d) closedir(d);
    rmdir(path);
}

/* Damages a file in one to four places. A small file is all header; in a large one every other place is in the
 * header. */
static uint8_t *damage(attack_case *c, uint8_t *data, size_t *size)
{
    static const uint64_t odd[] = {0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, ~0ull};
    const int numbers_only = *size > 65536 && below(c, 3) == 0; /* the structure stays */
    for (size_t times = 1 + below(c, 4); times > 0 && *size > 0; times--) {
        const size_t head = *size < 4096 || below(c, 2) ? *size : below(c, 2) ? 4096 : 65536 < *size ? 65536 : *size;
        size_t at = numbers_only ? *size / 4 + below(c, *size - *size / 4) : below(c, head), n;
        if (below(c, 8) == 0)
            at = *size - 1 - below(c, *size < 2048 ? *size : 2048); /* a zip's directory is at the end */
        switch (numbers_only ? below(c, 2) ? 8 : below(c, 2) : below(c, 9)) {
        case 0: /* one bit */
            data[at] ^= (uint8_t)(1u << below(c, 8));
            break;
        case 1: /* one byte */
            data[at] = (uint8_t)random_next(&c->random);
            break;
        case 2: /* cut */
            *size = at;
            break;
        case 3: /* a piece removed */
            n = 1 + below(c, *size - at < 64 ? *size - at : 64);
            memmove(data + at, data + at + n, *size - at - n);
            *size -= n;
            break;
        case 4: /* a piece repeated */
            n = 1 + below(c, *size - at < 64 ? *size - at : 64);
            data = realloc(data, *size + n + 1);
            if (!data) abort();
            memmove(data + at + n, data + at, *size - at);
            *size += n;
            break;
        case 5: /* 2, 4 or 8 bytes of a number in `odd` */
            n = (size_t)2 << below(c, 3);
            for (size_t i = 0, value = odd[below(c, 11)]; i < n && at + i < *size; i++, value >>= 8)
                data[at + i] = (uint8_t)value;
            break;
        case 6: /* a digit */
            while (at < *size && !isdigit(data[at])) at++;
            if (at < *size) data[at] = (uint8_t) "0123456789-.e"[below(c, 13)];
            break;
        case 7: /* a piece from elsewhere */
            n = 1 + below(c, 64);
            for (size_t i = 0, from = below(c, *size); i < n && at + i < *size && from + i < *size; i++)
                data[at + i] = data[from + i];
            break;
        case 8: /* a float of a tensor: NaN, infinity, or huge */
            at = *size / 2 + below(c, *size - *size / 2);
            at -= at % 4;
            for (size_t i = 0, value = below(c, 2) ? 0x7fc00000 : 0x7f7fffff; i < 4 && at + i < *size; i++, value >>= 8)
                data[at + i] = (uint8_t)value;
            break;
        }
    }
    return data;
}

/* Copies the repository's file `name`, damaged or not, to `as`. */
static void copy_file(attack_case *c, const char *name, const char *as, int damaged)
{
    size_t size;
    uint8_t *data = read_file(c->s->source, name, &size);
    if (!data) {
        fprintf(stderr, "attack: %s/%s: cannot read\n", c->s->source, name);
        exit(2);
    }
    if (damaged) data = damage(c, data, &size);
    write_file(c->directory, as, data, size);
    free(data);
}

/* Makes a case of statistics of damaged images: an array, or a folder with one of two images damaged. */
static void make_image_case(attack_case *c)
{
    static const char folder[] = "tests/golden/data/images/square";
    static const char *const names[] = {"a.png", "b.png", "c.jpg"};
    char from[PATH], to[PATH + 16];
    if (below(c, 2)) {
        copy_file(c, below(c, 2) ? "tests/weights/data/npz/images.npz" : "tests/weights/data/npz/slots.npz", "in", 1);
    } else {
        const size_t which = below(c, 3), other = below(c, 3);
        snprintf(to, sizeof to, "%s/in", c->directory);
        mkdir(to, 0777);
        snprintf(from, sizeof from, "%s/%s", folder, names[which]);
        snprintf(to, sizeof to, "in/%s", names[which]);
        copy_file(c, from, to, 1);
        snprintf(from, sizeof from, "%s/%s", folder, names[other]);
        snprintf(to, sizeof to, "in/z%s", names[other]);
        copy_file(c, from, to, 0);
    }
    add_words(c, "stats in --features demo --threads 1 --out out.npz");
    c->wrote = "out.npz";
}

/* Makes a case that runs on a damaged file. */
static void make_file_case(attack_case *c)
{
    static const struct {
        const char *name;
        int vae; /* 0: a model; 1: an image decoder; 2: a model with its image decoder */
    } sources[] = {{"weights/demo/target.safetensors", 0}, {"weights/demo/draft.safetensors", 0},
                   {"weights/demo/vae.safetensors", 1},    {"tests/weights/data/mar.pth", 0},
                   {"tests/weights/data/mar.pth", 0},      {"tests/weights/data/vae.ckpt", 1},
                   {"tests/weights/data/dtypes.pt", 0},    {"tests/weights/data/dtypes.safetensors", 0},
                   {"tests/weights/data/views.pt", 0},     {"tests/weights/data/protocol4.pt", 0},
                   {"tests/weights/data/protocol5.pt", 0}, {"tests/golden/data/sphere_model.safetensors", 2}};
    const size_t which = below(c, sizeof sources / sizeof *sources);
    if (below(c, 4) == 0) {
        make_image_case(c);
        return;
    }
    copy_file(c, sources[which].name, "in", 1);
    switch (below(c, 4)) {
    case 0:
        add_words(c, below(c, 2) ? "inspect in --json" : "inspect in");
        c->problems_on_stdout = 1;
        break;
    case 1:
        add_words(c, "convert in out.safetensors --dtype");
        add(c, "%s", one_of(c, (const char *const[]){"auto", "f32", "bf16", "int8", "f16", NULL}));
        c->wrote = "out.safetensors";
        break;
    default:
        add_words(c, sources[which].vae == 1   ? "generate --vae in --num_iter 3"
                     : sources[which].vae == 2 ? "generate --model in"
                                               : "generate --model in --vae demo --num_iter 3");
        if (strstr(sources[which].name, "mar.pth")) add_words(c, "--heads 2"); /* not in the file */
        add_words(c, "--class 1 --num 1 --num_sampling_steps 4 --out out.png");
        if (below(c, 4) == 0) add_words(c, "--head_spec 4");
        c->wrote = "out.png";
    }
}

/* --- options ------------------------------------------------------------------------------------------------------ */

static const char *const odd_values[] = {"",           "-",
                                         "--",         "0",
                                         "-1",         "+3",
                                         " 5",         "5 ",
                                         "0x10",       "1e3",
                                         "1e400",      "-1e400",
                                         "nan",        "inf",
                                         "1,5",        "demo",
                                         "a b",        "\x1b[2J",
                                         "\xff\xfe",   "%s%n",
                                         "../x",       "99999999999999999999",
                                         "2147483648", "\u202etxt",
                                         "off",        "1e-50",
                                         NULL};

static void add_value(attack_case *c, const mar_param *p)
{
    char buffer[64];
    if (below(c, 12) == 0) {
        add(c, "%s", one_of(c, odd_values));
        return;
    }
    switch (p->type) {
    case MAR_TYPE_CHOICE:
    case MAR_TYPE_NAME:
        add(c, "%s", one_of(c, p->choices));
        break;
    case MAR_TYPE_MODEL:
        add(c, "%s",
            one_of(c, (const char *const[]){"demo", "demo-draft", "demo-draft", "self", "demo-vae", "none.pth", ".",
                                            NULL}));
        break;
    case MAR_TYPE_FLOAT:
        snprintf(buffer, sizeof buffer, "%g", p->min + (p->max - p->min) * ((double)below(c, 9) / 8));
        add(c, "%s", buffer);
        break;
    case MAR_TYPE_FLAG:
        add(c, "%s", below(c, 2) ? "on" : "off");
        break;
    default: /* whole numbers: mostly few steps, now and then the ends of the range and beyond */
        if (p->choices && below(c, 4) == 0)
            add(c, "%s", one_of(c, p->choices));
        else if (below(c, 4))
            add(c, "%d", (int)below(c, 12));
        else
            add(c, "%.0f", (below(c, 2) ? p->min : p->max) + (double)below(c, 3) - 1);
    }
}

/* Makes a case of up to six options from the library's tables, and up to three of the command's own. */
static void make_option_case(attack_case *c)
{
    static const struct {
        const char *name;
        const char *values[14]; /* none: a flag */
    } own[] = {
        {"--class", {"0", "9", "0,1,2", "10", "0-3", "3-1", "all", "@none", ",", "-1", "none", "0-"}},
        {"--num", {"1", "2", "3", "0", "-5", "1000001", "x"}},
        {"--batch", {"1", "2", "3", "0", "1025", "x"}},
        {"--model", {"demo", "demo-draft", "demo-vae", "none.safetensors", "/dev/null", ".", ""}},
        {"--vae", {"demo", "demo-vae", "demo-draft", "none.ckpt", "/dev/zero"}},
        {"--heads", {"0", "1", "4", "7", "-1", "100000"}},
        {"--seed", {"7", "random", "-1"}},
        {"--format", {"png", "jpeg", "webp", "gif"}},
        {"--quality", {"1", "100", "0", "x"}},
        {"--like", {"none.png", "out.png", ".", "/dev/zero", "x.jpg"}},
        {"--class_names", {"none.txt", ".", "/dev/null"}},
        {"--accept_map", {"map.png", "map", "out.png", "/dev/null/x.png"}},
        {"--threads", {"0", "1", "2", "3", "65", "-1"}},
        {"--dtype", {"auto", "f32", "bf16", "f16"}},
        {"--head_dtype", {"auto", "f32", "bf16", "f16"}},
        {"--backend", {"cpu", "auto", "cuda", "tpu"}},
        {"--grid", {NULL}},
        {"--json", {NULL}},
        {"--quiet", {NULL}},
        {"--help", {NULL}},
        {"--resume", {NULL}},
        {"--overwrite", {NULL}},
        {"--nothing", {NULL}},
    };
    static const char *const outs[] = {
        "out.png", "out.png", "out.png",   "d",       "a/b/out.png",     "out.PNG",        "",
        ".",       "-",       "/dev/null", "out.jpg", "/dev/null/x.png", "o\x1b[1m\n.png", NULL};
    const char *out = one_of(c, outs);
    add(c, "%s",
        below(c, 12) ? "generate" : one_of(c, (const char *const[]){"bench", "methods", "classes", "gen", "", NULL}));
    if (strcmp(c->args[1], "generate") == 0) add(c, "--out"), add(c, "%s", out);
    for (size_t n = below(c, 2) ? below(c, 7) : below(c, 2); n > 0; n--) {
        const mar_param *p = mar_param_get((int)below(c, (size_t)mar_param_count()));
        char name[80];
        snprintf(name, sizeof name, "--%s", p->name);
        if (has(c, name) && below(c, 8)) continue;
        add(c, "%s", name);
        if (p->type != MAR_TYPE_FLAG || below(c, 8) == 0) add_value(c, p);
    }
    for (size_t n = below(c, 3); n > 0; n--) {
        const size_t i = below(c, sizeof own / sizeof *own);
        if (has(c, own[i].name) && below(c, 8)) continue;
        add(c, "%s", own[i].name);
        if (own[i].values[0]) add(c, "%s", below(c, 16) ? one_of(c, own[i].values) : one_of(c, odd_values));
    }
    /* Short runs, unless the case says otherwise. */
    if (!has(c, "--class")) add_words(c, "--class 3");
    if (!has(c, "--num")) add_words(c, "--num 1");
    if (!has(c, "--num_iter") && !has(c, "--gtr")) add_words(c, "--num_iter 4");
    if (!has(c, "--num_sampling_steps")) add_words(c, "--num_sampling_steps 6");
    if (strcmp(out, "out.png") == 0 && strcmp(c->args[1], "generate") == 0) c->wrote = out;
}

/* --- signals ------------------------------------------------------------------------------------------------------ */

static void make_signal_case(attack_case *c)
{
    static const char *const outs[] = {"d", "d", "out.png", "a/b", NULL};
    if (below(c, 4) == 0) {
        add_words(c, "convert in out.safetensors --dtype bf16");
        copy_file(c, "weights/demo/target.safetensors", "in", 0);
        c->wrote = "out.safetensors";
        return;
    }
    add_words(c, "generate --out");
    add(c, "%s", one_of(c, outs));
    add(c, "--batch");
    add(c, "%d", 1 + (int)below(c, 20));
    if (below(c, 3) == 0) add_words(c, "--head_spec 8");
    if (below(c, 3) == 0) add_words(c, below(c, 2) ? "--draft demo-draft" : "--draft self");
    if (below(c, 3) == 0) add(c, "--lazy");
}

/* --- a run -------------------------------------------------------------------------------------------------------- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Waits until the child ends, `seconds` at most. Returns whether it has ended. */
static int wait_for(pid_t child, double seconds, int *status)
{
    const double end = now() + seconds;
    for (useconds_t pause = 200;; pause = pause < 5000 ? 2 * pause : pause) {
        const pid_t ended = waitpid(child, status, WNOHANG);
        if (ended == child) return 1;
        if (now() >= end) return 0;
        usleep(pause);
    }
}

static void execute(attack_case *c, totals *t)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        char out[PATH + 8], err[PATH + 8];
        snprintf(out, sizeof out, "%s/out", c->streams);
        snprintf(err, sizeof err, "%s/err", c->streams);
        if (chdir(c->directory) != 0 || !freopen("/dev/null", "r", stdin) || !freopen(out, "w", stdout) ||
            !freopen(err, "w", stderr))
            _exit(125);
        c->args[c->arg_count] = NULL;
        execv(c->s->command, c->args);
        _exit(126);
    }
    int status = 0, ended;
    if (strcmp(c->kind, "signals") == 0) {
        static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGKILL};
        ended = wait_for(child, (double)below(c, 1000) * (has(c, "convert") ? 3e-5 : 3e-3), &status);
        if (!ended) kill(child, c->sent[0] = numbers[below(c, 4)]);
        if (!ended && below(c, 4) == 0 && !(ended = wait_for(child, (double)below(c, 100) * 1e-3, &status)))
            kill(child, c->sent[1] = numbers[below(c, 4)]);
    } else {
        ended = wait_for(child, PATIENCE, &status);
        if (!ended) kill(child, c->sent[0] = SIGINT); /* a long run is not a hang */
    }
    if (!ended && !wait_for(child, GRACE, &status)) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        find(c, &t->hangs, "did not end %d s after signal %d", GRACE, c->sent[1] ? c->sent[1] : c->sent[0]);
    }
    c->status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    c->ended_by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    size_t size;
    uint8_t *err = read_file(c->streams, "err", &size);
    snprintf(c->err, sizeof c->err, "%s", err ? (char *)err : "");
    free(err);
}

/* --- what is wrong ------------------------------------------------------------------------------------------------ */

/* Returns the number of bytes of the printable character at s, 0 if there is none. */
static int printable(const unsigned char *s)
{
    static const unsigned char lead[] = {0xc2, 0xe0, 0xf0, 0xf5};
    if (*s < 128) return *s >= 32 && *s < 127;
    for (int n = 2; n <= 4; n++)
        if (*s >= lead[n - 2] && *s < lead[n - 1]) {
            unsigned code = *s & (0x7fu >> n);
            for (int i = 1; i < n; i++) {
                if ((s[i] & 0xc0) != 0x80) return 0;
                code = code << 6 | (s[i] & 0x3f);
            }
            const int bidi = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
            return code < 0xa0 || bidi || (code >= 0xd800 && code < 0xe000) ? 0 : n;
        }
    return 0;
}

static void check_messages(attack_case *c, totals *t)
{
    const unsigned char *at = (const unsigned char *)c->err;
    if (strstr(c->err, "Sanitizer") || strstr(c->err, "runtime error:")) find(c, &t->crashes, "a sanitizer's report");
    if (c->status == 1 && !*at && !c->problems_on_stdout) find(c, &t->others, "failed without a word");
    while (*at && !c->found) {
        const char *line = (const char *)at;
        const int summary = has(c, "-") && (strncmp(line, "wrote standard output: ", 23) == 0 ||
                                            strncmp(line, "exact", 5) == 0 || strncmp(line, "approximate", 11) == 0);
        if (strncmp(line, "mar: ", 5) != 0 && !summary) find(c, &t->others, "a line that does not begin with mar:");
        while (*at && *at != '\n') {
            const int n = printable(at);
            if (!n) find(c, &t->others, "the byte %d of its messages is not printable", *at);
            at += n ? n : 1;
        }
        if (*at == '\n')
            at++;
        else
            find(c, &t->others, "its last line has no end");
    }
}

static int ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcasecmp(text + n - m, end) == 0;
}

/* Returns whether a file is whole: a PNG with its end, an npz with its directory's end, or a safetensors file as
 * long as its header says. */
static int is_whole(const char *directory, const char *name)
{
    size_t size;
    uint8_t *data = read_file(directory, name, &size);
    int whole = 0;
    if (data && ends_with(name, ".png")) {
        whole = size > 20 && memcmp(data, "\x89PNG\r\n\x1a\n", 8) == 0 &&
                memcmp(data + size - 8, "IEND\xae\x42\x60\x82", 8) == 0;
    } else if (data && ends_with(name, ".npz")) {
        whole = size > 22 && memcmp(data, "PK\3\4", 4) == 0 && memcmp(data + size - 22, "PK\5\6", 4) == 0;
    } else if (data && size > 8) {
        uint64_t header, end = 0;
        memcpy(&header, data, 8);
        if (header < size - 8)
            for (char *p = (char *)data + 8; (p = strstr(p, "\"data_offsets\":[")) && p < (char *)data + 8 + header;
                 p++) {
                const char *comma = strchr(p, ',');
                const uint64_t e = comma ? strtoull(comma + 1, NULL, 10) : 0;
                if (e > end) end = e;
            }
        whole = header < size - 8 && 8 + header + end == size;
    }
    free(data);
    return whole;
}

/* Returns whether all pixels of a PNG are the same. */
static int is_blank(const char *directory, const char *name)
{
    char path[4096];
    png_image picture = {.version = PNG_IMAGE_VERSION};
    snprintf(path, sizeof path, "%s/%s", directory, name);
    if (!png_image_begin_read_from_file(&picture, path)) return 1;
    picture.format = PNG_FORMAT_RGB;
    uint8_t *rgb = malloc(PNG_IMAGE_SIZE(picture));
    if (!rgb || !png_image_finish_read(&picture, NULL, rgb, 0, NULL)) abort();
    const int blank = memcmp(rgb, rgb + 3, PNG_IMAGE_SIZE(picture) - 3) == 0;
    free(rgb);
    return blank;
}

/* Returns the last value of an option in the command line, or NULL. */
static const char *value_of(const attack_case *c, const char *name)
{
    const char *value = NULL;
    for (int i = 1; i + 1 < c->arg_count; i++)
        if (strcmp(c->args[i], name) == 0) value = c->args[i + 1];
    return value;
}

/* Returns whether pictures in a directory may end so. */
static int is_format(const char *ending)
{
    return strcmp(ending, ".png") == 0 || strcmp(ending, ".jpg") == 0 || strcmp(ending, ".webp") == 0;
}

/* Returns whether a run may write the file `name`, relative to the case's directory. It may write the case's output,
 * and the files named by --out and --accept_map. In a directory --out it may write the numbered images and, with
 * --grid, the grid. */
static int is_expected(const attack_case *c, const char *name)
{
    const char *out = value_of(c, "--out"), *map = value_of(c, "--accept_map"), *at = name;
    if (c->wrote && strcmp(name, c->wrote) == 0) return 1;
    if (map && strcmp(name, map) == 0) return 1;
    if (!out) return 0;
    if (strcmp(name, out) == 0) return 1;
    if (strcmp(out, ".") != 0) {
        const size_t n = strlen(out);
        if (strncmp(name, out, n) != 0 || name[n] != '/') return 0;
        at = name + n + 1;
    }
    if (strncmp(at, "grid", 4) == 0 && is_format(at + 4)) return has(c, "--grid");
    return strspn(at, "0123456789") == 6 && is_format(at + 6);
}

/* Returns whether files can be made there without a name until they are whole. If not, SIGKILL may leave one whose
 * name begins with a dot. */
static int has_nameless_files(const char *directory)
{
    const int fd = open(directory, O_TMPFILE | O_WRONLY, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* Checks the directory and all directories below it. `made` counts everything except "in" and directories. Returns
 * the number of entries of this directory. */
static int check_files(attack_case *c, totals *t, const char *directory, int *made)
{
    const int killed = c->ended_by == SIGKILL;
    int entries = 0;
    DIR *d = opendir(directory);
    for (struct dirent *e; d && (e = readdir(d)); entries++) {
        char path[4096];
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || strcmp(e->d_name, "in") == 0) continue;
        snprintf(path, sizeof path, "%s/%s", directory, e->d_name);
        const char *name = path + strlen(c->directory) + 1;
        if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
            if (check_files(c, t, path, made) == 2 && !killed) find(c, &t->leftovers, "%s is empty", path);
            continue;
        }
        ++*made;
        if (e->d_name[0] == '.') {
            if (!killed || has_nameless_files(directory)) find(c, &t->leftovers, "left %s", path);
        } else if (!is_expected(c, name)) {
            find(c, &t->leftovers, "%s was not to be written", path);
        } else if ((ends_with(e->d_name, ".png") || ends_with(e->d_name, ".npz") ||
                    ends_with(e->d_name, ".safetensors")) &&
                   !is_whole(directory, e->d_name)) {
            find(c, &t->leftovers, "%s is not whole", path);
        }
    }
    if (d) closedir(d);
    return entries;
}

static void check(attack_case *c, totals *t)
{
    int made = 0;
    const int by_signal = c->ended_by && (c->ended_by == c->sent[0] || c->ended_by == c->sent[1]);
    const int interrupted = by_signal || (c->sent[0] && c->status > 128 &&
                                          (c->status == 128 + c->sent[0] || c->status == 128 + c->sent[1]));
    if (c->ended_by && !by_signal && !c->found)
        find(c, &t->crashes, "ended by signal %d, %s", c->ended_by, strsignal(c->ended_by));
    if (strcmp(c->kind, "signals") != 0 && interrupted && (by_signal || !strstr(c->err, "mar: stopping")))
        find(c, &t->hangs, "was not at work after %d s, or would not stop", PATIENCE);
    if (c->status >= 0 && c->status != 0 && c->status != 1 && !interrupted)
        find(c, &t->others, "exit status %d", c->status);
    check_messages(c, t);
    check_files(c, t, c->directory, &made);
    if (c->wrote && c->status == 0 && !has(c, "--help")) {
        if (!is_whole(c->directory, c->wrote))
            find(c, &t->leftovers, "%s is missing or not whole", c->wrote);
        else if (ends_with(c->wrote, ".png") && is_blank(c->directory, c->wrote))
            find(c, &t->others, "%s is blank", c->wrote);
    } else if (made > 0 && (c->status == 1 || has(c, "--help"))) {
        find(c, &t->leftovers, "%s and left %d files", c->status == 1 ? "failed" : "was asked for help", made);
    }
    if (interrupted)
        t->interrupted++;
    else if (c->status == 0)
        t->ok++;
    else if (c->status == 1)
        t->refused++;
}

static void run_case(const setting *s, const char *kind, long number, totals *t)
{
    attack_case *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->s = s;
    c->kind = kind;
    c->number = number;
    c->random = s->seed ^ (uint64_t)number * 0xd1342543de82ef95u ^ (uint64_t)kind[0] << 56;
    const char *base = getenv("TMPDIR");
    snprintf(c->directory, sizeof c->directory, "%s/attack-XXXXXX", base && *base ? base : "/tmp");
    strcpy(c->streams, c->directory);
    if (!mkdtemp(c->directory) || !mkdtemp(c->streams)) abort();
    add(c, "mar");
    if (kind[0] == 'f')
        make_file_case(c);
    else if (kind[0] == 'o')
        make_option_case(c);
    else
        make_signal_case(c);
    execute(c, t);
    check(c, t);
    t->cases++;
    t->found += c->found;
    if (!c->found) remove_tree(c->directory);
    remove_tree(c->streams);
    for (int i = 0; i < c->arg_count; i++) free(c->args[i]);
    free(c);
}

int main(int argc, char **argv)
{
    if (argc < 5 || argc > 7 ||
        (strcmp(argv[3], "files") && strcmp(argv[3], "options") && strcmp(argv[3], "signals"))) {
        fprintf(stderr, "usage: attack COMMAND SOURCE files|options|signals COUNT [FIRST [SEED]]\n");
        return 2;
    }
    char *command = realpath(argv[1], NULL), *source = realpath(argv[2], NULL);
    if (!command || !source) {
        fprintf(stderr, "attack: %s or %s is not there\n", argv[1], argv[2]);
        return 2;
    }
    const setting s = {command, source, argc > 6 ? strtoull(argv[6], NULL, 10) : 1};
    const long count = atol(argv[4]), first = argc > 5 ? atol(argv[5]) : 0;
    totals *t = mmap(NULL, JOBS * sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED) return 2;
    setenv("ASAN_OPTIONS", "detect_leaks=1:allocator_may_return_null=1", 0);
    for (int job = 0; job < JOBS; job++)
        if (fork() == 0) {
            /* The command would inherit a signal that is ignored here, as in the background. */
            for (size_t i = 0; i < 3; i++) signal((const int[]){SIGINT, SIGTERM, SIGHUP}[i], SIG_DFL);
            for (long i = first + job; i < first + count; i += JOBS) run_case(&s, argv[3], i, &t[job]);
            _exit(0);
        }
    int failed = 0, status;
    while (wait(&status) > 0) failed |= status != 0;
    totals sum = {0};
    for (int job = 0; job < JOBS; job++)
        for (size_t i = 0; i < sizeof sum / sizeof(long); i++) ((long *)&sum)[i] += ((long *)&t[job])[i];
    printf(
        "%s: %ld cases, %ld succeeded, %ld refused, %ld interrupted; %ld crashes, %ld hangs, %ld leftovers, %ld other "
        "findings\n",
        argv[3], sum.cases, sum.ok, sum.refused, sum.interrupted, sum.crashes, sum.hangs, sum.leftovers, sum.others);
    free(command);
    free(source);
    return failed || sum.found ? 1 : 0;
}
