/* What the subcommands of `mar` share. The command uses the public API (mar.h), the headers of eval, libpng and
 * cJSON: nothing else of the library. */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

#include "mar.h"

typedef struct cJSON cJSON;

/* Prints "mar: ..." as one line to stderr (control characters in names from outside become '?') and returns
 * 1, the exit status of every failure. */
int tool_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The name behind the last slash. */
const char *tool_base_name(const char *path);

/* mar_open, with its failure printed. Returns 0 or the exit status. */
int tool_open(const mar_options *options, mar **out);
/* Opens the CPU with one thread, for commands that only read and write files. Returns as tool_open does. */
int tool_open_files(mar **out);

/* Prints the record, indented for readers or on one line, and deletes it. Returns 0, or 1 after printing "out of
 * memory". */
int tool_print_json(cJSON *record, int indented);

/* Seconds from some fixed point; only differences mean something. */
double tool_seconds(void);

#endif
