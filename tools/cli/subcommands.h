/* The subcommands, one file each, and their table, for main.c and the manual. */
#ifndef TOOLS_SUBCOMMANDS_H
#define TOOLS_SUBCOMMANDS_H

/* Runs the subcommand; argv[0] is the name. Returns the exit status. */
int cmd_generate(int argc, char **argv);
int cmd_captions(int argc, char **argv);
int cmd_edit(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_classes(int argc, char **argv);
int cmd_methods(int argc, char **argv);
int cmd_fidelity(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_stats(int argc, char **argv);
int cmd_completion(int argc, char **argv);

typedef struct {
    const char *name;                  /* "generate" */
    const char *about;                 /* line of mar --help */
    int (*run)(int argc, char **argv); /* as above */
} tool_command;

/* The subcommands. The last entry has a NULL name. */
extern const tool_command commands[];

/* Passes the table to cmd_completion, which cannot refer to it: the table refers to cmd_completion. */
void completion_set_commands(const tool_command *list);

#endif
