/* Files of prompts: every form that is recognised, in its order, and bad prompts that are reported and left out. */
#include "tests/support/command.h"
#include "tests/support/test.h"

#include "tools/generate/prompt_encoder.h"
#include "tools/generate/prompts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parses a copy of text[0..size) as the content of a file of this name. Returns the status and what was printed. The
 * caller frees both. */
static command_result parse_as(const char *name, const char *text, size_t size, prompts *p)
{
    char *copy = malloc(size + 1);
    assert_non_null(copy);
    memcpy(copy, text, size);
    copy[size] = '\0';
    *p = (prompts){0};
    capture_begin();
    command_result r = capture_end(prompts_parse(copy, size, name, p));
    free(copy);
    return r;
}

static command_result parse(const char *text, size_t size, prompts *p)
{
    return parse_as("FILE", text, size, p);
}

/* Checks prompts, which are separated by "|" in `expected`, and the lines on stderr. */
static void expect_as(const char *name, const char *text, size_t size, const char *expected, int skipped,
                      const char *printed)
{
    prompts p;
    command_result r = parse_as(name, text, size, &p);
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

static void expect(const char *text, size_t size, const char *expected, int skipped, const char *printed)
{
    expect_as("FILE", text, size, expected, skipped, printed);
}

#define EXPECT(text, expected)                  expect(text, sizeof text - 1, expected, 0, "")
#define SKIPS(text, expected, skipped, printed) expect(text, sizeof text - 1, expected, skipped, printed)
#define REFUSES(name, text, printed)            expect_as(name, text, sizeof text - 1, "", 0, "mar: " name printed "\n")

TEST_CASE(lines)
{
    EXPECT("a cat\na dog", "a cat|a dog");
    EXPECT("\xef\xbb\xbf"
           "a cat\r\n a  d\xc3\xb6g \r\n\r\n \n",
           "a cat| a  d\xc3\xb6g ");
    EXPECT("[photo] a cat\n{x} b", "[photo] a cat|{x} b");
    EXPECT("Prompts are,text\n", "Prompts are,text");
    EXPECT("a cat\ra dog, a \"bird\"\r", "a cat|a dog, a \"bird\"");
    EXPECT("a cat, caption, dog\na prompt, caption\n", "a cat, caption, dog|a prompt, caption");
    SKIPS("a\r\rb\r\n\r\nc", "a|b|c", 2,
          "mar: FILE, line 2: the prompt is empty: skipped\nmar: FILE, line 4: the prompt is empty: skipped\n");
}

TEST_CASE(tables)
{
    EXPECT("Prompt\tCategory\tNote\nbond\tAbstract\t\na \"B\" c\tArts\tx\n", "bond|a \"B\" c");
    EXPECT("Prompt\r\nA hawk\r\nA corgi, \"x\"\r\n", "A hawk|A corgi, \"x\"");
    EXPECT("Prompt\tC\n\"G I\" painted\tIll\n\"a\tb \"\"c\"\"\"\tx\n\"open\tx\n", "G I painted|a\tb \"c\"|\"open");
}

TEST_CASE(comma_separated)
{
    EXPECT("Prompts,Category\r\na,x\r\n\"b, \"\"c\"\"\",\r\n\r\n\"d\r\ne\",y\r\nf \"g\",z",
           "a|b, \"c\"|d\r\ne|f \"g\"");
    EXPECT("\xef\xbb\xbf"
           "\"id\",\"caption\"\n1,\"x, y\"\n",
           "x, y");
    EXPECT("id,PROMPT\r1,a\r2,b\r", "a|b");
    expect_as("x.csv", "prompt\na\n\n\"b,c\"\n", 16, "a|b,c", 0, "");
    REFUSES("FILE", "id,prompt\n1,\"a\nb\n2,c\n", ", line 2: a quote is not closed");
    REFUSES("FILE", "id,prompt\n\n1,\"c\"d\n", ", line 3: text follows a closed quote");
    REFUSES("FILE", "id,prompt\n1,a, b\n", ", line 2: 3 fields, expected 2 as in the first line");
    REFUSES("FILE", "id,prompt\n1\n", ", line 2: 1 fields, expected 2 as in the first line");
    REFUSES("FILE", "prompt,caption\na,b\n",
            ", line 1: two columns of the table have prompts by their names, expected one");
    SKIPS("id,prompt\n1,\n2,b\n", "b", 1, "mar: FILE, line 2: the prompt is empty: skipped\n");
}

/* The fields of a long line take a time proportional to their number. */
TEST_CASE(many_fields)
{
    enum { FIELDS = 1 << 20 };
    char *text = malloc(FIELDS + 16);
    assert_non_null(text);
    memcpy(text, "Prompt\tn\n", 9);
    memset(text + 9, '\t', FIELDS - 1);
    text[FIELDS + 8] = 'x';
    REFUSES("FILE", "Prompt\tn\na\t\t\n", ", line 2: 3 fields, expected 2 as in the first line");
    expect_as("FILE", text, FIELDS + 9, "", 0, "mar: FILE, line 2: 1048576 fields, expected 2 as in the first line\n");
    free(text);
}

/* The ending of a name decides, and then the content must be that. */
TEST_CASE(endings)
{
    REFUSES("a.CSV", "a cat\na dog\n", ", line 1: a table without a column \"prompt\" or \"caption\"");
    REFUSES("a.tsv", "id\ttext\n1\ta\n", ", line 1: a table without a column \"prompt\" or \"caption\"");
    REFUSES("a.json", "a cat\n", ", line 1: no JSON at byte 1 of the file, expected one whole value");
    REFUSES("a.json", "[\"a\",\n\"b\"\n\"c\"]", ", line 3: no JSON at byte 11 of the file, expected one whole value");
    REFUSES("a.json", "3", ": its JSON is neither an array nor an object");
    REFUSES("a.jsonl", "a cat\n", ", line 1: no JSON at byte 1, expected one whole value a line");
    expect_as("a.jsonl", "\"a cat\"\n\"a dog\"", 15, "a cat|a dog", 0, "");
    REFUSES("FILE", "id,text\n1,\"a, b\"\n",
            ", line 1: begins as a table without a column \"prompt\" or \"caption\"; the name of a file of a prompt a "
            "line ends with .txt");
    REFUSES("FILE", "id\ttext\n1\ta b\n",
            ", line 1: begins as a table without a column \"prompt\" or \"caption\"; the name of a file of a prompt a "
            "line ends with .txt");
    expect_as("a.txt", "cat,dog\nbird,fish", 17, "cat,dog|bird,fish", 0, "");
    EXPECT("cat,dog\nbird\n", "cat,dog|bird");
    EXPECT("a cat,dog\nbird,fish\n", "a cat,dog|bird,fish");
    REFUSES("a.txt",
            "\xff\xfe"
            "a\0",
            ": is UTF-16, expected UTF-8");
    REFUSES("FILE", "\0a\0b", ": is UTF-16, expected UTF-8");
}

/* A table without an ending in its name is one by its first line. Each of these was read as a prompt a line. */
TEST_CASE(tables_by_their_first_line)
{
    EXPECT("prompt\na cat\na dog", "a cat|a dog");
    EXPECT("caption\na cat, big\n\"a \"\"b\"\"\nc\"\n", "a cat, big|a \"b\"\nc");
    EXPECT(" Prompts \na cat", "a cat");
    EXPECT("\"CAPTIONS\"\r\n\r\na\tcat\r\n", "a\tcat");
    EXPECT("\n\nprompt\na cat", "a cat");
    EXPECT("\nid,prompt\n1,a cat", "a cat");
    EXPECT("id, prompt\n1,a cat\n", "a cat");
    EXPECT(",prompt\n0,a cat\n", "a cat");
    EXPECT("\"a cat\"\n\n\"a \\\"dog\\\"\"\n", "a cat|a \"dog\"");
    expect_as("a.txt", "\"a cat\"\n\"a dog\"", 15, "a cat|a dog", 0, "");
    REFUSES("FILE", "prompt\n\"a cat\n", ", line 2: a quote is not closed");
    prompts p;
    command_result r = parse("\"a cat\"\na dog\n", 14, &p);
    assert_int_equal(r.status, 1);
    assert_string_equal(r.err, "mar: FILE, line 2: no JSON at byte 1, expected one whole value a line\n");
    command_result_free(&r);
    prompts_free(&p);
    static char long_header[4096] = "prompt,";
    memset(long_header + 7, 'x', 2000);
    strcat(long_header, "\na cat,1\n");
    expect(long_header, strlen(long_header), "a cat", 0, "");
}

#define SEPARATED(name, text, by)                                                                                      \
    REFUSES(name, text, ", line 1: a table whose fields are separated by '" by "', expected commas or tabs")
#define OTHER(text)                                                                                                    \
    REFUSES(                                                                                                           \
        "FILE", text,                                                                                                  \
        ", line 1: begins as a table without a column \"prompt\" or \"caption\"; the name of a file of a prompt a "    \
        "line ends with .txt")
#define BEGINS(text, kind)                                                                                             \
    REFUSES("FILE", text,                                                                                              \
            ", line 1: begins as " kind                                                                                \
            ", expected a prompt a line, CSV, TSV, JSON or JSONL; the name of a file of a "                            \
            "prompt a line ends with .txt")
#define BINARY(name, text, kind)                                                                                       \
    REFUSES(name, text, ": is " kind ", expected text: a prompt a line, CSV, TSV, JSON or JSONL")

/* What is not read is refused by its name. Each of these was read as a prompt a line. */
TEST_CASE(other_forms_are_named)
{
    SEPARATED("FILE", "id;prompt\n1;a cat\n", ";");
    SEPARATED("semi.txt", "id;prompt\n1;a cat\n", ";");
    SEPARATED("a.csv", "id;Prompt\n1;a cat\n", ";");
    SEPARATED("FILE", "id|prompt\n1|a cat\n", "|");
    SEPARATED("FILE", "| id | prompt |\n|---|---|\n| 1 | a cat |\n", "|");
    OTHER("Text Prompt,Category\na cat,animals\n");
    OTHER("Text Prompt,Category\na cat, black,animals\n");
    OTHER("id,text\n1,a cat\n2,a dog, big\n");
    OTHER("id,text\n1,a cat\n\n2,a dog\n");
    OTHER("id,text\n1,\"a cat\n2,a dog\n");
    OTHER("id,text\n1,a cat\n2\n");
    OTHER("label,text\nx,a cat\n\ny,a dog, big\n");
    OTHER("label,text\nx,\"a\ncat\"\n");
    OTHER("image_id;text\n1;a cat\n");
    OTHER("text_prompt\na cat\n");
    BEGINS("- prompt: a cat\n- prompt: a dog\n", "YAML");
    BEGINS("prompt: a cat\n", "YAML");
    BEGINS("---\n- a cat\n", "YAML");
    BEGINS("<prompts><prompt>a cat</prompt></prompts>", "XML or HTML");
    BEGINS("<?xml version=\"1.0\"?>\n<a/>", "XML or HTML");
    BINARY("FILE", "PAR1\x15\x04 a", "a Parquet file");
    BINARY("a.txt", "PAR1\x15\x04 a", "a Parquet file");
    BINARY("FILE", "\x1f\x8b\x08 a", "a gzip file");
    BINARY("a.csv", "PK\3\4 a", "a zip file");
}

/* Lists of prompts stay text. */
TEST_CASE(text_stays_text)
{
    EXPECT("a cat, a dog\na bird, a fish\n", "a cat, a dog|a bird, a fish");
    EXPECT("cat, dog\nbird, fish\n", "cat, dog|bird, fish");
    EXPECT("Mona Lisa, Oil Painting\nStarry Night, Oil\n", "Mona Lisa, Oil Painting|Starry Night, Oil");
    EXPECT("a cat; a dog | a bird\nx\n", "a cat; a dog | a bird|x");
    EXPECT("a sign \"prompt\", red\n\"Stop\" on a sign\n", "a sign \"prompt\", red|\"Stop\" on a sign");
    EXPECT("\"Stop\" on a sign\n\"Go\"", "\"Stop\" on a sign|\"Go\"");
    EXPECT("a prompt\nthe caption\n", "a prompt|the caption");
    EXPECT("{prompt} in oil\n- a cat\n3 < 4\n", "{prompt} in oil|- a cat|3 < 4");
    EXPECT("cat\ndog\n", "cat|dog");
    EXPECT("a cat\nprompt\nid,prompt\n", "a cat|prompt|id,prompt");
#define TEXT(text, expected) expect_as("a.txt", text, sizeof text - 1, expected, 0, "")
    TEXT("\"Stop\"\na sign\n", "\"Stop\"|a sign");
    TEXT("prompt: a cat\n<b> x\n", "prompt: a cat|<b> x");
    TEXT("<cat-toy> on a table\n", "<cat-toy> on a table");
    TEXT("id,text\n1,a\n", "id,text|1,a");
    TEXT("1girl,solo\n1boy,hat\n", "1girl,solo|1boy,hat");
}

TEST_CASE(json_lines)
{
    EXPECT("{\"prompt\": \"a\", \"n\": [1]}\n\n {\"Prompt\": \"b\\\"\"}\r\n{\"caption\": \"c\"}", "a|b\"|c");
    EXPECT("{\"tag\": 1, \"prompt\": \"a\"}\n", "a");
    SKIPS("{\"prompt\": \" \"}\n{\"prompt\": \"b\n", "", 1,
          "mar: FILE, line 1: the prompt is empty: skipped\n"
          "mar: FILE, line 2: no JSON at byte 14, expected one whole value a line\n");
    REFUSES("FILE", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n", ", line 1: an object without \"prompt\" or \"caption\"");
    REFUSES("FILE", "{\"prompt\": 3}\n{\"prompt\": \"b\"}\n", ", line 1: its prompt is no text");
    REFUSES("FILE", "{\"prompt\": \"a\", \"caption\": \"b\"}",
            ", line 1: two members have prompts by their names, expected one");
    REFUSES("FILE", "[{\"text\": \"a\"}]", ", element 1: an object without \"prompt\" or \"caption\"");
}

static void expect_file(const char *name, int count, const char *first, const char *last)
{
    char path[128];
    prompts p = {0};
    snprintf(path, sizeof path, "tests/command/prompts/%s", name);
    capture_begin();
    command_result r = capture_end(prompts_read(path, &p));
    assert_string_equal(r.err, "");
    assert_int_equal(p.count, count);
    assert_string_equal(p.text[0], first);
    assert_string_equal(p.text[count - 1], last);
    command_result_free(&r);
    prompts_free(&p);
}

static void expect_refused(const char *name, const char *line)
{
    char path[128], all[256];
    prompts p = {0};
    snprintf(path, sizeof path, "tests/command/prompts/%s", name);
    snprintf(all, sizeof all, "mar: %s%s\n", path, line);
    capture_begin();
    command_result r = capture_end(prompts_read(path, &p));
    assert_string_equal(r.err, all);
    assert_int_equal(r.status, 1);
    command_result_free(&r);
    prompts_free(&p);
}

/* Files as the field has them: each was read as a prompt a line. */
TEST_CASE(files_of_the_field)
{
    expect_file("drawbench.csv", 4, "A red colored car.", "A yellow book\r\nand a red vase.");
    expect_file("coco30k.csv", 2, "A cat, and a dog.", "A motorcycle parked in a parking space.");
    expect_file("geneval.jsonl", 2, "a photo of a bench", "a photo of a green cow");
    expect_file("parti.tsv", 2, "bond", "a sign, \"open\"");
    expect_file("lines_cr.txt", 3, "a cat", "a bird");
    expect_refused("utf16.txt", ": is UTF-16, expected UTF-8");
    expect_refused("other_columns.csv", ", line 1: a table without a column \"prompt\" or \"caption\"");
    expect_refused("other_columns", ", line 1: begins as a table without a column \"prompt\" or \"caption\"; the name "
                                    "of a file of a prompt a line ends with .txt");
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
          "mar: FILE, element 2: neither a text nor an object with \"prompt\" or \"caption\": skipped\n"
          "mar: FILE, element 3: byte 2 of the prompt is 0x00, expected UTF-8 text: skipped\n"
          "mar: FILE, element 4: neither a text nor an object with \"prompt\" or \"caption\": skipped\n");
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

/* Cleaned prompts have their own limit. A prompt that is left out later is reported with its place. */
TEST_CASE(places)
{
    static char text[PROMPT_CLEANED_MAX + 32] = "one\n";
    prompts p = {.is_cleaned = 1};
    memset(text + 4, 'x', PROMPT_CLEANED_MAX + 1);
    strcat(text, "\n\ntwo\nthree");
    capture_begin();
    assert_int_equal(prompts_add("zero", &p), 0);
    assert_int_equal(prompts_parse(text, strlen(text), "FILE", &p), 0);
    prompts_skip(&p, 2, "bad");
    prompts_skip(&p, 0, "bad, too");
    command_result r = capture_end(p.count);
    assert_string_equal(r.err, "mar: FILE, line 2: a prompt of 4097 bytes, expected 4096 at most; --clean off takes "
                               "longer ones: skipped\n"
                               "mar: FILE, line 3: the prompt is empty: skipped\n"
                               "mar: FILE, line 4: bad: skipped\n"
                               "mar: --prompt \"zero\": bad, too: skipped\n");
    assert_int_equal(p.count, 2);
    assert_int_equal(p.skipped, 4);
    assert_string_equal(p.text[0], "one");
    assert_string_equal(p.text[1], "three");
    assert_int_equal(p.place[1].number, 5);
    command_result_free(&r);
    prompts_free(&p);
    char coco[] = "{\"annotations\": [{\"image_id\": 1, \"caption\": \"x\"}, {\"image_id\": 1, \"caption\": \"xyz\"}]}";
    assert_int_equal(prompts_parse(coco, sizeof coco - 1, "FILE", &p), 0);
    assert_int_equal(p.place[0].number, 2);
    prompts_free(&p);
}

/* A prompt that cannot be encoded is reported with its place, and the others keep their features. */
TEST_CASE(encoder_leaves_bad_ones_out)
{
    enum { COUNT = 20, BAD = 18, TOKENS = 8 };
    static char text[COUNT * 8 + 8192];
    prompts p = {0}, bad = {0};
    prompt_encoder e;
    captions all;
    mar *m = NULL;
    for (int i = 0, at = 0; i < COUNT; i++) {
        const int n = i == BAD ? PROMPT_CLEANED_MAX + 1 : 1 + i % 3;
        memset(text + at, 'a' + i, (size_t)n);
        text[at + n] = '\n';
        at += n + 1;
    }
    assert_int_equal(mar_open(NULL, &m), MAR_OK);
    assert_int_equal(prompt_encoder_open(&e, m, "demo-t5", NULL, TOKENS, 0, NULL, NULL), 0);
    capture_begin();
    assert_int_equal(prompts_parse(text, strlen(text), "FILE", &p), 0);
    const int status = prompt_encoder_run_all(&e, &p, NULL, &all);
    command_result r = capture_end(status);
    assert_int_equal(r.status, 0);
    assert_string_equal(r.err, "mar: FILE, line 19: a caption of 4097 bytes, expected at most 4096: skipped\n");
    command_result_free(&r);
    assert_true(p.count == COUNT - 1 && p.skipped == 1 && all.count == COUNT - 1);
    for (int i = 0; i < all.count; i++) assert_ptr_equal(all.list[i].prompt, p.text[i]);
    assert_int_equal(prompt_encoder_run(&e, &p.text[BAD], 1), MAR_OK);
    captions one = {.tokens = TOKENS, .dim = e.dim, .list = calloc(1, sizeof *one.list)};
    assert_int_equal(captions_add(&one, 1, e.features, e.mask, &p.text[BAD]), 0);
    assert_true(captions_sum(&one, 0) == captions_sum(&all, BAD));
    captions_free(&one);
    captions_free(&all);
    memset(text, 'a', PROMPT_CLEANED_MAX + 1);
    capture_begin();
    assert_int_equal(prompts_parse(text, PROMPT_CLEANED_MAX + 1, "FILE", &bad), 0);
    r = capture_end(prompt_encoder_run_all(&e, &bad, NULL, &all));
    assert_int_equal(r.status, 1);
    assert_true(strcmp(strstr(r.err, ": skipped\n"), ": skipped\n") == 0);
    command_result_free(&r);
    prompts_free(&p);
    prompts_free(&bad);
    prompt_encoder_close(&e);
    mar_close(m);
}

/* A file of bad prompts alone is an error only if there are no others. */
TEST_CASE(bad_file_beside_others)
{
    char text[] = "\xff\n", empty[] = "\n";
    prompts p = {0};
    capture_begin();
    assert_int_equal(prompts_parse(text, 2, "FILE", &p), 1);
    assert_int_equal(prompts_add("one", &p), 0);
    assert_int_equal(prompts_parse(text, 2, "FILE", &p), 0);
    assert_int_equal(prompts_parse(empty, 1, "FILE", &p), 1);
    command_result r = capture_end(0);
    command_result_free(&r);
    assert_int_equal(p.count, 1);
    prompts_free(&p);
}

TEST_CASE(nothing_usable)
{
    static const char none[] =
        "mar: FILE: no prompt in it, expected one a line, or CSV, TSV, JSON or JSONL with \"prompt\" or \"caption\"\n";
    SKIPS("", "", 0, none);
    SKIPS("\xef\xbb\xbf\n \r\n", "", 0, none);
    SKIPS("Prompt\tCategory\n", "", 0, none);
    SKIPS("[]", "", 0, none);
    SKIPS("{\"images\": []}", "", 0, "mar: FILE, line 1: an object without \"prompt\" or \"caption\"\n");
    SKIPS("{\"annotations\": [", "", 0,
          "mar: FILE, line 1: no JSON at byte 18 of the file, expected one whole value\n");
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
    assert_has(r.err, "mar: --prompt \"\\xc3\": byte 1 of the prompt is 0xc3, expected UTF-8 text: skipped\n");
    assert_has(r.err, "/nowhere/prompts.txt");
    command_result_free(&r);
    prompts_free(&p);
    assert_true(!p.text && p.count == 0 && p.skipped == 0);
}
