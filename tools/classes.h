/* Class names: the 1000 ImageNet classes by number or by name. */
#ifndef TOOLS_CLASSES_H
#define TOOLS_CLASSES_H

#include <stddef.h>

enum { IMAGENET_CLASSES = 1000 };

/* [number]: the synonyms, separated by ", ". */
extern const char *const imagenet_classes[IMAGENET_CLASSES];

/* Reads a list such as "207, golden_retriever,sea slug" for a model of `classes` classes. Numbers always
 * work; names if there are 1000. Case, and the difference between space, underscore and dash, do not matter.
 * On success returns 0 and *labels (the caller frees it) has *count >= 1 class numbers. On failure returns 1
 * and `why` has one line: the item, what is wrong with it and, where possible, what was meant. */
int classes_parse(const char *list, int classes, int **labels, int *count, char *why, size_t why_size);

/* The classes of a run: those of `list`, the value of --class, or without one (NULL) all `classes` of the model if
 * `default_all`; else --class is missing. Returns 0, *labels and *count as in classes_parse, or 1 after printing. */
int classes_choose(const char *list, int classes, int default_all, int **labels, int *count);

/* The first name of a class, "" for a model whose classes have no known names. Returns `name`. */
const char *class_name(int label, int classes, char *name, size_t size);

#endif
