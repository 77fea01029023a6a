#include "text/template.h"

#include "text/buffer.h"

#include <stdio.h>
#include <string.h>

/* A template that is being filled. */
typedef struct {
    const text_field *fields; /* [n] */
    int n;
    const text_tokenizer *tokenizer;
    int rows;
    text_buffer text; /* since the last token with a name */
    text_ids out;
    mar_err *err;
} filling;

static mar_status template_check_id(const filling *f, int id)
{
    if (id < f->rows) return MAR_OK;
    return err_set(f->err, MAR_EMODEL, "the tokenizer has token %d, the model's embedding %d rows", id, f->rows);
}

/* Divides the text since the last token with a name. */
static mar_status template_divide_text(filling *f)
{
    int count = 0;
    text_ids *out = &f->out;
    const int kept = out->count < out->max ? out->count : out->max;
    mar_status status = f->text.failed ? err_set(f->err, MAR_ENOMEM, "out of memory for a prompt") : MAR_OK;
    if (status == MAR_OK && f->text.length)
        status =
            text_tokenize(f->tokenizer, f->text.data, f->text.length, out->ids + kept, out->max - kept, &count, f->err);
    text_buffer_free(&f->text);
    const int written = count < out->max - kept ? count : out->max - kept;
    for (int i = kept; i < kept + written && status == MAR_OK; i++) status = template_check_id(f, out->ids[i]);
    out->count += count < INT32_MAX - out->count ? count : INT32_MAX - out->count;
    return status;
}

static mar_status template_add_token(filling *f, const char *name, size_t length)
{
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)length, name);
    mar_status status = template_divide_text(f);
    if (status != MAR_OK) return status;
    const int id = text_tokenizer_find(f->tokenizer, text);
    if (id < 0) return err_set(f->err, MAR_EMODEL, "the tokenizer has no token %s", text);
    status = template_check_id(f, id);
    if (status == MAR_OK) text_add_id(&f->out, id);
    return status;
}

/* Adds a field, the text between braces. */
static mar_status template_add_field(filling *f, const char *name, size_t length)
{
    for (int i = 0; i < f->n; i++) {
        const text_field *field = &f->fields[i];
        if (strlen(field->name) != length || memcmp(field->name, name, length) != 0) continue;
        if (field->is_token) return template_add_token(f, field->value, strlen(field->value));
        text_put(&f->text, field->value, strlen(field->value));
        return MAR_OK;
    }
    return template_add_token(f, name, length);
}

mar_status text_template_ids(const char *at, const text_field *fields, int n, const text_tokenizer *t, int rows,
                             int *ids, int max, int *count, mar_err *err)
{
    filling f = {.fields = fields, .n = n, .tokenizer = t, .rows = rows, .out = {.ids = ids, .max = max}, .err = err};
    mar_status status = MAR_OK;
    *count = 0;
    while (*at && status == MAR_OK) {
        const size_t plain = strcspn(at, "{"), field = at[plain] ? strcspn(at + plain, "}") : 0;
        text_put(&f.text, at, plain);
        if (field) status = template_add_field(&f, at + plain + 1, field - 1);
        at += plain + field + (field > 0);
    }
    if (status == MAR_OK) status = template_divide_text(&f);
    text_buffer_free(&f.text);
    if (status == MAR_OK) *count = f.out.count;
    return status;
}
