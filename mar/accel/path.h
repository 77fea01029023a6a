/* Speculation across tokens by whole paths: exact, with a draft model or without one.
 *
 * A token's path is the chain's states x_T .. x_1 (diffusion/paths.h). Q is its density under the z that drafted it, P
 * under the target's true z. A round, for each image:
 *   1. Steps `begin` .. begin + length - 1 are drafted. Without a draft model all are drafted at once, with the z that
 *      the target's last pass gave for these positions: Jacobi decoding, for continuous tokens. Their z is stale by 1,
 *      2, ... steps. With a draft model they are drafted step by step, each by its pass over the tokens before it.
 *   2. The target makes one pass over a context for each step (nets/masked_contexts.h): the final tokens, and the
 * drafts of the steps before it. In context prefix one context, the final tokens, serves the block.
 *   3. One call of the target's head over all states of all drafted paths gives log P/Q. A path is accepted with
 *      probability min(1, P/Q).
 *   4. The first step with a rejected path is the last that counts. Its accepted tokens stay. A draw from
 *      Norm[P - Q]+ replaces each rejected path: the first of the candidates, drawn from P, that is accepted with
 *      probability 1 - Q/P. Candidates are drawn in parallel. Without a draft model they share a run of the chain with
 *      the next round's drafts.
 *
 * Why that is exact. The verdict on a step uses the step's own drafts, u and candidates, and the context's tokens. If
 * the step counts, all tokens of its context are final. Drafts after the first rejection, and the verdicts on them,
 * influence nothing that stays, so their random numbers may be used again. A token's draft has the plain chain's
 * addresses in every round, so an image looks like the plain image of its seed. Candidate n of a token has the
 * addresses of another image, number image + (n + 1) PATH_CANDIDATE_IMAGES. The accepted candidate does not depend on
 * how many are drawn at a time. The length of a round may depend on what earlier rounds accepted.
 *
 * The last index of the chain adds no noise. An accepted draft became a token by the mean under its draft's z. Later
 * contexts have seen that token, and it stays. Under the target's z the same x_1 would become a slightly different
 * token; mar_stats.accepted_shift is the difference. In context prefix no context has seen the token, and the target's
 * mean is taken. */
#ifndef MAR_WAYS_PATH_H
#define MAR_WAYS_PATH_H

#include "diffusion/paths.h"
#include "nets/masked_contexts.h"
#include "mar/accel/draft.h"

#define PATH_CANDIDATE_IMAGES ((uint64_t)1 << 40)

enum {
    PATH_GAMMA_MOST = 16,      /* of gamma auto */
    PATH_CANDIDATES = 8,       /* candidates for a token in its first draw; each next draw has twice as many */
    PATH_CANDIDATES_MOST = 64, /* of all tokens in one draw, unless one for each is more */
    PATH_TRIES_MOST =
        1
        << 20, /* candidates for a token: distributions that need more differ only by rounding. Addresses end at 2^24 */
};

/* Tokens that are drawn, verified or replaced; host arrays. */
typedef struct {
    int n;
    uint64_t *seed;  /* noise address */
    uint64_t *image; /* noise address */
    int *position;   /* noise address, and the position in the image */
    int *group;      /* index of the image in the batch; of a candidate: row of `pending` */
    int *order;      /* autoregressive step; of a candidate: its number, from 0 */
    int *place;      /* index among the tokens of its step and image */
    /* Of `drawn`: row of the z it is drawn with: a draft's own number, then the tokens to replace; of `pending`: row of
     * contexts.z with its true z. */
    int *source;
    int *steps; /* diffusion steps */
    float *cfg; /* guidance scale */
} path_rows;

/* The verdicts of a pass, in one piece, so that one transfer brings them to the host: marked, first, shift. */
typedef struct {
    int *marked;  /* [rows] kern_path_verdict */
    int *first;   /* [groups] kern_path_verdict */
    float *shift; /* [rows][token_dim] the draft less the target's last mean */
} path_verdicts;

typedef struct {
    mar_masked *g;
    mar_draft *draft; /* NULL: the target drafts */
    int gamma;        /* steps of a round, at most */
    int max_rows;     /* tokens of a round's drafts and tokens to replace, together */
    int max_drawn;    /* max_rows and candidates */

    diff_paths target;              /* the target's head */
    diff_paths other;               /* the draft model's head */
    diff_paths *drafter;            /* the one of these that drafts */
    masked_contexts contexts;       /* the target's passes */
    masked_contexts draft_contexts; /* the draft model's passes */
    /* [num_iter][gamma + 1] passes of one image, by first step and length of its round; the pass before the first round
     * has length 0. */
    masked_recordings *recordings;
    masked_recordings *draft_passes; /* [num_iter] the draft model's passes, of one image */

    /* Host, by image of the batch. */
    int *begin;         /* first step that is not final */
    int *from;          /* first step of the current round */
    int *context;       /* step whose z the current round's drafts had, if the target drafts */
    int *length;        /* steps of the current round; 0: the image is finished */
    int *tried, *whole; /* steps verified so far, and those without a replacement */
    int *z_first;       /* [images][num_iter] first row of a step's context in contexts.z */
    int *z_queries;     /* [images][num_iter] rows of that context; only steps of the last pass are valid */
    int z_rows;         /* rows of contexts.z, of one branch */

    masked_context *list; /* host [max_images * gamma] contexts of a pass */
    path_rows drawn;      /* drafts of the round, then candidates */
    int drafts;           /* rows of `drawn` that are drafts */
    int known;            /* first rows of `drawn` that were drafted with their true z */
    path_rows pending;    /* tokens to replace */
    int *tries;           /* [max_rows] candidates drawn so far for a token to replace */
    int *index[2];        /* host [branches * max_drawn] index lists */
    int *relative;        /* host [max_drawn] sources of a part of the rows */
    float *report;        /* host copy of the verdicts */

    /* Backend memory, from lay_out. D is the width of the model whose z it is. */
    float *token;   /* [max_drawn][token_dim] tokens of the rows of `drawn` */
    float *path;    /* [max_drawn][stride] paths of the rows of `drawn` */
    float *draft_z; /* [branches][draft_sources][D] z that the drafts, then the tokens to replace, were drawn with */
    int draft_sources;
    float *true_z; /* [branches][drafts][D] the target's z for the drafts that are verified */
    /* [branches][pending][D] the target's and the drafter's z for tokens to replace; double buffers, as tokens leave
     * the list. */
    float *pending_p[2], *pending_q[2];
    float *part_z;     /* [branches][max_rows][D] z of a part of the rows */
    double *log_ratio; /* [max_drawn] */
    float *last;       /* [max_drawn][token_dim] last mean under the other distribution */
    float *verdicts;   /* path_verdicts */

    double shift_sum; /* of squared shifts of accepted tokens, per channel */
} mar_paths;

/* Runs a round of all images, as above. The first round makes one more pass. */
mar_status mar_paths_round(mar_paths *s, mar_err *err);
extern const mar_accel mar_accel_path; /* its state is a mar_paths */

#endif
