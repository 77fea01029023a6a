#include "tools/generate/class_names.h"

#include "tools/cli/suggest.h"
#include "tools/cli/text.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { NAME_SIZE = CLASS_NAME_MAX + 2, CANDIDATES = 3 };

const class_table *class_table_of(int classes)
{
    static const char *lines[IMAGENET_CLASSES];
    static const class_table table = {IMAGENET_CLASSES, lines, NULL, NULL};
    if (!lines[0]) {
        char *rest = imagenet_classes;
        for (int i = 0; i < IMAGENET_CLASSES; i++) lines[i] = strsep(&rest, "\n");
    }
    return classes == IMAGENET_CLASSES ? &table : NULL;
}

int class_example(const class_table *t)
{
    return t->file ? 0 : 207; /* a golden retriever */
}

/* Copies text[0..n) in lower case, with single spaces for runs of space, '_' and '-', and none at the ends. */
static void normalise(const char *text, size_t n, char out[NAME_SIZE])
{
    size_t length = 0;
    int gap = 0;
    for (size_t i = 0; i < n && length < NAME_SIZE - 2; i++) {
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

const char *class_next_name(const char *at, const char **start, size_t *length)
{
    if (!*at) return NULL;
    at += strspn(at, ", \t");
    const size_t n = strcspn(at, ",");
    *start = at;
    for (*length = n; *length > 0 && isblank((unsigned char)at[*length - 1]);) (*length)--;
    return at + n;
}

const char *class_name(const class_table *t, int label, char *name, size_t size)
{
    const char *start = "";
    size_t length = 0;
    if (t && label >= 0 && label < t->count) class_next_name(t->lines[label], &start, &length);
    snprintf(name, size, "%.*s", (int)length, start);
    return name;
}

/* Steps on in the same way, and normalises the synonym. Returns 0 after the last. */
static int next_name(const char **at, const char **start, char name[NAME_SIZE])
{
    size_t length;
    *at = class_next_name(*at, start, &length);
    if (*at) normalise(*start, length, name);
    return *at != NULL;
}

/* Appends `"name" (number)` to a list of candidates. `synonym` points into the table. */
static void append_candidate(char *text, size_t size, int label, const char *synonym)
{
    text_append(text, size, "%s\"%.*s\" (%d)", *text ? ", " : "", (int)strcspn(synonym, ","), synonym, label);
}

/* Returns the distance of `word` to `name`, both normalised: 0..99 if it is a part of it made of whole words, from 100
 * on by spelling, INT_MAX if it is too far. */
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

static int unknown_name(const class_table *t, const char *item, int n, const char *word, char *why, size_t size)
{
    struct {
        int distance, label;
        const char *synonym;
    } best[CANDIDATES];
    int found = 0;
    for (int label = 0; label < t->count; label++) {
        int distance = INT_MAX; /* of the class: that of its nearest synonym */
        const char *at = t->lines[label], *start, *nearest = NULL;
        char name[NAME_SIZE];
        while (next_name(&at, &start, name)) {
            const int d = distance_to(word, name);
            if (d < distance) {
                distance = d;
                nearest = start;
            }
        }
        if (!nearest) continue;
        int place = found < CANDIDATES ? found++ : CANDIDATES; /* insertion into the nearest few */
        for (; place > 0 && best[place - 1].distance > distance; place--)
            if (place < CANDIDATES) best[place] = best[place - 1];
        if (place < CANDIDATES) {
            best[place].distance = distance;
            best[place].label = label;
            best[place].synonym = nearest;
        }
    }
    char set[160] = "an ImageNet class", example[NAME_SIZE];
    if (t->file) snprintf(set, sizeof set, "a class of %.140s", t->file);
    if (!found)
        return text_fail(why, size,
                         "class \"%.*s\": not %s, expected a number from 0 to %d, a range such as 0-9, or a name such "
                         "as \"%s\" (mar classes lists them)",
                         n, item, set, t->count - 1, class_name(t, class_example(t), example, sizeof example));
    char candidates[3 * (NAME_SIZE + 16)] = "";
    for (int i = 0; i < found; i++) append_candidate(candidates, sizeof candidates, best[i].label, best[i].synonym);
    return text_fail(why, size, "class \"%.*s\": not %s, did you mean %s?", n, item, set, candidates);
}

int class_find(const class_table *t, const char *item, int n, int *label, char *why, size_t size)
{
    char word[NAME_SIZE], candidates[3 * (NAME_SIZE + 16)] = "";
    if (n >= NAME_SIZE - 1) return text_fail(why, size, "class \"%.24s...\": too long for a name or number", item);
    normalise(item, (size_t)n, word);
    int found = 0;
    for (int i = 0; i < t->count; i++) {
        const char *at = t->lines[i], *start, *other = NULL;
        char name[NAME_SIZE];
        int match = 0;
        while (next_name(&at, &start, name)) {
            if (strcmp(name, word) == 0)
                match = 1;
            else if (!other)
                other = start; /* tells classes of one name apart */
        }
        if (!match) continue;
        if (found++ == 0) *label = i;
        if (!other) other = t->lines[i];
        if (found <= CANDIDATES) append_candidate(candidates, sizeof candidates, i, other);
    }
    if (found == 0) return unknown_name(t, item, n, word, why, size);
    if (found > 1)
        return text_fail(why, size, "class \"%.*s\": %d classes have this name, expected one of %s", n, item, found,
                         candidates);
    return 0;
}

/* --- search ------------------------------------------------------------------------------------------------------- */

/* Returns whether the word, normalised, is in one of the class's names, or is its number. */
static int has_word(const class_table *t, int label, const char *word)
{
    const char *at = t->lines[label], *start;
    char name[NAME_SIZE];
    while (next_name(&at, &start, name))
        if (strstr(name, word)) return 1;
    snprintf(name, sizeof name, "%d", label);
    return strcmp(name, word) == 0;
}

int class_has_words(const class_table *t, int label, const char *const *words, int count)
{
    for (int i = 0; i < count; i++) {
        char word[NAME_SIZE];
        normalise(words[i], strlen(words[i]), word);
        if (!has_word(t, label, word)) return 0;
    }
    return 1;
}

/* Finds the word of all names nearest to `word`; "" if none is near. */
static void nearest_word(const class_table *t, const char *word, char nearest[NAME_SIZE])
{
    int best = 1 + (int)strlen(word) / 5;
    nearest[0] = '\0';
    for (int label = 0; label < t->count; label++) {
        const char *at = t->lines[label], *start;
        char name[NAME_SIZE];
        while (next_name(&at, &start, name)) {
            char *rest = name;
            for (char *part = strtok_r(name, " ", &rest); part; part = strtok_r(NULL, " ", &rest)) {
                const int d = suggest_distance(word, part);
                if (d > best || (d == best && nearest[0])) continue;
                best = d;
                snprintf(nearest, NAME_SIZE, "%s", part);
            }
        }
    }
}

void class_explain_none(const class_table *t, const char *const *words, int count, char *why, size_t size)
{
    for (int i = 0; i < count; i++) {
        char nearest[NAME_SIZE], word[NAME_SIZE];
        int label = 0;
        while (label < t->count && !class_has_words(t, label, &words[i], 1)) label++;
        if (label < t->count) continue;
        normalise(words[i], strlen(words[i]), word);
        if (strchr(word, ' ')) { /* a name of several words */
            (void)unknown_name(t, words[i], (int)strlen(words[i]), word, why, size);
            return;
        }
        nearest_word(t, word, nearest);
        text_fail(why, size, "\"%.100s\": is in no class's name%s%s%s", words[i],
                  nearest[0] ? ", did you mean "
                  : t->file  ? ""
                             : ", expected words such as retriever",
                  nearest, nearest[0] ? "?" : "");
        return;
    }
    char all[256] = "";
    for (int i = 0; i < count; i++) text_append(all, sizeof all, "%s%s", i ? " " : "", words[i]);
    text_fail(why, size, "\"%s\": no class has all these words in its names", all);
}
