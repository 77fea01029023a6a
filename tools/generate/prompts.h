/* Prompts of text-to-image models, from files and options. */
#ifndef TOOLS_PROMPTS_H
#define TOOLS_PROMPTS_H

#include <stddef.h>

enum { PROMPT_BYTES_MAX = 65536 }; /* bytes of a prompt */

/* {0} has no prompts. */
typedef struct {
    char **text;  /* [count] UTF-8, not blank, without NUL; owned */
    int count;    /* prompts */
    int skipped;  /* bad prompts that were reported and left out: the command ends with status 1 */
    int capacity; /* prompts that `text` has room for */
} prompts;

/* Appends the prompts of a file, or of standard input for "-". Its content decides what it is:
 *
 *   a prompt a line          UTF-8; a byte order mark and CRLF are fine
 *   COCO's captions          a JSON object with "annotations": images in the order of their first annotation, and of
 *                            each image its longest caption, the first of equals. LANTERN's preprocess.py does so.
 *   a JSON array             of strings, or of objects with "caption", as LANTERN's files of captions
 *   tab-separated values     whose first column has the heading "Prompt" (PartiPrompts, SJDPrompts). A quoted field is
 *                            read as Python's csv reads it, but never goes on in the next line.
 *
 * A prompt that is blank, has a NUL or invalid UTF-8, or is longer than PROMPT_BYTES_MAX is reported with its line and
 * left out. Returns 0; or 1 after printing an error if the file cannot be read or no prompt is left. */
int prompts_read(const char *path, prompts *p);
/* Does the same with text, char [size + 1] with a NUL at its end. Changes the text. `path` is for messages. */
int prompts_parse(char *text, size_t size, const char *path, prompts *p);

/* Appends a prompt, the value of --prompt. A bad one is reported and counted as skipped. Returns 0, or 1 after printing
 * "out of memory". */
int prompts_add(const char *text, prompts *p);

/* Returns what is wrong with a prompt, in a line that may be in why [size]; NULL if nothing is. */
const char *prompts_fault(const char *text, char *why, size_t size);

void prompts_free(prompts *p); /* frees the prompts; {0} is fine */

#endif
