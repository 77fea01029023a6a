#include "tests/support/page.h"

#include "tests/support/command.h"

#include <png.h>
#include <stdlib.h>
#include <string.h>

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)) != NULL; text += strlen(what)) n++;
    return n;
}

static void check_text(const char *text)
{
    static const char *const absent[] = {"<!--",      "<link", "<iframe",        "@import",        "url(",    "fetch(",
                                         "innerHTML", "eval(", "document.write", "XMLHttpRequest", "@RECORD@"};
    static const char *const present[] = {"prefers-color-scheme:dark", "name=\"viewport\"", "<noscript>"};
    assert_int_equal(strncmp(text, "<!DOCTYPE html>", 15), 0);
    assert_string_equal(text + strlen(text) - 8, "</html>\n");
    assert_int_equal(count(text, "<script"), 2); /* the record and the script that draws it */
    assert_int_equal(count(text, "</script"), 2);
    assert_int_equal(count(text, "http"), 1); /* SVG's namespace */
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (strstr(text, absent[i])) fail_msg("the page has %s", absent[i]);
    for (size_t i = 0; i < sizeof present / sizeof *present; i++)
        if (!strstr(text, present[i])) fail_msg("the page has no %s", present[i]);
    for (const char *c = text; *c; c++)
        if (((unsigned char)*c < 32 && *c != '\n' && *c != '\t') || *c == 127) fail_msg("a control character");
}

cJSON *page_record(const char *directory, const char *name, const char *kind, cJSON **extras)
{
    static const char tag[] = "<script type=\"application/json\" id=\"record\">";
    static const char *const texts[] = {"date", "machine"};
    char *text = read_whole_file(directory, name, NULL);
    check_text(text);
    char *begin = strstr(text, tag), *end = begin ? strstr(begin, "</script>") : NULL;
    assert_non_null(end);
    *end = '\0';
    if (strchr(begin + sizeof tag - 1, '<')) fail_msg("the record has a <");
    cJSON *record = cJSON_ParseWithOpts(begin + sizeof tag - 1, NULL, 1);
    assert_true(cJSON_IsObject(record));
    free(text);
    *extras = cJSON_DetachItemFromObjectCaseSensitive(record, "extras");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(*extras, "kind")), kind);
    assert_non_null(cJSON_GetStringValue(cJSON_GetObjectItem(record, "version")));
    assert_true(cJSON_IsArray(cJSON_GetObjectItem(*extras, "command")));
    for (int i = 0; i < 2; i++)
        assert_in_range(strlen(cJSON_GetStringValue(cJSON_GetObjectItem(*extras, texts[i]))), 10, 1000);
    return record;
}

unsigned char *page_pixels(const cJSON *uri, int *width, int *height)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static const char start[] = "data:image/png;base64,";
    const char *text = cJSON_GetStringValue(uri);
    assert_non_null(text);
    assert_int_equal(strncmp(text, start, sizeof start - 1), 0);
    unsigned char *data = malloc(strlen(text));
    size_t size = 0;
    unsigned bits = 0;
    int held = 0;
    for (text += sizeof start - 1; *text && *text != '='; text++) {
        const char *digit = strchr(digits, *text);
        assert_non_null(digit);
        bits = bits << 6 | (unsigned)(digit - digits), held += 6;
        if (held >= 8) data[size++] = (unsigned char)(bits >> (held -= 8));
    }
    png_image png = {.version = PNG_IMAGE_VERSION};
    assert_true(png_image_begin_read_from_memory(&png, data, size));
    png.format = PNG_FORMAT_RGB;
    unsigned char *rgb = malloc(PNG_IMAGE_SIZE(png));
    assert_true(png_image_finish_read(&png, NULL, rgb, 0, NULL));
    *width = (int)png.width, *height = (int)png.height;
    free(data);
    return rgb;
}
