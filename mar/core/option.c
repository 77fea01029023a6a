/* One option: its value from text and to text (mar.h, mar_param). */
#include "mar/core/option.h"
#include "mar/core/sized.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *mar_param_field(const mar_param *o, const void *fields)
{
    return (char *)(uintptr_t)fields + o->offset;
}

size_t mar_param_size(const mar_param *o)
{
    switch (o->type) {
    case MAR_TYPE_UINT64:
        return sizeof(uint64_t);
    case MAR_TYPE_FLOAT:
        return sizeof(float);
    case MAR_TYPE_NAME:
    case MAR_TYPE_TEXT:
    case MAR_TYPE_MODEL:
        return sizeof(void *);
    default:
        return sizeof(int);
    }
}

int mar_param_choice(const mar_param *o, const char *text)
{
    for (int i = 0; o->choices && o->choices[i]; i++)
        if (*text && strcmp(text, o->choices[i]) == 0) return i;
    return -1;
}

static int choice_count(const mar_param *o)
{
    int n = 0;
    while (o->choices && o->choices[n]) n++;
    return n;
}

/* Returns the name of a float's value; NULL if it has none. */
static const char *float_choice(const mar_param *o, float v)
{
    for (int i = 0; i < choice_count(o); i++)
        if (v == (float)(o->min + i)) return o->choices[i];
    return NULL;
}

/* Returns whether the option takes values besides its choices. */
static int is_open(const mar_param *o)
{
    return o->type == MAR_TYPE_INT || o->type == MAR_TYPE_FLOAT || o->type == MAR_TYPE_TEXT;
}

/* Writes "linear, cosine or two-stage". For a number or text, writes only the choices in front of "or". */
static void list_choices(const mar_param *o, char *text, size_t size)
{
    size_t used = 0;
    for (int i = 0; o->choices && o->choices[i] && used < size; i++) {
        const char *between = i == 0 ? "" : o->choices[i + 1] || is_open(o) ? ", " : " or ";
        if (!*o->choices[i]) continue; /* a number without a name */
        used += (size_t)snprintf(text + used, size - used, "%s%s", between, o->choices[i]);
    }
}

/* Copies a host's row, of this or an older mar.h. Returns 0 for NULL, and if its size is that of none. */
static int read_row(const mar_param *o, mar_param *row)
{
    *row = (mar_param){0};
    return mar_sized_read(o, row, sizeof *row, "mar_param", NULL) == MAR_OK;
}

/* Returns the text; "" for NULL. An option made by the host may have NULL. */
static const char *given(const char *text)
{
    return text ? text : "";
}

/* As mar_param_expects, of a row of this mar.h and with room for text. */
static const char *write_expected(const mar_param *o, char *text, size_t size)
{
    *text = '\0';
    switch (o->type) {
    case MAR_TYPE_FLAG:
        snprintf(text, size, "on or off");
        break;
    case MAR_TYPE_INT:
        list_choices(o, text, size);
        snprintf(text + strlen(text), size - strlen(text), "%sa whole number from %.0f to %.0f", *text ? " or " : "",
                 o->min + choice_count(o), o->max);
        break;
    case MAR_TYPE_UINT64:
        snprintf(text, size, "a whole number from 0 to %" PRIu64, UINT64_MAX);
        break;
    case MAR_TYPE_FLOAT:
        list_choices(o, text, size);
        snprintf(text + strlen(text), size - strlen(text), "%sa number from %g to %g", *text ? " or " : "",
                 o->min + choice_count(o), o->max);
        break;
    case MAR_TYPE_CHOICE:
    case MAR_TYPE_NAME:
        list_choices(o, text, size);
        break;
    case MAR_TYPE_TEXT:
    case MAR_TYPE_MODEL:
        list_choices(o, text, size);
        snprintf(text + strlen(text), size - strlen(text), "%s%s, %.*s", *text ? " or " : "", given(o->argument),
                 (int)strcspn(given(o->help), "\n"), given(o->help));
        break;
    }
    return text;
}

const char *mar_param_expects(const mar_param *o, char *text, size_t size)
{
    mar_param row;
    if (!text || size == 0) return "";
    *text = '\0';
    return read_row(o, &row) ? write_expected(&row, text, size) : text;
}

/* Stores the value. Returns 0 if the option does not accept it. */
static int option_store(const mar_param *o, void *field, const char *text)
{
    char *end;
    errno = 0;
    switch (o->type) {
    case MAR_TYPE_FLAG: {
        const int on = strcmp(text, "on") == 0;
        if (!on && strcmp(text, "off") != 0) return 0;
        *(int *)field = on;
        return 1;
    }
    case MAR_TYPE_INT: {
        const int named = mar_param_choice(o, text);
        const long v = named >= 0 ? (long)o->min + named : strtol(text, &end, 10);
        if (named < 0 && (end == text || *end || errno || (double)v < o->min + choice_count(o))) return 0;
        if (!((double)v >= o->min && (double)v <= o->max)) return 0;
        *(int *)field = (int)v;
        return 1;
    }
    case MAR_TYPE_UINT64: {
        const unsigned long long v = strtoull(text, &end, 10);
        if (end == text || *end || errno || strchr(text, '-')) return 0; /* strtoull reads -1 as the largest number */
        *(uint64_t *)field = v;
        return 1;
    }
    case MAR_TYPE_FLOAT: {
        const int named = mar_param_choice(o, text);
        const double v = named >= 0 ? o->min + named : strtod(text, &end), least = o->min + choice_count(o);
        if (named < 0 && (end == text || *end || !(v >= least && v <= o->max))) return 0;
        *(float *)field = (float)v;
        return 1;
    }
    case MAR_TYPE_CHOICE: {
        const int i = mar_param_choice(o, text);
        if (i >= 0) *(int *)field = i;
        return i >= 0;
    }
    case MAR_TYPE_NAME: {
        const int i = mar_param_choice(o, text);
        if (i >= 0) *(const char **)field = o->choices[i];
        return i >= 0;
    }
    case MAR_TYPE_TEXT: {
        const int i = mar_param_choice(o, text);
        if (*text) *(const char **)field = i >= 0 ? o->choices[i] : text;
        return *text != '\0';
    }
    case MAR_TYPE_MODEL:
        break; /* the host loads the model and sets the field */
    }
    return 0;
}

mar_status mar_param_set(const mar_param *o, void *fields, const char *text, char *why, size_t size)
{
    char expected[256];
    mar_param row;
    const int is_row = read_row(o, &row);
    if (is_row && fields && text && option_store(&row, mar_param_field(&row, fields), text)) return MAR_OK;
    if (!why) return MAR_EARG;
    if (!o)
        err_line(why, size, "the option is NULL");
    else if (!is_row)
        err_line(why, size, "mar_param.size is %zu: expected sizeof(mar_param), at most %zu with libmar %s", o->size,
                 sizeof row, mar_version());
    else if (!fields)
        err_line(why, size, "--%s: the fields are NULL", given(row.name));
    else
        err_line(why, size, "--%s %s: expected %s", given(row.name),
                 !text   ? "NULL"
                 : *text ? text
                         : "(empty)",
                 write_expected(&row, expected, sizeof expected));
    return MAR_EARG;
}

/* Writes the shortest decimal that reads back as the same float: 2.9, not 2.90000009. */
static void write_float(float v, char *text, size_t size)
{
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, size, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v) return;
    }
}

/* Returns whether a number is in range. The host may have stored it without mar_param_set. */
static int in_range(const mar_param *o, const void *fields)
{
    const void *field = mar_param_field(o, fields);
    switch (o->type) {
    case MAR_TYPE_FLAG:
        return *(const int *)field == 0 || *(const int *)field == 1;
    case MAR_TYPE_INT:
        return *(const int *)field >= o->min && *(const int *)field <= o->max;
    case MAR_TYPE_FLOAT: {
        const float v = *(const float *)field; /* the bounds as floats: 1e-3 is not exact */
        return float_choice(o, v) || (v >= (float)(o->min + choice_count(o)) && v <= (float)o->max);
    }
    case MAR_TYPE_CHOICE:
        return *(const int *)field >= 0 && *(const int *)field < choice_count(o) && *o->choices[*(const int *)field];
    case MAR_TYPE_NAME:
        return !*(const char *const *)field || mar_param_choice(o, *(const char *const *)field) >= 0;
    default:
        return 1;
    }
}

const char *mar_param_text(const mar_param *given_row, const void *fields, char *text, size_t size)
{
    mar_param row;
    const mar_param *o = &row;
    if (!text || size == 0) return "";
    *text = '\0';
    if (!read_row(given_row, &row) || !fields) return text;
    const void *field = mar_param_field(o, fields);
    switch (o->type) {
    case MAR_TYPE_FLAG:
        if (in_range(o, fields))
            snprintf(text, size, "%s", *(const int *)field ? "on" : "off");
        else
            snprintf(text, size, "%d", *(const int *)field);
        break;
    case MAR_TYPE_INT: {
        const double place = *(const int *)field - o->min;
        if (place >= 0 && place < choice_count(o))
            snprintf(text, size, "%s", o->choices[(int)place]);
        else
            snprintf(text, size, "%d", *(const int *)field);
        break;
    }
    case MAR_TYPE_UINT64:
        snprintf(text, size, "%" PRIu64, *(const uint64_t *)field);
        break;
    case MAR_TYPE_FLOAT: {
        const char *name = float_choice(o, *(const float *)field);
        if (name)
            snprintf(text, size, "%s", name);
        else
            write_float(*(const float *)field, text, size);
        break;
    }
    case MAR_TYPE_CHOICE:
        if (in_range(o, fields))
            snprintf(text, size, "%s", o->choices[*(const int *)field]);
        else
            snprintf(text, size, "%d", *(const int *)field);
        break;
    case MAR_TYPE_NAME:
    case MAR_TYPE_TEXT: {
        const char *value = *(const char *const *)field;
        snprintf(text, size, "%s", value ? value : "");
        break;
    }
    case MAR_TYPE_MODEL:
        snprintf(text, size, "%s", "");
        break;
    }
    return text;
}

void mar_param_reset(const mar_param *o, void *fields)
{
    void *field = mar_param_field(o, fields);
    if (o->type == MAR_TYPE_FLOAT)
        *(float *)field = (float)o->value;
    else if (o->type == MAR_TYPE_UINT64)
        *(uint64_t *)field = (uint64_t)o->value;
    else if (mar_param_size(o) == sizeof(int))
        *(int *)field = (int)o->value;
    else
        *(void **)field = NULL;
}

int mar_param_is_default(const mar_param *given_row, const void *fields)
{
    mar_param row;
    const mar_param *o = &row;
    if (!read_row(given_row, &row) || !fields) return 0;
    const void *field = mar_param_field(o, fields);
    if (o->type == MAR_TYPE_FLOAT) return *(const float *)field == (float)o->value;
    if (o->type == MAR_TYPE_UINT64) return *(const uint64_t *)field == (uint64_t)o->value;
    if (mar_param_size(o) == sizeof(int)) return *(const int *)field == (int)o->value;
    return *(void *const *)field == NULL;
}

mar_status mar_param_check(const mar_param *o, const void *fields, mar_err *err)
{
    char expected[256], value[64];
    if (in_range(o, fields)) return MAR_OK;
    return err_set(err, MAR_EARG, "--%s %s: expected %s", o->name, mar_param_text(o, fields, value, sizeof value),
                   write_expected(o, expected, sizeof expected));
}
