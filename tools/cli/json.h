/* JSON of the command: records that miss nothing though memory ran out, and files with one-line errors. Output is valid
 * UTF-8: U+FFFD replaces invalid bytes, such as those of a file's name. */
#ifndef TOOLS_JSON_H
#define TOOLS_JSON_H

#include <stddef.h>

typedef struct cJSON cJSON;

/* Starts a JSON record, to which cJSON adds. cJSON silently drops items without memory, so from here to the end of the
 * record by one of the functions below its allocations are watched. */
cJSON *tool_json(void);
/* Adds an item to an array or an object and passes ownership. NULL for either: memory has run out. */
void tool_json_append(cJSON *array, cJSON *item);
void tool_json_add(cJSON *object, const char *name, cJSON *item);

/* Deletes the record. Returns its text with a newline, indented or on one line, which the caller frees. Returns NULL if
 * memory ran out, also if an item is missing. */
char *tool_json_text(cJSON *record, int indented, size_t *size);
/* Does the same and prints the text. Returns 0, or 1 after printing "out of memory". */
int tool_print_json(cJSON *record, int indented);
/* Does the same and writes it to a file, indented. Returns 0, or 1 with the error printed and `path` unchanged. */
int json_file_write(cJSON *record, const char *path);

/* Reads one JSON object from a file that json_file_write has written; a link is refused. `expected` describes the file
 * for messages: "what mar eval wrote". The caller deletes *out by cJSON_Delete. Returns 0, or 1 with the error printed
 * and *out NULL. */
int json_file_read(const char *path, const char *expected, cJSON **out);

#endif
