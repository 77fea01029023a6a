/* JSON files of the command: written whole or not at all, and read with one-line errors. */
#ifndef TOOLS_JSON_FILE_H
#define TOOLS_JSON_FILE_H

typedef struct cJSON cJSON;

/* Writes a record of tool_json, indented, and deletes it. The file is valid UTF-8: U+FFFD replaces invalid bytes.
 * Returns 0, or 1 with the error printed and `path` unchanged. */
int json_file_write(cJSON *record, const char *path);

/* Reads one JSON object from a file that json_file_write has written; a link is refused. `expected` describes the file
 * for messages: "what mar eval wrote". The caller deletes *out by cJSON_Delete. Returns 0, or 1 with the error printed
 * and *out NULL. */
int json_file_read(const char *path, const char *expected, cJSON **out);

#endif
