#include "tools/cli/json_file.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/cli/text.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIZE_LIMIT_MB = 256 };

int json_file_write(cJSON *record, const char *path)
{
    text_buffer text;
    FILE *out = text_open(&text);
    if (!out) {
        cJSON_Delete(record);
        return tool_error("%s: out of memory for the JSON record", path);
    }
    const int lacks = tool_write_json(record, 1, out), cut = text_close(out, &text);
    if (cut) return tool_error("%s: out of memory for the JSON record", path);
    const int failed =
        lacks ? tool_error("%s: out of memory for the JSON record", path) : tool_write_file(path, text.data, text.size);
    free(text.data);
    return failed;
}

static int memory_lacks; /* 1: cJSON had no memory for part of the file */

static void *allocate(size_t size)
{
    void *p = malloc(size);
    if (!p) memory_lacks = 1;
    return p;
}

static cJSON *parse(const char *text, size_t size)
{
    cJSON_InitHooks(&(cJSON_Hooks){allocate, free});
    memory_lacks = 0;
    cJSON *record = cJSON_ParseWithLengthOpts(text, size, NULL, 1);
    cJSON_InitHooks(NULL);
    return record;
}

int json_file_read(const char *path, const char *expected, cJSON **out)
{
    size_t size;
    *out = NULL;
    char *text = tool_read_file(path, O_NOFOLLOW, SIZE_LIMIT_MB, expected, &size);
    if (!text) return 1;
    *out = parse(text, size + 1);
    free(text);
    if (cJSON_IsObject(*out)) return 0;
    cJSON_Delete(*out);
    *out = NULL;
    return memory_lacks ? tool_error("out of memory for %s", path)
                        : tool_error("%s: is no JSON object, expected %s", path, expected);
}
