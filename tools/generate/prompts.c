#include "tools/generate/prompts.h"

#include "base/json.h"
#include "base/printable.h"
#include "tools/cli/command.h"
#include "tools/cli/file.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MEGABYTES = 256, STDIN_CHUNK = 1 << 16, SHOWN = 60 /* bytes of a prompt in a message */ };

static int refuse_memory(const prompts *p)
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
    if (!place) return refuse_memory(p);
    p->place = place;
    p->capacity = capacity;
    return 0;
}

/* Appends a copy of text[0..n). Returns 0, or 1 with the error printed. */
static int append(prompts *p, const prompt_place *at, const char *text, size_t n)
{
    if (grow(p) != 0) return 1;
    char *copy = malloc(n + 1);
    if (!copy) return refuse_memory(p);
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
static int take(prompts *p, const prompt_place *at, const char *text, size_t n)
{
    char why[96];
    const char *fault = find_fault(p->is_cleaned, text, n, why, sizeof why);
    if (!fault) return append(p, at, text, n);
    skip(p, at, text, fault);
    return 0;
}

/* --- lines and tab-separated values ------------------------------------------------------------------------------- */

/* Reads the first field of line[0..*n) in place, as csv.reader(delimiter="\t") does, and sets *n to its length. A quote
 * that the line does not close is text. */
static void read_field(char *line, size_t *n)
{
    char *end = line + *n, *to = line, *tab;
    char *at = line;
    if (at < end && *at == '"' && memchr(at + 1, '"', *n - 1)) {
        for (at++; at < end; at++) {
            if (*at == '"' && (at + 1 == end || at[1] != '"')) break;
            if (*at == '"') at++;
            *to++ = *at;
        }
        if (at < end) at++;
    }
    tab = memchr(at, '\t', (size_t)(end - at));
    if (!tab) tab = end;
    memmove(to, at, (size_t)(tab - at));
    *n = (size_t)(to + (tab - at) - line);
}

/* Returns the length of the line at text[0..size), without the end of the line, which is `*whole` bytes long in all. */
static size_t measure_line(const char *text, size_t size, size_t *whole)
{
    const char *end = memchr(text, '\n', size);
    size_t n = end ? (size_t)(end - text) : size;
    *whole = end ? n + 1 : n;
    if (n > 0 && text[n - 1] == '\r') n--;
    return n;
}

/* Returns the size of the text without blank lines at its end. */
static size_t trim_end(const char *text, size_t size)
{
    size_t n = size;
    while (n > 0 && text[n - 1] && strchr(" \t\r\n", text[n - 1])) n--;
    while (n > 0 && n < size && text[n] != '\n') n++;
    return n;
}

static int parse_lines(char *text, size_t size, const char *path, prompts *p)
{
    size_t whole, n = measure_line(text, size, &whole);
    prompt_place at = {path, "line", 0};
    const int table = n >= 6 && memcmp(text, "Prompt", 6) == 0 && (n == 6 || text[6] == '\t');
    size = trim_end(text, size);
    for (size_t begin = 0; begin < size; begin += whole) {
        n = measure_line(text + begin, size - begin, &whole);
        if (at.number++ == 0 && table) continue;
        if (table) read_field(text + begin, &n);
        if (take(p, &at, text + begin, n) != 0) return 1;
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
    if (!all) return refuse_memory(p);
    prompt_place at = {path, "annotation", 0};
    const json_value *v = list + 1;
    for (size_t i = 0; i < most; i++, v = json_next(v)) {
        at.number = i + 1;
        if (read_annotation(p, &at, v, &all[count]) == 0) count++;
    }
    count = choose_captions(all, count);
    for (size_t i = 0; i < count && !failed; i++) {
        at.number = all[i].number;
        failed = append(p, &at, all[i].text->text, all[i].text->length);
    }
    free(all);
    return failed;
}

static int parse_array(const json_value *list, const char *path, prompts *p)
{
    prompt_place at = {path, "element", 0};
    const json_value *v = list + 1;
    for (size_t n = json_children(list); at.number < n; v = json_next(v)) {
        const json_value *text = v->type == JSON_OBJECT ? json_member(v, "caption") : v;
        at.number++;
        if (!text || text->type != JSON_STRING)
            skip(p, &at, NULL, "neither a text nor an object with \"caption\"");
        else if (take(p, &at, text->text, text->length) != 0)
            return 1;
    }
    return 0;
}

static int parse_json(char *text, size_t size, const char *path, prompts *p)
{
    json j;
    const json_error error = json_read(text, size, JSON_LEVELS_MAX, &j);
    if (error == JSON_NO_MEMORY) return tool_error("%s: out of memory for its %zu bytes", path, size);
    if (error != JSON_OK)
        return tool_error("%s: begins as JSON, which ends at byte %zu, expected one whole value", path, j.at);
    const json_value *list = json_member(j.values, "annotations");
    int failed = 0;
    if (list && list->type == JSON_ARRAY)
        failed = parse_annotations(list, path, p);
    else if (j.values->type == JSON_ARRAY)
        failed = parse_array(j.values, path, p);
    else
        failed = tool_error("%s: JSON without \"annotations\", expected COCO's captions or an array of texts", path);
    json_free(&j);
    return failed;
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

/* --- calls -------------------------------------------------------------------------------------------------------- */

int prompts_parse(char *text, size_t size, const char *path, prompts *p)
{
    const int before = p->count, skipped = p->skipped;
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) text += 3, size -= 3; /* byte order mark of UTF-8 */
    if ((is_json(text) ? parse_json : parse_lines)(text, size, path, p) != 0) return 1;
    if (p->count > before || (before > 0 && p->skipped > skipped)) return 0;
    if (p->skipped > skipped) return 1; /* each is reported */
    return tool_error("%s: no prompt in it, expected one a line, COCO's captions, or a table with the heading Prompt",
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

int prompts_read(const char *path, prompts *p)
{
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
    return take(p, &(prompt_place){"--prompt", NULL, 0}, text, strlen(text));
}

const char *prompts_fault(const char *text, char *why, size_t size)
{
    return find_fault(0, text, strlen(text), why, size);
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
    free(p->text);
    free(p->place);
    *p = (prompts){0};
}
