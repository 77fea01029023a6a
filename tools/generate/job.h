/* One run of `mar generate`: what was asked for, what it was resolved to, and what it took. */
#ifndef TOOLS_GENERATE_JOB_H
#define TOOLS_GENERATE_JOB_H

#include "mar.h"
#include "tools/generate/acceptance.h"
#include "tools/images/image.h"
#include "tools/generate/models.h"
#include "tools/images/output.h"
#include "tools/cli/run_options.h"

/* What tells a model file from others of the same name: its size and a hash of all its bytes, "" for what is built in
 * or not used. */
enum { RECORD_ID = 48 };
typedef struct {
    char model[RECORD_ID], vae[RECORD_ID], draft[RECORD_ID], captions[RECORD_ID];
} record_ids;

typedef struct {
    run_options run;        /* what is made */
    const char *classes;    /* as given, or NULL */
    const char *out;        /* as given */
    const char *accept_map; /* file of the map of accepted tokens, or NULL */
    int num;                /* images per class; 0: the default */
    int batch;              /* images made at a time; later the total at most */
    int grid;               /* write a grid besides single images */
    int resume;             /* go on with the images that are in the directory */
    int overwrite;          /* replace the images that are in the directory */
    int json;               /* print the record */
    int quiet;              /* print only errors */
} generate_options;

typedef struct {
    generate_options options;
    model_store store;    /* owns the models */
    run_models models;    /* in the store */
    mar_session *session; /* of them */
    int *classes;         /* [class_count], as listed */
    int class_count;      /* 1 or more */
    int num;              /* images of each class */
    long total;           /* class_count * num */
    int width, height;    /* of an image */
    output out;           /* where the images go */
    record_ids ids;       /* of the model files */
    uint8_t *have;        /* [total] 1: the image was there already; NULL without resume */
    long existing;        /* images that were there already */
    long made;            /* images that were made and kept */
    image grid;           /* all images; rgb is NULL if no grid is made */
    image map;            /* accepted tokens, laid out as the grid; rgb is NULL if not asked for */
    uint8_t *map_cell;    /* [height][width][3]: the map of one image, before it goes to its place; NULL as map.rgb */
    int rows, columns;    /* of the grid */
    int class_is_column;  /* on the grid; 0: a class is a row, or images lie one after another */
    mar_stats stats;      /* summed over the batches */
    acceptance fates;     /* what became of the drafted tokens */
    double load_s;        /* seconds of loading */
    double run_s;         /* seconds from the first step to the last file */
} generate_job;

#endif
