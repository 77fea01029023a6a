/* Byte-pair encoding: the ids of 10 000 lines with tokenizers of several kinds, long words, and files that are
 * refused. */
#include "tests/support/archive.h"
#include "tests/support/brief.h"
#include "tests/support/test.h"
#include "tests/support/text_lines.h"

#include "text/bpe.h"
#include "text/bpe_encode.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA "tests/golden/data/text/"

enum { STEP = test_brief ? 20 : 1 };

TEST_CASE(test_ids_of_gpt2)
{
    text_compare_lines(DATA "bpe", STEP);
}

TEST_CASE(test_ids_of_other_splits)
{
    text_compare_lines(DATA "bpe_mixed", STEP);
}

TEST_CASE(test_ids_of_words)
{
    text_compare_lines(DATA "bpe_words", STEP);
}

TEST_CASE(test_ids_with_bytes)
{
    text_compare_lines(DATA "bpe_fallback", STEP);
}

TEST_CASE(test_ids_of_clip)
{
    text_compare_lines(DATA "clip", STEP);
}

TEST_CASE(test_ids_of_clip_from_two_files)
{
    text_compare_lines(DATA "clip_files", STEP);
}

TEST_CASE(test_ids_of_qwen2)
{
    text_compare_lines(DATA "qwen2", STEP);
}

TEST_CASE(test_ids_of_qwen2_from_three_files)
{
    text_tokenizer *t;
    mar_err err = {0};
    if (text_tokenizer_open(DATA "qwen2_files", &t, &err) != MAR_OK) fail_msg("%s", err.text);
    text_compare_lines_with(t, DATA "qwen2", 5 * STEP);
    assert_int_equal(text_tokenizer_find(t, "<|im_start|>"), 501);
    assert_int_equal(text_tokenizer_size(t), 522);
    text_tokenizer_free(t);
}

TEST_CASE(test_pieces_are_found)
{
    text_tokenizer *t;
    mar_err err = {0};
    int ids[8], count;
    assert_int_equal(text_tokenizer_open(DATA "clip_files", &t, &err), MAR_OK);
    assert_int_equal(text_tokenizer_find(t, "<|startoftext|>"), 0);
    assert_int_equal(text_tokenizer_find(t, "<|endoftext|>"), 1);
    assert_int_equal(text_tokenizer_find(t, "a</w>") >= 0, 1);
    assert_int_equal(text_tokenizer_find(t, "no such piece"), -1);
    assert_int_equal(text_tokenizer_find(t, ""), -1);
    assert_int_equal(text_tokenize(t, "A<|endoftext|>", 14, ids, 8, &count, &err), MAR_OK);
    assert_int_equal(count, 2);
    assert_int_equal(ids[0], text_tokenizer_find(t, "a</w>"));
    assert_int_equal(ids[1], 1);
    text_tokenizer_free(t);
}

/* A word of a megabyte takes n log n steps. */
TEST_CASE(test_long_word)
{
    enum { SIZE = 1 << 20 };
    text_tokenizer *t;
    mar_err err = {0};
    int count;
    char *text = malloc(SIZE);
    assert_non_null(text);
    for (int i = 0; i < SIZE; i++) text[i] = "snow"[i % 4];
    assert_int_equal(text_tokenizer_open(DATA "bpe", &t, &err), MAR_OK);
    assert_int_equal(text_tokenize(t, text, SIZE, NULL, 0, &count, &err), MAR_OK);
    assert_in_range(count, SIZE / 16, SIZE);
    text_tokenizer_free(t);
    free(text);
}

/* The square of the marks in a row would be slow to sort. */
TEST_CASE(test_marks_in_a_row)
{
    enum { MARKS = 3000 };
    text_tokenizer *t;
    mar_err err = {0};
    int count;
    char text[2 * MARKS];
    for (int i = 0; i < MARKS; i++) memcpy(text + 2 * i, i % 2 ? "\xcc\x80" : "\xcc\xa7", 2);
    assert_int_equal(text_tokenizer_open(DATA "clip", &t, &err), MAR_OK);
    assert_int_equal(text_tokenize(t, text, sizeof text, NULL, 0, &count, &err), MAR_EARG);
    assert_non_null(strstr(err.text, "3000 combining marks in a row"));
    assert_int_equal(text_tokenize(t, text, sizeof text / 2, NULL, 0, &count, &err), MAR_OK);
    text_tokenizer_free(t);
}

/* --- what is refused --------------------------------------------------------------------------------------------- */

#define MODEL(vocab, merges) "\"model\":{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":" merges "}"
#define AB                   "{\"a\":0,\"b\":1,\"ab\":2}"
#define GOOD                 MODEL(AB, "[[\"a\",\"b\"]]")
#define TOKEN(id, text, more)                                                                                          \
    "{\"id\":" id ",\"content\":\"" text "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false," more            \
    "\"special\":true}"

static void refuse(const char *text, const char *part)
{
    text_bpe *b;
    mar_err err = {0};
    const mar_status status = text_bpe_read(text, strlen(text), "some.json", &b, &err);
    if (status != MAR_EFORMAT || b) fail_msg("%s: status %d", text, (int)status);
    if (strncmp(err.text, "some.json: ", 11) != 0 || !strstr(err.text, part))
        fail_msg("%s: \"%s\", expected \"%s\"", text, err.text, part);
}

TEST_CASE(test_models_that_are_refused)
{
    refuse("", "no JSON");
    refuse("[]", "is no object");
    refuse("{\"a\":\"\xff\"}", "is not UTF-8");
    refuse("{}", "no \"model\"");
    refuse("{\"model\":[]}", "model: is no object");
    refuse("{\"model\":{\"type\":\"Unigram\",\"vocab\":{},\"merges\":[]}}", "type \"Unigram\" is not supported");
    refuse("{\"model\":{\"type\":\"BPE\",\"shape\":1}}", "model: \"shape\" is not supported");
    refuse("{\"model\":{\"type\":\"BPE\",\"type\":\"BPE\"}}", "\"type\" is there twice");
    refuse("{\"model\":{\"dropout\":0.1,\"vocab\":" AB ",\"merges\":[]}}", "\"dropout\" is not supported");
    refuse("{\"model\":{\"continuing_subword_prefix\":\"##\",\"vocab\":" AB ",\"merges\":[]}}",
           "\"continuing_subword_prefix\" is not supported");
    refuse("{\"model\":{\"unk_token\":\"x\",\"vocab\":" AB ",\"merges\":[]}}", "\"unk_token\" is no piece");
    refuse("{\"model\":{\"fuse_unk\":1,\"vocab\":" AB ",\"merges\":[]}}", "\"fuse_unk\" is no boolean");
    refuse("{\"version\":\"2.0\"," GOOD "}", "\"version\" is not");
    refuse("{\"vocabulary\":1," GOOD "}", "\"vocabulary\" is not supported");
}

TEST_CASE(test_vocabularies_that_are_refused)
{
    refuse("{" MODEL("[]", "[]") "}", "vocab: is no object");
    refuse("{" MODEL("{}", "[]") "}", "vocab: no pieces");
    refuse("{" MODEL("{\"a\":\"0\"}", "[]") "}", "the id of \"a\"");
    refuse("{" MODEL("{\"a\":-1}", "[]") "}", "the id of \"a\"");
    refuse("{" MODEL("{\"a\":0.5}", "[]") "}", "the id of \"a\"");
    refuse("{" MODEL("{\"a\":99999999999}", "[]") "}", "the id of \"a\"");
    refuse("{" MODEL("{\"a\":0,\"b\":2}", "[]") "}", "\"b\" has id 2 of 2 pieces, expected ids without holes");
    refuse("{" MODEL("{\"a\":0,\"b\":0}", "[]") "}", "\"b\" has id 0, as another piece");
    refuse("{" MODEL("{\"a\":0,\"a\":1}", "[]") "}", "\"a\" is there twice");
    refuse("{" MODEL("{\"\":0}", "[]") "}", "piece 0 has 0 bytes");
    refuse("{" MODEL(AB, "{}") "}", "merges: is no list");
    refuse("{" MODEL(AB, "[1]") "}", "merge 0: is no pair of strings");
    refuse("{" MODEL(AB, "[[\"a\"]]") "}", "merge 0: is no pair of strings");
    refuse("{" MODEL(AB, "[\"ab\"]") "}", "merge 0: \"ab\", expected two pieces");
    refuse("{" MODEL(AB, "[\"a b c\"]") "}", "expected two pieces");
    refuse("{" MODEL(AB, "[[\"a\",\"b\"],[\"b\",\"a\"]]") "}", "merge 1: \"b\", \"a\" or both together are not");
    refuse("{" MODEL(AB, "[[\"ab\",\"ab\"]]") "}", "merge 0: \"ab\", \"ab\"");
    refuse("{" MODEL(AB, "[[\"\",\"a\"]]") "}", "merge 0: \"\", \"a\"");
}

TEST_CASE(test_added_tokens_that_are_refused)
{
    refuse("{\"added_tokens\":{}," GOOD "}", "added_tokens: is no list");
    refuse("{\"added_tokens\":[1]," GOOD "}", "added_tokens: is no object");
    refuse("{\"added_tokens\":[" TOKEN("3", "x", "") "]," GOOD "}", "\"normalized\" is no boolean");
    refuse("{\"added_tokens\":[" TOKEN("4", "x", "\"normalized\":true,") "]," GOOD "}", "\"x\" has id 4, expected 3");
    refuse("{\"added_tokens\":[" TOKEN("3", "ab", "\"normalized\":true,") "]," GOOD "}", "\"ab\" has id 3, expected 2");
    refuse("{\"added_tokens\":[" TOKEN("3", "", "\"normalized\":true,") "]," GOOD "}", "token 3 has 0 bytes");
    refuse("{\"added_tokens\":[" TOKEN("2", "ab", "\"normalized\":true,") "," TOKEN(
               "2", "ab", "\"normalized\":true,") "]," GOOD "}",
           "\"ab\" is there twice");
}

TEST_CASE(test_steps_that_are_refused)
{
    static const char *const steps[][2] = {
        {"\"normalizer\":{\"type\":\"Precompiled\"}", "normalizer: \"Precompiled\" is not supported"},
        {"\"normalizer\":{\"type\":\"NFC\",\"form\":1}", "normalizer: \"form\" is not supported"},
        {"\"normalizer\":[1]", "normalizer: is no object"},
        {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[1]}", "normalizer: is no object"},
        {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":{}}", "\"normalizers\" is no list"},
        {"\"normalizer\":{\"type\":\"Replace\",\"content\":\"\",\"pattern\":\"a\"}", "neither a String nor a Regex"},
        {"\"normalizer\":{\"type\":\"Replace\",\"content\":\"\",\"pattern\":{\"Regex\":\"(\"}}", "missing closing"},
        {"\"normalizer\":{\"type\":\"Replace\",\"content\":\"\",\"pattern\":{\"Regex\":\"\\\\h\"}}",
         "is not supported"},
        {"\"normalizer\":{\"type\":\"Replace\",\"content\":\"\",\"pattern\":{\"Regex\":\"(?R)\"}}", "is not supported"},
        {"\"normalizer\":{\"type\":\"Replace\",\"content\":\"\",\"pattern\":{\"Regex\":\"(*F)\"}}", "is not supported"},
        {"\"normalizer\":{\"type\":\"Replace\",\"content\":\"\",\"pattern\":{\"Regex\":\"a(?i)b|c\"}}",
         "\"(?i)\" at 1 is not supported"},
        {"\"normalizer\":{\"type\":\"Replace\",\"content\":\"\",\"pattern\":{\"Regex\":\"[a[b]]\"}}",
         "is not supported"},
        {"\"pre_tokenizer\":{\"type\":\"Metaspace\"}", "pre_tokenizer: \"Metaspace\" is not supported"},
        {"\"pre_tokenizer\":{\"type\":\"ByteLevel\"}", "\"add_prefix_space\" is no boolean"},
        {"\"pre_tokenizer\":{\"type\":\"Punctuation\",\"behavior\":\"Random\"}", "behavior \"Random\""},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char text[512];
        snprintf(text, sizeof text, "{%s,%s}", steps[i][0], GOOD);
        refuse(text, steps[i][1]);
    }
}

static text_bpe *read_good(const char *text)
{
    text_bpe *b;
    mar_err err = {0};
    if (text_bpe_read(text, strlen(text), "some.json", &b, &err) != MAR_OK) fail_msg("%s: %s", text, err.text);
    return b;
}

/* Patterns that take the square of a text's length, or more, end with a line. */
TEST_CASE(test_slow_patterns)
{
    enum { SIZE = 1 << 16 };
    static const char *const patterns[] = {"(?:a+)+$",        "a*a*a*$",          "[a-b]*[a-c]+[d-e]",
                                           "(?=a++)a++[c-d]", "(?:a|a){30}[c-d]", "a{30000}[c-d]"};
    char *words = malloc(SIZE);
    assert_non_null(words);
    memset(words, 'a', SIZE);
    words[SIZE - 1] = 'b';
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},"
                 "\"behavior\":\"Isolated\",\"invert\":false}," GOOD "}",
                 patterns[i]);
        text_bpe *b = read_good(text);
        mar_err err = {0};
        text_ids out = {0};
        if (text_bpe_encode(b, words, SIZE, &out, &err) != MAR_EARG) fail_msg("%s: ended", patterns[i]);
        assert_non_null(strstr(err.text, "limit of"));
        text_bpe_free(b);
    }
    free(words);
}

/* Replacements that multiply a text end with a line, also in added tokens. */
TEST_CASE(test_replacements_that_multiply)
{
    enum { TIMES = 10000 };
    static const char step[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"%s\"}",
                      whole[] = "{%s\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[%s,%s]}," GOOD "}",
                      token[] = "\"added_tokens\":[" TOKEN("3", "aaa", "\"normalized\":true,") "],";
    char *many = calloc(1, TIMES + 1), *replace = malloc(TIMES + 100), *text = malloc(2 * TIMES + 1000);
    assert_true(many && replace && text);
    memset(many, 'a', TIMES);
    assert_true(snprintf(replace, TIMES + 100, step, many) > TIMES);
    assert_true(snprintf(text, 2 * TIMES + 1000, whole, "", replace, replace) > TIMES);
    text_bpe *b = read_good(text);
    mar_err err = {0};
    text_ids out = {0};
    assert_int_equal(text_bpe_encode(b, "a", 1, &out, &err), MAR_EARG);
    assert_string_equal(err.text, "the tokenizer: normalizer: grows by more than the limit of 1048640 bytes");
    text_bpe_free(b);
    assert_true(snprintf(text, 2 * TIMES + 1000, whole, token, replace, replace) > TIMES);
    refuse(text, "added_tokens: \"aaa\": the tokenizer: normalizer: grows by more than the limit of 33554432 bytes");
    free(many);
    free(replace);
    free(text);
}

static void expect_ids(const char *steps, const char *text, const int *ids, int count)
{
    static const char vocab[] =
        MODEL("{\"x\":0,\"y\":1,\"1\":2,\"<\":3,\"a\":4,\"xy\":5,\"xx\":6,\"xxy\":7}", "[\"x y\",\"x x\",\"xx y\"]");
    char json[1024];
    snprintf(json, sizeof json, "{%s,%s}", steps, vocab);
    text_bpe *b = read_good(json);
    mar_err err = {0};
    int found[16];
    text_ids out = {.ids = found, .max = 16};
    assert_int_equal(text_bpe_encode(b, text, strlen(text), &out, &err), MAR_OK);
    assert_int_equal(out.count, count);
    for (int i = 0; i < count; i++) assert_int_equal(found[i], ids[i]);
    text_bpe_free(b);
}

/* An empty match at the end of another is skipped. The ids are the `tokenizers` library's. */
TEST_CASE(test_empty_matches)
{
    static const int replaced[] = {0, 3, 5, 0, 2, 5, 0}, previous[] = {4, 0, 5, 5, 4}, next[] = {4, 6, 1, 0, 1, 4};
    static const char split[] = "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x*\"},"
                                "\"behavior\":\"MergedWith%s\",\"invert\":true}";
    char step[256];
    expect_ids("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a*\"},\"content\":\"x\"}", "<y1yaa",
               replaced, 7);
    snprintf(step, sizeof step, split, "Previous");
    expect_ids(step, "axxyxya", previous, 5);
    snprintf(step, sizeof step, split, "Next");
    expect_ids(step, "axxyxya", next, 6);
}

static void refuse_files(const char *vocab, const char *merges, const char *config, const char *part)
{
    text_bpe *b;
    mar_err err = {0};
    const text_file files[] = {{vocab, strlen(vocab), "vocab.json"},
                               {merges, strlen(merges), "merges.txt"},
                               {config, config ? strlen(config) : 0, "tokenizer_config.json"}};
    const mar_status status = text_bpe_read_files(&files[0], &files[1], &files[2], &b, &err);
    if (status != MAR_EFORMAT || b) fail_msg("%s: status %d", vocab, (int)status);
    if (!strstr(err.text, part)) fail_msg("\"%s\", expected \"%s\"", err.text, part);
}

TEST_CASE(test_two_files_that_are_refused)
{
    refuse_files("[]", "", NULL, "vocab.json: its JSON is no object");
    refuse_files("{\"a\":1}", "", NULL, "vocab.json: vocab: \"a\" has id 1");
    refuse_files(AB, "#version: 0.2\na b\nb a\n", NULL, "merges.txt: merge 1");
    refuse_files(AB, "ab\n", NULL, "merges.txt: merge 0: \"ab\", expected two pieces");
}

#define QWEN2 "{\"tokenizer_class\":\"Qwen2TokenizerFast\","

TEST_CASE(test_configurations_that_are_refused)
{
    static const char token[] = "{\"content\":\"x\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                                "\"normalized\":false,\"special\":true}";
    static const char *const configs[][2] = {
        {"[]", "tokenizer_config.json: its JSON is no object"},
        {"{\"tokenizer_class\":\"LlamaTokenizer\"}", "tokenizer_class \"LlamaTokenizer\" is not supported"},
        {"{\"tokenizer_class\":\"Qwen2TokenizerSlow\"}", "\"Qwen2TokenizerSlow\" is not supported"},
        {"{\"tokenizer_class\":2}", "tokenizer_class \"\" is not supported"},
        {QWEN2 "\"add_prefix_space\":true}", "tokenizer_config.json: \"add_prefix_space\" is not supported"},
        {QWEN2 "\"split_special_tokens\":1}", "\"split_special_tokens\" is no boolean"},
        {QWEN2 "\"added_tokens_decoder\":[]}", "added_tokens_decoder: is no object"},
        {QWEN2 "\"added_tokens_decoder\":{\"3\":{}}}", "\"content\" is no string"},
        {QWEN2 "\"added_tokens_decoder\":{\"4\":%s}}",
         "tokenizer_config.json: added_tokens: \"x\" has id 4, expected 3"},
        {QWEN2 "\"added_tokens_decoder\":{\"\":%s}}", "\"x\" has no id"},
        {QWEN2 "\"added_tokens_decoder\":{\"3x\":%s}}", "\"x\" has no id"},
        {QWEN2 "\"added_tokens_decoder\":{\"-3\":%s}}", "\"x\" has no id"}};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        char text[512];
        const char *const at = strstr(configs[i][0], "%s");
        const int before = (int)(at ? at - configs[i][0] : (long)strlen(configs[i][0]));
        snprintf(text, sizeof text, "%.*s%s%s", before, configs[i][0], at ? token : "", at ? at + 2 : "");
        refuse_files(AB, "", text, configs[i][1]);
    }
}

/* Cut anywhere, a file is refused. */
TEST_CASE(test_truncated)
{
    bytes b = bytes_from_file(DATA "bpe/tokenizer.json");
    for (size_t size = 0; size < b.size; size += size < 300 ? 7 : 497) {
        text_bpe *t;
        mar_err err = {0};
        const char *copy = (const char *)guarded_copy(b.data, size);
        assert_int_equal(text_bpe_read(copy, size, "cut.json", &t, &err), MAR_EFORMAT);
        assert_null(t);
        guarded_free((const uint8_t *)copy, size);
    }
    bytes_free(&b);
}
