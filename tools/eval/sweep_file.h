/* The file of `mar eval --sweep`: one axis a line, whose alternatives are command-line options, separated by |.
 *
 *     # guidance, by way
 *     --cfg 1.5 | --cfg 2.9 | --cfg 4
 *     | --head_spec 8 | --sampler dpmpp --num_sampling_steps 20
 *
 * An empty alternative stands for no options. A line that ends in | goes on in the next; # begins a comment, where a
 * word could begin. '...' and "..." keep spaces, | and # in a word. The points are the product of the axes: the last
 * axis changes fastest. */
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
    int line;     /* of the file, from 1 */
} sweep_choice;

typedef struct {
    sweep_choice *choices; /* [count] */
    int count;             /* 1 or more */
} sweep_axis;

/* Initialise with {0}. */
typedef struct {
    const char *path; /* as given; not copied */
    sweep_axis *axes; /* [count] */
    int count;
    int points; /* the product, SWEEP_POINTS_MAX at most */
} sweep_grid;

/* Reads the file. Returns 0, or 1 after printing what is wrong and in which line; free it either way. */
int sweep_grid_read(const char *path, sweep_grid *out);
/* The same of a text in memory. */
int sweep_grid_parse(const char *path, const char *text, size_t size, sweep_grid *out);
void sweep_grid_free(sweep_grid *g);

/* One point of the product. */
typedef struct {
    char name[SWEEP_NAME]; /* of its directory: "cfg-2.9+head_spec-8", "plain" without options. Letters, digits and
                              . , + = _ - only. Two points of different options have different names, and a point keeps
                              its name when others are added */
    char *options;         /* as on a command line: "--cfg 2.9 --head_spec 8", "" for none */
    char **words;          /* [count + 1] the same, word by word, then NULL; the grid owns the words */
    int count;
    char lines[64]; /* the lines of its options: "line 3", "lines 2, 3", "" for none */
} sweep_point;

/* Point i = 0..points-1. Returns 0, or 1 if memory ran out; nothing is to be freed then. */
int sweep_grid_point(const sweep_grid *g, int i, sweep_point *out);
void sweep_point_free(sweep_point *p);

#endif
