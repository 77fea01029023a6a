/* WordPiece: the ids of 2000 lines, special tokens in a text, long words, and files that are refused. */
#include "tests/support/brief.h"
#include "tests/support/support.h"
#include "tests/support/test.h"
#include "tests/support/text_lines.h"

#include "text/tokenizer.h"
#include "text/words.h"

#include <stdlib.h>
#include <string.h>

#define FOLDER "tests/golden/data/text/words"

static text_tokenizer *open_words(void)
{
    text_tokenizer *t;
    mar_err err = {0};
    assert_ok(text_tokenizer_open_words(FOLDER "/vocab.txt", &t, &err), &err);
    return t;
}

TEST_CASE(ids_of_lines)
{
    text_tokenizer *t = open_words();
    text_compare_lines_with(t, FOLDER, test_brief ? 20 : 1);
    text_tokenizer_free(t);
}

TEST_CASE(special_tokens)
{
    static const char text[] = "[CLS] a[MASK]b [sep] [[SEP]][ENC] [DEC] [DEC";
    int ids[32], count;
    mar_err err = {0};
    text_tokenizer *t = open_words();
    wt_file *golden = golden_open("scores");
    float *expected = golden_f32(golden, "special", -1);
    assert_ok(text_tokenize(t, text, strlen(text), ids, 32, &count, &err), &err);
    assert_int_equal(count, wt_find(golden, "special")->count);
    for (int i = 0; i < count; i++) assert_int_equal(ids[i], (int)expected[i]);
    assert_int_equal(text_tokenizer_find(t, "[DEC]"), text_tokenizer_size(t) - 2);
    assert_int_equal(text_tokenizer_find(t, "no such piece"), -1);
    free(expected);
    wt_close(golden);
    text_tokenizer_free(t);
}

static void check_ids(const char *vocabulary, const char *text, const int *expected, int n)
{
    text_words *w;
    int ids[16];
    text_ids out = {ids, 16, 0};
    mar_err err = {0};
    assert_ok(text_words_read(vocabulary, strlen(vocabulary), "v", &w, &err), &err);
    assert_ok(text_words_encode(w, text, strlen(text), &out, &err), &err);
    assert_int_equal(out.count, n);
    for (int i = 0; i < n && i < out.max; i++) assert_int_equal(ids[i], expected[i]);
    text_words_free(w);
}

TEST_CASE(longest_pieces_first)
{
    char text[128];
    check_ids("[UNK]\na\nab\n##b\n##c\n##bc",
              "ab abc Abb abx \xc3\xa4"
              "b",
              (int[]){2, 2, 4, 2, 3, 0, 2}, 7);
    check_ids("[UNK]\r\na\r\n\r\na\r\n", "a", (int[]){3}, 1); /* the last of equal ones; an empty line has an id */
    memset(text, 'a', 101);
    text[101] = '\0';
    check_ids("[UNK]\na\n##a", text, (int[]){0}, 1); /* more than 100 characters */
    text[100] = '\0';
    check_ids("[UNK]\na\n##a", text, (int[]){1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, 100);
}

TEST_CASE(files_are_refused)
{
    text_words *w;
    mar_err err = {0};
    assert_int_equal(text_words_read("a\nb\n", 4, "v", &w, &err), MAR_EFORMAT);
    assert_string_equal(err.text, "v: has no piece [UNK], expected BERT's vocabulary, a piece a line");
    assert_null(w);
}
