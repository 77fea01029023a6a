/* tokenizer.json, as Hugging Face's `tokenizers` writes it. */
#include "tests/fuzz/bpe.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    text_bpe *a, *b;
    mar_err err = {0};
    const mar_status status = text_bpe_read((const char *)data, size, "some.json", &a, &err);
    fuzz_check_error("text_bpe_read", status, &err);
    if (status != MAR_OK) {
        if (a) fuzz_fail("refused, with a tokenizer");
        if (strncmp(err.text, "some.json: ", 11) != 0) fuzz_fail("no label: %s", err.text);
        return 0;
    }
    if (text_bpe_read((const char *)data, size, "some.json", &b, &err) != MAR_OK)
        fuzz_fail("refused now: %s", err.text);
    fuzz_check_bpe(a, b);
    return 0;
}
