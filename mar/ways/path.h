/* Speculation across tokens by whole paths: exact, with a draft model or without one.
 *
 * A token's path is the chain's states x_T .. x_1 (diffusion/paths.h), Q its density under the conditions it was
 * drafted with, P under the target's true ones. A round, for each image:
 *   1. Steps `begin` .. begin + length - 1 are drafted. Without a draft model: all at once, with the conditions that
 * the target's last pass gave for these positions, `late` by 1, 2, ... steps (Jacobi decoding, for continuous tokens).
 *      With one: step by step, each by the draft's pass over the tokens before it.
 *   2. One pass of the target over a context for each step (mar/masked/contexts.h): the final tokens, and the drafts of
 * the steps before it. In context prefix one context, the final tokens, serves the block.
 *   3. One call of the target's head over all states of all drafted paths gives log P/Q. A path is accepted with
 *      min(1, P/Q).
 *   4. The first step with a rejected path is the last that counts: its accepted tokens stay, and each rejected path is
 *      replaced by a draw from Norm[P - Q]+. That is the first of the candidates, drawn from P, that is kept with
 *      1 - Q/P. Candidates are drawn side by side, without a draft model in the same chain as the next round's drafts.
 *
 * Why that is exact. The verdict on a step uses the step's own drafts, u and candidates, and the context's tokens, all
 * of which are final if the step counts. Drafts behind the first rejection, and what was decided on them, influence
 * nothing that stays, so their random numbers may be used again: a token's draft has the plain chain's addresses in
 * every round, and an image looks like the plain image of its seed. Candidate n of a token has those of an image of its
 * own, number image + (n + 1) PATH_CANDIDATE_IMAGES. Which candidate is kept does not depend on how many are drawn at a
 * time, and the length of a round may depend on what earlier rounds accepted.
 *
 * The last index of the chain adds no noise. An accepted draft became a token by the mean under its draft's conditions,
 * later contexts have seen that token, and it stays. Under the target's conditions the same x_1 would become a slightly
 * different token: mar_stats.accepted_shift is the difference. In context prefix no context has seen it, and the
 * target's mean is taken. */
#ifndef MAR_WAYS_PATH_H
#define MAR_WAYS_PATH_H

#include "diffusion/paths.h"
#include "mar/masked/contexts.h"
#include "mar/ways/draft.h"

#define PATH_CANDIDATE_IMAGES ((uint64_t)1 << 40)

enum {
    PATH_GAMMA_MOST = 16,      /* of gamma auto */
    PATH_CANDIDATES = 8,       /* candidates for a token in the first draw for it; each next draw has twice as many */
    PATH_CANDIDATES_MOST = 64, /* of all tokens in one draw, if not one for each is more */
    PATH_TRIES_MOST = 1 << 20, /* candidates for a token: laws that need more differ by their rounding only. Addresses
                                * end at 2^24 */
};

/* Tokens that are drawn, verified or replaced; host arrays. */
typedef struct {
    int n;
    uint64_t *image; /* noise address */
    int *position;   /* noise address, and the place in the image */
    int *group;      /* number of the image in the batch; of a candidate: of the token it is for */
    int *order;      /* autoregressive step; of a candidate: its number, from 0 */
    int *place;      /* number among the tokens of its step and image */
    int *source;     /* of `drawn`: whose conditions it is drawn with: a draft's own number, and behind all drafts
                      * the tokens to replace; of `pending`: the row of contexts.z with its true conditions */
    int *steps;      /* diffusion steps */
    float *cfg;      /* guidance */
} path_rows;

/* What came of a pass, in one piece, so that one transfer brings it to the host: marked [rows], first [groups], shift
 * [rows][token_dim]. */
typedef struct {
    int *marked;  /* [rows] kern_path_verdict */
    int *first;   /* [groups] kern_path_verdict */
    float *shift; /* [rows][token_dim] the draft less the target's last mean */
} path_verdicts;

typedef struct {
    mar_masked *g;
    mar_draft *draft; /* NULL: the target drafts */
    int gamma;        /* steps of a round, at most */
    int max_rows;     /* tokens of a round's drafts, and of those to replace, together */
    int max_drawn;    /* these and candidates */

    diff_paths target;            /* the target's head */
    diff_paths other;             /* the draft model's */
    diff_paths *drafter;          /* the one that drafts, either of them */
    mar_contexts contexts;        /* the target's passes */
    mar_contexts draft_contexts;  /* the draft model's */
    mar_recordings *recordings;   /* [num_iter][gamma + 1] passes of one image, by first step and length of its round;
                                   * the one before the first round has length 0 */
    mar_recordings *draft_passes; /* [num_iter] the draft model's, of one image */

    /* Host, by image of the batch. */
    int *begin;         /* the first step that is not final */
    int *from;          /* the first step of the round at hand */
    int *context;       /* the step whose conditions its drafts had, drafts of the target itself */
    int *length;        /* steps of the round at hand; 0: the image is finished */
    int *tried, *whole; /* steps verified so far, and those of them without a replacement */
    int *z_first;       /* [images][num_iter] the row of contexts.z where a step's context begins */
    int *z_asked;       /* [images][num_iter] tokens that it was asked for. Only steps of the last pass are read */
    int z_rows;         /* rows of contexts.z, of one condition */

    mar_image_context *list; /* host [max_images * gamma] contexts of a pass */
    path_rows drawn;         /* drafts of the round, then candidates */
    int drafts;              /* rows of `drawn` that are drafts */
    int known;               /* the first so many of them were drafted with their true conditions */
    path_rows pending;       /* tokens to replace */
    int *tries;              /* [max_rows] candidates that a token to replace has had */
    int *index[2];           /* host [conditions * max_drawn] index lists */
    int *relative;           /* host [max_drawn] sources of a part of the rows */
    float *report;           /* host: verdicts */

    /* Backend memory: lay_out. D is the width of the model whose conditions they are. */
    float *token;   /* [max_drawn][token_dim] what rows of `drawn` became */
    float *path;    /* [max_drawn][stride] how */
    float *draft_z; /* [conditions][draft_sources][D] what drafts, and then tokens to replace, were drawn with */
    int draft_sources;
    float *true_z;                      /* [conditions][drafts][D] the target's for the drafts that are verified */
    float *pending_p[2], *pending_q[2]; /* [conditions][pending][D] the target's and the drafter's for tokens to
                                         * replace; two of each, as tokens leave the list */
    float *part_z;                      /* [conditions][max_rows][D] of a part of the rows */
    double *log_ratio;                  /* [max_drawn] */
    float *last;                        /* [max_drawn][token_dim] the other law's last mean */
    float *verdicts;                    /* path_verdicts */

    double shift_sum; /* of squared shifts of accepted tokens, per channel */
} mar_paths;

/* A round of all images (above). The first one makes a pass more. */
mar_status mar_paths_round(mar_paths *s, mar_err *err);
extern const mar_way mar_way_path; /* its state is a mar_paths */

#endif
