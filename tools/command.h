/* What the subcommands of `mar` share. The command uses the public API (mar.h), libpng and cJSON; `mar
 * fidelity` also eval/ and base/file.h. */
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

/* Prints "mar: ..." as one line to stderr (control characters in names from outside become '?') and returns
 * 1, the exit status of every failure. */
int tool_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The name behind the last slash. */
const char *tool_base_name(const char *path);

/* The values of --dtype for options.h, in the order of mar_dtype: auto, f32, bf16. */
extern const char *const tool_dtypes[];

/* mar_open, with its failure printed. Returns 0 or the exit status. threads 0: one per core. */
int tool_open(mar_dtype dtype, int threads, mar **out);

/* Seconds from some fixed point; only differences mean something. */
double tool_seconds(void);

#endif
