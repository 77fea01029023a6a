/* One run of `mar generate`: its options, what they resolve to, and its statistics. */
#ifndef TOOLS_GENERATE_JOB_H
#define TOOLS_GENERATE_JOB_H

#include "mar.h"
#include "mar_measure.h"
#include "tools/generate/acceptance.h"
#include "tools/generate/benchmark.h"
#include "tools/images/image.h"
#include "tools/generate/devices.h"
#include "tools/generate/models.h"
#include "tools/generate/preview.h"
#include "tools/images/output.h"
#include "tools/cli/run_options.h"
#include "tools/store/store.h"

enum { LIKE_FILES = 4 };

typedef struct {
    run_options run;            /* options of the run */
    const char *classes;        /* as given; NULL: none */
    const char *out;            /* as given */
    const char *benchmark;      /* of benchmark_names; NULL: none */
    const char *store;          /* directory of the run store; NULL: none */
    const char *like;           /* PNG whose image is made again; NULL: none */
    const char *devices;        /* list of GPUs; NULL: one device */
    const char *preview;        /* file of the images in progress; NULL: none */
    const char *accept_map;     /* file of the map of accepted tokens; NULL: none */
    int num;                    /* images per class; 0: the default */
    int format;                 /* image_format of pictures in a directory and on standard output */
    int quality;                /* 1..100, of JPEG and WebP */
    int seed_is_drawn;          /* 1: --seed random drew the seed */
    int gives_format;           /* 1: --format was given */
    int gives_quality;          /* 1: --quality was given */
    int batch;                  /* images at a time; later at most the total */
    int grid;                   /* 1: write a grid besides single images */
    int resume;                 /* 1: keep the images in the directory and make the rest */
    int overwrite;              /* 1: replace the images in the directory */
    int json;                   /* 1: print the record */
    int quiet;                  /* 1: print only errors */
    long first;                 /* number of the first image; 0 without --like */
    image_file *like_file;      /* texts of --like, which options point into; NULL without it */
    int like_given[LIKE_FILES]; /* 1: model, image decoder, draft or captions were given beside --like */
    int like_differs;           /* 1: so was an option that makes another image, or the image by another arithmetic */
} generate_options;

typedef struct {
    generate_options options;
    model_store files;    /* owns the models */
    run_models models;    /* models of the run, owned by the store */
    mar_session *session; /* session of the models */
    run_devices devices;  /* the other GPUs of --devices */
    benchmark benchmark;  /* --benchmark */
    int *classes;         /* [class_count], as listed */
    int class_count;      /* 1 or more */
    int num;              /* images of each class */
    long total;           /* class_count * num; the images are first .. first + total - 1 */
    int *labels;          /* [total] of the images */
    int width, height;    /* of an image */
    output out;           /* destination of the images */
    output tokens;        /* directory of --store */
    store_run kept;       /* the run's part of it */
    int repeats;          /* 1: the directory may have all images of this run; like resume */
    uint8_t *have;        /* [total] 1: the image existed already; NULL without resume */
    long existing;        /* images that existed already */
    long made;            /* images made, or decoded from the store, and kept */
    long sampled;         /* of these, images whose tokens were made */
    image grid;           /* all images; rgb is NULL without a grid */
    image map;            /* accepted tokens, laid out as the grid; rgb is NULL without a map */
    uint8_t *map_cell;    /* [height][width][3] map of one image; NULL without a map */
    int rows, columns;    /* of the grid */
    int class_is_column;  /* 1: a class is a column of the grid */
    mar_stats stats;      /* sum over the batches */
    preview preview;      /* --preview */
    acceptance accepted;  /* status statistics of the drafted tokens */
    double load_s;        /* seconds of loading */
    double run_s;         /* seconds from the first step to the last file */
} generate_job;

#endif
