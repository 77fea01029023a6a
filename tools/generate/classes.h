/* Lists of classes: numbers, ranges, names, files. */
#ifndef TOOLS_CLASSES_H
#define TOOLS_CLASSES_H

#include "tools/generate/class_names.h"

#include <stddef.h>

/* Maximum classes in a list: no run makes more images. */
enum { CLASSES_LIST_MAX = 1000000 };

/* What a list may name. */
typedef struct {
    int count;                /* classes of the model, numbered from 0 */
    const class_table *names; /* their names; NULL: they have none */
    const char *no_none;      /* why "none" is refused; NULL: it is label -1 */
} class_choices;

/* Parses a list such as "207, golden_retriever,sea slug,0-9,none" or "all". Numbers, ranges, all and none go before
 * names; of a name, words that no other class has are enough (class_find). "@FILE" is rejected. Returns 0, with *count
 * >= 1 class numbers or -1 in *labels; the caller frees them. On failure returns 1, *labels is NULL and *count 0. Then
 * `why` has one line: the item, the error and, if several classes match, candidates. */
int classes_parse(const char *list, const class_choices *choices, int **labels, int *count, char *why, size_t why_size);
/* Parses the text of a file in the same way. Items end with a comma or their line and may be empty; # begins a comment
 * up to the line's end. For a wrong item `why` also has the line number. */
int classes_parse_text(const char *text, const class_choices *choices, int **labels, int *count, char *why,
                       size_t why_size);

/* Chooses the classes of a run: those of `list`, the value of --class. If it is NULL, all of the model with
 * `default_all`; else --class is missing. "@FILE" stands for the classes in a file, "@-" for those in standard input.
 * Returns 0, with *labels and *count as in classes_parse, or 1 with the error printed. */
int classes_choose(const char *list, const class_choices *choices, int default_all, int **labels, int *count);
/* Checks that the files in the list exist, before anything is loaded. `list` may be NULL. Returns 0, or 1 with the
 * error printed. */
int classes_check_files(const char *list);

#endif
