/* mar stats: computes reference statistics of images, for mar eval --stats. */
#include "tools/cli/command.h"

#include "mar_eval.h"
#include "mar_methods.h"
#include "tools/cli/file.h"
#include "tools/cli/interruption.h"
#include "tools/eval/judge.h"
#include "tools/generate/models.h"
#include "tools/cli/run_options.h"
#include "tools/cli/subcommands.h"

#include <stdio.h>
#include <string.h>

enum { BATCH_DEFAULT = 16 };

typedef struct {
    const char *images;  /* a directory or an npz */
    const char *out;     /* output file */
    judge_options judge; /* the network */
    int keep_features;   /* 1: write the features of single images, too */
    int overwrite;       /* 1: replace an existing output */
    int batch;           /* images at a time */
    int quiet;
    mar_options machine;
    operand operands[2]; /* ends with a NULL name */
} stats_options;

static const mar_param rows[] = {
    {.group = "Options",
     OPTION_TEXT(stats_options, out, "FILE.npz"),
     .help = "file to write, completely or not at all\n"
             "It has mu and sigma in float64, num_images, and mu_s and sigma_s if the network has spatial "
             "features."},
    {OPTION_FLAG(stats_options, keep_features),
     .help = "also write the features of every image\n"
             "Precision and recall need them. They take 8 KB an image, all in memory until the file is written."},
    {OPTION_INT(stats_options, batch, 1, 1024), .help = "images to judge at a time: memory against speed"},
    {OPTION_FLAG(stats_options, quiet), .help = "no progress and no summary; errors only"},
    {0},
};

/* Sets the defaults, and adds the options that set the fields. */
static void set_up_stats(stats_options *o, option_set *set)
{
    *o = (stats_options){.batch = BATCH_DEFAULT};
    mar_options_init(&o->machine, sizeof o->machine);
    o->operands[0] =
        (operand){"IMAGES", &o->images, "a directory of images, in subdirectories or not, or an npz with arr_0", NULL};
    *set = (option_set){
        .command = "stats",
        .about = "usage: mar stats IMAGES --out FILE.npz --inception FILE [OPTIONS]\n"
                 "\n"
                 "Writes reference statistics of images for mar eval --stats: mean and covariance\n"
                 "of their features, in double precision. It reads one batch after another, so\n"
                 "memory does not grow with the number of images. A directory is read with all\n"
                 "below it: PNG, JPEG and, in a build with libwebp, WebP.\n",
        .example = "example: mar stats imagenet/train --resize clean --out train.npz \\\n"
                   "             --inception weights-inception-2015-12-05-6726825d.pth\n",
        .operands = o->operands,
    };
    options_add_table(set, rows, o, 0);
    options_add(set, &option_overwrite, &o->overwrite, 0);
    options_add_table(set, judge_rows, &o->judge, 0);
    for (int i = 0; i < mar_option_count(); i++) /* there is no model for these options */
        if (strcmp(mar_option_get(i)->name, "dtype") != 0 && strcmp(mar_option_get(i)->name, "head_dtype") != 0 &&
            strcmp(mar_option_get(i)->name, "seq_len") != 0 && strcmp(mar_option_get(i)->name, "size") != 0 &&
            strcmp(mar_option_get(i)->name, "int8_below") != 0)
            options_add(set, mar_option_get(i), &o->machine, 1);
}

static int check_stats_options(stats_options *o, const option_set *set)
{
    if (!o->out) return tool_error("--out is missing, expected the file to write, such as stats.npz");
    if (judge_options_done(&o->judge, set, "inception", "; or --features demo for digits") != 0) return 1;
    if (judge_is_none(&o->judge)) return tool_error("--features none: expected a network for the statistics");
    return tool_can_write_as(o->out, ".npz") != 0 || tool_can_replace(o->out, o->overwrite) != 0;
}

static int write_statistics(const stats_options *o, judged *d, const char *network)
{
    char why[512];
    eval_reference reference = {0};
    int status = judge_reference_of(d, o->images, &reference);
    const int clean = reference.resize = o->judge.resize == JUDGE_CLEAN;
    if (status == 0 && eval_reference_save(o->out, &reference, why, sizeof why) != MAR_OK)
        status = tool_error("%s", why);
    if (status == 0 && !o->quiet)
        printf("%s: %ld images of %s%dx%d%s, mean and covariance of %d features of %s%s%s%s%s\n", o->out,
               reference.images, clean || d->other_sizes ? "sizes such as " : "", d->width, d->height,
               clean ? ", resized as clean-fid" : "", reference.dim, network, o->judge.inception ? " in " : "",
               o->judge.inception ? judge_dtypes[o->judge.dtype] : "", reference.spatial ? ", spatial features" : "",
               reference.features ? ", features of every image" : "");
    eval_reference_free(&reference);
    return status;
}

static int execute_stats(const stats_options *o)
{
    model_store store = {.quiet = o->quiet};
    progress bar;
    judge j;
    judged d = {0};
    progress_start(&bar, o->quiet);
    int status = judge_open(&o->judge, &store, &o->machine, o->batch, &bar, &j);
    j.keep_features = o->keep_features;
    if (status == 0) status = judge_images(&j, o->images, &d);
    if (status == 0) status = write_statistics(o, &d, mar_features_get_config(j.network)->name);
    judged_free(&d);
    judge_close(&j);
    models_free(&store);
    return status;
}

int cmd_stats(int argc, char **argv)
{
    stats_options o;
    option_set set;
    set_up_stats(&o, &set);
    const int status = options_read(&set, argc, argv);
    if (status != OPTIONS_RUN) return status;
    if (run_machine_done(&o.machine, &set) != 0 || check_stats_options(&o, &set) != 0) return 1;
    interruption_ends();
    return execute_stats(&o);
}
