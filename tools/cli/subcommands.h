/* The subcommands, one file each. */
#ifndef TOOLS_SUBCOMMANDS_H
#define TOOLS_SUBCOMMANDS_H

#include <stdio.h>

/* Runs the subcommand; argv[0] is the name. Returns the exit status. */
int cmd_generate(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_classes(int argc, char **argv);
int cmd_methods(int argc, char **argv);
int cmd_fidelity(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_stats(int argc, char **argv);

/* Writes the manual's list of the subcommand's own operands and options, as mdoc. */
void manual_generate(FILE *out);
void manual_inspect(FILE *out);
void manual_convert(FILE *out);
void manual_bench(FILE *out);
void manual_classes(FILE *out);
void manual_methods(FILE *out);
void manual_fidelity(FILE *out);
void manual_eval(FILE *out);
void manual_stats(FILE *out);

#endif
