#include "text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

struct text_pattern {
    pcre2_code *code; /* NULL: matches `text` as it is */
    char *text;       /* [length] */
    size_t length;
    int has_callouts; /* its searches charge their work as they go */
    int is_anchored;  /* it matches at the start of a search or nowhere */
};

struct text_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    text_budget *budget;
    PCRE2_SIZE place; /* of the last step */
    int error;        /* PCRE2's, of the first search that failed; 0: none */
};

/* Backtracking steps from one start, KiB, and steps that a search takes without a match. */
enum { MATCH_LIMIT = 1000000, HEAP_LIMIT = 16384, SEARCH_STEPS = 16 };

static mar_status pattern_compile(const char *pattern, size_t length, uint32_t more, const char *label,
                                  text_pattern **out, mar_err *err)
{
    int number;
    size_t at;
    char why[256];
    *out = NULL;
    text_pattern *p = calloc(1, sizeof *p);
    pcre2_compile_context *context = p ? pcre2_compile_context_create(NULL) : NULL;
    if (!context) {
        free(p);
        return err_set(err, MAR_ENOMEM, "%s: no memory for a pattern", label);
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 50);
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | more;
    p->code = pcre2_compile((PCRE2_SPTR)pattern, length, options, &number, &at, context);
    pcre2_compile_context_free(context);
    p->has_callouts = (more & PCRE2_AUTO_CALLOUT) != 0;
    if (p->code) {
        uint32_t all = 0;
        pcre2_pattern_info(p->code, PCRE2_INFO_ALLOPTIONS, &all);
        p->is_anchored = (all & PCRE2_ANCHORED) != 0;
        *out = p;
        return MAR_OK;
    }
    free(p);
    if (pcre2_get_error_message(number, (PCRE2_UCHAR *)why, sizeof why) < 0) *why = '\0';
    if (number == PCRE2_ERROR_HEAP_FAILED) return err_set(err, MAR_ENOMEM, "%s: no memory for a pattern", label);
    return err_set(err, MAR_EFORMAT, "%s: pattern \"%.*s\": %s, at %zu", label, length > 100 ? 100 : (int)length,
                   pattern, why, at);
}

mar_status text_pattern_compile(const char *pattern, size_t length, const char *label, text_pattern **out, mar_err *err)
{
    return pattern_compile(pattern, length, 0, label, out, err);
}

text_pattern *text_pattern_literal(const char *text, size_t length)
{
    text_pattern *p = calloc(1, sizeof *p);
    char *copy = p ? malloc(length + 1) : NULL;
    if (!copy) {
        free(p);
        return NULL;
    }
    if (length) memcpy(copy, text, length);
    p->text = copy;
    p->length = length;
    return p;
}

size_t text_pattern_bytes(const text_pattern *p)
{
    size_t size = p->length;
    if (p->code) pcre2_pattern_info(p->code, PCRE2_INFO_SIZE, &size);
    return sizeof *p + size;
}

void text_pattern_free(text_pattern *p)
{
    if (!p) return;
    pcre2_code_free(p->code);
    free(p->text);
    free(p);
}

/* Charges the work before each part of a pattern, and ends the search at the limit. */
static int charge_work(pcre2_callout_block *b, void *matcher)
{
    text_matcher *m = matcher;
    const PCRE2_SIZE at = b->current_position, passed = at > m->place ? at - m->place : m->place - at;
    m->place = at;
    return text_charge_steps(m->budget, passed + 1) ? 0 : PCRE2_ERROR_MATCHLIMIT;
}

text_matcher *text_matcher_new(text_budget *budget)
{
    text_matcher *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->data = pcre2_match_data_create(TEXT_GROUPS, NULL);
    m->context = pcre2_match_context_create(NULL);
    if (!m->data || !m->context) {
        text_matcher_free(m);
        return NULL;
    }
    m->budget = budget;
    pcre2_set_callout(m->context, charge_work, m);
    pcre2_set_match_limit(m->context, MATCH_LIMIT);
    pcre2_set_heap_limit(m->context, HEAP_LIMIT);
    return m;
}

text_budget *text_matcher_budget(const text_matcher *m)
{
    return m->budget;
}

void text_matcher_free(text_matcher *m)
{
    if (!m) return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    free(m);
}

/* Finds the pattern's own text. Returns as pcre2_match. */
static int find_literal(const text_pattern *p, text_matcher *m, const char *text, size_t n, size_t from)
{
    const char *const at = p->length ? memmem(text + from, n - from, p->text, p->length) : text + from;
    size_t *const ends = pcre2_get_ovector_pointer(m->data);
    const size_t end = at ? (size_t)(at - text) + p->length : n;
    if (!text_charge_steps(m->budget, end - from)) return PCRE2_ERROR_MATCHLIMIT;
    if (!at) return PCRE2_ERROR_NOMATCH;
    ends[0] = end - p->length;
    ends[1] = end;
    return 1;
}

static int pattern_search(const text_pattern *p, text_matcher *m, const char *text, size_t n, size_t from)
{
    if (!text_charge_steps(m->budget, SEARCH_STEPS)) return PCRE2_ERROR_MATCHLIMIT;
    if (!p->code) return find_literal(p, m, text, n, from);
    m->place = from;
    const int rc = pcre2_match(p->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
    const size_t passed = rc == PCRE2_ERROR_NOMATCH   ? (p->is_anchored ? 0 : n - from)
                          : rc < 0 || p->has_callouts ? 0
                                                      : pcre2_get_ovector_pointer(m->data)[1] - from;
    return text_charge_steps(m->budget, passed) ? rc : PCRE2_ERROR_MATCHLIMIT;
}

int text_pattern_find(const text_pattern *p, text_matcher *m, const char *text, size_t n, size_t from, text_match *out)
{
    const int rc = pattern_search(p, m, text, n, from);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) {
        if (!m->error) m->error = rc;
        return -1;
    }
    const size_t *const ends = pcre2_get_ovector_pointer(m->data);
    for (int i = 0; i < TEXT_GROUPS; i++) {
        const int known = rc == 0 || i < rc;
        out->begin[i] = known ? ends[2 * i] : SIZE_MAX;
        out->end[i] = known ? ends[2 * i + 1] : SIZE_MAX;
    }
    return 1;
}

mar_status text_matcher_check(const text_matcher *m, const char *label, mar_err *err)
{
    if (m->error == 0) return MAR_OK;
    if (m->error == PCRE2_ERROR_NOMEMORY) return err_set(err, MAR_ENOMEM, "%s: no memory for a search", label);
    const mar_status status = text_budget_check(m->budget, label, err);
    return status != MAR_OK ? status : err_set(err, MAR_EARG, "%s: a pattern exceeds its limit of steps", label);
}

mar_status text_pattern_replace(const text_pattern *p, text_matcher *m, const char *text, size_t n, const char *with,
                                const char *label, text_buffer *out, mar_err *err)
{
    size_t done = 0, from = 0;
    text_match match;
    int found = 0;
    while (from <= n && (found = text_pattern_find(p, m, text, n, from, &match)) > 0) {
        from = match.end[0];
        if (match.begin[0] == match.end[0]) {
            do from++;
            while (from < n && ((uint8_t)text[from] & 0xc0) == 0x80);
            continue;
        }
        text_put(out, text + done, match.begin[0] - done);
        for (const char *c = with; *c; c++)
            if (*c != '\\' || c[1] != '1')
                text_put(out, c, 1);
            else if (c++, match.begin[1] != SIZE_MAX)
                text_put(out, text + match.begin[1], match.end[1] - match.begin[1]);
        done = match.end[0];
    }
    if (found < 0) return text_matcher_check(m, label, err);
    text_put(out, text + done, n - done);
    return out->failed ? err_set(err, MAR_ENOMEM, "%s: no memory for a text of %zu bytes", label, n) : MAR_OK;
}

/* --- Oniguruma's syntax ------------------------------------------------------------------------------------------ */

typedef struct {
    const char *pattern, *label;
    size_t length, at;
    int in_class;
    text_buffer out;
    mar_err *err;
} translation;

static mar_status pattern_refuse(translation *t, size_t size)
{
    size_t left = t->length - t->at;
    if (size < left) left = size;
    return err_set(t->err, MAR_EFORMAT, "%s: pattern: \"%.*s\" at %zu is not supported", t->label, (int)left,
                   t->pattern + t->at, t->at);
}

static void put_text(translation *t, const char *text)
{
    text_put(&t->out, text, strlen(text));
}

/* Translates an escape. White space is Unicode's White_Space; a letter of a word is Alphabetic, a mark, a decimal
 * number or a connector. PCRE2's \s also has U+180E, and its \w has no marks. */
static mar_status translate_escape(translation *t)
{
    static const char *const space = "\\p{Z}\\t-\\r\\x{85}", *const word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
    const char c = t->at + 1 < t->length ? t->pattern[t->at + 1] : '\0';
    const int is_set = c == 's' || c == 'S' || c == 'w' || c == 'W';
    if (is_set && t->in_class && (c == 'S' || c == 'W')) return pattern_refuse(t, 2);
    if (is_set) {
        if (!t->in_class) put_text(t, c == 'S' || c == 'W' ? "[^" : "[");
        put_text(t, c == 's' || c == 'S' ? space : word);
        if (!t->in_class) put_text(t, "]");
    } else if (c == 'v') {
        put_text(t, "\\x0b");
    } else if (c &&
               (strchr("nrtfaepPdDAzx", c) || (!((c | 0x20) >= 'a' && (c | 0x20) <= 'z') && !(c >= '0' && c <= '9')))) {
        text_put(&t->out, t->pattern + t->at, 2);
    } else {
        return pattern_refuse(t, 2);
    }
    t->at += 2;
    return MAR_OK;
}

/* Copies the start of a group of a kind that both know. Options in mid-pattern are refused: Oniguruma reads
 * "a(?i)b|c" as "a(?i:b|c)". */
static mar_status translate_group(translation *t)
{
    static const char *const kinds[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)", "(?-i)", "(?-i:"};
    const char *const at = t->pattern + t->at;
    const size_t left = t->length - t->at;
    if (left > 1 && at[1] == '*') return pattern_refuse(t, 2);
    if (left < 2 || at[1] != '?') {
        put_text(t, "(");
        t->at++;
        return MAR_OK;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const size_t size = strlen(kinds[i]);
        if (size > left || memcmp(at, kinds[i], size) != 0) continue;
        if (at[size - 1] == ')' && t->at > 0) break;
        put_text(t, kinds[i]);
        t->at += size;
        return MAR_OK;
    }
    return pattern_refuse(t, 4);
}

static mar_status translate_next(translation *t)
{
    const char c = t->pattern[t->at];
    if (c == '\\') return translate_escape(t);
    if (c == '(' && !t->in_class) return translate_group(t);
    if (t->in_class && (c == '[' || (c == '&' && t->at + 1 < t->length && t->pattern[t->at + 1] == '&')))
        return pattern_refuse(t, 2);
    if (c == '[') {
        t->in_class = 1;
        put_text(t, "[");
        t->at++;
        if (t->at < t->length && t->pattern[t->at] == '^') {
            put_text(t, "^");
            t->at++;
        }
        if (t->at < t->length && t->pattern[t->at] == ']') return pattern_refuse(t, 1);
        return MAR_OK;
    }
    if (c == ']') t->in_class = 0;
    text_put(&t->out, &c, 1);
    t->at++;
    return MAR_OK;
}

mar_status text_pattern_translate(const char *pattern, size_t length, const char *label, text_pattern **out,
                                  mar_err *err)
{
    translation t = {.pattern = pattern, .label = label, .length = length, .err = err};
    mar_status status = MAR_OK;
    *out = NULL;
    while (status == MAR_OK && t.at < length) status = translate_next(&t);
    if (status == MAR_OK && t.out.failed) status = err_set(err, MAR_ENOMEM, "%s: no memory for a pattern", label);
    if (status == MAR_OK)
        status = pattern_compile(t.out.data ? t.out.data : "", t.out.length, PCRE2_MULTILINE | PCRE2_AUTO_CALLOUT,
                                 label, out, err);
    text_buffer_free(&t.out);
    return status;
}
