/* What the subcommands of `mar` share. The command uses the public API (mar.h), the headers of eval, libpng and
 * cJSON: nothing else of the library. */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

#include "mar.h"

#include <stdio.h>

typedef struct cJSON cJSON;

/* Prints "mar: ..." as one line to stderr (base/printable.h) and returns 1, the exit status of every failure. */
int tool_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* From now on errors begin with `where` and ": ", such as a file and its line; NULL: no more. The text is not copied.
 */
void tool_error_within(const char *where);

/* The name behind the last slash. */
const char *tool_base_name(const char *path);

/* Opens the CPU with one thread, for commands that only read and write files, with the options about files of `about`;
 * NULL: without. Returns 0, or 1 with the error printed. */
int tool_open_files(const mar_options *about, mar **out);

/* Starts a JSON record, to which cJSON adds. What it has no memory for it leaves out without a word, so it is watched
 * from here to tool_print_json. */
cJSON *tool_json(void);
/* Adds an item to an array or an object, which own it then. If one of them is NULL, memory has run out. */
void tool_json_append(cJSON *array, cJSON *item);
void tool_json_add(cJSON *object, const char *name, cJSON *item);
/* Prints the record, indented for readers or on one line, and deletes it. It is valid UTF-8: U+FFFD stands for bytes
 * that are not, such as a file's name may have. Returns 0, or 1 after printing "out of
 * memory", also if anything is missing in it. */
int tool_print_json(cJSON *record, int indented);
/* The same to a stream, without a message. Returns 0, or 1 if memory ran out. */
int tool_write_json(cJSON *record, int indented, FILE *out);

/* Seconds from some fixed point; only differences mean something. */
double tool_seconds(void);

#endif
