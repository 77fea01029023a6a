/* Text files of class names, as they come from outside. */
#ifndef TOOLS_CLASS_FILE_H
#define TOOLS_CLASS_FILE_H

#include <stddef.h>

/* Reads the file, or standard input if it is called "-", to *text, which ends with a NUL and is the caller's to free.
 * What is no text is refused, at its first control character, and so is more than any list can be. On failure returns 1
 * and `why`, char [size], has the reason without the file's name. */
int class_file_read(const char *name, char **text, char *why, size_t size);

/* Whether it can be opened: 1, and the reason, if not. */
int class_file_check(const char *name, char *why, size_t size);

#endif
