/* The accelerators. An accelerator is a part of a file in mar/accel and one line in mar/accel/registry.c
 * (docs/adding.md). It says which stages of generation it changes and which it needs plain. Two accelerators conflict
 * if one changes a stage that the other changes or needs plain. An engine lets accelerators change some stages
 * (mar_engine.stages), and refuses the others. The messages of refusals, mar_method_get and a session's guarantee
 * follow from that. A missing hook is NULL. */
#ifndef MAR_ACCEL_H
#define MAR_ACCEL_H

#include "diffusion/speculate.h"
#include "mar/core/engine.h"

enum { MAR_GAMMA_AUTO = 8 }; /* value of --gamma auto, except with --spec path */

/* The entry of an accelerator in `mar methods`. */
typedef struct {
    const char *name;  /* "disa" */
    const char *value; /* the option's value that turns it on, if it is one of several: "ddim"; else NULL */
    /* As in mar_method_info; of a method exact to p, the guarantee is its condition (specdec/verifier.h). */
    const char *guarantee, *source, *summary;
} mar_accel_method;

/* An option of an accelerator's option (mar_param.method) that has no effect with this accelerator. */
typedef struct {
    const char *option;
    const char *needs; /* the option with which it does have an effect; NULL: none */
} mar_accel_exception;

typedef struct mar_step mar_step;                 /* mar/masked_runner.h */
typedef struct mar_masked_hooks mar_masked_hooks; /* mar/masked.h */

/* The drawing of tokens in any loop, as an accelerator of stage CHAIN has it. */
typedef struct {
    mar_params *params; /* the session's */
    int max_images;
    diff_chain *chain; /* of the target's head */
    diff_chain *draft; /* of the draft model's head; NULL: there is no draft model */
    mar_stats *stats;
    double *head_flop; /* arithmetic of the target's head */
} mar_chain_stage;

/* Hooks of an accelerator of stage CHAIN, for any loop. `state` is what create stored, and destroy frees. */
typedef struct {
    mar_status (*create)(const mar_chain_stage *stage, void **state, mar_err *err);
    void (*destroy)(void *state);
    size_t (*lay_out)(void *state, char *base); /* as diff_chain_lay_out */
    /* Prepares draws of `tokens` tokens with the diffusion steps and the guidance that the chains use now. */
    mar_status (*plan)(void *state, int tokens, mar_err *err);
    /* Begins an image whose tokens' plain chains have at least `steps` steps, one after another. */
    void (*begin)(void *state, int slot, int steps);
    /* Draws tokens to x [count][token_dim] in place of the chain, and adds its statistics. */
    void (*draw)(void *state, const diff_tokens *tokens, float *x);
    void (*stats)(const void *state, mar_stats *sum); /* adds what draw does not; head_s is there */
} mar_chain_hooks;

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
    const mar_accel_method *methods;       /* ends with a NULL name; NULL: none of its own */
    const mar_accel_exception *exceptions; /* ends with a NULL option; NULL: none */
    /* Returns whether it is on, if being given is not enough. Called only if its option is not at its default. */
    int (*is_on)(const mar_params *p);

    /* Fills in the automatic values of its options. Called whether it is on or not. */
    void (*resolve)(mar_params *p);
    /* Returns MAR_EARG if its options do not suit the model or one another. Their ranges have been checked. It may
     * lower a value to the model's. */
    mar_status (*check)(const mar_model *model, mar_params *p, mar_err *err);
    /* Returns MAR_EARG for an image that it cannot make. */
    mar_status (*check_image)(const mar_image *image, mar_err *err);
    /* Stage AR_STEPS: changes the plan steps[num_iter], made for the plain stages. */
    void (*plan_steps)(const mar_model_config *model, const mar_params *p, mar_step *steps);
    /* Stage COUNTS: returns the diffusion steps of the tokens of step i, 0 .. p->num_iter-1, in any loop. */
    int (*sampling_steps)(const mar_params *p, int i);
    /* Stages COUNTS and SOLVER: changes the chain that draws tokens in spec->steps diffusion steps. */
    void (*respace)(const mar_params *p, diff_spec *spec);
    /* Returns the maximum autoregressive steps whose tokens one call of the head draws. Without the hook: 1. */
    int (*block_steps)(const mar_params *p);
    const mar_chain_hooks *chain;   /* stage CHAIN: draws tokens; NULL: the chain */
    const mar_masked_hooks *masked; /* in the loop over sets of tokens; NULL: none but the above */
};

#endif
