/* Output of --help and the manual for a set of options. A default is the current value of the field. */
#ifndef TOOLS_OPTIONS_HELP_H
#define TOOLS_OPTIONS_HELP_H

#include "tools/cli/options.h"

/* Parses the options as options_parse does, and answers --help. --help lists the common options, "--help all" all of
 * them. "--help WORD" lists the groups with that word in the heading or that name among the options. Returns
 * OPTIONS_RUN to go on, or the exit status: 0 after --help, 1 after an error.
 *
 * "--help=mdoc" writes the manual's list of the command's own operands and options, "--help=mdoc-shared" that of the
 * options of every run. */
int options_read(option_set *set, int argc, char **argv);

#endif
