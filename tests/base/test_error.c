/* A message is one line that may be printed anywhere, whatever names it contains. */
#include "tests/support/support.h"

#include <string.h>

static const struct {
    const char *from, *shown;
} cases[] = {
    {"plain: words", "plain: words"},
    {"a\nb\tc\rd", "a\\nb\\tc\\rd"},
    {"\x1b[31mred\x7f\x01", "\\x1b[31mred\\x7f\\x01"},
    {"\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x98\x80", "\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x98\x80"},
    {"c1 \xc2\x9b \xc2\x80 \xc2\x85", "c1 \\u009b \\u0080 \\u0085"}, /* C1 controls; 9b is ESC [ in one character */
    {"\xc2\xa0", "\xc2\xa0"},                                        /* the first character after C1 */
    {"\xe2\x80\xaetxt.exe\xe2\x80\xac", "\\u202etxt.exe\\u202c"},    /* reverses the text direction */
    {"\xe2\x81\xa6 \xe2\x81\xa9 \xe2\x80\xa8 \xe2\x81\xaa", "\\u2066 \\u2069 \\u2028 \xe2\x81\xaa"},
    {"\xff\xfe", "\\xff\\xfe"},
    {"cut \xe6\x97", "cut \\xe6\\x97"},
    {"\x9b alone, \xc3(", "\\x9b alone, \\xc3("},
    {"\xc0\xaf \xe0\x80\xaf", "\\xc0\\xaf \\xe0\\x80\\xaf"}, /* overlong encodings */
    {"\xed\xa0\x80", "\\xed\\xa0\\x80"},                     /* half of a UTF-16 pair */
    {"\xf4\x90\x80\x80 \xf8\x88\x80\x80\x80", "\\xf4\\x90\\x80\\x80 \\xf8\\x88\\x80\\x80\\x80"}, /* beyond Unicode */
};

TEST_CASE(names_are_shown)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mar_err err;
        assert_int_equal(err_set(&err, MAR_EIO, "%s", cases[i].from), MAR_EIO);
        assert_string_equal(err.text, cases[i].shown);
    }
}

/* Checks that no length cuts a character or an escape, and that the end of the message stays. */
TEST_CASE(nothing_is_cut)
{
    static const char *const units[] = {"\xf0\x9f\x98\x80", "\xe6\x97\xa5", "\xc3\xa9", "\x1b", "\xe2\x80\xae", "x"};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++)
        for (size_t size = 1; size <= 80; size++) {
            char from[400] = "", text[81], again[400];
            for (int i = 0; i < 40; i++) strcat(from, units[u]);
            memset(text, 'z', sizeof text);
            err_line(text, size, "%s: why", from);
            assert_true(strlen(text) < size);
            assert_int_equal(text[size], 'z');
            err_line(again, sizeof again, "%s", text);
            assert_string_equal(again, text); /* it contains no part of a character */
            const char *backslash = strrchr(text, '\\');
            if (backslash) assert_true(strspn(backslash + 2, "0123456789abcdef") >= (backslash[1] == 'x' ? 2 : 4));
            if (size >= 16) assert_string_equal(text + strlen(text) - 5, ": why");
            if (size >= 16 && strlen(text) > 13 && u < 5) assert_non_null(strstr(text, "..."));
        }
    char long_path[20000];
    mar_err err;
    memset(long_path, 'a', sizeof long_path);
    for (size_t i = 0; i + 3 < sizeof long_path; i += 3) memcpy(long_path + i, "\xe6\x97\xa5", 3);
    long_path[sizeof long_path - 1] = '\0';
    for (int shift = 0; shift < 4; shift++) {
        err_set(&err, MAR_EIO, "%.*s%s", shift, "xxx", long_path);
        assert_null(strchr(err.text, '\\'));
        assert_true(strlen(err.text) > ERR_TEXT_MAX - 16);
    }
    err_line(long_path, 0, "%s", "nothing is written");
}
