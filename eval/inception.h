/* Inception-v3 with TensorFlow's weights of 2015-12-05. FID, sFID, precision and recall use its features, the Inception
 * score its logits. Follows torch-fidelity's FeatureExtractorInceptionV3: TensorFlow 1's resize, mean pools without
 * padding, max pool in the last block, logits without bias. */
#ifndef EVAL_INCEPTION_H
#define EVAL_INCEPTION_H

#include "eval/resize.h"
#include "kernels/ops.h"
#include "weights/weights.h"

typedef struct {
    int features;    /* length of a feature vector: 2048 */
    int classes;     /* number of logits: 1008 */
    int spatial;     /* length of the spatial features: 17 * 17 * 7 */
    long parameters; /* numbers in the file, except num_batches_tracked */
} eval_inception_config;

/* Returns 1 if the tensor names are those of Inception-v3. */
int eval_inception_recognise(const wt_file *f);
/* Derives the sizes from the tensors' shapes. Returns MAR_EMODEL, naming file and tensor, if they are inconsistent. */
mar_status eval_inception_derive(const wt_file *f, eval_inception_config *config, mar_err *err);
/* Calls `visit` for every tensor of a network accepted by eval_inception_derive, except the optional
 * bn.num_batches_tracked. */
typedef void eval_inception_visitor(void *user, const char *name, int rank, const int64_t *shape);
void eval_inception_tensors(const wt_file *f, eval_inception_visitor *visit, void *user);

typedef struct eval_inception eval_inception; /* weights, and memory for a number of images, on one queue */

/* Largest image: pixels in all; its sides are at most EVAL_SIDE_MAX. */
enum { EVAL_INCEPTION_PIXELS_MAX = 4096 * 4096 };

/* How images become 299x299: TensorFlow 1's bilinear resize without half-pixel centres, or clean-fid's, which is
 * eval_resize_floats with EVAL_BICUBIC. */
typedef enum { EVAL_INCEPTION_TF1, EVAL_INCEPTION_CLEAN } eval_inception_resize;

/* Loads the network on queue k for calls with up to `batch` images. The queue must outlive it. Folds batch norms (eps
 * 1e-3) into the convolutions, in double precision. `f` may be closed afterwards. Returns MAR_EMODEL, naming file,
 * tensor, found and expected shape, or MAR_EIO, MAR_ENOMEM. Finish the queue before freeing the network. */
mar_status eval_inception_create(kern_queue *k, const wt_file *f, int batch, eval_inception **out, mar_err *err);
void eval_inception_free(eval_inception *e); /* NULL is fine */
const eval_inception_config *eval_inception_get_config(const eval_inception *e);

/* Computes features [n][features], logits [n][classes] and spatial [n][spatial] (row, column, channel) of pictures of
 * any sizes. All are host arrays; each result may be NULL. Waits for the results. kern_check reports a failure of the
 * backend. Returns MAR_ENOMEM without memory for clean-fid's resize; the other one allocates nothing. */
mar_status eval_inception_run(eval_inception *e, const eval_picture *pictures, int n, eval_inception_resize how,
                              float *features, float *logits, float *spatial, mar_err *err);

#endif
