/* Computes FID, sFID, KID, Inception score, precision and recall from the gathered sums. */
#ifndef TOOLS_EVAL_NUMBERS_H
#define TOOLS_EVAL_NUMBERS_H

#include "tools/eval/judge.h"
#include "mar_eval.h"
#include "tools/eval/result.h"

/* The caller owns all pointers. */
typedef struct {
    mar *library;                       /* its device computes precision and recall */
    const mar_features_config *network; /* the network that judged the images; NULL: none */
    const mar_features_config *vgg;     /* VGG16, for precision and recall; NULL: they are the network's */
    int clean;                          /* 1: the network's images were resized as clean-fid does it */
    int kid_subset;                     /* images of a subset of KID */
    const eval_reference *reference;    /* NULL: Inception score only */
    const judged *images;               /* sums of the images */
} eval_gathered;

/* Fills fid, sfid, kid, kid_deviation, is_mean, is_deviation, is_adm, precision, recall, clip_cosine, clip_score,
 * clip_cosine_prefixed, hps_cosine, hps_score, image_reward (NaN where missing), why_no_sfid, why_no_kid,
 * why_no_precision, images and reference_images of *r. The caller has zeroed *r. Adds warnings: few images, a reference
 * without published numbers, images of another size than the reference's name says. Other fields stay. Returns 0, or 1
 * with the error printed: reference and network disagree about the size of a feature or about the resize, a number is
 * not finite, fewer than two images, no memory.
 */
int eval_numbers(const eval_gathered *g, eval_result *r);
/* Does so for the judge's networks. */
int eval_judged_numbers(const judge *j, const eval_reference *reference, const judged *images, eval_result *r);

/* Adds a line to r->warnings; lines beyond EVAL_WARNINGS_MAX are dropped. */
void eval_warn(eval_result *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
