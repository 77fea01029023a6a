/* Reads text files of class names from outside. */
#ifndef TOOLS_CLASS_FILE_H
#define TOOLS_CLASS_FILE_H

#include <stddef.h>

/* Reads the file, or for "-" standard input, to *text, with a NUL. The caller frees it. Rejects a file with a control
 * character, naming the first, and one longer than any list. On failure returns 1 and writes the reason, without the
 * file's name, to `why`, char [size]. */
int class_file_read(const char *name, char **text, char *why, size_t size);

/* Checks that the file can be opened. Returns 0, or 1 and the reason. */
int class_file_check(const char *name, char *why, size_t size);

#endif
