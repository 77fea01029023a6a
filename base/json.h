/* JSON (RFC 8259): a strict reader that works in place. Two passes, one allocation and no recursion: its time and
 * memory are proportional to the text, its stack is small. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stddef.h>
#include <stdint.h>

typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } json_type;

/* A value. Values lie in one array, in the text's order. An array's elements follow it. An object's members follow it,
 * each a name, a string, and then its value. Names may repeat. */
typedef struct {
    const char *text;   /* [length] a string, unescaped and followed by a NUL, or a number as written; else NULL */
    uint32_t length;    /* bytes of text */
    uint32_t type : 3;  /* json_type */
    uint32_t size : 29; /* values in the array that are this one or inside it */
} json_value;

/* Bytes of the longest text, and levels of the deepest. */
enum { JSON_TEXT_MAX = 1 << 29, JSON_LEVELS_MAX = 64 };

typedef enum {
    JSON_OK,
    JSON_SYNTAX,   /* no JSON */
    JSON_DEEP,     /* a bracket opens more levels than allowed */
    JSON_TRAILING, /* more than whitespace follows the first value */
    JSON_NO_MEMORY /* or a text longer than JSON_TEXT_MAX */
} json_error;

typedef struct {
    json_value *values; /* [count] values[0] contains the others; NULL after an error */
    size_t count;
    size_t at;       /* offset of the error in the text */
    size_t nul;      /* offset of the first \u0000, or the text's length */
    size_t not_utf8; /* offset of the first byte in a string that is not UTF-8, or the text's length; such bytes stay */
} json;

/* Reads text, char [length + 1], with a NUL at its end and at most `levels` levels, up to JSON_LEVELS_MAX. It may begin
 * with UTF-8's byte order mark. Changes the text only if it returns JSON_OK. The values point into it. The caller calls
 * json_free. */
json_error json_read(char *text, size_t length, int levels, json *out);
/* Does the same for a file of Python's json, which writes NaN, Infinity and -Infinity: numbers whose json_double is
 * that, and json_integer 0. */
json_error json_read_python(char *text, size_t length, int levels, json *out);
void json_free(json *j);

/* Returns the value after v and all inside it: of an array's last element, the array's own next. */
static inline const json_value *json_next(const json_value *v)
{
    return v + v->size;
}

/* Returns 1 if v is a string, or a member's name, with this text. */
int json_is(const json_value *v, const char *text);
/* Returns the value of the first member with this name, or NULL if there is none or v is no object. */
const json_value *json_member(const json_value *v, const char *name);
/* Returns the number of an array's elements or an object's members; 0 for other values. */
size_t json_children(const json_value *v);
/* Sets *out to a number written without fraction and exponent. Returns 0 if v is another value or *out too small. */
int json_integer(const json_value *v, int64_t *out);
/* Returns the nearest double, an infinity beyond the range; NaN if v is no number. */
double json_double(const json_value *v);

/* Writes text as a JSON string, quotes included, to `to` without a NUL, and returns its length. With `to` NULL only
 * returns it. The text must be UTF-8. */
size_t json_quote(const char *text, char *to);

#endif
