/* The options that define a run of the model, shared by the subcommands that generate. */
#ifndef TOOLS_RUN_OPTIONS_H
#define TOOLS_RUN_OPTIONS_H

#include "mar.h"
#include "tools/options.h"

enum { RUN_OPTIONS_MAX = 40 };

typedef struct {
    const char *model, *vae, *draft;                           /* as given; vae and draft may be NULL */
    mar_params params;                                         /* params.draft is set by models_load */
    int backend, device, dtype, threads, heads;                /* 0: the default */
    int cfg_schedule, sampler, diff_annealing, context, align; /* choices, moved to params by run_options_done */
    uint64_t given;                                            /* for option_set.given */
} run_options;

/* Defaults: the demo model, guidance 2.9. */
void run_options_init(run_options *o);
/* Fills `list`, which ends with a NULL name, for option_set.shared; o->given goes with it. */
void run_options_list(run_options *o, option list[RUN_OPTIONS_MAX]);
/* After parsing: choices into params; an option that would have no effect is an error. Returns 0, or 1 with the error
 * printed. */
int run_options_done(run_options *o);

int run_is_demo(const char *model);
/* num_iter 0 becomes the default, min(64, tokens); one beyond the tokens is an error. With gtr it is what gtr plans. */
int run_resolve_num_iter(run_options *o, const mar_model *model);

/* The options that differ from the defaults of plain sampling, as the command line spells them, but a file by its base
 * name: "--head_spec 8". "" if none. Returns text. */
const char *run_options_text(const run_options *o, char *text, size_t size);

#endif
