/* The table of subcommands, for main.c and the manual. */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

#include <stdio.h>

typedef struct {
    const char *name;                  /* "generate" */
    const char *about;                 /* line of mar --help */
    int (*run)(int argc, char **argv); /* runs it; argv[0] is the name. Returns the exit status */
    void (*manual)(FILE *out);         /* writes its operands and options for the manual, as mdoc */
} command;

/* The subcommands. The last entry has a NULL name. */
extern const command commands[];

#endif
