#include "base/error.h"

#include <stdio.h>
#include <string.h>

/* --- one printable line ------------------------------------------------------------------------------------------- */

enum { SHOWN_MAX = 8, FORMATTED_MAX = 8192 }; /* bytes; FORMATTED_MAX has room for a message with two paths */

/* Decodes the UTF-8 character at `at` into *c. Returns its size in bytes, or 0 if it is invalid. */
static size_t decode(const unsigned char *at, unsigned *c)
{
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t size = at[0] < 0x80 ? 1 : at[0] >> 5 == 6 ? 2 : at[0] >> 4 == 14 ? 3 : at[0] >> 3 == 30 ? 4 : 0;
    *c = size == 1 ? at[0] : at[0] & (0x7fu >> size);
    for (size_t i = 1; i < size; i++) {
        if ((at[i] & 0xc0) != 0x80) return 0;
        *c = *c << 6 | (at[i] & 0x3f);
    }
    if (size > 1 && (*c < least[size] || *c > 0x10ffff || (*c >= 0xd800 && *c < 0xe000))) return 0;
    return size;
}

static int is_printable(unsigned c)
{
    if (c < 0x20 || (c >= 0x7f && c < 0xa0)) return 0;                     /* control characters */
    if (c >= 0x2028 && c <= 0x202e) return 0;                              /* line separators; direction overrides */
    if (c == 0x61c || c == 0x200e || c == 0x200f || c == 0xfeff) return 0; /* direction marks; byte order mark */
    return !(c >= 0x2066 && c <= 0x2069);                                  /* direction isolates */
}

/* Writes the printable form of the character at `at` to shown[*length]; an invalid byte is escaped by itself. Returns
 * the bytes consumed. */
static size_t show(const unsigned char *at, char shown[SHOWN_MAX], size_t *length)
{
    unsigned c;
    const size_t size = decode(at, &c);
    if (size > 0 && is_printable(c)) {
        memcpy(shown, at, *length = size);
        return size;
    }
    if (*at == '\t' || *at == '\n' || *at == '\r')
        *length = (size_t)snprintf(shown, SHOWN_MAX, "\\%c", *at == '\t' ? 't' : *at == '\n' ? 'n' : 'r');
    else
        *length = (size_t)snprintf(shown, SHOWN_MAX, size > 1 ? "\\u%04x" : "\\x%02x", size > 0 ? c : at[0]);
    return size > 0 ? size : 1;
}

/* Writes `from` to text without cutting a character or an escape. Text that does not fit loses its middle. */
static void write_line(const unsigned char *from, char *text, size_t size)
{
    static const char gap[] = "...";
    char shown[SHOWN_MAX];
    size_t all = 0, at = 0, used = 0, length;
    int cut = 0;
    for (const unsigned char *c = from; *c; all += length) c += show(c, shown, &length);
    const size_t room = size > sizeof gap ? size - sizeof gap : 0, head = room / 2, tail = room - head;
    while (*from) {
        from += show(from, shown, &length);
        if (all < size || at + length <= head || at >= all - tail) {
            memcpy(text + used, shown, length);
            used += length;
        } else if (!cut++ && room > 0) {
            memcpy(text + used, gap, sizeof gap - 1);
            used += sizeof gap - 1;
        }
        at += length;
    }
    text[used] = '\0';
}

void err_line_v(char *text, size_t size, const char *format, va_list arguments)
{
    char formatted[FORMATTED_MAX];
    if (size == 0) return;
    const int n = vsnprintf(formatted, sizeof formatted, format, arguments);
    if (n < 0) formatted[0] = '\0';
    if (n >= (int)sizeof formatted) { /* the last character may be incomplete */
        size_t end = sizeof formatted - 1, back = 0;
        while (back < 3 && ((unsigned char)formatted[end - 1 - back] & 0xc0) == 0x80) back++;
        if ((unsigned char)formatted[end - 1 - back] >= 0xc0) formatted[end - 1 - back] = '\0';
    }
    write_line((const unsigned char *)formatted, text, size);
}

void err_line(char *text, size_t size, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    err_line_v(text, size, format, arguments);
    va_end(arguments);
}

mar_status err_set(mar_err *e, mar_status status, const char *format, ...)
{
    if (!e) return status;
    va_list arguments;
    va_start(arguments, format);
    err_line_v(e->text, sizeof e->text, format, arguments);
    va_end(arguments);
    return status;
}

const char *mar_status_name(mar_status status)
{
    switch (status) {
    case MAR_OK:
        return "ok";
    case MAR_EARG:
        return "bad argument";
    case MAR_ENOMEM:
        return "out of memory";
    case MAR_EIO:
        return "file error";
    case MAR_EFORMAT:
        return "malformed file";
    case MAR_EMODEL:
        return "not a usable model";
    case MAR_ECANCELLED:
        return "cancelled";
    case MAR_EBACKEND:
        return "backend error";
    }
    return "unknown status";
}
