/* Conditioning of a batch's images: classes or captions. */
#ifndef MAR_CONDITIONING_H
#define MAR_CONDITIONING_H

#include "base/error.h"
#include "mar.h"

typedef struct {
    const int *labels;     /* [n]; NULL: captions */
    const float *features; /* [n][caption_tokens][caption_dim] */
    const uint8_t *mask;   /* [n][caption_tokens], or NULL */
} mar_conditions;

/* Checks the conditioning of n images. Returns MAR_EARG if the model takes the other kind, a label is out of range, or
 * a feature is not finite. */
mar_status mar_conditioning_check(const mar_conditions *of, const mar_model_config *model, int n, mar_err *err);

/* Returns MAR_EARG if a feature of n captions is not finite. */
mar_status mar_features_check(const float *features, const mar_model_config *model, int n, mar_err *err);

/* Returns MAR_EARG unless a prompt [prefix] is ids below `rows`, and its mask has padding on the left alone; mask NULL
 * has none. ids NULL: MAR_OK. */
mar_status mar_prompt_check(const float *ids, const uint8_t *mask, int prefix, int rows, mar_err *err);
/* Returns MAR_EARG: an image of a prompt is guided, and nothing stands in the second branch. */
mar_status mar_refuse_no_negative(float cfg, mar_err *err);

#endif
