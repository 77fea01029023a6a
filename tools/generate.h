/* One run of `mar generate`: what was asked for, what it was resolved to, and what it took. */
#ifndef TOOLS_GENERATE_H
#define TOOLS_GENERATE_H

#include "mar.h"
#include "tools/image.h"
#include "tools/output.h"

typedef struct {
    const char *model, *vae, *classes, *out; /* as given; vae and classes may be NULL */
    int num;                                 /* images per class; 0: the default */
    int batch, threads, heads, dtype;        /* 0: the default */
    int grid, json, quiet;
    mar_params params;
} generate_options;

typedef struct {
    generate_options options;
    mar *library;
    mar_model *model;
    mar_vae *vae;
    mar_session *session;
    int class_total;      /* classes the model knows */
    int *classes;         /* [class_count], as listed */
    int class_count, num; /* num images of each */
    long total;           /* class_count * num */
    int width, height;    /* of an image */
    output out;
    image grid;           /* rgb is NULL if no grid is made */
    int rows, columns;    /* of the grid */
    int class_is_column;  /* or row, or (0) images one after another */
    mar_stats stats;      /* summed over the batches */
    double load_s, run_s; /* loading; from the first step to the last file */
} generate_job;

#endif
