/* The table of a session's options: a field of mar_params and a row here are all that an option needs. Parsing, ranges,
 * --help, the manual, the text of pictures, records and mar_params_set read it. */
#include "mar/api/params.h"

#include "mar/ways/way.h"
#include "specdec/verifier.h"

#include <pthread.h>
#include <string.h>

static const char *const schedules[] = {"linear", "constant", NULL};                    /* mar_cfg_schedule */
static const char *const samplers[] = {"ddpm", "ddim", "dpmpp", NULL};                  /* mar_sampler */
static const char *const annealings[] = {"off", "linear", "cosine", "two-stage", NULL}; /* mar_annealing */
static const char *const contexts[] = {"prefix", "full", "auto", NULL};                 /* mar_context */
static const char *const switches[] = {"off", "on", NULL};
static const char *const automatic[] = {"auto", NULL};                  /* 0 */
static const char *const firsts[] = {"uniform", "left", "above", NULL}; /* mar_first */
static const char *const metrics[] = {"l2", "cosine", NULL};            /* mar_metric */
static const char *const trees[] = {"chain", "static", "dynamic", NULL};
static const char *verifiers[32]; /* filled below */

static const char continuous[] = "continuous", discrete[] = "discrete"; /* kinds of tokens */

#define FIELD(name) #name, .offset = offsetof(mar_params, name)
static mar_param rows[] = {
    {.name = FIELD(num_iter),
     .group = "Steps",
     .type = MAR_TYPE_INT,
     .max = MAR_STEPS_MAX,
     .help = "autoregressive steps; 0: 64, fewer for small images\n"
             "At most the number of tokens in an image. 0 is 64, or that number if it is less; with discrete tokens it "
             "is that number, and no other is possible."},
    {.name = FIELD(num_sampling_steps),
     .tokens = continuous,
     .group = "Steps",
     .type = MAR_TYPE_INT,
     .value = 100,
     .min = 2,
     .max = 1000,
     .help = "diffusion steps that make a token"},
    {.name = FIELD(cfg),
     .group = "Sampling",
     .type = MAR_TYPE_FLOAT,
     .value = 2.9,
     .max = 100,
     .help = "scale of the classifier-free guidance; 1: off\n"
             "The official setting of MAR-B is 2.9, of MAR-L 3.0, of MAR-H 3.2. LlamaGen's is 4 in its demonstration, "
             "with a top_k of 2000, and from 1.5 to 2 in its evaluation; it has no guidance below 1 either."},
    {.name = FIELD(cfg_schedule),
     .tokens = continuous,
     .group = "Sampling",
     .type = MAR_TYPE_CHOICE,
     .choices = schedules,
     .help = "linear: guidance grows as tokens become known\n"
             "linear: the guidance grows with the fraction of the image that is known. constant: it does not."},
    {.name = FIELD(temperature),
     .group = "Sampling",
     .type = MAR_TYPE_FLOAT,
     .value = 1,
     .max = 100,
     .help = "MAR: scales the noise; LlamaGen: divides the logits\n"
             "With discrete tokens it divides the logits, and 0 takes the most likely token each time."},
    {.name = FIELD(seed),
     .group = "Sampling",
     .type = MAR_TYPE_UINT64,
     .help = "the same seed gives the same images\n"
             "An image depends on the model, the options of the run, the seed and its number, and on nothing else: not "
             "on the batch, the number of threads, or the other images."},
    {.name = FIELD(cfg_interval),
     .tokens = discrete,
     .group = "Sampling",
     .type = MAR_TYPE_INT,
     .argument = "LOW,HIGH|N",
     .value = -1,
     .min = -1,
     .max = MAR_STEPS_MAX,
     .help =
         "MAR: guide while a fraction of LOW to HIGH of the tokens is known; LlamaGen: number of the last guided step\n"
         "LlamaGen's steps are counted from 0, which makes an image's second token; the last one is the number of "
         "tokens less 2, and -1, the default, stands for it. For MAR it is two numbers, LOW,HIGH: short for "
         "cfg_low LOW and cfg_high HIGH."},
    {.name = FIELD(top_k),
     .tokens = discrete,
     .group = "Sampling",
     .type = MAR_TYPE_INT,
     .max = 1 << 24,
     .help = "LlamaGen: draw from the k likeliest tokens; 0: from all\n"
             "Tokens as likely as the last of these are kept, too."},
    {.name = FIELD(top_p),
     .tokens = discrete,
     .group = "Sampling",
     .type = MAR_TYPE_FLOAT,
     .value = 1,
     .max = 1,
     .help = "LlamaGen: draw from the likeliest tokens, of probability p together\n"
             "The token with which their probability first reaches top_p is the last one that is kept."},

    {.name = FIELD(head_spec),
     .tokens = continuous,
     .group = "Speculation inside the head, exact",
     .type = MAR_TYPE_INT,
     .max = 64,
     .help = "up to N denoising steps in one call of the head, guessed and verified (exact); 0: off\n"
             "Up to so many denoising steps are proposed from the last prediction and verified by one batched call of "
             "the head. The images follow the same law as without; what changes is how many calls have to wait for one "
             "another. 0 is the plain chain."},

    {.name = FIELD(draft),
     .group = "Speculation across tokens",
     .type = MAR_TYPE_MODEL,
     .argument = "FILE",
     .help =
         "a smaller model, whose tokens the model verifies\n"
         "It has the same tokens and classes, and drafts autoregressive steps for the model to verify. For LlamaGen it "
         "is a smaller LlamaGen model, or an EAGLE drafter that was trained for the model. Its attention "
         "heads are those that its file says. Alone it means spec path in context full, which leaves the law of the "
         "images as it is; of discrete tokens spec vanilla, which does so, too. With head_spec, if no kind of "
         "verification is chosen, its head proposes inside the head instead. self is no file: the model drafts for "
         "itself, and spec is path, if it is not sjd or sjd-pac (a file of that name is ./self)."},
    {.name = FIELD(spec),
     .group = "Speculation across tokens",
     .type = MAR_TYPE_NAME,
     .choices = verifiers,
     .argument = "METHOD",
     .help =
         "how drafts are verified; default path, for LlamaGen vanilla, both exact\n"
         "path, the default with a draft model, verifies the whole path of a token's diffusion steps, and leaves the "
         "law of the images as it is, but that an accepted token is its draft's noiseless mean. In context prefix it "
         "is the law of coarser steps. It needs no draft model: without one, later tokens are drafted from the "
         "conditions that the model's last pass gave for them. With head_spec the paths are drawn by speculation "
         "inside the head. The others verify "
         "a token at one diffusion step and need a draft model: conditional is exact given the context, paper is "
         "the criterion of \"Continuous Speculative Decoding for Autoregressive Image Generation\" (Wang et al.), "
         "and cspd that of the code they released. These are for MAR, "
         "whose tokens are continuous. Those for LlamaGen, whose tokens are discrete, are vanilla, which is exact and "
         "its default with a draft model; uniform-rsd, cool-sd-exp, cool-sd-linear, lantern, lantern-pp and the same "
         "with gstar, which accept more and change the law; and sjd and sjd-pac, which are exact and draft without a "
         "draft model, from the laws of the model's last pass. mar methods says more of each."},
    {.name = FIELD(gamma),
     .group = "Speculation across tokens",
     .type = MAR_TYPE_INT,
     .value = 8,
     .max = MAR_STEPS_MAX,
     .choices = automatic,
     .method = "spec",
     .help =
         "autoregressive steps to draft before verifying\n"
         "Of discrete tokens: a chain's drafts, or how deep a dynamic tree is. They are as many as an image has tokens "
         "at most; 8, the default, stands for that number where it is less. "
         "With spec path auto drafts, for each image, as many as promise most by what was accepted in it so far and by "
         "what a context is assumed to cost on a GPU, at most 16; else it is 8."},
    {.name = FIELD(prefill),
     .tokens = continuous,
     .group = "Speculation across tokens",
     .type = MAR_TYPE_FLOAT,
     .value = 0.05,
     .max = 1,
     .method = "spec",
     .help = "fraction of the steps to make without drafts first\n"
             "Not with spec path, which needs none."},
    {.name = FIELD(context),
     .tokens = continuous,
     .group = "Speculation across tokens",
     .type = MAR_TYPE_CHOICE,
     .value = MAR_CONTEXT_AUTO,
     .choices = contexts,
     .method = "spec",
     .help = "what the model sees when it verifies a block of drafts\n"
             "prefix: the tokens verified so far, in one pass for the whole block (the law of coarser autoregressive "
             "steps). full: each drafted step's own context. auto: full with spec path, prefix with the others. "
             "Without a draft model it is full."},
    {.name = FIELD(align),
     .tokens = continuous,
     .group = "Speculation across tokens",
     .type = MAR_TYPE_CHOICE,
     .value = 1,
     .choices = switches,
     .method = "spec",
     .help = "whether draft and model share all noise\nNot with spec path."},
    {.name = FIELD(inner_temperature),
     .tokens = continuous,
     .group = "Speculation across tokens",
     .type = MAR_TYPE_FLOAT,
     .method = "cspd",
     .help = "cspd: temperature of the deviations in its test"},

    {.name = FIELD(window),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_INT,
     .value = 64,
     .min = 1,
     .max = MAR_STEPS_MAX,
     .method = "sjd|sjd-pac",
     .help = "Jacobi decoding: drafts to verify at a time\nsjd-pac's tree takes its drafts out of them. At most the "
             "number of "
             "tokens in an image, which 64, the default, "
             "stands for where it is less."},
    {.name = FIELD(first),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_CHOICE,
     .choices = firsts,
     .method = "sjd|sjd-pac",
     .help = "Jacobi decoding: the first draft of a token\n"
             "uniform: any, with equal probability. left: the one to its left. above: the one above."},
    {.name = FIELD(pac_children),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_INT,
     .method = "sjd-pac",
     .help = "sjd-pac: drafts of a token in its tree; 1: no tree\n"
             "K of the paper. With 1 there is no proactive drafting."},
    {.name = FIELD(pac_depth),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_INT,
     .method = "sjd-pac",
     .help =
         "sjd-pac: depth of its tree with the root; 1: no tree\n"
         "D of the paper, as its code counts: the root is the token in front of the drafts, so that 3 is two levels "
         "of drafts. They are taken out of the window, as long as that leaves one for the chain behind them. With "
         "0 or 1 there is no proactive drafting."},
    {.name = FIELD(pac_continue),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_CHOICE,
     .value = 1,
     .choices = switches,
     .method = "sjd-pac",
     .help = "sjd-pac: go on verifying behind a rejection\n"
             "The paper's adaptive continuation. off: it stops there, as sjd does."},
    {.name = FIELD(tree),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_TEXT,
     .choices = trees,
     .argument = "N,N...",
     .method = "spec",
     .help = "shape of a block of drafts; N,N...: children by level\n"
             "chain, the default: gamma tokens, one after another. static: the tree of LANTERN++. dynamic: that of "
             "EAGLE-2, whose drafts are the most likely ones, gamma deep. N,N...: a static tree by levels: so many "
             "drafts of the next token, for each of them so many of the one after it, and so on."},
    {.name = FIELD(tree_top),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_INT,
     .value = 10,
     .min = 1,
     .max = 64,
     .method = "tree",
     .help = "dynamic tree: drafts of a level that get children\n"
             "And the children of each that are looked at."},
    {.name = FIELD(tree_total),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_INT,
     .value = 24,
     .min = 1,
     .max = 64,
     .method = "tree",
     .help = "dynamic tree: drafts to verify"},
    {.name = FIELD(cool_delta),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_FLOAT,
     .method = "uniform-rsd|cool-sd-exp|cool-sd-linear",
     .help = "Cool-SD: how far the test is relaxed; 1: not at all\n"
             "The mean of the factors by which the ratio of probabilities is multiplied before a draft is tested."},
    {.name = FIELD(cool_nu),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_FLOAT,
     .method = "cool-sd-exp",
     .help = "Cool-SD: how fast the relaxation falls in a block"},
    {.name = FIELD(cool_ell),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_FLOAT,
     .method = "cool-sd-linear",
     .help = "Cool-SD: draft at which the relaxation reaches zero\n"
             "The number of the draft from which on none would be accepted, counted from 1: more than gamma, or than a "
             "tree is deep."},
    {.name = FIELD(lantern_k),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_INT,
     .max = 1 << 20,
     .choices = automatic,
     .method = "lantern|lantern-pp|lantern-gstar|lantern-pp-gstar",
     .help = "LANTERN: how many near tokens count, the token itself among them\n"
             "auto is 1000, with lantern-pp and lantern-pp-gstar 10, or all tokens of the codebook if they are fewer. "
             "No more "
             "than these can be asked for."},
    {.name = FIELD(lantern_delta),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_FLOAT,
     .method = "lantern|lantern-gstar",
     .help = "LANTERN: how much probability near tokens may add"},
    {.name = FIELD(lantern_lambda),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_FLOAT,
     .method = "lantern-pp|lantern-pp-gstar",
     .help = "LANTERN++: the same, times the token's own"},
    {.name = FIELD(lantern_metric),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_CHOICE,
     .choices = metrics,
     .method = "lantern|lantern-pp|lantern-gstar|lantern-pp-gstar",
     .help = "LANTERN: distance by which tokens are near\n"
             "l2 is the Euclidean distance, cosine one minus the cosine of the angle."},

    {.name = FIELD(sampler),
     .tokens = continuous,
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_CHOICE,
     .choices = samplers,
     .help =
         "how the head draws: its own chain, or an ODE solver\n"
         "ddpm is the model's own chain, ddim is DDIM, dpmpp is DPM-Solver++ of second order. The latter two draw no "
         "noise and need a temperature of 1."},
    {.name = FIELD(diff_annealing),
     .tokens = continuous,
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_CHOICE,
     .choices = annealings,
     .help = "DiSA: fewer diffusion steps for later tokens\n"
             "The number of diffusion steps falls over the autoregressive steps from diff_upper_steps to "
             "diff_lower_steps, in place of num_sampling_steps."},
    {.name = FIELD(diff_upper_steps),
     .tokens = continuous,
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_INT,
     .value = 50,
     .min = 2,
     .max = 1000,
     .method = "diff_annealing",
     .help = "DiSA: diffusion steps at the first step"},
    {.name = FIELD(diff_lower_steps),
     .tokens = continuous,
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_INT,
     .value = 5,
     .min = 2,
     .max = 1000,
     .method = "diff_annealing",
     .help = "DiSA: diffusion steps at the last step"},
    {.name = FIELD(cfg_low),
     .tokens = continuous,
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_FLOAT,
     .max = 1,
     .help = "MAR: no guidance below this fraction of known tokens\n"
             "With cfg_high it is an interval, both ends included. Autoregressive steps before which a smaller or a "
             "larger fraction of the image's tokens is known have no guidance, and so half the arithmetic. "
             "cfg_interval LOW,HIGH gives both."},
    {.name = FIELD(cfg_high),
     .tokens = continuous,
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_FLOAT,
     .value = 1,
     .max = 1,
     .help = "MAR: no guidance above this fraction of known tokens"},
    {.name = FIELD(lazy),
     .tokens = continuous,
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_FLAG,
     .help = "LazyMAR: the transformer reuses tokens and conditions\nBoth are kept in caches from step to step."},
    {.name = FIELD(lazy_head),
     .tokens = continuous,
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_FLAG,
     .help = "LazyMAR's code: the head reuses 6 of 7 steps\n"
             "Six of seven steps reuse what the head's blocks gave, as the released code does besides LazyMAR's "
             "caches."},
    {.name = FIELD(gtr),
     .tokens = continuous,
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_FLAG,
     .help = "GtR: make half of the tokens slowly, the rest fast\n"
             "First one colour of a checkerboard of tokens in gtr_generation_steps, then the other in "
             "gtr_reconstruction_steps, which take the place of num_iter; more diffusion steps where the image has "
             "detail."},
    {.name = FIELD(gtr_generation_steps),
     .tokens = continuous,
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_INT,
     .value = 16,
     .min = 1,
     .max = MAR_STEPS_MAX,
     .method = "gtr",
     .help = "GtR: autoregressive steps of the first half"},
    {.name = FIELD(gtr_reconstruction_steps),
     .tokens = continuous,
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_INT,
     .value = 1,
     .min = 1,
     .max = MAR_STEPS_MAX,
     .method = "gtr",
     .help = "GtR: autoregressive steps of the second half"},
    {.name = FIELD(gtr_detail),
     .tokens = continuous,
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_FLOAT,
     .value = 0.3,
     .max = 1,
     .method = "gtr",
     .help = "GtR: fraction of that half with num_sampling_steps\n"
             "They are the tokens of the second half where the image has most detail."},
    {.name = FIELD(gtr_sampling_steps),
     .tokens = continuous,
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_INT,
     .max = 1000,
     .method = "gtr",
     .help = "GtR: diffusion steps of the rest; 0: 50 or fewer\n"
             "From 2 to num_sampling_steps; 0 is 50, or num_sampling_steps if that is less."},

    {.name = FIELD(check),
     .group = "Checks",
     .type = MAR_TYPE_FLAG,
     .help = "say which layer made a NaN or an infinity\n"
             "A run whose tokens or pixels are not finite (NaN, or infinite) fails in any case. This looks at every "
             "layer's output, and the message names the first that is not finite, as the checkpoint does. It takes "
             "longer; the output is the same, to the bit."},
};
#undef FIELD
enum { ROWS = sizeof rows / sizeof *rows };

int mar_is_listed(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = list; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strncmp(at, name, n) == 0 && (at[n] == '|' || at[n] == '\0')) return 1;
    return 0;
}

/* The parameter's name alone, or behind a word and an underscore. */
static int is_parameter(const mar_param *o, const char *method, const char *parameter)
{
    const size_t length = strlen(o->name), n = strlen(parameter);
    return mar_is_listed(o->method, method) && length >= n && strcmp(o->name + length - n, parameter) == 0 &&
           (length == n || o->name[length - n - 1] == '_');
}

/* A number, which has no automatic value, takes default and range from the registry. */
static void take_range(mar_param *o, const spec_parameter *p)
{
    if (o->choices) return;
    o->value = p->value, o->min = p->min, o->max = p->max;
}

/* What the registry of verifiers knows of its methods and their parameters is not written here again. */
static void fill(void)
{
    int n = 0;
    for (const spec_method *const *m = spec_methods(); *m; m++) {
        if (n + 1 < (int)(sizeof verifiers / sizeof *verifiers)) verifiers[n++] = (*m)->name;
        for (const spec_parameter *p = (*m)->parameters; p->name; p++)
            for (int i = 0; i < ROWS; i++)
                if (is_parameter(&rows[i], (*m)->name, p->name)) take_range(&rows[i], p);
    }
}

static const mar_param *table(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill);
    return rows;
}

int mar_param_count(void)
{
    return ROWS;
}

const mar_param *mar_param_get(int i)
{
    return i >= 0 && i < ROWS ? table() + i : NULL;
}

const mar_param *mar_param_find(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].name, name) == 0) return table() + i;
    return NULL;
}

const mar_param *mar_param_of_method(const char *method, const char *parameter)
{
    for (int i = 0; i < ROWS; i++)
        if (is_parameter(table() + i, method, parameter)) return table() + i;
    return NULL;
}
