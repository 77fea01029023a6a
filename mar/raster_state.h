/* A session in raster order (mar/raster.c), and what its heads share. Private to the files mar/raster*.c. */
#ifndef MAR_RASTER_STATE_H
#define MAR_RASTER_STATE_H

#include "mar/raster_options.h"
#include "mar/slots.h"
#include "nets/causal_runner.h"

typedef struct mar_raster mar_raster;

/* What a head does in the loop. The functions that may fail clean up nothing: free follows. */
typedef struct {
    /* Resolves params to g->plan. Returns MAR_EARG for options that the head lacks. */
    mar_status (*resolve)(mar_raster *g, const mar_params *params, mar_err *err);
    /* Creates g->target and the state of the head. `accels` are on. */
    mar_status (*create)(mar_raster *g, const mar_vae *vae, const mar_accel *const *accels, mar_err *err);
    void (*free)(mar_raster *g);
    /* Lays out its memory and that of the images' tokens, in g->slots. */
    size_t (*lay_out)(mar_raster *g, char *base);
    mar_status (*plan)(mar_raster *g, int images, mar_err *err);
    int (*together)(const mar_raster *g); /* NULL: each image goes at its own pace */
    mar_status (*check)(const mar_raster *g, const mar_image *image, mar_err *err); /* NULL: nothing to check */
    /* Sets a caption in the second branch of a draft model. NULL: nothing to do. */
    void (*set_negative)(mar_raster *g, const float *features, const uint8_t *mask);
    void (*begin)(mar_raster *g); /* clears the statistics */
    /* Places an image, whose slot has begun; its start has all but the given tokens. */
    void (*place)(mar_raster *g, int slot, const mar_image *image, causal_start *start);
    /* Goes on where the runner has started n images: with drafts' models, given tokens. */
    void (*admit)(mar_raster *g, const int *slot, const mar_image *images, int n);
    /* Draws tokens of every unfinished image, one or a round's, and makes them known. */
    mar_status (*step)(mar_raster *g, mar_err *err);
    void (*release)(mar_raster *g, int slot); /* NULL: nothing to do */
    void (*read)(mar_raster *g, int slot);    /* brings the slot up to date; NULL: it always is */
    const mar_effect *(*effect)(const mar_raster *g);
    const char *(*warning)(const mar_raster *g); /* NULL: none */
    void (*stats)(const mar_raster *g, mar_stats *stats);
    mar_status (*measure)(mar_raster *g, mar_measurements *all, mar_err *err); /* NULL: nothing to measure */
} raster_head;

extern const raster_head raster_softmax_head, raster_diffusion_head;

struct mar_raster {
    const mar_raster_model *model;
    const raster_head *head;
    kern_queue *k; /* the session's */
    raster_plan plan;
    int max_images, branches; /* branches: sequences of an image, at most: 2 with guidance */
    mar_slots slots;
    causal_runner *target;
    causal_start *start; /* [max_images] the images that begin */
    /* host [caption_tokens][caption_dim] of 0, a caption to measure, and its mask behind; NULL before the first */
    float *zero;
    float *negative;  /* host [caption_tokens] ids of the second branch's prompt, and their mask behind */
    int has_negative; /* 1: it is set */
    struct raster_softmax *softmax;
    struct raster_diffusion *diffusion; /* one of them is not NULL */
};

/* Returns the tokens that an image lacks; 0 of a free slot and of an image that has failed. */
int raster_left(const mar_raster *g, int slot);
/* Creates g->target, for requests of up to `drafts` drafts. */
mar_status raster_create_target(mar_raster *g, const causal_sampling *sampling, int drafts, int keep, mar_err *err);

#endif
