/* The diffusion head of the loop in raster order, as its files share it. Private to mar/raster*.c. */
#ifndef MAR_RASTER_TOKENS_H
#define MAR_RASTER_TOKENS_H

#include "mar/accel.h"
#include "mar/raster_state.h"
#include "nets/recordings.h"

/* Step of the noise of verdicts on whole paths: that of no chain. */
enum { RASTER_VERDICT_STEP = 2 * DIFF_BASE_STEPS };

typedef struct raster_diffusion {
    diff_chain chain;
    int (*sampling_steps)(const mar_params *p, int token); /* as mar_accel's; NULL: p->num_sampling_steps */
    diff_spec *spec; /* host [seq_len] the chain's respacings: one for each number of steps */
    int specs;
    const mar_chain_hooks *drawer; /* draws tokens; NULL: the chain */
    void *drawer_state;
    int changes;               /* 1: an accelerator that is on changes the distribution */
    struct raster_path *paths; /* mar/raster_path.h; with a draft model; else NULL */
    net_recordings recordings; /* draws by the plain chain */
    mar_stats stats;
    double head_s, head_flop;

    void *host;  /* memory of the host arrays below */
    int *source; /* [seq_len] tokens of a pass */

    /* The tokens being drawn, host [max_images]. */
    int drawn;
    int *row_slot;
    uint64_t *row_seed, *row_image; /* noise address */
    int *row_position;              /* noise address */
    float *row_cfg;                 /* guidance scale */
    int *row_place;                 /* place in the slots' tokens */
    int *row_z;                     /* [2 * max_images] rows of z: conditional, then unconditional ones */

    /* Backend memory. Behind the slots' tokens are [max_images][C] first tokens of unconditional branches that draw
     * them for themselves. */
    float *sampled; /* [max_images][C] tokens drawn last */
    float *normal;  /* [max_images][C] the same, normalised */
    float *noise;   /* [max_images][2C] of the last step, in the first half of each row; where the model has it */
    float *z;       /* [2][max_images][D] conditions of the next tokens, conditional, then unconditional */
    float *z_drawn; /* [2 * max_images][D] conditions of the tokens being drawn */
} raster_diffusion;

/* Returns the guidance scale of an image's token. */
float raster_scale(const mar_raster *g, const mar_slot *s, int token);
/* Tells whether the unconditional branch of an image draws the token for itself. SphereAR's release draws the first
 * token of the linear schedule so: its scale is 1. Other tokens are those of the image in both branches. */
int raster_draws_apart(const mar_raster *g, const mar_slot *s, int token);
/* Adds tokens first .. first+n-1 of an image to a runner's pass. z of the token after each of the last `wanted` ones
 * becomes row to[0..wanted-1] of z, in the unconditional branch `rows` rows behind it. */
void raster_add_tokens(mar_raster *g, causal_runner *r, int slot, int first, int n, int wanted, int rows,
                       const int *to);
/* Normalises n tokens as the model's are, rows row[i] of x (NULL: row i), and writes them to `place` of the slots'
 * tokens. `normal` is scratch [n][C]. */
void raster_write_tokens(const mar_raster *g, const float *x, const int *row, int n, const int *place, float *normal);
/* Normalises an image's tokens, host [seq_len][C], as drawn ones are. */
void raster_normalise_tokens(const mar_raster *g, float *tokens);
/* Returns MAR_EARG for steps of which no chain can be made. */
mar_status raster_check_chain(const mar_raster_model *m, const mar_params *p, mar_err *err);
/* Returns diff_spec.steps of the chain that draws a token. */
int raster_steps(const mar_raster *g, int token);
/* Lists the respacings of the head's chain in g->diffusion->spec. */
void raster_list_specs(mar_raster *g);

#endif
