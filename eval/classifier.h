/* The classifier of handwritten digits that judges the demo's images: three 3x3 convolutions with ReLU and 2x2 maximum,
 * two linear layers, trained by tools/train_demo.py on real digits. */
#ifndef EVAL_CLASSIFIER_H
#define EVAL_CLASSIFIER_H

#include "base/error.h"

#include <stdint.h>

enum { EVAL_DIGITS = 10, EVAL_DIGIT_SIDE = 32 };

typedef struct eval_classifier eval_classifier;

/* From the weights built in. MAR_ENOMEM with a message; the caller closes it. */
mar_status eval_classifier_open(eval_classifier **out, mar_err *err);
void eval_classifier_close(eval_classifier *c); /* NULL is fine */

/* rgb [32][32][3] -> logits [10]; colours are averaged to grey. */
void eval_classify(eval_classifier *c, const uint8_t *rgb, float *logits);

#endif
