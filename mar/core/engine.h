/* A model family is one engine: a table of these functions and a line in mar/api/models.c. The session
 * (mar/api/session.c) calls engines through the table only. */
#ifndef MAR_ENGINE_H
#define MAR_ENGINE_H

#include "mar/core/handle.h"
#include "mar/core/measure.h"
#include "weights/weights.h"

typedef struct mar_engine mar_engine;

/* What every family's model begins with. Nothing in a model changes after it is loaded but the count of references, so
 * any number of sessions use it on any threads. */
struct mar_model {
    mar *m; /* which the model holds a reference on */
    const mar_engine *engine;
    mar_model_config config;
    atomic_int references; /* mar_model_load's, and one for each session */
};

void mar_model_retain(mar_model *model);

typedef struct mar_engine_state mar_engine_state; /* a family's part of a session */
typedef struct mar_accel mar_accel;               /* mar/masked/way.h */
enum { MAR_ACCELS_MAX = 16 };                     /* ways that can be on at a time */

struct mar_engine {
    const char *name;   /* "mar" */
    const char *tokens; /* "continuous" or "discrete": the options that have an effect (mar_param.tokens) */

    mar_kind kind; /* of its checkpoints */
    /* Loads a model on queue k, which the caller lets finish; the file may be closed afterwards. It sets m and config
     * of the model. */
    mar_status (*load)(mar *m, kern_queue *k, const wt_file *f, int heads, mar_model **out, mar_err *err);
    void (*unload)(mar_model *model); /* when no session uses it any more, on any thread. NULL is fine */
    /* How the backend computes it, where there is more than one way: "head: matrix products in bf16". */
    void (*describe)(const mar_model *model, char *text, size_t size);

    /* Makes a generator of up to max_images images at a time on queue k, which must outlive it. `params` and `ways`,
     * the ways that are on, are mar_accels_resolve_params's. The engine checks the parameters against the model and
     * keeps a copy, with automatic values filled in. `vae` is the session's image decoder, which outlives the
     * generator, or NULL. MAR_EMODEL if it does not fit the model. On failure everything is freed and *out is NULL. */
    mar_status (*create)(mar_model *model, const mar_vae *vae, kern_queue *k, const mar_params *params,
                         const mar_accel *const *ways, int max_images, mar_engine_state **out, mar_err *err);
    void (*free)(mar_engine_state *g); /* NULL is fine */
    const mar_params *(*params)(const mar_engine_state *g);
    /* The session's guarantee; "" if it follows from the ways that are on (mar_accels_describe). */
    const char *(*guarantee)(const mar_engine_state *g);
    /* A warning for the log, static, of something that makes the session slower than it need be; NULL: none. */
    const char *(*warning)(const mar_engine_state *g);
    /* Gives it its working memory in backend memory at base, which must outlive it, and returns the bytes it takes, a
     * multiple of 256; base NULL only counts. */
    size_t (*lay_out)(mar_engine_state *g, char *base);
    /* Prepares batches of so many images, so that their steps allocate nothing. */
    mar_status (*plan)(mar_engine_state *g, int images, mar_err *err);
    /* Starts images first_image.. with labels host [images], -1 for unconditional. Of a model of captions, which has no
     * labels, it starts any images, to be measured. */
    void (*begin)(mar_engine_state *g, uint64_t first_image, const int *labels, int images);
    /* The same of captions (mar_session_begin_captions); NULL in a family without. */
    void (*begin_captions)(mar_engine_state *g, uint64_t first_image, const float *features, const uint8_t *mask,
                           int images);
    mar_status (*step)(mar_engine_state *g, mar_err *err); /* not called when no step is left */
    int (*steps_left)(const mar_engine_state *g);
    /* What the image decoder is given: backend float [images][seq_len][token_dim]. */
    const float *(*latents)(const mar_engine_state *g);
    /* Writes every field but arena_bytes, recorded_bytes, vae_s, vae_flop and total_s. */
    void (*stats)(const mar_engine_state *g, mar_stats *stats);
    /* Measures parts of the model by themselves (mar_session_measure); NULL if there are none. */
    mar_status (*measure)(mar_engine_state *g, mar_measurements *all, mar_err *err);
    /* mar_session_fates: arrays [images * seq_len]. */
    void (*fates)(const mar_engine_state *g, uint8_t *map, int *step);
    /* mar_session_lateness: array [images * seq_len]. */
    void (*lateness)(const mar_engine_state *g, int *late);
};

/* MAR_EMODEL: nothing says the number of heads of a model of this width. */
mar_status mar_refuse_heads(const wt_file *f, int width, mar_err *err);
/* MAR_EMODEL if the image decoder does not go with the model's tokens; NULL: there is none. */
mar_status mar_check_vae(const mar_model_config *model, const mar_vae *vae, mar_err *err);

/* For messages about numbers that are not finite. */
static inline const char *mar_not_finite(float x)
{
    return x != x ? "NaN" : "infinite";
}

/* "; the first layer whose output is not finite: z_proj", or how to learn that, to text, which it returns. */
enum { MAR_LAYER_TEXT = 256 };
const char *mar_layer_text(const kern_queue *k, char text[MAR_LAYER_TEXT]);

/* Tokens a side: seq_len is a square. */
static inline int mar_grid_side(const mar_model_config *config)
{
    int side = 0;
    while (side * side < config->seq_len) side++;
    return side;
}

#endif
