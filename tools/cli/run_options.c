#include "tools/cli/run_options.h"

#include "mar_methods.h"

#include "tools/cli/command.h"
#include "base/printable.h"
#include "tools/cli/suggest.h"
#include "tools/cli/text.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const cleanings[] = {[MAR_CLEAN_LLAMAGEN] = "llamagen", [MAR_CLEAN_OFF] = "off", NULL};

static const mar_param rows[] = {
    {.group = "Model",
     OPTION_TEXT(run_options, model, "FILE"),
     .help = "checkpoint: .safetensors, .pth, .pt, folder; or demo, demo-discrete, demo-sphere, demo-t2i, demo-mgpt, "
             "demo-harmon, demo-nextstep\n"
             "Harmon, NextStep-1, Lumina-mGPT, Anole and Emu3 are folders as Hugging Face has them, or what mar "
             "convert has made "
             "of one. "
             "demo (MAR, continuous tokens), demo-discrete (LlamaGen, discrete tokens), demo-sphere (SphereAR), "
             "demo-t2i (LlamaGen, of prompts), demo-mgpt (as Lumina-mGPT), demo-harmon (Harmon) and demo-nextstep "
             "(NextStep-1) come with libmar, as do the drafts demo-draft, demo-discrete-draft, demo-discrete-eagle and "
             "demo-sphere-draft."},
    {OPTION_TEXT(run_options, vae, "FILE"),
     .help =
         "image decoder: .safetensors, .ckpt, a folder; or demo\n"
         "MAR's is kl16.ckpt, or l-DeTok's tokenizer beside its stats.pkl, LlamaGen's vq_ds16_c2i.pt, Lumina-mGPT's "
         "and Anole's Chameleon's vqgan.ckpt, "
         "Emu3's the folder Emu3-VisionTokenizer, NextStep-1's the folder vae in its own. The demo models and "
         "SphereAR's files have their own, and a model's "
         "folder may have one. mar generate needs it for any other model; mar bench and mar fidelity then go without "
         "images."},
    {OPTION_TEXT(run_options, prompt, "TEXT"),
     .help = "what the picture shows, for a text-to-image model\n"
             "May be given up to 32 times. Prompts take the place of classes, those of --prompt before those of "
             "--prompts. One that is blank, no UTF-8 or too long (4096 bytes, 65536 with --clean off) is left out, and "
             "the command ends with status 1. One with more tokens than the model takes is cut, with a warning; "
             "Harmon, NextStep-1, Lumina-mGPT, Anole and Emu3 leave it out, too."},
    {OPTION_TEXT(run_options, prompts, "FILE"),
     .help =
         "a file of prompts; - is standard input\n"
         "One prompt a line; or CSV, TSV, JSON or JSONL with prompt or caption, as DrawBench, PartiPrompts, COCO (of "
         "each image the longest caption) and GenEval have them. The name's ending tells which it is, else the "
         "content (docs/prompts.md)."},
    {OPTION_TEXT(run_options, t5, "DIR"),
     .help =
         "folder that encodes prompts: a T5's, or the model's\n"
         "As Hugging Face has it. Harmon, NextStep-1, Lumina-mGPT, Anole and Emu3 encode prompts themselves: their own "
         "folder as "
         "--model needs no --text, a file that mar convert has made of it needs that folder here. Harmon's files take "
         "the folder of a Qwen2.5, of which only the tokenizer is read. "
         "LlamaGen's is google/flan-t5-xl: config.json, spiece.model, and the weights, in one file or in shards. "
         "Only those of the encoder are read, and freed before the model is loaded. demo-t2i has its own, demo-t5."},
    {OPTION_CHOICE(run_options, clean, cleanings),
     .help = "what happens to a prompt before it is encoded\n"
             "llamagen: LlamaGen's rules. Lower case; web addresses, file names, CJK characters and more are removed. "
             "off: nothing. Prompts of Harmon, NextStep-1, Lumina-mGPT, Anole and Emu3 stay as they are, and llamagen "
             "is an error."},
    {OPTION_TEXT(run_options, negative, "TEXT"), .help = "Emu3, Harmon, NextStep-1: negative prompt\n"
                                                         "Without it the release's own: for Harmon and NextStep-1 the "
                                                         "template around no description. Other models' guidance is "
                                                         "against no prompt."},
    {OPTION_TEXT(run_options, positive, "TEXT"),
     .help =
         "text that is added to each prompt, after a space\n"
         "NextStep-1's release draws with \"masterpiece, film grained, best quality.\". Pictures and records have it "
         "as an entry of its own, beside the prompt as it was given; but not those of --captions, whose file does not "
         "have it."},
    {OPTION_TEXT(run_options, captions, "FILE.npz"),
     .help =
         "features of captions, in place of prompts and their T5\n"
         "What mar captions writes, or T5's output made elsewhere: a .npz with features [captions, positions, numbers] "
         "and, if captions are padded, mask [captions, positions] of 0 and 1; or a .npy with features alone. "
         "The captions take the place of classes, numbered from 0."},
    {OPTION_TEXT(run_options, class_names, "FILE"),
     .help =
         "names of the model's classes, one class a line\n"
         "For a model of your own classes: line 1 has the name of class 0, or several separated by commas. The first "
         "is written to pictures and records. A line is needed for each class; none is a comment. --class takes "
         "the names as it takes ImageNet's; a number is always a class's number."},
    {OPTION_TEXT(run_options, heads, "N"),
     .help = "attention heads, if the file does not say\n"
             "No tensor stores them. A file with the width of an official model has that model's heads. For "
             "another width, give them or let mar convert --heads write them into the file. ENCODER,DECODER is for "
             "a MAR model with two numbers of heads."},
    {.group = "Presets, for speed",
     OPTION_INT(run_options, fast, 1, 3),
     .argument = "LEVEL",
     .help =
         "a measured preset of options, 1 (nearest) to 3 (fastest)\n"
         "Sets --dtype, --sampler and steps that were not given. One line on standard error names them, their "
         "guarantee, and the distance measured on the demo. Level 1 is as near to plain sampling there as "
         "another seed. Discrete tokens have level 1 only: int8. mar fidelity --fast LEVEL --against measures it for "
         "another model and machine."},
    {0},
};

/* Groups of options that every run has: sampling and steps. */
static const char sampling[] = "Sampling", steps[] = "Steps";
/* Group of options that change no output. */
static const char checks[] = "Checks";

int run_param_is_basic(const mar_param *p)
{
    return strcmp(p->group, sampling) == 0 || strcmp(p->group, steps) == 0;
}

int run_param_is_check(const mar_param *p)
{
    return strcmp(p->group, checks) == 0;
}

void run_options_init(run_options *o)
{
    *o = (run_options){.model = "demo", .t5_name = "t5"};
    mar_params_init(&o->params, sizeof o->params);
    mar_options_init(&o->machine, sizeof o->machine);
}

static void copy_group(run_options *to, const run_options *from, const char *group)
{
    char text[256];
    for (int i = 0; i < mar_param_count(); i++) {
        const mar_param *p = mar_param_get(i);
        if (strcmp(p->group, group) == 0)
            mar_param_set(p, &to->params, mar_param_text(p, &from->params, text, sizeof text), NULL, 0);
    }
}

void run_options_inherit(run_options *o, const run_options *first)
{
    run_options_init(o);
    o->model = first->model;
    o->vae = first->vae;
    o->captions = first->captions;
    memcpy(o->prompt, first->prompt, sizeof o->prompt);
    o->prompt_count = first->prompt_count;
    o->prompts = first->prompts;
    o->clean = first->clean;
    o->t5 = first->t5;
    o->t5_name = first->t5_name;
    o->negative = first->negative;
    o->positive = first->positive;
    o->class_names = first->class_names;
    o->heads = first->heads;
    o->machine = first->machine;
    memcpy(o->was_given + mar_param_count(), first->was_given + mar_param_count(), (size_t)mar_option_count());
    copy_group(o, first, sampling);
    copy_group(o, first, checks);
}

void run_options_add(run_options *o, option_set *set)
{
    options_add_table(set, rows, o, 1);
    options_keep_all(set, "prompt", &o->prompt_count, RUN_PROMPTS_MAX);
    for (int i = 0; i < mar_param_count(); i++) {
        const mar_param *p = mar_param_get(i);
        options_add(set, p, p->type == MAR_TYPE_MODEL ? (void *)&o->draft : &o->params, 1);
    }
    for (int i = 0; i < mar_option_count(); i++) options_add(set, mar_option_get(i), &o->machine, 1);
}

void run_options_add_file(run_options *o, option_set *set)
{
    static const char *const names[] = {"seq_len", "patch_size", "weights"};
    options_add_under(set, "Options", run_option("heads"), o);
    for (int i = 0; i < 3; i++) options_add_under(set, "Options", run_option(names[i]), &o->machine);
}

int run_open_file(const run_options *o, mar **library, int *heads)
{
    return run_read_heads(o->heads, heads) != 0 || tool_open_files(&o->machine, library) != 0;
}

/* Returns the library's option at this index of was_given; NULL behind the last. */
static const mar_param *library_option(int at)
{
    return at < mar_param_count() ? mar_param_get(at) : mar_option_get(at - mar_param_count());
}

/* Returns the option's index in was_given; -1 if it is not the library's. */
static int run_options_place_of(const char *name)
{
    for (int i = 0; library_option(i); i++)
        if (strcmp(library_option(i)->name, name) == 0) return i;
    return -1;
}

const mar_param *run_option(const char *name)
{
    for (const mar_param *p = rows; p->name; p++)
        if (strcmp(p->name, name) == 0) return p;
    const int at = run_options_place_of(name);
    return at < 0 ? NULL : library_option(at);
}

int run_was_given(const run_options *o, const char *name)
{
    const int at = run_options_place_of(name);
    return at >= 0 && o->was_given[at];
}

/* Returns whether the option is an accelerator's, and is no draft. */
static int run_is_accelerator(const mar_param *p)
{
    const int at = run_options_place_of(p->name);
    if (at < 0 || at >= mar_param_count() || p->type == MAR_TYPE_MODEL) return 0;
    const mar_param *own = mar_param_get(at); /* p may be a copy under another heading */
    return !run_param_is_basic(own) && !run_param_is_check(own);
}

void run_options_note(run_options *o, const option_set *set)
{
    assert(mar_param_count() + mar_option_count() <= RUN_OPTIONS_MAX);
    const option *clean = options_find(set, "clean"), *t5 = options_find(set, "t5");
    if (t5 && t5->named) o->t5_name = t5->named;
    if (clean && clean->given) o->gives_cleaning = o->clean == MAR_CLEAN_LLAMAGEN;
    for (int k = 0; k < set->count; k++) {
        const option *q = &set->options[k];
        const int at = q->given && q->shared ? run_options_place_of(q->param->name) : -1;
        if (at < 0) continue;
        o->was_given[at] = 1;
        if (run_is_accelerator(q->param)) o->gives_accelerators = 1;
    }
}

int run_draft_decides(const run_options *o)
{
    return o->draft && !o->params.spec && !o->params.head_spec;
}

/* Tells whether a handle with these options is on a GPU. */
static int on_gpu(const mar_options *machine)
{
    return machine->backend == MAR_BACKEND_CUDA || (machine->backend == MAR_BACKEND_AUTO && mar_gpu_count() > 0);
}

mar_options run_machine(const run_options *o)
{
    mar_options machine = o->machine;
    const int is_continuous = o->tokens && strcmp(o->tokens, "continuous") == 0;
    const int is_path = o->params.spec ? strcmp(o->params.spec, "path") == 0 : run_draft_decides(o) && is_continuous;
    const int is_fixed = o->params.gamma > 0 || o->params.context == MAR_CONTEXT_PREFIX;
    if (machine.head_dtype == MAR_DTYPE_AUTO && is_path && is_fixed && !on_gpu(&machine))
        machine.head_dtype = MAR_DTYPE_F32; /* else plain decoding's, which it must not be slower than */
    return machine;
}

/* --- options without effect --------------------------------------------------------------------------------------- */

/* Returns whether a session has left the option automatic: its model has no value for it. */
static int is_lacking(const mar_param *p, const mar_params *used)
{
    char text[4096];
    return run_param_is_basic(p) && strcmp(mar_param_text(p, used, text, sizeof text), "auto") == 0;
}

const char *run_param_unused(const run_options *o, int i)
{
    mar_params p = o->params;
    const char *tokens = mar_param_get(i)->tokens;
    if (tokens && o->tokens && strcmp(tokens, o->tokens) != 0) return "is for other tokens";
    if (o->used.size > 0 && is_lacking(mar_param_get(i), &o->used)) return "is for other models";
    /* The draft's presence is known before it is loaded, and nothing else counts. The address is never dereferenced. */
    p.draft = o->draft ? (mar_model *)&p : NULL;
    return mar_params_unused(&p, i);
}

static const char *machine_unused(const mar_options *machine, const char *name)
{
    const int cuda = machine->backend == MAR_BACKEND_CUDA;
    if (strcmp(name, "device") == 0 && !cuda) return "needs --backend cuda";
    if (strcmp(name, "tuning") == 0 && machine->backend == MAR_BACKEND_CPU) return "has no effect with --backend cpu";
    if (strcmp(name, "int8_below") == 0 && machine->dtype != MAR_DTYPE_INT8) return "needs --dtype int8";
    if (strcmp(name, "threads") == 0 && cuda) return "has no effect with --backend cuda";
    return NULL;
}

/* Reads a number from 1 to 1024, up to `end`. Returns 0 if it is not one. */
static int read_heads(const char *text, const char *end)
{
    char *behind;
    const long n = *text >= '1' && *text <= '9' ? strtol(text, &behind, 10) : 0;
    return n > 0 && n <= 1024 && behind == end ? (int)n : 0;
}

int run_read_heads(const char *text, int *heads)
{
    *heads = 0;
    if (!text) return 0;
    const char *end = text + strlen(text), *comma = strchr(text, ',');
    const int encoder = read_heads(text, comma ? comma : end), decoder = comma ? read_heads(comma + 1, end) : encoder;
    if (!encoder || !decoder)
        return tool_error("--heads %s: expected a number from 1 to 1024, or two, ENCODER,DECODER", text);
    *heads = comma ? mar_heads(encoder, decoder) : encoder;
    return 0;
}

int run_machine_done(const mar_options *machine, const option_set *set)
{
    for (int k = 0; k < set->count; k++) {
        const option *q = &set->options[k];
        const char *why = q->given && q->fields == machine ? machine_unused(machine, q->param->name) : NULL;
        if (why) return tool_error("--%s: %s", q->param->name, why);
    }
    return 0;
}

/* The command line's name of the model itself as draft. */
static const char self[] = "self";

void run_take_costs(run_options *o, const char *round_costs, const char *head_costs)
{
    mar_params *p = &o->params;
    if (round_costs && p->window <= 0 && p->gamma <= 0 && !p->round_costs) {
        snprintf(o->costs, sizeof o->costs, "%s", round_costs);
        p->round_costs = o->costs;
    }
    if (head_costs && p->head_spec < 0 && !p->head_costs) {
        snprintf(o->head_costs, sizeof o->head_costs, "%s", head_costs);
        p->head_costs = o->head_costs;
    }
}

/* Returns a session's text: what was given, or a copy in to [128], because the session's own ends with it. */
static const char *keep_text(const char *text, const char *given, char *to)
{
    if (text && text != given) snprintf(to, 128, "%s", text);
    return text && text != given ? to : text;
}

void run_take_used(run_options *o, const mar_params *used)
{
    run_take_costs(o, used->round_costs, used->head_costs);
    o->used = *used;
    if (used->tree) o->used.tree = o->params.tree; /* the same text */
    o->used.round_costs = keep_text(used->round_costs, o->params.round_costs, o->costs);
    o->used.head_costs = keep_text(used->head_costs, o->params.head_costs, o->head_costs);
}

int run_refuse_self(void)
{
    return tool_error(
        "--draft self: alone it is --spec path, which is for continuous tokens; for discrete ones "
        "expected --spec sjd, sjd-pac or scd beside it, or a file, which every other --spec for them needs: "
        "a smaller model or an EAGLE drafter");
}

/* Replaces "--draft self", an option of the command only. */
static int take_self(run_options *o, const option_set *set)
{
    char text[64];
    const option *q = options_find(set, "spec");
    const mar_param *spec = q && q->given ? q->param : NULL;
    if (!o->draft || strcmp(o->draft, self) != 0) return 0;
    o->draft = NULL;
    o->self_is_path = !spec;
    if (!spec)
        return mar_params_set(&o->params, "spec", "path", text, sizeof text) == MAR_OK ? 0 : tool_error("%s", text);
    for (int i = 0; i < mar_param_count(); i++)
        if (mar_param_get(i) == spec && run_param_unused(o, i))
            return tool_error(
                "--draft self: with it the model drafts for itself, which --spec %s cannot verify; expected "
                "--spec path, sjd, sjd-pac or scd, or a draft model's file",
                mar_param_text(spec, &o->params, text, sizeof text));
    return 0;
}

const char *run_draft(const run_options *o)
{
    if (o->draft) return o->draft;
    return o->params.spec ? self : NULL; /* without a draft model only self-speculation applies */
}

int run_verifies_drafts(const run_options *o)
{
    return o->params.spec || (o->draft && !o->params.head_spec);
}

int run_param_is_named(const mar_param *p, const char *text)
{
    for (int i = 0; p->type == MAR_TYPE_INT && p->choices && p->choices[i]; i++)
        if (strcmp(p->choices[i], text) == 0) return 1;
    return 0;
}

int run_options_done(run_options *o, const option_set *set)
{
    static const char needs_draft[] = "needs --draft";
    const int is_self = o->draft && strcmp(o->draft, self) == 0;
    int heads;
    run_options_note(o, set);
    if (take_self(o, set) != 0 || run_read_heads(o->heads, &heads) != 0) return 1;
    for (int k = 0; k < set->count; k++) {
        const option *q = &set->options[k];
        const char *why = NULL;
        if (!q->given || !q->shared) continue;
        o->given = 1;
        for (int i = 0; i < mar_param_count(); i++)
            if (mar_param_get(i) == q->param) why = run_param_unused(o, i);
        if (why && o->self_is_path && q->param->tokens && strcmp(q->param->tokens, "discrete") == 0)
            return run_refuse_self();
        if (why && is_self && strncmp(why, needs_draft, strlen(needs_draft)) == 0)
            return tool_error("--%s: has no effect with --draft self, expected a draft model's file%s", q->param->name,
                              why + strlen(needs_draft));
        if (why) return tool_error("--%s: %s", q->param->name, why);
    }
    return run_machine_done(&o->machine, set);
}

int run_has_prompts(const run_options *o)
{
    return o->prompt_count > 0 || o->prompts;
}

const char *run_prompts_fault(const run_options *o, int keeps)
{
    const int has = run_has_prompts(o);
    if (o->captions && has) return "--captions: takes the place of --prompt and --prompts, expected one of them";
    const int is_text = strcmp(o->t5_name, "t5") != 0;
    if (o->captions && o->t5)
        return is_text ? "--captions: has features that are encoded already, expected no --text with it"
                       : "--captions: has features that are encoded already, expected no --t5 with it";
    if (o->captions && o->negative)
        return "--captions: has the second context of guidance, expected no --negative with it";
    if (o->negative && !has && !keeps) return "--negative: expected --prompt or --prompts with it";
    if (o->captions && o->positive)
        return "--captions: has prompts that are encoded already, expected no --positive with it";
    if (o->positive && !has && !keeps) return "--positive: expected --prompt or --prompts with it";
    if (o->t5 && !has && !keeps)
        return is_text ? "--text: encodes prompts, expected --prompt or --prompts with it"
                       : "--t5: encodes prompts, expected --prompt or --prompts with it";
    return NULL;
}

/* The built-in models and image decoders. */
static const struct {
    const char *name, *vae; /* vae: image decoder of a model that makes images by itself */
    const char *options;    /* options that a shell completes with the name */
} built_in[] = {{"demo", "demo", "model vae"},
                {"demo-draft", "demo", "draft"},
                {"demo-discrete", "demo-discrete", "model vae"},
                {"demo-discrete-draft", "demo-discrete", "draft"},
                {"demo-discrete-eagle", NULL, "draft"},
                {"demo-sphere", "demo-sphere", "model vae"},
                {"demo-sphere-draft", "demo-sphere", "draft"},
                {"demo-t2i", "demo-discrete", "model"},
                {"demo-mgpt", "demo-mgpt", "model vae"},
                {"demo-harmon", "demo-harmon", "model vae"},
                {"demo-nextstep", "demo-nextstep", "model vae"},
                {"demo-t5", NULL, "t5"},
                {"demo-vae", NULL, ""},
                {"demo-discrete-vq", NULL, ""},
                {"demo-mgpt-vq", NULL, ""}};
enum { BUILT_IN = sizeof built_in / sizeof *built_in };

const char *run_demo_vae(const char *model)
{
    for (int i = 0; i < BUILT_IN; i++)
        if (strcmp(model, built_in[i].name) == 0) return built_in[i].vae;
    return NULL;
}

const char *run_demo_t5(const char *model)
{
    return strcmp(model, "demo-t2i") == 0 ? "demo-t5" : NULL;
}

int run_is_demo(const char *model)
{
    return run_demo_vae(model) != NULL;
}

int run_is_built_in(const char *path)
{
    for (int i = 0; i < BUILT_IN; i++)
        if (strcmp(path, built_in[i].name) == 0) return 1;
    return 0;
}

const char *run_built_in_of(const char *name, int i)
{
    for (int k = 0; k < BUILT_IN; k++)
        if (strstr(built_in[k].options, name) && i-- == 0) return built_in[k].name;
    return i == 0 && strcmp(name, "draft") == 0 ? self : NULL;
}

const char *run_built_in_meant(const char *path)
{
    const char *names[BUILT_IN + 1] = {NULL};
    for (int i = 0; i < BUILT_IN; i++) names[i] = built_in[i].name;
    return run_is_built_in(path) || access(path, F_OK) == 0 ? NULL : suggest_nearest(path, names);
}

/* --- text and records --------------------------------------------------------------------------------------------- */

/* Writes the value of option i in params, given or resolved. Returns text. */
static const char *value_text(const run_options *o, const mar_params *params, int i, char *text, size_t size)
{
    const mar_param *p = mar_param_get(i);
    if (p->type != MAR_TYPE_MODEL) return mar_param_text(p, params, text, size);
    snprintf(text, size, "%s", run_draft(o) ? tool_base_name(run_draft(o)) : "");
    return text;
}

const char *run_param_text(const run_options *o, int i, char *text, size_t size)
{
    return value_text(o, &o->used, i, text, size);
}

int run_is_file(const mar_param *p)
{
    return (p->type == MAR_TYPE_TEXT || p->type == MAR_TYPE_MODEL) && strcmp(p->name, "prompt") != 0 &&
           strcmp(p->name, "negative") != 0 && strcmp(p->name, "positive") != 0;
}

static void add_difference(char *text, size_t size, const mar_param *p, const char *value, const char *base)
{
    char shown[4096];
    if (strcmp(value, base) == 0) return;
    if (!*value || (p->type == MAR_TYPE_FLAG && strcmp(value, "off") == 0))
        text_append(text, size, " no %s", p->name);
    else if (p->type == MAR_TYPE_FLAG)
        text_append(text, size, " --%s", p->name);
    else
        text_append(
            text, size, " --%s %s", p->name,
            printable(p->type == MAR_TYPE_TEXT && run_is_file(p) ? tool_base_name(value) : value, shown, sizeof shown));
}

/* Appends option i if it differs. Options given alike, such as "0: 64", do not differ, whatever they resolve to. Where
 * it has no effect in `base`, what it resolves to there says nothing. */
static void add_param_difference(char *text, size_t size, const run_options *o, const run_options *base, int i)
{
    char value[4096], other[4096];
    const int base_has_session = base->used.size > 0;
    value_text(base, &base->params, i, other, sizeof other);
    if (strcmp(value_text(o, &o->params, i, value, sizeof value), other) == 0) return;
    if (base_has_session && !run_param_unused(base, i)) value_text(base, &base->used, i, other, sizeof other);
    add_difference(text, size, mar_param_get(i), value_text(o, &o->used, i, value, sizeof value), other);
}

const char *run_options_differences(const run_options *o, const run_options *base, char *text, size_t size)
{
    char value[4096], other[4096];
    text[0] = '\0';
    for (const mar_param *p = rows; p->name; p++)
        if (p->offset != offsetof(run_options, fast)) /* its preset is listed below */
            add_difference(text, size, p, mar_param_text(p, o, value, sizeof value),
                           mar_param_text(p, base, other, sizeof other));
    for (int i = 0; i < mar_param_count(); i++)
        if (!run_param_unused(o, i)) add_param_difference(text, size, o, base, i);
    for (int i = 0; i < mar_option_count(); i++)
        add_difference(text, size, mar_option_get(i),
                       mar_param_text(mar_option_get(i), &o->machine, value, sizeof value),
                       mar_param_text(mar_option_get(i), &base->machine, other, sizeof other));
    if (text[0] == ' ') memmove(text, text + 1, strlen(text));
    return text;
}

const char *run_options_accelerators(const run_options *o, char *text, size_t size)
{
    run_options base;
    run_options_inherit(&base, o);
    copy_group(&base, o, steps);
    return run_options_differences(o, &base, text, size);
}

void params_record(const run_options *o, cJSON *object)
{
    char text[4096];
    for (int i = 0; i < mar_param_count(); i++) {
        const mar_param *p = mar_param_get(i);
        if (run_param_unused(o, i)) continue;
        run_param_text(o, i, text, sizeof text);
        const int is_number = p->type == MAR_TYPE_INT || p->type == MAR_TYPE_UINT64 || p->type == MAR_TYPE_FLOAT;
        if (p->type == MAR_TYPE_FLAG)
            cJSON_AddBoolToObject(object, p->name, strcmp(text, "on") == 0);
        else if (is_number && !run_param_is_named(p, text))
            cJSON_AddRawToObject(object, p->name, text); /* raw: cJSON's numbers are doubles, of 53 bits */
        else if (*text)
            cJSON_AddStringToObject(object, p->name, text);
        else
            cJSON_AddNullToObject(object, p->name);
    }
}
