/* The names of ImageNet's classes, for models of 1000 classes. */
#ifndef TOOLS_CLASS_NAMES_H
#define TOOLS_CLASS_NAMES_H

#include <stddef.h>

enum { IMAGENET_CLASSES = 1000 };

/* generate/imagenet_classes.txt, one class a line. */
extern char imagenet_classes[];
/* Returns the synonyms of a class, 0..IMAGENET_CLASSES-1, separated by ", ". */
const char *class_names(int label);

/* Writes the first name of a class; "" for a model whose classes have no known names. Returns `name`. */
const char *class_name(int label, int classes, char *name, size_t size);

/* Finds the class of that name, item[0..n), and writes it to *label. Case is ignored; space, underscore and dash are
 * equal. Returns 0. Returns 1 if no class or several have it, and writes one line with the candidates to `why`, char
 * [size]. */
int class_find(const char *item, int n, int *label, char *why, size_t size);

/* Returns whether each of words[count] is part of one of the class's names, compared as in class_find, or its
 * number. */
int class_has_words(int label, const char *const *words, int count);
/* Writes one line to `why` for words that no class has, count >= 1: the word that is in no name, and a near one. */
void class_explain_none(const char *const *words, int count, char *why, size_t size);

#endif
