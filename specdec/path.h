/* Speculation across tokens by whole paths: exact to plain sampling, in any order of the tokens, with a draft model or
 * without one.
 *
 * A token's path is the chain's states x_T .. x_1 (diffusion/paths.h). Q is its density under the z that drafted it, P
 * under the target's true z. An order makes an image in steps (spec_path_order): sets of tokens in a masked model, one
 * token after another in a causal one. A step's context is the tokens of all steps before it. A round, for each image:
 *   1. Steps `from` .. from + length - 1 are drafted. A draft model drafts them step by step, each by its pass over the
 *      tokens before it. Without one all are drafted at once, with the z that the target's last pass gave for these
 *      tokens: Jacobi decoding, for continuous tokens. Their z is stale by 1, 2, ... steps.
 *   2. The target makes one pass that gives the z of each step in its context: the final tokens, and the drafts of the
 *      steps before it. With one_context the final tokens alone are the context of all the round's steps.
 *   3. One call of the target's head over all states of all drafted paths gives log P/Q. A path is accepted with
 *      probability min(1, P/Q).
 *   4. The first step with a rejected path is the last that counts. Its accepted tokens stay. A draw from
 *      Norm[P - Q]+ replaces each rejected path: the first of the candidates, drawn from P, that is accepted with
 *      probability 1 - Q/P. Candidates are drawn in parallel. Without a draft model they share a run of the chain with
 *      the next round's drafts.
 * A plain round, of length 0, is plain decoding's step: the pass gives the z of step `from` alone, and its tokens are
 * drawn from it. Without a draft model an image's first round is plain, as nothing has given a z before it. The pass of
 * a plain round gives the z of the next round's drafts, too, if it has any.
 *
 * Why that is exact to plain sampling. The verdict on a step uses the step's own drafts, u and candidates, and the
 * context's tokens. If the step counts, all tokens of its context are final. Drafts after the first rejection, and the
 * verdicts on them, influence nothing that stays, so their random numbers may be used again. A token's draft, and its
 * draw in a plain round, have the plain chain's addresses, so an image looks like the plain image of its seed.
 * Candidate n of a token has the addresses of another image, number image + (n + 1) SPEC_PATH_IMAGES. The accepted
 * candidate does not depend on how many are drawn at a time. An image's steps are fixed before it begins. A verdict is
 * on a path. The token may be any function of the path, such as its end normalised to a sphere.
 *
 * Why the length may be chosen (specdec/choice.h). Let k steps be final, and let G(k) be all random numbers with
 * addresses of their tokens: paths, u, candidates. A choice is a function of spec_past: k, the verdicts on final steps,
 * and the choices before. By induction over rounds these are functions of G(k), and so are the z of the next drafts of
 * step k, which the last pass computed in a context of final tokens, and its true z. The random numbers of step k are
 * independent of G(k), whatever dropped drafts they made before. So given G(k), step k is either plain, a draw from P,
 * or drafted from a fixed Q, verified and replaced, which is a draw from P, too. With a draft model, or behind other
 * steps of its round, the same holds given G of all steps before it, if it counts.
 * A choice must not depend on a round's own noise, nor on verdicts on dropped steps: they tell the random numbers that
 * the next draft of these steps has. tests/mar/test_path_law.c has a choice by an adversary within the rules, and one
 * that looks at the noise, whose distribution it finds wrong.
 *
 * The last index of the chain adds no noise. An accepted draft became a token by the mean under its draft's z. Later
 * contexts have seen that token, and it stays. Under the target's z the same x_1 would become a slightly different
 * token; mar_stats.accepted_shift is the difference. With one_context no context has seen the token, and the target's
 * mean is taken. */
#ifndef SPECDEC_PATH_H
#define SPECDEC_PATH_H

#include "diffusion/paths.h"
#include "mar_measure.h"
#include "specdec/choice.h"

#define SPEC_PATH_IMAGES ((uint64_t)1 << 40) /* image numbers end here: the candidates have those beyond */

enum {
    SPEC_PATH_CANDIDATES = 8,       /* candidates for a token in its first draw; each next draw has twice as many */
    SPEC_PATH_CANDIDATES_MOST = 64, /* usual value of spec_path_options.candidates */
    /* Candidates for a token: distributions that need more differ only by rounding. Addresses end at 2^24. */
    SPEC_PATH_TRIES_MOST = 1 << 20,
};

typedef struct spec_path spec_path;

/* A step of an image. */
typedef struct {
    int n;                /* tokens */
    const int *positions; /* host [n] noise addresses, and the positions in the image */
    int diffusion_steps;
    float cfg; /* guidance scale */
} spec_path_step;

/* A token to draw. */
typedef struct {
    uint64_t seed, image; /* noise address */
    int position;         /* noise address, and the position in the image */
    int slot, step;       /* index of the image in the batch, and its step */
    int place;            /* index among the tokens of its step */
    int diffusion_steps;
    float cfg;        /* guidance scale */
    int group, order; /* of its verdict: slot and step; of a candidate: index in `pending`, and number, from 0 */
    int source;       /* row of the z it is drawn with: a draft's own number, then the tokens to replace */
    /* A token to replace: rows of its true z in s->z and of its draft's z in pending_q[0]; candidates drawn so far. */
    int z_row, q_row, tries;
} spec_path_row;

/* Conditions on the backend. */
typedef struct {
    const float *z; /* [branches][rows][width] */
    int rows;
} spec_path_z;

/* The host of the rounds: an order of the tokens, and the models that make them. */
typedef struct {
    spec_path_step (*step)(const spec_path *s, int image, int step);
    /* Runs the draft model's pass for drafts first .. end-1, a step of each image, over the tokens before them. Returns
     * the z of these drafts, in their order. */
    spec_path_z (*draft)(spec_path *s, int first, int end);
    /* Runs the target's pass over the contexts of all drafts, and of the step of each plain round. Without a draft
     * model it also gives the z of the tokens that the next round may draft. */
    spec_path_z (*pass)(spec_path *s);
    /* Returns the row, in the result of the last pass, of a token in the context of step `context`. */
    int (*z_row)(const spec_path *s, const spec_path_row *row, int context);
    /* Makes the n tokens in s->kept, drafts, known to the passes that have drafts in their context. */
    void (*know)(spec_path *s, int n);
    /* Writes the n tokens in s->kept, rows of `token`, to the images as final ones, and makes them known to all models.
     * known: they are drafts that `know` had. */
    void (*keep)(spec_path *s, const float *token, int n, int known);
} spec_path_order;

typedef struct {
    const spec_path_order *order;
    void *host;         /* of the order */
    diff_chain *target; /* of the target's head */
    diff_chain *draft;  /* of the draft model's head; NULL: the target drafts */
    int window;         /* as in diff_paths_create */
    int images;         /* of a batch, at most */
    int seq_len, steps; /* of an image */
    int gamma;          /* steps of a round, at most */
    /* Chooses each image's rounds. The drafts of its table are the drafted steps less 1, since a round's first step
     * counts in any case; 0: a plain round. choose NULL: all rounds have gamma steps. */
    spec_choice choice;
    int one_context;           /* 1: the round's final tokens are the context of all its steps, and all steps count */
    int max_rows, max_pending; /* tokens of a round's drafts and tokens to replace, together; tokens to replace */
    int candidates;            /* of all tokens in one draw, at most, unless one for each is more */
    uint32_t verdict_step;     /* step in the noise address of the verdicts: that of no chain */
    mar_stats *stats;          /* receives the counts of rounds and tokens; 0 when a batch begins */
    uint8_t *token_status;     /* host [images][seq_len] mar_token_status of final tokens */
    int *ar_step;              /* host [images][seq_len] their steps */
    int *staleness; /* host [images][seq_len] steps by which the z of a token's draft was stale; 0: no such draft */
} spec_path_options;

/* An image of the batch. */
typedef struct {
    uint64_t seed, number; /* noise address */
    int begin;             /* first step that is not final */
    int from, length;      /* first step and drafted steps of the current round; 0: it is plain, or all is final */
    int wanted, next;      /* drafted steps chosen, which may exceed those left; without a draft model, behind a plain
                            * round, those of the next round */
    int context;           /* step whose z the last round's drafts had, if the target drafts */
    spec_past past;        /* of steps; with a choice */
} spec_path_image;

struct spec_path {
    spec_path_options o;
    kern_queue *k;            /* of the target */
    int branches;             /* rows of z a token: 2 with guidance, else 1 */
    diff_paths target, draft; /* the heads at work */
    diff_paths *drafter;      /* the one of these that drafts */
    int max_drawn;            /* tokens drawn at a time, at most */
    int images;               /* of the batch */
    int n_drawn, drafts;      /* rows of `drawn`, and those of drafts */
    int n_pending, rejected;  /* tokens to replace still, and at the end of the round */
    spec_path_z z;            /* of the target's last pass */

    double spent, plain;      /* with a choice: costs of the batch's rounds, and by plain rounds */
    double shift_sum;         /* of squared shifts of accepted tokens, per channel */
    double target_s, draft_s; /* seconds of draws by either head */
    diff_speculation_stats target_work, draft_work; /* of the heads */

    void *memory;           /* of the host arrays below */
    spec_path_image *image; /* [images] */
    spec_path_row *drawn;   /* [max_drawn] the round's drafts, the first step of every image first; then candidates */
    spec_path_row *pending; /* [max_pending] tokens to replace */
    int *kept, *kept_slot, *kept_position; /* [max_rows] rows and places of tokens for `know` and `keep` */
    uint64_t *seed, *number;               /* [max_drawn] entries of rows of `drawn`, for the backend's operations */
    int *position, *source, *group, *order;
    float *cfg;
    int *index;    /* [branches * max_drawn] an index list */
    float *report; /* the verdicts */

    /* Backend memory, from spec_path_lay_out. D is the width of the model whose z it is. */
    float *token;   /* [max_drawn][C] tokens of the rows of `drawn` */
    float *path;    /* [max_drawn][stride] their paths */
    float *draft_z; /* [branches][draft_sources][D] z that the drafts, then the tokens to replace, were drawn with */
    int draft_sources;
    float *true_z;       /* [branches][..][D] the target's z of the drafts that are verified, or of tokens to replace */
    float *pending_q[2]; /* [branches][..][D] z that the rejected drafts were drawn with: all, those still to replace */
    float *part_z;       /* [branches][..][D] z of the rows of one number of diffusion steps, if there are several */
    double *log_ratio;   /* [max_drawn] */
    float *last;         /* [max_drawn][C] last mean under the other distribution */
    float *verdicts;     /* of the round's drafts, or of candidates */
};

/* Creates rounds. All that `options` points to must outlive them. *out is to be freed also after a failure. */
mar_status spec_path_create(const spec_path_options *options, spec_path *out, mar_err *err);
void spec_path_free(spec_path *s);
size_t spec_path_lay_out(spec_path *s, char *base); /* as diff_chain_lay_out */
/* Prepares the heads in the chains' respacing with this many diffusion steps. The shapes of rounds depend on what is
 * accepted, so the largest are prepared. */
mar_status spec_path_plan(spec_path *s, int diffusion_steps, mar_err *err);
/* Returns MAR_EARG for an image number that candidates need. */
mar_status spec_path_check_number(uint64_t number, mar_err *err);
/* Begins a batch without images. */
void spec_path_begin(spec_path *s);
/* Puts an image in a place of the batch. Its steps before `begin` are final. */
void spec_path_admit(spec_path *s, int image, uint64_t seed, uint64_t number, int begin);
/* Tells whether an image's current round is plain. */
int spec_path_is_plain(const spec_path *s, int image);
/* Runs a round of all images, as above. Returns the queue's failure, or MAR_EMODEL if no candidate for a token is
 * kept. */
mar_status spec_path_round(spec_path *s, mar_err *err);
/* Adds to *stats what options.stats does not have: the heads' work and time, and accepted_shift. */
void spec_path_add_stats(const spec_path *s, mar_stats *stats);

#endif
