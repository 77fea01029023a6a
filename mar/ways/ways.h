/* The registry of ways, and what follows from it: which go together, which options have an effect, the guarantee. */
#ifndef MAR_WAYS_H
#define MAR_WAYS_H

#include "mar/core/engine.h"

/* The ways that are on, in the order of the registry; ends with NULL. */
typedef struct {
    const mar_way *on[MAR_WAYS_MAX + 1];
} mar_ways_on;

/* Fills in automatic values of the parameters for such tokens, "continuous" or "discrete", and lists the ways that are
 * on. MAR_EARG, naming the options, if one is not for such tokens, if two ways conflict, or if a verifier lacks its
 * draft. */
mar_status mar_ways_settle(mar_params *params, const char *tokens, mar_ways_on *out, mar_err *err);

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
