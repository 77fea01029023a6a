/* JSON files of the command: written whole or not at all, and read with one line of error. */
#ifndef TOOLS_JSON_FILE_H
#define TOOLS_JSON_FILE_H

typedef struct cJSON cJSON;

/* Writes a record that tool_json began, indented, and deletes it. It is valid UTF-8: U+FFFD stands for bytes that are
 * not. Returns 0, or 1 after printing an error; `path` is as it was then. */
int json_file_write(cJSON *record, const char *path);

/* Reads a file that json_file_write has written, so no link, which must have one JSON object. `expected`: what it
 * should be, for messages: "what mar eval wrote". The caller deletes *out by cJSON_Delete. Returns 0, or 1 after
 * printing what is wrong with the file; *out is NULL then. */
int json_file_read(const char *path, const char *expected, cJSON **out);

#endif
