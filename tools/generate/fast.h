/* --fast: which ways to be faster a level stands for, and what was measured of them. The table in fast.c is the only
 * place that knows.
 *
 * A recipe sets only options that the command line has not given. The arithmetic is set before the library is opened,
 * the rest when the model is there: the kind of its tokens and their number decide. models_load does both. */
#ifndef TOOLS_FAST_H
#define TOOLS_FAST_H

#include "mar.h"
#include "tools/cli/run_options.h"

enum { FAST_LEVELS = 3 };

/* Whether --dtype int8 works with these options on this machine; asked once for each backend. */
int fast_has_int8(const mar_options *machine);

/* Before the library is opened: the arithmetic of o->fast, in o->machine. Without --fast nothing. */
void fast_set_machine(run_options *o);
/* When the model is loaded: the rest of o->fast, in o->params. A way that does not go together with those that were
 * given is left out. vae may be NULL. Without --fast nothing. Returns 0, or 1 after printing that memory ran out. */
int fast_set_params(run_options *o, mar_model *model, mar_vae *vae);

/* What o->fast came to, after fast_set_params: "fast 2: --dtype int8 --num_iter 16 (approximate; ...)". Returns text.
 */
const char *fast_describe(const run_options *o, char *text, size_t size);

#endif
