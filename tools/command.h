/* What the subcommands of `mar` share. The command uses the public API (mar.h), the headers of eval, libpng and
 * cJSON: nothing else of the library. */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

#include "mar.h"

/* One subcommand each: argv[0] is its name. Returns the exit status. */
int cmd_generate(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_methods(int argc, char **argv);
int cmd_fidelity(int argc, char **argv);

/* All of them; ends with a NULL name. */
typedef struct {
    const char *name;
    int (*run)(int argc, char **argv);
} command;
extern const command commands[];

/* Prints "mar: ..." as one line to stderr (control characters in names from outside become '?') and returns
 * 1, the exit status of every failure. */
int tool_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The name behind the last slash. */
const char *tool_base_name(const char *path);

/* mar_open, with its failure printed. Returns 0 or the exit status. */
int tool_open(const mar_options *options, mar **out);
/* For what only reads and writes files. */
int tool_open_files(mar **out);

/* Seconds from some fixed point; only differences mean something. */
double tool_seconds(void);

#endif
