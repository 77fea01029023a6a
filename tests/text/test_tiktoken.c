/* Emu3's tokenizer: the ids of 2000 lines as tiktoken makes them, special tokens, and files that are refused. */
#include "tests/support/brief.h"
#include "tests/support/test.h"
#include "tests/support/text_lines.h"

#include "text/bpe_encode.h"
#include "text/tiktoken.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA "tests/golden/data/prompts/emu3"

TEST_CASE(ids_of_tiktoken)
{
    text_compare_lines(DATA, test_brief ? 20 : 1);
}

static int ids_of(const char *text, int *ids, int max)
{
    text_tokenizer *t;
    mar_err err = {0};
    int count;
    assert_int_equal(text_tokenizer_open(DATA, &t, &err), MAR_OK);
    assert_int_equal(text_tokenize(t, text, strlen(text), ids, max, &count, &err), MAR_OK);
    text_tokenizer_free(t);
    return count;
}

TEST_CASE(special_tokens)
{
    text_tokenizer *t;
    mar_err err = {0};
    int ids[4], plain[4];
    assert_int_equal(text_tokenizer_open(DATA, &t, &err), MAR_OK);
    const int first = text_tokenizer_find(t, "<|endoftext|>");
    assert_int_equal(first, 560);
    assert_int_equal(text_tokenizer_find(t, "<|extra_0|>"), first + 3);
    assert_int_equal(text_tokenizer_find(t, "<|extra_204|>"), first + 207);
    assert_int_equal(text_tokenizer_find(t, "<|image token|>"), first + 208);
    assert_int_equal(text_tokenizer_find(t, "<|visual token 000003|>"), first + 214);
    assert_int_equal(text_tokenizer_size(t), first + 215);
    assert_int_equal(text_tokenizer_find(t, "<|extra_205|>"), -1);
    text_tokenizer_free(t);
    assert_int_equal(ids_of("a<|extra_20|>", ids, 4), 2);
    assert_int_equal(ids[1], first + 23);
    /* NFC comes first: > and U+0338 are one character, so this is no special token */
    assert_true(ids_of("a<|extra_20|>\xcc\xb8", ids, 4) > 4);
    assert_int_equal(ids_of("e\xcc\x81", ids, 4), ids_of("\xc3\xa9", plain, 4));
    assert_int_equal(ids[0], plain[0]);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

/* Returns the 256 bytes as pieces, then `more`. The caller frees it. */
static char *pieces_and(const char *more)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *text = malloc(256 * 16 + strlen(more) + 1), *at = text;
    assert_non_null(text);
    for (int i = 0; i < 256; i++) at += snprintf(at, 16, "%c%c== %d\n", digits[i >> 2], digits[(i & 3) << 4], i);
    memcpy(at, more, strlen(more) + 1);
    return text;
}

static mar_status read_files(const char *ranks, const char *tokens, text_bpe **out, mar_err *err)
{
    return text_tiktoken_read(ranks, strlen(ranks), "r.tiktoken", tokens, strlen(tokens), "t.txt", out, err);
}

static void refuse(const char *ranks, const char *tokens, const char *words)
{
    text_bpe *b = NULL;
    mar_err err = {0};
    assert_int_equal(read_files(ranks, tokens, &b, &err), MAR_EFORMAT);
    assert_null(b);
    if (!strstr(err.text, words)) fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

static void refuse_more(const char *more, const char *words)
{
    char *text = pieces_and(more);
    refuse(text, "", words);
    free(text);
}

/* A pair merges by the rank of both together, whichever pieces it has, and the leftmost of equal ranks first. */
TEST_CASE(pairs_merge_by_the_rank_of_both)
{
    text_bpe *b;
    mar_err err = {0};
    int ids[8];
    text_ids out = {.ids = ids, .max = 8};
    char *text = pieces_and("YWE= 256\r\nYWFh 257\n\n  YmE= 258 \n"); /* aa, aaa, ba */
    assert_int_equal(read_files(text, "\n <x> \n", &b, &err), MAR_OK);
    assert_int_equal(text_bpe_encode(b, "aaaaa", 5, &out, &err), MAR_OK);
    assert_int_equal(out.count, 2);
    assert_int_equal(ids[0], 256);
    assert_int_equal(ids[1], 257);
    out.count = 0;
    assert_int_equal(text_bpe_encode(b, "baaaa", 5, &out, &err), MAR_OK); /* b aa aa, not ba aaa */
    assert_int_equal(out.count, 3);
    assert_int_equal(ids[1], 256);
    assert_int_equal(text_bpe_find(b, "<x>"), 259 + 208);
    text_bpe_free(b);
    free(text);
}

TEST_CASE(files_that_are_refused)
{
    refuse("", "", "r.tiktoken: vocab: no pieces");
    refuse("IQ== 0\n", "", "has no piece for the byte 0x00");
    refuse_more("YWE=", "piece 256: \"YWE=\", expected 1 to 256 bytes");
    refuse_more("YWE= ", "expected 1 to 256 bytes");
    refuse_more("YWE= x", "expected 1 to 256 bytes");
    refuse_more("YWE= -1", "expected 1 to 256 bytes");
    refuse_more("YWE= 99999999999999999999", "expected 1 to 256 bytes");
    refuse_more("YWE 256", "expected 1 to 256 bytes");
    refuse_more("Y*E= 256", "expected 1 to 256 bytes");
    refuse_more("==== 256", "expected 1 to 256 bytes");
    refuse_more(" 256", "expected 1 to 256 bytes");
    refuse_more("YWE= 257", "expected ids without holes");
    refuse_more("YWE= 255", "as another piece");
    refuse_more("YWE= 256\nYWE= 257", "is there twice");
    char *text = pieces_and("");
    refuse(text, "<a>\n<a>\n", "t.txt: added_tokens: \"<a>\" is there twice");
    refuse(text, "<|im_end|>", "is there twice");
    refuse(text, "<a>\n<\xff>", "t.txt: token 465 is not UTF-8");
    free(text);
}
