#include "tools/serve/answer.h"

#include "base/printable.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char json_type_name[] = "application/json";

void answer_free(answer *a)
{
    if (!a->is_static) free(a->body);
    *a = (answer){.code = 0};
}

void answer_static(answer *a, int code, const char *type, const void *body, size_t size)
{
    /* the cast is safe: a static body is only read */
    *a = (answer){.code = code, .type = type, .body = (char *)(uintptr_t)body, .size = size, .is_static = 1};
}

void answer_bytes(answer *a, int code, const char *type, void *body, size_t size)
{
    *a = (answer){.code = code, .type = type, .body = body, .size = size};
}

int answer_no_memory(answer *a)
{
    static const char text[] =
        "{\"error\": {\"message\": \"out of memory\", \"type\": \"server_error\", \"param\": null, "
        "\"code\": \"out_of_memory\"}}\n";
    answer_static(a, 503, json_type_name, text, sizeof text - 1);
    a->retry_after = 1;
    return 1;
}

void answer_text(answer *a, int code, const char *type, FILE *stream, text_buffer *text)
{
    if (stream && text_close(stream, text) == 0)
        answer_bytes(a, code, type, text->data, text->size);
    else
        answer_no_memory(a);
}

int answer_error(answer *a, int code, const char *param, const char *name, const char *format, ...)
{
    const char *type = code == 429 ? "rate_limit_error" : code >= 500 ? "server_error" : "invalid_request_error";
    char message[2048];
    text_buffer text;
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (n >= (int)sizeof message) message[printable_whole(message, sizeof message - 1)] = '\0';
    FILE *out = text_open(&text);
    if (out) {
        fputs("{\"error\": {\"message\": ", out);
        json_string(out, message);
        fprintf(out, ", \"type\": \"%s\", \"param\": ", type);
        if (param)
            json_string(out, param);
        else
            fputs("null", out);
        fputs(", \"code\": ", out);
        if (name)
            json_string(out, name);
        else
            fputs("null", out);
        fputs("}}\n", out);
    }
    answer_text(a, code, json_type_name, out, &text);
    return 1;
}

void json_string(FILE *out, const char *text)
{
    static const char escapes[] = "\"\\bfnrt", meanings[] = "\"\\\b\f\n\r\t";
    unsigned c;
    putc('"', out);
    for (size_t left = strlen(text), size; left > 0; text += size, left -= size) {
        const char *meaning = strchr(meanings, *text);
        size = utf8_decode(text, left, &c);
        if (meaning)
            fprintf(out, "\\%c", escapes[meaning - meanings]);
        else if (size == 0)
            fputs("\xef\xbf\xbd", out);
        else if (c < 0x20 || c == 0x7f || c == 0x2028 || c == 0x2029)
            fprintf(out, "\\u%04x", c);
        else
            fwrite(text, 1, size, out);
        if (size == 0) size = 1;
    }
    putc('"', out);
}

void json_float(FILE *out, float x)
{
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x) break;
    }
    fputs(text, out);
}
