#include "tools/eval/sweep_file.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/cli/text.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE_LIMIT_MB = 1 };

/* --- reading ------------------------------------------------------------------------------------------------------ */

typedef enum { WORD, BAR, LINE_END, TEXT_END, BAD } token;

typedef struct {
    const char *path, *at, *end;
    int line;
    char *word; /* [size of the text + 1] last word */
} reader;

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Reads a word up to a blank, a bar or the line's end outside quotes. */
static token read_word(reader *r)
{
    char quote = 0, *to = r->word;
    for (; r->at < r->end; r->at++) {
        const char c = *r->at;
        if (c == '\n' || (!quote && (is_blank(c) || c == '|'))) break;
        if (quote ? c == quote : c == '\'' || c == '"')
            quote = quote ? 0 : c;
        else
            *to++ = c;
    }
    *to = '\0';
    if (!quote) return WORD;
    tool_error("%s, line %d: %c is not closed, expected another in the line", r->path, r->line, quote);
    return BAD;
}

static token next_token(reader *r)
{
    while (r->at < r->end && is_blank(*r->at)) r->at++;
    if (r->at < r->end && *r->at == '#')
        while (r->at < r->end && *r->at != '\n') r->at++;
    if (r->at == r->end) return TEXT_END;
    if (*r->at != '\n' && *r->at != '|') return read_word(r);
    return *r->at++ == '|' ? BAR : LINE_END;
}

static int no_memory(const reader *r)
{
    return tool_error("%s: out of memory for the options in it", r->path);
}

/* Grows an array of n by one element. Returns NULL without memory. */
static void *enlarged(void *array, int n, size_t size)
{
    return realloc(array, ((size_t)n + 1) * size);
}

static int add_axis(const reader *r, sweep_grid *g)
{
    sweep_axis *axes = enlarged(g->axes, g->count, sizeof *axes);
    if (!axes) return no_memory(r);
    g->axes = axes;
    g->axes[g->count++] = (sweep_axis){0};
    return 0;
}

static int add_choice(const reader *r, sweep_axis *a)
{
    sweep_choice *choices = enlarged(a->choices, a->count, sizeof *choices);
    if (!choices) return no_memory(r);
    a->choices = choices;
    a->choices[a->count++] = (sweep_choice){.line = r->line};
    return 0;
}

static int add_word(const reader *r, sweep_choice *c)
{
    char **words = enlarged(c->words, c->count, sizeof *words), *word = strdup(r->word);
    if (words) c->words = words;
    if (!words || !word) {
        free(word);
        return no_memory(r);
    }
    if (c->count == 0) c->line = r->line;
    c->words[c->count++] = word;
    return 0;
}

/* Reads all axes. A line's first word or bar begins an axis. */
static int read_axes(reader *r, sweep_grid *g)
{
    int open = 0, after_bar = 0;
    for (;;) {
        const token t = next_token(r);
        sweep_axis *axis;
        if (t == BAD) return 1;
        if (t == TEXT_END && after_bar)
            return tool_error("%s: ends in |, expected another alternative behind it", r->path);
        if (t == TEXT_END) return 0;
        if (t == LINE_END) {
            r->line++;
            open = after_bar;
            continue;
        }
        if (!open && (add_axis(r, g) != 0 || add_choice(r, &g->axes[g->count - 1]) != 0)) return 1;
        open = 1;
        after_bar = t == BAR;
        axis = &g->axes[g->count - 1];
        if (t == BAR ? add_choice(r, axis) : add_word(r, &axis->choices[axis->count - 1])) return 1;
    }
}

static int same_choice(const sweep_choice *a, const sweep_choice *b)
{
    int same = a->count == b->count;
    for (int i = 0; i < a->count && same; i++) same = strcmp(a->words[i], b->words[i]) == 0;
    return same;
}

static void write_words(FILE *out, const sweep_choice *c)
{
    for (int i = 0; i < c->count; i++) {
        const char *quote = *c->words[i] == '\0' || strpbrk(c->words[i], " \t|#") ? "\"" : "";
        fprintf(out, "%s%s%s%s", i ? " " : "", quote, c->words[i], quote);
    }
}

static int refuse_twice(const char *path, const sweep_choice *c)
{
    text_buffer text;
    FILE *out = text_open(&text);
    if (out) write_words(out, c);
    if (!out || text_close(out, &text) != 0) return tool_error("%s: out of memory", path);
    tool_error("%s, line %d: %s is there twice, expected alternatives that differ", path, c->line,
               c->count ? text.data : "no option");
    free(text.data);
    return 1;
}

/* Checks that the alternatives of each axis differ, and that the product is not too large. */
static int check(sweep_grid *g)
{
    if (g->count == 0) return tool_error("%s: has no options, expected alternatives separated by |", g->path);
    g->points = 1;
    for (int i = 0; i < g->count; i++) {
        const sweep_axis *a = &g->axes[i];
        if (a->count > SWEEP_POINTS_MAX / g->points)
            return tool_error("%s, line %d: the axes have more than %d points together, expected that many at most",
                              g->path, a->choices[0].line, SWEEP_POINTS_MAX);
        g->points *= a->count;
        for (int j = 0; j < a->count; j++)
            for (int k = 0; k < j; k++)
                if (same_choice(&a->choices[j], &a->choices[k])) return refuse_twice(g->path, &a->choices[j]);
    }
    return 0;
}

int sweep_grid_parse(const char *path, const char *text, size_t size, sweep_grid *out)
{
    reader r = {path, text, text + size, 1, malloc(size + 1)};
    *out = (sweep_grid){.path = path};
    if (memchr(text, '\0', size)) {
        free(r.word);
        return tool_error("%s: is no text, expected lines of options", path);
    }
    const int failed = (r.word ? read_axes(&r, out) : no_memory(&r)) || check(out);
    free(r.word);
    return failed;
}

int sweep_grid_read(const char *path, sweep_grid *out)
{
    size_t size;
    *out = (sweep_grid){.path = path};
    char *text = tool_read_file(path, 0, SIZE_LIMIT_MB, "lines of options", &size);
    if (!text) return 1;
    const int failed = sweep_grid_parse(path, text, size, out);
    free(text);
    return failed;
}

void sweep_grid_free(sweep_grid *g)
{
    for (int i = 0; i < g->count; i++) {
        for (int j = 0; j < g->axes[i].count; j++) {
            sweep_choice *c = &g->axes[i].choices[j];
            for (int k = 0; k < c->count; k++) free(c->words[k]);
            free(c->words);
        }
        free(g->axes[i].choices);
    }
    free(g->axes);
    *g = (sweep_grid){0};
}

/* --- points ------------------------------------------------------------------------------------------------------- */

/* Returns FNV-1a of all words, 64 bits folded to 32. */
static uint32_t hash_of(const sweep_point *p)
{
    uint64_t h = 0xcbf29ce484222325;
    for (int i = 0; i < p->count; i++)
        for (const char *c = p->words[i];; c++) {
            h = (h ^ (uint8_t)*c) * 0x100000001b3;
            if (!*c) break; /* hashed, too: it ends the word */
        }
    return (uint32_t)(h ^ h >> 32);
}

static int is_plain(char c)
{
    return isalnum((unsigned char)c) || (c && strchr(".,+=_-", c));
}

/* Names a point: "cfg-2.9+head_spec-8" for "--cfg 2.9 --head_spec 8". If letters are invalid or too many, or if other
 * options could give the same name, a hash of all options follows. */
static void name_point(sweep_point *p)
{
    enum { ROOM = 100 };
    size_t n = 0;
    int lossy = 0, after_option = 0;
    for (int i = 0; i < p->count; i++) {
        const char *word = p->words[i];
        const int is_option = strncmp(word, "--", 2) == 0 && word[2] != '-';
        const char *rest = word + (is_option ? 2 : 0);
        lossy |= *rest == '\0' || strpbrk(rest, is_option ? "+-" : "+") || (!is_option && !after_option);
        after_option = is_option;
        if (i > 0 && n < ROOM) p->name[n++] = is_option ? '+' : '-';
        for (const char *c = rest; *c; c++) {
            lossy |= !is_plain(*c) || n >= ROOM;
            if (n < ROOM) p->name[n++] = is_plain(*c) ? *c : '-';
        }
    }
    if (p->count == 0) n = (size_t)snprintf(p->name, sizeof p->name, "plain");
    if (n == 0) n = 1;
    if (!isalnum((unsigned char)p->name[0])) { /* not empty, hidden or like an option */
        p->name[0] = 'x';
        lossy = 1;
    }
    p->name[n] = '\0';
    lossy |= p->count > 0 && strcmp(p->name, "plain") == 0;
    if (lossy) snprintf(p->name + n, sizeof p->name - n, "-%08" PRIx32, hash_of(p));
}

/* Returns the alternative of an axis for point i. */
static const sweep_choice *choice_of(const sweep_grid *g, int i, int axis)
{
    for (int k = g->count - 1; k > axis; k--) i /= g->axes[k].count;
    return &g->axes[axis].choices[i % g->axes[axis].count];
}

static void name_lines(const sweep_grid *g, int i, sweep_point *p)
{
    int n = 0, last = 0;
    for (int k = 0; k < g->count; k++) {
        const sweep_choice *c = choice_of(g, i, k);
        if (c->count == 0 || c->line == last) continue;
        last = c->line;
        text_append(p->lines, sizeof p->lines, "%s%d", n++ ? ", " : "", c->line);
    }
    if (n == 0) return;
    char numbers[sizeof p->lines];
    memcpy(numbers, p->lines, sizeof numbers);
    p->lines[0] = '\0';
    text_append(p->lines, sizeof p->lines, n > 1 ? "lines %s" : "line %s", numbers);
}

void sweep_point_free(sweep_point *p)
{
    free(p->options);
    free(p->words);
    *p = (sweep_point){0};
}

int sweep_grid_point(const sweep_grid *g, int i, sweep_point *out)
{
    text_buffer text;
    size_t words = 0;
    *out = (sweep_point){0};
    for (int k = 0; k < g->count; k++) words += (size_t)choice_of(g, i, k)->count;
    out->words = calloc(words + 1, sizeof *out->words);
    FILE *options = out->words ? text_open(&text) : NULL;
    if (!options) {
        sweep_point_free(out);
        return 1;
    }
    for (int k = 0; k < g->count; k++) {
        const sweep_choice *c = choice_of(g, i, k);
        if (c->count && out->count) fputc(' ', options);
        write_words(options, c);
        for (int w = 0; w < c->count; w++) out->words[out->count++] = c->words[w];
    }
    if (text_close(options, &text) != 0) {
        sweep_point_free(out);
        return 1;
    }
    out->options = text.data;
    name_point(out);
    name_lines(g, i, out);
    return 0;
}
