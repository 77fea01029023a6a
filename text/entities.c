#include "text/entities.h"

#include <string.h>

static int entity_compare_names(const char *line, size_t length, const char *name, size_t name_length)
{
    const int order = memcmp(line, name, length < name_length ? length : name_length);
    return order ? order : (length > name_length) - (length < name_length);
}

/* Reads one or two numbers "a,b". */
static int read_points(const char *at, unsigned out[2])
{
    int n = 0;
    out[0] = 0;
    for (; *at != '\n'; at++)
        if (*at == ',')
            out[++n] = 0;
        else
            out[n] = out[n] * 16 + (unsigned)(*at <= '9' ? *at - '0' : *at - 'a' + 10);
    return n + 1;
}

/* Finds a named character, such as "eacute". Returns the number of its code points, 1 or 2; 0 if there is none. Sets
 * *needs_semicolon if the name needs a ";" behind it. */
static int find_entity(const char *name, size_t length, unsigned out[2], int *needs_semicolon)
{
    const char *low = text_entities, *high = text_entities + strlen(text_entities);
    while (low < high) {
        const char *line = low + (high - low) / 2;
        while (line > low && line[-1] != '\n') line--;
        const size_t size = strcspn(line, "; ");
        const int order = entity_compare_names(line, size, name, length);
        if (order == 0) {
            *needs_semicolon = line[size] == ';';
            return read_points(line + size + 1 + *needs_semicolon, out);
        }
        if (order < 0)
            low = strchr(line, '\n') + 1;
        else
            high = line;
    }
    return 0;
}

/* Returns the character that HTML takes a number from 0x80 to 0x9f for: a byte of Windows-1252. */
static unsigned windows_character(unsigned number)
{
    static const uint16_t windows[32] = {0x20ac, 0x81,   0x201a, 0x192,  0x201e, 0x2026, 0x2020, 0x2021,
                                         0x2c6,  0x2030, 0x160,  0x2039, 0x152,  0x8d,   0x17d,  0x8f,
                                         0x90,   0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014,
                                         0x2dc,  0x2122, 0x161,  0x203a, 0x153,  0x9d,   0x17e,  0x178};
    return windows[number - 0x80];
}

static int digit(char c, int base)
{
    const char lower = (char)(c | 0x20);
    const int value = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 16;
    return value < base ? value : -1;
}

/* Reads "#123;" or "#x1f;" at text[0..n). Returns its size, or 0 if there is no number. A large number becomes
 * 0x110000. */
static size_t entity_read_number(const char *text, size_t n, unsigned *out)
{
    const int base = n > 1 && (text[1] == 'x' || text[1] == 'X') ? 16 : 10;
    const size_t start = base == 16 ? 2 : 1;
    size_t at = start;
    *out = 0;
    for (int d; at < n && (d = digit(text[at], base)) >= 0; at++)
        *out = *out > 0x10ffff ? 0x110000 : *out * (unsigned)base + (unsigned)d;
    if (at == start) return 0;
    return at + (at < n && text[at] == ';');
}

static void entity_put_number(unsigned number, text_buffer *out)
{
    if (number == 0 || (number >= 0xd800 && number < 0xe000) || number > 0x10ffff)
        text_put_char(out, 0xfffd);
    else if (number >= 0x80 && number < 0xa0)
        text_put_char(out, windows_character(number));
    else if (number == 9 || number == 10 || number == 12 || number == 13 ||
             (number >= 0x20 && number != 0x7f && (number < 0xfdd0 || number > 0xfdef) && (number & 0xfffe) != 0xfffe))
        text_put_char(out, number);
}

/* Returns the length of the longest start of name[n] that is a name without ";", of at least two bytes; 0: none. */
static size_t longest_name(const char *name, size_t n, unsigned points[2], int *count)
{
    int needs_semicolon;
    for (size_t size = n < 32 ? n : 32; size > 1; size--)
        if ((*count = find_entity(name, size, points, &needs_semicolon)) > 0 && !needs_semicolon) return size;
    return 0;
}

/* Writes the character whose name, without "&", is at text[0..n). Returns the name's size, or 0 if there is none. Names
 * are of 1 to 32 characters, and a ";" may follow. A longer word may begin with one of the names without ";". */
static size_t put_named(const char *text, size_t n, text_buffer *out)
{
    unsigned points[2];
    int count, needs_semicolon;
    size_t size = 0;
    for (size_t characters = 0; size < n && !memchr("\t\n\f <&#;", text[size], 8); size++)
        if (((uint8_t)text[size] & 0xc0) != 0x80 && ++characters > 32) break;
    const int has_semicolon = size > 0 && size < n && text[size] == ';';
    if (has_semicolon && (count = find_entity(text, size, points, &needs_semicolon)) > 0)
        size++;
    else
        size = longest_name(text, size, points, &count);
    for (int i = 0; size && i < count; i++) text_put_char(out, points[i]);
    return size;
}

void text_unescape(const char *text, size_t n, text_buffer *out)
{
    for (size_t at = 0; at < n;) {
        const char *const found = memchr(text + at, '&', n - at);
        const size_t plain = found ? (size_t)(found - text) - at : n - at;
        text_put(out, text + at, plain);
        at += plain;
        if (at == n) return;
        unsigned number;
        const int is_number = at + 1 < n && text[at + 1] == '#';
        const size_t size = is_number ? entity_read_number(text + at + 1, n - at - 1, &number)
                                      : put_named(text + at + 1, n - at - 1, out);
        if (size == 0)
            text_put(out, "&", 1);
        else if (is_number)
            entity_put_number(number, out);
        at += 1 + size;
    }
}
