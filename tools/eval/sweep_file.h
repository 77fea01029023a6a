/* Reads the file of `mar eval --sweep`: .|one axis a line. Its alternatives are command-line options, separated by |.|.
 *
 *     # guidance, by way
 *     --cfg 1.5 | --cfg 2.9 | --cfg 4
 *     | --head_spec 8 | --sampler dpmpp --num_sampling_steps 20
 *
 * An empty alternative has no options. A line that ends in | continues on the next. # begins a comment where a word
 * could begin. '...' and "..." keep spaces, | and # in a word. The points are the product of the axes; the last axis
 * changes fastest. */
#ifndef TOOLS_SWEEP_FILE_H
#define TOOLS_SWEEP_FILE_H

#include <stddef.h>

enum {
    SWEEP_POINTS_MAX = 1000,
    SWEEP_NAME = 128 /* bytes of a point's name */
};

/* An alternative of an axis. */
typedef struct {
    char **words; /* [count] */
    int count;    /* 0: no options */
    int line;     /* in the file, from 1 */
} sweep_choice;

typedef struct {
    sweep_choice *choices; /* [count] */
    int count;             /* at least 1 */
} sweep_axis;

/* Initialise with {0}. */
typedef struct {
    const char *path; /* as given; not copied */
    sweep_axis *axes; /* [count] */
    int count;
    int points; /* product of the axes, at most SWEEP_POINTS_MAX */
} sweep_grid;

/* Reads the file. Returns 0, or 1 after printing the error with its line. Free it either way. */
int sweep_grid_read(const char *path, sweep_grid *out);
/* Parses a text in memory in the same way. */
int sweep_grid_parse(const char *path, const char *text, size_t size, sweep_grid *out);
void sweep_grid_free(sweep_grid *g);

/* One point of the product. */
typedef struct {
    char name[SWEEP_NAME]; /* Name of its directory: "cfg-2.9+head_spec-8", "plain" without options. It has letters,
                              digits and . , + = _ - only. Points of different options have different names. A point
                              keeps its name when others are added. */
    char *options;         /* as on a command line: "--cfg 2.9 --head_spec 8"; "" for none */
    char **words;          /* [count + 1] words of the options, then NULL; the grid owns the words */
    int count;
    char lines[64]; /* lines of its options: "line 3", "lines 2, 3"; "" for none */
} sweep_point;

/* Makes point i = 0..points-1. Returns 0, or 1 without memory and with nothing to free. */
int sweep_grid_point(const sweep_grid *g, int i, sweep_point *out);
void sweep_point_free(sweep_point *p);

#endif
