/* One `mar fidelity`: a reference run, the runs compared with it, and what came of each. */
#ifndef TOOLS_FIDELITY_H
#define TOOLS_FIDELITY_H

#include "eval/statistics.h"
#include "mar.h"
#include "tools/acceptance.h"
#include "tools/run_options.h"

enum {
    FIDELITY_NUM_MIN = 20, /* images; fidelity_least_p is above the level below 13 */
    FIDELITY_RUNS_MAX = 32,
    FIDELITY_PERMUTATIONS = 999,
    FIDELITY_MAPS = 7 /* images of a run whose acceptance maps are shown */
};

/* A difference counts as one from this p-value down. */
#define FIDELITY_LEVEL 0.01

typedef struct {
    run_options options;
    char name[1536];     /* what sets it apart: "--head_spec 8" */
    char guarantee[200]; /* mar_session_guarantee */
    mar_stats stats;     /* summed over the batches */
    float *tokens;       /* [num][positions][channels] */
    uint8_t *rgb;        /* [shown][height][width][3] */
    acceptance accepted;
    uint8_t *maps; /* [map_count][side][side][3], a pixel for each token */
    int map_count;
    long recognised; /* images in which the classifier sees their digit */

    /* Against the reference: */
    int identical;                 /* to the last bit */
    int differing;                 /* images that are not */
    eval_energy_test image, token; /* of whole images, of single tokens */
    double *ks, *ks_p;             /* [channels], corrected for their number */
    int ks_channel;                /* where ks_p is least */
    double mean_gap, covariance_gap;
    double p; /* the least p-value of the two energy tests and the KS family, corrected for three (Holm) */
} fidelity_run;

typedef struct {
    /* As given: */
    const char *class_list, *vae, *out;
    int num, batch, threads, json, quiet;
    uint64_t seed;
    fidelity_run runs[FIDELITY_RUNS_MAX]; /* the first is the reference */
    int run_count;

    /* What it comes to: */
    int *classes, class_count, class_total; /* image i shows classes[i % class_count] */
    int positions, channels;                /* of an image's tokens */
    int side;                               /* they lie on side x side */
    int width, height;                      /* 0 without an image decoder */
    int shown;                              /* images kept for the page */
    int judged;                             /* digits: the classifier is asked */
    char backend[128];

    /* What two runs of the reference with different seeds stay below, 95 of 100 times. */
    int has_floor; /* needs two images of each class */
    double image_floor, token_floor;
} fidelity;

/* How a run stands to the reference. */
typedef enum {
    FIDELITY_SAME,   /* identical, or no difference found where one could have been */
    FIDELITY_UNSURE, /* no difference found, in too few images to find one or to measure the floor */
    FIDELITY_CLOSE,  /* differs by less than the floor */
    FIDELITY_OFF     /* differs */
} fidelity_finding;

double fidelity_seconds(const fidelity *f, const fidelity_run *r);           /* per image */
double fidelity_head_calls(const fidelity_run *r);                           /* sequential, mean of a token */
double fidelity_calls_in_sequence(const fidelity *f, const fidelity_run *r); /* target's and draft's, per image */
double fidelity_token_acceptance(const fidelity_run *r);                     /* -1 without a draft */
double fidelity_head_acceptance(const fidelity_run *r);                      /* -1 without --head_spec */
/* What p, corrected for the three tests, stays below for the grossest difference of so many images, the others being
 * the same: of the permutations drawn, about 1 in 2^(differing-1), at most three standard deviations more, swap all of
 * those pairs or none and so come to the same distance as the data. */
double fidelity_least_p(int differing);
fidelity_finding fidelity_find(const fidelity *f, const fidelity_run *r);
const char *fidelity_verdict(const fidelity *f, const fidelity_run *r, char *text, size_t size); /* in words */

#endif
