/* Reports of a sweep: the finished points and their Pareto front, as a table, a page and a JSON file. */
#ifndef TOOLS_SWEEP_REPORT_H
#define TOOLS_SWEEP_REPORT_H

#include "tools/eval/result.h"

#include <stdint.h>

typedef struct {
    const char *name;    /* name of its directory within the sweep's */
    const char *options; /* as on a command line; "" for none */
    uint64_t settings;   /* hash of all its options, by which a resumed sweep recognises it */
    uint64_t group;      /* the same hash without the seed: points of one group differ by chance only */
    eval_result *result; /* NULL: not finished */
    int front;           /* 1: on the Pareto front of distance and time */
} sweep_entry;

typedef struct {
    const char *file;     /* file of the axes, as given */
    sweep_entry *entries; /* [count], in the order of the product */
    int count;
} sweep_table;

/* Marks the Pareto front of n points with distance[i] and seconds[i], smaller being better. A point is on it unless
 * another is as small in both and smaller in one. Points with a number that is not finite are not on it. */
void sweep_front(const double *distance, const double *seconds, int n, uint8_t *front);

/* Sets `front` of all entries. Returns 0, or 1 after printing "out of memory". */
int sweep_mark_front(sweep_table *t);

/* Prints the finished points, by distance. */
void sweep_print(const sweep_table *t);
/* Writes sweep.json: every point with its options and result, read when a sweep is resumed. Returns 0, or 1 with the
 * error printed. */
int sweep_write_json(const sweep_table *t, const char *path);
/* Prints the same record. */
int sweep_print_json(const sweep_table *t);
/* Writes sweep.html: distance against seconds per image and against guidance, and a table with pictures of each point's
 * page, in a directory beside `path`. Returns 0, or 1 with the error printed. */
int sweep_write_html(const sweep_table *t, const char *path);

#endif
