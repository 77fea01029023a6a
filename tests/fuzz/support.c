#include "tests/fuzz/fuzz.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keeps the sanitizer's quarantine small. A run makes a few allocations of up to 64 KB, which then stay in the
 * processor's cache. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "quarantine_size_mb=2:malloc_context_size=3:allocator_may_return_null=1";
}

void fuzz_fail(const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    dprintf(2, "FAILED: %s\n", text); /* a target may have taken stderr */
    abort();
}

/* Returns the length of the UTF-8 character at s, 0 if there is none. Rejects surrogates and overlong forms. */
static size_t utf8_length(const unsigned char *s)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t n = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    if (n <= 1) return n;
    uint32_t c = s[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if (s[i] >> 6 != 2) return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    return c < least[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff) ? 0 : n;
}

void fuzz_check_line(const char *what, const char *text)
{
    if (!*text) fuzz_fail("%s: empty", what);
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        const size_t n = utf8_length(s);
        if (n == 0) fuzz_fail("%s: no UTF-8 at byte %td: %s", what, (const char *)s - text, text);
        if (*s < 0x20 || *s == 0x7f)
            fuzz_fail("%s: control character at byte %td: %s", what, (const char *)s - text, text);
        s += n;
    }
}

void fuzz_check_error(const char *what, mar_status status, const mar_err *err)
{
    if (status == MAR_OK) {
        if (err->text[0]) fuzz_fail("%s: succeeded, and says %s", what, err->text);
        return;
    }
    fuzz_check_line(what, err->text);
    if (status != MAR_EFORMAT && status != MAR_EMODEL && status != MAR_ENOMEM)
        fuzz_fail("%s: status \"%s\": %s", what, mar_status_name(status), err->text);
}

uint32_t fuzz_hash(const uint8_t *data, size_t size)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < size; i++) h = (h ^ data[i]) * 16777619u;
    return h ^ h >> 15;
}

/* --- mutators ---------------------------------------------------------------------------------------------- */

uint32_t fuzz_next(fuzz_random *r, uint32_t below)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
    return (uint32_t)((r->state >> 32) * below >> 32);
}

int fuzz_one_in(fuzz_random *r, uint32_t n)
{
    return fuzz_next(r, n) == 0;
}

uint64_t fuzz_number(fuzz_random *r)
{
    static const uint64_t edges[] = {0x7f,       0x80,       0xff,       0x100,       0xffff,         0x10000,
                                     0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 1ull << 52,     1ull << 53,
                                     1ull << 60, 1ull << 62, INT64_MAX,  1ull << 63,  UINT64_MAX - 1, UINT64_MAX};
    if (fuzz_one_in(r, 4)) return edges[fuzz_next(r, sizeof edges / sizeof *edges)] + fuzz_next(r, 3) - 1;
    return fuzz_one_in(r, 4) ? fuzz_next(r, 1000) : fuzz_next(r, 9);
}

uint64_t fuzz_perhaps(fuzz_random *r, uint64_t value)
{
    return fuzz_one_in(r, 1500) ? fuzz_number(r) : value;
}

void fuzz_put(fuzz_bytes *b, const void *data, size_t size)
{
    if (size > b->capacity - b->size) {
        b->full = 1;
        return;
    }
    if (size) memcpy(b->data + b->size, data, size);
    b->size += size;
}

void fuzz_text(fuzz_bytes *b, const char *text)
{
    fuzz_put(b, text, strlen(text));
}

void fuzz_le(fuzz_bytes *b, uint64_t value, int width)
{
    for (int i = 0; i < width; i++) {
        const uint8_t byte = i < 8 ? (uint8_t)(value >> 8 * i) : 0;
        fuzz_put(b, &byte, 1);
    }
}

int fuzz_plain_wanted(fuzz_random *r)
{
    static int always = -1;
    if (always < 0) always = getenv("FUZZ_PLAIN") != NULL;
    return always || fuzz_one_in(r, 6);
}
