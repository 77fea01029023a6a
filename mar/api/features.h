#ifndef MAR_FEATURES_H
#define MAR_FEATURES_H

#include "eval/classifier.h"
#include "eval/inception.h"
#include "mar/core/handle.h"

struct mar_features {
    mar *m; /* library handle; referenced */
    mar_features_config config;
    int batch;               /* maximum images of a call */
    eval_classifier *digits; /* the demo's network; NULL: Inception */
    eval_inception *inception;
    kern_queue *k; /* Inception's queue; NULL: the digits' network needs none */
};

#endif
