/* Inception-v3 with TensorFlow's weights of 2015-12-05: the network whose features FID, sFID, precision and recall
 * compare, and whose logits the Inception score is made of. It follows torch-fidelity's FeatureExtractorInceptionV3:
 * TensorFlow 1's resize, means that leave the padding out, a maximum in the last block's pool, logits without bias. */
#ifndef EVAL_INCEPTION_H
#define EVAL_INCEPTION_H

#include "kernels/ops.h"
#include "weights/weights.h"

typedef struct {
    int features;    /* numbers of a feature vector: 2048 */
    int classes;     /* logits: 1008 */
    int spatial;     /* numbers of the spatial features: 17 * 17 * 7 */
    long parameters; /* numbers in the file, counters of batches left out */
} eval_inception_config;

/* Whether the file looks like Inception-v3. */
int eval_inception_recognise(const wt_file *f);
/* Derives the sizes from the tensors' shapes, which have to fit one another. MAR_EMODEL, naming file and tensor. */
mar_status eval_inception_derive(const wt_file *f, eval_inception_config *config, mar_err *err);
/* Calls `visit` for every tensor of a network that eval_inception_derive has passed, but bn.num_batches_tracked, which
 * a file may have, too. */
typedef void eval_inception_visitor(void *user, const char *name, int rank, const int64_t *shape);
void eval_inception_tensors(const wt_file *f, eval_inception_visitor *visit, void *user);

typedef struct eval_inception eval_inception; /* the weights, and memory for a number of images, on one queue */

/* The largest images: each side up to EVAL_INCEPTION_SIDE_MAX pixels, and up to so many pixels altogether. */
enum { EVAL_INCEPTION_SIDE_MAX = 16384, EVAL_INCEPTION_PIXELS_MAX = 4096 * 4096 };

/* Loads the network on queue k, which must outlive it, and prepares it for calls with up to `batch` images. Batch norms
 * (eps 1e-3) are folded into the convolutions, in double precision. `f` may be closed afterwards. MAR_EMODEL, naming
 * file and tensor, found and expected shape; MAR_EIO, MAR_ENOMEM. Finish the queue before the network is freed. */
mar_status eval_inception_create(kern_queue *k, const wt_file *f, int batch, eval_inception **out, mar_err *err);
void eval_inception_free(eval_inception *e); /* NULL is fine */
const eval_inception_config *eval_inception_get_config(const eval_inception *e);

/* Host arrays: rgb [n][height][width][3] to features [n][features], logits [n][classes] and spatial [n][spatial]: row,
 * column, channel. A result that is NULL is not wanted. Waits for the results and allocates nothing; kern_check reports
 * a failure of the backend. */
void eval_inception_run(eval_inception *e, const uint8_t *rgb, int n, int width, int height, float *features,
                        float *logits, float *spatial);

#endif
