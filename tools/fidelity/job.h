/* The data of one `mar fidelity`: a reference run, the runs compared with it, and their results.
 *
 * fidelity.c parses the options, runs.c makes the images, compare.c compares them, and report*.c report. */
#ifndef TOOLS_FIDELITY_JOB_H
#define TOOLS_FIDELITY_JOB_H

#include "eval/counts.h"
#include "eval/statistics.h"
#include "mar.h"
#include "mar_measure.h"
#include "tools/generate/acceptance.h"
#include "tools/generate/job.h"
#include "tools/generate/models.h"
#include "tools/cli/run_options.h"
#include "tools/store/store.h"

typedef struct cJSON cJSON;

enum {
    FIDELITY_NUM_MIN = 20, /* images; fidelity_least_p exceeds the level below 13 */
    FIDELITY_RUNS_MAX = 32,
    FIDELITY_PERMUTATIONS = 999,
    FIDELITY_MAPS = 7,         /* images of a run with acceptance maps on the page */
    FIDELITY_QUARTILES_MIN = 8 /* timed turns from which on a spread is that of the quartiles */
};

/* Counts of discrete tokens to compare (eval_token_counts). */
enum { FIDELITY_TOKENS, FIDELITY_PLACES, FIDELITY_NEIGHBOURS, FIDELITY_COUNTS };

/* The largest p-value of a significant difference. */
#define FIDELITY_LEVEL 0.01

/* The variation of a figure over the timed turns. With one turn all three are equal. */
typedef struct {
    double median; /* median of the timed turns */
    double low;    /* first quartile; with fewer than FIDELITY_QUARTILES_MIN turns the minimum */
    double high;   /* third quartile; with fewer turns the maximum */
} fidelity_spread;

/* The distances that two runs of the reference with different seeds stay below with probability 0.95. */
typedef struct {
    double image; /* energy distance of whole images */
    double token; /* energy distance of single tokens */
    int measured; /* 0: there are less than two images of each class, and no distances */
} fidelity_floor;

typedef struct {
    run_options options;  /* options of this run */
    run_models models;    /* its models, owned by fidelity.files */
    mar_session *session; /* NULL: not open */
    store_run store;      /* its part of --store; all 0: none */
    char name[1536];      /* difference to the reference: "--head_spec 8" */
    char guarantee[1024]; /* mar_session_guarantee */
    char backend[200];    /* mar_backend_description; the arithmetic of heads may differ between runs */

    /* Images: */
    mar_stats stats;      /* sum over the batches */
    double *turn_seconds; /* [turns] seconds per image of each batch */
    float *tokens;        /* [num][positions][channels]; of discrete tokens their codebook vectors */
    float *numbers;       /* [num][positions] discrete token ids; else NULL */
    uint8_t *rgb;         /* [shown][height][width][3] */
    acceptance accepted;  /* status counts of the drafted tokens */
    uint8_t *maps;        /* [map_count][rows][columns][3], one pixel a token */
    int map_count;        /* at most FIDELITY_MAPS */
    long recognised;      /* images in which the classifier recognises their digit */

    /* Comparison with the reference: */
    fidelity_spread seconds; /* per image */
    fidelity_spread speed;   /* the reference's seconds over its own, turn by turn */
    int differing;           /* images whose tokens differ from the reference's; 0: equal to the last bit */
    eval_energy_test image;  /* of whole images */
    eval_energy_test token;  /* of single tokens */
    eval_counts_test counts[FIDELITY_COUNTS]; /* frequencies of discrete tokens and of their neighbours */
    double *ks;                               /* [channels] Kolmogorov-Smirnov statistics of continuous tokens */
    double *ks_p;                             /* [channels] their p-values, corrected for the number of channels */
    double mean_gap;                          /* as in eval_moment_gaps */
    double covariance_gap;                    /* as in eval_moment_gaps */
    double p; /* least p-value, corrected (Holm): of the two energy tests and the KS family, or of the counts */
} fidelity_run;

typedef struct {
    /* Options as given: */
    const char *class;                    /* NULL: all classes of a model with few */
    const char *out;                      /* file of the page */
    const char *store;                    /* directory of the run store; NULL: none */
    const char *plot;                     /* file of the plot; NULL: none */
    int num;                              /* images of each run */
    int batch;                            /* images at a time; fidelity_open lowers it to num */
    int json;                             /* print JSON */
    int quiet;                            /* print only errors */
    run_options shared;                   /* vae, seed and threads of all runs */
    fidelity_run runs[FIDELITY_RUNS_MAX]; /* runs[0] is the reference */
    int run_count;                        /* runs, including the reference */

    progress *bar;
    model_store files; /* owns the models of all runs */
    output directory;  /* of --store */

    /* Resolved by fidelity_open: */
    int *classes;          /* [class_count]; image i is of classes[i % class_count] */
    int class_count;       /* 1 or more */
    int class_total;       /* classes of the model */
    int positions;         /* tokens of an image */
    int channels;          /* values of a token; of a discrete token in the codebook */
    int vocabulary;        /* number of discrete tokens; 0: continuous */
    const float *codebook; /* [vocabulary][channels] of the image decoder, while the sessions are open */
    int rows, columns;     /* of tokens */
    int width, height;     /* of an image; 0 without an image decoder */
    int shown;             /* images kept for the page */
    int judged;            /* 1: the classifier judges the digits */
    int turns;             /* batches of each run */
    int timed_turns;       /* turns that are timed */
    fidelity_floor floor;
} fidelity;

/* --- runs (runs.c) ------------------------------------------------------------------------------------------------ */

/* Loads the models, opens a session for each run, and takes sizes and classes of f from the reference's. All runs are
 * opened before the first image, so that a wrong option is found early. Returns 0, or 1 with the error printed. */
int fidelity_open(fidelity *f);
/* Opens the stores of the runs, whose sessions are open, if --store is given. Names each run by its difference to the
 * reference, and the reference by its difference to plain sampling. Returns 0, or 1 with the error printed. */
int fidelity_open_stores(fidelity *f);
/* Closes sessions, stores and models. The images stay. */
void fidelity_close(fidelity *f);

/* Makes the images of all runs in turns (images.h): tokens, samples, figures and times. Returns the exit status, with
 * errors and interruptions printed. */
int fidelity_make_images(fidelity *f);
/* Frees a run's images, and closes session and store. The options stay. */
void fidelity_free_run(fidelity_run *r);

/* --- reports (report.c, report_plot.c) ---------------------------------------------------------------------------- */

void report_print_table(const fidelity *f);
/* Prints the record as JSON. Returns 0, or 1 with the error printed. */
int report_print_json(const fidelity *f);
/* Write the page (tools/page/page.h), and the plot of distance against seconds as an SVG file, with a legend, on white:
 * the whole file or nothing. Return 0, or 1 with the error printed. */
int report_write_html(const fidelity *f, const char *path);
int report_write_plot(const fidelity *f, const char *path);

#endif
