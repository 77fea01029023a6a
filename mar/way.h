/* The ways to be faster. A way is one file in mar/ways and one line in mar/ways.c. It says which stages of generation
 * it changes and which it needs plain: two ways conflict if one changes what the other changes or needs plain. From
 * that come the conflicts' messages, mar_method_get and the guarantee of a session. */
#ifndef MAR_WAY_H
#define MAR_WAY_H

#include "base/error.h"

/* Stages of generation, from the whole to the part. */
typedef enum {
    MAR_STAGE_AR_STEPS = 1 << 0, /* how many tokens each autoregressive step predicts, and which */
    MAR_STAGE_DRAFT = 1 << 1,    /* a second model at work beside the target */
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

typedef struct mar_way {
    const char *name;              /* of the option that turns it on, by any value but its default */
    unsigned changes, needs;       /* mar_stage: those it changes, and those it needs plain */
    int exact;                     /* the law of the output stays the target's */
    const char *replaces;          /* an option that has no effect with it, or NULL */
    const char *in_place;          /* the options that are there in its place, in words */
    const mar_way_method *methods; /* ends with a NULL name; NULL: verifiers, which have a registry of their own */
} mar_way;

/* Ends with NULL. */
const mar_way *const *mar_ways(void);
/* Whether the way is on; params as mar_ways_resolve leaves them. */
int mar_way_is_on(const mar_way *way, const mar_params *params);
/* Fills in what an option's automatic value stands for. */
void mar_ways_resolve(mar_params *params);
/* MAR_EARG, naming two ways that are on and do not go together, if there are any. */
mar_status mar_ways_check(const mar_params *params, mar_err *err);

#endif
