#include "tools/generate/prompt_encoder.h"

#include "base/printable.h"
#include "tools/cli/command.h"
#include "tools/cli/run_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHOWN = 100,          /* bytes of a prompt in a warning */
    NUMBERS_MAX = 1 << 24 /* of a batch's features, unless one prompt has more */
};

/* Returns the prompts of a batch, for prompts of `numbers` numbers. */
static int batch_of(size_t numbers)
{
    const size_t n = NUMBERS_MAX / numbers;
    return n < 1 ? 1 : n > PROMPT_BATCH ? PROMPT_BATCH : (int)n;
}

int prompt_encoder_open(prompt_encoder *e, mar *library, const char *folder, const mar_file *file, int tokens,
                        int expected, const char *model, progress *bar)
{
    mar_source source;
    mar_source_init(&source, sizeof source);
    source.file = file;
    if (!file) source.path = folder;
    *e = (prompt_encoder){.library = library, .folder = folder, .tokens = tokens};
    if (bar) progress_note(bar, "loading %s", folder);
    const mar_status status = mar_text_load_from(library, &source, &e->text);
    if (bar) progress_clear(bar);
    if (status != MAR_OK) return tool_error("%s", mar_error(library));
    const mar_text_config *c = mar_text_get_config(e->text);
    e->dim = c->dim;
    e->is_decoder = c->conditioning == MAR_CONDITION_IDS;
    if (e->tokens == 0 || (e->is_decoder && e->tokens > c->tokens))
        e->tokens = tokens = e->is_decoder ? c->tokens : 120;
    e->batch = batch_of((size_t)tokens * (size_t)e->dim);
    if (expected && e->dim != expected) {
        tool_error("%s: a T5 of width %d, expected %d, the width of the captions of %s", folder, e->dim, expected,
                   model);
        prompt_encoder_close(e);
        return 1;
    }
    const size_t positions = (size_t)e->batch * (size_t)tokens;
    e->features = malloc(positions * (size_t)e->dim * sizeof *e->features);
    e->mask = malloc(positions);
    if (e->features && e->mask) return 0;
    prompt_encoder_close(e);
    return tool_error("out of memory for the features of prompts");
}

static void warn_of_cut(const prompt_encoder *e, const char *text, int count)
{
    char shown[SHOWN];
    if (e->quiet || count <= e->tokens) return;
    fprintf(stderr, "mar: warning: prompt \"%s\": has %d tokens, the last %d are left out: %d fit\n",
            printable(text, shown, sizeof shown), count, count - e->tokens, e->tokens);
}

mar_status prompt_encoder_encode(const prompt_encoder *e, char *const *text, int n, int tokens, int *counts)
{
    const char *texts[PROMPT_BATCH] = {NULL};
    char *joined[PROMPT_BATCH] = {NULL};
    mar_status status = MAR_OK;
    for (int i = 0; i < n; i++) {
        if (e->positive && asprintf(&joined[i], "%s %s", text[i], e->positive) < 0)
            joined[i] = NULL, status = MAR_ENOMEM;
        texts[i] = e->positive ? joined[i] : text[i];
    }
    if (status == MAR_OK) status = mar_text_encode(e->text, texts, n, e->clean, tokens, e->features, e->mask, counts);
    for (int i = 0; i < n; i++) free(joined[i]);
    return status;
}

const char *prompt_encoder_error(const prompt_encoder *e, mar_status status)
{
    return status == MAR_ENOMEM ? "out of memory for the prompts" : mar_error(e->library);
}

mar_status prompt_encoder_run(prompt_encoder *e, char *const *text, int n)
{
    int counts[PROMPT_BATCH];
    const mar_status status = prompt_encoder_encode(e, text, n, e->tokens, counts);
    for (int i = 0; i < n && status == MAR_OK; i++) warn_of_cut(e, text[i], counts[i]);
    return status;
}

int prompt_encoder_negative(prompt_encoder *e, const char *text, captions *out)
{
    const mar_text_config *c = mar_text_get_config(e->text);
    if (text && !c->negative) return tool_error("--negative: %s has no negative prompt", c->name);
    const mar_status status = mar_text_encode_negative(e->text, text, e->tokens, e->features, e->mask, NULL);
    if (status != MAR_OK) return tool_error("%s", mar_error(e->library));
    return captions_set_negative(out, e->features, e->mask);
}

int prompt_encoder_drop_bad(prompt_encoder *e, prompts *p, int i, int n)
{
    const int skipped = p->skipped;
    for (int end = i + n; i < end;) {
        /* one token of a T5's is enough: all of the prompt is cleaned and divided */
        const int tokens = e->is_decoder ? e->tokens : 1;
        const mar_status status = prompt_encoder_encode(e, p->text + i, 1, tokens, NULL);
        if (status != MAR_OK && status != MAR_EARG) return tool_error("%s", prompt_encoder_error(e, status));
        if (status == MAR_EARG) {
            prompts_skip(p, i, mar_error(e->library));
            end--;
        } else {
            i++;
        }
    }
    if (p->skipped == skipped) return tool_error("%s", mar_error(e->library));
    return p->count == 0;
}

int prompt_encoder_run_all(prompt_encoder *e, prompts *p, progress *bar, captions *out)
{
    *out = (captions){.tokens = e->tokens,
                      .dim = e->dim,
                      .encoded = 1,
                      .family = e->is_decoder ? mar_text_get_config(e->text)->family : NULL,
                      .list = calloc((size_t)p->count, sizeof *out->list)};
    int failed = out->list ? 0 : tool_error("out of memory for %d prompts", p->count);
    for (int i = 0; i < p->count && !failed;) {
        const int n = p->count - i < e->batch ? p->count - i : e->batch;
        if (bar && p->count > e->batch) progress_note(bar, "encoding prompt %d of %d", i + 1, p->count);
        const mar_status status = prompt_encoder_run(e, p->text + i, n);
        if (status != MAR_OK && bar) progress_clear(bar);
        if (status == MAR_EARG) {
            failed = prompt_encoder_drop_bad(e, p, i, n);
            continue;
        }
        failed = status == MAR_OK ? captions_add(out, n, e->features, e->mask, p->text + i)
                                  : tool_error("%s", prompt_encoder_error(e, status));
        i += n;
    }
    if (bar) progress_clear(bar);
    if (failed) captions_free(out);
    return failed;
}

void prompt_encoder_close(prompt_encoder *e)
{
    mar_text_free(e->text);
    free(e->features);
    free(e->mask);
    *e = (prompt_encoder){0};
}
