/* The form of a file of prompts, by its name and its content. */
#ifndef TOOLS_PROMPT_FORM_H
#define TOOLS_PROMPT_FORM_H

#include <stddef.h>

typedef enum {
    PROMPT_FORM_LINES,
    PROMPT_FORM_CSV,
    PROMPT_FORM_TSV,
    PROMPT_FORM_COLUMN, /* one column under its name: commas and tabs are text */
    PROMPT_FORM_JSON,
    PROMPT_FORM_JSON_LINES
} prompt_form;

/* Finds the form of text[0..size), which has a NUL behind it, as prompts.h says. `path` is for the ending and for
 * messages. Returns 0, or 1 after printing what the file is, if that is refused. */
int prompt_form_find(const char *path, const char *text, size_t size, prompt_form *out);

/* Returns whether a column or a member has prompts by its name, spaces at its ends aside. */
int prompt_name_is(const char *name, size_t n);

/* Lines end with LF, CR LF or CR. */
int prompt_is_line_end(char c);
/* Returns the bytes of the end of a line at `at`. */
size_t prompt_line_end(const char *at, const char *end);
/* Returns the length of the line at text[0..size), without its end; *whole is its length with it. */
size_t prompt_line_size(const char *text, size_t size, size_t *whole);

#endif
