/* Runs the `mar` command (its path is in $MAR_COMMAND) as a user would, through the shell. */
#ifndef TESTS_COMMAND_H
#define TESTS_COMMAND_H

#include "tests/support/support.h"

typedef struct {
    int status; /* exit status, or 128 + the signal that ended it */
    char *out, *err;
} command_result;

/* Setup and teardown of a test: *state is a fresh directory. */
int command_setup(void **state);
int command_teardown(void **state);

/* Runs `line` by /bin/sh in `directory`; $MAR in it is the command. command_result_free afterwards. */
command_result command_run(const char *directory, const char *line);
void command_result_free(command_result *r);

/* Runs mar in `directory` on a terminal of 80 columns and fails the test unless the status is 0. Returns what it
 * printed there, which the caller frees. */
char *command_on_terminal(const char *directory, char *const *argv);

/* Runs "$MAR arguments", fails the test unless the status is 0. */
void command_ok(const char *directory, const char *arguments);

/* Reads a whole file and adds a NUL. A failure fails the test. `size` may be NULL. The caller frees the result. */
char *read_whole_file(const char *directory, const char *name, size_t *size);
void write_whole_file(const char *directory, const char *name, const void *data, size_t size);

#endif
