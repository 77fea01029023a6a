/* A session's state of the SphereAR engine, and the guidance and passes of its images. Private to spherear/. */
#ifndef SPHEREAR_STATE_H
#define SPHEREAR_STATE_H

#include "diffusion/speculate.h"
#include "mar/slots.h"
#include "nets/causal_runner.h"
#include "nets/recordings.h"
#include "spherear/model.h"

/* Step of the noise of verdicts on whole paths: that of no chain. */
enum { SPHERE_VERDICT_STEP = 2 * DIFF_BASE_STEPS };
/* Addend of a token's mean square in its normalisation: none but for a token of zeros. */
#define SPHERE_EPS 1e-16f

typedef struct {
    const sphere_model *model;
    kern_queue *k;            /* the session's */
    mar_params params;        /* parameters with automatic values resolved */
    int max_images, branches; /* branches: sequences of an image, at most */
    mar_slots slots; /* behind their tokens [max_images][C]: first tokens of unconditional branches that draw them */
    causal_runner *target;
    diff_chain chain;
    diff_speculation speculation; /* with head_spec, but for paths */
    struct sphere_paths *paths;   /* spherear/paths.h; with a draft model; else NULL */
    net_recordings recordings;    /* draws by the plain chain */
    mar_stats stats;
    double head_s, head_flop;

    void *host;          /* memory of the host arrays below */
    int *source;         /* [seq_len] tokens of a pass */
    causal_start *start; /* [max_images] the images that begin */

    /* The tokens being drawn, host [max_images]. */
    int drawn;
    int *row_slot;
    uint64_t *row_seed, *row_image; /* noise address */
    int *row_position;              /* noise address */
    float *row_cfg;                 /* guidance scale */
    int *row_place;                 /* place in `tokens` */
    int *row_z;                     /* [2 * max_images] rows of z: conditional, then unconditional ones */

    /* Backend memory, from lay_out. */
    float *sampled; /* [max_images][C] tokens drawn last */
    float *normal;  /* [max_images][C] the same, normalised */
    float *z;       /* [2][max_images][D] conditions of the next tokens, conditional, then unconditional */
    float *z_drawn; /* [2 * max_images][D] conditions of the tokens being drawn */
} sphere;

/* Returns the guidance scale of an image's token. */
float sphere_scale(const sphere *g, const mar_slot *s, int token);
/* Tells whether the unconditional branch of an image draws the token for itself. The release draws the first token of
 * the linear schedule so: its scale is 1. Other tokens are those of the image in both branches. */
int sphere_draws_apart(const sphere *g, const mar_slot *s, int token);
/* Adds tokens first .. first+n-1 of an image to a runner's pass. z of the token after each of the last `wanted` ones
 * becomes row to[0..wanted-1] of z, in the unconditional branch `rows` rows behind it. */
void sphere_add_tokens(sphere *g, causal_runner *r, int slot, int first, int n, int wanted, int rows, const int *to);
/* Starts n images of a runner. */
void sphere_admit(sphere *g, causal_runner *r, const int *slot, const mar_image *images, int n);

#endif
