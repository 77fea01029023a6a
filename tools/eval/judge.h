/* Judges images made elsewhere: a network sees all images of a directory or an npz, batch by batch. Memory is
 * independent of their number, unless features of single images are kept. */
#ifndef TOOLS_JUDGE_H
#define TOOLS_JUDGE_H

#include "eval/moments.h"
#include "eval/score.h"
#include "mar.h"
#include "tools/generate/models.h"
#include "tools/cli/progress.h"

/* The arithmetic of Inception-v3, --features_dtype, with the names in judge_dtypes; f32 by default. The classifier of
 * digits has no choice. */
typedef enum { JUDGE_F32, JUDGE_BF16 } judge_dtype;
extern const char *const judge_dtypes[]; /* ends with NULL */

typedef struct {
    mar_features *network;
    int batch;         /* images at a time, as the network was loaded with */
    int keep_features; /* 1: keep features of single images */
    int keep_scores;   /* 1: compute Inception scores */
    progress *bar;
} judge;

typedef struct {
    eval_moments pooled;  /* of the features */
    eval_moments spatial; /* of the spatial features; dim 0: the network has none */
    eval_score *score;    /* in torch-fidelity's order; NULL: not computed */
    eval_score *adm;      /* in ADM's order: of an npz its own, of a directory that of --save_npz; NULL: not computed */
    float *features;      /* [images][features of the network]; NULL: not kept */
    long images;
    int width, height; /* of an image, in pixels */
    double seconds;    /* of the network and the sums */
} judged;

/* Returns the handle of the network at `path` on the machine of the options. Inception gets the arithmetic `dtype`,
 * whatever machine->dtype is. The store's handle of the same options is reused if its arithmetic is equal. The store
 * owns it. Returns NULL with the error printed. */
mar *judge_open(model_store *store, const mar_options *machine, const char *path, judge_dtype dtype);
/* Loads the network: "demo" or Inception's weights. The caller calls mar_features_free. Returns 0, or 1 with the error
 * printed. */
int judge_load(mar *library, const char *path, int batch, progress *bar, mar_features **out);

/* Judges all images of `path`. They must have one size. Returns 0, 1 with the error printed, or the exit status after a
 * signal if signals are only noted (tools/cli/interruption.h). The caller calls judged_free either way. */
int judge_images(const judge *j, mar *library, const char *path, judged *out);
void judged_free(judged *d);

#endif
