#ifndef MAR_FEATURES_H
#define MAR_FEATURES_H

#include "eval/classifier.h"
#include "eval/inception.h"
#include "eval/vgg.h"
#include "mar/core/handle.h"

struct mar_features {
    mar *m; /* library handle; referenced */
    mar_features_config config;
    int batch;               /* maximum images of a call */
    eval_classifier *digits; /* the network is one of these three */
    eval_inception *inception;
    eval_vgg *vgg;
    mar_resize resize;
    eval_picture *pictures; /* [batch] of a call */
    kern_queue *k;          /* NULL: the digits' network needs none */
};

#endif
