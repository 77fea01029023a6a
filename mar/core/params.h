/* The options of a library handle (mar/core/handle_options.c) and of a session (mar/core/params.c): what mar.h says of
 * them, and what the library needs besides. */
#ifndef MAR_PARAMS_H
#define MAR_PARAMS_H

#include "mar/core/option.h"

enum { MAR_STEPS_MAX = 65536 }; /* autoregressive steps: the tokens of the largest image a model could make */

/* NULL if there is none of that name. */
const mar_param *mar_param_find(const char *name);
/* Whether a name is in a list, "lantern|lantern-gstar", as mar_param.method is one; NULL has none. */
int mar_is_listed(const char *list, const char *name);
/* The option that is a verifier's parameter: that of this name, or of one that ends in "_" and this name, which asks
 * for that verifier. NULL if it is none. */
const mar_param *mar_param_of_method(const char *method, const char *parameter);

/* Copies params of this or an older mar.h (mar_params.size) to *out, whose missing fields are at their defaults, and
 * checks every option's range. Names in *out are the registry's own static strings, not the caller's. MAR_EARG, naming
 * the option or the size, otherwise. */
mar_status mar_params_read(const mar_params *params, mar_params *out, mar_err *err);

#endif
