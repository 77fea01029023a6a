/* Scores of images and their prompts: CLIP's cosines (Hessel et al., 2021), HPS v2 (Wu et al., 2023), ImageReward (Xu
 * et al., 2023). */
#ifndef TOOLS_PROMPT_SCORE_H
#define TOOLS_PROMPT_SCORE_H

#include "tools/cli/options.h"
#include "mar_eval.h"
#include "mar_methods.h"
#include "tools/cli/progress.h"
#include "tools/generate/models.h"
#include "tools/generate/prompts.h"
#include "tools/images/source.h"

/* The prefix of CLIP's second cosine, as in LANTERN's eval_fid_clip.py and the paper. */
#define CLIP_PREFIX "A photo depicts "

typedef struct {
    const char *clip;    /* --clip: folder of a CLIP as Hugging Face writes it; NULL: no score, as of the next two */
    const char *hps;     /* --hps: file of HPS v2 */
    const char *reward;  /* --imagereward: file of ImageReward */
    const char *prompts; /* --prompts of images or captions made elsewhere: a file, or "-"; NULL: those of the run */
    int num;             /* --num: images of each prompt, one after another */
} score_options;

extern const mar_param score_rows[]; /* of these fields */

/* Returns the first option that asks for a score, "--clip"; NULL if none does. */
const char *scores_option(const score_options *o);

/* Columns of the scores of an image; -1: not computed. */
typedef struct {
    int clip;        /* CLIP's cosine; the next column is that with CLIP_PREFIX before the prompt */
    int hps, reward; /* cosine in HPS v2; ImageReward's score */
    int count;       /* columns; 0: no scores */
} score_columns;

score_columns scores_columns(int clip, int hps, int reward); /* each 1: is computed */

typedef struct {
    mar *library;             /* owned by the store */
    mar_clip *clip, *hps;     /* NULL: not computed */
    mar_reward *reward;       /* NULL: not computed */
    const char *const *texts; /* [count] prompts, owned by the caller */
    int count;
    float *plain, *prefixed; /* [count][embedding] of the prompts in CLIP, without and with CLIP_PREFIX */
    float *hps_plain;        /* [count][embedding] of the prompts in HPS */
    float *embedding;        /* [batch][embedding] of the current images */
    const char **prompts;    /* [batch] prompts of the current images */
    const uint8_t **rgb;     /* [batch] current images of one size */
    int *widths, *heights;   /* [batch] of these */
    double *rewards;         /* [batch] of the current images */
    int batch;               /* 0: not opened */
    score_columns columns;   /* of what is computed */
    char clip_id[RECORD_ID]; /* of the models' files */
    char hps_id[RECORD_ID];  /* "" if it is not loaded */
    char reward_id[RECORD_ID];
    char prompts_id[RECORD_ID]; /* number and hash of the prompts */
} prompt_scorer;

/* Loads the models of the options, on the machine and in f32, and embeds `count` prompts, which must stay. Returns 0,
 * or 1 with the error printed. The caller calls prompt_scorer_close either way. */
int prompt_scorer_open(const score_options *o, model_store *store, const mar_options *machine, int batch, progress *bar,
                       const char *const *texts, int count, prompt_scorer *out);
void prompt_scorer_close(prompt_scorer *s); /* {0} is fine */

/* Computes the scores [n][columns.count] of images and their prompts [n], with images as in mar_clip_images_each.
 * Returns 0, or 1 with the error printed; the first image has number `first`. */
int prompt_scorer_run(prompt_scorer *s, const uint8_t *const *rgb, const int *widths, const int *heights,
                      const int32_t *prompt, long first, int n, double *scores);

/* Does the same for images of one size, uint8_t rgb[n][height][width][3], and their labels, the prompts' numbers. */
int prompt_scorer_run_batch(prompt_scorer *s, const uint8_t *rgb, int width, int height, const int *prompt, long first,
                            int n, double *scores);

/* Describes the models for the protocol, "; CLIP NAME (ID) in f32; HPS v2 ...", "" if there is none. Each triple is an
 * option's value and the identity of its file. Returns text. */
const char *scores_describe(const char *const models[3], const char *const ids[3], char *text, size_t size);

/* Reads the prompts of images made elsewhere. A file with a bad prompt is refused: later ones would belong to other
 * images. Returns 0, or 1 with the error printed. */
int scores_read_prompts(const score_options *o, prompts *out);
/* Pairs the images of a source with `count` prompts: in natural order of their names, o->num for each prompt. Writes
 * each image's prompt to a new array that the caller frees. Returns NULL, with the error printed, if there are not num
 * times as many images as prompts. */
int32_t *scores_pair(const score_options *o, int count, const char *path, const image_source *source);

#endif
