/* Lists of classes: numbers, ranges, names, files. */
#ifndef TOOLS_CLASSES_H
#define TOOLS_CLASSES_H

#include "tools/generate/class_names.h"

#include <stddef.h>

/* More of them in a list are refused: no run makes that many images. */
enum { CLASSES_LIST_MAX = 1000000 };

/* Reads a list such as "207, golden_retriever,sea slug,0-9" or "all" for a model of `classes` classes. Numbers and
 * ranges of them always work; names if there are 1000. Case, and the difference between space, underscore and dash, do
 * not matter in names. No file is opened: "@FILE" is refused. On success returns 0 and *labels (the caller frees it)
 * has *count >= 1 class numbers. On failure returns 1, *labels is NULL, *count 0, and `why` has one line: the item,
 * what is wrong with it and, where possible, what was meant. */
int classes_parse(const char *list, int classes, int **labels, int *count, char *why, size_t why_size);
/* The same of the text of a file: items end with a comma or their line and may be empty, and # begins a comment that
 * ends with the line. Of a wrong item `why` has the number of the line as well. */
int classes_parse_text(const char *text, int classes, int **labels, int *count, char *why, size_t why_size);

/* The classes of a run: those of `list`, the value of --class, or without one (NULL) all `classes` of the model if
 * `default_all`; else --class is missing. In it "@FILE" stands for the classes in a file, and "@-" for those in
 * standard input. Returns 0, *labels and *count as in classes_parse, or 1 after printing. */
int classes_choose(const char *list, int classes, int default_all, int **labels, int *count);
/* Whether the files in the list are there, before anything is loaded. `list` may be NULL. Returns 0, or 1 after
 * printing. */
int classes_check_files(const char *list);

#endif
