/* ImageReward (Xu et al., 2023): how people like an image for a prompt. BLIP's image tower, ViT-L/16, and its BERT over
 * the prompt, whose layers also attend to the image; a head scores the row of [CLS]. Tensors have the names of
 * THUDM/ImageReward's ImageReward.pt. */
#ifndef EVAL_REWARD_H
#define EVAL_REWARD_H

#include "eval/vit.h"

enum { REWARD_TOKENS = 35 }; /* of a prompt at most, [CLS] and [SEP] included (ImageReward.py) */

typedef struct {
    vit_config image;
    nets_encoder_config text; /* BERT */
    int vocabulary;           /* 30524 */
    long parameters;
} reward_config;

/* Returns 1 for a file with the names of an ImageReward. */
int reward_config_recognise(const wt_file *f);

typedef struct reward reward; /* weights, and memory for a number of images, on one queue */

/* Loads the model on queue k for calls with up to `batch` images. The queue must outlive it. `f` may be closed
 * afterwards. BERT's products are in the device's operands. Returns MAR_EMODEL, naming file and tensor, or MAR_EIO,
 * MAR_ENOMEM. Finish the queue before freeing it. */
mar_status reward_create(kern_queue *k, const wt_file *f, int batch, reward **out, mar_err *err);
void reward_free(reward *r); /* NULL is fine */
const reward_config *reward_get_config(const reward *r);

/* Computes the scores, host [n], of pictures of any sizes and their prompts. Pictures are resized as torchvision's
 * Resize and CenterCrop of a PIL image. Prompt i has ids first[i] .. first[i] + length[i] - 1, [CLS] and [SEP]
 * included, at most REWARD_TOKENS, each 0..vocabulary-1; all host. Waits for the result. Returns MAR_ENOMEM, the
 * queue's failure, or MAR_EMODEL if a score is not finite. */
mar_status reward_run(reward *r, const eval_picture *pictures, const int *ids, const int *first, const int *length,
                      int n, double *scores, mar_err *err);

#endif
