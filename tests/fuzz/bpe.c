#include "tests/fuzz/bpe.h"

#include "tests/fuzz/fuzz.h"

#include "text/bpe_encode.h"

#include <string.h>

enum { IDS = 4096 };

static void check_text(const text_bpe *a, const text_bpe *b, const char *text)
{
    static int ids[2][IDS];
    text_ids first = {ids[0], IDS, 0}, second = {ids[1], IDS, 0};
    mar_err err = {0}, again = {0};
    const mar_status status = text_bpe_encode(a, text, strlen(text), &first, &err);
    if (text_bpe_encode(b, text, strlen(text), &second, &again) != status) fuzz_fail("\"%s\": another status", text);
    if (status != MAR_OK) {
        if (status != MAR_EARG && status != MAR_ENOMEM) fuzz_fail("\"%s\": %s", text, err.text);
        fuzz_check_line("text_bpe_encode", err.text);
        return;
    }
    if (first.count != second.count) fuzz_fail("\"%s\": %d and %d ids", text, first.count, second.count);
    for (int i = 0; i < first.count && i < IDS; i++)
        if (ids[0][i] < 0 || ids[0][i] >= text_bpe_size(a) || ids[0][i] != ids[1][i])
            fuzz_fail("\"%s\": id %d", text, ids[0][i]);
}

void fuzz_check_bpe(text_bpe *a, text_bpe *b)
{
    static const char *const texts[] = {"", " ab  1b'll ", "abababab<s>", "A\xcc\x81\xf0\x9f\x98\x80 \xc2\xa0y\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) check_text(a, b, texts[i]);
    if (text_bpe_find(a, "a") >= text_bpe_size(a)) fuzz_fail("the id of \"a\"");
    text_bpe_free(a);
    text_bpe_free(b);
}
