/* The names of classes: those of ImageNet, for models of 1000 classes. */
#ifndef TOOLS_CLASS_NAMES_H
#define TOOLS_CLASS_NAMES_H

#include <stddef.h>

enum { IMAGENET_CLASSES = 1000 };

/* generate/imagenet_classes.txt, one class a line. */
extern char imagenet_classes[];
/* Returns the synonyms of a class, 0..IMAGENET_CLASSES-1, separated by ", ". */
const char *class_names(int label);

/* The first name of a class, "" for a model whose classes have no known names. Returns `name`. */
const char *class_name(int label, int classes, char *name, size_t size);

/* The class of that name, item[0..n), to *label. Case, and the difference between space, underscore and dash, do not
 * matter. Returns 0, or 1 if none or several have it: `why`, char [size], has one line then, with what may be meant. */
int class_find(const char *item, int n, int *label, char *why, size_t size);

/* Whether each of words[count] is part of one of the class's names, compared as in class_find, or is its number. */
int class_has_words(int label, const char *const *words, int count);
/* One line, to `why`, for words that no class has, count >= 1: the word that is in no name, and what may be meant. */
void class_explain_none(const char *const *words, int count, char *why, size_t size);

#endif
