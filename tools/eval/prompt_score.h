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

/* The models that score images and prompts: a folder of a CLIP as Hugging Face writes it, a file of HPS v2, and one of
 * ImageReward. */
enum { SCORE_CLIP, SCORE_HPS, SCORE_REWARD, SCORE_MODELS };
typedef struct {
    const char *option; /* "clip" */
    const char *id;     /* key of its file's identity in the settings: "clip_id" */
    const char *name;   /* in the protocol */
} score_name;
extern const score_name score_names[SCORE_MODELS];

typedef struct {
    const char *model[SCORE_MODELS]; /* NULL: no score */
    const char *prompts; /* --prompts of images or captions made elsewhere: a file, or "-"; NULL: those of the run */
    int num;             /* --num: images of each prompt, one after another */
} score_options;

extern const mar_param score_rows[]; /* of these fields */

/* Returns the first option that asks for a score, "--clip"; NULL if none does. */
const char *scores_option(const score_options *o);

/* Columns of the scores of an image. */
typedef struct {
    int of[SCORE_MODELS]; /* a cosine, or ImageReward's score; behind CLIP's is that with CLIP_PREFIX; -1: not computed
                           */
    int count;            /* columns; 0: no scores */
} score_columns;

score_columns scores_columns(const int computed[SCORE_MODELS]);

typedef struct {
    mar *library;             /* owned by the store */
    mar_clip *clip, *hps;     /* NULL: not computed */
    mar_reward *reward;       /* NULL: not computed */
    const char *const *texts; /* [count] prompts, owned by the caller */
    int count;
    int num;                           /* images of each prompt in --images */
    float *plain, *prefixed;           /* [count][embedding] of the prompts in CLIP, without and with CLIP_PREFIX */
    float *hps_plain;                  /* [count][embedding] of the prompts in HPS */
    float *embedding;                  /* [batch][embedding] of the current images */
    const char **prompts;              /* [batch] prompts of the current images */
    double *rewards;                   /* [batch] of the current images */
    int batch;                         /* 0: not opened */
    score_columns columns;             /* of the computed scores */
    char ids[SCORE_MODELS][RECORD_ID]; /* identities of the models' files; "" if not loaded */
    char prompts_id[RECORD_ID];        /* number and hash of the prompts */
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

/* Reads the prompts of images made elsewhere. A file with a bad prompt is refused: later ones would belong to other
 * images. Returns 0, or 1 with the error printed. */
int scores_read_prompts(const score_options *o, prompts *out);
/* Pairs the images of a source with the prompts: in natural order of their names, s->num for each prompt. Writes
 * each image's prompt to a new array that the caller frees. Returns NULL, with the error printed, if there are not num
 * times as many images as prompts. */
int32_t *scores_pair(const prompt_scorer *s, const char *path, const image_source *source);

#endif
