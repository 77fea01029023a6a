/* mar inspect: reports what a checkpoint contains and what keeps it from loading. */
#include "tools/cli/command.h"

#include "mar_files.h"
#include "tools/cli/json.h"
#include "tools/cli/progress.h"
#include "tools/cli/run_options.h"
#include "tools/cli/subcommands.h"

#include <cjson/cJSON.h>
#include <stdio.h>

typedef struct {
    const char *path;    /* as given */
    int json;            /* print JSON */
    run_options run;     /* options about the path */
    operand operands[2]; /* the path; ends with a NULL name */
} inspect_options;

/* Sets the defaults, and adds the options that set the fields. */
static void inspect_set_up(inspect_options *o, option_set *set)
{
    *o = (inspect_options){0};
    run_options_init(&o->run);
    o->operands[0] = (operand){"FILE", &o->path,
                               "a model, an autoencoder or Inception-v3: .safetensors, .pth, .pt, "
                               ".ckpt, a folder; or built in: demo, and demo- with draft, vae, discrete, "
                               "discrete-draft, discrete-eagle, discrete-vq, sphere, sphere-draft, t2i, mgpt, mgpt-vq, "
                               "harmon or nextstep",
                               NULL};
    *set = (option_set){
        .command = "inspect",
        .about = "usage: mar inspect FILE [OPTIONS]\n"
                 "\n"
                 "Prints the contents of a checkpoint and lists every tensor that is missing,\n"
                 "extra, of the wrong shape or type, or not finite. The exit status is 0 if there\n"
                 "is no problem, else 1.\n",
        .example = "example: mar inspect checkpoint-last.pth\n",
        .operands = o->operands,
    };
    run_options_add_file(&o->run, set);
    options_add(set, &option_json, &o->json, 0);
}

static const char *kind_name(mar_kind kind)
{
    static const char *const names[] = {[MAR_KIND_UNKNOWN] = "unknown",   [MAR_KIND_MAR] = "mar",
                                        [MAR_KIND_VAE] = "vae",           [MAR_KIND_INCEPTION] = "inception",
                                        [MAR_KIND_LLAMAGEN] = "llamagen", [MAR_KIND_EAGLE] = "eagle",
                                        [MAR_KIND_SPHEREAR] = "spherear", [MAR_KIND_T5] = "t5",
                                        [MAR_KIND_VGG16] = "vgg16",       [MAR_KIND_DECODER] = "decoder",
                                        [MAR_KIND_NEXTSTEP] = "nextstep"};
    _Static_assert(sizeof names / sizeof *names == MAR_KIND_NEXTSTEP + 1, "each kind has a name");
    return names[kind];
}

static void print_text(const mar_report *r)
{
    int problems = mar_report_problem_count(r);
    for (int i = 0; i < mar_report_fact_count(r); i++) printf("%s\n", mar_report_fact(r, i));
    for (int i = 0; i < problems; i++) printf("problem: %s\n", mar_report_problem(r, i));
    printf("problems: %d\n", problems);
}

/* Adds the options whose automatic values are the model's own. */
static void add_defaults(cJSON *object, const mar_model_config *c)
{
    static const char *const names[] = {"num_iter", "num_sampling_steps", "time_shift",
                                        "cfg",      "cfg_schedule",       "token_norm"};
    const mar_params p = {.num_iter = c->num_iter,
                          .num_sampling_steps = c->num_sampling_steps,
                          .time_shift = c->time_shift,
                          .cfg = c->cfg,
                          .cfg_schedule = c->cfg_schedule,
                          .token_norm = c->token_norm};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[32];
        const mar_param *o = run_option(names[i]);
        if (mar_param_is_default(o, &p)) continue; /* the model lacks it */
        mar_param_text(o, &p, text, sizeof text);
        if (o->type == MAR_TYPE_CHOICE)
            cJSON_AddStringToObject(object, o->name, text);
        else
            cJSON_AddRawToObject(object, o->name, text);
    }
}

static void add_model(cJSON *object, const mar_model_config *c)
{
    cJSON_AddStringToObject(object, "family", c->family);
    cJSON_AddNumberToObject(object, "width", c->width);
    cJSON_AddNumberToObject(object, "encoder_depth", c->encoder_depth);
    cJSON_AddNumberToObject(object, "decoder_depth", c->decoder_depth);
    cJSON_AddNumberToObject(object, "heads", c->heads);
    if (c->decoder_heads != c->heads) cJSON_AddNumberToObject(object, "decoder_heads", c->decoder_heads);
    if (c->heads_guessed) cJSON_AddTrueToObject(object, "heads_guessed");
    cJSON_AddNumberToObject(object, "mlp_hidden", c->mlp_hidden);
    cJSON_AddNumberToObject(object, "buffer", c->buffer);
    cJSON_AddNumberToObject(object, "seq_len", c->seq_len);
    cJSON_AddNumberToObject(object, "grid_width", c->grid_width);
    cJSON_AddNumberToObject(object, "token_dim", c->token_dim);
    if (c->patch_size) cJSON_AddNumberToObject(object, "patch_size", c->patch_size);
    cJSON_AddNumberToObject(object, "classes", c->classes);
    if (c->vocabulary) {
        cJSON_AddNumberToObject(object, "vocabulary", c->vocabulary);
        cJSON_AddNumberToObject(object, "caption_tokens", c->caption_tokens);
        cJSON_AddNumberToObject(object, "caption_dim", c->caption_dim);
    } else {
        cJSON_AddNumberToObject(object, "head_width", c->head_width);
        cJSON_AddNumberToObject(object, "head_depth", c->head_depth);
    }
    cJSON_AddNumberToObject(object, "parameters", (double)c->parameters);
    if (c->num_iter) add_defaults(cJSON_AddObjectToObject(object, "defaults"), c);
}

static void add_vae(cJSON *object, const mar_vae_config *c)
{
    cJSON_AddNumberToObject(object, "z_channels", c->z_channels);
    cJSON_AddNumberToObject(object, "stride", c->stride);
    cJSON_AddNumberToObject(object, "channels", c->channels);
    cJSON_AddNumberToObject(object, "levels", c->levels);
    cJSON_AddNumberToObject(object, "res_blocks", c->res_blocks);
    if (c->codebook) cJSON_AddNumberToObject(object, "codebook", c->codebook);
    if (c->depth) {
        cJSON_AddNumberToObject(object, "width", c->width);
        cJSON_AddNumberToObject(object, "depth", c->depth);
        cJSON_AddNumberToObject(object, "heads", c->heads);
        cJSON_AddNumberToObject(object, "grid", c->grid);
    }
    cJSON_AddNumberToObject(object, "parameters", (double)c->parameters);
}

static int inspect_print_json(const char *path, const mar_report *r)
{
    cJSON *root = tool_json();
    cJSON_AddStringToObject(root, "file", path);
    cJSON_AddStringToObject(root, "kind", kind_name(mar_report_kind(r)));
    if (mar_report_model(r)) add_model(cJSON_AddObjectToObject(root, "config"), mar_report_model(r));
    if (mar_report_vae(r)) add_vae(cJSON_AddObjectToObject(root, "config"), mar_report_vae(r));
    cJSON *facts = cJSON_AddArrayToObject(root, "facts");
    for (int i = 0; i < mar_report_fact_count(r); i++)
        tool_json_append(facts, cJSON_CreateString(mar_report_fact(r, i)));
    cJSON *problems = cJSON_AddArrayToObject(root, "problems");
    for (int i = 0; i < mar_report_problem_count(r); i++)
        tool_json_append(problems, cJSON_CreateString(mar_report_problem(r, i)));
    return tool_print_json(root, 1);
}

int cmd_inspect(int argc, char **argv)
{
    inspect_options o;
    option_set set;
    inspect_set_up(&o, &set);
    int status = options_read(&set, argc, argv);
    if (status != OPTIONS_RUN) return status;
    mar *m;
    mar_report *r;
    int heads;
    progress bar;
    status = run_open_file(&o.run, &m, &heads);
    if (status) return status;
    progress_start(&bar, 0);
    progress_note(&bar, "reading %s", o.path);
    const mar_status inspected = mar_inspect(m, o.path, heads, &r);
    progress_clear(&bar);
    if (inspected != MAR_OK) {
        status = tool_error("%s", mar_error(m));
    } else {
        if (o.json)
            status = inspect_print_json(o.path, r);
        else
            print_text(r);
        if (mar_report_problem_count(r) > 0) status = 1;
        mar_report_free(r);
    }
    mar_close(m);
    return status;
}
