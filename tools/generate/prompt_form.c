#include "tools/generate/prompt_form.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

static const char is_text_hint[] = "the name of a file of a prompt a line ends with .txt";

/* --- lines -------------------------------------------------------------------------------------------------------- */

int prompt_is_line_end(char c)
{
    return c == '\n' || c == '\r';
}

size_t prompt_line_end(const char *at, const char *end)
{
    if (at == end) return 0;
    return *at == '\r' && at + 1 < end && at[1] == '\n' ? 2 : 1;
}

size_t prompt_line_size(const char *text, size_t size, size_t *whole)
{
    size_t n = 0;
    while (n < size && !prompt_is_line_end(text[n])) n++;
    *whole = n + prompt_line_end(text + n, text + size);
    return n;
}

/* --- names of columns --------------------------------------------------------------------------------------------- */

/* A part of a text. */
typedef struct {
    const char *text; /* [size] */
    size_t size;
} span;

static int is_space(char c)
{
    return c == ' ' || c == '\t';
}

static span trim(span s)
{
    while (s.size && is_space(*s.text)) s.text++, s.size--;
    while (s.size && is_space(s.text[s.size - 1])) s.size--;
    return s;
}

int prompt_name_is(const char *name, size_t n)
{
    static const char *const names[] = {"prompt", "prompts", "caption", "captions"};
    const span s = trim((span){name, n});
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == s.size && strncasecmp(s.text, names[i], s.size) == 0) return 1;
    return 0;
}

/* The first line of a file, read as names of columns. */
typedef struct {
    int fields;
    int has_prompt; /* 1: a field is one of the four names */
    int is_trimmed; /* 1: but none without spaces beside it */
    int are_names;  /* 1: each field may be a name of a column, or is empty */
    int has_blank;  /* 1: a field is empty */
    int has_space;  /* 1: there are spaces in or beside a field */
    int is_evident; /* 1: a field is a name as only tables have it: "id", "image_id", "text_prompt", "Text Prompt" */
} header;

/* Returns whether the field may be a name of a column: letters, digits, "_", "-" and "." in one word; or in two or
 * three, each with a capital, or the last one of the four names. */
static int is_column_name(span s)
{
    int words = s.size > 0, capitals = 0;
    size_t last = 0;
    for (size_t i = 0; i < s.size; i++) {
        const unsigned char c = (unsigned char)s.text[i];
        if (!isalnum(c) && !strchr("_-. ", c)) return 0;
        if (c == ' ') words++, last = i + 1;
        capitals += isupper(c) && last == i;
    }
    return words == 1 ||
           (words > 1 && words <= 3 && (capitals == words || prompt_name_is(s.text + last, s.size - last)));
}

static int is_evident_name(span s)
{
    static const char *const numbers[] = {"id", "idx", "index", "uid"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strlen(numbers[i]) == s.size && strncasecmp(s.text, numbers[i], s.size) == 0) return 1;
    if (s.size > 3 && strncasecmp(s.text + s.size - 3, "_id", 3) == 0) return 1;
    for (size_t begin = 0, end; begin < s.size; begin = end + 1) {
        for (end = begin; end < s.size && isalnum((unsigned char)s.text[end]);) end++;
        if (prompt_name_is(s.text + begin, end - begin)) return 1;
    }
    return 0;
}

/* Takes the field at *at, with its quotes, and moves behind its separator. */
static span take_field(const char **at, const char *end, char separator)
{
    const char *const from = *at, *to = from, *quote = NULL;
    while (to < end && is_space(*to) && *to != separator) to++;
    if (to < end && *to == '"') quote = memchr(to + 1, '"', (size_t)(end - to) - 1);
    if (quote) to = quote;
    while (to < end && *to != separator) to++;
    *at = to < end ? to + 1 : NULL;
    return (span){from, (size_t)(to - from)};
}

static header prompt_form_read_header(span line, char separator)
{
    header h = {.are_names = 1, .is_trimmed = 1};
    const char *at = line.text;
    while (at) {
        const span whole = take_field(&at, line.text + line.size, separator);
        span name = trim(whole);
        h.has_space |= name.size < whole.size || memchr(name.text, ' ', name.size) != NULL;
        const int is_prompt_whole = name.size == whole.size;
        if (name.size >= 2 && *name.text == '"' && name.text[name.size - 1] == '"')
            name = trim((span){name.text + 1, name.size - 2});
        h.fields++;
        h.has_blank |= name.size == 0;
        h.are_names &= name.size == 0 || is_column_name(name);
        h.is_evident |= is_evident_name(name);
        if (!prompt_name_is(name.text, name.size)) continue;
        h.has_prompt = 1;
        h.is_trimmed &= !is_prompt_whole;
    }
    return h;
}

/* Returns whether a column of the table has prompts. */
static int has_prompts(const header *h)
{
    return h->has_prompt && (h->fields == 1 || !h->is_trimmed || h->are_names);
}

/* --- tables ------------------------------------------------------------------------------------------------------- */

/* Returns whether there are records, and each has `fields` fields or more. Quoted fields may have ends of lines; blank
 * lines do not count. */
static int has_records(const char *text, size_t size, char separator, int fields)
{
    int records = 0, found = 1, is_quoted = 0;
    for (size_t begin = 0, whole; begin < size; begin += whole) {
        const size_t n = prompt_line_size(text + begin, size - begin, &whole);
        if (!is_quoted && trim((span){text + begin, n}).size == 0) continue;
        for (size_t i = begin; i < begin + n; i++) {
            is_quoted ^= text[i] == '"';
            found += text[i] == separator;
        }
        if (is_quoted) continue;
        if (found < fields) return 0;
        found = 1;
        records++;
    }
    return is_quoted ? found >= fields : records > 0;
}

/* Returns whether the text is a table whose columns have other names. text[0..size) is what follows its first line. */
static int is_other_table(const header *h, const char *text, size_t size, char separator)
{
    if (!h->are_names || h->has_blank) return 0;
    if (h->is_evident && (h->fields > 1 || !h->has_space)) return 1;
    return h->fields > 1 && !h->has_space && has_records(text, size, separator, h->fields);
}

/* --- forms -------------------------------------------------------------------------------------------------------- */

/* Returns what a file is by its first bytes if it is no text; NULL if it may be one. */
static const char *binary_kind(const char *text, size_t size)
{
    static const struct {
        const char *bytes;
        const char *name;
    } kinds[] = {{"PAR1", "a Parquet file"},          {"\x1f\x8b", "a gzip file"},   {"PK\3\4", "a zip file"},
                 {"\x28\xb5\x2f\xfd", "a zstd file"}, {"\xfd\x37zXZ", "an xz file"}, {"BZh91AY", "a bzip2 file"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (size >= strlen(kinds[i].bytes) && memcmp(text, kinds[i].bytes, strlen(kinds[i].bytes)) == 0)
            return kinds[i].name;
    return NULL;
}

/* Returns whether the text is JSON of texts or objects: a bracket, then a quote, a brace or the end. A line of a prompt
 * may begin with a bracket, too. */
static int is_json(const char *text)
{
    static const char space[] = " \t\r\n";
    text += strspn(text, space);
    if (*text != '{' && *text != '[') return 0;
    text++;
    text += strspn(text, space);
    return *text && strchr("\"{[]}", *text);
}

/* Returns whether the line is one quoted text, as JSON has it. */
static int is_json_string(span s)
{
    s = trim(s);
    if (s.size < 2 || *s.text != '"') return 0;
    size_t i = 1;
    while (i < s.size && s.text[i] != '"') i += s.text[i] == '\\' ? 2 : 1;
    return i == s.size - 1;
}

/* Returns whether each line that is not blank is a quoted text. */
static int are_json_strings(const char *text, size_t size)
{
    for (size_t begin = 0, whole; begin < size; begin += whole) {
        const span line = {text + begin, prompt_line_size(text + begin, size - begin, &whole)};
        if (trim(line).size > 0 && !is_json_string(line)) return 0;
    }
    return 1;
}

/* Returns whether the line begins as YAML or TOML: "---", or one of the four names with a colon or "=", which a dash or
 * a bracket may precede. */
static int is_yaml(span line)
{
    const char *at = line.text, *const end = at + line.size;
    if (trim(line).size == 3 && memcmp(trim(line).text, "---", 3) == 0) return 1;
    while (at < end && strchr("-{[\"' \t", *at) && *at) at++;
    const char *const name = at;
    while (at < end && isalpha((unsigned char)*at)) at++;
    if (!prompt_name_is(name, (size_t)(at - name))) return 0;
    while (at < end && strchr("\"' \t", *at) && *at) at++;
    return at < end && (*at == ':' || *at == '=');
}

/* Returns the form that the ending of a file's name says, or -1. */
static int form_of_name(const char *path)
{
    static const struct {
        const char *ending;
        prompt_form form;
    } endings[] = {{".csv", PROMPT_FORM_CSV},
                   {".tsv", PROMPT_FORM_TSV},
                   {".json", PROMPT_FORM_JSON},
                   {".jsonl", PROMPT_FORM_JSON_LINES},
                   {".ndjson", PROMPT_FORM_JSON_LINES}};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (tool_ends_with(path, endings[i].ending)) return (int)endings[i].form;
    return -1;
}

/* The beginning of a file that is not blank. */
typedef struct {
    const char *path;
    span line;     /* first line that is not empty */
    size_t number; /* its number */
    span rest;     /* what follows it */
    int is_txt;    /* 1: the name ends with .txt: what only looks like another form is text */
} beginning;

static int refuse_separator(const beginning *b, char separator)
{
    return tool_error("%s, line %zu: a table whose fields are separated by '%c', expected commas or tabs", b->path,
                      b->number, separator);
}

/* Finds a table by the first line. Returns 0, or 1 after printing an error. */
static int find_table(const beginning *b, prompt_form *out)
{
    static const char separators[] = "\t,;|";
    for (const char *s = separators; *s; s++) {
        const header h = prompt_form_read_header(b->line, *s);
        if (!has_prompts(&h)) continue;
        if (*s == '\t' || *s == ',' || h.fields == 1) {
            *out = h.fields == 1 ? PROMPT_FORM_COLUMN : *s == ',' ? PROMPT_FORM_CSV : PROMPT_FORM_TSV;
            return 0;
        }
        return refuse_separator(b, *s);
    }
    for (const char *s = separators; *s && !b->is_txt; s++) {
        const header h = prompt_form_read_header(b->line, *s);
        if (is_other_table(&h, b->rest.text, b->rest.size, *s))
            return tool_error("%s, line %zu: begins as a table without a column \"prompt\" or \"caption\"; %s", b->path,
                              b->number, is_text_hint);
    }
    return 0;
}

/* Refuses a table with another separator than the ending of its name says. */
static int check_separator(const beginning *b, prompt_form form)
{
    const header own = prompt_form_read_header(b->line, form == PROMPT_FORM_CSV ? ',' : '\t');
    if (own.has_prompt) return 0;
    for (const char *s = ";|"; *s; s++) {
        const header h = prompt_form_read_header(b->line, *s);
        if (has_prompts(&h)) return refuse_separator(b, *s);
    }
    return 0;
}

/* Skips empty lines. */
static beginning find_beginning(const char *path, const char *text, size_t size)
{
    beginning b = {.path = path, .number = 1, .is_txt = tool_ends_with(path, ".txt")};
    size_t whole, n;
    while ((n = prompt_line_size(text, size, &whole)) == 0 && whole > 0) text += whole, size -= whole, b.number++;
    b.line = (span){text, n};
    b.rest = (span){text + whole, size - whole};
    return b;
}

int prompt_form_find(const char *path, const char *text, size_t size, prompt_form *out)
{
    const int named = form_of_name(path);
    const char *kind = binary_kind(text, size);
    const beginning b = find_beginning(path, text, size);
    if (kind) return tool_error("%s: is %s, expected text: a prompt a line, CSV, TSV, JSON or JSONL", path, kind);
    *out = named >= 0 ? (prompt_form)named : PROMPT_FORM_LINES;
    if (named >= 0) return *out == PROMPT_FORM_CSV || *out == PROMPT_FORM_TSV ? check_separator(&b, *out) : 0;
    if (is_json(text)) {
        *out = PROMPT_FORM_JSON;
        return 0;
    }
    if (find_table(&b, out) != 0) return 1;
    if (*out != PROMPT_FORM_LINES) return 0;
    if (is_json_string(b.line) && (!b.is_txt || are_json_strings(b.rest.text, b.rest.size))) {
        *out = PROMPT_FORM_JSON_LINES;
        return 0;
    }
    kind = b.is_txt                                         ? NULL
           : trim(b.line).size && *trim(b.line).text == '<' ? "XML or HTML"
           : is_yaml(b.line)                                ? "YAML"
                                                            : NULL;
    return kind ? tool_error("%s, line %zu: begins as %s, expected a prompt a line, CSV, TSV, JSON or JSONL; %s", path,
                             b.number, kind, is_text_hint)
                : 0;
}
