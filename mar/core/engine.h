/* An engine makes the images of all families of one order and one kind of tokens: a table of these functions and a line
 * in mar/api/load.c. The session (mar/api/session.c) calls engines through the table only. */
#ifndef MAR_ENGINE_H
#define MAR_ENGINE_H

#include "mar/core/handle.h"
#include "mar/core/measure.h"
#include "weights/weights.h"

typedef struct mar_engine mar_engine;
struct family_facts; /* families/families.h */

/* The beginning of every family's model. A loaded model is constant but for its reference count, so any number of
 * sessions use it on any threads. */
struct mar_model {
    mar *m; /* library handle; referenced */
    const mar_engine *engine;
    mar_model_config config;
    wt_file *file;          /* of a model of prompt ids, whose embeddings are read as they come; else NULL. Owned */
    const mar_file *opened; /* the open file that `file` is a view of, referenced, or NULL */
    atomic_int references;  /* mar_model_load's, and one a session */
};

void mar_model_retain(mar_model *model);

/* An image to make: its conditioning, noise address and guidance, and the tokens that it begins with. */
typedef struct {
    int label;                    /* class; -1: unconditional. Unused with features */
    const float *features;        /* host [caption_tokens][caption_dim] of a caption; NULL: a class */
    const uint8_t *mask;          /* host [caption_tokens], 1 at the caption's tokens; NULL: 1 everywhere */
    uint64_t seed, number;        /* noise address */
    float cfg;                    /* guidance scale */
    const float *tokens;          /* host [seq_len][token_dim]; NULL: no token is known */
    const uint8_t *known;         /* host [seq_len] 1: this one of `tokens` is known */
    const float *negative;        /* as features, in the second branch; NULL: that of set_negative */
    const uint8_t *negative_mask; /* as mask */
} mar_image;

typedef struct mar_engine_state mar_engine_state; /* a family's part of a session */
typedef struct mar_accel mar_accel;               /* mar/accel.h */
enum { MAR_ACCELS_MAX = 16 };                     /* maximum accelerators on at a time */

/* Stages of generation that accelerators change (mar/accel.h), from the whole to the part. */
typedef enum {
    MAR_STAGE_AR_STEPS = 1 << 0, /* number and choice of the tokens that each autoregressive step predicts */
    MAR_STAGE_DRAFT = 1 << 1,    /* a second model beside the target; plain: none */
    MAR_STAGE_PASSES = 1 << 2,   /* the transformer passes that compute z */
    MAR_STAGE_COUNTS = 1 << 3,   /* diffusion steps of a step's tokens */
    MAR_STAGE_SOLVER = 1 << 4,   /* a diffusion step's use of the head's output */
    MAR_STAGE_CHAIN = 1 << 5,    /* order and batching of a token's diffusion steps */
    MAR_STAGE_HEAD = 1 << 6,     /* computation inside an evaluation of the head */
    MAR_STAGE_STATES = 1 << 7,   /* verdicts on single states of drafted tokens; plain: none */
} mar_stage;

/* What a session's method does to the distribution of its images. mar/api/guarantee.c makes the sentence. */
enum { MAR_EFFECT_TEXT = 288 };
typedef struct {
    int exact; /* 1: the distribution is plain sampling's */
    /* exact: what keeps it, "by speculation inside the head"; else what changes it, "changed by lazy"; "": nothing */
    char how[MAR_EFFECT_TEXT];
} mar_effect;

/* Where accepted tokens of spec path differ from plain sampling's. */
#define MAR_ACCEPTED_MEAN                                                                                              \
    "an accepted token is its draft's last, noiseless mean, as later contexts saw it (accepted_shift measures the "    \
    "difference)"

struct mar_engine {
    const char *tokens; /* "continuous" or "discrete": selects the options that have an effect (mar_param.tokens) */
    mar_order order;    /* of the tokens; with their kind it chooses the engine of a model */
    unsigned stages;    /* mar_stage: those that accelerators may change */
    /* Loads a model of these facts on queue k. The caller waits for the queue. Facts may be freed, and the file
     * closed, afterwards; but that of a model of prompt ids stays open. Sets m and config of the model. */
    mar_status (*load)(mar *m, kern_queue *k, const wt_file *f, const struct family_facts *facts, mar_model **out,
                       mar_err *err);
    void (*unload)(mar_model *model); /* called when no session on any thread uses it; NULL is fine */
    /* Describes the backend's arithmetic if it has several: "head: matrix products in bf16". */
    void (*describe)(const mar_model *model, char *text, size_t size);

    /* Creates a generator of up to max_images images at a time on queue k. The queue must outlive it. `params` and
     * `accels`, the accelerators that are on, come from mar_accels_resolve_params. The engine checks the parameters
     * against the model and keeps a copy with automatic values resolved. `vae` is the session's image decoder, or NULL;
     * it outlives the generator. Returns MAR_EMODEL if it does not fit the model. On failure everything is freed and
     * *out is NULL. */
    mar_status (*create)(mar_model *model, const mar_vae *vae, kern_queue *k, const mar_params *params,
                         const mar_accel *const *accels, int max_images, mar_engine_state **out, mar_err *err);
    void (*free)(mar_engine_state *g); /* NULL is fine */
    const mar_params *(*params)(const mar_engine_state *g);
    /* Returns the effect of the session's method; NULL if it follows from the accelerators that are on
     * (mar_accels_effect). */
    const mar_effect *(*effect)(const mar_engine_state *g);
    /* Returns a static warning for the log about something that slows the session down; NULL if there is none. */
    const char *(*warning)(const mar_engine_state *g);
    /* Assigns its working memory, backend memory at base. The memory must outlive it. Returns the size in bytes, a
     * multiple of 256. base NULL only counts. */
    size_t (*lay_out)(mar_engine_state *g, char *base);
    /* Prepares batches of `images` images, so that their steps allocate nothing. */
    mar_status (*plan)(mar_engine_state *g, int images, mar_err *err);
    /* 1: images in progress begin together, since an accelerator keeps a state of the whole batch. All have the
     * session's guidance, and none has known tokens. 0: an image may begin at any step of the others. */
    int (*together)(const mar_engine_state *g);
    /* Returns MAR_EARG if the engine cannot make the image. Shapes and ranges have been checked. */
    mar_status (*check)(const mar_engine_state *g, const mar_image *image, mar_err *err);
    /* Sets the caption in the second branch of guidance, for later images without one (mar_session_set_negative). The
     * numbers have been checked. NULL: the family has no such caption. */
    mar_status (*set_negative)(mar_engine_state *g, const float *features, const uint8_t *mask, mar_err *err);
    /* Begins n images in free slots, host slot [n], in increasing order. The arrays of the images are not used after
     * the call. */
    void (*admit)(mar_engine_state *g, const int *slot, const mar_image *images, int n);
    void (*release)(mar_engine_state *g, int slot); /* frees a slot, also of an unfinished image, also a free one */
    /* Makes one step, or round, of all unfinished images. Not called without one. */
    mar_status (*step)(mar_engine_state *g, mar_err *err);
    int (*steps_left)(const mar_engine_state *g, int slot); /* 0 of a free slot */
    /* Returns MAR_EMODEL if the image has a non-finite token or distribution, by its last step. Waits for the
     * device. */
    mar_status (*examine)(mar_engine_state *g, int slot, mar_err *err);
    /* Copies the image so far: tokens host [seq_len][token_dim], and known host [seq_len], 1: the token is known.
     * Others are 0. Waits for the device. */
    void (*snapshot)(mar_engine_state *g, int slot, float *tokens, uint8_t *known);
    /* Gives a picture's tokens, host [seq_len][token_dim], the norm of drawn ones. NULL: they have none. */
    void (*normalise)(const mar_engine_state *g, float *tokens);
    /* Returns the image decoder's input: backend float [max_images][seq_len][token_dim], by slot. */
    const float *(*latents)(const mar_engine_state *g);
    /* Writes every field but arena_bytes, recorded_bytes, vae_s, vae_flop and total_s. */
    void (*stats)(const mar_engine_state *g, mar_stats *stats);
    /* Measures parts of the model by themselves (mar_session_measure). NULL: it has none. */
    mar_status (*measure)(mar_engine_state *g, mar_measurements *all, mar_err *err);
    /* Implement mar_session_token_status and mar_session_staleness of one image: arrays [seq_len]; map and step may be
     * NULL. */
    void (*token_status)(const mar_engine_state *g, int slot, uint8_t *map, int *step);
    void (*staleness)(const mar_engine_state *g, int slot, int *staleness);
};

/* Returns MAR_EMODEL: nothing gives the number of heads of a model of this width. */
mar_status mar_refuse_heads(const wt_file *f, int width, mar_err *err);
/* Returns MAR_EARG if the draft is another handle's, and MAR_EMODEL if its family, tokens or classes are not the
 * model's. */
mar_status mar_check_draft(const mar_model *model, const mar_model *draft, mar_err *err);
/* Returns MAR_EMODEL if the image decoder does not fit the model's tokens. vae NULL: MAR_OK. */
mar_status mar_check_vae(const mar_model_config *model, const mar_vae *vae, mar_err *err);

/* Returns "NaN" or "infinite" for messages. */
static inline const char *mar_not_finite(float x)
{
    return x != x ? "NaN" : "infinite";
}

/* Writes to text "; the first layer whose output is not finite: z_proj", or how to find it. Returns text. */
enum { MAR_LAYER_TEXT = 256 };
const char *mar_layer_text(const kern_queue *k, char text[MAR_LAYER_TEXT]);

/* Return the columns and rows of an image's tokens. */
static inline int mar_grid_columns(const mar_model_config *config)
{
    return config->grid_width;
}

static inline int mar_grid_rows(const mar_model_config *config)
{
    return config->grid_width ? config->seq_len / config->grid_width : 0;
}

#endif
