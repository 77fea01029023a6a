/* JSON: what the reader accepts, and that it accepts nothing else. */
#include "tests/support/brief.h"
#include "tests/support/test.h"

#include "base/json.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/failing_allocations.h"

#define LEVELS 16

/* Reads text[n] from memory that ends right after its NUL. */
static json_error read_bytes(const char *text, size_t n, char **copy, json *j)
{
    *copy = malloc(n + 1);
    assert_non_null(*copy);
    memcpy(*copy, text, n);
    (*copy)[n] = '\0';
    return json_read(*copy, n, LEVELS, j);
}

static void expect(const char *text, size_t n, json_error error, size_t at)
{
    char *copy;
    json j;
    const json_error found = read_bytes(text, n, &copy, &j);
    if (found != error || (error != JSON_OK && j.at != at))
        fail_msg("%s: error %d at %zu, expected %d at %zu", text, (int)found, j.at, (int)error, at);
    if (error != JSON_OK && error != JSON_NO_MEMORY) assert_memory_equal(copy, text, n);
    if (error != JSON_OK) assert_null(j.values);
    json_free(&j);
    free(copy);
}

static void refuse(const char *text, json_error error, size_t at)
{
    expect(text, strlen(text), error, at);
}

static void accept(const char *text)
{
    expect(text, strlen(text), JSON_OK, 0);
}

TEST_CASE(test_syntax)
{
    static const char *const good[] = {
        "null",
        "true",
        "false",
        "0",
        "-0",
        "\"\"",
        "[]",
        "{}",
        " \t\r\n[ ] \t\r\n",
        "{ \"a\" : 1 , \"a\" : 2 }",
        "[[],[[]],{}]",
        "[1,2]",
        "1e5",
        "1E+5",
        "1e-5",
        "1.50",
        "-1.5e300",
        "[1e999]",
        "{\"\":{\"\":{}}}",
        "\"\x7f\"",
    };
    static const struct {
        const char *text;
        size_t at;
    } bad[] = {
        {"", 0},
        {" ", 1},
        {"nul", 0},
        {"True", 0},
        {"NaN", 0},
        {"Infinity", 0},
        {"-Infinity", 1},
        {"'a'", 0},
        {"[", 1},
        {"]", 0},
        {"[1", 2},
        {"[1,]", 3},
        {"[,1]", 1},
        {"[1 2]", 3},
        {"[1}", 2},
        {"{]", 1},
        {"[1,,2]", 3},
        {"{", 1},
        {"{\"a\"", 4},
        {"{\"a\":", 5},
        {"{\"a\":1", 6},
        {"{\"a\":1,}", 7},
        {"{\"a\",1}", 4},
        {"{1:1}", 1},
        {"{,}", 1},
        {"{\"a\":1 \"b\":2}", 7},
        {"{a:1}", 1},
        {"[\"a\":1]", 4},
        {"{\"a\" 1}", 5},
        {"[1/**/]", 2},
        {"-", 1},
        {"+1", 0},
        {".5", 0},
        {"[1.]", 3},
        {"[1.e5]", 3},
        {"[1e]", 3},
        {"[1e+]", 4},
        {"[01]", 2},
        {"[-01]", 3},
        {"[0x10]", 2},
        {"[1_0]", 2},
        {"[truex]", 5},
        {"[1.5.5]", 4},
        {"--1", 1},
        {"[\xef\xbb\xbf]", 1},
        {"\"", 1},
        {"\"a", 2},
        {"\"\\", 1},
        {"\"\\\"", 3},
        {"\"a\nb\"", 2},
        {"\"\t\"", 1},
        {"\"\x1f\"", 1},
        {"\"\\a\"", 1},
        {"\"\\x41\"", 1},
        {"\"\\'\"", 1},
        {"\"\\u\"", 1},
        {"\"\\u12\"", 1},
        {"\"\\u123g\"", 1},
        {"\"\\U0041\"", 1},
        {"\"\\ud800\"", 1},
        {"\"\\ud800x\"", 1},
        {"\"\\ud800\\n\"", 1},
        {"\"\\ud800\\u0041\"", 1},
        {"\"\\ud800\\ud800\"", 1},
        {"\"\\udc00\"", 1},
        {"\"\\udfff\\ud800\"", 1},
        {"\"\\ud83d\\u\"", 1},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) accept(good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) refuse(bad[i].text, JSON_SYNTAX, bad[i].at);
    static const char *const trailing[] = {"{} x", "{}{}", "1 2", "[]]", "01", "truefalse", "\"\"\"\"", "null,"};
    static const size_t ends[] = {3, 2, 2, 2, 1, 4, 2, 4};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) refuse(trailing[i], JSON_TRAILING, ends[i]);
    expect("[\0]", 3, JSON_SYNTAX, 1); /* plain NULs: between values, in a string, after the text */
    expect("\"\0\"", 3, JSON_SYNTAX, 1);
    expect("1\0", 2, JSON_TRAILING, 1);
}

static const char *const everything = "{\"name\":\"a\\u00e9\\ud83d\\ude00\\n\",\"list\":[1,-2.5e3,[],{\"x\":null}],"
                                      "\"\":true,\"n\":false,\"z\":\"\xe2\x82\xac\"} ";

/* Checks that a truncated text is refused at its end or at the truncated value. */
TEST_CASE(test_truncated)
{
    const size_t n = strlen(everything);
    for (size_t end = 0; end < n - 1; end++) {
        char *copy;
        json j;
        if (read_bytes(everything, end, &copy, &j) != JSON_SYNTAX || j.at > end) fail_msg("cut at %zu", end);
        free(copy);
    }
    accept(everything);
}

TEST_CASE(test_values)
{
    char *text;
    json j;
    assert_int_equal(read_bytes(everything, strlen(everything), &text, &j), JSON_OK);
    const json_value *const root = j.values, *v;
    assert_int_equal(j.count, 17);
    assert_int_equal(root->type, JSON_OBJECT);
    assert_int_equal(root->size, j.count);
    assert_int_equal(json_children(root), 5);
    assert_string_equal(json_member(root, "name")->text, "a\xc3\xa9\xf0\x9f\x98\x80\n");
    assert_int_equal(json_member(root, "name")->length, 8);
    v = json_member(root, "list");
    assert_int_equal(v->type, JSON_ARRAY);
    assert_int_equal(json_children(v), 4);
    const json_value *item = v + 1;
    assert_true(json_double(item) == 1);
    item = json_next(item);
    assert_true(json_double(item) == -2500);
    item = json_next(item);
    assert_true(item->type == JSON_ARRAY && json_children(item) == 0 && item->size == 1);
    item = json_next(item);
    assert_int_equal(json_member(item, "x")->type, JSON_NULL);
    assert_ptr_equal(json_next(item), json_next(v));
    assert_int_equal(json_member(root, "")->type, JSON_TRUE);
    assert_int_equal(json_member(root, "n")->type, JSON_FALSE);
    assert_true(json_is(json_member(root, "z"), "\xe2\x82\xac"));
    assert_null(json_member(root, "x")); /* a member of a member */
    assert_null(json_member(root, "nam"));
    assert_null(json_member(v, "x")); /* arrays have no members */
    assert_int_equal(json_children(json_member(root, "n")), 0);
    json_free(&j);
    free(text);
}

/* Names may repeat: the first one is found, and all are kept. */
TEST_CASE(test_repeated)
{
    char text[] = "{\"a\":1,\"\\u0061\":2}";
    json j;
    assert_int_equal(json_read(text, strlen(text), LEVELS, &j), JSON_OK);
    assert_int_equal(json_children(j.values), 2);
    assert_true(json_double(json_member(j.values, "a")) == 1);
    assert_true(json_is(json_next(j.values + 2), "a"));
    json_free(&j);
}

static void check_string(const char *quoted, const char *expected, size_t length)
{
    char *text;
    json j;
    assert_int_equal(read_bytes(quoted, strlen(quoted), &text, &j), JSON_OK);
    assert_int_equal(j.values->length, length);
    assert_memory_equal(j.values->text, expected, length + 1); /* includes a NUL */
    json_free(&j);
    free(text);
}

TEST_CASE(test_strings)
{
    check_string("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8);
    check_string("\"\\u0041\\u00DF\\u6771\\uD83D\\uDE00\\udbff\\udfff\"",
                 "A\xc3\x9f\xe6\x9d\xb1\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf", 14);
    check_string("\"\\u007f\\u0080\\u07ff\\u0800\\uffff\\ud800\\udc00\"",
                 "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf\xf0\x90\x80\x80", 15);
    check_string("\"\xc3\x9f \xf0\x9f\x98\x80\"", "\xc3\x9f \xf0\x9f\x98\x80", 7);
    check_string("\"a\\u0000b\"", "a\0b", 3);
    char text[] = "[\"\\\\u0000\",\"x\\u0000\",\"\\u0000\"]", bad[] = "[\"a\",\"\\n\xc3\x28\",\"\xff\"]";
    json j;
    assert_int_equal(json_read(text, strlen(text), LEVELS, &j), JSON_OK);
    assert_int_equal(j.nul, 13);
    assert_int_equal(j.not_utf8, strlen("[\"\\\\u0000\",\"x\\u0000\",\"\\u0000\"]"));
    json_free(&j);
    assert_int_equal(json_read(bad, sizeof bad - 1, LEVELS, &j), JSON_OK);
    assert_int_equal(j.not_utf8, 8);
    assert_int_equal(j.nul, sizeof bad - 1);
    assert_memory_equal(j.values[2].text, "\n\xc3\x28", 4); /* invalid UTF-8 stays */
    assert_memory_equal(j.values[3].text, "\xff", 2);
    json_free(&j);
}

static json_value number(char *text)
{
    json j;
    assert_int_equal(json_read(text, strlen(text), LEVELS, &j), JSON_OK);
    const json_value v = *j.values;
    json_free(&j);
    return v;
}

static void expect_number(const char *written, double expected, int whole, int64_t integer)
{
    char text[64];
    int64_t value = 77;
    strcpy(text, written);
    const json_value v = number(text);
    if (json_double(&v) != expected) fail_msg("%s is %.17g", written, json_double(&v));
    assert_int_equal(json_integer(&v, &value), whole);
    if (value != (whole ? integer : 77)) fail_msg("%s is %lld", written, (long long)value);
}

TEST_CASE(test_numbers)
{
    expect_number("0", 0, 1, 0);
    expect_number("-0", 0, 1, 0);
    expect_number("9007199254740993", 9007199254740992.0, 1, 9007199254740993);
    expect_number("9223372036854775807", 0x1p63, 1, INT64_MAX);
    expect_number("-9223372036854775808", -0x1p63, 1, INT64_MIN);
    expect_number("9223372036854775808", 0x1p63, 0, 0);
    expect_number("-9223372036854775809", -0x1p63, 0, 0);
    expect_number("123456789012345678901234567890", 123456789012345678901234567890.0, 0, 0);
    expect_number("2.0", 2, 0, 0);
    expect_number("2e3", 2000, 0, 0);
    expect_number("0.1", 0.1, 0, 0);
    expect_number("1.7976931348623157e308", DBL_MAX, 0, 0);
    expect_number("4.9e-324", 0x1p-1074, 0, 0);
    expect_number("1e-999", 0, 0, 0);
    expect_number("-1e999", -INFINITY, 0, 0);
    char text[] = "\"12\"";
    const json_value string = number(text);
    int64_t value;
    assert_int_equal(json_integer(&string, &value), 0);
    assert_true(isnan(json_double(&string)));
}

static void *read_nested(void *unused)
{
    enum { N = 1 << 20 };
    static char text[N + 1];
    json j;
    memset(text, '[', N);
    assert_int_equal(json_read(text, N, JSON_LEVELS_MAX, &j), JSON_DEEP);
    assert_int_equal(j.at, JSON_LEVELS_MAX);
    for (int levels = 1; levels <= JSON_LEVELS_MAX; levels++) {
        memset(text, '[', (size_t)levels);
        memset(text + levels, ']', (size_t)levels);
        assert_int_equal(json_read(text, 2 * (size_t)levels, levels, &j), JSON_OK);
        assert_int_equal(j.count, levels);
        assert_int_equal(j.values[levels - 1].size, 1);
        json_free(&j);
        assert_int_equal(json_read(text, 2 * (size_t)levels, levels - 1, &j), JSON_DEEP);
        assert_int_equal(j.at, levels - 1);
    }
    return unused;
}

/* Nesting takes no stack. Brackets in strings do not nest. */
TEST_CASE(test_nesting)
{
    pthread_attr_t attributes;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, (test_brief ? 1024 : 64) * (size_t)1024), 0);
    assert_int_equal(pthread_create(&thread, &attributes, read_nested, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
    accept("[\"[[[[[[[[[[[[[[[[[[\\\"{{{{{{\"]");
    refuse("[[[[[[[[[[[[[[[[[", JSON_DEEP, LEVELS);
    refuse("[[[[[[[[[[[[[[[{\"a\":{", JSON_DEEP, 20);
}

/* Checks the memory: 16 bytes a value, and no more values than the text has. */
TEST_CASE(test_large)
{
    enum { N = 1 << 20 };
    assert_int_equal(sizeof(json_value), 16);
    char *text = malloc(2 * N + 2);
    json j;
    assert_non_null(text);
    for (size_t i = 0; i < N; i++) memcpy(text + 2 * i, ",1", 3);
    text[0] = '[';
    strcpy(text + 2 * N, "]");
    assert_int_equal(json_read(text, 2 * N + 1, LEVELS, &j), JSON_OK);
    assert_int_equal(j.count, N + 1);
    assert_int_equal(json_children(j.values), N);
    json_free(&j);
    free(text);
    assert_int_equal(json_read((char[]){""}, (size_t)JSON_TEXT_MAX + 1, LEVELS, &j), JSON_NO_MEMORY);
    assert_null(j.values);
}

#ifndef HAS_SANITIZER
TEST_CASE(test_no_memory)
{
    char text[] = "{\"a\":[1,\"\\n\"]}", again[sizeof text];
    json j;
    memcpy(again, text, sizeof text);
    const long before = live;
    for (long n = 0;; n++) {
        until_failure = n;
        const json_error error = json_read(text, sizeof text - 1, LEVELS, &j);
        const int failed = failures > n;
        until_failure = -1;
        assert_int_equal(error, failed ? JSON_NO_MEMORY : JSON_OK);
        if (!failed) break;
        assert_null(j.values);
        assert_memory_equal(text, again, sizeof text);
    }
    assert_int_equal(failures, 1); /* one allocation in all */
    json_free(&j);
    assert_int_equal(live, before);
}
#endif

TEST_CASE(test_quote)
{
    char all[128], quoted[1024];
    for (int c = 1; c < 128; c++) all[c - 1] = (char)c;
    all[127] = '\0';
    static const char *const texts[] = {
        "", "a", "\"\\/", "tab\tline\n\b\f\r", "\xc3\xa9\xf0\x9f\x98\x80", "\x1b[31m\x7f"};
    static const char *const expected[] = {"\"\"",
                                           "\"a\"",
                                           "\"\\\"\\\\/\"",
                                           "\"tab\\tline\\n\\b\\f\\r\"",
                                           "\"\xc3\xa9\xf0\x9f\x98\x80\"",
                                           "\"\\u001b[31m\x7f\""};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        memset(quoted, '#', sizeof quoted);
        const size_t n = json_quote(texts[i], quoted);
        assert_int_equal(n, json_quote(texts[i], NULL));
        assert_int_equal(n, strlen(expected[i]));
        assert_memory_equal(quoted, expected[i], n);
        assert_int_equal(quoted[n], '#');
    }
    quoted[json_quote(all, quoted)] = '\0';
    check_string(quoted, all, 127);
}

/* A byte order mark in front of the text is skipped; Python's numbers are read where they are asked for. */
TEST_CASE(marks_and_pythons_numbers)
{
    static const char text[] = "\xef\xbb\xbf{\"a\": [NaN, Infinity, -Infinity, 1], \"b\": 2}";
    char *copy = strdup(text);
    json j;
    int64_t n;
    assert_int_equal(json_read(copy, sizeof text - 1, LEVELS, &j), JSON_SYNTAX);
    assert_int_equal(j.at, 10);
    assert_int_equal(json_read_python(copy, sizeof text - 1, LEVELS, &j), JSON_OK);
    const json_value *a = json_member(j.values, "a");
    assert_int_equal(json_children(a), 4);
    assert_true(isnan(json_double(a + 1)) && json_double(a + 2) == INFINITY && json_double(a + 3) == -INFINITY);
    for (int i = 1; i < 4; i++) assert_int_equal(json_integer(a + i, &n), 0);
    assert_int_equal(json_integer(a + 4, &n), 1);
    json_free(&j);
    free(copy);
    copy = strdup("\xef\xbb\xbf[1]");
    assert_int_equal(json_read(copy, strlen(copy), LEVELS, &j), JSON_OK);
    json_free(&j);
    free(copy);
}
