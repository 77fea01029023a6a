/* Judging images made elsewhere: a network sees all images of a directory or an npz, one batch after another. Memory
 * does not grow with their number, unless features of single images are kept. */
#ifndef TOOLS_JUDGE_H
#define TOOLS_JUDGE_H

#include "eval/moments.h"
#include "eval/score.h"
#include "mar.h"
#include "tools/generate/models.h"
#include "tools/cli/progress.h"

/* The arithmetic of Inception-v3, --features_dtype: as judge_dtypes names them, f32 unless asked otherwise. The
 * classifier of digits has no choice. */
typedef enum { JUDGE_F32, JUDGE_BF16 } judge_dtype;
extern const char *const judge_dtypes[]; /* ends with NULL */

typedef struct {
    mar_features *network;
    int batch;         /* images that it takes at a time, as it was loaded with */
    int keep_features; /* 1: features of single images are kept */
    int keep_scores;   /* 1: Inception scores are made */
    progress *bar;
} judge;

typedef struct {
    eval_moments pooled;  /* of the features */
    eval_moments spatial; /* of the spatial features; dim 0: the network has none */
    eval_score *score;    /* torch-fidelity's; NULL: not kept */
    eval_score *adm;      /* ADM's: of an npz in its order, of a directory in that of --save_npz; NULL: not kept */
    float *features;      /* [images][features of the network]; NULL: not kept */
    long images;
    int width, height; /* of an image, in pixels */
    double seconds;    /* of the network and of adding up */
} judged;

/* The handle of the network at `path`, as judge_load takes it, on the machine of the options: for Inception one with
 * that arithmetic, whatever machine->dtype is. It is the one that the store has of the same options if its arithmetic
 * is the same. The store owns it. NULL after printing an error. */
mar *judge_open(model_store *store, const mar_options *machine, const char *path, judge_dtype dtype);
/* Loads the network: "demo" or Inception's weights. The caller calls mar_features_free. Returns 0, or 1 after printing
 * an error. */
int judge_load(mar *library, const char *path, int batch, progress *bar, mar_features **out);

/* Judges all images of `path`, which must have one size. Returns 0, 1 after printing an error, or the exit status
 * after a signal, where these are only noted (tools/cli/interruption.h). The caller calls judged_free either way. */
int judge_images(const judge *j, mar *library, const char *path, judged *out);
void judged_free(judged *d);

#endif
