#include "tools/suggest.h"

#include <limits.h>
#include <string.h>

int suggest_distance(const char *a, const char *b)
{
    enum { LONGEST = 63 };
    size_t na = strlen(a), nb = strlen(b);
    if (na > LONGEST || nb > LONGEST) return INT_MAX;
    int row[LONGEST + 1]; /* distances of a[0..i) to every b[0..j) */
    for (size_t j = 0; j <= nb; j++) row[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[nb];
}

const char *suggest_nearest(const char *word, const char *const *names)
{
    const char *nearest = NULL;
    int best = 1 + (int)strlen(word) / 3; /* a third of the word wrong, at most, plus one */
    for (; *names; names++) {
        int d = suggest_distance(word, *names);
        if (d < best || (d == best && !nearest)) {
            best = d;
            nearest = *names;
        }
    }
    return nearest;
}
