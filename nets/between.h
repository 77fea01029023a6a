/* A causal language model between MAR's towers (Wu et al., "Harmonizing Visual Representations for Unified Multimodal
 * Understanding and Generation", 2025). Behind a prompt it reads the encoder's rows: the known tokens in raster order,
 * then the buffer. What it makes of them is added to them. The keys and values of a prompt are computed once; those of
 * the rows, which change from pass to pass, stand in memory of one group of sequences, one group after another. */
#ifndef NETS_BETWEEN_H
#define NETS_BETWEEN_H

#include "nets/causal.h"
#include "nets/masked_block.h"

/* Loaded weights. */
typedef struct {
    /* Its vectors are the encoder's rows (token_dim is their width, behind two layers, proj_in), and its prompts ids.
     * seq_len is the rows of a sequence at most. */
    causal_model *language;
    int buffer;          /* rows of a sequence that are no tokens */
    kern_linear *out[2]; /* proj_out: [W][W] act -> act, SiLU, then [D][W] act -> float */
} between_model;

/* Loads the model on queue k, under the conditions of causal_model_load. On failure too, between_model_free frees what
 * was loaded. */
mar_status between_model_load(kern_queue *k, const wt_file *f, const causal_shape *shape, int buffer,
                              between_model *out, mar_err *err);
void between_model_free(kern_device *d, between_model *m); /* leaves it empty */

/* A session's part: prompts of its images, and memory of the passes. */
typedef struct between_runner between_runner;

/* Creates one for up to `images` images on queue k. k and model must outlive it. */
mar_status between_create(kern_queue *k, const between_model *model, int images, between_runner **out, mar_err *err);
void between_free(between_runner *b);                  /* NULL is fine */
size_t between_lay_out(between_runner *b, char *base); /* as diff_chain_lay_out */
/* Gives an image a prompt: ids host float [prefix], mask host uint8_t [prefix], 0 at padding on the left. Images with
 * the same prompt share its keys and values. The queue fails if the ids' embeddings cannot be read. */
void between_set_prompt(between_runner *b, int image, const float *ids, const uint8_t *mask);
/* Gives the second branch of an image a prompt likewise; ids NULL: that of image -1, which stands for all images that
 * begin later without one. */
void between_set_negative(between_runner *b, int image, const float *ids, const uint8_t *mask);
/* Returns it for masked_workspace.between. A pass's images have prompts. */
masked_between *between_of(between_runner *b);

/* Return the arithmetic, 2 per multiply-add, and the prompts computed, since between_reset. */
double between_flop(const between_runner *b);
long between_prompts(const between_runner *b);
void between_reset(between_runner *b);

#endif
