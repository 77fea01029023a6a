/* Runs the `mar` command (its path is in $MAR_COMMAND) as a user would, through the shell. */
#ifndef TESTS_COMMAND_H
#define TESTS_COMMAND_H

#include "tests/support/support.h"

#include <cjson/cJSON.h>
#include <sys/types.h>

#define COMMAND_TEST(f) cmocka_unit_test_setup_teardown(f, command_setup, command_teardown)
#define COPY_TEST(f)    cmocka_unit_test_setup_teardown(f, command_copy, command_teardown)
/* Begin the definition of a test whose *state is a fresh directory, and a copy of the group's. */
#define COMMAND_CASE(name) TEST_WITH(name, command_setup, command_teardown)
#define COPY_CASE(name)    TEST_WITH(name, command_copy, command_teardown)
#define LENGTH(array)      (sizeof(array) / sizeof *(array))
#define FORMAT(at)         __attribute__((format(printf, at, (at) + 1)))

typedef struct {
    int status; /* exit status, or 128 + the signal that ended it */
    char *out, *err;
} command_result;

/* Setup and teardown of a test: *state is a fresh directory. */
int command_setup(void **state);
int command_teardown(void **state);
/* Returns whether --dtype auto is bf16 on this processor; else it is f32. */
int command_auto_is_bf16(const char *directory);
/* Setup of a test in a group whose *state is a directory: copies that directory into a fresh one. */
int command_copy(void **state);

/* Runs `line` by /bin/sh in `directory`; $MAR in it is the command. command_result_free frees the result. */
command_result command_run(const char *directory, const char *line);
command_result command_mar(const char *directory, const char *format, ...) FORMAT(2); /* "$MAR ..." */
void command_result_free(command_result *r);

/* Run "$MAR ..." and a shell line. They fail the test unless the status is 0. */
void command_ok(const char *directory, const char *format, ...) FORMAT(2);
void sh_ok(const char *directory, const char *format, ...) FORMAT(2);

/* Runs "$MAR ...", which must print JSON and no error. The caller frees the result with cJSON_Delete. */
cJSON *command_json(const char *directory, const char *format, ...) FORMAT(2);

#pragma GCC diagnostic ignored "-Wmissing-field-initializers" /* a refusal may have no `other` */

/* A command that must be refused: status 1, nothing on stdout, no new file, and one line on stderr. The line begins
 * with "mar: " and contains `part`, the name of what is at fault, and `other`, what was expected, if not NULL. */
typedef struct {
    const char *arguments, *part, *other;
} refusal;
void command_refused(const char *directory, const char *line, const char *part, const char *other);
/* Runs "$MAR arguments" for each case; in the change lane's sanitizers for a third of a long list. */
void command_refuses(const char *directory, const refusal *cases, size_t count);

/* Starts "mar arguments" (words without spaces) in the directory. stderr goes to the file "errors"; stdout is
 * discarded. */
pid_t command_start(const char *directory, const char *arguments);
/* Waits for the child. Returns its status as a shell shows it. */
int command_wait(pid_t child);

/* Runs mar in `directory` on a terminal of 80 columns. Fails the test unless the status is 0. Returns the output; the
 * caller frees it. */
char *command_on_terminal(const char *directory, char *const *argv);

/* Capture this process's stdout and stderr between the two calls. capture_end returns them with the given status. */
void capture_begin(void);
command_result capture_end(int status);

/* Return a value by its path, such as "runs.0.options". If it is missing, json_find returns NULL; the others fail the
 * test. */
const cJSON *json_find(const cJSON *json, const char *path);
const cJSON *json_at(const cJSON *json, const char *path);
double json_number(const cJSON *json, const char *path);
const char *json_text(const cJSON *json, const char *path);
int json_count(const cJSON *json, const char *path); /* of a list; 0 if it is missing */

/* Returns a path in the directory, in one of eight buffers used in turn. */
const char *path_in(const char *directory, const char *format, ...) FORMAT(2);

/* Reads a whole file and adds a NUL. A failure fails the test. `size` may be NULL. The caller frees the result. */
char *read_whole_file(const char *directory, const char *name, size_t *size);
void write_whole_file(const char *directory, const char *name, const void *data, size_t size);
cJSON *read_json(const char *directory, const char *name); /* cJSON_Delete afterwards */

/* Fails the test unless both files have the same bytes. */
void assert_same_file(const char *directory, const char *a, const char *b);

/* Returns the numbers of an evaluation's result.json, equal for every number of processes. The caller frees them. */
char *numbers_of_run(const char *directory, const char *run);
void assert_same_run(const char *directory, const char *a, const char *b);

void assert_has(const char *text, const char *part);

/* Tells whether a tmpfs can be mounted. */
int can_mount(const char *directory);

#endif
