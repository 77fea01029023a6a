/* A vision transformer (Dosovitskiy et al., 2020) over square images: the image tower of CLIP, HPS and ImageReward. A
 * row for the class and one for each patch get their positions, an optional norm, and the layers of nets/encoder.h. */
#ifndef EVAL_VIT_H
#define EVAL_VIT_H

#include "eval/resize.h"
#include "nets/encoder.h"

/* How a picture becomes side x side pixels: the shorter side is resized with a bicubic filter, the middle cut out. */
typedef enum {
    VIT_TRANSFORMERS, /* bytes, as CLIPImageProcessor: the rest is halved downwards */
    VIT_TORCHVISION,  /* bytes, as Resize and CenterCrop of a PIL image: halved to even */
    VIT_TENSOR        /* the same of a tensor: floats that are neither rounded nor clipped */
} vit_resize;

typedef struct {
    nets_encoder_config layers;
    int side, patch; /* pixels of an image's side, of a patch's */
    int patches;     /* of an image: (side / patch)^2 */
    int bias;        /* 1: the patch embedding has a bias */
    vit_resize resize;
    float mean[3], deviation[3]; /* of the channels, for values of 0..1 */
} vit_config;

typedef struct {
    nets_encoder_names layers;
    const char *class_row, *positions; /* tensors of [width] and [patches + 1][width] numbers */
    const char *patches;               /* of the embedding, before ".weight" and ".bias" */
} vit_names;

/* Derives width, depth and hidden size of layers with biases and layer norms from their tensors. Returns MAR_EMODEL. */
mar_status vit_derive_layers(const wt_file *f, const nets_encoder_names *names, nets_encoder_config *c, mar_err *err);
/* Derives all sizes but the heads. Mean and deviation are OpenAI's. Returns MAR_EMODEL. */
mar_status vit_config_derive(const wt_file *f, const vit_names *names, vit_config *c, mar_err *err);
/* Sets heads of this width, where no file says their number. Returns MAR_EMODEL if it does not divide the width. */
mar_status vit_set_heads(const wt_file *f, const char *what, int head_dim, nets_encoder_config *c, mar_err *err);
/* Returns MAR_EMODEL for a tensor of another shape than expected. */
mar_status vit_refuse_shape(const wt_file *f, const wt_tensor *t, const char *expected, mar_err *err);

/* Copies a tensor of [rows][width] numbers, with any dimensions of 1 before, to new backend memory. */
mar_status vit_load_rows(kern_queue *k, const wt_file *f, const char *name, int rows, int width, float **out,
                         mar_err *err);

typedef struct {
    kern_queue *k;
    vit_config config;
    nets_encoder *layers;
    kern_linear *embed; /* the patch embedding */
    float *class_row;   /* backend [width] */
    float *positions;   /* backend [patches + 1][width] */
    int count;          /* most images of a pass */

    char *memory;    /* backend, of a pass; the next are parts of it */
    float *input;    /* [count * patches][3 * patch * patch] pixels of patches */
    float *embedded; /* [count * patches][width] of these */
    const float *x;  /* [count * (patches + 1)][width] rows of the last layer */

    float *square; /* host [side][side][3] of a picture, 0..255 */
    float *pixels; /* host [patches][3 * patch * patch] */
    int *index;    /* host [3][count * (patches + 1)] */
    int *first;    /* host [count] rows of the classes */
    int *length;   /* host [count] patches + 1 each */
} vit;

/* Loads the weights for passes of up to `batch` images. Returns MAR_EMODEL, MAR_EIO or MAR_ENOMEM. Finish the queue
 * before vit_free, which is called after an error, too. */
mar_status vit_create(kern_queue *k, const wt_file *f, const vit_config *c, const vit_names *names, int batch, vit *out,
                      mar_err *err);
void vit_free(vit *v); /* {0} is fine */

/* Runs the layers on n pictures, at most `count`. Their output is x, that of image i from row first[i] on, without the
 * norm `after`. Returns MAR_ENOMEM. */
mar_status vit_run(vit *v, const eval_picture *pictures, int n, const char *name, mar_err *err);

#endif
