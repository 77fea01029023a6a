#include "tools/markup.h"

#include <string.h>

/* Bytes of the UTF-8 character at text[0..n), 1 to 4; 0 if there is none. */
static size_t character_size(const unsigned char *text, size_t n)
{
    const unsigned char c = text[0];
    const size_t size = c < 0x80                ? 1
                        : c >= 0xc2 && c < 0xe0 ? 2
                        : c >= 0xe0 && c < 0xf0 ? 3
                        : c >= 0xf0 && c < 0xf5 ? 4
                                                : 0;
    if (size > n) return 0;
    for (size_t i = 1; i < size; i++)
        if ((text[i] & 0xc0) != 0x80) return 0;
    if ((c == 0xe0 && text[1] < 0xa0) || (c == 0xed && text[1] > 0x9f)) return 0; /* overlong; surrogates */
    if ((c == 0xf0 && text[1] < 0x90) || (c == 0xf4 && text[1] > 0x8f)) return 0; /* overlong; beyond Unicode */
    return size;
}

static const char *entity(unsigned char c)
{
    switch (c) {
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '&':
        return "&amp;";
    case '"':
        return "&quot;";
    default:
        return c < 32 || c == 127 ? "?" : NULL;
    }
}

void markup_escape_part(FILE *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        const unsigned char *at = (const unsigned char *)text + i;
        const size_t size = character_size(at, n - i);
        if (size == 0)
            fputc('?', out);
        else if (size == 1 && entity(*at))
            fputs(entity(*at), out);
        else
            fwrite(at, 1, size, out);
        i += size ? size : 1;
    }
}

void markup_escape(FILE *out, const char *text)
{
    markup_escape_part(out, text, strlen(text));
}

/* Okabe and Ito's colours, told apart by nearly everybody; the reference is black. */
const char *markup_colour(int run)
{
    static const char *const colours[] = {"#0072b2",    MARKUP_OFF, MARKUP_SAME, "#cc79a7",
                                          MARKUP_CLOSE, "#56b4e9",  "#7a5c00"};
    return run == 0 ? MARKUP_INK : colours[(run - 1) % 7];
}
