#include "tools/cli/json.h"

#include "base/printable.h"
#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/cli/text.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIZE_LIMIT_MB = 256 };

static int memory_lacks; /* 1: there was no memory for part of the record */

static void *json_allocate(size_t size)
{
    void *p = malloc(size);
    if (!p) memory_lacks = 1;
    return p;
}

static void watch_memory(void)
{
    cJSON_InitHooks(&(cJSON_Hooks){json_allocate, free});
    memory_lacks = 0;
}

cJSON *tool_json(void)
{
    watch_memory();
    return cJSON_CreateObject();
}

void tool_json_append(cJSON *array, cJSON *item)
{
    if (cJSON_AddItemToArray(array, item)) return;
    memory_lacks = 1;
    cJSON_Delete(item);
}

void tool_json_add(cJSON *object, const char *name, cJSON *item)
{
    if (cJSON_AddItemToObject(object, name, item)) return;
    memory_lacks = 1;
    cJSON_Delete(item);
}

char *tool_json_text(cJSON *record, int indented, size_t *size)
{
    text_buffer text;
    char *json = indented ? cJSON_Print(record) : cJSON_PrintUnformatted(record);
    FILE *out = json && !memory_lacks ? text_open(&text) : NULL;
    cJSON_Delete(record);
    if (out) {
        printable_json(out, json);
        putc('\n', out);
    }
    cJSON_free(json);
    cJSON_InitHooks(NULL);
    if (!out || text_close(out, &text) != 0) return NULL;
    *size = text.size;
    return text.data;
}

int tool_print_json(cJSON *record, int indented)
{
    size_t size;
    char *text = tool_json_text(record, indented, &size);
    if (!text) return tool_error("out of memory for the JSON record");
    fwrite(text, 1, size, stdout);
    free(text);
    return 0;
}

int json_file_write(cJSON *record, const char *path)
{
    size_t size;
    char *text = tool_json_text(record, 1, &size);
    if (!text) return tool_error("%s: out of memory for the JSON record", path);
    const int failed = tool_write_file(path, text, size);
    free(text);
    return failed;
}

int json_file_read(const char *path, const char *expected, cJSON **out)
{
    size_t size;
    *out = NULL;
    char *text = tool_read_file(path, O_NOFOLLOW, SIZE_LIMIT_MB, expected, &size);
    if (!text) return 1;
    watch_memory();
    *out = cJSON_ParseWithLengthOpts(text, size + 1, NULL, 1);
    cJSON_InitHooks(NULL);
    free(text);
    if (cJSON_IsObject(*out)) return 0;
    cJSON_Delete(*out);
    *out = NULL;
    return memory_lacks ? tool_error("out of memory for %s", path)
                        : tool_error("%s: is no JSON object, expected %s", path, expected);
}
