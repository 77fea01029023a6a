#include "tools/page/markup.h"

#include "base/printable.h"

#include <string.h>

static const char *entity(char c)
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
        return NULL;
    }
}

void markup_escape_part(FILE *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        char shown[PRINTABLE_MAX];
        size_t length;
        const size_t size = printable_character(text + i, n - i, shown, &length);
        if (entity(text[i]))
            fputs(entity(text[i]), out);
        else
            fwrite(shown, 1, length, out);
        i += size;
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
