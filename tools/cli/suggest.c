#include "tools/cli/suggest.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

static int differ(char a, char b)
{
    return tolower((unsigned char)a) != tolower((unsigned char)b);
}

int suggest_distance(const char *a, const char *b)
{
    enum { LONGEST = 63 };
    size_t na = strlen(a), nb = strlen(b);
    if (na > LONGEST || nb > LONGEST) return INT_MAX;
    int rows[3][LONGEST + 1]; /* row i % 3: distances of a[0..i) to every b[0..j) */
    for (size_t j = 0; j <= nb; j++) rows[0][j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int *row = rows[i % 3];
        const int *before = rows[(i + 2) % 3], *two_before = rows[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int best = before[j - 1] + differ(a[i - 1], b[j - 1]);
            if (before[j] + 1 < best) best = before[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            const int swaps = i > 1 && j > 1 && !differ(a[i - 1], b[j - 2]) && !differ(a[i - 2], b[j - 1]);
            if (swaps && two_before[j - 2] + 1 < best) best = two_before[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[na % 3][nb];
}

const char *suggest_nearest(const char *word, const char *const *names)
{
    const char *nearest = NULL;
    int best = (int)(strlen(word) + 2) / 3; /* at most a third of the word wrong, rounded up */
    for (; *names; names++) {
        int d = suggest_distance(word, *names);
        if (d < best || (d == best && !nearest)) {
            best = d;
            nearest = *names;
        }
    }
    return nearest;
}

static const struct {
    const char *guess, *option, *advice;
} guesses[] = {{"text", "prompt", NULL},        {"caption", "prompt", NULL},   {"negative_prompt", "negative", NULL},
               {"width", "size", NULL},         {"height", "size", NULL},      {"image_size", "size", NULL},
               {"resolution", "size", NULL},    {"cfg_scale", "cfg", NULL},    {"guidance", "cfg", NULL},
               {"guidance_scale", "cfg", NULL}, {"label", "class", NULL},      {"labels", "class", NULL},
               {"count", "num", NULL},          {"samples", "num", NULL},      {"num_images", "num", NULL},
               {"output", "out", NULL},         {"checkpoint", "model", NULL}, {"ckpt", "model", NULL},
               {"precision", "dtype", NULL},    {"gpu", "backend", NULL}};

const char *suggest_option(const char *guess, const char **advice)
{
    for (size_t i = 0; i < sizeof guesses / sizeof *guesses; i++)
        if (strcmp(guesses[i].guess, guess) == 0) {
            *advice = guesses[i].advice;
            return guesses[i].option;
        }
    return NULL;
}
