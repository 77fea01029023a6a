/* Files of prompts: every form that is recognised, in its order, and bad prompts that are reported and left out. */
#include "tests/support/command.h"
#include "tests/support/test.h"

#include "tools/generate/prompts.h"

#include <stdlib.h>
#include <string.h>

/* Parses a copy of text[0..size). Returns the status and what was printed. The caller frees both. */
static command_result parse(const char *text, size_t size, prompts *p)
{
    char *copy = malloc(size + 1);
    assert_non_null(copy);
    memcpy(copy, text, size);
    copy[size] = '\0';
    *p = (prompts){0};
    capture_begin();
    command_result r = capture_end(prompts_parse(copy, size, "FILE", p));
    free(copy);
    return r;
}

/* Checks prompts, which are separated by "|" in `expected`, and the lines on stderr. */
static void expect(const char *text, size_t size, const char *expected, int skipped, const char *printed)
{
    prompts p;
    command_result r = parse(text, size, &p);
    char all[4096] = "";
    for (int i = 0; i < p.count; i++) {
        strcat(all, i ? "|" : "");
        strcat(all, p.text[i]);
    }
    assert_string_equal(all, expected);
    assert_string_equal(r.err, printed);
    assert_int_equal(p.skipped, skipped);
    assert_int_equal(r.status, p.count == 0);
    command_result_free(&r);
    prompts_free(&p);
}

#define EXPECT(text, expected)                  expect(text, sizeof text - 1, expected, 0, "")
#define SKIPS(text, expected, skipped, printed) expect(text, sizeof text - 1, expected, skipped, printed)

TEST_CASE(lines)
{
    EXPECT("a cat\na dog", "a cat|a dog");
    EXPECT("\xef\xbb\xbf"
           "a cat\r\n a  d\xc3\xb6g \r\n\r\n \n",
           "a cat| a  d\xc3\xb6g ");
    EXPECT("[photo] a cat\n{x} b", "[photo] a cat|{x} b");
    EXPECT("Prompts\tare text\n", "Prompts\tare text");
}

TEST_CASE(tables)
{
    EXPECT("Prompt\tCategory\tNote\nbond\tAbstract\t\na \"B\" c\tArts\tx\n", "bond|a \"B\" c");
    EXPECT("Prompt\r\nA hawk\r\nA corgi, \"x\"\r\n", "A hawk|A corgi, \"x\"");
    EXPECT("Prompt\tC\n\"G I\" painted\tIll\n\"a\tb \"\"c\"\"\"\tx\n\"open\tx\n", "G I painted|a\tb \"c\"|\"open");
}

TEST_CASE(coco)
{
    /* The images in the order of their first annotation; the longest caption of each, in characters, first of equals.
     */
    EXPECT("{\"info\": {}, \"annotations\": ["
           "{\"image_id\": 9, \"id\": 1, \"caption\": \"nine\"}, {\"image_id\": 2, \"id\": 2, \"caption\": \"two\"},"
           "{\"image_id\": 2, \"id\": 3, \"caption\": \"deux \"}, {\"image_id\": 5, \"id\": 4, \"caption\": "
           "\"\\u00e9\\u00e9\\u00e9\"},"
           "{\"image_id\": 9, \"id\": 5, \"caption\": \"neuf\"}, {\"image_id\": 5, \"id\": 6, \"caption\": \"five\"}]}",
           "nine|deux |five");
    SKIPS("{\"annotations\": [{\"image_id\": 1}, {\"caption\": \"x\"}, {\"image_id\": 1, \"caption\": \" \"}, "
          "{\"image_id\": 1, \"caption\": \"ok\"}]}",
          "ok", 3,
          "mar: FILE, annotation 1: no text \"caption\": skipped\n"
          "mar: FILE, annotation 2: no whole number \"image_id\": skipped\n"
          "mar: FILE, annotation 3: the prompt is empty: skipped\n");
}

TEST_CASE(arrays)
{
    EXPECT(" [\n \"a cat\", \"a \\\"dog\\\"\\n\"]\n", "a cat|a \"dog\"\n");
    EXPECT("[{\"caption\": \"x\", \"image_id\": 3}]", "x");
    SKIPS("[\"a\", 3, \"b\\u0000c\", [\"d\"], \"e\"]", "a|e", 3,
          "mar: FILE, element 2: neither a text nor an object with \"caption\": skipped\n"
          "mar: FILE, element 3: byte 2 of the prompt is 0x00, expected UTF-8 text: skipped\n"
          "mar: FILE, element 4: neither a text nor an object with \"caption\": skipped\n");
}

TEST_CASE(bad_prompts)
{
    SKIPS("a\n\nb\xff"
          "c\nd\0e\n\xed\xa0\x80\nf",
          "a|f", 4,
          "mar: FILE, line 2: the prompt is empty: skipped\n"
          "mar: FILE, line 3: byte 2 of the prompt is 0xff, expected UTF-8 text: skipped\n"
          "mar: FILE, line 4: byte 2 of the prompt is 0x00, expected UTF-8 text: skipped\n"
          "mar: FILE, line 5: byte 1 of the prompt is 0xed, expected UTF-8 text: skipped\n");
    static char long_text[PROMPT_BYTES_MAX + 4];
    memset(long_text, 'x', PROMPT_BYTES_MAX + 1);
    memcpy(long_text + PROMPT_BYTES_MAX + 1, "\ny", 2);
    expect(long_text, PROMPT_BYTES_MAX + 3, "y", 1,
           "mar: FILE, line 1: a prompt of 65537 bytes, expected 65536 at most: skipped\n");
    prompts p;
    command_result r = parse(long_text + 1, PROMPT_BYTES_MAX + 2, &p);
    assert_int_equal(p.count, 2);
    assert_int_equal(strlen(p.text[0]), PROMPT_BYTES_MAX);
    command_result_free(&r);
    prompts_free(&p);
}

TEST_CASE(nothing_usable)
{
    static const char none[] =
        "mar: FILE: no prompt in it, expected one a line, COCO's captions, or a table with the heading Prompt\n";
    SKIPS("", "", 0, none);
    SKIPS("\xef\xbb\xbf\n \r\n", "", 0, none);
    SKIPS("Prompt\tCategory\n", "", 0, none);
    SKIPS("[]", "", 0, none);
    SKIPS("{\"images\": []}", "", 0,
          "mar: FILE: JSON without \"annotations\", expected COCO's captions or an array of texts\n");
    SKIPS("{\"annotations\": [", "", 0, "mar: FILE: begins as JSON, which ends at byte 17, expected one whole value\n");
}

TEST_CASE(options_and_files)
{
    prompts p = {0};
    capture_begin();
    assert_int_equal(prompts_add("one", &p), 0);
    assert_int_equal(prompts_add("\xc3", &p), 0);
    const int failed = prompts_read("/nowhere/prompts.txt", &p);
    command_result r = capture_end(failed);
    assert_int_equal(r.status, 1);
    assert_int_equal(p.count, 1);
    assert_int_equal(p.skipped, 1);
    assert_has(r.err, "mar: --prompt: byte 1 of the prompt is 0xc3, expected UTF-8 text: skipped\n");
    assert_has(r.err, "/nowhere/prompts.txt");
    command_result_free(&r);
    prompts_free(&p);
    assert_true(!p.text && p.count == 0 && p.skipped == 0);
}
