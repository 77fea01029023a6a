/* SentencePiece's unigram model: the ids of 10 000 lines, long texts, and files that are refused. */
#include "tests/support/archive.h"
#include "tests/support/brief.h"
#include "tests/support/support.h"
#include "tests/support/test.h"
#include "tests/support/text_lines.h"

#include "text/protobuf.h"
#include "text/tokenizer.h"
#include "text/unigram.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA "tests/golden/data/text/"

static void put_varint(bytes *b, uint64_t value)
{
    for (; value > 127; value >>= 7) bytes_number(b, (value & 127) | 128, 1);
    bytes_number(b, value, 1);
}

/* Adds a field of bytes. */
static void put_field(bytes *b, int number, const void *data, size_t size)
{
    put_varint(b, (uint64_t)number << 3 | 2);
    put_varint(b, size);
    bytes_put(b, data, size);
}

static void write_file(const char *folder, const char *name, const bytes *b)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(b->data, 1, b->size, out), b->size);
    assert_int_equal(fclose(out), 0);
}

/* Returns a folder with the model of `unigram` and its hashes. The file there has no nmt_nfkc table, which is large:
 * the table of the demo's T5, the same, is added. */
static const char *folder_with_nmt_nfkc(void)
{
    const char *const folder = test_directory();
    bytes model = bytes_from_file(DATA "unigram/spiece.model"), hashes = bytes_from_file(DATA "unigram/hashes.bin");
    bytes demo = bytes_from_file("weights/demo/t5/spiece.model");
    proto_message m = {demo.data, demo.data + demo.size};
    proto_field f;
    while (proto_next(&m, &f) > 0)
        if (f.number == 3) put_field(&model, 3, f.data.at, (size_t)(f.data.end - f.data.at));
    assert_in_range(model.size, 240000, 300000);
    write_file(folder, "spiece.model", &model);
    write_file(folder, "hashes.bin", &hashes);
    bytes_free(&model);
    bytes_free(&hashes);
    bytes_free(&demo);
    return folder;
}

TEST_CASE(test_ids_with_nmt_nfkc)
{
    text_compare_lines(folder_with_nmt_nfkc(), test_brief ? 10 : 1);
}

TEST_CASE(test_ids_with_bytes_and_user_pieces)
{
    text_compare_lines(DATA "unigram_bytes", test_brief ? 10 : 1);
}

TEST_CASE(test_ids_with_suffixes_and_unused_pieces)
{
    text_compare_lines(DATA "unigram_suffix", test_brief ? 10 : 1);
}

TEST_CASE(test_pieces_are_found)
{
    text_tokenizer *t;
    mar_err err = {0};
    int ids[4], count;
    assert_int_equal(text_tokenizer_open(folder_with_nmt_nfkc(), &t, &err), MAR_OK);
    assert_int_equal(text_tokenizer_size(t), 2000);
    assert_int_equal(text_tokenizer_find(t, "<pad>"), 0);
    assert_int_equal(text_tokenizer_find(t, "</s>"), 1);
    assert_int_equal(text_tokenizer_find(t, "<unk>"), 2);
    assert_int_equal(text_tokenizer_find(t, "no such piece"), -1);
    assert_int_equal(text_tokenize(t, "", 0, ids, 4, &count, &err), MAR_OK);
    assert_int_equal(count, 0);
    memset(ids, 0x55, sizeof ids); /* fewer places than ids */
    assert_int_equal(text_tokenize(t, "a corgi in the snow", 19, ids, 2, &count, &err), MAR_OK);
    assert_true(count > 2);
    assert_true(ids[1] < 2000 && ids[2] == 0x55555555);
    assert_int_equal(text_tokenize(t, "snow\xff", 5, ids, 4, &count, &err), MAR_EARG);
    assert_non_null(strstr(err.text, "byte 4"));
    assert_int_equal(count, 0);
    text_tokenizer_free(t);
    text_tokenizer_free(NULL);
}

/* A line of a megabyte, of one word, takes time and memory proportional to it. */
TEST_CASE(test_long_line)
{
    enum { SIZE = 1 << 20 };
    text_tokenizer *t;
    mar_err err = {0};
    int count;
    char *text = malloc(SIZE);
    assert_non_null(text);
    memset(text, 'a', SIZE);
    assert_int_equal(text_tokenizer_open(folder_with_nmt_nfkc(), &t, &err), MAR_OK);
    assert_int_equal(text_tokenize(t, text, SIZE, NULL, 0, &count, &err), MAR_OK);
    assert_in_range(count, SIZE / 16, SIZE + 1);
    text_tokenizer_free(t);
    free(text);
}

/* --- models of few pieces, and what is refused ------------------------------------------------------------------- */

static void put_piece(bytes *b, const char *text, float score, int type)
{
    bytes piece = {0};
    uint32_t bits;
    memcpy(&bits, &score, 4);
    put_field(&piece, 1, text, strlen(text));
    bytes_number(&piece, 2 << 3 | 5, 1);
    bytes_number(&piece, bits, 4);
    bytes_number(&piece, 3 << 3, 1);
    bytes_number(&piece, (uint64_t)type, 1);
    put_field(b, 1, piece.data, piece.size);
    bytes_free(&piece);
}

/* Expects the model to be refused in a line with the label and this part. Frees it. */
static void refuse(bytes *b, const char *part)
{
    text_unigram *u;
    mar_err err = {0};
    assert_int_equal(text_unigram_read(b->data, b->size, "some.model", &u, &err), MAR_EFORMAT);
    assert_null(u);
    if (strncmp(err.text, "some.model: ", 12) != 0 || !strstr(err.text, part))
        fail_msg("\"%s\", expected \"%s\"", err.text, part);
    bytes_free(b);
}

/* Returns a model of two pieces, to which a test adds. */
static bytes small_model(void)
{
    bytes b = {0};
    put_piece(&b, "<unk>", 0, 2);
    put_piece(&b, "a", -1, 1);
    return b;
}

TEST_CASE(test_pieces_that_are_refused)
{
    static const struct {
        const char *text;
        float score;
        int type;
        const char *part;
    } cases[] = {
        {"b", NAN, 1, "piece 2: its score is not finite"},
        {"b", -INFINITY, 1, "piece 2: its score is not finite"},
        {"", 0, 1, "piece 2: has 0 bytes"},
        {"a", 0, 1, "piece 2: has the text of piece 1"},
        {"a", 0, 4, "piece 2: has the text of piece 1"},
        {"<unk>", 0, 3, "piece 2: has the text of piece 0"},
        {"b", 0, 2, "piece 2: is a second unknown piece"},
        {"b", 0, 0, "piece 2: is of type 0"},
        {"b", 0, 7, "piece 2: is of type 7"},
        {"b", 0, 6, "expected a name from <0x00>"},
        {"<0x41>", 0, 6, "without byte_fallback"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bytes b = small_model();
        put_piece(&b, cases[i].text, cases[i].score, cases[i].type);
        refuse(&b, cases[i].part);
    }
}

TEST_CASE(test_models_that_are_refused)
{
    bytes b = {0};
    put_piece(&b, "a", 0, 1);
    refuse(&b, "no piece of type unknown");
    b = (bytes){0};
    put_piece(&b, "<unk>", 0, 2);
    refuse(&b, "no pieces of text");
    b = (bytes){0};
    bytes_put(&b, "\0", 0);
    refuse(&b, "no pieces");
    b = small_model();
    put_field(&b, 2, "\x18\x02", 2); /* model_type BPE */
    refuse(&b, "model_type is 2");
    b = small_model();
    put_field(&b, 2, "\x98\x02\x02", 3); /* byte_fallback 2 */
    refuse(&b, "byte_fallback: is no boolean");
    b = small_model();
    put_field(&b, 2, "\x98\x02\x01", 3);
    refuse(&b, "0 pieces of type byte, expected 256");
    b = small_model();
    put_field(&b, 1,
              "\x0a\x7f"
              "a",
              3); /* a string longer than its message */
    refuse(&b, "a damaged field");
    b = small_model();
    put_field(&b, 1, "\x08\x01", 2); /* a number for a text */
    refuse(&b, "piece 2: its field 1 has another type");
    b = small_model();
    bytes_put(&b, "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11); /* a length of 2^64-1 */
    refuse(&b, "a damaged field");
    b = small_model();
    bytes_put(&b, "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 11); /* of more than 64 bits */
    refuse(&b, "a damaged field");
    b = small_model();
    bytes_put(&b, "\x0b\x0c", 2); /* a group */
    refuse(&b, "a damaged field");
}

/* Adds a table of characters: a trie of `units` units of 4 zeros but for `count` given ones, then replacements. */
static void put_charsmap(bytes *b, size_t units, const uint32_t *given, size_t count, const char *replacements)
{
    bytes map = {0}, normalizer = {0};
    bytes_number(&map, units * 4, 4);
    for (size_t i = 0; i < units; i++) bytes_number(&map, i < count ? given[i] : 0, 4);
    bytes_put(&map, replacements, strlen(replacements));
    put_field(&normalizer, 2, map.data, map.size);
    put_field(b, 3, normalizer.data, normalizer.size);
    bytes_free(&map);
    bytes_free(&normalizer);
}

TEST_CASE(test_charsmaps_that_are_refused)
{
    static const uint32_t far[] = {0x7ffffc00}, leafless[] = {1u << 8 | 1u << 10, 5}, leaf_root[] = {1u << 31},
                          outside[] = {1u << 10, 1u << 8 | 2u << 10, 0, 1u << 31 | 9};
    bytes b = small_model();
    put_charsmap(&b, 255, NULL, 0, "x");
    refuse(&b, "precompiled_charsmap: a trie of 1020 bytes");
    b = small_model();
    put_charsmap(&b, 256, NULL, 0, "");
    refuse(&b, "precompiled_charsmap: a trie of 1024 bytes");
    b = small_model();
    put_field(&b, 3,
              "\x12\x03"
              "abc",
              5);
    refuse(&b, "precompiled_charsmap: a trie of 0 bytes in 3");
    b = small_model();
    put_charsmap(&b, 256, far, 1, "x");
    refuse(&b, "unit 0 leads out");
    b = small_model();
    put_charsmap(&b, 256, leafless, 2, "x");
    refuse(&b, "unit 0 leads out");
    b = small_model();
    put_charsmap(&b, 256, leaf_root, 1, "x");
    refuse(&b, "unit 0 leads out");
    b = small_model();
    put_charsmap(&b, 256, outside, 4, "x");
    refuse(&b, "unit 1 leads out");
}

/* Cut anywhere, a model is refused or, between two pieces, read. */
TEST_CASE(test_truncated)
{
    bytes b = bytes_from_file(DATA "unigram_suffix/spiece.model");
    int refused = 0, read = 0;
    for (size_t size = 0; size < b.size; size += size < 300 ? 1 : 997) {
        text_unigram *u;
        mar_err err = {0};
        const uint8_t *copy = guarded_copy(b.data, size);
        const mar_status status = text_unigram_read(copy, size, "cut.model", &u, &err);
        if (status != MAR_OK && strncmp(err.text, "cut.model: ", 11) != 0) fail_msg("%zu bytes: %s", size, err.text);
        refused += status != MAR_OK;
        read += status == MAR_OK;
        text_unigram_free(u);
        guarded_free(copy, size);
    }
    assert_true(refused > 200);
    assert_true(read < refused);
    bytes_free(&b);
}

TEST_CASE(test_folder_without_tokenizer)
{
    text_tokenizer *t;
    mar_err err = {0};
    assert_int_equal(text_tokenizer_open("tests/text", &t, &err), MAR_EIO);
    assert_null(t);
    assert_non_null(strstr(err.text, "tests/text: no tokenizer, expected"));
}
