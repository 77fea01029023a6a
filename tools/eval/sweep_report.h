/* What a sweep says: the points that are there, which of them no other beats, a table, a page, a JSON file. */
#ifndef TOOLS_SWEEP_REPORT_H
#define TOOLS_SWEEP_REPORT_H

#include "tools/eval/result.h"

#include <stdint.h>

typedef struct {
    const char *name;    /* of its directory in that of the sweep */
    const char *options; /* as on a command line, "" for none */
    uint64_t settings;   /* a hash of all its options, by which a sweep that goes on knows it */
    uint64_t group;      /* the same without the seed: points of one group differ by chance only */
    eval_result *result; /* NULL: not there yet */
    int front;           /* 1: no other point is as good and as fast, and better in one of them */
} sweep_entry;

typedef struct {
    const char *file;     /* of the axes, as given */
    sweep_entry *entries; /* [count], in the order of the product */
    int count;
} sweep_table;

/* Marks the Pareto front: of n points with distance[i] and seconds[i], smaller is better, those that no other point
 * beats, which is as small in both and smaller in one. Points with a number that is not finite are not on it. */
void sweep_front(const double *distance, const double *seconds, int n, uint8_t *front);

/* Sets `front` of all entries. Returns 0, or 1 after printing "out of memory". */
int sweep_mark_front(sweep_table *t);

/* Prints the points that are there, the smallest distance first. */
void sweep_print(const sweep_table *t);
/* sweep.json: every point with its options and result; it is what a sweep that goes on reads. Returns 0, or 1 after
 * printing an error. */
int sweep_write_json(const sweep_table *t, const char *path);
/* The same to standard output. */
int sweep_print_json(const sweep_table *t);
/* sweep.html: distance against seconds per image and against guidance, a table with pictures of each point's report,
 * which stands in a directory beside `path`. Returns 0, or 1 after printing an error. */
int sweep_write_html(const sweep_table *t, const char *path);

#endif
