/* A caption that is cleaned as LlamaGen does it. Cleaning twice gives the same. What comes out is UTF-8
 * without white space at its ends, and no longer than what entities and lower case can make of the caption. */
#include "tests/fuzz/fuzz.h"

#include "base/printable.h"
#include "text/clean.h"

#include <stdlib.h>
#include <string.h>

static void check_text(const char *text, size_t size)
{
    const size_t length = strlen(text);
    unsigned c;
    if (length > 6 * size + 6) fuzz_fail("%zu bytes of %zu", length, size);
    for (size_t at = 0, n; at < length; at += n)
        if ((n = utf8_decode(text + at, length - at, &c)) == 0) fuzz_fail("no UTF-8 at byte %zu", at);
    if (length && (strchr(" \t\n\r", text[0]) || strchr(" \t\n\r", text[length - 1]))) fuzz_fail("\"%s\"", text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *cleaned, *again;
    mar_err err = {0};
    const mar_status status = text_clean_caption((const char *)data, size, &cleaned, &err);
    if (status != MAR_OK) {
        if (cleaned) fuzz_fail("refused, with a text");
        if (status != MAR_EARG && status != MAR_ENOMEM) fuzz_fail("status \"%s\"", mar_status_name(status));
        fuzz_check_line("text_clean_caption", err.text);
        return 0;
    }
    check_text(cleaned, size);
    if (text_clean_caption((const char *)data, size, &again, &err) != MAR_OK) fuzz_fail("refused now: %s", err.text);
    if (strcmp(cleaned, again) != 0) fuzz_fail("\"%s\", now \"%s\"", cleaned, again);
    free(cleaned);
    free(again);
    return 0;
}
