/* Every allocation of reading a tokenizer, of cutting a text and of cleaning a caption fails once: the call says that
 * there is no memory, and nothing is lost. */
#include "tests/support/test.h"

#include "text/bpe.h"
#include "text/bpe_encode.h"
#include "text/clean.h"
#include "text/tiktoken.h"
#include "text/tokenizer.h"
#include "text/unigram.h"
#include "text/unigram_encode.h"
#include "text/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVERY_ALLOCATION_COUNTS
#include "tests/support/failing_allocations.h"

#ifndef HAS_SANITIZER

#define CORPUS "tests/fuzz/corpus/"

static const char text[] = "a cafe\xcc\x81 <s>, ABab it's 12 \xce\xa3 <b>x</b> &amp; http://a.com";

/* Reads a whole file of a corpus, before allocations fail. */
static char *read_corpus(const char *name, size_t *size)
{
    char path[256];
    snprintf(path, sizeof path, CORPUS "%s", name);
    FILE *in = fopen(path, "rb");
    char *data = calloc(1, 8192);
    assert_non_null(in);
    assert_non_null(data);
    *size = fread(data, 1, 8191, in);
    fclose(in);
    return data;
}

/* A call that is repeated until none of its allocations has failed. */
typedef mar_status attempt(const char *data, size_t size, mar_err *err);

static void fail_each(attempt *call, const char *what, const char *data, size_t size)
{
    mar_err err = {0};
    if (call(data, size, &err) != MAR_OK) fail_msg("%s: %s", what, err.text);
    const long before = live;
    failures = 0;
    for (long n = 0;; n++) {
        mar_err why = {0};
        until_failure = n;
        const mar_status status = call(data, size, &why);
        const int failed = failures > n;
        until_failure = -1;
        assert_int_equal(live, before);
        if (!failed) {
            assert_int_equal(status, MAR_OK);
            break;
        }
        /* sorting and the first searches of a pattern do without the memory that they ask for */
        if (status != MAR_OK && status != MAR_ENOMEM)
            fail_msg("%s, %ld: %s: %s", what, n, mar_status_name(status), why.text);
        if (status == MAR_ENOMEM) assert_non_null(strstr(why.text, "no memory"));
    }
    assert_true(failures > 2);
}

static mar_status read_unigram(const char *data, size_t size, mar_err *err)
{
    text_unigram *u;
    text_ids out = {0};
    mar_status status = text_unigram_read(data, size, "x", &u, err);
    if (status != MAR_OK) return status;
    status = text_unigram_encode(u, text, sizeof text - 1, &out, err);
    text_unigram_free(u);
    return status;
}

static mar_status encode_bpe(text_bpe *b, mar_err *err)
{
    text_ids out = {0};
    const mar_status status = text_bpe_encode(b, text, sizeof text - 1, &out, err);
    text_bpe_free(b);
    return status;
}

static mar_status read_bpe(const char *data, size_t size, mar_err *err)
{
    text_bpe *b;
    const mar_status status = text_bpe_read(data, size, "x", &b, err);
    return status == MAR_OK ? encode_bpe(b, err) : status;
}

static mar_status read_two_files(const char *data, size_t size, mar_err *err)
{
    text_bpe *b;
    text_file config = {.text = NULL};
    if (*data == 2) { /* fuzz_merges.c: a configuration comes first */
        config = (text_file){data + 1, strlen(data) - 1, "x"};
        size -= config.length + 2;
        data += config.length + 2;
    }
    const size_t n = strlen(data);
    const text_file vocab = {data, n, "x"}, merges = {data + n + 1, size - n - 1, "y"};
    const mar_status status = text_bpe_read_files(&vocab, &merges, &config, &b, err);
    return status == MAR_OK ? encode_bpe(b, err) : status;
}

static mar_status read_tiktoken(const char *data, size_t size, mar_err *err)
{
    static const char tokens[] = "<s>\n<b>\n";
    text_bpe *b;
    const mar_status status = text_tiktoken_read(data, size, "x", tokens, sizeof tokens - 1, "y", &b, err);
    return status == MAR_OK ? encode_bpe(b, err) : status;
}

static mar_status read_words(const char *data, size_t size, mar_err *err)
{
    text_words *w;
    text_ids out = {0};
    mar_status status = text_words_read(data, size, "x", &w, err);
    if (status != MAR_OK) return status;
    status = text_words_encode(w, text, sizeof text - 1, &out, err);
    text_words_free(w);
    return status;
}

static mar_status clean_caption(const char *data, size_t size, mar_err *err)
{
    char *cleaned;
    const mar_status status = text_clean_caption(data, size, &cleaned, err);
    if (status != MAR_OK) assert_null(cleaned);
    free(cleaned);
    return status;
}

TEST_CASE(test_files)
{
    static const struct {
        attempt *call;
        const char *name;
    } files[] = {{read_unigram, "spiece/charsmap"}, {read_unigram, "spiece/user"},
                 {read_bpe, "tokenizer/clip"},      {read_bpe, "tokenizer/steps"},
                 {read_bpe, "tokenizer/added"},     {read_bpe, "tokenizer/byte_level"},
                 {read_two_files, "merges/clip"},   {read_two_files, "merges/gpt2"},
                 {read_two_files, "merges/qwen2"},  {read_tiktoken, "../../golden/data/prompts/emu3/emu3.tiktoken"},
                 {read_words, "words/pieces"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t size;
        char *data = read_corpus(files[i].name, &size);
        fail_each(files[i].call, files[i].name, data, size);
        free(data);
    }
}

TEST_CASE(test_caption)
{
    fail_each(clean_caption, "a caption", text, sizeof text - 1);
}

#endif
