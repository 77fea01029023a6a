#include "tools/classes.h"

#include "tools/command.h"
#include "tools/suggest.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LENGTH = 128, CANDIDATES = 3 };

static int fail(char *why, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int fail(char *why, size_t size, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, size, format, arguments);
    va_end(arguments);
    return 1;
}

/* text[0..n) in lower case, with single spaces for runs of space, '_' and '-', none at the ends. */
static void normalise(const char *text, size_t n, char out[NAME_MAX_LENGTH])
{
    size_t length = 0;
    int gap = 0;
    for (size_t i = 0; i < n && length < NAME_MAX_LENGTH - 2; i++) {
        unsigned char c = (unsigned char)text[i];
        if (isspace(c) || c == '_' || c == '-') {
            gap = length > 0;
        } else {
            if (gap) out[length++] = ' ';
            out[length++] = (char)tolower(c);
            gap = 0;
        }
    }
    out[length] = '\0';
}

/* Steps through a class's synonyms: stores the next one and returns its end, or NULL after the last. */
static const char *next_synonym(const char *at, const char **start, size_t *length)
{
    if (!*at) return NULL;
    at += strspn(at, ", ");
    *start = at;
    *length = strcspn(at, ",");
    return at + *length;
}

const char *class_name(int label, int classes, char *name, size_t size)
{
    const char *start = "";
    size_t length = 0;
    if (classes == IMAGENET_CLASSES && label >= 0 && label < classes)
        next_synonym(imagenet_classes[label], &start, &length);
    snprintf(name, size, "%.*s", (int)length, start);
    return name;
}

/* Appends `"name" (number)` to a list of candidates. `synonym` points into the table. */
static void append_candidate(char *text, size_t size, int label, const char *synonym)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s\"%.*s\" (%d)", used ? ", " : "", (int)strcspn(synonym, ","), synonym, label);
}

/* How far `word` is from meaning `name`, both normalised: 0..99 if it is a part of it made of whole words,
 * from 100 on by spelling, INT_MAX if too far to be meant. */
static int distance_to(const char *word, const char *name)
{
    size_t n = strlen(word);
    for (const char *at = name; n >= 2 && (at = strstr(at, word)); at++)
        if ((at == name || at[-1] == ' ') && (at[n] == '\0' || at[n] == ' ')) {
            size_t rest = strlen(name) - n;
            return rest < 99 ? (int)rest : 99;
        }
    int d = suggest_distance(word, name);
    return d <= 1 + (int)n / 4 ? 100 + d : INT_MAX;
}

static int unknown_name(const char *item, int n, const char *word, char *why, size_t size)
{
    struct {
        int distance, label;
        const char *synonym;
    } best[CANDIDATES];
    int found = 0;
    for (int label = 0; label < IMAGENET_CLASSES; label++) {
        int distance = INT_MAX; /* of the class: that of its nearest synonym */
        const char *at = imagenet_classes[label], *start, *nearest = NULL;
        size_t length;
        while ((at = next_synonym(at, &start, &length))) {
            char name[NAME_MAX_LENGTH];
            normalise(start, length, name);
            int d = distance_to(word, name);
            if (d < distance) {
                distance = d;
                nearest = start;
            }
        }
        if (!nearest) continue;
        int place = found < CANDIDATES ? found++ : CANDIDATES; /* insertion into the best few */
        for (; place > 0 && best[place - 1].distance > distance; place--)
            if (place < CANDIDATES) best[place] = best[place - 1];
        if (place < CANDIDATES) {
            best[place].distance = distance;
            best[place].label = label;
            best[place].synonym = nearest;
        }
    }
    if (!found)
        return fail(why, size,
                    "class \"%.*s\": not an ImageNet class, expected a number from 0 to 999 or a name such as "
                    "\"golden retriever\"",
                    n, item);
    char candidates[3 * (NAME_MAX_LENGTH + 16)] = "";
    for (int i = 0; i < found; i++) append_candidate(candidates, sizeof candidates, best[i].label, best[i].synonym);
    return fail(why, size, "class \"%.*s\": not an ImageNet class, did you mean %s?", n, item, candidates);
}

static int parse_name(const char *item, int n, int *label, char *why, size_t size)
{
    char word[NAME_MAX_LENGTH], candidates[3 * (NAME_MAX_LENGTH + 16)] = "";
    normalise(item, (size_t)n, word);
    int found = 0;
    for (int i = 0; i < IMAGENET_CLASSES; i++) {
        const char *at = imagenet_classes[i], *start, *other = NULL;
        size_t length;
        int match = 0;
        while ((at = next_synonym(at, &start, &length))) {
            char name[NAME_MAX_LENGTH];
            normalise(start, length, name);
            if (strcmp(name, word) == 0)
                match = 1;
            else if (!other)
                other = start; /* says which of the classes of the same name this is */
        }
        if (!match) continue;
        if (found++ == 0) *label = i;
        if (!other) other = imagenet_classes[i];
        if (found <= CANDIDATES) append_candidate(candidates, sizeof candidates, i, other);
    }
    if (found == 0) return unknown_name(item, n, word, why, size);
    if (found > 1)
        return fail(why, size, "class \"%.*s\": %d classes have this name, expected one of %s", n, item, found,
                    candidates);
    return 0;
}

/* One item of the list, blanks cut off: item[0..n). */
static int parse_item(const char *item, int n, int classes, int *label, char *why, size_t size)
{
    int digits = n > 0 && (isdigit((unsigned char)item[0]) || item[0] == '-' || item[0] == '+');
    for (int i = 1; i < n; i++) digits &= isdigit((unsigned char)item[i]) != 0;
    if (digits && (n > 1 || isdigit((unsigned char)item[0]))) {
        errno = 0;
        long v = strtol(item, NULL, 10); /* stops at the comma or the end */
        if (errno || v < 0 || v >= classes)
            return fail(why, size, "class %.*s: out of range, expected 0 to %d", n < 40 ? n : 40, item, classes - 1);
        *label = (int)v;
        return 0;
    }
    if (n == 0)
        return fail(why, size, "class \"\": empty, expected numbers%s separated by commas",
                    classes == IMAGENET_CLASSES ? " or names" : "");
    if (classes != IMAGENET_CLASSES)
        return fail(why, size,
                    "class \"%.*s\": expected a number from 0 to %d (names are those of ImageNet and need a model "
                    "of 1000 classes)",
                    n, item, classes - 1);
    if (n >= NAME_MAX_LENGTH - 1) return fail(why, size, "class \"%.24s...\": too long for a name or number", item);
    return parse_name(item, n, label, why, size);
}

int classes_parse(const char *list, int classes, int **labels, int *count, char *why, size_t why_size)
{
    int items = 1;
    for (const char *c = list; *c; c++) items += *c == ',';
    *labels = malloc((size_t)items * sizeof **labels);
    *count = 0;
    if (!*labels) return fail(why, why_size, "class list: out of memory for %d items", items);
    for (const char *at = list;; at++) {
        at += strspn(at, " \t");
        size_t n = strcspn(at, ","), end = n;
        while (end > 0 && isspace((unsigned char)at[end - 1])) end--;
        if (parse_item(at, (int)end, classes, &(*labels)[*count], why, why_size) != 0) {
            free(*labels);
            *labels = NULL;
            *count = 0;
            return 1;
        }
        ++*count;
        at += n;
        if (!*at) return 0;
    }
}

int classes_choose(const char *list, int classes, int default_all, int **labels, int *count)
{
    char why[1024];
    if (list)
        return classes_parse(list, classes, labels, count, why, sizeof why) == 0 ? 0 : tool_error("--class: %s", why);
    if (!default_all)
        return tool_error("--class is missing, expected numbers from 0 to %d%s", classes - 1,
                          classes == IMAGENET_CLASSES ? " or names such as \"golden retriever\"" : "");
    *labels = malloc((size_t)classes * sizeof **labels);
    if (!*labels) return tool_error("out of memory for %d classes", classes);
    for (int i = 0; i < classes; i++) (*labels)[i] = i;
    *count = classes;
    return 0;
}
