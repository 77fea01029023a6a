#include "base/json.h"

#include "base/printable.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first pass has no values: it checks the text and counts. The second one fills the values and unescapes strings,
 * which do not become longer. */
typedef struct {
    char *text; /* [length], then a NUL */
    size_t length, at;
    json_value *values; /* NULL in the first pass */
    size_t count;
    size_t nul, not_utf8;
    int python; /* 1: NaN, Infinity and -Infinity are numbers */
} reader;

static json_value *json_add(reader *r, json_type type, const char *text, size_t length)
{
    const size_t i = r->count++;
    if (!r->values) return NULL;
    r->values[i] = (json_value){.text = text, .length = (uint32_t)length, .type = type, .size = 1};
    return &r->values[i];
}

static char json_skip_space(reader *r)
{
    while (r->text[r->at] == ' ' || r->text[r->at] == '\t' || r->text[r->at] == '\n' || r->text[r->at] == '\r') r->at++;
    return r->text[r->at];
}

/* Reads \uXXXX. Returns -1 for any other text. */
static int32_t read_unit(reader *r)
{
    int32_t unit = 0;
    if (r->text[r->at] != '\\' || r->text[r->at + 1] != 'u') return -1;
    for (int i = 2; i < 6; i++) {
        const char c = r->text[r->at + (size_t)i], lower = (char)(c | 0x20);
        const int digit = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
        if (digit < 0) return -1; /* the NUL at the end, too */
        unit = unit << 4 | digit;
    }
    r->at += 6;
    return unit;
}

/* Reads one or two \uXXXX as UTF-8. Returns its size, or 0 for half a surrogate pair. */
static size_t read_code_point(reader *r, char out[4])
{
    const size_t start = r->at;
    int32_t c = read_unit(r);
    if (c >= 0xd800 && c < 0xdc00) {
        const int32_t low = read_unit(r);
        c = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((c & 0x3ff) << 10) + (low & 0x3ff) : -1;
    }
    if (c < 0 || (c >= 0xd800 && c < 0xe000)) {
        r->at = start;
        return 0;
    }
    if (c == 0 && r->nul == r->length) r->nul = start;
    const size_t size = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = size; i-- > 1; c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(size == 1 ? c : (0xf00 >> size & 0xff) | c);
    return size;
}

/* Reads what stands for one character, or for a byte that is not UTF-8. Returns its size in out, or 0. */
static size_t read_character(reader *r, char out[4])
{
    static const char escapes[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const char *const at = r->text + r->at, *escape;
    unsigned c;
    if ((unsigned char)*at < 0x20) return 0; /* the NUL at the end, too */
    if (*at == '\\') {
        if (at[1] == 'u') return read_code_point(r, out);
        if (!at[1] || !(escape = strchr(escapes, at[1]))) return 0;
        out[0] = meanings[escape - escapes];
        r->at += 2;
        return 1;
    }
    size_t size = utf8_decode(at, r->length - r->at, &c);
    if (size == 0 && r->not_utf8 == r->length) r->not_utf8 = r->at;
    if (size == 0) size = 1;
    memcpy(out, at, size);
    r->at += size;
    return size;
}

static int is_plain(char c)
{
    return c >= 0x20 && c != '"' && c != '\\' && (unsigned char)c < 0x80;
}

static int read_string(reader *r)
{
    char *const start = r->text + r->at + 1, *to = start, out[4];
    if (start[-1] != '"') return 0;
    for (r->at++; r->text[r->at] != '"';) {
        const char *from = r->text + r->at;
        size_t size = 0;
        while (is_plain(from[size])) size++;
        if (size > 0)
            r->at += size;
        else if ((size = read_character(r, out)) > 0)
            from = out;
        else
            return 0;
        if (r->values) memmove(to, from, size);
        to += size;
    }
    r->at++;
    if (r->values) *to = '\0'; /* at the closing quote or before it */
    json_add(r, JSON_STRING, start, (size_t)(to - start));
    return 1;
}

static int read_digits(reader *r)
{
    const size_t start = r->at;
    while (r->text[r->at] >= '0' && r->text[r->at] <= '9') r->at++;
    return r->at > start;
}

static int read_number(reader *r)
{
    const size_t start = r->at;
    if (r->text[r->at] == '-') r->at++;
    if (r->text[r->at] == '0')
        r->at++;
    else if (!read_digits(r))
        return 0;
    if (r->text[r->at] == '.' && (r->at++, !read_digits(r))) return 0;
    if (r->text[r->at] == 'e' || r->text[r->at] == 'E') {
        r->at++;
        if (r->text[r->at] == '+' || r->text[r->at] == '-') r->at++;
        if (!read_digits(r)) return 0;
    }
    json_add(r, JSON_NUMBER, r->text + start, r->at - start);
    return 1;
}

/* Reads a number that JSON does not have. */
static int read_python_number(reader *r)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (int i = 0; r->python && i < 3; i++) {
        const size_t length = strlen(words[i]);
        if (strncmp(r->text + r->at, words[i], length) != 0) continue;
        json_add(r, JSON_NUMBER, r->text + r->at, length);
        r->at += length;
        return 1;
    }
    return 0;
}

static int read_scalar(reader *r)
{
    static const char *const words[] = {[JSON_NULL] = "null", [JSON_FALSE] = "false", [JSON_TRUE] = "true"};
    if (r->text[r->at] == '"') return read_string(r);
    for (json_type type = JSON_NULL; type <= JSON_TRUE; type++) {
        const size_t length = strlen(words[type]);
        if (strncmp(r->text + r->at, words[type], length) != 0) continue;
        r->at += length;
        json_add(r, type, NULL, 0);
        return 1;
    }
    return read_python_number(r) || read_number(r);
}

/* Reads a member's name and the colon. */
static int json_read_name(reader *r)
{
    json_skip_space(r);
    if (!read_string(r) || json_skip_space(r) != ':') return 0;
    r->at++;
    return 1;
}

static json_error json_read_all(reader *r, int levels)
{
    char closing[JSON_LEVELS_MAX];     /* [level] the bracket that ends the container */
    size_t container[JSON_LEVELS_MAX]; /* [level] its index */
    int level = 0;
    for (;;) { /* a value, and what ends with it */
        if (level > 0 && closing[level - 1] == '}' && !json_read_name(r)) return JSON_SYNTAX;
        const char c = json_skip_space(r);
        if (c == '[' || c == '{') {
            if (level == levels) return JSON_DEEP;
            closing[level] = c == '[' ? ']' : '}';
            container[level++] = r->count;
            json_add(r, c == '[' ? JSON_ARRAY : JSON_OBJECT, NULL, 0);
            r->at++;
            if (json_skip_space(r) != closing[level - 1]) continue;
        } else if (!read_scalar(r)) {
            return JSON_SYNTAX;
        }
        for (; level > 0 && json_skip_space(r) == closing[level - 1]; r->at++) {
            level--;
            if (r->values) r->values[container[level]].size = (uint32_t)(r->count - container[level]) & 0x1fffffff;
        }
        if (level == 0) break;
        if (r->text[r->at] != ',') return JSON_SYNTAX;
        r->at++;
    }
    json_skip_space(r);
    return r->at == r->length ? JSON_OK : JSON_TRAILING;
}

static json_error json_read_text(char *text, size_t length, int levels, int python, json *out)
{
    *out = (json){.nul = length, .not_utf8 = length};
    if (length > JSON_TEXT_MAX) return JSON_NO_MEMORY; /* unread */
    const size_t start = length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    reader r = {.text = text, .length = length, .at = start, .nul = length, .not_utf8 = length, .python = python};
    const json_error error = json_read_all(&r, levels);
    out->at = r.at;
    if (error != JSON_OK) return error;
    out->values = malloc(r.count * sizeof *out->values);
    if (!out->values) return JSON_NO_MEMORY;
    out->count = r.count;
    out->nul = r.nul;
    out->not_utf8 = r.not_utf8;
    r = (reader){.text = text,
                 .length = length,
                 .at = start,
                 .values = out->values,
                 .nul = length,
                 .not_utf8 = length,
                 .python = python};
    json_read_all(&r, levels);
    return JSON_OK;
}

json_error json_read(char *text, size_t length, int levels, json *out)
{
    return json_read_text(text, length, levels, 0, out);
}

json_error json_read_python(char *text, size_t length, int levels, json *out)
{
    return json_read_text(text, length, levels, 1, out);
}

void json_free(json *j)
{
    free(j->values);
    j->values = NULL;
}

int json_is(const json_value *v, const char *text)
{
    return v->type == JSON_STRING && v->length == strlen(text) && memcmp(v->text, text, v->length) == 0;
}

const json_value *json_member(const json_value *v, const char *name)
{
    if (v->type == JSON_OBJECT)
        for (const json_value *n = v + 1; n < json_next(v); n = json_next(n + 1))
            if (json_is(n, name)) return n + 1;
    return NULL;
}

size_t json_children(const json_value *v)
{
    size_t n = 0;
    for (const json_value *item = v + 1; item < json_next(v); item = json_next(item)) n++;
    return v->type == JSON_OBJECT ? n / 2 : n;
}

int json_integer(const json_value *v, int64_t *out)
{
    if (v->type != JSON_NUMBER) return 0;
    int64_t value = 0; /* negative: it has one number more */
    const uint32_t negative = v->text[0] == '-';
    for (uint32_t i = negative; i < v->length; i++) {
        const int digit = v->text[i] - '0';
        if (digit < 0 || digit > 9 || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_sub_overflow(value, digit, &value))
            return 0;
    }
    if (!negative && value == INT64_MIN) return 0;
    *out = negative ? value : -value;
    return 1;
}

double json_double(const json_value *v)
{
    if (v->type != JSON_NUMBER) return NAN;
    const locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* glibc's own object, without an allocation */
    if (!c) return NAN;
    const double value = strtod_l(v->text, NULL, c); /* ends where the number does: what follows is no part of one */
    freelocale(c);
    return value;
}

size_t json_quote(const char *text, char *to)
{
    static const char escapes[] = "\"\\bfnrt", meanings[] = "\"\\\b\f\n\r\t";
    size_t length = 1;
    char out[8];
    for (; *text; text++) {
        const char *const meaning = strchr(meanings, *text);
        size_t n = 1;
        out[0] = *text;
        if (meaning)
            n = (size_t)snprintf(out, sizeof out, "\\%c", escapes[meaning - meanings]);
        else if ((unsigned char)*text < 0x20)
            n = (size_t)snprintf(out, sizeof out, "\\u%04x", (unsigned)*text);
        if (to) memcpy(to + length, out, n);
        length += n;
    }
    if (to) to[0] = to[length] = '"';
    return length + 1;
}
