/* The options that define a run, shared by the subcommands that generate: mar_params, mar_options, and the files. The
 * library's tables describe them. */
#ifndef TOOLS_RUN_OPTIONS_H
#define TOOLS_RUN_OPTIONS_H

#include "mar.h"
#include "mar_methods.h"
#include "tools/cli/options.h"

#include <stdint.h>

typedef struct cJSON cJSON;

enum {
    RUN_OPTIONS_MAX = 96, /* options of mar_params and mar_options together */
    RUN_PROMPTS_MAX = 32  /* values of --prompt */
};

typedef struct {
    const char *model, *vae;             /* as given; vae may be NULL */
    const char *draft;                   /* file as given; NULL: none. run_options_done removes "self" */
    const char *captions;                /* file of captions' features, for text-to-image models; NULL: none */
    const char *prompt[RUN_PROMPTS_MAX]; /* [prompt_count] as given, unchecked */
    int prompt_count;                    /* values of --prompt */
    int clean;                           /* mar_clean of the prompts */
    int gives_cleaning;                  /* 1: the command line has --clean llamagen; the default alone is 0 */
    const char *prompts;                 /* file of prompts; NULL: none */
    const char *t5_name;                 /* "t5" or "text", as the option was given, for messages; static */
    const char *t5;           /* folder of the prompts' encoder, or of the model itself; NULL: the demo's, or none */
    const char *negative;     /* negative prompt; NULL: the model's own, or none */
    const char *positive;     /* added to each prompt, after a space; NULL: nothing */
    const char *class_names;  /* file of the classes' names; NULL: ImageNet's, for models of its classes */
    int self_is_path;         /* 1: --draft self was given without --spec, and spec is path */
    const char *heads;        /* as given; NULL: the file's */
    mar_params params;        /* as given; models_load sets draft, run_take_costs the costs */
    char costs[128];          /* text of round_costs, unless it is given; at most 127 bytes from a session */
    char head_costs[128];     /* text of head_costs, likewise */
    mar_params used;          /* resolved by the session, 64 for num_iter 0; run_take_used sets it */
    mar_options machine;      /* as given */
    const char *tokens;       /* kind of the model's tokens, as in mar_param; NULL until models_load */
    int given;                /* 1: the command line has a run option */
    int fast;                 /* level of --fast (tools/generate/fast.h); 0: none */
    const mar_preset *preset; /* that of the level; NULL until models_load, or without one */
    unsigned fast_set;        /* bit i: option i of the preset was set; models_load sets it */
    int reported_fast;        /* 1: models_load has reported the preset, or must not */
    int gives_accelerators;   /* 1: an option was given that is neither basic sampling nor a draft */
    uint8_t was_given[RUN_OPTIONS_MAX]; /* 1: given; the library's options, mar_params before mar_options */
} run_options;

/* Sets the defaults: the demo model, and the library's. */
void run_options_init(run_options *o);
/* Sets the defaults, then copies model, machine and the groups "Sampling" and "Checks" from `first`, and which of these
 * were given. */
void run_options_inherit(run_options *o, const run_options *first);
/* Adds the options to a set before it is parsed. */
void run_options_add(run_options *o, option_set *set);
/* Adds only those about a checkpoint, for commands that read one and make no run: heads, seq_len, patch_size and
 * weights, under the heading "Options". */
void run_options_add_file(run_options *o, option_set *set);
/* Opens the library with these, to read files. Sets *heads for mar_inspect and mar_convert. Returns 0, or 1 with the
 * error printed. */
int run_open_file(const run_options *o, mar **library, int *heads);
/* Notes which options of `set` were given, and keeps earlier notes. run_options_done does this, too. */
void run_options_note(run_options *o, const option_set *set);
/* Returns whether the library's option of that name was given. */
int run_was_given(const run_options *o, const char *name);
/* Returns the library's option of that name, or "model", "vae", "captions" or another of a run's files; NULL if there
 * is none. */
const mar_param *run_option(const char *name);
/* Sets *heads for mar_model_load from the text, "12" or "12,16"; 0 for NULL. Returns 0, or 1 with the error printed. */
int run_read_heads(const char *text, int *heads);
/* Completes the options after parsing. "--draft self" becomes no draft model and, without another --spec, --spec path.
 * An option without effect is an error. Returns 0, or 1 with the error printed. */
int run_options_done(run_options *o, const option_set *set);

/* Sets --round_costs and --head_costs to the texts, unless these or what they choose are given: --window or --gamma,
 * and a number of --head_spec. NULL: nothing to do. */
void run_take_costs(run_options *o, const char *round_costs, const char *head_costs);
/* Sets o->used, which stays valid without the session, and the costs as run_take_costs does. */
void run_take_used(run_options *o, const mar_params *used);

/* Prints that --draft self needs --spec for discrete tokens. Returns 1. */
int run_refuse_self(void);

/* Does the part of run_options_done for the options of `set` that are fields of *machine. */
int run_machine_done(const mar_options *machine, const option_set *set);

/* Returns the draft across tokens or inside the head: a file as given; "self" if the model drafts for itself; NULL
 * without a draft. */
const char *run_draft(const run_options *o);
/* Returns whether drafted tokens are verified, and so have a status; 0 for a draft inside the head. */
int run_verifies_drafts(const run_options *o);

/* Returns whether the draft alone decides the method: path for continuous tokens, vanilla for discrete ones. */
int run_draft_decides(const run_options *o);

/* Returns the options to open the library with: `machine`, on a CPU with an f32 head for criterion path if its
 * arithmetic is auto. A GPU's f16 suits that criterion. If the draft decides the method, o->tokens must be known. */
mar_options run_machine(const run_options *o);

/* Returns whether the run has prompts. */
int run_has_prompts(const run_options *o);
/* Returns why the options about prompts and captions contradict each other, one line; NULL if they do not. `keeps`: the
 * command takes prompts later, so that a T5 needs none. */
const char *run_prompts_fault(const run_options *o, int keeps);

/* Returns the T5 of a built-in model; NULL for a file or another built-in one. */
const char *run_demo_t5(const char *model);
/* Returns the image decoder of a built-in model; NULL for a file or a drafter. */
const char *run_demo_vae(const char *model);
/* Returns whether it is a built-in model with its image decoder. */
int run_is_demo(const char *model);
/* Returns whether it is a built-in model or image decoder, not a file. */
int run_is_built_in(const char *path);

/* Returns number i, from 0, of the built-in names that suit the option of that name, "model", "vae" or "draft"; NULL
 * after the last, and for other options. "self" is one for draft. */
const char *run_built_in_of(const char *name, int i);

/* Returns the built-in model that a name without a file probably means, as for "Demo"; NULL if there is none. */
const char *run_built_in_meant(const char *path);

/* Returns whether the text is a name among the number's values, such as "auto". */
int run_param_is_named(const mar_param *p, const char *text);
/* Returns whether the option is of the group "Sampling" or "Steps". */
int run_param_is_basic(const mar_param *p);
/* Returns whether the option is of the group "Checks", whose options change no output and stay out of pictures. */
int run_param_is_check(const mar_param *p);
/* Returns whether the option's value is a file: one of type TEXT or MODEL but the prompts. */
int run_is_file(const mar_param *p);
/* Returns why option i of mar_param_get has no effect in this run, as mar_params_unused; NULL if it has one. After
 * models_load it also considers the model's kind of tokens. */
const char *run_param_unused(const run_options *o, int i);
/* Writes the session's value of option i, a file by its base name. Returns text. Call it after models_session. */
const char *run_param_text(const run_options *o, int i, char *text, size_t size);

/* Writes the options that differ from those of `base`, as given and, if both have a session, as used. They are spelled
 * as on the command line, a file by its base name, "no gtr" for an option that is off: "--head_spec 8". Writes "" if
 * none differ. Returns text. Call it after models_session of `o`. */
const char *run_options_differences(const run_options *o, const run_options *base, char *text, size_t size);
/* Writes the options that make the run faster than plain sampling in as many steps, in the same form. Returns text. */
const char *run_options_accelerators(const run_options *o, char *text, size_t size);

/* Adds every option of mar_params that has an effect. Numbers are numbers, flags booleans; choices, named values and
 * the draft's file name are strings; unset ones are null. Call it after models_session. */
void params_record(const run_options *o, cJSON *object);

#endif
