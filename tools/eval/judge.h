/* The network that judges images, and images made elsewhere: it sees all images of a directory or an npz, batch by
 * batch. Memory is independent of their number, unless features of single images are kept. */
#ifndef TOOLS_JUDGE_H
#define TOOLS_JUDGE_H

#include "eval/moments.h"
#include "eval/reference.h"
#include "eval/score.h"
#include "mar.h"
#include "mar_eval.h"
#include "mar_methods.h"
#include "tools/cli/options.h"
#include "tools/cli/progress.h"
#include "tools/eval/prompt_score.h"
#include "tools/generate/record.h"

/* The arithmetic of Inception-v3, --features_dtype, with the names in judge_dtypes; f32 by default. The classifier of
 * digits has no choice. */
typedef enum { JUDGE_F32, JUDGE_BF16 } judge_dtype;
extern const char *const judge_dtypes[]; /* ends with NULL */

/* The resize of images for Inception, --resize, with the names in judge_resizes: TensorFlow 1's or clean-fid's. */
typedef enum { JUDGE_TF1, JUDGE_CLEAN } judge_resize;
extern const char *const judge_resizes[]; /* ends with NULL */

/* Images of a subset of KID, as in torch-fidelity. */
enum { KID_SUBSET_DEFAULT = 1000 };

/* The options that choose the network. */
typedef struct {
    const char *features;  /* "inception", "demo" or "none"; judge_options_done fills it in */
    const char *inception; /* weights of Inception; NULL: none */
    int dtype;             /* judge_dtype of Inception */
    int resize;            /* judge_resize of Inception */
    int gives_resize;      /* 1: --resize was given; judge_options_done fills it in */
    int kid_subset;        /* images of a subset of KID; not in judge_rows */
    const char *vgg;       /* weights of VGG16, for precision and recall; NULL: the network above. Not in judge_rows */
} judge_options;

extern const mar_param judge_rows[]; /* of these fields */
/* Completes the options after parsing. `features`: the default of --features; `hint` ends the message that --inception
 * is missing. Returns 0, or 1 with the error printed. */
int judge_options_done(judge_options *o, const option_set *set, const char *features, const char *hint);
/* Return whether the network is the demo's; whether there is none. */
int judge_is_demo(const judge_options *o);
int judge_is_none(const judge_options *o);

/* The networks that judge, for `batch` images at a time. */
typedef struct {
    mar *library;          /* owned by the store */
    mar_features *network; /* NULL: none */
    mar_features *vgg;     /* network of precision and recall; NULL: `network` */
    prompt_scorer scorer;  /* {0}: none; judge_open does not open it */
    int batch;
    int clean;         /* 1: images are resized as clean-fid does it */
    int any_size;      /* 1: so --resize was given, and images of a directory may have any sizes */
    int kid_subset;    /* images of a subset of KID */
    int keep_features; /* 1: judge_images keeps the features of single images */
    int keep_scores;   /* 1: judge_images computes Inception scores */
    progress *bar;
    const char *path;      /* of the current images, for messages; NULL: the model's */
    const uint8_t **rgb;   /* [batch] current images */
    int *widths, *heights; /* [batch] of these */
} judge;

/* Loads the networks on the machine of the options. They have their own arithmetic, whatever machine->dtype is. The
 * store's handle of the same options is reused if its arithmetic is equal. Returns 0, or 1 with the error printed. The
 * caller calls judge_close either way; {0} is fine. */
int judge_open(const judge_options *o, model_store *store, const mar_options *machine, int batch, progress *bar,
               judge *out);
void judge_close(judge *j);

/* Returns whether images of a directory may have any sizes: --resize was given, or no network resizes them without
 * antialiasing. */
int judge_takes_any_size(const judge *j);
/* Returns the length of the features that precision and recall compare. */
int judge_feature_dim(const judge *j);

/* Destinations of n images' results, [n][] each. NULL: not wanted. */
typedef struct {
    float *features, *logits, *spatial; /* of the network */
    float *vgg;
    double *scores; /* of the images and their prompts */
} judge_output;

/* Judges the current images, those from number `first` on, with the numbers of their prompts [n]. Returns 0, or 1 with
 * the error printed. */
int judge_run(judge *j, const int32_t *prompt, long first, int n, const judge_output *out);

/* Sums and scores of the networks' outputs. */
typedef struct {
    eval_moments pooled;   /* of the features; dim 0: there is no network */
    eval_moments spatial;  /* of the spatial features; dim 0: the network has none */
    eval_score *score;     /* in torch-fidelity's order; NULL: not computed */
    eval_score *adm;       /* in ADM's order: of an npz its own, else that of --save_npz; NULL: not computed */
    float *features;       /* [feature_count][feature_dim], for precision and recall; NULL: not kept */
    int feature_dim;       /* of VGG16, or of the network */
    long feature_count;    /* images, or 0 */
    score_columns columns; /* of the scores */
    double *scores;        /* [images][columns.count] of each image and its prompt; NULL: not computed */
    long images;
    int width, height; /* of an image, in pixels; of images made elsewhere, of the first */
    int other_sizes;   /* 1: others have another size */
    double seconds;    /* of the network and the sums */
} judged;

/* Allocates sums for d->images images; with `keeps_scores` scores, ADM's in the order `adm`; with `feature_dim` above 0
 * features of this length; scores of these columns. network NULL: none. Returns 0, or 1 without memory. Call
 * judged_free either way. */
int judged_create(const mar_features_config *network, int keeps_scores, eval_score_order adm, int feature_dim,
                  const score_columns *columns, judged *d);
/* Adds logits [n][] and features [n][feature_dim] of images first..first+n-1 to all but the moments and scores. */
void judged_add(judged *d, long first, int n, const float *features, const float *logits);
void judged_free(judged *d);

/* Judges all images of `path`. They must have one size, unless judge_takes_any_size. Returns 0, 1 with the error
 * printed, or the exit status after a signal if signals are only noted (tools/cli/interruption.h). The caller calls
 * judged_free either way. */
int judge_images(judge *j, const char *path, judged *out);

/* Opens the argument of --stats. Loads "demo" or an npz of statistics (eval/reference.h). Otherwise judges the images
 * of a directory of PNG and JPEG files, or arr_0 of an npz, for what the file lacks: mean and covariance and, with
 * j->keep_features 1, features of single images for precision and recall; those of VGG16 are in no file. Returns as
 * judge_images. The caller calls eval_reference_free. */
int judge_reference(judge *j, const char *path, eval_reference *out);
/* Fills in what *out lacks: mean and covariance of judged images, also of the spatial features, and their features,
 * moved from *d. Returns 0, or 1 with the error printed. The caller calls eval_reference_free. */
int judge_reference_of(judged *d, const char *path, eval_reference *out);
/* Writes the identity of a reference to text: of a file as record_identify_file, of a directory the number of images
 * and a hash of their names, sizes and times. "" for NULL and "demo". Returns 0, or 1 with the error printed. */
int judge_identify(const char *path, char text[RECORD_ID]);
/* Returns whether the path is a directory, with reference images. */
int judge_is_directory(const char *path);

#endif
