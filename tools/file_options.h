/* The options of mar inspect and mar convert about their checkpoint: facts that its tensors do not tell. */
#ifndef TOOLS_FILE_OPTIONS_H
#define TOOLS_FILE_OPTIONS_H

#include "mar.h"
#include "tools/cli/options.h"

enum { FILE_OPTIONS = 4 };

typedef struct {
    const char *heads;            /* as given */
    mar_options library;          /* as given: seq_len, patch_size and weights */
    mar_param rows[FILE_OPTIONS]; /* the options, under the heading "Options" */
} file_options;

/* Sets the defaults and adds the options to a set before it is parsed. */
void file_options_add(file_options *o, option_set *set);
/* Opens the library with the options. *heads is for mar_inspect and mar_convert. Returns 0, or 1 with the error
 * printed. */
int file_options_open(const file_options *o, mar **library, int *heads);
/* Prints why the library rejected the file. Returns 1. */
int file_options_refuse(mar *library);

#endif
