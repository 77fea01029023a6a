/* The table of options: a field of mar_params and a row here are all that an option needs. Parsing, ranges, --help, the
 * manual, the text of pictures, records and mar_params_set read it. */
#include "mar/params.h"

#include "mar/way.h"
#include "specdec/verifier.h"

#include <pthread.h>
#include <string.h>

static const char *const schedules[] = {"linear", "constant", NULL};                    /* mar_cfg_schedule */
static const char *const samplers[] = {"ddpm", "ddim", "dpmpp", NULL};                  /* mar_sampler */
static const char *const annealings[] = {"off", "linear", "cosine", "two-stage", NULL}; /* mar_annealing */
static const char *const contexts[] = {"prefix", "full", NULL};                         /* mar_context */
static const char *const switches[] = {"off", "on", NULL};
static const char *const automatic[] = {"auto", NULL};               /* 0 */
static const char *const dtypes[] = {"auto", "f32", "bf16", NULL};   /* mar_dtype, of arithmetic */
static const char *const tunings[] = {"on", "off", NULL};            /* mar_tuning */
static const char *const backends[] = {"auto", "cpu", "cuda", NULL}; /* mar_backend */
static const char *verifiers[16];                                    /* of continuous tokens, filled below */

enum { STEPS_MAX = 65536 }; /* autoregressive steps: the tokens of the largest image a model could make */

#define FIELD(name) #name, .offset = offsetof(mar_params, name)
static mar_param rows[] = {
    {.name = FIELD(num_iter),
     .group = "Steps",
     .type = MAR_TYPE_INT,
     .max = STEPS_MAX,
     .help = "autoregressive steps; 0: 64, fewer for small images\n"
             "At most the number of tokens in an image. 0 is 64, or that number if it is less."},
    {.name = FIELD(num_sampling_steps),
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
     .help = "scale of the classifier-free guidance; 1: none\n"
             "The official setting of MAR-B is 2.9, of MAR-L 3.0, of MAR-H 3.2."},
    {.name = FIELD(cfg_schedule),
     .group = "Sampling",
     .type = MAR_TYPE_CHOICE,
     .choices = schedules,
     .help = "guidance grows with the known tokens, or not\n"
             "linear: the guidance grows with the fraction of the image that is known. constant: it does not."},
    {.name = FIELD(temperature),
     .group = "Sampling",
     .type = MAR_TYPE_FLOAT,
     .value = 1,
     .max = 100,
     .help = "scales the noise of the diffusion steps"},
    {.name = FIELD(seed),
     .group = "Sampling",
     .type = MAR_TYPE_UINT64,
     .help = "the same seed gives the same images\n"
             "An image depends on the model, the options of the run, the seed and its number, and on nothing else: not "
             "on the batch, the number of threads, or the other images."},

    {.name = FIELD(head_spec),
     .group = "Speculation inside the head, exact",
     .type = MAR_TYPE_INT,
     .max = 64,
     .help = "diffusion steps that one head call may settle\n"
             "Up to so many denoising steps are proposed from the last prediction and verified by one batched call of "
             "the head. The images follow the same law as without; what changes is how many calls have to wait for one "
             "another. 0 is the plain chain."},

    {.name = FIELD(draft),
     .group = "Speculation across tokens",
     .type = MAR_TYPE_MODEL,
     .argument = "FILE",
     .help =
         "a smaller model, whose tokens are verified\n"
         "It has the same tokens and classes, and drafts autoregressive steps for the model to verify. Its attention "
         "heads are those that its file says. With head_spec, if no kind of verification is chosen, its head proposes "
         "inside the head instead. self is no file: the model drafts for itself, and spec is path (a file of that name "
         "is ./self)."},
    {.name = FIELD(spec),
     .group = "Speculation across tokens",
     .type = MAR_TYPE_NAME,
     .choices = verifiers,
     .help =
         "how drafted tokens are verified\n"
         "path verifies the whole path of a token's diffusion steps, and leaves the law of the images as it is, with "
         "a draft model in context full. It needs no draft model: without one, later tokens are drafted from the "
         "conditions that the model's last pass gave for them. With head_spec the paths are drawn by speculation "
         "inside the head. The others verify "
         "a token at one diffusion step and need a draft model: conditional is exact given the context, paper is "
         "the criterion of \"Continuous Speculative Decoding for Autoregressive Image Generation\" (Wang et al.), "
         "and cspd that of the code they released. The default with a draft model is conditional."},
    {.name = FIELD(gamma),
     .group = "Speculation across tokens",
     .type = MAR_TYPE_INT,
     .value = 8,
     .max = STEPS_MAX,
     .choices = automatic,
     .method = "spec",
     .help =
         "autoregressive steps drafted, then verified\n"
         "With spec path auto drafts, for each image, as many as promise most by what was accepted in it so far and by "
         "what a context is assumed to cost on a GPU, at most 16; else it is 8."},
    {.name = FIELD(prefill),
     .group = "Speculation across tokens",
     .type = MAR_TYPE_FLOAT,
     .value = 0.05,
     .max = 1,
     .method = "spec",
     .help = "fraction of first steps made without the draft\n"
             "Not with spec path, which needs none."},
    {.name = FIELD(context),
     .group = "Speculation across tokens",
     .type = MAR_TYPE_CHOICE,
     .choices = contexts,
     .method = "spec",
     .help = "what the model sees when it verifies a block\n"
             "prefix: the tokens verified so far, in one pass for the whole block (the law of coarser autoregressive "
             "steps). full: each drafted step's own context. Without a draft model it is full."},
    {.name = FIELD(align),
     .group = "Speculation across tokens",
     .type = MAR_TYPE_CHOICE,
     .value = 1,
     .choices = switches,
     .method = "spec",
     .help = "whether draft and model share all noise\nNot with spec path."},
    {.name = FIELD(inner_temperature),
     .group = "Speculation across tokens",
     .type = MAR_TYPE_FLOAT,
     .method = "cspd",
     .help = "tempers the standard deviations of cspd's test"},

    {.name = FIELD(sampler),
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_CHOICE,
     .choices = samplers,
     .help =
         "the head's own chain, or an ODE solver\n"
         "ddpm is the model's own chain, ddim is DDIM, dpmpp is DPM-Solver++ of second order. The latter two draw no "
         "noise and need a temperature of 1."},
    {.name = FIELD(diff_annealing),
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_CHOICE,
     .choices = annealings,
     .help = "DiSA: fewer diffusion steps for later tokens\n"
             "The number of diffusion steps falls over the autoregressive steps from diff_upper_steps to "
             "diff_lower_steps, in place of num_sampling_steps."},
    {.name = FIELD(diff_upper_steps),
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_INT,
     .value = 50,
     .min = 2,
     .max = 1000,
     .method = "diff_annealing",
     .help = "diffusion steps at the first autoregressive step"},
    {.name = FIELD(diff_lower_steps),
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_INT,
     .value = 5,
     .min = 2,
     .max = 1000,
     .method = "diff_annealing",
     .help = "diffusion steps at the last autoregressive step"},
    {.name = FIELD(lazy),
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_FLAG,
     .help = "LazyMAR: token and condition caches\nThey are in the transformer."},
    {.name = FIELD(lazy_head),
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_FLAG,
     .help = "LazyMAR's release: the head reuses 6 of 7 steps\n"
             "Six of seven steps reuse what the head's blocks gave, as the released code does besides LazyMAR's "
             "caches."},
    {.name = FIELD(gtr),
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_FLAG,
     .help = "GtR: a checkerboard slowly, then the rest fast\n"
             "First one colour of a checkerboard of tokens in gtr_generation_steps, then the other in "
             "gtr_reconstruction_steps, which take the place of num_iter; more diffusion steps where the image has "
             "detail."},
    {.name = FIELD(gtr_generation_steps),
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_INT,
     .value = 16,
     .min = 1,
     .max = STEPS_MAX,
     .method = "gtr",
     .help = "autoregressive steps of the first half"},
    {.name = FIELD(gtr_reconstruction_steps),
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_INT,
     .value = 1,
     .min = 1,
     .max = STEPS_MAX,
     .method = "gtr",
     .help = "autoregressive steps of the second half"},
    {.name = FIELD(gtr_detail),
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_FLOAT,
     .value = 0.3,
     .max = 1,
     .method = "gtr",
     .help = "fraction of that half with num_sampling_steps\n"
             "They are the tokens of the second half where the image has most detail."},
    {.name = FIELD(gtr_sampling_steps),
     .group = "Shortcuts, which change the law",
     .type = MAR_TYPE_INT,
     .max = 1000,
     .method = "gtr",
     .help = "diffusion steps of the rest; 0: 50 or fewer\n"
             "From 2 to num_sampling_steps; 0 is 50, or num_sampling_steps if that is less."},

    {.name = FIELD(check),
     .group = "Checks",
     .type = MAR_TYPE_FLAG,
     .help = "name the first layer that overflows\n"
             "A run whose tokens or pixels are not finite (NaN, or infinite) fails in any case. This looks at every "
             "layer's output, and the message names the first that is not finite, as the checkpoint does. It takes "
             "longer; the output is the same, to the bit."},
};
#undef FIELD
enum { ROWS = sizeof rows / sizeof *rows };

static const mar_param option_rows[] = {
    {.name = "backend",
     .offset = offsetof(mar_options, backend),
     .group = "Machine",
     .type = MAR_TYPE_CHOICE,
     .choices = backends,
     .help = "what computes; auto: a GPU if there is one\n"
             "auto is the GPU if there is one and the library was built with CUDA, else the CPU."},
    {.name = "device",
     .offset = offsetof(mar_options, device),
     .group = "Machine",
     .type = MAR_TYPE_INT,
     .max = 1023,
     .help = "number of the GPU, from 0, on CUDA"},
    {.name = "dtype",
     .offset = offsetof(mar_options, dtype),
     .group = "Machine",
     .type = MAR_TYPE_CHOICE,
     .choices = dtypes,
     .help = "matrix arithmetic; auto: bf16 where it is fast\n"
             "That of the matrix products. auto is bf16 on a GPU, and where the processor has instructions for it."},
    {.name = "threads",
     .offset = offsetof(mar_options, threads),
     .group = "Machine",
     .type = MAR_TYPE_INT,
     .max = 1024,
     .help =
         "threads of the CPU; 0: one per core\n"
         "No more than the cores that the process may use. A quota of its control group (a container's limit) lowers "
         "the number that 0 stands for. While other processes keep the cores busy, fewer are used."},
    {.name = "tuning",
     .offset = offsetof(mar_options, tuning),
     .group = "Machine",
     .type = MAR_TYPE_CHOICE,
     .choices = tunings,
     .help =
         "time algorithms of products, on CUDA\n"
         "Of the algorithms that cuBLASLt proposes for a matrix product, several are timed, and the fastest of those "
         "that give the same bits is taken: the images are the same. It happens once for each shape of product, "
         "before the first batch, with spec path during batches too."},
    {.name = "head_dtype",
     .offset = offsetof(mar_options, head_dtype),
     .group = "Machine",
     .type = MAR_TYPE_CHOICE,
     .choices = dtypes,
     .help = "that of the head; auto: f32 with spec path\n"
             "That of the matrix products of the diffusion head. auto is f32 with the criterion path, else as dtype. "
             "That criterion compares two evaluations of the head, and in bf16 their rounding alone rejects many of "
             "its drafts. In the library auto is as dtype."},
    {.name = "allow_nonfinite",
     .offset = offsetof(mar_options, allow_nonfinite),
     .group = "Model",
     .type = MAR_TYPE_FLAG,
     .max = 1,
     .help = "load weights that are NaN or infinite, too\n"
             "Such a model is refused otherwise: what it makes is not finite either."},
};
enum { OPTION_ROWS = sizeof option_rows / sizeof *option_rows };

static int is_parameter(const mar_param *o, const char *method, const char *parameter)
{
    return o->method && o->type == MAR_TYPE_FLOAT && strcmp(o->method, method) == 0 && strcmp(o->name, parameter) == 0;
}

/* What the registry of verifiers knows of its methods and their parameters is not written here again. */
static void fill(void)
{
    int n = 0;
    for (const spec_method *const *m = spec_methods(); *m; m++) {
        if (!((*m)->tokens & SPEC_CONTINUOUS)) continue;
        if (n + 1 < (int)(sizeof verifiers / sizeof *verifiers)) verifiers[n++] = (*m)->name;
        for (const spec_parameter *p = (*m)->parameters; p->name; p++)
            for (int i = 0; i < ROWS; i++)
                if (is_parameter(&rows[i], (*m)->name, p->name))
                    rows[i].value = p->value, rows[i].min = p->min, rows[i].max = p->max;
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

int mar_option_count(void)
{
    return OPTION_ROWS;
}

const mar_param *mar_option_get(int i)
{
    return i >= 0 && i < OPTION_ROWS ? option_rows + i : NULL;
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

void mar_params_init(mar_params *params, size_t size)
{
    mar_params all = {0};
    for (int i = 0; i < ROWS; i++) mar_param_reset(mar_param_get(i), &all);
    all.size = size;
    if (!params) return;
    memset(params, 0, size);
    memcpy(params, &all, size < sizeof all ? size : sizeof all);
}

/* Whether the field lies in a struct of so many bytes. */
static int is_within(const mar_param *o, size_t size)
{
    return o->offset + mar_param_size(o) <= size;
}

/* Whether the size can be that of a struct: those of every header are multiples of its alignment. */
static int is_set_up(const mar_params *params)
{
    return is_within(&rows[0], params->size) && params->size % _Alignof(mar_params) == 0;
}

mar_status mar_params_set(mar_params *params, const char *name, const char *text, char *why, size_t size)
{
    mar_err err;
    const mar_param *o = name ? mar_param_find(name) : NULL;
    mar_status status = MAR_OK;
    if (!params)
        status = err_set(&err, MAR_EARG, "params is NULL");
    else if (!o)
        status = err_set(&err, MAR_EARG, "%s: no such option", name ? name : "NULL");
    else if (!is_set_up(params))
        status = err_set(&err, MAR_EARG, "mar_params of %zu bytes: expected mar_params_init to have set them up",
                         params->size);
    else if (!is_within(o, params->size))
        status = err_set(&err, MAR_EARG, "%s: the program was compiled with a mar.h that does not have it", name);
    else if (o->type == MAR_TYPE_MODEL)
        status = err_set(&err, MAR_EARG, "%s: is a model that the program loads, expected its field to be set", name);
    else
        return mar_param_set(o, params, text, why, size);
    if (why) err_line(why, size, "%s", err.text);
    return status;
}

mar_status mar_params_read(const mar_params *params, mar_params *out, mar_err *err)
{
    mar_params_init(out, sizeof *out);
    if (!params) return err_set(err, MAR_EARG, "params is NULL, expected what mar_params_init has set up");
    if (!is_set_up(params))
        return err_set(err, MAR_EARG, "mar_params of %zu bytes: expected mar_params_init to have set them up",
                       params->size);
    if (params->size > sizeof *out)
        return err_set(err, MAR_EARG,
                       "mar_params of %zu bytes: the program was compiled with a newer mar.h, expected %zu at most "
                       "with libmar %s",
                       params->size, sizeof *out, mar_version());
    for (int i = 0; i < ROWS; i++) {
        const mar_param *o = mar_param_get(i);
        if (!is_within(o, params->size)) continue;
        memcpy(mar_param_field(o, out), mar_param_field(o, params), mar_param_size(o));
        const mar_status status = mar_param_check(o, out, err);
        if (status != MAR_OK) return status;
        const char **name = mar_param_field(o, out);
        if (o->type == MAR_TYPE_NAME && *name) *name = o->choices[mar_param_choice(o, *name)];
    }
    return MAR_OK;
}
