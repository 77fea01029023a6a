/* vocab.json and merges.txt: the text before the first NUL, and the text behind it. Behind a first byte 1 they are
 * emu3.tiktoken, whose pieces of one byte come before, and emu3_vision_tokens.txt. Behind a first byte 2 and before
 * these stands tokenizer_config.json, with a NUL. */
#include "tests/fuzz/bpe.h"
#include "tests/fuzz/fuzz.h"

#include "text/tiktoken.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the 256 pieces of one byte and text[n], behind them. The caller frees it. */
static char *with_bytes(const uint8_t *text, size_t n, size_t *size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *all = malloc(256 * 16 + n + 1), *at = all;
    if (!all) fuzz_fail("no memory");
    for (int i = 0; i < 256; i++) at += snprintf(at, 16, "%c%c== %d\n", digits[i >> 2], digits[(i & 3) << 4], i);
    if (n) memcpy(at, text, n);
    *size = (size_t)(at - all) + n;
    return all;
}

static mar_status read_json(const char *config, const uint8_t *data, size_t size, text_bpe **out, mar_err *err)
{
    const uint8_t *const nul = size ? memchr(data, 0, size) : NULL;
    const size_t n = nul ? (size_t)(nul - data) : size;
    const text_file vocab = {(const char *)data, n, "vocab.json"},
                    merges = {nul ? (const char *)nul + 1 : "", nul ? size - n - 1 : 0, "merges.txt"},
                    configuration = {config, config ? strlen(config) : 0, "tokenizer_config.json"};
    return text_bpe_read_files(&vocab, &merges, &configuration, out, err);
}

static mar_status read_both(const uint8_t *data, size_t size, text_bpe **out, mar_err *err)
{
    const uint8_t *const nul = size ? memchr(data, 0, size) : NULL;
    if (size && *data == 1) {
        const size_t n = nul ? (size_t)(nul - data) - 1 : size - 1;
        size_t ranks_size;
        char *ranks = with_bytes(data + 1, n, &ranks_size);
        const mar_status status = text_tiktoken_read(ranks, ranks_size, "vocab.json", nul ? (const char *)nul + 1 : "",
                                                     nul ? size - n - 2 : 0, "merges.txt", out, err);
        free(ranks);
        return status;
    }
    if (size && *data == 2 && nul)
        return read_json((const char *)data + 1, nul + 1, size - (size_t)(nul - data) - 1, out, err);
    return read_json(NULL, data, size, out, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    text_bpe *a, *b;
    mar_err err = {0};
    const mar_status status = read_both(data, size, &a, &err);
    fuzz_check_error("text_bpe_read_files", status, &err);
    if (status != MAR_OK) {
        if (a) fuzz_fail("refused, with a tokenizer");
        if (strncmp(err.text, "vocab.json: ", 12) != 0 && strncmp(err.text, "merges.txt: ", 12) != 0 &&
            strncmp(err.text, "tokenizer_config.json: ", 23) != 0)
            fuzz_fail("no label: %s", err.text);
        return 0;
    }
    if (read_both(data, size, &b, &err) != MAR_OK) fuzz_fail("refused now: %s", err.text);
    fuzz_check_bpe(a, b);
    return 0;
}
