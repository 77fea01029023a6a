/* The file of axes of mar eval --sweep. An accepted file has as many points as the product of its axes. The points'
 * names differ and are safe as file names. Their words are those of the file. A file made of the points' own words
 * is accepted again and means the same. An error is one line. */
#include "tests/fuzz/fuzz.h"

#include "tools/eval/sweep_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char printed[8192];

static void check_name(const sweep_point *p)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,+=_-";
    const size_t n = strlen(p->name);
    if (n == 0 || n >= SWEEP_NAME || p->name[strspn(p->name, letters)] || p->name[0] == '.' || p->name[0] == '-')
        fuzz_fail("%s: is no name for a directory", p->name);
}

/* Checks the first points. Most inputs get a few, as many of each would be slow. Points with equal names must be
 * equal. */
static void check_points(const sweep_grid *g, uint32_t hash)
{
    enum { COMPARED = 40, FEW = 6 };
    static sweep_point points[COMPARED];
    const int most = hash % 8 == 0 ? COMPARED : FEW, n = g->points < most ? g->points : most;
    for (int i = 0; i < n; i++) {
        if (sweep_grid_point(g, i, &points[i]) != 0) fuzz_fail("out of memory");
        check_name(&points[i]);
        if (points[i].words[points[i].count]) fuzz_fail("no NULL behind the words");
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++) {
            int same = points[i].count == points[k].count;
            for (int w = 0; w < points[i].count && same; w++) same = !strcmp(points[i].words[w], points[k].words[w]);
            if (!same && strcmp(points[i].name, points[k].name) == 0)
                fuzz_fail("two points are %s: %s, %s", points[i].name, points[i].options, points[k].options);
        }
    for (int i = 0; i < n; i++) sweep_point_free(&points[i]);
}

/* Returns the same text with every character in quotes. A word with both kinds of quotes cannot be quoted whole. */
static char *written_again(const sweep_grid *g)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    for (int a = 0; a < g->count; a++) {
        for (int c = 0; c < g->axes[a].count; c++) {
            const sweep_choice *choice = &g->axes[a].choices[c];
            fputs(c ? " | " : "", out);
            for (int w = 0; w < choice->count; w++)
                for (const char *word = choice->words[w];; word++) {
                    const char quote = *word == '"' ? '\'' : '"';
                    if (word == choice->words[w]) fputs(" \"\"", out); /* the word may be empty */
                    if (!*word) break;
                    fputc(quote, out), fputc(*word, out), fputc(quote, out);
                }
        }
        /* After an empty alternative the bar in front of it would continue on the next line. */
        fputs(g->axes[a].choices[g->axes[a].count - 1].count ? "\n" : " | \"x\"\n", out);
    }
    fclose(out);
    return text;
}

static void check_again(const sweep_grid *g)
{
    char *text = written_again(g);
    sweep_grid again;
    if (sweep_grid_parse("again", text, strlen(text), &again) != 0) {
        rewind(stderr);
        if (g->points < SWEEP_POINTS_MAX / 2 && !strstr(text, "\"x\"")) fuzz_fail("%s is refused", text);
    } else {
        if (again.count != g->count) fuzz_fail("%s: %d axes, expected %d", text, again.count, g->count);
        for (int a = 0; a < g->count; a++)
            for (int c = 0; c < g->axes[a].count; c++) {
                const sweep_choice *x = &g->axes[a].choices[c], *y = &again.axes[a].choices[c];
                if (x->count != y->count) fuzz_fail("%s: %d words, expected %d", text, y->count, x->count);
                for (int w = 0; w < x->count; w++)
                    if (strcmp(x->words[w], y->words[w]) != 0) fuzz_fail("%s, expected %s", y->words[w], x->words[w]);
            }
    }
    sweep_grid_free(&again);
    free(text);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    stderr = fmemopen(printed, sizeof printed, "w");
    return stderr ? 0 : 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sweep_grid g;
    rewind(stderr);
    if (sweep_grid_parse("axes", (const char *)data, size, &g) == 0) {
        if (g.points < 1 || g.points > SWEEP_POINTS_MAX || ftell(stderr) != 0) fuzz_fail("%d points", g.points);
        check_points(&g, fuzz_hash(data, size));
        check_again(&g);
    } else {
        fflush(stderr);
        const long n = ftell(stderr);
        if (n < 1 || n > (long)sizeof printed || printed[n - 1] != '\n') fuzz_fail("no whole line");
        printed[n - 1] = '\0';
        fuzz_check_line("--sweep", printed);
        if (strncmp(printed, "mar: axes", 9) != 0) fuzz_fail("names no file: %s", printed);
    }
    sweep_grid_free(&g);
    return 0;
}
