#include "text/prompt.h"

#include "text/buffer.h"

#include <stdio.h>
#include <string.h>

/* A template that is being filled. */
typedef struct {
    const text_prompt *p;
    const char *prompt; /* the text for {prompt} */
    text_buffer text;   /* since the last token with a name */
    text_ids out;
    mar_err *err;
} filling;

static mar_status prompt_add_id(filling *f, int id)
{
    if (id >= f->p->grammar->vocabulary)
        return err_set(f->err, MAR_EMODEL, "the tokenizer has token %d, the model's embedding %d rows", id,
                       f->p->grammar->vocabulary);
    text_add_id(&f->out, id);
    return MAR_OK;
}

/* Divides the text since the last token with a name. */
static mar_status prompt_divide(filling *f)
{
    int count = 0;
    text_ids *out = &f->out;
    const int kept = out->count < out->max ? out->count : out->max;
    mar_status status = f->text.failed ? err_set(f->err, MAR_ENOMEM, "out of memory for a prompt") : MAR_OK;
    if (status == MAR_OK && f->text.length)
        status = text_tokenize(f->p->tokenizer, f->text.data, f->text.length, out->ids + kept, out->max - kept, &count,
                               f->err);
    text_buffer_free(&f->text);
    const int written = count < out->max - kept ? count : out->max - kept;
    for (int i = kept; i < kept + written && status == MAR_OK; i++)
        if (out->ids[i] >= f->p->grammar->vocabulary) status = prompt_add_id(f, out->ids[i]);
    out->count += count < INT32_MAX - out->count ? count : INT32_MAX - out->count;
    return status;
}

static mar_status prompt_add_named(filling *f, const char *name, int length)
{
    char text[64];
    snprintf(text, sizeof text, "%.*s", length, name);
    const mar_status status = prompt_divide(f);
    if (status != MAR_OK) return status;
    const int id = text_tokenizer_find(f->p->tokenizer, text);
    if (id < 0) return err_set(f->err, MAR_EMODEL, "the tokenizer has no token %s", text);
    return prompt_add_id(f, id);
}

static void prompt_put_number(filling *f, int number)
{
    char text[16];
    text_put(&f->text, text, (size_t)snprintf(text, sizeof text, "%d", number));
}

/* Adds the size token of a side of `tokens` tokens. */
static mar_status prompt_add_size(filling *f, int tokens)
{
    const text_family *family = f->p->grammar->family;
    char name[32];
    snprintf(name, sizeof name, "<reserved%05d>", family->size_token + tokens * family->stride / family->unit);
    return prompt_add_named(f, name, (int)strlen(name));
}

/* Adds a field, the text between braces. */
static mar_status prompt_add_field(filling *f, const char *name, int length)
{
    const text_prompt *p = f->p;
    const int stride = p->grammar->family->stride;
    static const char *const names[] = {"prompt", "W", "H", "columns", "rows", "size_w", "size_h"};
    int field = 0;
    for (; field < 7; field++)
        if ((int)strlen(names[field]) == length && memcmp(names[field], name, (size_t)length) == 0) break;
    switch (field) {
    case 0:
        text_put(&f->text, f->prompt, strlen(f->prompt));
        return MAR_OK;
    case 1:
    case 2:
        prompt_put_number(f, stride * (field == 1 ? p->columns : p->rows));
        return MAR_OK;
    case 3:
    case 4:
        prompt_put_number(f, field == 3 ? p->columns : p->rows);
        return MAR_OK;
    case 5:
    case 6:
        return prompt_add_size(f, field == 5 ? p->columns : p->rows);
    default:
        return prompt_add_named(f, name, length);
    }
}

mar_status text_prompt_ids(const text_prompt *p, int negative, const char *text, int *ids, int max, int *count,
                           mar_err *err)
{
    const text_family *family = p->grammar->family;
    const char *at = negative ? family->negative : family->prompt, *otherwise = family->negative_prompt;
    filling f = {.p = p,
                 .prompt = text        ? text
                           : otherwise ? otherwise
                                       : "",
                 .out = {.ids = ids, .max = max},
                 .err = err};
    mar_status status = MAR_OK;
    *count = 0;
    while (*at && status == MAR_OK) {
        const size_t plain = strcspn(at, "{"), field = at[plain] ? strcspn(at + plain, "}") : 0;
        text_put(&f.text, at, plain);
        if (field) status = prompt_add_field(&f, at + plain + 1, (int)field - 1);
        at += plain + field + (field > 0);
    }
    if (status == MAR_OK) status = prompt_divide(&f);
    text_buffer_free(&f.text);
    if (status == MAR_OK) *count = f.out.count;
    return status;
}
