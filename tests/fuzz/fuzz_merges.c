/* vocab.json and merges.txt: the text before the first NUL, and the text behind it. */
#include "tests/fuzz/bpe.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static mar_status read_both(const uint8_t *data, size_t size, text_bpe **out, mar_err *err)
{
    const uint8_t *const nul = size ? memchr(data, 0, size) : NULL;
    const size_t vocab = nul ? (size_t)(nul - data) : size, merges = nul ? size - vocab - 1 : 0;
    return text_bpe_read_files((const char *)data, vocab, "vocab.json", nul ? (const char *)nul + 1 : "", merges,
                               "merges.txt", out, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    text_bpe *a, *b;
    mar_err err = {0};
    const mar_status status = read_both(data, size, &a, &err);
    fuzz_check_error("text_bpe_read_files", status, &err);
    if (status != MAR_OK) {
        if (a) fuzz_fail("refused, with a tokenizer");
        if (strncmp(err.text, "vocab.json: ", 12) != 0 && strncmp(err.text, "merges.txt: ", 12) != 0)
            fuzz_fail("no label: %s", err.text);
        return 0;
    }
    if (read_both(data, size, &b, &err) != MAR_OK) fuzz_fail("refused now: %s", err.text);
    fuzz_check_bpe(a, b);
    return 0;
}
