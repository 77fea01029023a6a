/* Files of prompts, with each ending that a name may have. Every prompt that is taken is UTF-8 text of at most the
 * largest size, and taken again alone. */
#include "tests/fuzz/fuzz.h"

#include "base/printable.h"
#include "tools/generate/prompts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char printed[1 << 16];

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    stderr = fmemopen(printed, sizeof printed, "w");
    return stderr ? 0 : 1;
}

static void check(const prompts *p)
{
    prompts again = {0};
    for (int i = 0; i < p->count; i++) {
        const size_t n = strlen(p->text[i]);
        unsigned c;
        if (n < 1 || n > PROMPT_BYTES_MAX) fuzz_fail("a prompt of %zu bytes", n);
        for (size_t at = 0, bytes; at < n; at += bytes) {
            bytes = utf8_decode(p->text[i] + at, n - at, &c);
            if (bytes == 0) fuzz_fail("prompt %d is no UTF-8", i);
        }
        if (prompts_add(p->text[i], &again) != 0) break; /* without memory */
    }
    if (again.skipped) fuzz_fail("%d prompts are refused alone", again.skipped);
    prompts_free(&again);
}

static void check_as(const char *name, const uint8_t *data, size_t size)
{
    prompts p = {0};
    char *text = malloc(size + 1);
    if (!text) return;
    memcpy(text, data, size);
    text[size] = '\0';
    rewind(stderr);
    const int failed = prompts_parse(text, size, name, &p);
    fflush(stderr);
    if (ftell(stderr) == 0 && (failed || p.skipped)) fuzz_fail("nothing is printed");
    if (!failed && p.count < 1) fuzz_fail("no prompts");
    check(&p);
    prompts_free(&p);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"FILE", "FILE.txt", "FILE.csv", "FILE.tsv", "FILE.json", "FILE.jsonl"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) check_as(names[i], data, size);
    return 0;
}
