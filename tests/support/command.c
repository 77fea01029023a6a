#include "tests/support/command.h"
#include "tests/support/brief.h"

#include <dirent.h>
#include <pty.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

const char *path_in(const char *directory, const char *format, ...)
{
    static char buffers[8][4500];
    static int next;
    char *path = buffers[next++ % 8];
    va_list arguments;
    const int n = snprintf(path, sizeof *buffers, "%s/", directory);
    va_start(arguments, format);
    vsnprintf(path + n, sizeof *buffers - (size_t)n, format, arguments);
    va_end(arguments);
    return path;
}

char *read_whole_file(const char *directory, const char *name, size_t *size)
{
    const char *path = path_in(directory, "%s", name);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s: cannot open", path);
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(n + 1);
    if (!data || fread(data, 1, n, f) != n) fail_msg("%s: cannot read", path);
    data[n] = '\0';
    if (size) *size = n;
    fclose(f);
    return data;
}

void write_whole_file(const char *directory, const char *name, const void *data, size_t size)
{
    const char *path = path_in(directory, "%s", name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0) fail_msg("%s: cannot write", path);
}

int command_setup(void **state)
{
    *state = temporary_directory();
    return *state ? 0 : 1;
}

int command_copy(void **state)
{
    const char *from = *state;
    if (command_setup(state) != 0) return 1;
    sh_ok(*state, "cp -rp '%s/.' .", from);
    return 0;
}

int command_teardown(void **state)
{
    remove_directory(*state);
    free(*state);
    return 0;
}

command_result command_run(const char *directory, const char *line)
{
    const char *command = getenv("MAR_COMMAND");
    if (!command) fail_msg("MAR_COMMAND is not set: run the tests by ctest");
    char *streams = temporary_directory(), *script;
    if (asprintf(&script, "cd '%s' && MAR='%s' && { %s\n} >'%s/out' 2>'%s/err' </dev/null", directory, command, line,
                 streams, streams) < 0)
        fail_msg("out of memory");
    int status = system(script);
    free(script);
    command_result r = {.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
    r.out = read_whole_file(streams, "out", NULL);
    r.err = read_whole_file(streams, "err", NULL);
    remove_directory(streams);
    free(streams);
    return r;
}

void command_result_free(command_result *r)
{
    free(r->out);
    free(r->err);
}

char *command_on_terminal(const char *directory, char *const *argv)
{
    enum { MOST = 1 << 20 };
    int terminal, status;
    struct winsize window = {.ws_row = 24, .ws_col = 80};
    const pid_t child = forkpty(&terminal, NULL, NULL, &window);
    assert_true(child >= 0);
    if (child == 0) {
        if (chdir(directory) == 0) execv(getenv("MAR_COMMAND"), argv);
        _exit(127);
    }
    char *text = calloc(1, MOST);
    size_t used = 0;
    for (ssize_t n; used < MOST - 1 && (n = read(terminal, text + used, MOST - 1 - used)) > 0;) used += (size_t)n;
    waitpid(child, &status, 0);
    close(terminal);
    if (status != 0) fail_msg("mar %s: status %d, \"%s\"", argv[1], status, text);
    return text;
}

/* Sets `text` to the formatted arguments of the function. The caller frees it. */
#define PRINTED(text, before)                                                                                          \
    char *text;                                                                                                        \
    do {                                                                                                               \
        va_list arguments;                                                                                             \
        va_start(arguments, format);                                                                                   \
        text = printed(before, format, arguments);                                                                     \
        va_end(arguments);                                                                                             \
    } while (0)

static char *printed(const char *before, const char *format, va_list arguments)
{
    char *text, *whole;
    if (vasprintf(&text, format, arguments) < 0 || asprintf(&whole, "%s%s", before, text) < 0)
        fail_msg("out of memory");
    free(text);
    return whole;
}

static void run_ok(const char *directory, const char *line)
{
    command_result r = command_run(directory, line);
    if (r.status != 0) fail_msg("%s: exit status %d, %s%s", line, r.status, r.out, r.err);
    command_result_free(&r);
}

command_result command_mar(const char *directory, const char *format, ...)
{
    PRINTED(line, "$MAR ");
    const command_result r = command_run(directory, line);
    free(line);
    return r;
}

void command_ok(const char *directory, const char *format, ...)
{
    PRINTED(line, "$MAR ");
    run_ok(directory, line);
    free(line);
}

void sh_ok(const char *directory, const char *format, ...)
{
    PRINTED(line, "");
    run_ok(directory, line);
    free(line);
}

cJSON *command_json(const char *directory, const char *format, ...)
{
    PRINTED(line, "$MAR ");
    command_result r = command_run(directory, line);
    if (r.status != 0 || *r.err) fail_msg("%s: exit status %d, %s", line, r.status, r.err);
    cJSON *json = cJSON_ParseWithOpts(r.out, NULL, 1);
    if (!json) fail_msg("%s: no JSON: %s", line, r.out);
    command_result_free(&r);
    free(line);
    return json;
}

void command_refused(const char *directory, const char *line, const char *part, const char *other)
{
    const int files = count_files(directory);
    command_result r = command_run(directory, line);
    const size_t n = strlen(r.err);
    const int is_line = n > 5 && strncmp(r.err, "mar: ", 5) == 0 && strchr(r.err, '\n') == r.err + n - 1;
    const int says = is_line && strstr(r.err, part) && (!other || strstr(r.err, other));
    if (r.status != 1 || *r.out || !says)
        fail_msg("%s: status %d, \"%s\" \"%s\", expected \"%s\" \"%s\"", line, r.status, r.out, r.err, part,
                 other ? other : "");
    if (count_files(directory) != files) fail_msg("%s: left a file behind", line);
    command_result_free(&r);
}

void command_refuses(const char *directory, const refusal *cases, size_t count)
{
    for (size_t i = 0; i < count; i += test_brief && !test_all && count > 9 ? 3 : 1) {
        char line[1024];
        snprintf(line, sizeof line, "$MAR %s", cases[i].arguments);
        command_refused(directory, line, cases[i].part, cases[i].other);
    }
}

pid_t command_start(const char *directory, const char *arguments)
{
    char *words = strdup(arguments), *list[40] = {"mar"};
    int count = 1;
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) list[count++] = word;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        for (int i = 0; i < 3; i++) signal((const int[]){SIGINT, SIGHUP, SIGTERM}[i], SIG_DFL);
        if (chdir(directory) != 0 || !freopen("errors", "w", stderr) || !freopen("/dev/null", "w", stdout)) _exit(127);
        execv(getenv("MAR_COMMAND"), list);
        _exit(127);
    }
    free(words);
    return child;
}

int command_wait(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* --- what this process prints ------------------------------------------------------------------------- */

static FILE *captured[2];
static int kept[2];

void capture_begin(void)
{
    fflush(stdout), fflush(stderr);
    for (int i = 0; i < 2; i++) {
        kept[i] = dup(i + 1);
        captured[i] = tmpfile();
        if (kept[i] < 0 || !captured[i] || dup2(fileno(captured[i]), i + 1) < 0) fail_msg("cannot capture");
    }
}

command_result capture_end(int status)
{
    char *text[2];
    fflush(stdout), fflush(stderr);
    for (int i = 0; i < 2; i++) {
        dup2(kept[i], i + 1);
        close(kept[i]);
        const off_t n = lseek(fileno(captured[i]), 0, SEEK_END);
        text[i] = calloc(1, (size_t)n + 1);
        if (!text[i] || pread(fileno(captured[i]), text[i], (size_t)n, 0) != n) fail_msg("cannot read");
        fclose(captured[i]);
    }
    return (command_result){status, text[0], text[1]};
}

/* --- JSON and files ----------------------------------------------------------------------------------- */

const cJSON *json_find(const cJSON *json, const char *path)
{
    char *names = strdup(path), *rest = names;
    for (char *name; json && (name = strsep(&rest, "."));)
        json =
            cJSON_IsArray(json) ? cJSON_GetArrayItem(json, atoi(name)) : cJSON_GetObjectItemCaseSensitive(json, name);
    free(names);
    return json;
}

const cJSON *json_at(const cJSON *json, const char *path)
{
    const cJSON *item = json_find(json, path);
    if (!item) fail_msg("%s is missing", path);
    return item;
}

double json_number(const cJSON *json, const char *path)
{
    const cJSON *item = json_at(json, path);
    if (!cJSON_IsNumber(item)) fail_msg("%s is no number", path);
    return item->valuedouble;
}

const char *json_text(const cJSON *json, const char *path)
{
    const char *text = cJSON_GetStringValue(json_at(json, path));
    if (!text) fail_msg("%s is no text", path);
    return text;
}

int json_count(const cJSON *json, const char *path)
{
    return cJSON_GetArraySize(json_find(json, path));
}

cJSON *read_json(const char *directory, const char *name)
{
    char *text = read_whole_file(directory, name, NULL);
    cJSON *json = cJSON_ParseWithOpts(text, NULL, 1);
    if (!json) fail_msg("%s: no JSON: %s", name, text);
    free(text);
    return json;
}

void assert_same_file(const char *directory, const char *a, const char *b)
{
    size_t na, nb;
    char *da = read_whole_file(directory, a, &na), *db = read_whole_file(directory, b, &nb);
    if (na != nb || memcmp(da, db, na) != 0) fail_msg("%s and %s differ", a, b);
    free(da);
    free(db);
}

char *numbers_of_run(const char *directory, const char *run)
{
    char name[200];
    snprintf(name, sizeof name, "%s/result.json", run);
    char *text = read_whole_file(directory, name, NULL), *begin = strstr(text, "\"numbers\""),
         *end = strstr(text, "\"run\"");
    if (!begin || !end || end < begin) fail_msg("%s: no numbers", name);
    char *numbers = strndup(begin, (size_t)(end - begin));
    free(text);
    return numbers;
}

void assert_same_run(const char *directory, const char *a, const char *b)
{
    char *one = numbers_of_run(directory, a), *other = numbers_of_run(directory, b);
    if (strcmp(one, other) != 0) fail_msg("%s and %s differ:\n%s\n%s", a, b, one, other);
    free(one);
    free(other);
}

void assert_has(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("\"%s\" is not in \"%s\"", part, text);
}

int can_mount(const char *directory)
{
    command_result r = command_run(directory, "mkdir -p m && unshare -m sh -c 'mount -t tmpfs none m && echo yes'");
    const int yes = strcmp(r.out, "yes\n") == 0;
    command_result_free(&r);
    return yes;
}

int command_auto_is_bf16(const char *directory)
{
    command_result r = command_mar(
        directory,
        "generate --class 3 --num 1 --num_iter 1 --num_sampling_steps 2 --json --out auto.png && rm auto.png");
    const int is_bf16 = strstr(r.out, "\"backend\":\"cpu bf16") != NULL;
    if (r.status != 0) fail_msg("exit status %d, \"%s\"", r.status, r.err);
    command_result_free(&r);
    return is_bf16;
}
