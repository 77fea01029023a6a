/* mar convert: checks a checkpoint and rewrites it as safetensors. */
#include "tools/cli/command.h"

#include "mar_files.h"
#include "mar_methods.h"
#include "tools/cli/file.h"
#include "tools/cli/progress.h"
#include "tools/cli/run_options.h"
#include "tools/cli/subcommands.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

typedef struct {
    const char *in, *out; /* files */
    mar_dtype dtype;      /* type of the stored tensors */
    int overwrite;        /* 1: replace an existing output */
    run_options run;      /* options about `in` */
    operand operands[3];  /* in and out; ends with a NULL name */
} convert_options;

static const char *const dtypes[] = {"auto", "f32", "bf16", "int8", "f16", "int4", NULL}; /* mar_dtype */
static const mar_param dtype = {
    .name = OPTION("dtype"),
    .offset = offsetof(convert_options, dtype),
    .group = "Options",
    .type = MAR_TYPE_CHOICE,
    .choices = dtypes,
    .help = "type of the stored numbers; auto: each tensor's own\n"
            "int8 is for models. The matrices of the transformer's blocks become int8 with a scale for each "
            "output channel. All other tensors become bf16, including those of the diffusion head. Such a file "
            "has 0.55 to 0.6 of the size of one in bf16, and --dtype int8 multiplies its weights directly. "
            "int4 does so with weights of 4 bits, and a scale in bf16 for each 32 of a row."};

/* Sets the defaults, and adds the options that set the fields. */
static void convert_set_up(convert_options *o, option_set *set)
{
    *o = (convert_options){0};
    run_options_init(&o->run);
    o->operands[0] =
        (operand){"IN", &o->in, "a checkpoint: .safetensors, .pth, .pt or .ckpt, or a Hugging Face folder", NULL};
    o->operands[1] = (operand){"OUT.safetensors", &o->out, "file to write; of a folder it may be a new folder", NULL};
    *set = (option_set){
        .command = "convert",
        .about = "usage: mar convert IN OUT.safetensors [OPTIONS]\n"
                 "\n"
                 "Writes the model in a checkpoint as safetensors, with its configuration as\n"
                 "metadata; of a training checkpoint the averaged weights (model_ema, SphereAR's\n"
                 "ema) or those of --weights. Refuses what mar inspect finds wrong.\n",
        .example = "example: mar convert checkpoint-last.pth mar_base.safetensors --dtype bf16\n",
        .operands = o->operands,
    };
    options_add(set, &dtype, o, 0);
    options_add(set, &option_overwrite, &o->overwrite, 0);
    run_options_add_file(&o->run, set);
}

enum { LINE = 1024 };

/* A log callback: keeps the last line in user, char [LINE]. */
static void keep_line(void *user, mar_log_level level, const char *line)
{
    (void)level;
    snprintf(user, LINE, "%s", line);
}

/* Prints "wrote OUT: 92 tensors (F16), 1.0 MB": the library's line and the size of the file. */
static void print_written(const char *line, const char *path)
{
    struct stat st;
    printf("%s", line);
    int found = stat(path, &st) == 0;
    if (found && S_ISDIR(st.st_mode)) {
        char model[PATH_MAX];
        snprintf(model, sizeof model, "%s/model.safetensors", path);
        found = stat(model, &st) == 0;
    }
    if (found) printf(", %.1f MB", (double)st.st_size / 1e6);
    putchar('\n');
}

/* Returns 1 if the output may be a folder: the input is one, and the name is none of a file. */
static int may_be_folder(const convert_options *o)
{
    struct stat st;
    return stat(o->in, &st) == 0 && S_ISDIR(st.st_mode) && !tool_ends_with(o->out, ".safetensors");
}

int cmd_convert(int argc, char **argv)
{
    convert_options o;
    option_set set;
    convert_set_up(&o, &set);
    int status = options_read(&set, argc, argv);
    if (status != OPTIONS_RUN) return status;
    if (!may_be_folder(&o) && /* mar_convert fills no folder that has files */
        (tool_can_write_as(o.out, ".safetensors") != 0 || tool_can_replace(o.out, o.overwrite) != 0))
        return 1;
    mar *m;
    int heads;
    char line[LINE] = "";
    progress bar;
    o.run.machine.log = keep_line;
    o.run.machine.log_user = line;
    status = run_open_file(&o.run, &m, &heads);
    if (status) return status;
    progress_start(&bar, 0);
    progress_note(&bar, "converting %s", o.in);
    const mar_status converted = mar_convert(m, o.in, o.out, o.dtype, heads);
    progress_clear(&bar);
    if (converted == MAR_OK)
        print_written(line, o.out);
    else
        status = tool_error("%s", mar_error(m));
    mar_close(m);
    return status;
}
