/* BERT's vocab.txt. Reading it twice gives the same ids; all ids are below the number of pieces; texts are cut without
 * end. An error is one line with the label. */
#include "tests/fuzz/fuzz.h"

#include "text/words.h"

#include <string.h>

enum { IDS = 1024 };

static const char *const texts[] = {"",
                                    " a  b ",
                                    "abcab[SEP]a",
                                    ("\xe6\xbc\xa2"
                                     "a!\xc3\xa4"), /* as one literal, 'a' would belong to the last byte */
                                    "\xf0\x9f\x98\x80\xcc\x81 [MASK",
                                    "aaaaaaaaaaaaaaaaaaaa"};

/* Checks the ids of a text by two tokenizers of the same file. */
static void check_text(const text_words *a, const text_words *b, const char *text)
{
    static int ids[2][IDS];
    text_ids first = {ids[0], IDS, 0}, second = {ids[1], IDS, 0};
    mar_err err = {0};
    const size_t length = strlen(text);
    if (text_words_encode(a, text, length, &first, &err) != MAR_OK ||
        text_words_encode(b, text, length, &second, &err) != MAR_OK)
        fuzz_fail("\"%s\": %s", text, err.text);
    if (first.count != second.count || first.count > (int)length) fuzz_fail("\"%s\": %d ids", text, second.count);
    for (int i = 0; i < first.count; i++)
        if (ids[0][i] < 0 || ids[0][i] >= text_words_size(a) || ids[0][i] != ids[1][i])
            fuzz_fail("\"%s\": id %d", text, ids[0][i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    text_words *a, *b;
    mar_err err = {0};
    const mar_status status = text_words_read((const char *)data, size, "vocab.txt", &a, &err);
    fuzz_check_error("text_words_read", status, &err);
    if (status != MAR_OK) {
        if (a) fuzz_fail("refused, with a tokenizer");
        if (strncmp(err.text, "vocab.txt: ", 11) != 0) fuzz_fail("no label: %s", err.text);
        return 0;
    }
    if (text_words_read((const char *)data, size, "vocab.txt", &b, &err) != MAR_OK) fuzz_fail("refused: %s", err.text);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) check_text(a, b, texts[i]);
    text_words_free(a);
    text_words_free(b);
    return 0;
}
