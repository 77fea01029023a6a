/* Kinds of files with a network that judges images (weights/kind.h): VGG16 and Inception-v3. */
#ifndef EVAL_KINDS_H
#define EVAL_KINDS_H

#include "weights/kind.h"

extern const wt_kind eval_kinds[]; /* a row without a name at the end */

#endif
