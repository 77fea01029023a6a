#include "tools/generate/class_names.h"

#include "tools/cli/text.h"

#include <ctype.h>
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
static void class_normalise(const char *text, size_t n, char out[NAME_SIZE])
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
    if (*at) class_normalise(*start, length, name);
    return *at != NULL;
}

/* How a class is named: not at all, by words in one of its names, or by a whole name. */
typedef enum { CLASS_OTHER, CLASS_PART, CLASS_EXACT } class_match;

/* Returns whether whole words of `name` are `word`, both normalised. */
static int has_words(const char *name, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = name; n > 0 && (at = strstr(at, word)); at++)
        if ((at == name || at[-1] == ' ') && (at[n] == '\0' || at[n] == ' ')) return 1;
    return 0;
}

/* Returns how `word`, normalised, names the class. *shown becomes the name for a list of candidates: the one with the
 * words, or for a whole name another one, which tells classes of one name apart. */
static class_match match_class(const class_table *t, int label, const char *word, const char **shown)
{
    const char *at = t->lines[label], *start, *part = NULL, *other = NULL;
    char name[NAME_SIZE];
    int is_exact = 0;
    while (next_name(&at, &start, name)) {
        const int is_word = strcmp(name, word) == 0;
        is_exact |= is_word;
        if (!is_word && !other) other = start;
        if (!part && has_words(name, word)) part = start;
    }
    *shown = !is_exact ? part : other ? other : t->lines[label];
    return is_exact ? CLASS_EXACT : part ? CLASS_PART : CLASS_OTHER;
}

/* Writes why no class has the name item[0..n). */
static int class_refuse_name(const class_table *t, const char *item, int n, char *why, size_t size)
{
    char set[160] = "an ImageNet class", example[NAME_SIZE];
    if (t->file) snprintf(set, sizeof set, "a class of %.140s", t->file);
    return text_fail(why, size,
                     "class \"%.*s\": not %s, expected a number from 0 to %d, a range such as 0-9, or a name such as "
                     "\"%s\" (mar classes lists them)",
                     n, item, set, t->count - 1, class_name(t, class_example(t), example, sizeof example));
}

int class_find(const class_table *t, const char *item, int n, int *label, char *why, size_t size)
{
    char word[NAME_SIZE], candidates[CANDIDATES * (NAME_SIZE + 16)] = "";
    if (n >= NAME_SIZE - 1) return text_fail(why, size, "class \"%.24s...\": too long for a name or number", item);
    class_normalise(item, (size_t)n, word);
    class_match best = CLASS_OTHER;
    int found = 0; /* classes that match as well as the best one */
    for (int i = 0; i < t->count; i++) {
        const char *shown;
        const class_match match = match_class(t, i, word, &shown);
        if (match == CLASS_OTHER || match < best) continue;
        if (match > best) found = 0, *candidates = '\0';
        best = match;
        if (found++ == 0) *label = i;
        if (found <= CANDIDATES)
            text_append(candidates, sizeof candidates, "%s\"%.*s\" (%d)", *candidates ? ", " : "",
                        (int)strcspn(shown, ","), shown, i);
    }
    if (found == 0) return class_refuse_name(t, item, n, why, size);
    if (found == 1) return 0;
    return text_fail(why, size, "class \"%.*s\": %d classes have %s, expected one of %s%s", n, item, found,
                     best == CLASS_PART ? "it in a name" : "this name", candidates, found > CANDIDATES ? ", ..." : "");
}

const char *class_own_name(const class_table *t, int label, char *name, size_t size)
{
    const char *at = t->lines[label], *start;
    size_t length;
    char why[2];
    int found;
    while ((at = class_next_name(at, &start, &length)))
        if (length < size && class_find(t, start, (int)length, &found, why, sizeof why) == 0 && found == label) {
            snprintf(name, size, "%.*s", (int)length, start);
            return name;
        }
    snprintf(name, size, "%d", label);
    return name;
}

/* --- search ------------------------------------------------------------------------------------------------------- */

/* Returns whether the word, normalised, is in one of the class's names, or is its number. */
static int class_has_word(const class_table *t, int label, const char *word)
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
        class_normalise(words[i], strlen(words[i]), word);
        if (!class_has_word(t, label, word)) return 0;
    }
    return 1;
}

void class_explain_none(const class_table *t, const char *const *words, int count, char *why, size_t size)
{
    char all[256] = "", example[NAME_SIZE];
    for (int i = 0; i < count; i++) {
        int label = 0;
        while (label < t->count && !class_has_words(t, label, &words[i], 1)) label++;
        if (label < t->count) continue;
        text_fail(why, size, "\"%.100s\": is in no class's name, expected a part of one, such as \"%s\"", words[i],
                  class_name(t, class_example(t), example, sizeof example));
        return;
    }
    for (int i = 0; i < count; i++) text_append(all, sizeof all, "%s%s", i ? " " : "", words[i]);
    text_fail(why, size, "\"%s\": no class has all these words in its names", all);
}
