/* mar convert: a checkpoint, checked and rewritten as safetensors. */
#include "tools/command.h"
#include "tools/run_options.h"

#include <stdio.h>

typedef struct {
    const char *in, *out;
    int heads;
    mar_dtype dtype;
} convert_options;

static const char *const dtypes[] = {"auto", "f32", "bf16", "f16", NULL}; /* mar_dtype */
static const mar_param dtype = {.name = "dtype",
                                .offset = offsetof(convert_options, dtype),
                                .group = "Options",
                                .type = MAR_TYPE_CHOICE,
                                .choices = dtypes,
                                .help = "what is stored; auto: each tensor's own type"};

static int parse(int argc, char **argv, convert_options *o)
{
    const mar_param heads = option_at(run_option("heads"), offsetof(convert_options, heads), "Options");
    const operand operands[] = {{"IN", &o->in,
                                 "a MAR model or KL autoencoder: .safetensors, or .pth or .ckpt as PyTorch writes "
                                 "it"},
                                {"OUT.safetensors", &o->out, "the file to write, complete or not there"},
                                {0}};
    option_set set = {
        .command = "convert",
        .about = "usage: mar convert IN OUT.safetensors [OPTIONS]\n"
                 "\n"
                 "Writes the model in a checkpoint as safetensors, with its configuration as\n"
                 "metadata. Of a training checkpoint only the averaged weights (model_ema) are\n"
                 "kept. A file that mar inspect finds wrong is refused.\n",
        .example = "example: mar convert checkpoint-last.pth mar_base.safetensors --dtype bf16\n",
        .operands = operands,
    };
    *o = (convert_options){0};
    options_add(&set, &dtype, o, 0);
    options_add(&set, &heads, o, 0);
    return options_parse(&set, argc, argv);
}

int cmd_convert(int argc, char **argv)
{
    convert_options o;
    int status = parse(argc, argv, &o);
    if (status != OPTIONS_RUN) return status;
    mar *m;
    status = tool_open_files(&m);
    if (status) return status;
    if (mar_convert(m, o.in, o.out, o.dtype, o.heads) != MAR_OK) status = tool_error("%s", mar_error(m));
    mar_close(m);
    return status;
}
