/* Functions shared by the subcommands of `mar`. Of the library, the command uses mar.h and the headers of eval only;
 * besides, libpng and cJSON. */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

#include "mar.h"

/* Prints "mar: ..." as one line to stderr (base/printable.h) and returns 1, the exit status of every failure. */
int tool_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns the name behind the last slash; of a folder "a/b/" the name "b/". */
const char *tool_base_name(const char *path);

/* Opens the CPU with one thread, for commands that only read and write files. `about` has the options about files, or
 * is NULL. Returns 0, or 1 with the error printed. */
int tool_open_files(const mar_options *about, mar **out);

/* Returns the seconds since some fixed point. */
double tool_seconds(void);

#endif
