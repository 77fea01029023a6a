/* --fast: sets the options of a preset (mar_preset).
 *
 * A preset sets only options that the command line has not given. The arithmetic is set before the library is opened.
 * The rest follows when the model is loaded: it depends on the kind of tokens and their number. models_load does
 * both. */
#ifndef TOOLS_FAST_H
#define TOOLS_FAST_H

#include "mar.h"
#include "tools/cli/run_options.h"

/* Sets the arithmetic of o->fast in o->machine, before the library is opened. Does nothing without --fast. */
void fast_set_machine(run_options *o);
/* Sets the rest of o->fast in o->params, when the model is loaded. An accelerator that conflicts with those given is
 * left out. vae may be NULL. Does nothing without --fast. Returns 0, or 1 after printing that memory ran out. */
int fast_set_params(run_options *o, mar_model *model, mar_vae *vae);

/* Writes the options that o->fast set, after fast_set_params: "fast 2: --dtype int8 --num_iter 16 (approximate; ...)".
 * Returns text. */
const char *fast_describe(const run_options *o, char *text, size_t size);

#endif
