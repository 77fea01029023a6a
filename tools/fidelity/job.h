/* What one `mar fidelity` knows: a reference run, the runs compared with it, and what came of each.
 *
 * fidelity.c reads the options, fidelity_runs.c makes the images, fidelity_compare.c compares them, report_*.c tell;
 * fidelity_search.c does so again and again. */
#ifndef TOOLS_FIDELITY_JOB_H
#define TOOLS_FIDELITY_JOB_H

#include "eval/counts.h"
#include "eval/statistics.h"
#include "mar.h"
#include "tools/generate/acceptance.h"
#include "tools/cli/run_options.h"

enum {
    FIDELITY_NUM_MIN = 20, /* images; fidelity_least_p is above the level below 13 */
    FIDELITY_RUNS_MAX = 32,
    FIDELITY_PERMUTATIONS = 999,
    FIDELITY_MAPS = 7,         /* images of a run whose acceptance maps are shown */
    FIDELITY_QUARTILES_MIN = 8 /* timed turns from which on a spread is that of the middle half */
};

/* Counts of discrete tokens that are compared (eval_token_counts). */
enum { FIDELITY_TOKENS, FIDELITY_PLACES, FIDELITY_NEIGHBOURS, FIDELITY_COUNTS };

/* A difference counts as one from this p-value down. */
#define FIDELITY_LEVEL 0.01

/* How a figure varies over the timed turns. Of one turn there is no spread: the three are the same. */
typedef struct {
    double median; /* of the timed turns */
    double low;    /* first quartile; with fewer than FIDELITY_QUARTILES_MIN turns the least */
    double high;   /* third quartile; with fewer turns the largest */
} fidelity_spread;

typedef struct {
    run_options options; /* of this run */
    char name[1536];     /* what sets it apart: "--head_spec 8" */
    char guarantee[256]; /* mar_session_guarantee */
    char backend[160];   /* mar_backend_description: the arithmetic of heads may differ */

    /* Its images: */
    mar_stats stats;      /* summed over the batches */
    double *turn_seconds; /* [turns] seconds per image of each batch */
    float *tokens;        /* [num][positions][channels]; of discrete ones what the codebook has for them */
    float *numbers;       /* [num][positions] discrete tokens; else NULL */
    uint8_t *rgb;         /* [shown][height][width][3] */
    acceptance accepted;  /* what became of the drafted tokens */
    uint8_t *maps;        /* [map_count][side][side][3], a pixel for each token */
    int map_count;        /* FIDELITY_MAPS at most */
    long recognised;      /* images in which the classifier sees their digit */

    /* Against the reference: */
    fidelity_spread seconds;                  /* per image */
    fidelity_spread speed;                    /* the reference's seconds over its own, turn by turn */
    int identical;                            /* to the last bit */
    int differing;                            /* images whose tokens differ from the reference's */
    eval_energy_test image;                   /* of whole images */
    eval_energy_test token;                   /* of single tokens */
    eval_counts_test counts[FIDELITY_COUNTS]; /* discrete tokens: how often they occur, and their neighbours */
    double *ks;                               /* [channels] Kolmogorov-Smirnov statistics of continuous tokens */
    double *ks_p;                             /* [channels] their p-values, corrected for the number of channels */
    int ks_channel;                           /* where ks_p is least */
    double mean_gap;                          /* as in eval_moment_gaps */
    double covariance_gap;                    /* the same */
    double p; /* the least p-value of the two energy tests and the KS family, or those of counts, corrected (Holm) */
} fidelity_run;

typedef struct {
    /* As given: */
    const char *class_list;               /* NULL: all classes of a model that has few */
    const char *vae;                      /* NULL: the demo's with a demo model, else none */
    const char *out;                      /* the page */
    const char *store;                    /* the directory of the run store; NULL: nothing is kept */
    const char *plot;                     /* the plot as a file of its own; NULL: none */
    int num;                              /* images of each run */
    int batch;                            /* images made at a time. fidelity_open lowers it to num */
    int threads;                          /* 0: the default */
    int json;                             /* print JSON */
    int quiet;                            /* print only errors */
    uint64_t seed;                        /* of all runs */
    int search;                           /* 1: --search (fidelity_search.h); there is no fast run then */
    int screen;                           /* of it: images of a screening; 0: num */
    int points;                           /* of it: points screened at most */
    const char *search_draft;             /* of it: the draft as given; NULL: none */
    fidelity_run runs[FIDELITY_RUNS_MAX]; /* the first is the reference */
    int run_count;                        /* with the reference */

    /* What it comes to: */
    int *classes;          /* [class_count]; image i shows classes[i % class_count] */
    int class_count;       /* 1 or more */
    int class_total;       /* classes the model knows */
    int positions;         /* tokens of an image */
    int channels;          /* numbers of a token, of a discrete one in the codebook */
    int vocabulary;        /* discrete tokens; 0: they are continuous */
    const float *codebook; /* [vocabulary][channels], the image decoder's, while the sessions are open */
    int side;              /* tokens lie on side x side */
    int width, height;     /* of an image; 0 without an image decoder */
    int shown;             /* images kept for the page */
    int judged;            /* digits: the classifier is asked */
    char backend[160];     /* mar_backend_description of the reference */
    int turns;             /* batches of each run */
    long made;             /* images that were made, not read from the store */
    int timed_turns;       /* of these, turns that the times are of */

    /* The floor: what two runs of the reference with different seeds stay below, 95 of 100 times. */
    int has_floor;      /* needs two images of each class */
    double image_floor; /* energy distance of whole images */
    double token_floor; /* energy distance of single tokens */
} fidelity;

/* Names a run by what sets it apart from the reference, or the reference from plain sampling. After its session. */
void fidelity_name_run(const fidelity *f, fidelity_run *r);

#endif
