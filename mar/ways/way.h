/* The ways to be faster. A way is one file in mar/ways and one line in mar/ways/ways.c (docs/adding.md). It says which
 * stages of generation it changes and which it needs plain: two ways conflict if one changes what the other changes or
 * needs plain. From that come the conflicts' messages, mar_method_get and the guarantee of a session. */
#ifndef MAR_WAY_H
#define MAR_WAY_H

#include "mar/masked/runner.h"

/* Stages of generation, from the whole to the part. */
typedef enum {
    MAR_STAGE_AR_STEPS = 1 << 0, /* how many tokens each autoregressive step predicts, and which */
    MAR_STAGE_DRAFT = 1 << 1,    /* a second model at work beside the target; plain: none */
    MAR_STAGE_PASSES = 1 << 2,   /* the transformer passes that make z */
    MAR_STAGE_COUNTS = 1 << 3,   /* how many diffusion steps the tokens of a step get */
    MAR_STAGE_SOLVER = 1 << 4,   /* what a diffusion step does with the head's output */
    MAR_STAGE_CHAIN = 1 << 5,    /* in which order, and how many at a time, a token's diffusion steps are evaluated */
    MAR_STAGE_HEAD = 1 << 6,     /* what an evaluation of the head computes */
} mar_stage;

/* What `mar methods` says of a way. */
typedef struct {
    const char *name;  /* "disa" */
    const char *value; /* of the option that turns it on, if it is one of several: "ddim"; else NULL */
    const char *guarantee, *source, *summary; /* as in mar_method_info */
} mar_way_method;

/* An option that asks for a way's option (mar_param.method) and yet has no effect with this one of its ways. */
typedef struct {
    const char *option;
    const char *needs; /* the option with which it has one after all; NULL: with none */
} mar_way_exception;

typedef struct mar_masked
    mar_masked; /* mar/masked/masked.h: the masked engine at work, whose stages the hooks change */

typedef struct {
    const char *name;              /* of the option that turns it on, by any value but its default. Several ways may
                                    * have one option, whose values is_on divides among them */
    const char *also;              /* a second option that turns it on as well, or NULL */
    const char *change;            /* what the guarantee calls what it does to the law; NULL: name, and the value where
                                    * it is one of several */
    unsigned changes;              /* the stages it changes: mar_stage */
    unsigned needs;                /* the stages it needs plain, which no other way may change: mar_stage */
    const char *asks_for;          /* the option without which it cannot be on, or NULL */
    const char *default_with;      /* option with which resolve turns it on, unless another way of its own option is
                                    * on; or NULL */
    const char *default_without;   /* option that suppresses default_with, or NULL */
    int exact;                     /* 1: the law of the output stays the target's */
    const char *exact_by;          /* how, for the guarantee: "speculation inside the head"; NULL: not worth saying */
    const char *replaces;          /* an option that has no effect with it, or NULL */
    const char *in_place;          /* the options that take the place of that one, in words */
    const char *tokens;            /* "continuous" or "discrete": the kind of tokens it is for, if its option is for
                                    * both; NULL: as the option */
    const mar_way_method *methods; /* ends with a NULL name; NULL: none of its own */
    const mar_way_exception *exceptions; /* ends with a NULL option; NULL: none */
    /* Whether it is on, where it does not suffice that the option is given. Called if the option is not at its
     * default; all others may be. */
    int (*is_on)(const mar_params *p);

    /* Hooks, of the masked engine (mar/masked/masked.h) but for is_on and resolve. A way without one leaves it NULL.
     * `state` is what create stored. A way with draw has plan_draw, one with a state has destroy. */

    /* Fills in what the automatic values of its options stand for. Called whether the way is on or not. */
    void (*resolve)(mar_params *p);
    /* MAR_EARG if its options do not suit the model or one another. Their ranges have been checked. It may lower a
     * value to what the model has. */
    mar_status (*check)(const mar_masked_model *model, mar_params *p, mar_err *err);
    /* Changes the plan steps[num_iter], made for the plain stages. g has no runner, lists or states yet. */
    void (*plan_steps)(const mar_masked *g, mar_step *steps);
    /* Changes the chain that draws tokens in spec->steps diffusion steps. */
    void (*respace)(const mar_params *p, diff_spec *spec);
    /* The most autoregressive steps whose tokens one call of the head draws. Without the hook: 1. */
    int (*block_steps)(const mar_params *p);
    /* Makes its state, with g->target in place, and installs what it changes there. */
    mar_status (*create)(mar_masked *g, void **state, mar_err *err);
    void (*destroy)(void *state);
    size_t (*lay_out)(void *state, char *base); /* as diff_chain_lay_out */
    /* Prepares batches of `images` images and frees what was recorded for other sizes. */
    mar_status (*plan)(void *state, int images, mar_err *err);
    /* Prepares draws of `tokens` tokens in `steps` diffusion steps. The target's chain already uses that number. */
    mar_status (*plan_draw)(void *state, int tokens, int steps, mar_err *err);
    /* A batch begins. g->images and g->label are set. */
    void (*begin)(void *state);
    /* Changes the random order [seq_len] of an image's tokens. */
    void (*order)(void *state, int *order);
    /* Before a step with `detailed` tokens: sorts those it predicts in g->order, the detailed ones to the end. */
    void (*select)(void *state, const mar_step *step);
    /* Draws the tokens of rows first.. of the lists to x [count][token_dim], in `steps` diffusion steps. Without the
     * hook: by the chain. */
    void (*draw)(void *state, const mar_draw *d, int first, int steps, float *x);
    /* The target has learnt the step's n tokens, g->sampled. */
    void (*learn)(void *state, int n);
    /* Takes one step or several in place of mar_masked_step. */
    mar_status (*step)(void *state, mar_err *err);
    /* Adds the way's statistics. */
    void (*stats)(const void *state, mar_stats *stats);
    /* Writes the session's guarantee, in place of what follows from `exact`, unless another way changes the law. */
    void (*describe)(const void *state, char *text, size_t size);
    /* What the user should know of how it fits the model, static, for the log; NULL: nothing. */
    const char *(*warn)(const void *state);
} mar_way;

/* Ends with NULL. */
const mar_way *const *mar_ways(void);
/* The way that a verifier, a value of its option, turns on; NULL: there is none. */
const mar_way *mar_way_of_verifier(const char *verifier);
/* Whether the way is on; params as mar_ways_resolve leaves them. */
int mar_way_is_on(const mar_way *way, const mar_params *params);
/* Fills in what automatic values of the ways' options stand for with such tokens, "continuous" or "discrete". */
void mar_ways_resolve(mar_params *params, const char *tokens);
/* MAR_EARG, naming an option that is given and is not for such tokens, if there is one. The functions below assume that
 * there is none. */
mar_status mar_ways_check_tokens(const mar_params *params, const char *tokens, mar_err *err);
/* MAR_EARG, naming two ways that are on and do not go together, if there are any. */
mar_status mar_ways_check(const mar_params *params, mar_err *err);
/* What the ways that are on make of the output's law, in one line. */
void mar_ways_describe(const mar_params *params, char *text, size_t size);

#endif
