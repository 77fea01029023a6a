#include "text/html.h"

#include "text/entities.h"

#include <stdlib.h>
#include <string.h>

#define S TEXT_SPACE

/* Of Python's html/parser.py and _markupbase.py. Those with \G match where they are asked for.
 * locatestarttagend_tolerant is in parts: TAG_HEAD, name and white space; TAG_PART, an attribute up to a value without
 * quotes, where group 1 is; the value up to VALUE_END; TAG_GAP. They are possessive where what follows cannot fail. */
typedef enum {
    TAG_NAME,
    TAG_ATTRIBUTE,
    TAG_HEAD,
    TAG_PART,
    TAG_GAP,
    VALUE_END,
    TAG_END,
    SECTION_NAME,
    COMMENT_END, /* the first of those without \G */
    SECTION_END,
    OFFICE_SECTION_END,
    SCRIPT_END,
    STYLE_END
} html_pattern;

static const char *const sources[HTML_PATTERNS] = {
    [TAG_NAME] = "\\G([a-zA-Z][^\\t\\n\\r\\f />\\x00]*)(?:" S "|/(?!>))*",
    [TAG_ATTRIBUTE] = "\\G((?<=['\"" TEXT_SPACES "/])[^" TEXT_SPACES "/>][^" TEXT_SPACES "/=>]*)(" S "*=+" S
                      "*('[^']*'|\"[^\"]*\"|(?!['\"])[^>" TEXT_SPACES "]*))?(?:" S "|/(?!>))*",
    [TAG_HEAD] = "\\G<([a-zA-Z][^\\t\\n\\r\\f />\\x00]*+)[" TEXT_SPACES "/]*+",
    [TAG_PART] = "\\G(?<=['\"" TEXT_SPACES "/])[^" TEXT_SPACES "/>][^" TEXT_SPACES "/=>]*+(?>" S "*=+" S
                 "*(?:'[^']*'|\"[^\"]*\"|(?!['\"])()))?+",
    [TAG_GAP] = "\\G(?:" S "|/(?!>))*+",
    [VALUE_END] = "[>" TEXT_SPACES "]",
    [TAG_END] = "\\G</" S "*([a-zA-Z][-.a-zA-Z0-9:_]*)" S "*>",
    [SECTION_NAME] = "\\G([a-zA-Z][-_.a-zA-Z0-9]*)" S "*",
    [COMMENT_END] = "--" S "*>",
    [SECTION_END] = "\\]" S "*\\]" S "*>",
    [OFFICE_SECTION_END] = "\\]" S "*>",
    [SCRIPT_END] = "(?i)</" S "*script" S "*>",
    [STYLE_END] = "(?i)</" S "*style" S "*>",
};

/* Elements without an end, of Beautiful Soup's HTMLTreeBuilder. */
static const char *const void_elements[] = {"area",    "base",   "br",     "col",     "embed",    "hr",
                                            "img",     "input",  "keygen", "link",    "menuitem", "meta",
                                            "param",   "source", "track",  "wbr",     "basefont", "bgsound",
                                            "command", "frame",  "image",  "isindex", "nextid",   "spacer"};
enum { VOID_ELEMENTS = sizeof void_elements / sizeof *void_elements };

/* An open element. Its name lies in the markup. */
typedef struct {
    const char *name;
    size_t length;
    int hides;     /* its strings are no text: rt, rp, style, script, template */
    int preserves; /* strings of white space stay: pre, textarea */
} element;

typedef struct {
    const text_html *h;
    text_matcher *m;
    const char *text; /* [n] */
    size_t n;
    element *open; /* [depth] */
    size_t depth, capacity;
    int hidden, preserved;          /* open elements that hide or preserve */
    int closed_void[VOID_ELEMENTS]; /* end tags to skip, as the element ended with its start tag */
    size_t *value_end;              /* [n + 1] where a value without quotes ends; NULL: not known yet */
    size_t *attributes_end;         /* [n + 1] where attributes end that begin at a place; 0: not known yet */
    text_match head;                /* the last of TAG_HEAD */
    int is_absent[HTML_PATTERNS];   /* nothing at or behind a place before matches: those without \G */
    html_pattern script;            /* SCRIPT_END or STYLE_END: inside such an element; else TAG_NAME */
    text_buffer data;               /* the string that grows */
    int has_data;                   /* though it may be empty */
    text_buffer *out;
    int failed;     /* no memory */
    int has_failed; /* a search */
} parser;

/* The end of what was read; NOTHING if it is incomplete. */
enum { NOTHING = 0 };

static int find(parser *p, html_pattern which, size_t from, text_match *match)
{
    if (from > p->n || p->is_absent[which]) return 0;
    const int found = text_pattern_find(p->h->patterns[which], p->m, p->text, p->n, from, match);
    p->has_failed |= found < 0;
    p->is_absent[which] = which >= COMMENT_END && found == 0;
    return found > 0;
}

/* Returns the place of a character at or after `from`; p->n if there is none. */
static size_t find_char(const parser *p, char c, size_t from)
{
    const char *const at = from < p->n ? memchr(p->text + from, c, p->n - from) : NULL;
    return at ? (size_t)(at - p->text) : p->n;
}

static int starts_with(const parser *p, size_t at, const char *text)
{
    const size_t length = strlen(text);
    return p->n - at >= length && memcmp(p->text + at, text, length) == 0;
}

static int is_name(const char *name, size_t length, const char *other)
{
    return strlen(other) == length && memcmp(name, other, length) == 0;
}

static int is_letter(char c)
{
    return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
}

/* --- the tree: bs4/__init__.py ----------------------------------------------------------------------------------- */

static void add_data(parser *p, const char *data, size_t size)
{
    p->has_data = 1;
    text_put(&p->data, data, size);
}

/* Ends a string. One of white space only becomes a space or a line's end. */
static void end_data(parser *p, int is_text)
{
    if (!p->has_data) return;
    const char *const data = p->data.data;
    const size_t size = p->data.length;
    size_t spaces = 0;
    while (spaces < size && memchr(" \n\t\f\r", data[spaces], 5)) spaces++;
    if (is_text && spaces == size && !p->preserved)
        text_put(p->out, size && memchr(data, '\n', size) ? "\n" : " ", 1);
    else if (is_text)
        text_put(p->out, data, size);
    p->data.length = 0;
    p->has_data = 0;
}

static void end_text(parser *p)
{
    end_data(p, !p->hidden);
}

static void push(parser *p, const char *name, size_t length)
{
    static const char *const hiding[] = {"rt", "rp", "style", "script", "template"};
    element e = {name, length, 0, is_name(name, length, "pre") || is_name(name, length, "textarea")};
    for (size_t i = 0; i < sizeof hiding / sizeof *hiding; i++) e.hides |= is_name(name, length, hiding[i]);
    if (p->depth == p->capacity) {
        const size_t capacity = p->capacity ? 2 * p->capacity : 16;
        element *grown = realloc(p->open, capacity * sizeof *grown);
        if (!grown) {
            p->failed = 1;
            return;
        }
        p->open = grown;
        p->capacity = capacity;
    }
    p->open[p->depth++] = e;
    p->hidden += e.hides;
    p->preserved += e.preserves;
}

/* Closes the innermost open element of this name and those inside it, if there is one. */
static void pop(parser *p, const char *name, size_t length)
{
    size_t at = p->depth;
    while (at > 0 && !(p->open[at - 1].length == length && memcmp(p->open[at - 1].name, name, length) == 0)) at--;
    for (; at > 0 && p->depth >= at; p->depth--) {
        p->hidden -= p->open[p->depth - 1].hides;
        p->preserved -= p->open[p->depth - 1].preserves;
    }
}

static int void_number(const char *name, size_t length)
{
    for (int i = 0; i < VOID_ELEMENTS; i++)
        if (is_name(name, length, void_elements[i])) return i;
    return -1;
}

static void start_tag(parser *p, const char *name, size_t length, int is_closed)
{
    const int number = void_number(name, length);
    end_text(p);
    push(p, name, length);
    if (!is_closed && number < 0) return;
    end_text(p);
    pop(p, name, length);
    if (!is_closed) p->closed_void[number]++;
}

static void end_tag(parser *p, const char *name, size_t length)
{
    const int number = void_number(name, length);
    if (number >= 0 && p->closed_void[number] > 0) {
        p->closed_void[number]--;
        return;
    }
    end_text(p);
    pop(p, name, length);
}

/* --- the parser: html/parser.py ---------------------------------------------------------------------------------- */

/* Skips markup that is no text. */
static size_t skip_to(parser *p, size_t end)
{
    end_text(p);
    return end;
}

/* Returns the end of a start tag's name at `at` and of the white space behind it. A name goes on to the first character
 * that no name has, so names that begin inside another one end with it. */
static size_t find_head_end(parser *p, size_t at)
{
    if (at < p->head.begin[1] || at + 1 >= p->head.end[1]) find(p, TAG_HEAD, at, &p->head);
    return p->head.end[0];
}

/* Finds the ends of values without quotes at all places. Returns 0 without memory. */
static int find_value_ends(parser *p)
{
    text_match match;
    p->value_end = calloc(p->n + 1, sizeof *p->value_end);
    p->failed |= !p->value_end;
    for (size_t at = 0, next; !p->failed && at <= p->n; at = next) {
        const int found = find(p, VALUE_END, at, &match);
        const size_t end = found ? match.begin[0] : p->n;
        next = found ? match.end[0] : p->n + 1;
        while (at <= end) p->value_end[at++] = end;
    }
    return !p->failed;
}

/* Returns the end of the attribute at `at`; `at` if there is none. */
static size_t find_attribute_end(parser *p, size_t at)
{
    text_match match;
    if (!find(p, TAG_PART, at, &match)) return at;
    size_t end = match.end[0];
    if (match.begin[1] != SIZE_MAX) {
        if (!p->value_end && !find_value_ends(p)) return at;
        end = p->value_end[match.begin[1]];
    }
    return find(p, TAG_GAP, end, &match) ? match.end[0] : end;
}

/* Returns the end of the attributes that begin at `at`. It depends on their place alone: it is kept for each place on
 * the way, so that all unclosed tags of a text together take a time proportional to its length. */
static size_t find_attributes_end(parser *p, size_t at)
{
    size_t *const ends = p->attributes_end, last = at;
    while (!ends[last]) {
        const size_t next = find_attribute_end(p, last);
        ends[last] = next;
        if (next == last) break;
        last = next;
    }
    const size_t end = ends[last];
    for (size_t i = at, next; i != last; i = next) {
        next = ends[i];
        ends[i] = end;
    }
    return end;
}

/* Returns the end of the start tag at `at`: check_for_whole_start_tag. */
static size_t find_tag_end(parser *p, size_t at)
{
    const size_t end = find_attributes_end(p, find_head_end(p, at));
    if (end == p->n) return NOTHING;
    const char next = p->text[end];
    if (next == '>') return end + 1;
    if (next == '/') return starts_with(p, end, "/>") ? end + 2 : NOTHING;
    if (is_letter(next) || next == '=') return NOTHING;
    return end > at ? end : at + 1;
}

static size_t parse_start_tag(parser *p, size_t at)
{
    text_match name, attribute;
    const size_t end = find_tag_end(p, at);
    if (end == NOTHING || !find(p, TAG_NAME, at + 1, &name)) return NOTHING;
    size_t k = name.end[0];
    while (k < end && find(p, TAG_ATTRIBUTE, k, &attribute)) k = attribute.end[0];
    size_t begin = k < end ? k : end, stop = end;
    while (begin < stop && strchr(" \t\n\v\f\r\x1c\x1d\x1e\x1f", p->text[begin]) && p->text[begin]) begin++;
    while (stop > begin && strchr(" \t\n\v\f\r\x1c\x1d\x1e\x1f", p->text[stop - 1]) && p->text[stop - 1]) stop--;
    const int is_open = stop - begin == 1 && p->text[begin] == '>';
    const int is_closed = stop - begin == 2 && p->text[begin] == '/' && p->text[begin + 1] == '>';
    if (!is_open && !is_closed) {
        add_data(p, p->text + at, end - at);
        return end;
    }
    const char *const tag = p->text + name.begin[1];
    const size_t length = name.end[1] - name.begin[1];
    start_tag(p, tag, length, is_closed);
    if (is_open && is_name(tag, length, "script")) p->script = SCRIPT_END;
    if (is_open && is_name(tag, length, "style")) p->script = STYLE_END;
    return end;
}

/* Skips "<!x>" or "</1>". */
static size_t parse_bogus_comment(parser *p, size_t at)
{
    const size_t end = find_char(p, '>', at + 2);
    return end == p->n ? NOTHING : skip_to(p, end + 1);
}

static size_t parse_end_tag(parser *p, size_t at)
{
    text_match match;
    const size_t end = find_char(p, '>', at + 1) + 1;
    if (end > p->n) return NOTHING;
    if (find(p, TAG_END, at, &match)) {
        end_tag(p, p->text + match.begin[1], match.end[1] - match.begin[1]);
        p->script = TAG_NAME;
        return end;
    }
    if (p->script != TAG_NAME) {
        add_data(p, p->text + at, end - at);
        return end;
    }
    if (!find(p, TAG_NAME, at + 2, &match)) return starts_with(p, at, "</>") ? at + 3 : parse_bogus_comment(p, at);
    end_tag(p, p->text + match.begin[1], match.end[1] - match.begin[1]);
    return find_char(p, '>', match.end[0]) + 1;
}

/* Reads "<![name[ ... ]]>". Only the text of CDATA is text. */
static size_t parse_section(parser *p, size_t at)
{
    static const char *const standard[] = {"temp", "cdata", "ignore", "include", "rcdata"};
    static const char *const office[] = {"if", "else", "endif"};
    text_match name, end;
    if (!find(p, SECTION_NAME, at + 3, &name) || name.end[0] == p->n) return NOTHING;
    const char *const text = p->text + name.begin[1];
    const size_t length = name.end[1] - name.begin[1];
    int known = 0, is_office = 0;
    for (size_t i = 0; i < 5; i++) known |= is_name(text, length, standard[i]);
    for (size_t i = 0; i < 3; i++) is_office |= is_name(text, length, office[i]);
    if (!known && !is_office) return NOTHING;
    if (!find(p, known ? SECTION_END : OFFICE_SECTION_END, at + 3, &end)) return NOTHING;
    end_text(p);
    const int is_cdata = end.begin[0] - at >= 9 && starts_with(p, at + 3, "cdata[");
    if (is_cdata) {
        add_data(p, p->text + at + 9, end.begin[0] - at - 9);
        end_data(p, 1);
    }
    return end.end[0];
}

static size_t parse_declaration(parser *p, size_t at)
{
    if (starts_with(p, at, "<![")) return parse_section(p, at);
    if (!starts_with(p, at, "<!doctype")) return parse_bogus_comment(p, at);
    const size_t end = find_char(p, '>', at + 9);
    return end == p->n ? NOTHING : skip_to(p, end + 1);
}

/* Reads markup at a "<" that at least one byte follows. */
static size_t parse_markup(parser *p, size_t at)
{
    text_match match;
    if (is_letter(p->text[at + 1])) return parse_start_tag(p, at);
    if (starts_with(p, at, "</")) return parse_end_tag(p, at);
    if (starts_with(p, at, "<!--")) return find(p, COMMENT_END, at + 4, &match) ? skip_to(p, match.end[0]) : NOTHING;
    if (starts_with(p, at, "<?")) {
        const size_t end = find_char(p, '>', at + 2);
        return end == p->n ? NOTHING : skip_to(p, end + 1);
    }
    if (starts_with(p, at, "<!")) return parse_declaration(p, at);
    add_data(p, "<", 1);
    return at + 1;
}

/* Reads incomplete markup as text: up to the next ">", else up to the next "<". */
static size_t take_markup(parser *p, size_t at)
{
    size_t end = find_char(p, '>', at + 1);
    if (end < p->n)
        end++;
    else if ((end = find_char(p, '<', at + 1)) == p->n)
        end = at + 1;
    add_data(p, p->text + at, end - at);
    return end;
}

static int is_hex(char c)
{
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}

/* Reads "&#123;". Any character but a hexadecimal digit may end it. Returns NOTHING if there is no number. */
static size_t parse_number(parser *p, size_t at)
{
    const int hex = at + 2 < p->n && (p->text[at + 2] | 0x20) == 'x';
    const size_t start = at + 2 + (size_t)hex;
    size_t end = start;
    unsigned number = 0;
    for (; end < p->n && (hex ? is_hex(p->text[end]) : p->text[end] >= '0' && p->text[end] <= '9'); end++) {
        const char c = p->text[end];
        const unsigned digit = c <= '9' ? (unsigned)(c - '0') : (unsigned)((c | 0x20) - 'a' + 10);
        number = number > 0x10ffff ? 0x110000 : number * (hex ? 16 : 10) + digit;
    }
    if (end == start || end == p->n || is_hex(p->text[end])) return NOTHING;
    text_buffer character = {0};
    const int is_bad = number == 0 || number > 0x10ffff || (number >= 0xd800 && number < 0xe000);
    text_put_char(&character, is_bad ? 0xfffd : text_entity_number(number));
    p->failed |= character.failed;
    if (!character.failed) add_data(p, character.data, character.length);
    text_buffer_free(&character);
    return end + (p->text[end] == ';');
}

/* Reads "&name;". A character other than a letter or digit must end it. Returns NOTHING if there is no name. */
static size_t parse_name(parser *p, size_t at)
{
    unsigned points[2];
    int needs_semicolon;
    size_t end = at + 1;
    if (end < p->n && is_letter(p->text[end]))
        while (end < p->n && (is_letter(p->text[end]) || (p->text[end] && strchr("-.0123456789", p->text[end])))) end++;
    if (end == p->n) /* the last "-" or "." of the name ends it */
        for (end--; end > at + 1 && p->text[end] != '-' && p->text[end] != '.';) end--;
    if (end <= at + 1) return NOTHING;
    const int count = text_entity_find(p->text + at + 1, end - at - 1, points, &needs_semicolon);
    text_buffer character = {0};
    for (int i = 0; i < count; i++) text_put_char(&character, points[i]);
    p->failed |= character.failed;
    if (count && !character.failed)
        add_data(p, character.data, character.length);
    else
        add_data(p, p->text + at, end - at);
    text_buffer_free(&character);
    return end + (p->text[end] == ';');
}

/* Reads a reference. Returns whether the loop goes on, at *at. */
static int parse_reference(parser *p, size_t *at, int at_end)
{
    const int is_number = starts_with(p, *at, "&#");
    const size_t end = is_number ? parse_number(p, *at) : parse_name(p, *at);
    if (end != NOTHING) {
        *at = end;
        return 1;
    }
    if (is_number) {
        if (find_char(p, ';', *at) == p->n) return 0;
        add_data(p, "&#", 2);
        *at += 2;
        return 0;
    }
    const int has_next = *at + 1 < p->n;
    if (has_next && is_letter(p->text[*at + 1])) { /* incomplete */
        if (at_end && *at + 2 == p->n) ++*at;
        return 0;
    }
    if (!has_next) return 0;
    add_data(p, "&", 1);
    ++*at;
    return 1;
}

/* Returns the next place of interest: "<" or "&", in a script only its end tag. */
static size_t find_interesting(parser *p, size_t at)
{
    text_match match;
    if (p->script != TAG_NAME) return find(p, p->script, at, &match) ? match.begin[0] : SIZE_MAX;
    const size_t tag = find_char(p, '<', at), reference = find_char(p, '&', at);
    return tag < reference ? tag : reference;
}

/* Reads from `at` on and returns where it stopped: goahead. The parser calls it twice, as text may follow the first
 * time; what is incomplete then ends it. */
static size_t go_ahead(parser *p, size_t at, int at_end)
{
    while (at < p->n && !p->failed && !p->has_failed) {
        const size_t next = find_interesting(p, at);
        if (next == SIZE_MAX) break;
        if (at < next) add_data(p, p->text + at, next - at);
        at = next;
        if (at == p->n) break;
        if (p->text[at] == '&') {
            if (!parse_reference(p, &at, at_end)) break;
            continue;
        }
        if (at + 1 == p->n) break;
        size_t end = parse_markup(p, at);
        if (end == NOTHING && !at_end) break;
        if (end == NOTHING) end = take_markup(p, at);
        at = end;
    }
    if (at_end && at < p->n && p->script == TAG_NAME) {
        add_data(p, p->text + at, p->n - at);
        at = p->n;
    }
    return at;
}

mar_status text_html_text(const text_html *h, text_matcher *m, const char *markup, size_t n, text_buffer *out,
                          mar_err *err)
{
    parser p = {.h = h, .m = m, .text = markup, .n = n, .script = TAG_NAME, .out = out};
    p.attributes_end = calloc(n + 1, sizeof *p.attributes_end);
    p.failed = !p.attributes_end;
    const size_t at = go_ahead(&p, 0, 0);
    /* the second time the text before is gone */
    p.text += at;
    p.n -= at;
    p.head = (text_match){0};
    free(p.value_end);
    p.value_end = NULL;
    if (!p.failed) memset(p.attributes_end, 0, (p.n + 1) * sizeof *p.attributes_end);
    go_ahead(&p, 0, 1);
    end_text(&p);
    p.failed |= p.data.failed || out->failed;
    free(p.attributes_end);
    free(p.value_end);
    free(p.open);
    text_buffer_free(&p.data);
    if (p.failed) return err_set(err, MAR_ENOMEM, "no memory for the text of %zu bytes of HTML", n);
    return text_matcher_check(m, "the caption's HTML", err);
}

mar_status text_html_open(text_html *out, mar_err *err)
{
    mar_status status = MAR_OK;
    *out = (text_html){0};
    for (int i = 0; i < HTML_PATTERNS && status == MAR_OK; i++)
        status = text_pattern_compile(sources[i], strlen(sources[i]), "HTML", &out->patterns[i], err);
    if (status != MAR_OK) text_html_close(out);
    return status;
}

void text_html_close(text_html *h)
{
    for (int i = 0; i < HTML_PATTERNS; i++) text_pattern_free(h->patterns[i]);
    *h = (text_html){0};
}
