/* The options of a library handle (mar/core/handle_options.c) and of a session (mar/core/params.c), as mar.h shows
 * them, and internal functions. */
#ifndef MAR_PARAMS_H
#define MAR_PARAMS_H

#include "mar/core/option.h"

enum { MAR_STEPS_MAX = 65536 }; /* maximum autoregressive steps: the tokens of the largest image */

/* Returns the option of that name; NULL if there is none. */
const mar_param *mar_param_find(const char *name);
/* Returns whether a name is in a list such as "lantern|lantern-gstar" (mar_param.method). A NULL list is empty. */
int mar_is_listed(const char *list, const char *name);
/* Returns the option for a verifier's parameter; NULL if there is none. It has the parameter's name, or ends in "_" and
 * that name and asks for that verifier. */
const mar_param *mar_param_of_method(const char *method, const char *parameter);

/* Copies params of this or an older mar.h (mar_params.size) to *out and checks every option's range. Missing fields get
 * their defaults. Names in *out are static strings of the registry, not the caller's. Returns MAR_EARG, naming the
 * option or the size, on failure. */
mar_status mar_params_read(const mar_params *params, mar_params *out, mar_err *err);
/* Returns MAR_EARG, naming the option, for an option of models of another kind. */
mar_status mar_params_suit(const mar_params *params, const mar_model_config *model, mar_err *err);
/* Replaces automatic values that are the model's own: num_iter, num_sampling_steps, time_shift, cfg, cfg_schedule and
 * token_norm. */
void mar_params_take_defaults(mar_params *params, const mar_model_config *model);

#endif
