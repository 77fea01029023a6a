/* Computes FID, sFID, Inception score, precision and recall from the gathered sums. */
#ifndef TOOLS_EVAL_NUMBERS_H
#define TOOLS_EVAL_NUMBERS_H

#include "eval/moments.h"
#include "eval/reference.h"
#include "eval/score.h"
#include "tools/eval/result.h"

/* The caller owns all pointers. */
typedef struct {
    mar *library;                       /* its device computes precision and recall */
    const mar_features_config *network; /* the network that judged the images */
    const eval_reference *reference;    /* NULL: Inception score only */
    const eval_moments *pooled;         /* network->features values an image; NULL: no FID */
    const eval_moments *spatial;        /* network->spatial values; NULL: no sFID */
    const eval_score *score;            /* EVAL_SCORE_TORCH_FIDELITY, of all images; NULL: no score */
    const eval_score *score_adm;        /* EVAL_SCORE_ADM, of all images; NULL: no score */
    const float *features;              /* [feature_count][network->features] of single images; NULL: no precision */
    long feature_count;
    long images;       /* N, the number of images */
    int width, height; /* of the images, in pixels */
} eval_gathered;

/* Fills fid, sfid, is_mean, is_deviation, is_adm, precision, recall (NaN where missing), why_no_sfid, why_no_precision,
 * images and reference_images of *r. The caller has zeroed *r. Adds warnings: few images, a reference without published
 * numbers, images of another size than the reference's name says. Other fields stay. Returns 0, or 1 with the error
 * printed: reference and network disagree about the size of a feature, a number is not finite, fewer than two images,
 * no memory. */
int eval_numbers(const eval_gathered *g, eval_result *r);

/* Adds a line to r->warnings; lines beyond EVAL_WARNINGS_MAX are dropped. */
void eval_warn(eval_result *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
