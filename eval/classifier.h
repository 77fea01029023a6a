/* Classifier of handwritten digits, for evaluating the demo's images: three 3x3 convolutions with ReLU and 2x2 max
 * pooling, and two linear layers. demo/train_demo.py trains it on real digits. */
#ifndef EVAL_CLASSIFIER_H
#define EVAL_CLASSIFIER_H

#include "mar.h"

#include <stdint.h>

enum { EVAL_DIGITS = 10, EVAL_DIGIT_SIDE = 32, EVAL_DIGIT_FEATURES = 64 };

typedef struct eval_classifier eval_classifier;

/* Opens the classifier with the weights of the data folder (base/data.h). The caller closes it. On failure *out is NULL
 * and `why`, char [size], has one line. */
mar_status eval_classifier_open(eval_classifier **out, char *why, size_t size);
void eval_classifier_close(eval_classifier *c); /* NULL is fine */

long eval_classifier_parameters(const eval_classifier *c);

/* Computes features [64] and logits [10] from rgb [32][32][3]; either may be NULL. Colours are averaged to grey.
 * Features are the numbers before the last ReLU and layer, as in the demo's Frechet distance (demo/digits.py). */
void eval_classify(eval_classifier *c, const uint8_t *rgb, float *features, float *logits);

#endif
