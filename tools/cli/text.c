#include "tools/cli/text.h"

#include "base/printable.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Appends what the stream has buffered. Returning 0 reports failure to the stream. */
static ssize_t text_take(void *cookie, const char *data, size_t size)
{
    text_buffer *text = cookie;
    if (!text->failed && size >= text->capacity - text->size) {
        const size_t capacity = 2 * text->capacity + size + 1;
        char *larger = realloc(text->data, capacity);
        if (larger) {
            text->data = larger;
            text->capacity = capacity;
        }
        text->failed = !larger;
    }
    if (text->failed) return 0;
    memcpy(text->data + text->size, data, size);
    text->size += size;
    text->data[text->size] = '\0';
    return (ssize_t)size;
}

FILE *text_open(text_buffer *text)
{
    *text = (text_buffer){.data = calloc(1, 1), .capacity = 1};
    FILE *stream = text->data ? fopencookie(text, "w", (cookie_io_functions_t){.write = text_take}) : NULL;
    if (stream) return stream;
    free(text->data);
    *text = (text_buffer){0};
    return NULL;
}

int text_close(FILE *stream, text_buffer *text)
{
    if (fclose(stream) != 0) text->failed = 1;
    if (!text->failed) return 0;
    free(text->data);
    text->data = NULL;
    return 1;
}

int text_fail(char *why, size_t size, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, size, format, arguments);
    va_end(arguments);
    return 1;
}

void text_append(char *text, size_t size, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(text + used, size - used, format, arguments);
    va_end(arguments);
    if (n >= (int)(size - used)) text[printable_whole(text, size - 1)] = '\0';
}

void text_append_file(char *text, size_t size, const char *name, const char *path)
{
    const char *quote = strpbrk(path, " \t'\"\\$`*?&;|<>()#~") ? "'" : "";
    text_append(text, size, "%s--%s %s%s%s", *text ? " " : "", name, quote, path, quote);
}

const char *text_list(const char *const *names, char *text, size_t size)
{
    *text = '\0';
    for (int i = 0; names[i]; i++)
        text_append(text, size, "%s%s", i == 0 ? "" : names[i + 1] ? ", " : " or ", names[i]);
    return text;
}

/* Compares the numbers at *a and *b by value, and moves behind them. */
static int compare_numbers(const char **a, const char **b)
{
    const char *x = *a + strspn(*a, "0"), *y = *b + strspn(*b, "0");
    const size_t n = strspn(x, "0123456789"), m = strspn(y, "0123456789");
    *a = x + n, *b = y + m;
    return n != m ? (n < m ? -1 : 1) : memcmp(x, y, n);
}

int text_compare_names(const char *a, const char *b)
{
    while (*a && *b) {
        int order;
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b))
            order = compare_numbers(&a, &b);
        else
            order = tolower((unsigned char)*a++) - tolower((unsigned char)*b++);
        if (order != 0) return order;
    }
    return (unsigned char)*a - (unsigned char)*b;
}
