/* VGG16 (Simonyan and Zisserman, 2014, configuration D) under torchvision's names: its features are what improved
 * precision and recall (Kynkaanniemi et al., 2019) compare. */
#ifndef EVAL_VGG_H
#define EVAL_VGG_H

#include "eval/resize.h"
#include "kernels/ops.h"
#include "weights/weights.h"

enum { VGG_CONVS = 13 };

typedef struct {
    int channels[VGG_CONVS + 1]; /* of the input, 3, and of each convolution's result; 64 .. 512 */
    int hidden;                  /* width of the first linear layer, 4096 */
    int features;                /* length of a feature vector: 4096 */
    long parameters;             /* numbers in the file */
} eval_vgg_config;

/* Returns 1 if the tensor names are those of a VGG network. */
int eval_vgg_recognise(const wt_file *f);
/* Derives the sizes from the tensors' shapes. Returns MAR_EMODEL, naming file and tensor, if they are inconsistent. */
mar_status eval_vgg_derive(const wt_file *f, eval_vgg_config *config, mar_err *err);
/* Calls `visit` for every tensor of a network accepted by eval_vgg_derive; the classes' layer may be missing. */
typedef void eval_vgg_visitor(void *user, const char *name, int rank, const int64_t *shape);
void eval_vgg_tensors(const wt_file *f, const eval_vgg_config *config, eval_vgg_visitor *visit, void *user);

typedef struct eval_vgg eval_vgg; /* weights, and memory for a number of images, on one queue */

/* Loads the network on queue k for calls with up to `batch` images. The queue must outlive it. `f` may be closed
 * afterwards. Returns MAR_EMODEL, naming file and tensor, or MAR_EIO, MAR_ENOMEM. Finish the queue before freeing the
 * network. */
mar_status eval_vgg_create(kern_queue *k, const wt_file *f, int batch, eval_vgg **out, mar_err *err);
void eval_vgg_free(eval_vgg *v); /* NULL is fine */
const eval_vgg_config *eval_vgg_get_config(const eval_vgg *v);

/* Computes features, host [n][features]: the second linear layer's result before its ReLU, as in LANTERN's
 * eval_prec_recall.py (vgg16.classifier[:4]). Pictures are resized to 224x224 as Pillow's bilinear does, whatever their
 * shape, and normalised with ImageNet's mean and deviation. Waits for the result. kern_check reports a failure of the
 * backend. Returns MAR_ENOMEM without memory for the resize. */
mar_status eval_vgg_run(eval_vgg *v, const eval_picture *pictures, int n, float *features, mar_err *err);

#endif
