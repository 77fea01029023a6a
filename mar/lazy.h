/* LazyMAR's caches (Yan et al., ICCV 2025; the released mar_cache.py and basic.py). The first five autoregressive steps
 * and every ninth from then on are fresh: they compute everything. A lazy step in between
 * - runs the conditional half only: the unconditional output is the conditional one plus the difference that the last
 *   fresh step had at that position (condition cache);
 * - encodes the buffer and the tokens that became known in the step before, which attend to the keys and values that
 * the encoder had for the others (these are not renewed, nor are the decoder's inputs from them);
 * - runs the first three decoder blocks and the attention of the fourth on all rows, and what follows only on rows to
 * be predicted, just predicted, and those whose values in the fourth block differ most from the step before; the other
 *   rows stand in as the keys and values they last had (token cache). How many are kept falls with the step, by the
 *   release's table for 64 steps, which is not stretched for other numbers of steps.
 * The release also caches inside the diffusion head: diff_chain_reuse. Without guidance only the token cache is
 * left (the release cannot do that). Where the release might drop a token that is to be predicted, after many negative
 * similarities, such tokens are kept here. */
#ifndef MAR_LAZY_H
#define MAR_LAZY_H

#include "mar/steps.h"
#include "mar/transformer.h"

/* Every encoder and decoder block's queries, keys and values of a row are 3D wide (queries not used), the last decoder
 * block's keys and values 2D. L = buffer + seq_len. */
typedef struct {
    const mar_model *model;
    int images, conditions;
    float *score; /* host [images * L] */
    int *kept;    /* host [images * L] */

    /* backend memory: mar_lazy_lay_out */
    act *encoder;      /* [encoder_depth][images][L][3D], rows in the order they came */
    act *decoder;      /* [decoder_depth - 1][images][L][3D] by position */
    act *last;         /* [images][L][2D] */
    float *input;      /* [images][L][D] the decoder's input */
    float *difference; /* [images][seq_len][D] unconditional minus conditional output of the last block */
} mar_lazy;

enum { MAR_LAZY_MIN_STEPS = 7 }; /* of the autoregressive steps, the first six are fresh */

/* Fills fresh, previous, horizon and kept of steps[n]. */
void mar_lazy_plan_steps(const mar_model_config *config, mar_step *steps, int n);

/* conditions: 2 with guidance, else 1. */
mar_status mar_lazy_create(const mar_model *model, int images, int conditions, mar_lazy **out, mar_err *err);
void mar_lazy_free(mar_lazy *lazy);
/* As diff_chain_lay_out. */
size_t mar_lazy_lay_out(mar_lazy *lazy, char *base);
mar_status mar_lazy_plan(const mar_lazy *lazy, int images, const mar_step *step, mar_err *err);

/* As mar_encode and mar_decode, whose fields p, z and z_index are. The steps of a batch come in their order. */
void mar_lazy_encode(mar_lazy *lazy, mar_workspace *w, const mar_pass *p, const mar_step *step);
/* Whether mar_lazy_decode of this step reads results back from the backend, and so cannot be on a recording. */
int mar_lazy_reads(const mar_lazy *lazy, const mar_step *step);
void mar_lazy_decode(mar_lazy *lazy, mar_workspace *w, const mar_pass *p, const mar_step *step, float *z,
                     const int *z_index);

/* Arithmetic for so many images, 2 per multiply-add. */
double mar_lazy_encode_flop(const mar_lazy *lazy, int images, const mar_step *step);
double mar_lazy_decode_flop(const mar_lazy *lazy, int images, const mar_step *step);

#endif
