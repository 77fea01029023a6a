/* One run of `mar generate`: what was asked for, what it was resolved to, and what it took. */
#ifndef TOOLS_GENERATE_H
#define TOOLS_GENERATE_H

#include "mar.h"
#include "tools/acceptance.h"
#include "tools/image.h"
#include "tools/output.h"
#include "tools/run_options.h"

typedef struct {
    run_options run;
    const char *classes, *out; /* as given; classes may be NULL */
    const char *accept_map;    /* file of the map of accepted tokens, or NULL */
    int num;                   /* images per class; 0: the default */
    int batch;
    int grid, json, quiet;
} generate_options;

typedef struct {
    generate_options options;
    run_models models;
    mar_session *session;
    int class_total;      /* classes the model knows */
    int *classes;         /* [class_count], as listed */
    int class_count, num; /* num images of each */
    long total;           /* class_count * num */
    int width, height;    /* of an image */
    output out;
    image grid;          /* rgb is NULL if no grid is made */
    image map;           /* of accepted tokens, laid out as the grid; rgb is NULL if not asked for */
    int rows, columns;   /* of the grid */
    int class_is_column; /* or row, or (0) images one after another */
    mar_stats stats;     /* summed over the batches */
    acceptance fates;
    double load_s, run_s; /* loading; from the first step to the last file */
} generate_job;

#endif
