/* Files of tokenizers that would take minutes or gigabytes: the sum of what they cause is refused, in a line that names
 * the file and its part. */
#include "tests/support/test.h"

#include "text/bpe.h"
#include "text/bpe_encode.h"
#include "text/buffer.h"
#include "text/tiktoken.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(text_buffer *b, const char *text)
{
    text_put(b, text, strlen(text));
}

static void put_times(text_buffer *b, int times, const char *text)
{
    for (int i = 0; i < times; i++) put(b, text);
}

#define NFC            "{\"type\":\"NFC\"}"
#define REPLACE(p, to) "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" p "\"},\"content\":\"" to "\"}"
#define BYTES          "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define AB             "{\"a\":0,\"b\":1,\"ab\":2}"

/* A tokenizer.json in parts. */
typedef struct {
    const char *step; /* a normalizer or pre-tokenizer, `times` of them */
    int times, is_split;
    const char *part; /* of an added token's text, `parts` of it before its number, in `tokens` tokens */
    int parts, tokens;
    const char *model; /* members of the model; NULL: of the three pieces AB */
} recipe;

/* Writes the file. The caller frees it. */
static text_buffer make(const recipe *r)
{
    text_buffer b = {0};
    put(&b, r->is_split ? "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
                        : "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    for (int i = 0; i < r->times; i++) {
        put(&b, i ? "," : "");
        put(&b, r->step);
    }
    put(&b, "]},\"added_tokens\":[");
    for (int i = 0; i < r->tokens; i++) {
        char text[160];
        snprintf(text, sizeof text, "%s{\"id\":%d,\"content\":\"", i ? "," : "", 3 + i);
        put(&b, text);
        put_times(&b, r->parts, r->part);
        snprintf(text, sizeof text,
                 "%d\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":true,\"special\":true}",
                 i);
        put(&b, text);
    }
    put(&b, "],\"model\":{\"type\":\"BPE\",");
    put(&b, r->model ? r->model : "\"vocab\":" AB ",\"merges\":[[\"a\",\"b\"]]");
    put(&b, "}}");
    assert_false(b.failed);
    return b;
}

/* Expects a line that begins and ends with these words. */
static void expect_line(const char *line, const char *begin, const char *end)
{
    const size_t n = strlen(line), size = strlen(end);
    if (strncmp(line, begin, strlen(begin)) != 0 || n < size || strcmp(line + n - size, end) != 0)
        fail_msg("\"%s\", expected \"%s\" ... \"%s\"", line, begin, end);
}

static void refuse(const recipe *r, const char *begin, const char *end)
{
    text_buffer file = make(r);
    text_bpe *b;
    mar_err err = {0};
    assert_int_equal(text_bpe_read(file.data, file.length, "some.json", &b, &err), MAR_EFORMAT);
    assert_null(b);
    expect_line(err.text, begin, end);
    text_buffer_free(&file);
}

TEST_CASE(patterns_that_compile_to_64_kb)
{
    refuse(&(recipe){.step = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?:a|a){500}\"},\"behavior\":\"Isolated\","
                             "\"invert\":false}",
                     .times = 3000,
                     .is_split = 1},
           "some.json: pre_tokenizer: ", "the compiled patterns: grows by more than the limit of 33554432 bytes");
    refuse(&(recipe){.step = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(?:a|a){500}\"},\"content\":\"\"}",
                     .times = 3000},
           "some.json: normalizer: ", "the compiled patterns: grows by more than the limit of 33554432 bytes");
}

TEST_CASE(steps_times_added_tokens)
{
    refuse(&(recipe){.step = NFC, .times = 8000, .part = "ab", .parts = 40, .tokens = 1000},
           "some.json: added_tokens: \"ab", "\": the tokenizer: normalizer: exceeds the limit of 67108864 steps");
}

/* A pattern of a String counts steps, too, though it has no parts. */
TEST_CASE(strings_over_long_tokens)
{
    refuse(&(recipe){.step = REPLACE("aab", ""), .times = 4000, .part = "a", .parts = 4000, .tokens = 60},
           "some.json: added_tokens: \"aaa", "\": the tokenizer: normalizer: exceeds the limit of 67108864 steps");
}

/* Each token grows to 200 KB, all to 400 MB. */
TEST_CASE(tokens_that_grow)
{
    refuse(&(recipe){.step = "{\"type\":\"Prepend\",\"prepend\":\"0123456789012345678901234567890123456789\"}",
                     .times = 1,
                     .part = "a",
                     .parts = 1,
                     .tokens = 50000},
           "some.json: added_tokens: \"a", "grows by more than the limit of 33554432 bytes");
    refuse(&(recipe){.step = REPLACE("a", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
                     .times = 2,
                     .part = "a",
                     .parts = 80,
                     .tokens = 2000},
           "some.json: added_tokens: \"aaa", "grows by more than the limit of 33554432 bytes");
}

/* Encodes text[n], which the tokenizer must refuse with this line. */
static void refuse_text(const recipe *r, const char *text, size_t n, const char *line)
{
    text_buffer file = make(r);
    text_bpe *b;
    mar_err err = {0};
    text_ids out = {0};
    if (text_bpe_read(file.data, file.length, "some.json", &b, &err) != MAR_OK) fail_msg("%s", err.text);
    assert_int_equal(text_bpe_encode(b, text, n, &out, &err), MAR_EARG);
    assert_string_equal(err.text, line);
    text_bpe_free(b);
    text_buffer_free(&file);
}

TEST_CASE(texts_that_multiply)
{
    enum { SIZE = 1 << 16 };
    static char text[SIZE], model[1 << 17];
    for (int i = 0; i < SIZE; i++) text[i] = i % 2 ? ' ' : 'a';
    /* a space becomes two bytes, and each of them two more */
    refuse_text(&(recipe){.step = BYTES, .times = 40, .is_split = 1}, text, SIZE,
                "the tokenizer: pre_tokenizer: grows by more than the limit of 5242880 bytes");
    refuse_text(&(recipe){.step = NFC, .times = 8000}, text, SIZE,
                "the tokenizer: normalizer: exceeds the limit of 25165824 steps");
    /* each part between two added tokens grows to a megabyte */
    refuse_text(&(recipe){.step = REPLACE(" ", "                                                  "),
                          .times = 3,
                          .part = "a",
                          .parts = 1,
                          .tokens = 1},
                text, SIZE, "the tokenizer: normalizer: grows by more than the limit of 5242880 bytes");
    /* each word ends with a suffix of 100 KB */
    strcpy(model, "\"byte_fallback\":true,\"end_of_word_suffix\":\"");
    memset(model + strlen(model), 'a', 100000);
    strcat(model, "\",\"vocab\":" AB ",\"merges\":[]");
    refuse_text(&(recipe){.step = "{\"type\":\"WhitespaceSplit\"}", .times = 1, .is_split = 1, .model = model}, text,
                SIZE, "the tokenizer: model: exceeds the limit of 25165824 steps");
}

/* Pieces of emu3.tiktoken whose starts and rests are pieces, too: their merges took the square of the file. */
TEST_CASE(merges_of_long_pieces)
{
    enum { FAMILIES = 400, LONGEST = 240 };
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    text_buffer file = {0};
    char line[512];
    int count = 0;
    for (; count < 256; count++) {
        snprintf(line, sizeof line, "%c%c== %d\n", digits[count >> 2], digits[(count & 3) << 4], count);
        put(&file, line);
    }
    for (int family = -1; family < FAMILIES; family++)
        for (int thirds = 1; thirds <= LONGEST / 3; thirds++) {
            char *at = line;
            if (family >= 0) at += sprintf(at, "%c%cEB", 'c' + family / 60 % 8, digits[family % 60]);
            for (int i = 0; i < thirds; i++) at += sprintf(at, "YWFh");
            sprintf(at, " %d\n", count++);
            put(&file, line);
        }
    text_bpe *b;
    mar_err err = {0};
    assert_false(file.failed);
    assert_int_equal(text_tiktoken_read(file.data, file.length, "r.tiktoken", "", 0, "t.txt", &b, &err), MAR_EFORMAT);
    assert_string_equal(err.text, "r.tiktoken: the merges of its pieces: exceeds the limit of 67108864 steps");
    text_buffer_free(&file);
}
