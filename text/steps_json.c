#include "text/steps_json.h"

#include "text/json_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* GPT-2's words: encoder.py of openai/gpt-2. */
static const char gpt2_words[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Words and runs of other signs. Rust's \w has the joiners U+200C and U+200D, Oniguruma's does not. */
static const char rust_words[] = "[\\w\\x{200c}\\x{200d}]+|[^\\w\\s\\x{200c}\\x{200d}]+";

typedef struct {
    const char *label, *what; /* path; "normalizer" or "pre_tokenizer" */
    text_budget *budget;      /* of the file */
    text_steps *steps;
    mar_err *err;
} reading;

static mar_status steps_add(reading *r, text_step step)
{
    return text_steps_add(r->steps, step) ? MAR_OK : err_set(r->err, MAR_ENOMEM, "%s: no memory for a step", r->label);
}

static mar_status only(const reading *r, const json_value *v, const char *names)
{
    return text_json_only(v, r->what, names, r->label, r->err);
}

/* Copies a string of the file. */
static mar_status copy_string(const reading *r, const json_value *v, char **out, size_t *length)
{
    *length = v->length;
    *out = malloc(v->length + 1);
    if (!*out) return err_set(r->err, MAR_ENOMEM, "%s: no memory for a step", r->label);
    memcpy(*out, v->text, v->length + 1);
    return MAR_OK;
}

/* Compiles a pattern of text[n], in Oniguruma's syntax. A short one may take 64 KB. */
static mar_status steps_compile(const reading *r, const char *text, size_t n, text_pattern **out)
{
    enum { COMPILE_STEPS = 4096 }; /* and one for each byte of the program */
    char part[ERR_TEXT_MAX];
    mar_status status = text_pattern_translate(text, n, r->label, out, r->err);
    if (status != MAR_OK) return status;
    const size_t bytes = text_pattern_bytes(*out);
    text_charge_steps(r->budget, COMPILE_STEPS + bytes);
    text_charge_bytes(r->budget, bytes);
    snprintf(part, sizeof part, "%s: %s: the compiled patterns", r->label, r->what);
    if (text_budget_check(r->budget, part, r->err) == MAR_OK) return MAR_OK;
    text_pattern_free(*out);
    *out = NULL;
    return MAR_EFORMAT;
}

/* Compiles "pattern", {"Regex": ...} or {"String": ...}. */
static mar_status read_pattern(const reading *r, const json_value *v, text_pattern **out)
{
    const json_value *p = json_member(v, "pattern");
    *out = NULL;
    if (!p || p->type != JSON_OBJECT || json_children(p) != 1 || p[2].type != JSON_STRING)
        return err_set(r->err, MAR_EFORMAT, "%s: %s: \"pattern\" is neither a String nor a Regex", r->label, r->what);
    if (json_is(&p[1], "Regex")) return steps_compile(r, p[2].text, p[2].length, out);
    if (!json_is(&p[1], "String"))
        return err_set(r->err, MAR_EFORMAT, "%s: %s: a pattern \"%s\" is not supported", r->label, r->what, p[1].text);
    *out = text_pattern_literal(p[2].text, p[2].length);
    return *out ? MAR_OK : err_set(r->err, MAR_ENOMEM, "%s: no memory for a pattern", r->label);
}

/* Adds a split at a pattern of ours, in Oniguruma's syntax. */
static mar_status add_split(reading *r, const char *pattern, split_behavior behavior, int invert)
{
    text_step step = {.kind = STEP_SPLIT, .behavior = behavior, .invert = invert};
    const mar_status status = steps_compile(r, pattern, strlen(pattern), &step.pattern);
    return status == MAR_OK ? steps_add(r, step) : status;
}

/* --- normalizers ------------------------------------------------------------------------------------------------- */

static mar_status read_replace(reading *r, const json_value *v)
{
    const json_value *content;
    text_step step = {.kind = STEP_REPLACE};
    mar_status status = only(r, v, "type pattern content");
    if (status == MAR_OK) status = text_json_string(v, r->what, "content", &content, r->label, r->err);
    if (status == MAR_OK) status = read_pattern(r, v, &step.pattern);
    if (status != MAR_OK) return status;
    status = copy_string(r, content, &step.text, &step.length);
    if (status == MAR_OK) return steps_add(r, step);
    text_pattern_free(step.pattern);
    return status;
}

static mar_status read_prepend(reading *r, const json_value *v)
{
    const json_value *text;
    text_step step = {.kind = STEP_PREPEND};
    mar_status status = only(r, v, "type prepend");
    if (status == MAR_OK) status = text_json_string(v, r->what, "prepend", &text, r->label, r->err);
    if (status == MAR_OK) status = copy_string(r, text, &step.text, &step.length);
    return status == MAR_OK ? steps_add(r, step) : status;
}

static mar_status read_strip(reading *r, const json_value *v)
{
    text_step step = {.kind = STEP_STRIP};
    mar_status status = only(r, v, "type strip_left strip_right");
    if (status == MAR_OK) status = text_json_flag(v, r->what, "strip_left", -1, &step.left, r->label, r->err);
    if (status == MAR_OK) status = text_json_flag(v, r->what, "strip_right", -1, &step.right, r->label, r->err);
    return status == MAR_OK ? steps_add(r, step) : status;
}

static mar_status steps_read_normalizer(reading *r, const json_value *v, const json_value *type)
{
    static const struct {
        const char *name;
        step_kind kind;
    } plain[] = {
        {"NFC", STEP_NFC}, {"NFD", STEP_NFD}, {"NFKC", STEP_NFKC}, {"NFKD", STEP_NFKD}, {"Lowercase", STEP_LOWERCASE}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (!json_is(type, plain[i].name)) continue;
        const mar_status status = only(r, v, "type");
        return status == MAR_OK ? steps_add(r, (text_step){.kind = plain[i].kind}) : status;
    }
    if (json_is(type, "Replace")) return read_replace(r, v);
    if (json_is(type, "Prepend")) return read_prepend(r, v);
    if (json_is(type, "Strip")) return read_strip(r, v);
    return err_set(r->err, MAR_EFORMAT, "%s: normalizer: \"%s\" is not supported", r->label, type->text);
}

/* --- pre-tokenizers ---------------------------------------------------------------------------------------------- */

static mar_status read_behavior(const reading *r, const json_value *v, split_behavior *out)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"};
    const json_value *name;
    const mar_status status = text_json_string(v, r->what, "behavior", &name, r->label, r->err);
    if (status != MAR_OK) return status;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_is(name, names[i])) {
            *out = (split_behavior)i;
            return MAR_OK;
        }
    return err_set(r->err, MAR_EFORMAT, "%s: %s: behavior \"%s\" is not supported", r->label, r->what, name->text);
}

static mar_status read_split(reading *r, const json_value *v)
{
    text_step step = {.kind = STEP_SPLIT};
    mar_status status = only(r, v, "type pattern behavior invert");
    if (status == MAR_OK) status = read_behavior(r, v, &step.behavior);
    if (status == MAR_OK) status = text_json_flag(v, r->what, "invert", -1, &step.invert, r->label, r->err);
    if (status == MAR_OK) status = read_pattern(r, v, &step.pattern);
    return status == MAR_OK ? steps_add(r, step) : status;
}

static mar_status read_byte_level(reading *r, const json_value *v)
{
    int prefix, words, trim;
    mar_status status = only(r, v, "type add_prefix_space trim_offsets use_regex");
    if (status == MAR_OK) status = text_json_flag(v, r->what, "add_prefix_space", -1, &prefix, r->label, r->err);
    if (status == MAR_OK) status = text_json_flag(v, r->what, "trim_offsets", 1, &trim, r->label, r->err);
    if (status == MAR_OK) status = text_json_flag(v, r->what, "use_regex", 1, &words, r->label, r->err);
    if (status == MAR_OK && prefix) status = steps_add(r, (text_step){.kind = STEP_PREFIX});
    if (status == MAR_OK && words) status = add_split(r, gpt2_words, SPLIT_ISOLATED, 0);
    return status == MAR_OK ? steps_add(r, (text_step){.kind = STEP_BYTES}) : status;
}

static mar_status steps_read_digits(reading *r, const json_value *v)
{
    int single;
    mar_status status = only(r, v, "type individual_digits");
    if (status == MAR_OK) status = text_json_flag(v, r->what, "individual_digits", -1, &single, r->label, r->err);
    return status == MAR_OK ? add_split(r, "\\p{N}", single ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, 0) : status;
}

static mar_status read_pre_tokenizer(reading *r, const json_value *v, const json_value *type)
{
    split_behavior behavior = SPLIT_REMOVED;
    mar_status status;
    if (json_is(type, "ByteLevel")) return read_byte_level(r, v);
    if (json_is(type, "Split")) return read_split(r, v);
    if (json_is(type, "Digits")) return steps_read_digits(r, v);
    if (json_is(type, "Whitespace")) {
        status = only(r, v, "type");
        return status == MAR_OK ? add_split(r, rust_words, SPLIT_REMOVED, 1) : status;
    }
    if (json_is(type, "WhitespaceSplit")) {
        status = only(r, v, "type");
        return status == MAR_OK ? add_split(r, "\\s", SPLIT_REMOVED, 0) : status;
    }
    if (json_is(type, "Punctuation")) {
        status = only(r, v, "type behavior");
        if (status == MAR_OK) status = read_behavior(r, v, &behavior);
        return status == MAR_OK ? add_split(r, "[!-/:-@\\[-`{-~\\p{P}]", behavior, 0) : status;
    }
    return err_set(r->err, MAR_EFORMAT, "%s: pre_tokenizer: \"%s\" is not supported", r->label, type->text);
}

/* --- both -------------------------------------------------------------------------------------------------------- */

typedef mar_status read_step(reading *r, const json_value *v, const json_value *type);

/* Returns the list of a Sequence; NULL, with a message, if it has no list. */
static const json_value *read_sequence(const reading *r, const json_value *v, const char *list)
{
    char names[64];
    const json_value *items = json_member(v, list);
    memcpy(names, "type ", 6);
    strcat(names, list);
    if (only(r, v, names) != MAR_OK) return NULL;
    if (items && items->type == JSON_ARRAY) return items;
    err_set(r->err, MAR_EFORMAT, "%s: %s: \"%s\" is no list", r->label, r->what, list);
    return NULL;
}

/* Reads the steps of v in their order. A Sequence has a list of others with the name `list`. Their steps follow it in
 * the file's order: one pass over its values that skips each step's members finds all. */
static mar_status read_steps(reading *r, const json_value *v, const char *list, read_step *read)
{
    if (!v || v->type == JSON_NULL) return MAR_OK;
    mar_status status = MAR_OK;
    const json_value *const end = json_next(v);
    for (const json_value *at = v; at < end && status == MAR_OK;) {
        const json_value *type = NULL;
        if (at->type != JSON_OBJECT) return err_set(r->err, MAR_EFORMAT, "%s: %s: is no object", r->label, r->what);
        status = text_json_string(at, r->what, "type", &type, r->label, r->err);
        if (status != MAR_OK) return status;
        const json_value *next = json_next(at);
        if (json_is(type, "Sequence")) {
            const json_value *items = read_sequence(r, at, list);
            if (!items) return MAR_EFORMAT;
            if (json_next(items) != json_next(at)) /* "type" behind the list: its values are no steps */
                return err_set(r->err, MAR_EFORMAT, "%s: %s: \"type\" stands behind \"%s\"", r->label, r->what, list);
            next = items + 1;
        } else {
            status = read(r, at, type);
        }
        at = next;
    }
    return status;
}

mar_status text_read_normalizers(const json_value *v, const char *label, text_budget *budget, text_steps *out,
                                 mar_err *err)
{
    reading r = {label, "normalizer", budget, out, err};
    return read_steps(&r, v, "normalizers", steps_read_normalizer);
}

mar_status text_read_splits(const json_value *v, const char *label, text_budget *budget, text_steps *out, mar_err *err)
{
    reading r = {label, "pre_tokenizer", budget, out, err};
    return read_steps(&r, v, "pretokenizers", read_pre_tokenizer);
}
