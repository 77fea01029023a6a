#ifndef MAR_FEATURES_H
#define MAR_FEATURES_H

#include "eval/classifier.h"
#include "mar/handle.h"

struct mar_features {
    mar *m; /* which it holds a reference on */
    mar_features_config config;
    int batch;               /* the most images of a call */
    eval_classifier *digits; /* the demo's; NULL: it is an Inception */
};

#endif
