/* CLIP's score of images and their prompts (Hessel et al., 2021): cosines of embeddings. */
#ifndef TOOLS_CLIP_SCORE_H
#define TOOLS_CLIP_SCORE_H

#include "tools/cli/options.h"
#include "tools/cli/progress.h"
#include "tools/generate/models.h"
#include "tools/generate/prompts.h"
#include "tools/images/source.h"

/* The prefix of the second cosine, as in LANTERN's eval_fid_clip.py and the paper. */
#define CLIP_PREFIX "A photo depicts "

typedef struct {
    const char *folder;  /* --clip: of a CLIP as Hugging Face writes it; NULL: no score */
    const char *prompts; /* --prompts of images or captions made elsewhere: a file, or "-"; NULL: those of the run */
    int num;             /* --num: images of each prompt, one after another */
} clip_options;

extern const mar_param clip_rows[]; /* of these fields */

typedef struct {
    mar *library; /* owned by the store */
    mar_clip *clip;
    const char *const *texts; /* [count] prompts, owned by the caller */
    int count;
    float *plain, *prefixed; /* [count][embedding] of the prompts, without and with CLIP_PREFIX */
    float *embedding;        /* [batch][embedding] of the current images */
    int batch;
    char id[RECORD_ID];         /* of the model's file */
    char prompts_id[RECORD_ID]; /* number and hash of the prompts */
} clip_scorer;

/* Loads the CLIP, on the machine of the options and in f32, and embeds `count` prompts, which must stay. Returns 0, or
 * 1 with the error printed. The caller calls clip_scorer_close either way. */
int clip_scorer_open(const char *folder, model_store *store, const mar_options *machine, int batch, progress *bar,
                     const char *const *texts, int count, clip_scorer *out);
void clip_scorer_close(clip_scorer *c); /* {0} is fine */

/* Computes the cosines [n][2] of images and their prompts [n], with images as in mar_clip_images_each. Returns 0, or 1
 * with the error printed; the first image has number `first`. */
int clip_scorer_run(clip_scorer *c, const uint8_t *const *rgb, const int *widths, const int *heights,
                    const int32_t *prompt, long first, int n, double *cosines);

/* Does the same for images of one size, uint8_t rgb[n][height][width][3], and their labels, the prompts' numbers. */
int clip_scorer_run_batch(clip_scorer *c, const uint8_t *rgb, int width, int height, const int *prompt, long first,
                          int n, double *cosines);

/* Reads the prompts of images made elsewhere. A file with a bad prompt is refused: later ones would belong to other
 * images. Returns 0, or 1 with the error printed. */
int clip_read_prompts(const clip_options *o, prompts *out);
/* Pairs the images of a source with `count` prompts: in natural order of their names, o->num for each prompt. Writes
 * each image's prompt to a new array that the caller frees. Returns NULL, with the error printed, if there are not num
 * times as many images as prompts. */
int32_t *clip_pair(const clip_options *o, int count, const char *path, const image_source *source);

/* Identifies the file of a CLIP's tensors in a folder, or the index of its shards. Returns 0, or 1 with the error
 * printed. */
int clip_identify(const char *folder, char id[RECORD_ID]);

#endif
