/* The names of a model's classes: those of ImageNet for models of 1000 classes, or those in a file of the user's. */
#ifndef TOOLS_CLASS_NAMES_H
#define TOOLS_CLASS_NAMES_H

#include <stddef.h>

enum { IMAGENET_CLASSES = 1000, CLASS_NAME_MAX = 126 /* bytes of a name */ };

/* generate/imagenet_classes.txt, one class a line. */
extern char imagenet_classes[];

typedef struct {
    int count;          /* classes */
    const char **lines; /* [count] names of a class, separated by commas */
    const char *file;   /* the file's name without its directory, for messages; NULL: ImageNet */
    char *text;         /* the file, which the lines point into; owned, as the array is. NULL: ImageNet */
} class_table;

/* Returns ImageNet's names for a model of 1000 classes, NULL for another. */
const class_table *class_table_of(int classes);
/* Reads names from a file of UTF-8 text: line i + 1 has the names of class i, separated by commas. Empty lines may
 * follow the last. `path` must outlive the table. Returns 0, or 1 with the error printed and *out empty. */
int class_table_read(const char *path, class_table *out);
/* Does the same with the text of a file, char [size + 1], and frees it or passes it to the table. On failure writes the
 * reason, without the file's name, to `why`, char [why_size]. */
int class_table_parse(char *text, size_t size, const char *path, class_table *out, char *why, size_t why_size);
void class_table_free(class_table *t); /* {0} is fine */

/* Finds the next of a class's names at `at`, a line of the table or what this returned: length bytes at *start. Returns
 * where the next begins; NULL after the last. */
const char *class_next_name(const char *at, const char **start, size_t *length);

/* Writes the first name of a class; "" if t is NULL or the label is none of its classes. Returns `name`. */
const char *class_name(const class_table *t, int label, char *name, size_t size);

/* Finds the class with the name item[0..n), or else the only one with these words in a name, and writes it to *label.
 * Case is ignored; space, underscore and dash are equal. Returns 0. Returns 1 if no class or several match, and writes
 * one line, with candidates if there are any, to `why`, char [size]. */
int class_find(const class_table *t, const char *item, int n, int *label, char *why, size_t size);

/* Writes the first name by which class_find finds the class, its number if it has none. Returns name. */
const char *class_own_name(const class_table *t, int label, char *name, size_t size);

/* Returns whether each of words[count] is part of one of the class's names, compared as in class_find, or its
 * number. */
int class_has_words(const class_table *t, int label, const char *const *words, int count);
/* Writes one line to `why` for words that no class has, count >= 1: the first word that is in no name. */
void class_explain_none(const class_table *t, const char *const *words, int count, char *why, size_t size);

/* Returns the label of a class whose first name may serve as an example. */
int class_example(const class_table *t);

#endif
