#include "tools/suggest.h"

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
    int row[LONGEST + 1]; /* distances of a[0..i) to every b[0..j) */
    for (size_t j = 0; j <= nb; j++) row[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int best = diagonal + differ(a[i - 1], b[j - 1]);
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

static const char prompts[] =
    "classes are given with --class, captions of a text-to-image model with --captions FILE.npz",
                  sizes[] = "images have the size that the model was trained for";
static const struct {
    const char *guess, *means;
    int is_text;
} guesses[] = {{"prompt", prompts, 1},     {"text", prompts, 1},     {"negative_prompt", prompts, 1},
               {"width", sizes, 1},        {"height", sizes, 1},     {"size", sizes, 1},
               {"image_size", sizes, 1},   {"resolution", sizes, 1}, {"version", "mar --version prints it", 1},
               {"cfg_scale", "cfg", 0},    {"guidance", "cfg", 0},   {"guidance_scale", "cfg", 0},
               {"label", "class", 0},      {"labels", "class", 0},   {"count", "num", 0},
               {"samples", "num", 0},      {"num_images", "num", 0}, {"output", "out", 0},
               {"checkpoint", "model", 0}, {"ckpt", "model", 0},     {"precision", "dtype", 0},
               {"gpu", "backend", 0}};

const char *suggest_option(const char *guess, int *is_text)
{
    for (size_t i = 0; i < sizeof guesses / sizeof *guesses; i++)
        if (strcmp(guesses[i].guess, guess) == 0) {
            *is_text = guesses[i].is_text;
            return guesses[i].means;
        }
    return NULL;
}
