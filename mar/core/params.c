/* The table of a session's options. An option is a field of mar_params and a row here. Parsing, ranges, --help, the
 * manual, the text of pictures, records and mar_params_set read it. */
#include "mar/core/params.h"

#include "specdec/verifier.h"

#include <pthread.h>
#include <string.h>

static const char *const schedules[] = {"linear", "constant", "auto", NULL};            /* mar_cfg_schedule */
static const char *const samplers[] = {"ddpm", "ddim", "dpmpp", NULL};                  /* mar_sampler */
static const char *const annealings[] = {"off", "linear", "cosine", "two-stage", NULL}; /* mar_annealing */
static const char *const contexts[] = {"prefix", "full", "auto", NULL};                 /* mar_context */
static const char *const switches[] = {"off", "on", NULL};
static const char *const automatic[] = {"auto", NULL};                  /* the minimum */
static const char *const standards[] = {"standard", "auto", NULL};      /* -1 and 0 */
static const char *const norms[] = {"auto", "on", "off", NULL};         /* mar_params.token_norm */
static const char *const firsts[] = {"uniform", "left", "above", NULL}; /* mar_first */
static const char *const metrics[] = {"l2", "cosine", NULL};            /* mar_metric */
static const char *const caches[] = {"auto", "bf16", "int8", NULL};     /* mar_cache */
static const char *const trees[] = {"chain", "static", "dynamic", NULL};
static const char *verifiers[32]; /* filled in below */

static const char continuous[] = "continuous", discrete[] = "discrete"; /* kinds of tokens */

#define FIELD(name) #name, .size = sizeof(mar_param), .offset = offsetof(mar_params, name)
static mar_param rows[] = {
    {.name = FIELD(num_iter),
     .group = "Steps",
     .type = MAR_TYPE_INT,
     .max = MAR_STEPS_MAX,
     .help = "autoregressive steps; 0: the model's own, 64 for MAR\n"
             "At most the number of tokens in an image. 0 is the model's default, which mar inspect prints: for MAR "
             "and Harmon 64, for UniPic-1 32, or that number if it is less. Models of raster order take exactly that "
             "number."},
    {.name = FIELD(num_sampling_steps),
     .tokens = continuous,
     .group = "Steps",
     .type = MAR_TYPE_INT,
     .max = 1000,
     .help = "diffusion steps for each token; 0: the model's own\n"
             "2 or more. SphereAR: noisy steps of the flow; one without noise follows. NextStep-1: all steps, the last "
             "one included, so 3 or more. 0 is the model's default, which mar inspect prints: 50 for NextStep-1, 28 "
             "for 1.1, else 100."},
    {.name = FIELD(time_shift),
     .tokens = continuous,
     .group = "Steps",
     .type = MAR_TYPE_FLOAT,
     .max = 100,
     .choices = automatic,
     .help = "SphereAR, NextStep-1: shift of the flow's time; 1: none\n"
             "S makes t / (S - (S - 1) t) of the time t of each step, so that with S above 1 more steps are near the "
             "noise. A last step without noise keeps its length of 0.04. auto is the model's default, 1."},
    {.name = FIELD(cfg),
     .group = "Sampling",
     .type = MAR_TYPE_FLOAT,
     .value = -1,
     .min = -1,
     .max = 100,
     .choices = automatic,
     .help =
         "scale of classifier-free guidance; 1: off\n"
         "auto is the model's default, which mar inspect prints: 4.6 for SphereAR, 3 for Harmon and UniPic-1, 7.5 "
         "for NextStep-1, 2.9 for others; a demo may have its own. The official values are 2.9 for MAR-B, 3.0 for "
         "MAR-L and 3.2 for MAR-H, 3.9 "
         "for MAR-B and 3.4 for MAR-L on l-DeTok, 4.5 for SphereAR-B, 4.6 for SphereAR-L and 4.5 for SphereAR-H. "
         "LlamaGen's demo uses 4 "
         "with a --top_k of 2000, its evaluation 1.5 to 2. Lumina-mGPT, Anole and Emu3 use 3. Values below 1 also turn "
         "the guidance of models other than MAR off."},
    {.name = FIELD(cfg_schedule),
     .tokens = continuous,
     .group = "Sampling",
     .type = MAR_TYPE_CHOICE,
     .value = MAR_CFG_AUTO,
     .choices = schedules,
     .help =
         "linear: guidance grows as tokens become known\n"
         "linear: guidance grows with the known fraction of the image; with NextStep-1 it falls from the scale to 1. "
         "constant: it stays the same. auto: the model's default, which mar inspect prints; constant for Harmon, "
         "UniPic-1 and NextStep-1, else linear."},
    {.name = FIELD(token_norm),
     .tokens = continuous,
     .group = "Sampling",
     .type = MAR_TYPE_CHOICE,
     .choices = norms,
     .help = "NextStep-1: tokens get mean 0 and variance 1 once drawn\n"
             "off leaves tokens as they are drawn. auto is the model's default, which mar inspect prints."},
    {.name = FIELD(temperature),
     .group = "Sampling",
     .type = MAR_TYPE_FLOAT,
     .value = 1,
     .max = 100,
     .help = "scales the noise; discrete tokens: divides the logits\n"
             "Discrete tokens are those of LlamaGen, Lumina-mGPT, Anole and Emu3. With them, 0 takes the most likely "
             "token each time."},
    {.name = FIELD(seed),
     .group = "Sampling",
     .type = MAR_TYPE_UINT64,
     .help = "the same seed gives the same images\n"
             "An image depends on the model, the options of the run, the seed and its number. It does not depend "
             "on the batch, the number of threads or the other images. For mar generate, random draws a seed from "
             "the system; the summary, the pictures and --json have it."},
    {.name = FIELD(cfg_interval),
     .tokens = discrete,
     .group = "Sampling",
     .type = MAR_TYPE_INT,
     .argument = "LOW,HIGH|N",
     .value = -1,
     .min = -1,
     .max = MAR_STEPS_MAX,
     .help = "MAR, SphereAR: guidance while a fraction LOW to HIGH of the tokens is known; others: last guided step\n"
             "Models of discrete tokens count steps from 0, which makes an image's second token. The last one is the "
             "number of "
             "tokens less 2; -1, the default, stands for it. For the others, LOW,HIGH is short for --cfg_low LOW and "
             "--cfg_high HIGH."},
    {.name = FIELD(top_k),
     .tokens = discrete,
     .group = "Sampling",
     .type = MAR_TYPE_INT,
     .max = 1 << 24,
     .help = "discrete tokens: sample from the k likeliest; 0: all\n"
             "Tokens as likely as the last of these are also kept."},
    {.name = FIELD(top_p),
     .tokens = discrete,
     .group = "Sampling",
     .type = MAR_TYPE_FLOAT,
     .value = 1,
     .max = 1,
     .help = "discrete tokens: sample from the likeliest of total probability p\n"
             "The last token kept is the one with which their probability first reaches --top_p."},

    {.name = FIELD(head_spec),
     .tokens = continuous,
     .group = "Speculation inside the head, exact to plain sampling",
     .type = MAR_TYPE_INT,
     .min = -1,
     .max = 64,
     .choices = automatic,
     .help = "speculate up to N denoising steps in one call of the head; 0: off\n"
             "Up to N denoising steps are extrapolated from the last prediction and verified in one batched call "
             "of the head. The distribution of the images does not change. The number of sequential calls falls. 0 "
             "is the plain chain. auto: each call's tokens have 1, 2, 4, 8 or 16 steps, the number with the most "
             "steps a second by the times of the head and by what this image has accepted. By these times an "
             "image made alone takes at most 2 % longer than by the plain chain. They are measured before the first "
             "image, unless --head_costs gives them."},
    {.name = FIELD(head_costs),
     .tokens = continuous,
     .group = "Speculation inside the head, exact to plain sampling",
     .type = MAR_TYPE_TEXT,
     .argument = "N,N...",
     .method = "head_spec",
     .help = "--head_spec auto: times of the head at 2, 4, 8, ... states\n"
             "Each is the time of an evaluation of that many states of every image of a batch, over that of one "
             "state of each. Equal seeds give equal images only with equal times: a picture's text has those "
             "measured, and --like takes them."},

    {.name = FIELD(draft),
     .group = "Speculation across tokens",
     .type = MAR_TYPE_MODEL,
     .argument = "FILE",
     .help = "a smaller model that drafts tokens for verification\n"
             "It has the same tokens and classes, and drafts autoregressive steps for the model to verify. For "
             "discrete tokens it is a smaller model, or an EAGLE drafter trained for the model. Its attention "
             "heads come from its file. Alone it implies spec path in context full, or spec vanilla for discrete "
             "tokens; both keep the distribution of the images. With --head_spec and no --spec, its head proposes "
             "steps inside the head. The word self is no file: the model drafts for itself, and spec is path "
             "unless it is sjd, sjd-pac or scd. A file of that name is ./self."},
    {.name = FIELD(spec),
     .group = "Speculation across tokens",
     .type = MAR_TYPE_NAME,
     .choices = verifiers,
     .argument = "METHOD",
     .help = "how drafts are verified; default path, for discrete tokens vanilla\n"
             "path, the default with a draft model, verifies a token's whole path of diffusion steps. It keeps the "
             "distribution of plain sampling, except that an accepted token is its draft's noiseless mean. In context "
             "prefix the distribution is that of coarser steps. It needs no draft model: without one, it drafts "
             "later tokens from the conditions of the model's last pass. With --head_spec the paths are drawn by "
             "speculation inside the head. The other methods for MAR verify a token at one diffusion step and need "
             "a draft model. conditional keeps it given the context. paper is the criterion of \"Continuous "
             "Speculative Decoding for Autoregressive Image Generation\" (Wang et al.), and cspd that of its "
             "released code. For discrete tokens, vanilla keeps the distribution of plain sampling, and is the default "
             "with a draft model. uniform-rsd, "
             "cool-sd-exp, cool-sd-linear, lantern, lantern-pp and the latter two with gstar accept more and "
             "change the distribution. sjd, sjd-pac and scd keep it and need no draft model: they draft from the "
             "model's last pass. mar methods describes each."},
    {.name = FIELD(gamma),
     .group = "Speculation across tokens",
     .type = MAR_TYPE_INT,
     .value = -1,
     .min = -1,
     .max = MAR_STEPS_MAX,
     .choices = standards,
     .method = "spec",
     .help =
         "autoregressive steps to draft before verification\n"
         "standard is 8. For discrete tokens: the drafts of a chain, or the depth of a dynamic tree, at most the "
         "tokens of an image. With spec vanilla standard, on a CPU and without --tree, and auto are at most 8: each "
         "round has no drafts, or a chain of 1, 2, 4, ... or the whole tree, chosen as by --window standard and "
         "--window auto. With spec path auto chooses 0, 2, 4, 8 or 16 steps in each round, by the times of such rounds "
         "and by what this image has accepted, and standard is 0 on a CPU, which is plain decoding."},
    {.name = FIELD(prefill),
     .tokens = continuous,
     .group = "Speculation across tokens",
     .type = MAR_TYPE_FLOAT,
     .value = 0.05,
     .max = 1,
     .method = "spec",
     .help = "fraction of the steps to make first, without drafts\n"
             "Not for spec path, which needs none."},
    {.name = FIELD(context),
     .tokens = continuous,
     .group = "Speculation across tokens",
     .type = MAR_TYPE_CHOICE,
     .value = MAR_CONTEXT_AUTO,
     .choices = contexts,
     .method = "spec",
     .help = "known tokens that the model sees when it verifies a block\n"
             "prefix: the tokens verified so far, in one pass for the whole block; the distribution is that of "
             "coarser autoregressive steps. full: each drafted step's own context. auto: full with spec path, "
             "prefix with the others. Without a draft model it is full."},
    {.name = FIELD(align),
     .tokens = continuous,
     .group = "Speculation across tokens",
     .type = MAR_TYPE_CHOICE,
     .value = 1,
     .choices = switches,
     .method = "spec",
     .help = "share all noise between draft and model\n"
             "Not for spec path."},
    {.name = FIELD(inner_temperature),
     .tokens = continuous,
     .group = "Speculation across tokens",
     .type = MAR_TYPE_FLOAT,
     .method = "cspd",
     .help = "cspd: temperature of the deviations in its criterion"},
    {.name = FIELD(round_costs),
     .group = "Speculation across tokens",
     .type = MAR_TYPE_TEXT,
     .argument = "N,N...",
     .method = "path|vanilla|sjd|sjd-pac|scd",
     .help = "times of rounds of 2, 4, 8, ... drafts; vanilla: 1, 2, ...\n"
             "Each over that of a round without drafts. Of a tree there is one. The last one is of the most drafts, "
             "which --window N or --gamma N must name. A draft model first computes the tokens of the rounds without "
             "drafts: +T behind the times is that of one token. They choose the drafts of each round, as with --window "
             "auto, and with spec path its steps, as with --gamma auto. Equal seeds give equal images only with equal "
             "times: a picture's text has those used, and --like takes them."},

    {.name = FIELD(window),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_INT,
     .value = -1,
     .min = -1,
     .max = MAR_STEPS_MAX,
     .choices = standards,
     .method = "sjd|sjd-pac|scd",
     .help =
         "Jacobi decoding: drafts to verify at a time\n"
         "They include the drafts of the tree of sjd-pac and scd. At most the number of tokens in an image. auto: "
         "each round has the drafts with the most tokens a second, at most 64 on a GPU and 16 on a CPU, chosen by the "
         "times of such rounds and by the drafts that this image has accepted. By these times an image made alone "
         "takes at most 2 % longer than without drafts. They are measured before the first image, unless --round_costs "
         "gives them. standard: on a CPU the same with times computed from model, type and instruction set, at "
         "least as long as measured ones; on a GPU 64."},
    {.name = FIELD(first),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_CHOICE,
     .choices = firsts,
     .method = "sjd|sjd-pac|scd",
     .help = "Jacobi decoding: initial draft of a token\n"
             "uniform: any token, with equal probability. left: the token to its left. above: the token above."},
    {.name = FIELD(pac_children),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_INT,
     .max = 8,
     .choices = automatic,
     .method = "sjd-pac|scd",
     .help = "sjd-pac, scd: drafts of a token in the tree; 1: none\n"
             "K of the paper. 1 turns proactive drafting off. auto is 4 with sjd-pac and 1 with scd, whose coupling "
             "needs the whole window."},
    {.name = FIELD(pac_depth),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_INT,
     .method = "sjd-pac|scd",
     .help = "sjd-pac, scd: depth of the tree with its root; 1: none\n"
             "D of the paper, counted as in its code: the root is the token before the drafts, so 3 means two "
             "levels of drafts. They are taken from the window while that leaves one draft for the chain. 0 or 1 "
             "turns proactive drafting off."},
    {.name = FIELD(pac_continue),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_CHOICE,
     .value = 1,
     .choices = switches,
     .method = "sjd-pac",
     .help = "sjd-pac: continue verification after a rejection\n"
             "The paper's adaptive continuation. off: it stops there, as sjd does."},
    {.name = FIELD(tree),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_TEXT,
     .choices = trees,
     .argument = "N,N...",
     .method = "spec",
     .help = "shape of a block of drafts; N,N...: children by level\n"
             "chain, the default: gamma tokens, one after another. static: the tree of LANTERN++. dynamic: "
             "EAGLE-2's tree of the most likely drafts, gamma deep. N,N...: a static tree by levels, each number "
             "the children of every draft of the level before. The trees of LANTERN's choices.py have their names: "
             "mc_sim_7b_63, which is static, mc_sim_7b_63_balanced, naive_extend_57, medusa_2_7b_63 and "
             "reverse_balanced_25."},
    {.name = FIELD(tree_top),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_INT,
     .value = 10,
     .min = 1,
     .max = 64,
     .method = "tree",
     .help = "dynamic tree: drafts of a level that get children\n"
             "Also the number of children considered for each."},
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
     .help = "Cool-SD: relaxation of the criterion; 1: none\n"
             "The mean factor on the ratio of probabilities before a draft is tested."},
    {.name = FIELD(cool_nu),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_FLOAT,
     .method = "cool-sd-exp",
     .help = "Cool-SD: decay of the relaxation along a block"},
    {.name = FIELD(cool_ell),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_FLOAT,
     .method = "cool-sd-linear",
     .help = "Cool-SD: draft at which the relaxation reaches zero\n"
             "From this draft on, counted from 1, none would be accepted. It must exceed gamma or the depth of the "
             "tree."},
    {.name = FIELD(lantern_k),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_INT,
     .max = 1 << 20,
     .choices = automatic,
     .method = "lantern|lantern-pp|lantern-gstar|lantern-pp-gstar",
     .help = "LANTERN: number of near tokens, the token itself included\n"
             "auto is 1000, or 10 with lantern-pp and lantern-pp-gstar, or the size of the codebook if that is "
             "less, which is also the maximum."},
    {.name = FIELD(lantern_delta),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_FLOAT,
     .method = "lantern|lantern-gstar",
     .help = "LANTERN: probability that near tokens may add"},
    {.name = FIELD(lantern_lambda),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_FLOAT,
     .method = "lantern-pp|lantern-pp-gstar",
     .help = "LANTERN++: the same, relative to the token's own"},
    {.name = FIELD(lantern_metric),
     .tokens = discrete,
     .group = "Speculation over discrete tokens",
     .type = MAR_TYPE_CHOICE,
     .choices = metrics,
     .method = "lantern|lantern-pp|lantern-gstar|lantern-pp-gstar",
     .help = "LANTERN: distance that makes tokens near\n"
             "l2 is the Euclidean distance, cosine one minus the cosine of the angle."},

    {.name = FIELD(sampler),
     .tokens = continuous,
     .group = "Shortcuts, which change the distribution",
     .type = MAR_TYPE_CHOICE,
     .choices = samplers,
     .help = "sampler of the head: its own chain, or an ODE solver\n"
             "ddpm is the model's own chain, for SphereAR that of its flow. ddim is DDIM, dpmpp is DPM-Solver++ of "
             "second order. The ODE solvers draw no noise and need a temperature of 1."},
    {.name = FIELD(diff_annealing),
     .tokens = continuous,
     .group = "Shortcuts, which change the distribution",
     .type = MAR_TYPE_CHOICE,
     .choices = annealings,
     .help = "DiSA: fewer diffusion steps for later tokens\n"
             "The number of diffusion steps falls over the autoregressive steps from --diff_upper_steps to "
             "--diff_lower_steps. It replaces --num_sampling_steps."},
    {.name = FIELD(diff_upper_steps),
     .tokens = continuous,
     .group = "Shortcuts, which change the distribution",
     .type = MAR_TYPE_INT,
     .value = 50,
     .min = 2,
     .max = 1000,
     .method = "diff_annealing",
     .help = "DiSA: diffusion steps in the first autoregressive step"},
    {.name = FIELD(diff_lower_steps),
     .tokens = continuous,
     .group = "Shortcuts, which change the distribution",
     .type = MAR_TYPE_INT,
     .value = 5,
     .min = 2,
     .max = 1000,
     .method = "diff_annealing",
     .help = "DiSA: diffusion steps in the last autoregressive step"},
    {.name = FIELD(cfg_low),
     .tokens = continuous,
     .group = "Shortcuts, which change the distribution",
     .type = MAR_TYPE_FLOAT,
     .max = 1,
     .help = "MAR, SphereAR: no guidance below this fraction of known tokens\n"
             "With --cfg_high it is a closed interval. Autoregressive steps that begin with a smaller or larger "
             "fraction of known tokens have no guidance and half the arithmetic. --cfg_interval LOW,HIGH sets both."},
    {.name = FIELD(cfg_high),
     .tokens = continuous,
     .group = "Shortcuts, which change the distribution",
     .type = MAR_TYPE_FLOAT,
     .value = 1,
     .max = 1,
     .help = "MAR, SphereAR: no guidance above this fraction of known tokens"},
    {.name = FIELD(cache_dtype),
     .group = "Shortcuts, which change the distribution",
     .type = MAR_TYPE_CHOICE,
     .choices = caches,
     .help = "raster order: type of the cached keys and values\n"
             "auto is the type of the products' operands, f32 or bf16, and changes nothing. bf16 and int8 round keys "
             "and values to half and a quarter of f32; int8 has a scale for each head of a token."},
    {.name = FIELD(lazy),
     .tokens = continuous,
     .group = "Shortcuts, which change the distribution",
     .type = MAR_TYPE_FLAG,
     .help = "LazyMAR: the transformer reuses tokens and cfg branches\n"
             "Caches keep both from step to step."},
    {.name = FIELD(lazy_head),
     .tokens = continuous,
     .group = "Shortcuts, which change the distribution",
     .type = MAR_TYPE_FLAG,
     .help = "LazyMAR's code: the head reuses 6 of 7 steps\n"
             "In six of seven steps the head's blocks reuse their last results, as in the released code."},
    {.name = FIELD(gtr),
     .tokens = continuous,
     .group = "Shortcuts, which change the distribution",
     .type = MAR_TYPE_FLAG,
     .help = "GtR: sample half of the tokens slowly, the rest fast\n"
             "It first samples one colour of a checkerboard of tokens in --gtr_generation_steps, then the other in "
             "--gtr_reconstruction_steps. These replace --num_iter. Tokens in detailed parts of the image get more "
             "diffusion steps."},
    {.name = FIELD(gtr_generation_steps),
     .tokens = continuous,
     .group = "Shortcuts, which change the distribution",
     .type = MAR_TYPE_INT,
     .value = 16,
     .min = 1,
     .max = MAR_STEPS_MAX,
     .method = "gtr",
     .help = "GtR: autoregressive steps of the first half"},
    {.name = FIELD(gtr_reconstruction_steps),
     .tokens = continuous,
     .group = "Shortcuts, which change the distribution",
     .type = MAR_TYPE_INT,
     .value = 1,
     .min = 1,
     .max = MAR_STEPS_MAX,
     .method = "gtr",
     .help = "GtR: autoregressive steps of the second half"},
    {.name = FIELD(gtr_detail),
     .tokens = continuous,
     .group = "Shortcuts, which change the distribution",
     .type = MAR_TYPE_FLOAT,
     .value = 0.3,
     .max = 1,
     .method = "gtr",
     .help = "GtR: fraction of that half with all diffusion steps\n"
             "These are the tokens of the second half in the most detailed parts of the image. They take "
             "--num_sampling_steps; the rest takes --gtr_sampling_steps."},
    {.name = FIELD(gtr_sampling_steps),
     .tokens = continuous,
     .group = "Shortcuts, which change the distribution",
     .type = MAR_TYPE_INT,
     .max = 1000,
     .method = "gtr",
     .help = "GtR: diffusion steps of the rest; 0: 50 or fewer\n"
             "From 2 to --num_sampling_steps; 0 is 50, or --num_sampling_steps if that is less."},

    {.name = FIELD(check),
     .group = "Checks",
     .type = MAR_TYPE_FLAG,
     .help = "name the first layer whose output is NaN or infinite\n"
             "A run always fails if its tokens or pixels are not finite. With this option every layer's output is "
             "checked, and the message names the first bad layer as the checkpoint does. It takes longer; the "
             "output is the same to the bit."},
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

/* Returns whether the option is named after the parameter: its name alone, or behind a word and an underscore. */
static int is_parameter(const mar_param *o, const char *method, const char *parameter)
{
    const size_t length = strlen(o->name), n = strlen(parameter);
    return mar_is_listed(o->method, method) && length >= n && strcmp(o->name + length - n, parameter) == 0 &&
           (length == n || o->name[length - n - 1] == '_');
}

/* Takes default and range of a number without an automatic value from the registry. */
static void take_range(mar_param *o, const spec_parameter *p)
{
    if (o->choices) return;
    o->value = p->value, o->min = p->min, o->max = p->max;
}

/* Fills in the table from the registry of verifiers, so that methods and parameters are described once. */
static void params_fill(void)
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
    pthread_once(&once, params_fill);
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
