/* What --help and the manual say of a set of options. A default is the value that the field has. */
#ifndef TOOLS_OPTIONS_HELP_H
#define TOOLS_OPTIONS_HELP_H

#include "tools/cli/options.h"

#include <stdio.h>

/* Parses the options as options_parse does, and prints the help if it is asked for. --help lists the common options,
 * "--help all" every option, "--help WORD" the groups with that word in their heading or that name among their options.
 * Returns OPTIONS_RUN to go on, or the exit status to end with: 0 after --help, 1 after an error. */
int options_read(option_set *set, int argc, char **argv);

/* The manual's list, as mdoc, of the operands and the options that are not shared, or (shared 1) of those that are. */
void options_manual(const option_set *set, int shared, FILE *out);

#endif
