/* The registry of ways, and what follows from it: which go together, which options have an effect, the guarantee. */
#ifndef MAR_WAYS_H
#define MAR_WAYS_H

#include "mar/core/engine.h"

/* The ways that are on, in the order of the registry; ends with NULL. */
typedef struct {
    const mar_accel *on[MAR_ACCELS_MAX + 1];
} mar_accels_on;

/* Fills in automatic values of the parameters for such tokens, "continuous" or "discrete", and lists the ways that are
 * on. MAR_EARG, naming the options, if one is not for such tokens, if two ways conflict, or if a verifier lacks its
 * draft. */
mar_status mar_accels_resolve_params(mar_params *params, const char *tokens, mar_accels_on *out, mar_err *err);

/* Ends with NULL. */
const mar_accel *const *mar_accels(void);
/* Returns the accelerator that a verifier, a value of its option, turns on; NULL if there is none. */
const mar_accel *mar_accel_of_verifier(const char *verifier);
/* Tells whether an accelerator is on. params are as mar_accels_resolve leaves them. */
int mar_accel_is_on(const mar_accel *way, const mar_params *params);
/* Fills in the automatic values of the accelerators' options for such tokens, "continuous" or "discrete". */
void mar_accels_resolve(mar_params *params, const char *tokens);
/* Returns MAR_EARG, naming the option, if one that is not for such tokens is given. The functions below assume that
 * none is. */
mar_status mar_accels_check_tokens(const mar_params *params, const char *tokens, mar_err *err);
/* Returns MAR_EARG, naming both, if two accelerators that are on conflict. */
mar_status mar_accels_check(const mar_params *params, mar_err *err);
/* Describes in one line the law of the output under the accelerators that are on. */
void mar_accels_describe(const mar_params *params, char *text, size_t size);

#endif
