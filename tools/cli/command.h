/* Functions shared by the subcommands of `mar`. Of the library, the command uses mar.h and the headers of eval only;
 * besides, libpng and cJSON. */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

#include "mar.h"

#include <stdio.h>

typedef struct cJSON cJSON;

/* Prints "mar: ..." as one line to stderr (base/printable.h) and returns 1, the exit status of every failure. */
int tool_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Sets a prefix of errors, such as a file and its line; ": " follows it. NULL: none. The text is not copied. */
void tool_error_within(const char *where);

/* Returns the name behind the last slash. */
const char *tool_base_name(const char *path);

/* Opens the CPU with one thread, for commands that only read and write files. `about` has the options about files, or
 * is NULL. Returns 0, or 1 with the error printed. */
int tool_open_files(const mar_options *about, mar **out);

/* Starts a JSON record, to which cJSON adds. cJSON silently drops items without memory, so from here to tool_print_json
 * its allocations are watched. */
cJSON *tool_json(void);
/* Adds an item to an array or an object and passes ownership. NULL for either: memory has run out. */
void tool_json_append(cJSON *array, cJSON *item);
void tool_json_add(cJSON *object, const char *name, cJSON *item);
/* Prints the record, indented or on one line, and deletes it. The output is valid UTF-8: U+FFFD replaces invalid bytes,
 * such as those of a file's name. Returns 0, or 1 after printing "out of memory", also if an item is missing. */
int tool_print_json(cJSON *record, int indented);
/* Does the same to a stream, without a message. Returns 0, or 1 if memory ran out. */
int tool_write_json(cJSON *record, int indented, FILE *out);

/* Returns the seconds since some fixed point. */
double tool_seconds(void);

#endif
