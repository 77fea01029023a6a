/* CLIP (Radford et al., 2021): an image and a text tower whose results lie in one space. A folder is transformers'
 * CLIPModel. A file is OpenCLIP's ViT-H/14, as HPS v2 has it (Wu et al., 2023). */
#ifndef EVAL_CLIP_H
#define EVAL_CLIP_H

#include "eval/vit.h"

/* Names of the tensors. */
typedef struct {
    vit_names image;
    nets_encoder_names text;
    const char *tokens, *positions;           /* of texts */
    const char *image_project, *text_project; /* [embedding][width] */
    int is_transposed;                        /* 1: [width][embedding] */
} clip_names;

typedef struct {
    const clip_names *names; /* static */
    vit_config image;
    nets_encoder_config text; /* the text tower's layers */
    int positions;            /* tokens of a text at most, start and end included: 77 */
    int vocabulary;
    int embedding; /* length of an embedding: 512 of B, 768 of L, 1024 of H */
    int end;       /* id of the token whose row is the text's; -1: the first of the largest id */
    long parameters;
} clip_config;

/* Returns 1 for a file with the names of a CLIP. */
int clip_config_recognise(const wt_file *f);
/* Derives the configuration: sizes come from the tensors; heads, eps, activations and the end token from config.json;
 * mean and deviation from preprocessor_config.json in the folder, else they are OpenAI's. OpenCLIP's file has the heads
 * of ViT-H-14.json. Returns MAR_EMODEL for another architecture, for shapes that disagree, and for a preprocessor with
 * another size or filter. */
mar_status clip_config_derive(const wt_file *f, clip_config *out, mar_err *err);

typedef struct clip clip; /* weights, and memory for a number of images and texts, on one queue */

/* Loads both towers on queue k for calls with up to `batch` images or texts. The queue must outlive it. `f` may be
 * closed afterwards. Returns MAR_EMODEL, naming file and tensor, or MAR_EIO, MAR_ENOMEM. Finish the queue before
 * freeing it. */
mar_status clip_create(kern_queue *k, const wt_file *f, int batch, clip **out, mar_err *err);
void clip_free(clip *c); /* NULL is fine */
const clip_config *clip_get_config(const clip *c);

/* Computes embeddings, host [n][embedding], of length 1, of pictures of any sizes: the shorter side becomes `side` as
 * Pillow's bicubic does it, and the middle is cut out, as the model's own preprocessing does it (vit_resize). Waits for
 * the result.
 * Returns MAR_ENOMEM, the queue's failure, or MAR_EMODEL if an embedding has no length. */
mar_status clip_images(clip *c, const eval_picture *pictures, int n, float *embedding, mar_err *err);
/* Does the same for texts as tokens: text i has ids first[i] .. first[i] + length[i] - 1, start and end included, at
 * most `positions`, each 0..vocabulary-1; all host. */
mar_status clip_texts(clip *c, const int *ids, const int *first, const int *length, int n, float *embedding,
                      mar_err *err);

#endif
