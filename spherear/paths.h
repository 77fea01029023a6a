/* Whole paths of tokens that a smaller SphereAR model drafts: mar/accel/path.h defines P, Q and the verdict, and proves
 * it exact. Here every autoregressive step has one token, in raster order.
 *
 * A round, for each image whose first n tokens are final:
 *   1. The draft model makes tokens n .. n+length-1 one after another, with their paths.
 *   2. One pass of the model over tokens n-1 .. n+length-2 gives the true conditions of all of them.
 *   3. One call of the model's head over all states gives log P/Q; a path is accepted with probability min(1, P/Q).
 *   4. Tokens in front of the first rejected one stay. The first candidate from P that is kept with probability 1 - Q/P
 *      replaces it. Tokens behind it are dropped.
 * The model alone draws an image's first token, since its two branches may draw it apart. */
#ifndef SPHEREAR_PATHS_H
#define SPHEREAR_PATHS_H

#include "diffusion/paths.h"
#include "mar_measure.h"
#include "spherear/state.h"

/* Candidate n for a token has the noise of image number + (n + 1) SPHERE_CANDIDATE_IMAGES. */
#define SPHERE_CANDIDATE_IMAGES ((uint64_t)1 << 40)

typedef struct sphere_paths {
    sphere *g;
    causal_runner *runner;    /* of the draft model */
    int draft_width;          /* of the draft model */
    diff_chain chain;         /* of the draft model */
    diff_paths target, draft; /* the two heads */
    int gamma;                /* tokens of a round, at most */
    int most;                 /* rows of a call of a head: drafts of a round, or candidates */
    double verify_s, draft_s; /* seconds */
    double shift_sum;         /* of squared shifts of accepted tokens, per channel */
    long drafted, accepted, rounds, round_steps, tries;
    diff_speculation_stats work, drafted_work; /* of the model's head and the draft model's */

    /* Host. The rows are drafts of a round, by token and then image, or candidates. */
    void *host;             /* memory of the arrays below */
    int rows;               /* rows in use */
    int *order;             /* [most] token of the round, or number of the candidate, from 0 */
    int *group;             /* [most] group of the verdict: image in the batch, or rank of the token to replace */
    int *position;          /* [most] noise address, and the token's position */
    uint64_t *seed, *image; /* [most] noise address */
    float *cfg;             /* [most] guidance scale */
    int *place;             /* [most] place of the token among those of the batch */
    int *index;             /* [most] index list */
    int *row_of;            /* [max_images][gamma] row of a draft */
    int *length, *kept;     /* [max_images] drafts of an image, and those accepted */
    int *first;             /* [max_images] first marked row of each group */
    int *rejected;          /* [max_images] drafts to replace: their rows, */
    int *slot, *token;      /* images and positions */
    float *shift;           /* [most][C] */

    /* Backend memory, from sphere_paths_lay_out. D and E are the widths of the model and of the draft model. */
    float *path;       /* [most][stride] */
    float *x;          /* [most][C] tokens before they are normalised */
    float *normal;     /* [most][C] tokens */
    float *last;       /* [most][C] last means under the other distribution */
    float *z;          /* [2][most][D] true conditions of the round's tokens */
    float *draft_z;    /* [2][most][E] conditions that they were drafted with */
    float *z_part;     /* [2][most][D] some of these */
    float *draft_part; /* [2][most][E] some of these */
    double *log_ratio; /* [most] */
    int *verdict;      /* [most + max_images] marked, first */
} sphere_paths;

/* Returns MAR_EARG or MAR_EMODEL if the parameters' draft cannot draft for the model. */
mar_status sphere_paths_check(const sphere_model *model, const mar_params *p, int max_images, mar_err *err);
/* Return the tokens of a round, and the most tokens that a call of a head has. */
int sphere_paths_gamma(const mar_params *p);
int sphere_paths_rows(const mar_params *p, int max_images);
/* Creates the paths of a session whose runner and chain exist. *out is to be freed also after a failure. */
mar_status sphere_paths_create(sphere *g, sphere_paths **out, mar_err *err);
void sphere_paths_free(sphere_paths *s);                  /* NULL is fine */
size_t sphere_paths_lay_out(sphere_paths *s, char *base); /* as diff_chain_lay_out */
mar_status sphere_paths_plan(sphere_paths *s, int images, mar_err *err);
void sphere_paths_begin(sphere_paths *s); /* clears the statistics */
/* Begins n images: computes their class tokens. */
void sphere_paths_admit(sphere_paths *s, const int *slot, const mar_image *images, int n);
/* Runs a round of all unfinished images, whose first token is known. Returns the queue's failure. */
mar_status sphere_paths_round(sphere_paths *s, mar_err *err);
/* Adds the statistics. */
void sphere_paths_stats(const sphere_paths *s, mar_stats *stats);

#endif
