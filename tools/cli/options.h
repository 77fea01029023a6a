/* Command-line options from tables of mar_param (mar.h): the library's, and the subcommands' own. An error is one line
 * on stderr that names the option, what was found and what was expected. options_help.h answers --help. */
#ifndef TOOLS_OPTIONS_H
#define TOOLS_OPTIONS_H

#include "mar.h"

enum { OPTIONS_MAX = 128 };

/* `--name value` or `--name=value`, a flag without a value. Dashes inside a name are taken for underscores. The last
 * one given counts. Some have a letter, too: `-o value`, `-ovalue`, and flags in front of it: `-qo value`. */
typedef struct {
    const mar_param *param; /* its name, type, range and help */
    void *fields; /* the struct of its field, which keeps its default if the option is absent. MODEL: the const char *
                     that takes the file's name */
    int shared;   /* 1: every run has this option. The manual lists such options once */
    int given;    /* set by options_parse */
} option;

typedef struct {
    const char *name;   /* "FILE" */
    const char **value; /* into argv */
    const char *help;   /* as in mar_param */
    int *count;         /* NULL: one argument. Else it is the last operand and takes any number, none included: they
                         * go to value[0..*count), which has room for argc, and *count is 0 before */
} operand;

typedef struct {
    const char *command;         /* "generate", for messages */
    const char *about;           /* --help prints it before the options: usage, and what the command does */
    const char *example;         /* --help prints it after the options */
    const char *const *common;   /* --help alone shows these options only, in this order; ends with NULL; NULL: all */
    const char *word;            /* the option that a word without one is probably the value of, or NULL */
    const operand *operands;     /* in order, each required unless it has a count; ends with a NULL name; may be NULL */
    option options[OPTIONS_MAX]; /* --help is added. If two options have the same name, the first one is used */
    int count;                   /* of options */
} option_set;

/* Adds an option, or those of a table that ends with a NULL name. They must outlive the set. */
void options_add(option_set *set, const mar_param *param, void *fields, int shared);
void options_add_table(option_set *set, const mar_param *table, void *fields, int shared);
/* The same option for a field of another struct, under another heading. */
mar_param option_at(const mar_param *param, size_t offset, const char *group);

enum {
    OPTIONS_RUN = -1, /* go on */
    OPTIONS_HELP = -2 /* one of the arguments asks for help */
};

/* Reads argv[1..]. Returns OPTIONS_RUN; OPTIONS_HELP, with every field as it was; or 1 after printing an error. */
int options_parse(option_set *set, int argc, char **argv);

/* The letter of an option of that name: 'o' of "out"; 0 if it has none. */
char options_letter(const char *name);

/* NULL if there is none of that name. */
const option *options_find(const option_set *set, const char *name);

#endif
