#ifndef MAR_FEATURES_H
#define MAR_FEATURES_H

#include "eval/classifier.h"
#include "eval/inception.h"
#include "mar/core/handle.h"

struct mar_features {
    mar *m; /* which it holds a reference on */
    mar_features_config config;
    int batch;               /* the most images of a call */
    eval_classifier *digits; /* the demo's; NULL: it is the Inception */
    eval_inception *inception;
    kern_queue *k; /* of the Inception; NULL: the digits need none */
};

#endif
