#include "tools/generate/classes.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "base/printable.h"
#include "tools/cli/text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* --- files -------------------------------------------------------------------------------------------- */

enum {
    CHUNK = 64 * 1024,
    SIZE_LIMIT = 64 * 1024 * 1024 /* a million names of ImageNet take less */
};

/* Checks that the bytes are text, and counts lines. UTF-8 and any encoding above ASCII pass. */
static int class_list_check_text(const char *text, size_t n, long *line, char *why, size_t size)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        const int is_blank = c >= '\t' && c <= '\r'; /* includes line ends */
        if ((c < 32 && !is_blank) || c == 127)
            return text_fail(why, size, "line %ld: the byte 0x%02x, expected text", *line, c);
        *line += c == '\n';
    }
    return 0;
}

/* Makes room for a chunk and a NUL behind `used` bytes. Returns 0, or 1 without memory. */
static int class_list_make_room(char **text, size_t used, size_t *capacity)
{
    if (used + CHUNK < *capacity) return 0;
    char *larger = realloc(*text, 2 * used + CHUNK + 1);
    if (!larger) return 1;
    *text = larger;
    *capacity = 2 * used + CHUNK + 1;
    return 0;
}

/* Appends the stream to *text. The caller frees it, even on failure. Returns 0, or 1 and the reason. */
static int class_list_read_all(FILE *in, char **text, char *why, size_t size)
{
    size_t used = 0, capacity = 0;
    long line = 1;
    for (size_t n = CHUNK; n == CHUNK; used += n) {
        if (used >= SIZE_LIMIT)
            return text_fail(why, size, "more than %d MB, expected a list of classes", SIZE_LIMIT / 1024 / 1024);
        if (class_list_make_room(text, used, &capacity) != 0)
            return text_fail(why, size, "out of memory for %zu bytes", 2 * used + CHUNK + 1);
        n = fread(*text + used, 1, CHUNK, in);
        if (n < CHUNK && ferror(in)) return text_fail(why, size, "%s", strerror(errno));
        if (class_list_check_text(*text + used, n, &line, why, size) != 0) return 1;
        (*text)[used + n] = '\0';
    }
    return 0;
}

/* Opens the file. Returns NULL and the reason on failure. */
static FILE *class_list_open_file(const char *name, char *why, size_t size)
{
    if (strcmp(name, "-") == 0) return stdin;
    const int fd = tool_open_file(name, O_RDONLY);
    FILE *in = fd >= 0 ? fdopen(fd, "rb") : NULL;
    if (in) return in;
    snprintf(why, size, "%s",
             errno ? strerror(errno) : "is not a regular file, expected a list of classes; @- is standard input");
    if (fd >= 0) close(fd);
    return NULL;
}

/* Checks that the file can be opened. Returns 0, or 1 and the reason. */
static int class_file_check(const char *name, char *why, size_t size)
{
    FILE *in = class_list_open_file(name, why, size);
    if (in && in != stdin) fclose(in);
    return !in;
}

/* Reads the file, or for "-" standard input, to *text, with a NUL. The caller frees it. Rejects a file with a control
 * character, naming the first, and one longer than any list. On failure returns 1 and writes the reason, without the
 * file's name, to `why`, char [size]. */
static int class_file_read(const char *name, char **text, char *why, size_t size)
{
    FILE *in = class_list_open_file(name, why, size);
    *text = NULL;
    if (!in) return 1;
    const int failed = class_list_read_all(in, text, why, size);
    if (in != stdin) fclose(in);
    if (failed) {
        free(*text);
        *text = NULL;
    } else if (strncmp(*text, "\xef\xbb\xbf", 3) == 0) {
        memset(*text, ' ', 3); /* byte order mark of UTF-8 */
    }
    return failed;
}

/* --- lists -------------------------------------------------------------------------------------------- */

/* A growing list of classes. */
typedef struct {
    int *labels; /* [capacity]; count are set */
    int count, capacity;
    const class_choices *choices;
} label_list;

static int add_range(label_list *l, int first, int last, char *why, size_t size)
{
    const int more = last - first + 1;
    if (more > CLASSES_LIST_MAX - l->count)
        return text_fail(why, size, "class list: more than %d classes, expected that many at most", CLASSES_LIST_MAX);
    if (l->count + more > l->capacity) {
        const int capacity = 2 * l->capacity + more;
        int *larger = realloc(l->labels, (size_t)capacity * sizeof *larger);
        if (!larger) return text_fail(why, size, "class list: out of memory for %d classes", capacity);
        l->labels = larger;
        l->capacity = capacity;
    }
    for (int label = first; label <= last; label++) l->labels[l->count++] = label;
    return 0;
}

/* Hands out the list, none after a failure. Returns `failed`. */
static int class_list_hand_out(label_list *l, int failed, int **labels, int *count)
{
    if (failed) free(l->labels);
    *labels = failed ? NULL : l->labels;
    *count = failed ? 0 : l->count;
    return failed;
}

/* Returns whether item[0..n) is a whole number, "7" or "-7", and nothing else. */
static int class_list_is_number(const char *item, int n)
{
    const int sign = n > 1 && (item[0] == '-' || item[0] == '+');
    for (int i = sign; i < n; i++)
        if (!isdigit((unsigned char)item[i])) return 0;
    return n > 0;
}

/* Returns the number that begins at text and ends with its digits; -1 if it is not a class. */
static int class_number(const char *text, int classes)
{
    errno = 0;
    const long v = strtol(text, NULL, 10);
    return errno || v < 0 || v >= classes ? -1 : (int)v;
}

/* Returns whether the item is "0-9" or "0 - 9", and stores where the second number begins. */
static int is_range(const char *item, int n, const char **second)
{
    int i = 0, digits = 0;
    while (i < n && isdigit((unsigned char)item[i])) i++;
    digits = i;
    while (i < n && isspace((unsigned char)item[i])) i++;
    if (digits == 0 || i == n || item[i++] != '-') return 0;
    while (i < n && isspace((unsigned char)item[i])) i++;
    *second = item + i;
    return item[i] != '+' && item[i] != '-' && class_list_is_number(item + i, n - i);
}

static int is_word(const char *item, int n, const char *word)
{
    return n == (int)strlen(word) && strncasecmp(item, word, (size_t)n) == 0;
}

enum { SHOWN = 40 }; /* bytes of an item shown in messages */

/* Refuses a name for a model whose classes have none. */
static int has_no_names(const label_list *l, const char *shown, char *why, size_t size)
{
    return text_fail(
        why, size,
        "class \"%s\": expected a number from 0 to %d or a range of them (names need a model of ImageNet's "
        "1000 classes, or --class_names)",
        shown, l->choices->count - 1);
}

/* Parses one item of the list, item[0..n), without surrounding blanks. */
static int parse_item(label_list *l, const char *item, int n, char *why, size_t size)
{
    const class_choices *c = l->choices;
    const int classes = c->count, is_long = n > SHOWN;
    const char *second;
    char shown[SHOWN + 4];
    snprintf(shown, sizeof shown, "%.*s%s", is_long ? (int)printable_whole(item, SHOWN) : n, item,
             is_long ? "..." : "");
    int label;
    if (class_list_is_number(item, n)) {
        label = class_number(item, classes);
        if (label < 0) return text_fail(why, size, "class %s: out of range, expected 0 to %d", shown, classes - 1);
        return add_range(l, label, label, why, size);
    }
    if (is_range(item, n, &second)) {
        const int first = class_number(item, classes), last = class_number(second, classes);
        if (first < 0 || last < 0)
            return text_fail(why, size, "class %s: out of range, expected 0 to %d", shown, classes - 1);
        if (first > last) return text_fail(why, size, "class %s: goes downwards, expected %d-%d", shown, last, first);
        return add_range(l, first, last, why, size);
    }
    if (n == 0)
        return text_fail(why, size, "class \"\": empty, expected numbers%s separated by commas",
                         c->names ? " or names" : "");
    if (is_word(item, n, "all")) return add_range(l, 0, classes - 1, why, size);
    if (is_word(item, n, "none"))
        return c->no_none ? text_fail(why, size, "class none: %s", c->no_none) : add_range(l, -1, -1, why, size);
    if (item[0] == '@') return text_fail(why, size, "class \"%s\": expected a class, not a file with classes", shown);
    if (!c->names) return has_no_names(l, shown, why, size);
    return class_find(c->names, item, n, &label, why, size) || add_range(l, label, label, why, size);
}

/* Finds the item at text, up to one of `ends`. Stores its begin, and its length without surrounding blanks. Returns its
 * end. */
static const char *cut_item(const char *text, const char *ends, const char **item, int *n)
{
    const char *end = text + strcspn(text, ends), *last = end;
    while (text < end && isspace((unsigned char)*text)) text++;
    while (last > text && isspace((unsigned char)last[-1])) last--;
    *item = text;
    *n = last - text < INT_MAX ? (int)(last - text) : INT_MAX;
    return end;
}

/* Adds the classes in the text of a file: an item ends with a comma or its line, # begins a comment. */
static int parse_text(label_list *l, const char *text, char *why, size_t size)
{
    const int before = l->count;
    int line = 1;
    for (const char *at = text; *at; at++) {
        const char *item;
        int n;
        at = cut_item(at, ",\n#", &item, &n);
        char reason[1024];
        if (n > 0 && parse_item(l, item, n, reason, sizeof reason) != 0)
            return text_fail(why, size, "line %d: %s", line, reason);
        if (*at == '#') at += strcspn(at, "\n");
        line += *at == '\n';
        if (!*at) break;
    }
    if (l->count > before) return 0;
    return text_fail(why, size, "no class in it, expected numbers%s, one a line or separated by commas",
                     l->choices->names ? " or names" : "");
}

/* Adds the classes of the file "@FILE" or "@-" that item[0..n) names. */
static int parse_file(label_list *l, const char *item, int n, char *why, size_t size)
{
    char name[1024], reason[1024];
    char *text;
    if (n >= (int)sizeof name) return text_fail(why, size, "%.40s...: the name is too long", item);
    snprintf(name, sizeof name, "%.*s", n - 1, item + 1);
    const char *shown = strcmp(name, "-") == 0 ? "standard input" : name;
    if (!*name) return text_fail(why, size, "@: expected a file's name behind it, or - for standard input");
    if (class_file_read(name, &text, reason, sizeof reason) != 0) return text_fail(why, size, "%s: %s", shown, reason);
    const int failed = parse_text(l, text, reason, sizeof reason);
    free(text);
    return failed ? text_fail(why, size, "%s: %s", shown, reason) : 0;
}

/* Parses a list. with_files: "@FILE" is an item. */
static int parse_list(label_list *l, const char *list, int with_files, char *why, size_t size)
{
    for (const char *at = list;; at++) {
        const char *item;
        int n;
        at = cut_item(at, ",", &item, &n);
        const int failed = with_files && n > 0 && item[0] == '@' ? parse_file(l, item, n, why, size)
                                                                 : parse_item(l, item, n, why, size);
        if (failed) return 1;
        if (!*at) return 0;
    }
}

int classes_parse(const char *list, const class_choices *choices, int **labels, int *count, char *why, size_t why_size)
{
    label_list l = {.choices = choices};
    return class_list_hand_out(&l, parse_list(&l, list, 0, why, why_size), labels, count);
}

int classes_parse_text(const char *text, const class_choices *choices, int **labels, int *count, char *why,
                       size_t why_size)
{
    label_list l = {.choices = choices};
    return class_list_hand_out(&l, parse_text(&l, text, why, why_size), labels, count);
}

int classes_check_files(const char *list)
{
    for (const char *at = list ? list : "";; at++) {
        const char *item;
        int n;
        at = cut_item(at, ",", &item, &n);
        char *name = n > 1 && item[0] == '@' ? strndup(item + 1, (size_t)n - 1) : NULL;
        char why[256];
        const int failed = name && class_file_check(name, why, sizeof why) != 0;
        if (failed) tool_error("--class: %s: %s", name, why);
        free(name);
        if (failed) return 1;
        if (!*at) return 0;
    }
}

int classes_choose(const char *list, const class_choices *choices, int default_all, int **labels, int *count)
{
    char why[1536], name[CLASS_NAME_MAX + 2], example[CLASS_NAME_MAX + 64] = "";
    label_list l = {.choices = choices};
    if (choices->names)
        snprintf(example, sizeof example, " or names such as \"%s\" (mar classes)",
                 class_name(choices->names, class_example(choices->names), name, sizeof name));
    if (!list && !default_all)
        return tool_error("--class is missing, expected numbers from 0 to %d%s", choices->count - 1, example);
    const int failed = parse_list(&l, list ? list : "all", 1, why, sizeof why);
    if (failed) tool_error("--class: %s", why);
    return class_list_hand_out(&l, failed, labels, count);
}
