/* SentencePiece's file, spiece.model. Reading it twice gives the same ids; all ids are below the number of pieces;
 * texts are cut without end. An error is one line with the label. */
#include "tests/fuzz/fuzz.h"

#include "text/unigram.h"
#include "text/unigram_encode.h"

#include <stdlib.h>
#include <string.h>

enum { IDS = 4096 };

static const char *const texts[] = {"",
                                    " a  b ",
                                    "abcab<s>",
                                    "\xe2\x96\x81 x\xc2\xa0y",
                                    "\xef\xbc\xa1\xcc\x81\xf0\x9f\x98\x80",
                                    "aaaaaaaaaaaaaaaaaaaa"};

/* Checks the ids of a text by two tokenizers of the same file. */
static void check_text(const text_unigram *a, const text_unigram *b, const char *text)
{
    static int ids[2][IDS];
    text_ids first = {ids[0], IDS, 0}, second = {ids[1], IDS, 0}, none = {0};
    mar_err err = {0};
    const size_t length = strlen(text);
    if (text_unigram_encode(a, text, length, &first, &err) != MAR_OK ||
        text_unigram_encode(b, text, length, &second, &err) != MAR_OK ||
        text_unigram_encode(b, text, length, &none, &err) != MAR_OK)
        fuzz_fail("\"%s\": %s", text, err.text);
    if (first.count != second.count || first.count != none.count) fuzz_fail("\"%s\": %d ids", text, second.count);
    for (int i = 0; i < first.count && i < IDS; i++)
        if (ids[0][i] < 0 || ids[0][i] >= text_unigram_size(a) || ids[0][i] != ids[1][i])
            fuzz_fail("\"%s\": id %d", text, ids[0][i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    text_unigram *a, *b;
    mar_err err = {0};
    const mar_status status = text_unigram_read(data, size, "some.model", &a, &err);
    fuzz_check_error("text_unigram_read", status, &err);
    if (status != MAR_OK) {
        if (a) fuzz_fail("refused, with a tokenizer");
        if (strncmp(err.text, "some.model: ", 12) != 0) fuzz_fail("no label: %s", err.text);
        return 0;
    }
    if (text_unigram_read(data, size, "some.model", &b, &err) != MAR_OK) fuzz_fail("refused now: %s", err.text);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) check_text(a, b, texts[i]);
    if (text_unigram_find(a, "a") >= text_unigram_size(a)) fuzz_fail("the id of \"a\"");
    text_unigram_free(a);
    text_unigram_free(b);
    return 0;
}
