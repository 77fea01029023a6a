#include "tools/generate/class_names.h"

#include "tools/cli/suggest.h"
#include "tools/cli/text.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { NAME_MAX_LENGTH = 128, CANDIDATES = 3 };

const char *class_names(int label)
{
    static char *lines[IMAGENET_CLASSES];
    if (!lines[0]) {
        char *rest = imagenet_classes;
        for (int i = 0; i < IMAGENET_CLASSES; i++) lines[i] = strsep(&rest, "\n");
    }
    return lines[label];
}

/* Copies text[0..n) in lower case, with single spaces for runs of space, '_' and '-', and none at the ends. */
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
    if (classes == IMAGENET_CLASSES && label >= 0 && label < classes) next_synonym(class_names(label), &start, &length);
    snprintf(name, size, "%.*s", (int)length, start);
    return name;
}

/* Steps on in the same way, and normalises the synonym. Returns 0 after the last. */
static int next_name(const char **at, const char **start, char name[NAME_MAX_LENGTH])
{
    size_t length;
    *at = next_synonym(*at, start, &length);
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

static int unknown_name(const char *item, int n, const char *word, char *why, size_t size)
{
    struct {
        int distance, label;
        const char *synonym;
    } best[CANDIDATES];
    int found = 0;
    for (int label = 0; label < IMAGENET_CLASSES; label++) {
        int distance = INT_MAX; /* of the class: that of its nearest synonym */
        const char *at = class_names(label), *start, *nearest = NULL;
        char name[NAME_MAX_LENGTH];
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
    if (!found)
        return text_fail(
            why, size,
            "class \"%.*s\": not an ImageNet class, expected a number from 0 to 999, a range such as 0-9, or a name "
            "such as \"golden retriever\" (mar classes lists them)",
            n, item);
    char candidates[3 * (NAME_MAX_LENGTH + 16)] = "";
    for (int i = 0; i < found; i++) append_candidate(candidates, sizeof candidates, best[i].label, best[i].synonym);
    return text_fail(why, size, "class \"%.*s\": not an ImageNet class, did you mean %s?", n, item, candidates);
}

int class_find(const char *item, int n, int *label, char *why, size_t size)
{
    char word[NAME_MAX_LENGTH], candidates[3 * (NAME_MAX_LENGTH + 16)] = "";
    if (n >= NAME_MAX_LENGTH - 1)
        return text_fail(why, size, "class \"%.24s...\": too long for a name or number", item);
    normalise(item, (size_t)n, word);
    int found = 0;
    for (int i = 0; i < IMAGENET_CLASSES; i++) {
        const char *at = class_names(i), *start, *other = NULL;
        char name[NAME_MAX_LENGTH];
        int match = 0;
        while (next_name(&at, &start, name)) {
            if (strcmp(name, word) == 0)
                match = 1;
            else if (!other)
                other = start; /* tells classes of one name apart */
        }
        if (!match) continue;
        if (found++ == 0) *label = i;
        if (!other) other = class_names(i);
        if (found <= CANDIDATES) append_candidate(candidates, sizeof candidates, i, other);
    }
    if (found == 0) return unknown_name(item, n, word, why, size);
    if (found > 1)
        return text_fail(why, size, "class \"%.*s\": %d classes have this name, expected one of %s", n, item, found,
                         candidates);
    return 0;
}

/* --- search ------------------------------------------------------------------------------------------------------- */

/* Returns whether the word, normalised, is in one of the class's names, or is its number. */
static int has_word(int label, const char *word)
{
    const char *at = class_names(label), *start;
    char name[NAME_MAX_LENGTH];
    while (next_name(&at, &start, name))
        if (strstr(name, word)) return 1;
    snprintf(name, sizeof name, "%d", label);
    return strcmp(name, word) == 0;
}

int class_has_words(int label, const char *const *words, int count)
{
    for (int i = 0; i < count; i++) {
        char word[NAME_MAX_LENGTH];
        normalise(words[i], strlen(words[i]), word);
        if (!has_word(label, word)) return 0;
    }
    return 1;
}

/* Finds the word of all names nearest to `word`; "" if none is near. */
static void nearest_word(const char *word, char nearest[NAME_MAX_LENGTH])
{
    int best = 1 + (int)strlen(word) / 5;
    nearest[0] = '\0';
    for (int label = 0; label < IMAGENET_CLASSES; label++) {
        const char *at = class_names(label), *start;
        char name[NAME_MAX_LENGTH];
        while (next_name(&at, &start, name)) {
            char *rest = name;
            for (char *part = strtok_r(name, " ", &rest); part; part = strtok_r(NULL, " ", &rest)) {
                const int d = suggest_distance(word, part);
                if (d > best || (d == best && nearest[0])) continue;
                best = d;
                snprintf(nearest, NAME_MAX_LENGTH, "%s", part);
            }
        }
    }
}

void class_explain_none(const char *const *words, int count, char *why, size_t size)
{
    for (int i = 0; i < count; i++) {
        char nearest[NAME_MAX_LENGTH], word[NAME_MAX_LENGTH];
        int label = 0;
        while (label < IMAGENET_CLASSES && !class_has_words(label, &words[i], 1)) label++;
        if (label < IMAGENET_CLASSES) continue;
        normalise(words[i], strlen(words[i]), word);
        if (strchr(word, ' ')) { /* a name of several words */
            (void)unknown_name(words[i], (int)strlen(words[i]), word, why, size);
            return;
        }
        nearest_word(word, nearest);
        text_fail(why, size, "\"%.100s\": is in no class's name, %s%s%s", words[i],
                  nearest[0] ? "did you mean " : "expected words such as retriever", nearest, nearest[0] ? "?" : "");
        return;
    }
    char all[256] = "";
    for (int i = 0; i < count; i++) text_append(all, sizeof all, "%s%s", i ? " " : "", words[i]);
    text_fail(why, size, "\"%s\": no class has all these words in its names", all);
}
