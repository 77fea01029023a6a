/* What the images of a batch show: classes, or captions. */
#ifndef MAR_SUBJECTS_H
#define MAR_SUBJECTS_H

#include "base/error.h"

typedef struct {
    const int *labels;     /* [n]; NULL: captions */
    const float *features; /* [n][caption_tokens][caption_dim] */
    const uint8_t *mask;   /* [n][caption_tokens], or NULL */
} mar_subjects;

/* MAR_EARG if the model makes no such images, or if a label is no class or a feature not finite. */
mar_status mar_subjects_check(const mar_subjects *of, const mar_model_config *model, int n, mar_err *err);

#endif
