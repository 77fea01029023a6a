/* The table of subcommands, for main.c and the manual. */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

#include <stdio.h>

typedef struct {
    const char *name;                  /* "generate" */
    const char *about;                 /* a line of mar --help */
    int (*run)(int argc, char **argv); /* argv[0] is the name. Returns the exit status */
    void (*manual)(FILE *out);         /* writes the manual's list of its own operands and options, as mdoc */
} command;

/* The subcommands. The last entry has a NULL name. */
extern const command commands[];

#endif
