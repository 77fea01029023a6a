/* Command-line options from tables of mar_param (mar.h): the library's, and the subcommands' own. An error is one line
 * on stderr that names the option, what was found and what was expected. */
#ifndef TOOLS_OPTIONS_H
#define TOOLS_OPTIONS_H

#include "mar.h"

enum { OPTIONS_MAX = 128 };

/* `--name value` or `--name=value`, a flag without a value. Dashes inside a name are taken for underscores. The last
 * one given counts. */
typedef struct {
    const mar_param *param;
    void *fields; /* the struct of its field, which keeps its default if the option is absent. MODEL: the const char *
                     that takes the file's name */
    int shared;   /* of every run: in the manual it stands in one place for all subcommands */
    int given;    /* set by options_parse */
} option;

typedef struct {
    const char *name;   /* "FILE" */
    const char **value; /* into argv */
    const char *help;   /* as in mar_param */
} operand;

typedef struct {
    const char *command;         /* "generate", for messages */
    const char *about;           /* --help prints it in front of the options: usage, and what the command does */
    const char *example;         /* and this behind them */
    const operand *operands;     /* all required, in order; ends with a NULL name; may be NULL */
    option options[OPTIONS_MAX]; /* --help is added. Of two with one name the first one is it */
    int count;
} option_set;

/* Adds an option, or those of a table that ends with a NULL name. They must outlive the set. */
void options_add(option_set *set, const mar_param *param, void *fields, int shared);
void options_add_table(option_set *set, const mar_param *table, void *fields, int shared);
/* The same option for a field of another struct, under another heading. */
mar_param option_at(const mar_param *param, size_t offset, const char *group);

enum { OPTIONS_RUN = -1 };

/* Reads argv[1..]. Returns OPTIONS_RUN to go on, or the exit status to end with: 0 after --help, 1 after an error.
 * --help=manual prints the options that are not shared as mdoc, --help=manual-shared those that are. */
int options_parse(option_set *set, int argc, char **argv);

/* NULL if there is none of that name. */
const option *options_find(const option_set *set, const char *name);

/* What --help prints, and the lists of the manual. A default is the value that the field has. */
void options_help(const option_set *set);
void options_manual(const option_set *set, int shared);

#endif
