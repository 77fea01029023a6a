/* The accelerators. An accelerator is one file in mar/accel and one line in mar/accel/registry.c (docs/adding.md). It
 * says which stages of generation it changes and which it needs plain. Two accelerators conflict if one changes a stage
 * that the other changes or needs plain. The messages of conflicts, mar_method_get and a session's guarantee follow
 * from that. */
#ifndef MAR_ACCEL_H
#define MAR_ACCEL_H

#include "mar/core/engine.h"
#include "mar/masked_runner.h"

/* Stages of generation, from the whole to the part. */
typedef enum {
    MAR_STAGE_AR_STEPS = 1 << 0, /* number and choice of the tokens that each autoregressive step predicts */
    MAR_STAGE_DRAFT = 1 << 1,    /* a second model beside the target; plain: none */
    MAR_STAGE_PASSES = 1 << 2,   /* the transformer passes that compute z */
    MAR_STAGE_COUNTS = 1 << 3,   /* diffusion steps of a step's tokens */
    MAR_STAGE_SOLVER = 1 << 4,   /* a diffusion step's use of the head's output */
    MAR_STAGE_CHAIN = 1 << 5,    /* order and batching of a token's diffusion steps */
    MAR_STAGE_HEAD = 1 << 6,     /* computation inside an evaluation of the head */
} mar_stage;

/* The entry of an accelerator in `mar methods`. */
enum { MAR_GAMMA_AUTO = 8 }; /* value of --gamma auto, except with --spec path */

typedef struct {
    const char *name;  /* "disa" */
    const char *value; /* the option's value that turns it on, if it is one of several: "ddim"; else NULL */
    /* As in mar_method_info, but the guarantee of an exact method is what limits it (specdec/verifier.h). */
    const char *guarantee, *source, *summary;
} mar_accel_method;

/* An option of an accelerator's option (mar_param.method) that has no effect with this accelerator. */
typedef struct {
    const char *option;
    const char *needs; /* the option with which it does have an effect; NULL: none */
} mar_accel_exception;

/* The masked engine at work, whose stages the hooks change (mar/masked.h). */
typedef struct mar_masked mar_masked;

struct mar_accel {
    /* Option that turns it on, by any value but its default. Accelerators may share an option, whose values is_on
     * divides among them. */
    const char *name;
    const char *also; /* second option that turns it on, or NULL */
    /* Its name in the guarantee, if it changes the distribution; NULL: name, and the value if it is one of several. */
    const char *change;
    unsigned changes;     /* mar_stage: stages it changes */
    unsigned needs;       /* mar_stage: stages it needs plain; no other accelerator may change them */
    const char *asks_for; /* option without which it cannot be on, or NULL */
    /* Option with which resolve turns it on, unless another accelerator of its own option is on; or NULL. */
    const char *default_with;
    const char *default_without; /* option that suppresses default_with, or NULL */
    int together;                /* 1: keeps a state of the whole batch, so that its images begin together */
    int exact;                   /* 1: preserves the distribution of plain sampling */
    const char *exact_by;        /* reason, for the guarantee: "speculation inside the head"; NULL: not mentioned */
    const char *replaces;        /* option that has no effect with it, or NULL */
    const char *in_place;        /* options that replace that one, in words */
    const char *tokens;          /* "continuous" or "discrete", if its option is for both kinds of tokens; else NULL */
    int for_spherear;            /* 1: the engine of SphereAR models has it, too */
    const mar_accel_method *methods;       /* ends with a NULL name; NULL: none of its own */
    const mar_accel_exception *exceptions; /* ends with a NULL option; NULL: none */
    /* Returns whether it is on, if being given is not enough. Called only if its option is not at its default. */
    int (*is_on)(const mar_params *p);

    /* Hooks of the masked engine (mar/masked.h), but for is_on and resolve. A missing hook is NULL. `state` is
     * what create stored. An accelerator with draw has plan_draw, one with a state has destroy. */

    /* Fills in the automatic values of its options. Called whether it is on or not. */
    void (*resolve)(mar_params *p);
    /* Returns MAR_EARG if its options do not suit the model or one another. Their ranges have been checked. It may
     * lower a value to what the model has. */
    mar_status (*check)(const mar_masked_model *model, mar_params *p, mar_err *err);
    /* Returns MAR_EARG for an image that it cannot make. */
    mar_status (*check_image)(const mar_image *image, mar_err *err);
    /* Changes the plan steps[num_iter], made for the plain stages. g has no runner, lists or states yet. */
    void (*plan_steps)(const mar_masked *g, mar_step *steps);
    /* Changes the chain that draws tokens in spec->steps diffusion steps. */
    void (*respace)(const mar_params *p, diff_spec *spec);
    /* Returns the maximum autoregressive steps whose tokens one call of the head draws. Without the hook: 1. */
    int (*block_steps)(const mar_params *p);
    /* Creates its state, with g->target in place, and installs what it changes there. */
    mar_status (*create)(mar_masked *g, void **state, mar_err *err);
    void (*destroy)(void *state);
    size_t (*lay_out)(void *state, char *base); /* as diff_chain_lay_out */
    /* Prepares batches of `images` images and frees what was recorded for other sizes. */
    mar_status (*plan)(void *state, int images, mar_err *err);
    /* Prepares draws of `tokens` tokens in `steps` diffusion steps. The target's chain already uses that number. */
    mar_status (*plan_draw)(void *state, int tokens, int steps, mar_err *err);
    /* Begins a batch. g->images and g->label are set. */
    void (*begin)(void *state);
    /* Changes the random order [seq_len] of an image's tokens. */
    void (*order)(void *state, int *order);
    /* Sorts the tokens that a step with `detailed` tokens predicts in g->order, the detailed ones to the end. */
    void (*select)(void *state, const mar_step *step);
    /* Draws tokens to x [count][token_dim] in `steps` diffusion steps. Their z begins at row z of the target's z.
     * Without the hook the chain draws them. */
    void (*draw)(void *state, const mar_draw *d, int z, int steps, float *x);
    /* Notes that the step's n tokens, g->sampled, are known to the target. */
    void (*add_known_tokens)(void *state, int n);
    /* Takes one step or several in place of mar_masked_step. */
    mar_status (*step)(void *state, mar_err *err);
    /* Adds its statistics. */
    void (*stats)(const void *state, mar_stats *stats);
    /* Writes the effect in place of the one that follows from `exact`, unless another accelerator changes the
     * distribution. */
    void (*effect)(const void *state, mar_effect *effect);
    /* Returns a static note for the log on how it fits the model; NULL: none. */
    const char *(*warn)(const void *state);
};

#endif
