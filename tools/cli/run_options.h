/* The options that define a run of the model, shared by the subcommands that generate: mar_params, mar_options, and the
 * files. Everything about them comes from the library's tables. */
#ifndef TOOLS_RUN_OPTIONS_H
#define TOOLS_RUN_OPTIONS_H

#include "mar.h"
#include "tools/cli/options.h"

#include <stdint.h>
#include <stdio.h>

typedef struct cJSON cJSON;

enum { RUN_OPTIONS_MAX = 96 }; /* those of mar_params and mar_options together */

typedef struct {
    const char *model, *vae; /* as given; vae may be NULL */
    const char *draft;       /* as given, a file; NULL: none, as after "self", which run_options_done takes out */
    const char *captions;    /* a file of captions' features, for text-to-image models; NULL: none */
    int self_is_path;        /* 1: --draft self was given without --spec, and spec is path for it */
    const char *heads;       /* as given; NULL: the file's */
    mar_params params;       /* as given. models_load sets draft */
    mar_params used;         /* those that the session uses, 64 for num_iter 0; models_session sets it */
    mar_options machine;     /* as given */
    const char *tokens;      /* the kind of the model's tokens, as in mar_param; NULL until models_load */
    int given;               /* 1: at least one run option was on the command line */
    int fast;                /* level of --fast (tools/generate/fast.h); 0: none */
    unsigned fast_set;       /* bit i: option i of its recipe was set. models_load sets it */
    int said_fast;           /* 1: models_load has said what it is, or shall not */
    int gives_ways;          /* 1: an option was given that is no basic one of sampling, and no draft */
    uint8_t was_given[RUN_OPTIONS_MAX]; /* the library's options that were given: those of mar_params, then of
                                           mar_options */
} run_options;

/* Defaults: the demo model, and the library's. */
void run_options_init(run_options *o);
/* Sets defaults, then copies model, machine and the groups "Sampling" and "Checks" from `first`, and which of these
 * were given. */
void run_options_inherit(run_options *o, const run_options *first);
/* Adds them to a set that is to be parsed. */
void run_options_add(run_options *o, option_set *set);
/* Writes the manual's list of them, as mdoc. */
void run_options_manual(FILE *out);
/* Notes which options of `set` were given; those noted before stay so. run_options_done does this, too. */
void run_options_note(run_options *o, const option_set *set);
/* Whether the library's option of that name was given. */
int run_was_given(const run_options *o, const char *name);
/* The library's option of that name, or "model", "vae", "captions" or "heads". */
const mar_param *run_option(const char *name);
/* *heads = what mar_model_load takes for the text, "12" or "12,16"; 0 for NULL. Returns 0, or 1 after printing an
 * error.
 */
int run_read_heads(const char *text, int *heads);
/* After parsing: "--draft self" becomes no draft model and, unless there is another, --spec path. An option that would
 * have no effect is an error. Returns 0, or 1 with the error printed. */
int run_options_done(run_options *o, const option_set *set);

/* Says that --draft self without --spec is not for discrete tokens, and what is. Returns 1. */
int run_refuse_self(void);

/* The part of it for the library's options alone: those of `set` that are fields of *machine. */
int run_machine_done(const mar_options *machine, const option_set *set);

/* What drafts across tokens, or inside the head: a file as given; "self" if the model does so for itself; NULL. */
const char *run_draft(const run_options *o);
/* Whether drafted tokens are verified, and so have fates; false of a draft inside the head. */
int run_verifies_drafts(const run_options *o);

/* Whether the method follows from the draft alone: path for continuous tokens, vanilla for discrete ones. */
int run_draft_decides(const run_options *o);

/* What the run's library is opened with: `machine`, and with criterion path a head in f32 if its arithmetic is auto.
 * Where the draft decides on the method, o->tokens must be known. */
mar_options run_machine(const run_options *o);

/* The image decoder that a built-in model brings; NULL: it is a file, or a drafter, which makes no images. */
const char *run_demo_vae(const char *model);
/* Whether it is a built-in model, which brings its image decoder. */
int run_is_demo(const char *model);
/* Whether it is any of the library's built-in models, image decoders included, and no file. */
int run_is_built_in(const char *path);

/* The built-in model that a name, which is no file's, is probably meant as: "Demo"; NULL: none. */
const char *run_built_in_meant(const char *path);

/* Whether the text is the name of a number's value, such as "auto". */
int run_param_is_named(const mar_param *p, const char *text);
/* Whether it is of the group "Sampling" or "Steps". */
int run_param_is_basic(const mar_param *p);
/* Whether it is of the group "Checks", whose options change no output, so that no picture says that they were on. */
int run_param_is_check(const mar_param *p);
/* Whether it is one of the library's ways to be faster, or belongs to one, and is no draft. */
int run_is_way(const mar_param *p);
/* Why option i of mar_param_get has no effect in this run, as mar_params_unused; after models_load also if it is not
 * for the model's kind of tokens. */
const char *run_param_unused(const run_options *o, int i);
/* The value that the session uses for option i, a file by its base name. Returns text. After models_session. */
const char *run_param_text(const run_options *o, int i, char *text, size_t size);

/* The options that were given otherwise than in `base`, and that the sessions use otherwise if both have one: as the
 * command line spells them, but a file by its base name, and "no gtr" for what is off: "--head_spec 8". "" if there are
 * none. Returns text. After models_session of `o`. */
const char *run_options_differences(const run_options *o, const run_options *base, char *text, size_t size);
/* The options that make the run faster than plain sampling in as many steps, in the same way. */
const char *run_options_ways(const run_options *o, char *text, size_t size);

/* Adds every option of mar_params that has an effect: numbers as numbers, flags as true or false, choices, values that
 * have names, and the draft's file name as strings, null for what is not set. After models_session. */
void params_record(const run_options *o, cJSON *object);

#endif
