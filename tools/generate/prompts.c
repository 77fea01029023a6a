#include "tools/generate/prompts.h"

#include "base/json.h"
#include "base/printable.h"
#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/generate/prompt_folder.h"
#include "tools/generate/prompt_form.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FILE_MEGABYTES = 256,
    ONE_MEGABYTES = 1 /* a folder's file */,
    STDIN_CHUNK = 1 << 16,
    SHOWN = 60 /* bytes of a prompt in a message */
};

static int prompts_refuse_memory(const prompts *p)
{
    return tool_error("out of memory for more than %d prompts", p->count);
}

/* Makes room for one more. Returns 0, or 1 with the error printed. */
static int grow(prompts *p)
{
    if (p->count < p->capacity) return 0;
    const int capacity = p->capacity ? 2 * p->capacity : 16;
    char **text = realloc(p->text, (size_t)capacity * sizeof *text);
    if (text) p->text = text;
    prompt_place *place = text ? realloc(p->place, (size_t)capacity * sizeof *place) : NULL;
    if (!place) return prompts_refuse_memory(p);
    p->place = place;
    p->capacity = capacity;
    return 0;
}

/* Appends a copy of text[0..n). Returns 0, or 1 with the error printed. */
static int prompts_append(prompts *p, const prompt_place *at, const char *text, size_t n)
{
    if (grow(p) != 0) return 1;
    char *copy = malloc(n + 1);
    if (!copy) return prompts_refuse_memory(p);
    memcpy(copy, text, n);
    copy[n] = '\0';
    p->place[p->count] = *at;
    p->text[p->count++] = copy;
    return 0;
}

/* Returns what is wrong with text[0..n), or NULL. */
static const char *find_fault(int is_cleaned, const char *text, size_t n, char *why, size_t size)
{
    const int most = is_cleaned ? PROMPT_CLEANED_MAX : PROMPT_BYTES_MAX;
    int blank = 1;
    unsigned c;
    if (n > (size_t)most) {
        snprintf(why, size, "a prompt of %zu bytes, expected %d at most%s", n, most,
                 is_cleaned ? "; --clean off takes longer ones" : "");
        return why;
    }
    for (size_t at = 0, bytes; at < n; at += bytes) {
        bytes = utf8_decode(text + at, n - at, &c);
        if (bytes == 0 || c == 0) {
            snprintf(why, size, "byte %zu of the prompt is 0x%02x, expected UTF-8 text", at + 1,
                     (unsigned)(unsigned char)text[at]);
            return why;
        }
        if (c > ' ' && c != 0xa0 && c != 0x3000) blank = 0;
    }
    return blank ? "the prompt is empty" : NULL;
}

/* Reports a prompt that is left out, with its text if its place has no number. */
static void skip(prompts *p, const prompt_place *at, const char *text, const char *fault)
{
    char shown[SHOWN];
    p->skipped++;
    if (at->unit)
        tool_error("%s, %s %zu: %s: skipped", at->file, at->unit, at->number, fault);
    else
        tool_error("%s \"%s\": %s: skipped", at->file, printable(text, shown, sizeof shown), fault);
}

/* Appends text[0..n), with a NUL behind it if its place has no number, or reports it. Returns 0, or 1 without memory.
 */
static int prompts_take(prompts *p, const prompt_place *at, const char *text, size_t n)
{
    char why[96];
    const char *fault = find_fault(p->is_cleaned, text, n, why, sizeof why);
    if (!fault) return prompts_append(p, at, text, n);
    skip(p, at, text, fault);
    return 0;
}

/* --- lines -------------------------------------------------------------------------------------------------------- */

/* Returns the size of the text without blank lines at its end. */
static size_t trim_end(const char *text, size_t size)
{
    size_t n = size;
    while (n > 0 && text[n - 1] && strchr(" \t\r\n", text[n - 1])) n--;
    while (n > 0 && n < size && !prompt_is_line_end(text[n])) n++;
    return n;
}

static int parse_lines(char *text, size_t size, const char *path, prompts *p)
{
    prompt_place at = {path, "line", 0};
    for (size_t begin = 0, whole; begin < size; begin += whole) {
        const size_t n = prompt_line_size(text + begin, size - begin, &whole);
        at.number++;
        if (prompts_take(p, &at, text + begin, n) != 0) return 1;
    }
    return 0;
}

/* --- tables ------------------------------------------------------------------------------------------------------- */

/* What is left of a table. Its fields are read in place. */
typedef struct {
    char *at, *end;
    char *stop;     /* where a field ends at the latest: with the line, or in CSV with the text */
    char separator; /* a tab or a comma; a line feed: there is one column */
    size_t line;    /* number of the line at `at` */
} table;

/* A record of a table: the number of its fields, and the one that was asked for. */
typedef struct {
    int fields;
    const char *text; /* [size]; NULL: it has fewer fields */
    size_t size;
} record;

static int is_at_separator(const table *t)
{
    return t->at < t->end && *t->at == t->separator && !prompt_is_line_end(*t->at);
}

/* Reads a field in place. One of CSV that begins with a quote ends with one (RFC 4180), and may have ends of lines. In
 * tab-separated values a quote that its line does not close is text, as Python's csv reads most of them. Returns NULL,
 * or what is wrong. */
static const char *read_field(table *t, char **field, size_t *n)
{
    const int is_csv = t->separator != '\t';
    char *const stop = t->stop;
    char *to = *field = t->at;
    if (t->at < stop && *t->at == '"' && (is_csv || memchr(t->at + 1, '"', (size_t)(stop - t->at) - 1))) {
        for (t->at++; t->at < stop; t->at++) {
            if (*t->at == '"' && (t->at + 1 == stop || t->at[1] != '"')) break;
            t->at += *t->at == '"';
            t->line += prompt_is_line_end(*t->at) && prompt_line_end(t->at, stop) == 1;
            *to++ = *t->at;
        }
        if (is_csv && t->at == stop) return "a quote is not closed";
        t->at += t->at < stop;
        if (is_csv && t->at < stop && !is_at_separator(t) && !prompt_is_line_end(*t->at))
            return "text follows a closed quote";
    }
    while (t->at < t->end && *t->at != t->separator && !prompt_is_line_end(*t->at)) *to++ = *t->at++;
    *n = (size_t)(to - *field);
    return NULL;
}

/* Begins a record. */
static void begin_record(table *t)
{
    size_t whole;
    t->stop = t->separator != '\t' ? t->end : t->at + prompt_line_size(t->at, (size_t)(t->end - t->at), &whole);
}

/* Reads a record and its end of line. `column` -1: the first one with prompts by its name. Returns NULL, or what is
 * wrong. */
static const char *read_record(table *t, int column, record *out)
{
    *out = (record){0};
    begin_record(t);
    for (;;) {
        char *field;
        size_t n;
        const char *fault = read_field(t, &field, &n);
        if (fault) return fault;
        if (column < 0 ? !out->text && prompt_name_is(field, n) : out->fields == column)
            *out = (record){out->fields, field, n};
        out->fields++;
        if (!is_at_separator(t)) break;
        t->at++;
    }
    t->line += t->at < t->end;
    t->at += prompt_line_end(t->at, t->end);
    return NULL;
}

static int refuse_line(const char *path, size_t line, const char *fault)
{
    return tool_error("%s, line %zu: %s", path, line, fault);
}

/* Reads the names of the columns. Returns the number of the one with prompts, and the number of all; -1 after printing
 * an error. */
static int prompts_read_header(table *t, const char *path, int *columns)
{
    int column = -1;
    begin_record(t);
    for (*columns = 0;; ++*columns) {
        char *name;
        size_t n;
        const char *fault = read_field(t, &name, &n);
        if (!fault && prompt_name_is(name, n)) {
            if (column >= 0) fault = "two columns of the table have prompts by their names, expected one";
            column = *columns;
        }
        if (fault) {
            refuse_line(path, t->line, fault);
            return -1;
        }
        if (!is_at_separator(t)) break;
        t->at++;
    }
    ++*columns;
    if (column < 0) refuse_line(path, t->line, "a table without a column \"prompt\" or \"caption\"");
    t->line += t->at < t->end;
    t->at += prompt_line_end(t->at, t->end);
    return column;
}

static int parse_table(char *text, size_t size, char separator, const char *path, prompts *p)
{
    table t = {.at = text, .end = text + size, .separator = separator, .line = 1};
    int columns;
    for (; t.at < t.end && prompt_is_line_end(*t.at); t.line++) t.at += prompt_line_end(t.at, t.end);
    const int column = prompts_read_header(&t, path, &columns);
    if (column < 0) return 1;
    while (t.at < t.end) {
        record r;
        char why[96];
        const prompt_place at = {path, "line", t.line};
        if (separator != '\t' && prompt_is_line_end(*t.at)) { /* an empty line */
            t.at += prompt_line_end(t.at, t.end);
            t.line++;
            continue;
        }
        const char *fault = read_record(&t, column, &r);
        if (!fault && (r.fields > columns || (separator != '\t' && r.fields < columns))) {
            snprintf(why, sizeof why, "%d fields, expected %d as in the first line", r.fields, columns);
            fault = why;
        }
        if (fault) return refuse_line(path, at.number, fault);
        if (prompts_take(p, &at, r.text ? r.text : "", r.size) != 0) return 1;
    }
    return 0;
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

/* A caption of COCO's, with its image. */
typedef struct {
    int64_t image;
    size_t index;  /* among the annotations; of the chosen caption that of its image's first */
    size_t number; /* of the annotation, from 1 */
    const json_value *text;
    size_t characters;
} caption;

static int compare_captions(const void *a, const void *b)
{
    const caption *x = a, *y = b;
    if (x->image != y->image) return x->image < y->image ? -1 : 1;
    if (x->characters != y->characters) return x->characters > y->characters ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static int compare_indices(const void *a, const void *b)
{
    const caption *x = a, *y = b;
    return x->index < y->index ? -1 : x->index > y->index;
}

static size_t count_characters(const json_value *text)
{
    size_t n = 0;
    for (uint32_t i = 0; i < text->length; i++) n += ((unsigned char)text->text[i] & 0xc0) != 0x80;
    return n;
}

/* Fills in *c from an annotation. Returns 0, or 1 after reporting one that is unusable. */
static int read_annotation(prompts *p, const prompt_place *at, const json_value *v, caption *c)
{
    char why[96];
    const json_value *text = json_member(v, "caption"), *image = json_member(v, "image_id");
    const char *fault = NULL;
    if (!text || text->type != JSON_STRING)
        fault = "no text \"caption\"";
    else if (!image || !json_integer(image, &c->image))
        fault = "no whole number \"image_id\"";
    else
        fault = find_fault(p->is_cleaned, text->text, text->length, why, sizeof why);
    if (fault) {
        skip(p, at, NULL, fault);
        return 1;
    }
    c->text = text;
    c->characters = count_characters(text);
    c->index = c->number = at->number;
    return 0;
}

/* Keeps of each image its longest caption, at the index of its first annotation. Returns their number. */
static size_t choose_captions(caption *all, size_t count)
{
    size_t chosen = 0;
    qsort(all, count, sizeof *all, compare_captions);
    for (size_t i = 0, next; i < count; i = next) {
        caption best = all[i];
        for (next = i; next < count && all[next].image == best.image; next++)
            if (all[next].index < best.index) best.index = all[next].index;
        all[chosen++] = best;
    }
    qsort(all, chosen, sizeof *all, compare_indices);
    return chosen;
}

static int parse_annotations(const json_value *list, const char *path, prompts *p)
{
    const size_t most = json_children(list);
    caption *all = malloc((most + 1) * sizeof *all);
    size_t count = 0;
    int failed = 0;
    if (!all) return prompts_refuse_memory(p);
    prompt_place at = {path, "annotation", 0};
    const json_value *v = list + 1;
    for (size_t i = 0; i < most; i++, v = json_next(v)) {
        at.number = i + 1;
        if (read_annotation(p, &at, v, &all[count]) == 0) count++;
    }
    count = choose_captions(all, count);
    for (size_t i = 0; i < count && !failed; i++) {
        at.number = all[i].number;
        failed = prompts_append(p, &at, all[i].text->text, all[i].text->length);
    }
    free(all);
    return failed;
}

/* Finds the member of an object that has the prompt. Returns NULL, or what is wrong. */
static const char *find_prompt(const json_value *object, const json_value **out)
{
    *out = NULL;
    for (const json_value *name = object + 1; name < json_next(object); name = json_next(name + 1)) {
        if (!prompt_name_is(name->text, name->length)) continue;
        if (*out) return "two members have prompts by their names, expected one";
        *out = name + 1;
    }
    if (!*out) return "an object without \"prompt\" or \"caption\"";
    return (*out)->type == JSON_STRING ? NULL : "its prompt is no text";
}

/* Takes a text or an object with one. Returns 0, or 1 with the error printed. */
static int take_value(prompts *p, const prompt_place *at, const json_value *v)
{
    const char *fault = NULL;
    if (v->type == JSON_OBJECT) fault = find_prompt(v, &v);
    if (fault) return tool_error("%s, %s %zu: %s", at->file, at->unit, at->number, fault);
    if (v->type == JSON_STRING) return prompts_take(p, at, v->text, v->length);
    skip(p, at, NULL, "neither a text nor an object with \"prompt\" or \"caption\"");
    return 0;
}

static int parse_array(const json_value *list, const char *path, prompts *p)
{
    prompt_place at = {path, "element", 0};
    const json_value *v = list + 1;
    for (size_t n = json_children(list); at.number < n; v = json_next(v)) {
        at.number++;
        if (take_value(p, &at, v) != 0) return 1;
    }
    return 0;
}

/* Reads a JSON value a line. */
static int parse_json_lines(char *text, size_t size, const char *path, prompts *p)
{
    prompt_place at = {path, "line", 0};
    int failed = 0;
    for (size_t begin = 0, whole; begin < size && !failed; begin += whole) {
        char *const line = text + begin;
        const size_t n = prompt_line_size(line, size - begin, &whole);
        json j;
        at.number++;
        if (strspn(line, " \t") >= n) continue;
        line[n] = '\0';
        const json_error error = json_read(line, n, JSON_LEVELS_MAX, &j);
        if (error == JSON_NO_MEMORY) return tool_error("%s: out of memory for its %zu bytes", path, size);
        if (error != JSON_OK)
            return tool_error("%s, line %zu: no JSON at byte %zu, expected one whole value a line", path, at.number,
                              j.at + 1);
        failed = take_value(p, &at, j.values);
        json_free(&j);
    }
    return failed;
}

/* Returns the number of the line of text[at], from 1. */
static size_t line_of(const char *text, size_t at)
{
    size_t line = 1;
    for (size_t i = 0; i < at; i++) line += prompt_is_line_end(text[i]) && prompt_line_end(text + i, text + at) == 1;
    return line;
}

/* Reads one JSON value, or several objects, a line each. */
static int parse_json(char *text, size_t size, const char *path, prompts *p)
{
    json j;
    const json_error error = json_read(text, size, JSON_LEVELS_MAX, &j);
    if (error == JSON_NO_MEMORY) return tool_error("%s: out of memory for its %zu bytes", path, size);
    if (error == JSON_TRAILING && text[strspn(text, " \t\r\n")] == '{') return parse_json_lines(text, size, path, p);
    if (error != JSON_OK)
        return tool_error("%s, line %zu: no JSON at byte %zu of the file, expected one whole value", path,
                          line_of(text, j.at), j.at + 1);
    const json_value *list = json_member(j.values, "annotations");
    int failed = 0;
    if (list && list->type == JSON_ARRAY)
        failed = parse_annotations(list, path, p);
    else if (j.values->type == JSON_ARRAY)
        failed = parse_array(j.values, path, p);
    else if (j.values->type == JSON_OBJECT)
        failed = take_value(p, &(prompt_place){path, "line", 1}, j.values);
    else
        failed = tool_error("%s: its JSON is neither an array nor an object", path);
    json_free(&j);
    return failed;
}

/* Reads text[size] in its form. */
static int generate_prompts_parse(char *text, size_t size, const char *path, prompts *p)
{
    prompt_form form;
    if (prompt_form_find(path, text, size, &form) != 0) return 1;
    size = trim_end(text, size);
    switch (form) {
    case PROMPT_FORM_CSV:
    case PROMPT_FORM_TSV:
    case PROMPT_FORM_COLUMN:
        if (size == 0) return 0;
        return parse_table(text, size, form == PROMPT_FORM_CSV ? ',' : form == PROMPT_FORM_TSV ? '\t' : '\n', path, p);
    case PROMPT_FORM_JSON:
        text[size] = '\0';
        return parse_json(text, size, path, p);
    case PROMPT_FORM_JSON_LINES:
        return parse_json_lines(text, size, path, p);
    default:
        return parse_lines(text, size, path, p);
    }
}

/* Returns whether the text is UTF-16, with or without its byte order mark. */
static int is_utf16(const char *text, size_t size)
{
    if (size < 2) return 0;
    return memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0 || (!text[0] != !text[1]);
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

int prompts_parse(char *text, size_t size, const char *path, prompts *p)
{
    const int before = p->count, skipped = p->skipped;
    if (is_utf16(text, size)) return tool_error("%s: is UTF-16, expected UTF-8", path);
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) text += 3, size -= 3; /* byte order mark of UTF-8 */
    if (generate_prompts_parse(text, size, path, p) != 0) return 1;
    if (p->count > before || (before > 0 && p->skipped > skipped)) return 0;
    if (p->skipped > skipped) return 1; /* each is reported */
    return tool_error("%s: no prompt in it, expected one a line, or CSV, TSV, JSON or JSONL with \"prompt\" or "
                      "\"caption\"",
                      path);
}

/* Reads standard input. Returns its *size bytes and a NUL, which the caller frees; NULL with the error printed. */
static char *read_stdin(size_t *size)
{
    const size_t most = (size_t)FILE_MEGABYTES << 20;
    char *text = NULL;
    size_t capacity = 0, n = STDIN_CHUNK;
    *size = 0;
    for (; n == STDIN_CHUNK; *size += n) {
        if (capacity < *size + STDIN_CHUNK + 1) {
            capacity = 2 * capacity + STDIN_CHUNK + 1;
            char *more = *size > most ? NULL : realloc(text, capacity);
            if (!more) {
                if (*size > most)
                    tool_error("standard input: has more than %d MB, expected prompts", FILE_MEGABYTES);
                else
                    tool_error("standard input: out of memory for %zu bytes", capacity);
                free(text);
                return NULL;
            }
            text = more;
        }
        n = fread(text + *size, 1, STDIN_CHUNK, stdin);
        if (n < STDIN_CHUNK && ferror(stdin)) {
            tool_error("standard input: cannot read: %s", strerror(errno));
            free(text);
            return NULL;
        }
    }
    text[*size] = '\0';
    return text;
}

/* Appends the prompt in a folder's file. */
static int read_one(const char *path, prompts *p)
{
    size_t size, n, whole;
    char *data = tool_read_file(path, 0, ONE_MEGABYTES, "a prompt", &size), *text = data;
    if (!data) return 1;
    int failed = is_utf16(text, size) ? tool_error("%s: is UTF-16, expected UTF-8", path) : 0;
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) text += 3, size -= 3;
    n = trim_end(text, size);
    text[n] = '\0';
    if (!failed && n > 0 && prompt_line_size(text, n, &whole) < n)
        failed = tool_error("%s: has several lines, expected one, the prompt", path);
    if (!failed) failed = prompts_take(p, &(prompt_place){path, NULL, 0}, text, n);
    free(data);
    return failed;
}

static int read_folder(const char *path, prompts *p)
{
    prompt_folder folder;
    if (prompt_folder_list(path, &folder) != 0) return 1;
    const int before = p->count, skipped = p->skipped;
    int failed = 0;
    p->files = malloc((size_t)folder.count * sizeof *p->files);
    if (!p->files) failed = prompts_refuse_memory(p);
    for (int i = 0; i < folder.count && !failed; i++) {
        char *file = p->files[i] = tool_join(path, folder.names[i]);
        p->file_count = i + (file != NULL);
        failed = !file || read_one(file, p) != 0;
    }
    prompt_folder_free(&folder);
    return failed || (p->count == before && before == 0 && p->skipped > skipped);
}

int prompts_read(const char *path, prompts *p)
{
    if (prompt_folder_is(path)) return read_folder(path, p);
    const int is_stdin = strcmp(path, "-") == 0;
    size_t size;
    char *text = is_stdin ? read_stdin(&size) : tool_read_file(path, 0, FILE_MEGABYTES, "a file of prompts", &size);
    if (!text) return 1;
    const int failed = prompts_parse(text, size, is_stdin ? "standard input" : path, p);
    free(text);
    return failed;
}

int prompts_add(const char *text, prompts *p)
{
    return prompts_take(p, &(prompt_place){"--prompt", NULL, 0}, text, strlen(text));
}

const char *prompts_fault(int is_cleaned, const char *text, char *why, size_t size)
{
    return find_fault(is_cleaned, text, strlen(text), why, size);
}

void prompts_skip(prompts *p, int i, const char *fault)
{
    const size_t behind = (size_t)(--p->count - i);
    skip(p, &p->place[i], p->text[i], fault);
    free(p->text[i]);
    memmove(p->text + i, p->text + i + 1, behind * sizeof *p->text);
    memmove(p->place + i, p->place + i + 1, behind * sizeof *p->place);
}

void prompts_free(prompts *p)
{
    for (int i = 0; i < p->count; i++) free(p->text[i]);
    for (int i = 0; i < p->file_count; i++) free(p->files[i]);
    free(p->files);
    free(p->text);
    free(p->place);
    *p = (prompts){0};
}
