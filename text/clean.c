#include "text/clean.h"

#include "base/printable.h"
#include "text/entities.h"
#include "text/pattern.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Python's \s, \S, \w, \d, \D and \b. PCRE2's classes have other characters. */
#define SPACES "\\p{Z}\\t-\\r\\x1c-\\x1f\\x{85}"
#define S      "[" SPACES "]"
#define NS     "[^" SPACES "]"
#define W      "[\\p{L}\\p{N}_]"
#define D      "\\p{Nd}"
#define ND     "\\P{Nd}"
#define B      "(?:(?<=" W ")(?!" W ")|(?<!" W ")(?=" W "))"
#define BW     "(?<!" W ")" /* \b before a character of \w: PCRE2 then tries only places where the rest can begin */

#define FORMATS "(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)"

typedef struct {
    const char *pattern, *replacement;
} rule;

/* clean_caption in language/t5.py, rule by rule, in four parts. The tags are removed by a rule of our own. Some are
 * written so that they take fewer steps and find the same: file names and " . " begin where white space does or ends,
 * and sizes do not backtrack into digits. */
static const rule rules[] = {
    {"<person>", "person"},
    /* URLs are removed */
    {"<[a-z/!?][^<>]*>", ""},
    /* Character references become characters */
    {"@[\\p{L}\\p{N}_]+" B, ""},
    {"[\\x{31c0}-\\x{31ef}]+", ""},
    {"[\\x{31f0}-\\x{31ff}]+", ""},
    {"[\\x{3200}-\\x{32ff}]+", ""},
    {"[\\x{3300}-\\x{33ff}]+", ""},
    {"[\\x{3400}-\\x{4dbf}]+", ""},
    {"[\\x{4dc0}-\\x{4dff}]+", ""},
    {"[\\x{4e00}-\\x{9fff}]+", ""},
    {"[\\x{2d}\\x{58a}\\x{5be}\\x{1400}\\x{1806}\\x{2010}-\\x{2015}\\x{2e17}\\x{2e1a}\\x{2e3a}\\x{2e3b}\\x{2e40}\\x{"
     "301c}"
     "\\x{3030}\\x{30a0}\\x{fe31}\\x{fe32}\\x{fe58}\\x{fe63}\\x{ff0d}]+",
     "-"},
    {"[`\\x{b4}\\x{ab}\\x{bb}\\x{201c}\\x{201d}\\x{a8}]", "\""},
    {"[\\x{2018}\\x{2019}]", "'"},
    {"&quot;?", ""},
    {"&amp", ""},
    {D "{1,3}\\." D "{1,3}\\." D "{1,3}\\." D "{1,3}", " "},
    {D ":" D D S "+$", ""},
    {"\\\\n", " "},
    {"#" D "{1,3}" B, ""},
    {"#" D "{5,}" B, ""},
    {BW D "{6,}" B, ""},
    {"(?<!" NS ")" NS "+\\." FORMATS, ""},
    {"[\"']{2,}", "\""},
    {"[.]{2,}", " "},
    {"[#\\x{ae}\\x{2022}\\x{a9}\\x{2122}&@\\x{b7}\\x{ba}\\x{bd}\\x{be}\\x{bf}\\x{a1}\\x{a7}~)(\\]\\[}{|\\\\/*]+", " "},
    {"(?<!" S ")" S "++\\." S "+", " "},
    /* More than three "-" and "_" become spaces; character references become characters, twice */
    {BW "[a-zA-Z]{1,3}" D "{3,15}" B, ""},
    {BW "[a-zA-Z]+" D "+[a-zA-Z]+" B, ""},
    {BW D "+[a-zA-Z]+" D "+" B, ""},
    {"(?:worldwide" S "+)?(?:free" S "+)?shipping", ""},
    {"(?:free" S ")?download(?:" S "free)?", ""},
    {BW "click" B S "(?:for|on)" S W "+", ""},
    {BW FORMATS "(?:" S "image[s]?)?", ""},
    {BW "page" S "+" D "+" B, ""},
    {BW D "*[a-zA-Z]+" D "+[a-zA-Z]+" D "[a-zA-Z\\p{Nd}]*+" B, " "},
    {BW D "++(?:\\." D "*+)?+[x\\x{445}\\x{d7}]" D "++(?:\\." D "++" B "|\\." B "|" B ")", ""},
    {B S "+:" S "+", ": "},
    {"(" ND "[,./])" B, "\\1 "},
    {S "+", " "},
    {"^[\"']((?s:.+))[\"']$", "\\1"},
    {"^['_,\\-:;]", ""},
    {"['_,\\-:+]$", ""},
    {"^\\." NS "+$", ""},
};
enum { RULES = sizeof rules / sizeof *rules, BEFORE_URLS = 1, BEFORE_REFERENCES = 2, BEFORE_DASHES = 26 };

/* A URL begins at a word's boundary with one of the first two patterns, or is a name of a domain. */
typedef enum { URL_HTTP, URL_WWW, URL_DOMAIN, URL_START, URL_PATTERNS } url_pattern;

static const char *const urls[URL_PATTERNS] = {
    [URL_HTTP] = "\\Ghttps?:(?:/{1,3}|[a-zA-Z0-9%])",
    [URL_WWW] = "\\Gwww:(?:/{1,3}|[a-zA-Z0-9%])",
    [URL_DOMAIN] = "\\G[a-zA-Z0-9.\\-]+[.](?:com|co|ru|net|org|edu|gov|it)[\\p{L}\\p{N}_/-]*" B "/?(?!@)",
    [URL_START] = B "(?=[a-zA-Z0-9.\\-])",
};

/* What a caption is cleaned with. */
typedef struct {
    text_pattern *patterns[RULES], *urls[URL_PATTERNS];
    text_budget budget;
    text_matcher *matcher;
    text_buffer text; /* the caption */
    mar_err *err;
} cleaner;

static mar_status caption_refuse_memory(const cleaner *c)
{
    return err_set(c->err, MAR_ENOMEM, "no memory to clean a caption of %zu bytes", c->text.length);
}

static int is_python_space(unsigned c)
{
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f) || c == 0x85 || category == UTF8PROC_CATEGORY_ZS ||
           category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

/* Takes over a text that a step has made. */
static mar_status caption_take(cleaner *c, text_buffer *made)
{
    if (made->failed) {
        text_buffer_free(made);
        return caption_refuse_memory(c);
    }
    text_put(made, "", 0);
    text_buffer_free(&c->text);
    c->text = *made;
    return c->text.failed ? caption_refuse_memory(c) : MAR_OK;
}

/* --- Python's own functions --------------------------------------------------------------------------------------- */

static int hex_value(char c)
{
    const char lower = (char)(c | 0x20);
    return c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* Returns how many bytes at text[0..n) U+FFFD replaces, as no character begins there: the first bytes of a character
 * that goes on wrongly or ends, else one (Unicode, 3.9, "maximal subpart"). */
static size_t bad_size(const char *text, size_t n)
{
    const uint8_t first = (uint8_t)text[0];
    const size_t whole = first >= 0xc2 && first < 0xe0   ? 2
                         : first >> 4 == 14              ? 3
                         : first >= 0xf0 && first < 0xf5 ? 4
                                                         : 1;
    size_t size = 1;
    while (size < n && size < whole && ((uint8_t)text[size] & 0xc0) == 0x80) {
        const uint8_t next = (uint8_t)text[size];
        if (size == 1 && ((first == 0xe0 && next < 0xa0) || (first == 0xed && next > 0x9f) ||
                          (first == 0xf0 && next < 0x90) || (first == 0xf4 && next > 0x8f)))
            break;
        size++;
    }
    return size;
}

/* Writes bytes as UTF-8, with U+FFFD for invalid ones. */
static void caption_put_bytes(const char *text, size_t n, text_buffer *out)
{
    unsigned c;
    for (size_t at = 0, size; at < n; at += size)
        if ((size = utf8_decode(text + at, n - at, &c)) > 0)
            text_put(out, text + at, size);
        else {
            size = bad_size(text + at, n - at);
            text_put_char(out, 0xfffd);
        }
}

/* urllib.parse.unquote_plus: decodes the escapes of each run of ASCII for itself. */
static mar_status unquote_plus(cleaner *c)
{
    text_buffer out = {0}, run = {0};
    const char *const text = c->text.data;
    const size_t n = c->text.length;
    for (size_t at = 0; at < n && !run.failed; at++) {
        const int high = at + 2 < n && text[at] == '%' ? hex_value(text[at + 1]) : -1;
        const int low = high >= 0 ? hex_value(text[at + 2]) : -1;
        if ((uint8_t)text[at] >= 0x80) {
            caption_put_bytes(run.data, run.length, &out);
            run.length = 0;
            text_put(&out, text + at, 1);
        } else {
            const char byte = low >= 0 ? (char)(high * 16 + low) : text[at] == '+' ? ' ' : text[at];
            text_put(&run, &byte, 1);
            at += low >= 0 ? 2 : 0;
        }
    }
    if (run.length) caption_put_bytes(run.data, run.length, &out);
    out.failed |= run.failed;
    text_buffer_free(&run);
    return caption_take(c, &out);
}

/* str.strip */
static void caption_strip(cleaner *c)
{
    size_t begin = 0, end = 0;
    unsigned character;
    for (size_t at = 0, size; at < c->text.length; at += size) {
        size = utf8_decode(c->text.data + at, c->text.length - at, &character);
        if (size == 0) size = 1; /* the text is UTF-8 */
        if (is_python_space(character)) continue;
        if (end == 0) begin = at;
        end = at + size;
    }
    memmove(c->text.data, c->text.data + begin, end - begin);
    c->text.length = end - begin;
    c->text.data[c->text.length] = '\0';
}

static mar_status caption_compile(const cleaner *c, const char *pattern, text_pattern **out)
{
    return text_pattern_compile(pattern, strlen(pattern), "captions", out, c->err);
}

/* The search for sigmas that end a word: a letter with cases stands before it and none behind it, but for characters
 * that are ignored. */
typedef struct {
    text_pattern *before, *behind;
    size_t begin, end; /* of the last letter with cases, with the ignored ones behind it */
} sigma_search;

/* Returns whether the sigma at `at` ends a word. They are asked for in their order, so that the text is searched once.
 */
static int is_final_sigma(const cleaner *c, sigma_search *s, size_t at)
{
    text_match match;
    const char *const text = c->text.data;
    while (s->end < at && text_pattern_find(s->before, c->matcher, text, c->text.length, s->end, &match) > 0)
        s->begin = match.begin[0], s->end = match.end[0];
    if (s->begin >= at || s->end != at) return 0;
    return text_pattern_find(s->behind, c->matcher, text, c->text.length, at + 2, &match) <= 0;
}

/* str.lower: one character for one, but for U+0130, and U+03A3 at a word's end. */
static mar_status caption_lower(cleaner *c)
{
    text_buffer out = {0};
    sigma_search sigmas = {.begin = SIZE_MAX};
    unsigned character;
    mar_status status = MAR_OK;
    if (memmem(c->text.data, c->text.length, "\xce\xa3", 2)) {
        status = caption_compile(c, "(?!\\p{Case_Ignorable})\\p{Cased}\\p{Case_Ignorable}*+", &sigmas.before);
        if (status == MAR_OK) status = caption_compile(c, "\\G\\p{Case_Ignorable}*+\\p{Cased}", &sigmas.behind);
    }
    for (size_t at = 0, size; at < c->text.length && status == MAR_OK; at += size) {
        size = utf8_decode(c->text.data + at, c->text.length - at, &character);
        if (size == 0) size = 1; /* the text is UTF-8 */
        if (character == 0x130)
            text_put(&out, "i\xcc\x87", 3);
        else if (character == 0x3a3)
            text_put_char(&out, is_final_sigma(c, &sigmas, at) ? 0x3c2 : 0x3c3);
        else
            text_put_char(&out, (unsigned)utf8proc_tolower((utf8proc_int32_t)character));
    }
    text_pattern_free(sigmas.before);
    text_pattern_free(sigmas.behind);
    if (status == MAR_OK) status = text_matcher_check(c->matcher, "the caption", c->err);
    if (status == MAR_OK) return caption_take(c, &out);
    text_buffer_free(&out);
    return status;
}

/* --- the caption ------------------------------------------------------------------------------------------------- */

static mar_status apply(cleaner *c, int first, int last)
{
    mar_status status = MAR_OK;
    for (int i = first; i < last && status == MAR_OK; i++) {
        text_buffer out = {0};
        status = text_pattern_replace(c->patterns[i], c->matcher, c->text.data, c->text.length, rules[i].replacement,
                                      "the caption", &out, c->err);
        if (status == MAR_OK)
            status = caption_take(c, &out);
        else
            text_buffer_free(&out);
    }
    return status;
}

static int is_domain_character(char c)
{
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '.' || c == '-';
}

/* Returns the end of the URL at `at`, where a word begins or ends; 0 if there is none. Where no domain begins, none
 * does at a later place of the same run of letters, digits, "." and "-": *tried is that run's end. */
static size_t url_end(cleaner *c, url_pattern scheme, size_t at, size_t *tried)
{
    text_match match;
    const char *const text = c->text.data;
    const size_t n = c->text.length;
    if (text_pattern_find(c->urls[scheme], c->matcher, text, n, at, &match) > 0) return match.end[0];
    if (at < *tried) return 0;
    if (text_pattern_find(c->urls[URL_DOMAIN], c->matcher, text, n, at, &match) > 0) return match.end[0];
    *tried = at;
    while (*tried < n && is_domain_character(text[*tried])) ++*tried;
    return 0;
}

/* Removes URLs that begin with a scheme or are names of domains. */
static mar_status remove_urls(cleaner *c, url_pattern scheme)
{
    text_buffer out = {0};
    text_match start;
    size_t done = 0, tried = 0, from = 0;
    while (text_pattern_find(c->urls[URL_START], c->matcher, c->text.data, c->text.length, from, &start) > 0) {
        const size_t end = url_end(c, scheme, start.begin[0], &tried);
        from = end ? end : start.begin[0] + 1; /* past a character of ASCII */
        if (end == 0) continue;
        text_put(&out, c->text.data + done, start.begin[0] - done);
        done = end;
    }
    text_put(&out, c->text.data + done, c->text.length - done);
    const mar_status status = caption_take(c, &out);
    return status == MAR_OK ? text_matcher_check(c->matcher, "the caption", c->err) : status;
}

/* this-is-my-cute-cat, this_is_my_cute_cat */
static void split_dashes(cleaner *c)
{
    int count = 0;
    for (size_t i = 0; i < c->text.length; i++) count += c->text.data[i] == '-' || c->text.data[i] == '_';
    for (size_t i = 0; count > 3 && i < c->text.length; i++)
        if (c->text.data[i] == '-' || c->text.data[i] == '_') c->text.data[i] = ' ';
}

static mar_status unescape(cleaner *c)
{
    text_buffer out = {0};
    text_unescape(c->text.data, c->text.length, &out);
    return caption_take(c, &out);
}

/* clean_caption */
static mar_status caption_clean(cleaner *c)
{
    mar_status status = unquote_plus(c);
    if (status == MAR_OK) caption_strip(c);
    if (status == MAR_OK) status = caption_lower(c);
    if (status == MAR_OK) status = apply(c, 0, BEFORE_URLS);
    if (status == MAR_OK) status = remove_urls(c, URL_HTTP);
    if (status == MAR_OK) status = remove_urls(c, URL_WWW);
    if (status == MAR_OK) status = apply(c, BEFORE_URLS, BEFORE_REFERENCES);
    if (status == MAR_OK) status = unescape(c);
    if (status == MAR_OK) status = apply(c, BEFORE_REFERENCES, BEFORE_DASHES);
    if (status == MAR_OK) split_dashes(c);
    if (status == MAR_OK) status = unescape(c);
    if (status == MAR_OK) status = unescape(c);
    if (status == MAR_OK) caption_strip(c);
    if (status == MAR_OK) status = apply(c, BEFORE_DASHES, RULES);
    if (status == MAR_OK) caption_strip(c);
    return status;
}

static mar_status open_cleaner(cleaner *c)
{
    mar_status status = MAR_OK;
    c->budget = text_budget_of_caption(c->text.length);
    c->matcher = text_matcher_new(&c->budget);
    if (!c->matcher) status = caption_refuse_memory(c);
    for (int i = 0; i < RULES && status == MAR_OK; i++) status = caption_compile(c, rules[i].pattern, &c->patterns[i]);
    for (int i = 0; i < URL_PATTERNS && status == MAR_OK; i++) status = caption_compile(c, urls[i], &c->urls[i]);
    return status;
}

static void close_cleaner(cleaner *c)
{
    for (int i = 0; i < RULES; i++) text_pattern_free(c->patterns[i]);
    for (int i = 0; i < URL_PATTERNS; i++) text_pattern_free(c->urls[i]);
    text_matcher_free(c->matcher);
    text_buffer_free(&c->text);
}

/* Removes NULs, which would end the string, and white space that was behind one. */
static void remove_nuls(cleaner *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->text.length; i++)
        if (c->text.data[i]) c->text.data[n++] = c->text.data[i];
    c->text.length = n;
    caption_strip(c);
}

mar_status text_clean_caption(const char *text, size_t length, char **out, mar_err *err)
{
    cleaner c = {.err = err};
    unsigned character;
    *out = NULL;
    if (length > TEXT_CAPTION_MAX)
        return err_set(err, MAR_EARG, "a caption of %zu bytes, expected at most %d", length, TEXT_CAPTION_MAX);
    for (size_t at = 0, size; at < length; at += size)
        if ((size = utf8_decode(text + at, length - at, &character)) == 0)
            return err_set(err, MAR_EARG, "the caption is not UTF-8 at byte %zu", at);
    text_put(&c.text, text, length);
    mar_status status = c.text.failed ? caption_refuse_memory(&c) : open_cleaner(&c);
    if (status == MAR_OK) status = caption_clean(&c);
    if (status == MAR_OK) status = caption_clean(&c);
    if (status == MAR_OK) {
        remove_nuls(&c);
        *out = c.text.data;
        c.text = (text_buffer){0};
    }
    close_cleaner(&c);
    return status;
}
