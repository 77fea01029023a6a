/* Command-line options from a table. An error is one line on stderr that names the option, what was found
 * and what was expected. */
#ifndef TOOLS_OPTIONS_H
#define TOOLS_OPTIONS_H

#include <stdint.h>

typedef enum { OPTION_FLAG, OPTION_INT, OPTION_UINT64, OPTION_FLOAT, OPTION_TEXT, OPTION_CHOICE } option_kind;

/* `--name value` or `--name=value`; dashes inside a name are taken for underscores. The last one given
 * counts. */
typedef struct {
    const char *name; /* "num_iter" */
    option_kind kind;
    void *value;                /* left alone if the option is absent. FLAG, INT, CHOICE (index): int *;
                                   UINT64: uint64_t *; FLOAT: float *; TEXT: const char ** into argv */
    double min, max;            /* INT, FLOAT: the range, both ends allowed */
    const char *const *choices; /* CHOICE: ends with NULL */
    const char *expects;        /* TEXT: what the value is, for messages: "a file" */
} option;

typedef struct {
    const char *name;   /* "FILE" */
    const char **value; /* into argv */
} operand;

typedef struct {
    const char *command;     /* "generate", for messages */
    const char *help;        /* printed by --help; 24 lines of 80 columns at most */
    const option *options;   /* ends with a NULL name; --help is added */
    const operand *operands; /* all required, in order; ends with a NULL name; may be NULL */
    const option *shared;    /* more options, 64 at most, or NULL */
    uint64_t *given;         /* with shared: bit i is set when its option i is there */
} option_set;

enum { OPTIONS_RUN = -1 };

/* Reads argv[1..]. Returns OPTIONS_RUN to go on, or the exit status to end with: 0 after --help, 1 after an
 * error. */
int options_parse(const option_set *set, int argc, char **argv);

#endif
