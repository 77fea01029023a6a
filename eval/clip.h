/* CLIP (Radford et al., 2021): an image and a text tower whose results lie in one space. Tensors and files have the
 * names of transformers' CLIPModel. */
#ifndef EVAL_CLIP_H
#define EVAL_CLIP_H

#include "eval/resize.h"
#include "text/encoder.h"

typedef struct {
    text_encoder_config image, text; /* the towers' layers */
    int side, patch;                 /* pixels of an image's side, of a patch's */
    int patches;                     /* of an image: (side / patch)^2 */
    int positions;                   /* tokens of a text at most, start and end included: 77 */
    int vocabulary;
    int embedding;               /* length of an embedding: 512 of B, 768 of L */
    int end;                     /* id of the token whose row is the text's; -1: the first of the largest id */
    float mean[3], deviation[3]; /* of the channels, for values of 0..1 */
    long parameters;
} clip_config;

/* Derives the configuration: sizes come from the tensors; heads, eps, activations and the end token from config.json;
 * mean and deviation from preprocessor_config.json in the folder, else they are OpenAI's. Returns MAR_EMODEL for
 * another architecture, for shapes that disagree, and for a preprocessor with another size or filter. */
mar_status clip_config_derive(const wt_file *f, clip_config *out, mar_err *err);

/* Names of the towers' tensors. */
extern const text_encoder_names clip_image_names, clip_text_names;

typedef struct clip clip; /* weights, and memory for a number of images and texts, on one queue */

/* Loads both towers on queue k for calls with up to `batch` images or texts. The queue must outlive it. `f` may be
 * closed afterwards. Returns MAR_EMODEL, naming file and tensor, or MAR_EIO, MAR_ENOMEM. Finish the queue before
 * freeing it. */
mar_status clip_create(kern_queue *k, const wt_file *f, int batch, clip **out, mar_err *err);
void clip_free(clip *c); /* NULL is fine */
const clip_config *clip_get_config(const clip *c);

/* Computes embeddings, host [n][embedding], of length 1, of pictures of any sizes: the shorter side becomes `side` as
 * Pillow's bicubic does it, and the middle is cut out, as transformers' CLIPImageProcessor. Waits for the result.
 * Returns MAR_ENOMEM, the queue's failure, or MAR_EMODEL if an embedding has no length. */
mar_status clip_images(clip *c, const eval_picture *pictures, int n, float *embedding, mar_err *err);
/* Does the same for texts as tokens: text i has ids first[i] .. first[i] + length[i] - 1, start and end included, at
 * most `positions`, each 0..vocabulary-1; all host. */
mar_status clip_texts(clip *c, const int *ids, const int *first, const int *length, int n, float *embedding,
                      mar_err *err);

#endif
