/* From what was gathered of the images to FID, sFID, Inception score, precision and recall. */
#ifndef TOOLS_EVAL_NUMBERS_H
#define TOOLS_EVAL_NUMBERS_H

#include "eval/moments.h"
#include "eval/reference.h"
#include "eval/score.h"
#include "tools/eval/result.h"

/* All pointers are the caller's. */
typedef struct {
    mar *library;                       /* precision and recall are computed on its device */
    const mar_features_config *network; /* that judged the images */
    const eval_reference *reference;    /* NULL: none, so that there is an Inception score only */
    const eval_moments *pooled;         /* of network->features numbers an image; NULL: no FID */
    const eval_moments *spatial;        /* of network->spatial numbers; NULL: no sFID */
    const eval_score *score;            /* EVAL_SCORE_TORCH_FIDELITY, of all images; NULL: no such score */
    const eval_score *score_adm;        /* EVAL_SCORE_ADM, of all images; NULL: no such score */
    const float *features;              /* [feature_count][network->features] of single images; NULL: no precision */
    long feature_count;
    long images;       /* N, that the numbers are of */
    int width, height; /* of the images, in pixels */
} eval_gathered;

/* Fills fid, sfid, is_mean, is_deviation, is_adm, precision, recall (NaN where there is none), why_no_sfid,
 * why_no_precision, images and reference_images of *r, and adds what may mislead to its warnings: few images, a
 * reference that published numbers do not use, images of another size than the reference's name says. Nothing else of
 * *r changes; the caller has set it to zero before. Returns 0, or 1 after printing an error: reference and network
 * disagree about the numbers of a feature, a number is not finite, fewer than two images, out of memory. */
int eval_numbers(const eval_gathered *g, eval_result *r);

/* Adds a line to r->warnings; those beyond EVAL_WARNINGS_MAX are left out. */
void eval_warn(eval_result *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
