/* mar convert: a checkpoint, checked and rewritten as safetensors. */
#include "tools/command.h"
#include "tools/options.h"

#include <limits.h>
#include <stdio.h>

static const char help[] = //
    "usage: mar convert IN OUT.safetensors [OPTIONS]\n"
    "\n"
    "Writes the model in a checkpoint as safetensors, with its configuration as\n"
    "metadata. Of a training checkpoint only the averaged weights (model_ema) are\n"
    "kept. A file that mar inspect finds wrong is refused; OUT is complete or not\n"
    "there.\n"
    "\n"
    "  IN         a MAR model or KL autoencoder: .safetensors, or .pth or .ckpt as\n"
    "             PyTorch writes it\n"
    "  --dtype T  store as f32, bf16 or f16; auto keeps each tensor's own [auto]\n"
    "  --heads N  attention heads [from the file, or the official rule]\n"
    "\n"
    "example: mar convert checkpoint-last.pth mar_base.safetensors --dtype bf16\n";

int cmd_convert(int argc, char **argv)
{
    static const char *const dtypes[] = {"auto", "f32", "bf16", "f16", NULL}; /* in the order of mar_dtype */
    const char *in = NULL, *out = NULL;
    int heads = 0, dtype = MAR_DTYPE_AUTO;
    const option options[] = {
        {.name = "dtype", .kind = OPTION_CHOICE, .value = &dtype, .choices = dtypes},
        {.name = "heads", .kind = OPTION_INT, .value = &heads, .min = 1, .max = INT_MAX},
        {0},
    };
    const operand operands[] = {{"IN", &in}, {"OUT.safetensors", &out}, {0}};
    const option_set set = {"convert", help, options, operands, NULL, NULL};
    int status = options_parse(&set, argc, argv);
    if (status != OPTIONS_RUN) return status;
    mar *m;
    status = tool_open_files(&m);
    if (status) return status;
    if (mar_convert(m, in, out, (mar_dtype)dtype, heads) != MAR_OK) status = tool_error("%s", mar_error(m));
    mar_close(m);
    return status;
}
