#include "tools/run_options.h"

#include "tools/command.h"

#include <stdio.h>
#include <string.h>

/* In the order of their enumerations in mar.h. */
static const char *const schedules[] = {"linear", "constant", NULL};
static const char *const samplers[] = {"ddpm", "ddim", "dpmpp", NULL};
static const char *const annealings[] = {"off", "linear", "cosine", "two-stage", NULL};
static const char *const contexts[] = {"prefix", "full", NULL};
static const char *const switches[] = {"off", "on", NULL};

void run_options_init(run_options *o)
{
    *o = (run_options){.model = "demo", .align = 1};
    mar_params_init(&o->params, sizeof o->params);
    o->params.cfg = 2.9f; /* the official setting of MAR-B, and near that of L (3.0) and H (3.2) */
    o->params.num_iter = 0;
}

void run_options_list(run_options *o, option list[RUN_OPTIONS_MAX])
{
    mar_params *p = &o->params;
    const option all[] = {
        {"model", OPTION_TEXT, .value = &o->model, .expects = "a file, demo or demo-draft"},
        {"vae", OPTION_TEXT, .value = &o->vae, .expects = "a file or demo"},
        {"num_iter", OPTION_INT, .value = &p->num_iter, .min = 1, .max = 65536}, /* more exactly with the model */
        {"num_sampling_steps", OPTION_INT, .value = &p->num_sampling_steps, .min = 2, .max = 1000},
        {"cfg", OPTION_FLOAT, .value = &p->cfg, .min = 0, .max = 100},
        {"cfg_schedule", OPTION_CHOICE, .value = &o->cfg_schedule, .choices = schedules},
        {"temperature", OPTION_FLOAT, .value = &p->temperature, .min = 0, .max = 100},
        {"seed", OPTION_UINT64, .value = &p->seed},
        {"head_spec", OPTION_INT, .value = &p->head_spec, .min = 0, .max = 64},
        {"sampler", OPTION_CHOICE, .value = &o->sampler, .choices = samplers},
        {"diff_annealing", OPTION_CHOICE, .value = &o->diff_annealing, .choices = annealings},
        {"diff_upper_steps", OPTION_INT, .value = &p->diff_upper_steps, .min = 2, .max = 1000},
        {"diff_lower_steps", OPTION_INT, .value = &p->diff_lower_steps, .min = 2, .max = 1000},
        {"lazy", OPTION_FLAG, .value = &p->lazy},
        {"lazy_head", OPTION_FLAG, .value = &p->lazy_head},
        {"gtr", OPTION_FLAG, .value = &p->gtr},
        {"gtr_generation_steps", OPTION_INT, .value = &p->gtr_generation_steps, .min = 1, .max = 65536},
        {"gtr_reconstruction_steps", OPTION_INT, .value = &p->gtr_reconstruction_steps, .min = 1, .max = 65536},
        {"gtr_detail", OPTION_FLOAT, .value = &p->gtr_detail, .min = 0, .max = 1},
        {"gtr_sampling_steps", OPTION_INT, .value = &p->gtr_sampling_steps, .min = 2, .max = 1000},
        {"draft", OPTION_TEXT, .value = &o->draft, .expects = "a file or demo-draft"},
        {"spec", OPTION_TEXT, .value = &p->spec, .expects = "conditional, paper or cspd"},
        {"gamma", OPTION_INT, .value = &p->gamma, .min = 1, .max = 65536},
        {"prefill", OPTION_FLOAT, .value = &p->prefill, .min = 0, .max = 1},
        {"context", OPTION_CHOICE, .value = &o->context, .choices = contexts},
        {"align", OPTION_CHOICE, .value = &o->align, .choices = switches},
        {"inner_temperature", OPTION_FLOAT, .value = &p->inner_temperature, .min = 1e-3, .max = 1e6},
        {"backend", OPTION_CHOICE, .value = &o->backend, .choices = tool_backends},
        {"device", OPTION_INT, .value = &o->device, .min = 0, .max = 1023},
        {"dtype", OPTION_CHOICE, .value = &o->dtype, .choices = tool_dtypes},
        {"threads", OPTION_INT, .value = &o->threads, .min = 1, .max = 1024},
        {"heads", OPTION_INT, .value = &o->heads, .min = 1, .max = 1024},
        {0},
    };
    _Static_assert(sizeof all / sizeof *all <= RUN_OPTIONS_MAX, "RUN_OPTIONS_MAX is too small");
    memcpy(list, all, sizeof all);
}

static int is_given(run_options *o, const char *name)
{
    option list[RUN_OPTIONS_MAX];
    run_options_list(o, list);
    for (int i = 0; list[i].name; i++)
        if (strcmp(list[i].name, name) == 0) return (int)(o->given >> i & 1);
    return 0;
}

/* An option whose value nothing would read is a mistake. */
static int check_effects(run_options *o)
{
    const mar_params *p = &o->params;
    const int drafts = o->draft && !p->head_spec;
    static const char drafting[] = "needs --draft, a model whose tokens are verified, and no --head_spec";
    static const char annealing[] = "needs --diff_annealing linear, cosine or two-stage";
    const struct {
        const char *option;
        int has_effect;
        const char *needs;
    } rules[] = {
        {"threads", o->backend != MAR_BACKEND_CUDA, "has no effect with --backend cuda"},
        {"spec", o->draft != NULL, "needs --draft, the model that drafts"},
        {"gamma", drafts, drafting},
        {"prefill", drafts, drafting},
        {"context", drafts, drafting},
        {"align", drafts, drafting},
        {"inner_temperature", drafts && p->spec && strcmp(p->spec, "cspd") == 0, "needs --draft and --spec cspd"},
        {"diff_upper_steps", p->diff_annealing != MAR_ANNEAL_OFF, annealing},
        {"diff_lower_steps", p->diff_annealing != MAR_ANNEAL_OFF, annealing},
        {"num_sampling_steps", p->diff_annealing == MAR_ANNEAL_OFF,
         "has no effect with --diff_annealing, expected --diff_upper_steps and --diff_lower_steps"},
        {"gtr_generation_steps", p->gtr, "needs --gtr"},
        {"gtr_reconstruction_steps", p->gtr, "needs --gtr"},
        {"gtr_detail", p->gtr, "needs --gtr"},
        {"gtr_sampling_steps", p->gtr, "needs --gtr"},
        {"device", o->backend == MAR_BACKEND_CUDA, "needs --backend cuda"},
        {"num_iter", !p->gtr,
         "has no effect with --gtr, expected --gtr_generation_steps and --gtr_reconstruction_steps"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!rules[i].has_effect && is_given(o, rules[i].option))
            return tool_error("--%s: %s", rules[i].option, rules[i].needs);
    return 0;
}

int run_options_done(run_options *o)
{
    mar_params *p = &o->params;
    p->cfg_schedule = (mar_cfg_schedule)o->cfg_schedule;
    p->sampler = (mar_sampler)o->sampler;
    p->diff_annealing = (mar_annealing)o->diff_annealing;
    p->context = (mar_context)o->context;
    p->align = o->align;
    if (check_effects(o) != 0) return 1;
    if (p->gtr && p->gtr_sampling_steps > p->num_sampling_steps) {
        if (is_given(o, "gtr_sampling_steps"))
            return tool_error("--gtr_sampling_steps %d: expected %d at most, the diffusion steps of detailed tokens",
                              p->gtr_sampling_steps, p->num_sampling_steps);
        p->gtr_sampling_steps = p->num_sampling_steps;
    }
    return 0;
}

int run_is_demo(const char *model)
{
    return strcmp(model, "demo") == 0 || strcmp(model, "demo-draft") == 0;
}

int run_resolve_num_iter(run_options *o, const mar_model *model)
{
    const int tokens = mar_model_get_config(model)->seq_len;
    if (o->params.num_iter > tokens)
        return tool_error("--num_iter %d: expected a whole number from 1 to %d, the tokens of an image of this model",
                          o->params.num_iter, tokens);
    if (o->params.num_iter == 0) o->params.num_iter = tokens < 64 ? tokens : 64;
    if (o->params.gamma > o->params.num_iter) o->params.gamma = o->params.num_iter; /* the rest of the image */
    if (o->params.gtr) o->params.num_iter = o->params.gtr_generation_steps + o->params.gtr_reconstruction_steps;
    return 0;
}

const char *run_options_text(const run_options *o, char *text, size_t size)
{
    const mar_params *p = &o->params;
    FILE *f = fmemopen(text, size, "w");
    text[0] = '\0';
    if (!f) return text;
    if (p->head_spec) fprintf(f, " --head_spec %d", p->head_spec);
    if (p->sampler) fprintf(f, " --sampler %s", samplers[p->sampler]);
    if (p->diff_annealing)
        fprintf(f, " --diff_annealing %s --diff_upper_steps %d --diff_lower_steps %d", annealings[p->diff_annealing],
                p->diff_upper_steps, p->diff_lower_steps);
    if (p->lazy) fprintf(f, " --lazy");
    if (p->lazy_head) fprintf(f, " --lazy_head");
    if (p->gtr)
        fprintf(
            f, " --gtr --gtr_generation_steps %d --gtr_reconstruction_steps %d --gtr_detail %g --gtr_sampling_steps %d",
            p->gtr_generation_steps, p->gtr_reconstruction_steps, (double)p->gtr_detail, p->gtr_sampling_steps);
    if (o->draft) fprintf(f, " --draft %s", tool_base_name(o->draft));
    if (p->spec) fprintf(f, " --spec %s", p->spec);
    if (o->draft && (p->spec || !p->head_spec)) {
        fprintf(f, " --gamma %d --prefill %g --context %s", p->gamma, (double)p->prefill, contexts[p->context]);
        if (!p->align) fprintf(f, " --align off");
        if (p->spec && strcmp(p->spec, "cspd") == 0)
            fprintf(f, " --inner_temperature %g", (double)p->inner_temperature);
    }
    fclose(f);
    if (text[0] == ' ') memmove(text, text + 1, strlen(text));
    return text;
}
