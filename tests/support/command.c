#include "tests/support/command.h"

#include <dirent.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *path_in(const char *directory, const char *name)
{
    char *path;
    if (asprintf(&path, "%s/%s", directory, name) < 0) fail_msg("out of memory");
    return path;
}

char *read_whole_file(const char *directory, const char *name, size_t *size)
{
    char *path = path_in(directory, name);
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
    free(path);
    return data;
}

void write_whole_file(const char *directory, const char *name, const void *data, size_t size)
{
    char *path = path_in(directory, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0) fail_msg("%s: cannot write", path);
    free(path);
}

int command_setup(void **state)
{
    *state = temporary_directory();
    return *state ? 0 : 1;
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

void command_ok(const char *directory, const char *arguments)
{
    char *line;
    if (asprintf(&line, "$MAR %s", arguments) < 0) fail_msg("out of memory");
    command_result r = command_run(directory, line);
    if (r.status != 0) fail_msg("mar %s: exit status %d, %s", arguments, r.status, r.err);
    free(line);
    command_result_free(&r);
}
