/* Command-line options from tables of mar_param (mar.h): the library's and the subcommands'. An error is one line on
 * stderr with the option, the value and what was expected. */
#ifndef TOOLS_OPTIONS_H
#define TOOLS_OPTIONS_H

#include "mar.h"
#include "mar_methods.h"

enum { OPTIONS_MAX = 128 };

/* Begins a row of a table: {.name = OPTION("batch"), ...}. */
#define OPTION(name) name, .size = sizeof(mar_param)

/* Begin a row whose option has its field's name: {OPTION_FLAG(bench_options, json), .help = "..."}. */
#define OPTION_FIELD(structure, field) .name = OPTION(#field), .offset = offsetof(structure, field)
#define OPTION_FLAG(structure, field)  OPTION_FIELD(structure, field), .type = MAR_TYPE_FLAG
#define OPTION_INT(structure, field, low, high)                                                                        \
    OPTION_FIELD(structure, field), .type = MAR_TYPE_INT, .min = low, .max = high
#define OPTION_TEXT(structure, field, what)    OPTION_FIELD(structure, field), .type = MAR_TYPE_TEXT, .argument = what
#define OPTION_CHOICE(structure, field, names) OPTION_FIELD(structure, field), .type = MAR_TYPE_CHOICE, .choices = names

/* One option: `--name value` or `--name=value`, or a flag without a value. Dashes inside a name count as underscores.
 * The last occurrence counts, unless options_keep_all says otherwise. Some have a letter: `-o value`, `-ovalue`, and
 * behind flags: `-qo value`. */
typedef struct {
    const mar_param *param; /* name, type, range and help */
    void *fields; /* struct of its field; unchanged if the option is absent. MODEL: the field is a const char * for the
                     file's name */
    const char *group; /* heading in --help and the manual */
    int shared;        /* 1: every run has this option; the manual lists it once */
    int given;         /* set by options_parse */
    const char *named; /* its other name, if it was given by that; NULL: its own. Set by options_parse */
    int *count; /* NULL: the last value counts. Otherwise a TEXT whose field is an array of `most` pointers: it keeps
                   all values in their order, and *count, 0 at first, is their number */
    int most;
} option;

typedef struct {
    const char *name;   /* "FILE", or its values, "bash|zsh" */
    const char **value; /* receives the pointer into argv */
    const char *help;   /* as in mar_param */
    int *count; /* NULL: one argument. Otherwise the last operand, with any number of arguments, also none. They go to
                   value[0..*count), with room for argc; *count begins at 0 */
} operand;

typedef struct {
    const char *command;       /* "generate", for messages */
    const char *about;         /* printed by --help before the options: usage and purpose */
    const char *example;       /* printed by --help after the options */
    const char *const *common; /* options that --help shows, in order; ends with NULL. NULL: all */
    const char *word;          /* the option that a stray word probably belongs to, or NULL */
    const char *const
        *separators;         /* arguments between groups of options, such as --against; ends with NULL. May be NULL */
    const operand *operands; /* in order, each required unless it has a count; ends with a NULL name. May be NULL */
    option options[OPTIONS_MAX]; /* without --help. Of two options with one name the first is used */
    int count;                   /* of options */
    int draws_seed;              /* 1: --seed random draws one from the system */
    int seed_is_drawn;           /* 1: it did; set by options_parse */
} option_set;

/* Adds an option, or those of a table that ends with a NULL name. They must outlive the set. One without a group is of
 * the group of the option before it. */
void options_add(option_set *set, const mar_param *param, void *fields, int shared);
void options_add_table(option_set *set, const mar_param *table, void *fields, int shared);
/* --json, in the group "Options". Its field is an int. */
extern const mar_param option_json;
/* The flag --overwrite of commands that write a file of data (tool_can_replace); its field is an int. */
extern const mar_param option_overwrite;
/* Adds an option under another heading than its own. */
void options_add_under(option_set *set, const char *group, const mar_param *param, void *fields);

enum {
    OPTIONS_RUN = -1, /* run the command */
    OPTIONS_HELP = -2 /* one of the arguments asks for help */
};

/* Makes the option of that name keep all its values, `most` at most. */
void options_keep_all(option_set *set, const char *name, int *count, int most);

/* Parses the options as options_parse does, and answers --help. --help lists the common options, "--help all" all of
 * them. "--help WORD" lists the groups with that word in the heading or that name among the options. A default is the
 * current value of the field. Returns OPTIONS_RUN to go on, or the exit status: 0 after --help, 1 after an error.
 *
 * "--help=mdoc" writes the manual's list of the command's own operands and options, "--help=mdoc-shared" that of the
 * options of every run, "--help=completion-SHELL" its part of a completion script (tools/cli/options_complete.h). */
int options_read(option_set *set, int argc, char **argv);

/* Parses argv[1..]. Returns OPTIONS_RUN; OPTIONS_HELP with every field unchanged; or 1 with the error printed. */
int options_parse(option_set *set, int argc, char **argv);

/* Returns the letter of the option of that name: 'o' of "out"; 0 if it has none. */
char options_letter(const char *name);

/* Returns the other name of an option, "vq" of vae, or NULL. */
const char *options_alias(const char *name);

/* Returns the option of that name; NULL if there is none. */
const option *options_find(const option_set *set, const char *name);

#endif
