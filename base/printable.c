#include "base/printable.h"

#include <stdlib.h>
#include <string.h>

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

size_t utf8_decode(const char *text, size_t n, unsigned *c)
{
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *at = (const unsigned char *)text;
    const size_t size = at[0] < 0x80 ? 1 : at[0] >> 5 == 6 ? 2 : at[0] >> 4 == 14 ? 3 : at[0] >> 3 == 30 ? 4 : 0;
    if (size > n) return 0;
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
    if (c >= 0x2066 && c <= 0x2069) return 0;                              /* direction isolates */
    if (c == 0x61c || c == 0x200e || c == 0x200f || c == 0xfeff) return 0; /* direction marks; byte order mark */
    return c != 0xfffe && c != 0xffff;                                     /* noncharacters, invalid in XML */
}

size_t printable_character(const char *text, size_t n, char shown[PRINTABLE_MAX], size_t *length)
{
    unsigned c;
    const size_t size = utf8_decode(text, n, &c);
    if (size > 0 && is_printable(c)) {
        memcpy(shown, text, *length = size);
        return size;
    }
    if (*text == '\t' || *text == '\n' || *text == '\r')
        *length = (size_t)snprintf(shown, PRINTABLE_MAX, "\\%c", *text == '\t' ? 't' : *text == '\n' ? 'n' : 'r');
    else
        *length = (size_t)snprintf(shown, PRINTABLE_MAX, size > 1 ? "\\u%04x" : "\\x%02x",
                                   size > 0 ? c : (unsigned char)*text);
    return size > 0 ? size : 1;
}

const char *printable(const char *text, char *line, size_t size)
{
    static const char gap[] = "...";
    const char *const end = text + strlen(text);
    char shown[PRINTABLE_MAX];
    size_t all = 0, at = 0, used = 0, length;
    int cut = 0;
    for (const char *c = text; c < end; all += length) c += printable_character(c, (size_t)(end - c), shown, &length);
    const size_t room = size > sizeof gap ? size - sizeof gap : 0, head = room / 2, tail = room - head;
    while (text < end) {
        text += printable_character(text, (size_t)(end - text), shown, &length);
        if (all < size || at + length <= head || at >= all - tail) {
            memcpy(line + used, shown, length);
            used += length;
        } else if (!cut++ && room > 0) {
            memcpy(line + used, gap, sizeof gap - 1);
            used += sizeof gap - 1;
        }
        at += length;
    }
    line[used] = '\0';
    return line;
}

size_t printable_whole(const char *text, size_t n)
{
    unsigned c;
    size_t start = n;
    while (start > 0 && n - start < 3 && ((unsigned char)text[start - 1] & 0xc0) == 0x80) start--;
    if (start == 0 || (unsigned char)text[start - 1] < 0xc0) return n;
    return utf8_decode(text + start - 1, n - start + 1, &c) ? n : start - 1;
}

char *printable_utf8(const char *text)
{
    const size_t n = strlen(text);
    char *copy = malloc((sizeof replacement - 1) * n + 1), *to = copy;
    unsigned c;
    if (!copy) return NULL;
    for (const char *end = text + n; text < end;) {
        const size_t size = utf8_decode(text, (size_t)(end - text), &c), length = size ? size : sizeof replacement - 1;
        memcpy(to, size ? text : replacement, length);
        to += length;
        text += size ? size : 1;
    }
    *to = '\0';
    return copy;
}

size_t printable_fits(const char *text, size_t size)
{
    const char *at = text, *const end = text + strlen(text);
    unsigned c;
    for (size_t used = 0; at < end;) {
        const size_t n = utf8_decode(at, (size_t)(end - at), &c);
        used += n ? n : sizeof replacement - 1;
        if (used >= size) break;
        at += n ? n : 1;
    }
    return (size_t)(at - text);
}

void printable_json(FILE *out, const char *text)
{
    unsigned c;
    for (const char *end = text + strlen(text); text < end;) {
        const size_t size = utf8_decode(text, (size_t)(end - text), &c);
        if (size == 0)
            fputs(replacement, out);
        else if (c < 0x7f || is_printable(c)) /* below 0x20 cJSON has escaped all but layout */
            fwrite(text, 1, size, out);
        else
            fprintf(out, "\\u%04x", c);
        text += size ? size : 1;
    }
}
