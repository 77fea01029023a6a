#include "tools/json_file.h"

#include "tools/command.h"
#include "tools/file.h"
#include "tools/text.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE_LIMIT = 16 << 20 };

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

static int memory_lacks; /* cJSON had no memory for what it parsed */

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
    int failed = 0;
    FILE *in = fopen(path, "rb");
    char *text = malloc(SIZE_LIMIT + 1);
    *out = NULL;
    if (!in || !text) {
        failed =
            in ? tool_error("out of memory for %s", path) : tool_error("%s: cannot read: %s", path, strerror(errno));
    } else {
        const size_t n = fread(text, 1, SIZE_LIMIT, in);
        text[n] = '\0';
        if (ferror(in))
            failed = tool_error("%s: cannot read: %s", path, strerror(errno));
        else if (n == SIZE_LIMIT)
            failed = tool_error("%s: has %d MB or more, expected %s", path, SIZE_LIMIT >> 20, expected);
        else
            *out = parse(text, n + 1);
        if (!failed && !cJSON_IsObject(*out)) {
            cJSON_Delete(*out);
            *out = NULL;
            failed = memory_lacks ? tool_error("out of memory for %s", path)
                                  : tool_error("%s: is no JSON object, expected %s", path, expected);
        }
    }
    if (in) fclose(in);
    free(text);
    return failed;
}
