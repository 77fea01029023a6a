/* A small Harmon in the layouts of its releases. Its weights are those of tests/golden/make_harmon.py, which makes
 * tests/golden/data/harmon.safetensors of them. */
#ifndef TESTS_HARMON_H
#define TESTS_HARMON_H

#include "mar.h"

typedef enum {
    HARMON_FOLDER,  /* Hugging Face's folder: config.json, model.safetensors with vae.*, a tokenizer.json */
    HARMON_RELEASE, /* harmon_0.5b.pth without vae.*, kl16.ckpt, and Qwen2.5/ with vocab.json and merges.txt */
    HARMON_UNIPIC,  /* the same with siglip2.* and siglip2_proj.*, as pytorch_model.bin */
    HARMON_DRAFT,   /* the folder with other numbers, a tenth beside those of the others */
    HARMON_TRAINED, /* the folder with towers and head of the demo, whose images have 64 tokens of 8 channels; no vae.*
                     */
    HARMON_TRAINED_DRAFT /* the same with numbers a five-hundredth beside them */
} harmon_kind;

/* Writes one into a folder that exists. A failure fails the test. */
void harmon_write(const char *folder, harmon_kind kind);

/* Folders of all kinds, and paths of the model, the image decoder and the tokenizer in them. */
enum {
    HARMON_KINDS = HARMON_TRAINED_DRAFT + 1,
    HARMON_SEQ = 16,
    HARMON_CHANNELS = 6,
    HARMON_TOKENS = 96,
    HARMON_SIDE = 16
};
typedef struct {
    char folder[HARMON_KINDS][400], vae[HARMON_KINDS][512], text[HARMON_KINDS][512];
} harmon_files;

/* Set-up and tear-down of a group of tests whose *state is harmon_files. */
int harmon_set_up(void **state);
int harmon_tear_down(void **state);

/* A model on two threads with its image decoder, and encoded prompts. */
typedef struct {
    mar *m;
    mar_model *model, *draft; /* draft: NULL unless harmon_load_draft loads it */
    mar_vae *vae;
    mar_text *text;
    int prompts, tokens; /* prompts; positions of one */
    float *ids;          /* [prompts + 1][tokens] behind them the prompt of the second branch */
    uint8_t *mask;       /* [prompts + 1][tokens] */
} harmon;

/* Opens one with n prompts, for images of this size; NULL: the model's own. Failures fail the test. */
harmon harmon_open(const harmon_files *f, harmon_kind kind, mar_dtype dtype, const char *size,
                   const char *const *prompts, int n);
/* Opens one of these paths, vae NULL: without an image decoder; negative NULL: the model's own. */
harmon harmon_open_paths(const char *model, const char *vae, const char *text, mar_dtype dtype, const char *size,
                         const char *const *prompts, int n, const char *negative);
void harmon_load_draft(harmon *h, const harmon_files *f, harmon_kind kind);
void harmon_close(harmon *h);
/* Return prompt i's ids and mask; i = prompts: those of the second branch. */
const float *harmon_ids(const harmon *h, int i);
const uint8_t *harmon_mask(const harmon *h, int i);
/* Creates a session with the prompt of the second branch, if it has guidance. */
mar_session *harmon_session(const harmon *h, const mar_params *p, int batch);

#endif
