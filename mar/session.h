/* Inside a generation session: what the ways of making a step share. */
#ifndef MAR_SESSION_H
#define MAR_SESSION_H

#include "diffusion/speculate.h"
#include "mar/runner.h"
#include "specdec/verifier.h"
#include "vae/vae.h"

struct mar_session {
    mar_model *model;
    mar_vae *vae;
    mar_params params;
    int max_images, conditions; /* conditions: 2 with guidance, else 1 */
    int grid;                   /* tokens a side */
    mar_step *steps;            /* [num_iter] */
    int max_tokens;             /* an image's tokens that one call of the head draws, at most */

    void *arena;                         /* backend memory, all there is */
    mar_runner target, draft;            /* draft.model NULL: no draft */
    diff_speculation head;               /* inside the target's head; head.w.window 0: the plain chain */
    float *tokens;                       /* backend [images][seq_len][token_dim], made so far */
    float *sampled;                      /* backend [images * max_tokens][token_dim] */
    struct mar_speculation *speculation; /* mar/speculate.h, or NULL */
    vae_run *decoder;
    mar_recordings *recordings,
        *draft_recordings; /* [num_iter] of target and draft, by step, for batches of `planned` images */

    /* host memory; rows are the tokens being drawn: image after image of a step, in the order of `order` */
    int **order; /* [images] -> [seq_len] */
    int *order_data;
    int *label;          /* [images] */
    uint64_t *row_image; /* [images * max_tokens] noise address */
    int *row_slot, *row_position;
    float *row_cfg;
    uint8_t *fate;               /* [images][seq_len] mar_token_fate */
    int *born;                   /* [images][seq_len] autoregressive step */
    float *energy;               /* [seq_len] GtR */
    float *host_tokens, *pixels; /* one image */

    int images, step; /* of the batch in progress; step == num_iter: done */
    uint64_t first_image;
    int planned; /* number of images whose shapes are planned */
    mar_stats stats;
    char guarantee[256];
};

/* mar/speculate.c: speculation across tokens. Check is of the parameters, and to be called whether they ask for it or
 * not; plan prepares batches of n images; round advances s->step by at least one. */
mar_status mar_speculation_check(const mar_model *model, const mar_params *params, mar_err *err);
mar_status mar_speculation_create(mar_session *s, mar_err *err); /* writes s->guarantee */
void mar_speculation_free(mar_session *s);
size_t mar_speculation_lay_out(mar_session *s, char *base); /* as diff_chain_lay_out; without s->draft */
mar_status mar_speculation_plan(mar_session *s, int n, mar_err *err);
mar_status mar_speculation_round(mar_session *s, mar_err *err);
/* Autoregressive steps that the target makes alone before speculation starts. */
int mar_speculation_prefill(const mar_session *s);

#endif
