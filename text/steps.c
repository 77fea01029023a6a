#include "text/steps.h"

#include "base/printable.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Steps of a budget: of a call for a text or word, and of a byte in a normal form. */
enum { CALL_STEPS = 32, NORMAL_FORM_STEPS = 8 };

/* Parts that messages name. */
static const char normalizer[] = "the tokenizer: normalizer", pre_tokenizer[] = "the tokenizer: pre_tokenizer";

int text_steps_add(text_steps *s, text_step step)
{
    text_step *grown = text_grow(s->steps, s->count, &s->capacity, sizeof *grown);
    if (!grown) {
        text_pattern_free(step.pattern);
        free(step.text);
        return 0;
    }
    s->steps = grown;
    s->steps[s->count++] = step;
    return 1;
}

void text_steps_free(text_steps *s)
{
    for (size_t i = 0; i < s->count; i++) {
        text_pattern_free(s->steps[i].pattern);
        free(s->steps[i].text);
    }
    free(s->steps);
    *s = (text_steps){0};
}

void text_add_part(text_parts *p, size_t start, size_t length, int32_t id)
{
    if (p->failed || (length == 0 && id < 0)) return;
    text_part *grown = text_grow(p->list, p->count, &p->capacity, sizeof *grown);
    if (!grown) {
        p->failed = 1;
        return;
    }
    p->list = grown;
    p->list[p->count++] = (text_part){start, length, id};
}

void text_parts_free(text_parts *p)
{
    text_buffer_free(&p->text);
    free(p->list);
    *p = (text_parts){0};
}

/* --- normalizers ------------------------------------------------------------------------------------------------- */

/* Returns the longest run of characters that a normal form sorts. */
static size_t longest_marks(const char *text, size_t n)
{
    size_t longest = 0, run = 0;
    unsigned c = 0;
    for (size_t at = 0, size; at < n; at += size) {
        size = utf8_decode(text + at, n - at, &c);
        if (size == 0) size = 1;
        run = c >= 0x300 && utf8proc_get_property((utf8proc_int32_t)c)->combining_class ? run + 1 : 0;
        if (run > longest) longest = run;
    }
    return longest;
}

static mar_status put_normal_form(step_kind kind, const char *text, size_t n, text_buffer *out, mar_err *err)
{
    static const int options[] = {[STEP_NFC] = UTF8PROC_COMPOSE,
                                  [STEP_NFD] = UTF8PROC_DECOMPOSE,
                                  [STEP_NFKC] = UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
                                  [STEP_NFKD] = UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
    utf8proc_uint8_t *normal = NULL;
    const size_t marks = longest_marks(text, n);
    if (marks > STEP_MARKS_MAX)
        return err_set(err, MAR_EARG, "%zu combining marks in a row, expected at most %d", marks, STEP_MARKS_MAX);
    const utf8proc_ssize_t size = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &normal,
                                               (utf8proc_option_t)(UTF8PROC_STABLE | options[kind]));
    if (size < 0) return text_refuse_memory(n, err);
    text_put(out, (const char *)normal, (size_t)size);
    free(normal);
    return MAR_OK;
}

/* Writes each character in lower case, as Rust's char::to_lowercase: of one to one, but for U+0130. */
static void put_lower(const char *text, size_t n, text_buffer *out)
{
    unsigned c;
    for (size_t at = 0, size; at < n; at += size) {
        size = utf8_decode(text + at, n - at, &c);
        if (size == 0) return; /* checked by the caller */
        if (c == 0x130)
            text_put(out, "i\xcc\x87", 3);
        else
            text_put_char(out, (unsigned)utf8proc_tolower((utf8proc_int32_t)c));
    }
}

int text_is_space(unsigned c)
{
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return (c >= 9 && c <= 13) || c == 0x85 || category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
           category == UTF8PROC_CATEGORY_ZP;
}

/* Writes the text without white space at its ends. */
static void put_stripped(const text_step *s, const char *text, size_t n, text_buffer *out)
{
    size_t begin = SIZE_MAX, end = 0;
    unsigned c;
    for (size_t at = 0, size; at < n; at += size) {
        size = utf8_decode(text + at, n - at, &c);
        if (size == 0 || text_is_space(c)) {
            size += size == 0;
            continue;
        }
        if (begin == SIZE_MAX) begin = at;
        end = at + size;
    }
    if (begin == SIZE_MAX) begin = n, end = n;
    if (!s->left) begin = 0;
    if (!s->right) end = n;
    if (begin < end) text_put(out, text + begin, end - begin);
}

/* Place of a search for all matches. */
typedef struct {
    size_t from; /* where it goes on */
    size_t last; /* end of the last match, at first SIZE_MAX */
} search;

/* Finds the next match in text[0..n). An empty one at the end of the last is skipped, as in `FindMatches` of the onig
 * crate. Returns as text_pattern_find. */
static int find_next(const text_step *s, text_matcher *m, const char *text, size_t n, search *at, text_match *match)
{
    while (at->from <= n) {
        const int found = text_pattern_find(s->pattern, m, text, n, at->from, match);
        if (found <= 0) return found;
        const int empty = match->begin[0] == match->end[0], again = match->end[0] == at->last;
        at->from = at->last = match->end[0];
        if (!empty) return 1;
        do at->from++; /* past a character */
        while (at->from < n && ((uint8_t)text[at->from] & 0xc0) == 0x80);
        if (!again) return 1;
    }
    return 0;
}

/* Writes the text with each match replaced by the step's text as it is, until it grows by more than the budget has. */
static mar_status put_replaced(const text_step *s, text_matcher *m, const char *text, size_t n, text_buffer *out,
                               mar_err *err)
{
    const size_t most = n + text_matcher_budget(m)->bytes;
    size_t done = 0;
    search at = {0, SIZE_MAX};
    text_match match;
    int found;
    while ((found = find_next(s, m, text, n, &at, &match)) > 0) {
        text_put(out, text + done, match.begin[0] - done);
        text_put(out, s->text, s->length);
        done = match.end[0];
        if (out->length > most) break;
    }
    if (found < 0) return text_matcher_check(m, normalizer, err);
    text_put(out, text + done, n - done);
    return MAR_OK;
}

static mar_status put_step(const text_step *s, text_matcher *m, const char *text, size_t n, text_buffer *out,
                           mar_err *err)
{
    switch (s->kind) {
    case STEP_NFC:
    case STEP_NFD:
    case STEP_NFKC:
    case STEP_NFKD:
        return put_normal_form(s->kind, text, n, out, err);
    case STEP_LOWERCASE:
        put_lower(text, n, out);
        break;
    case STEP_REPLACE:
        return put_replaced(s, m, text, n, out, err);
    case STEP_STRIP:
        put_stripped(s, text, n, out);
        break;
    case STEP_PREPEND:
        if (n) text_put(out, s->text, s->length);
        text_put(out, text, n);
        break;
    default:
        break; /* a pre-tokenizer */
    }
    return MAR_OK;
}

mar_status text_normalize(const text_steps *s, text_matcher *m, const char *text, size_t n, text_buffer *out,
                          mar_err *err)
{
    text_budget *const budget = text_matcher_budget(m);
    mar_status status = MAR_OK;
    text_put(out, text, n);
    for (size_t i = 0; i < s->count && status == MAR_OK && !out->failed; i++) {
        const text_step *const step = &s->steps[i];
        text_buffer next = {0};
        text_put(&next, "", 0); /* so that it has data */
        text_charge_steps(budget, CALL_STEPS + (step->kind <= STEP_NFKD ? NORMAL_FORM_STEPS : 1) * out->length);
        if (!budget->exceeded) status = put_step(step, m, out->data, out->length, &next, err);
        if (next.length > out->length) text_charge_bytes(budget, next.length - out->length);
        if (status == MAR_OK) status = text_budget_check(budget, normalizer, err);
        text_buffer_free(out);
        *out = next;
    }
    return status == MAR_OK && out->failed ? text_refuse_memory(n, err) : status;
}

/* --- pre-tokenizers: `split` in tokenizers/src/tokenizer/normalizer.rs ------------------------------------------- */

/* The parts that a word is cut into. */
typedef struct {
    const text_step *step;
    size_t word; /* where it starts */
    text_parts *out;
    size_t first;   /* number of its first part */
    int last_match; /* the part before was a match */
} cutting;

/* Adds the next piece of the word. */
static void step_cut(cutting *c, size_t begin, size_t end, int is_match)
{
    text_parts *const out = c->out;
    const int has_last = out->count > c->first;
    const split_behavior behavior = c->step->behavior;
    is_match ^= c->step->invert;
    const int join = behavior == SPLIT_CONTIGUOUS      ? is_match == c->last_match
                     : behavior == SPLIT_WITH_PREVIOUS ? is_match && !c->last_match
                     : behavior == SPLIT_WITH_NEXT     ? !is_match && c->last_match
                                                       : 0;
    c->last_match = is_match;
    if (behavior == SPLIT_REMOVED && is_match) return;
    if (join && has_last)
        out->list[out->count - 1].length += end - begin;
    else
        text_add_part(out, c->word + begin, end - begin, -1);
}

static mar_status split_word(const text_step *s, text_matcher *m, const char *text, text_part word, text_parts *out,
                             mar_err *err)
{
    cutting c = {s, word.start, out, out->count, 0};
    size_t done = 0;
    search at = {0, SIZE_MAX};
    text_match match;
    int found;
    text += word.start;
    while ((found = find_next(s, m, text, word.length, &at, &match)) > 0) {
        if (done < match.begin[0]) step_cut(&c, done, match.begin[0], 0);
        step_cut(&c, match.begin[0], match.end[0], 1);
        done = match.end[0];
    }
    if (found < 0) return text_matcher_check(m, pre_tokenizer, err);
    if (done < word.length) step_cut(&c, done, word.length, 0);
    return MAR_OK;
}

void text_put_byte(uint8_t byte, text_buffer *out)
{
    unsigned c = byte;
    if (byte <= 0x20)
        c = 0x100u + byte;
    else if (byte >= 0x7f && byte <= 0xa0)
        c = 0x121u + byte - 0x7f;
    else if (byte == 0xad)
        c = 0x143;
    text_put_char(out, c);
}

/* Writes the word as a step changes it, and charges by how much it grows. */
static void change_word(step_kind kind, const char *text, text_part word, text_budget *budget, text_parts *out)
{
    const size_t start = out->text.length;
    text += word.start;
    if (kind == STEP_BYTES)
        for (size_t i = 0; i < word.length; i++) text_put_byte((uint8_t)text[i], &out->text);
    else {
        if (*text != ' ') text_put(&out->text, " ", 1);
        text_put(&out->text, text, word.length);
    }
    text_add_part(out, start, out->text.length - start, -1);
    if (out->text.length - start > word.length) text_charge_bytes(budget, out->text.length - start - word.length);
}

static mar_status split_words(const text_step *s, text_matcher *m, text_parts *p, mar_err *err)
{
    text_budget *const budget = text_matcher_budget(m);
    text_parts out = {0};
    mar_status status = MAR_OK;
    for (size_t i = 0; i < p->count && status == MAR_OK; i++) {
        const text_part word = p->list[i];
        text_charge_steps(budget, CALL_STEPS + word.length);
        if (budget->exceeded) break;
        if (word.id >= 0)
            text_add_part(&out, 0, 0, word.id);
        else if (s->kind == STEP_SPLIT)
            status = split_word(s, m, p->text.data, word, &out, err);
        else
            change_word(s->kind, p->text.data, word, budget, &out);
    }
    if (status == MAR_OK && (out.failed || out.text.failed)) status = text_refuse_memory(p->text.length, err);
    if (status == MAR_OK) status = text_budget_check(budget, pre_tokenizer, err);
    if (s->kind == STEP_SPLIT) { /* the parts are of the same text */
        out.text = p->text;
        p->text = (text_buffer){0};
    }
    text_parts_free(p);
    *p = out;
    return status;
}

mar_status text_split(const text_steps *s, text_matcher *m, text_parts *p, mar_err *err)
{
    mar_status status = MAR_OK;
    for (size_t i = 0; i < s->count && status == MAR_OK; i++) status = split_words(&s->steps[i], m, p, err);
    return status;
}
