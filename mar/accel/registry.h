/* The registry of accelerators: their conflicts, options that are used, and the effect on the distribution. */
#ifndef MAR_REGISTRY_H
#define MAR_REGISTRY_H

#include "mar/core/engine.h"

/* The accelerators that are on, in the order of the registry; ends with NULL. */
typedef struct {
    const mar_accel *on[MAR_ACCELS_MAX + 1];
} mar_accels_on;

/* Fills in automatic values of the parameters for an engine's tokens. Lists the accelerators that are on. Returns
 * MAR_EARG, naming the options, if one is for other tokens, one changes a stage that the engine leaves plain, two
 * accelerators conflict, or a verifier lacks its draft. */
mar_status mar_accels_resolve_params(mar_params *params, const mar_engine *engine, mar_accels_on *out, mar_err *err);

/* Returns all accelerators; ends with NULL. */
const mar_accel *const *mar_accels(void);
/* Returns the accelerator that a verifier, a value of its option, turns on; NULL if there is none. */
const mar_accel *mar_accel_of_verifier(const char *verifier);
/* Returns whether an accelerator is on. params are as mar_accels_resolve leaves them. */
int mar_accel_is_on(const mar_accel *accel, const mar_params *params);
/* Fills in the automatic values of the accelerators' options for such tokens, "continuous" or "discrete". */
void mar_accels_resolve(mar_params *params, const char *tokens);
/* Returns MAR_EARG, naming both, if two accelerators that are on conflict. */
mar_status mar_accels_check(const mar_params *params, mar_err *err);
/* Writes the effect of the accelerators that are on. */
void mar_accels_effect(const mar_params *params, mar_effect *out);

#endif
