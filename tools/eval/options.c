/* The options of mar eval, and checks across them. */
#include "tools/eval/options.h"

#include "mar_methods.h"

#include "tools/cli/command.h"
#include "tools/generate/devices.h"

#include <stdio.h>
#include <string.h>

enum {
    IMAGES_MAX = 1000000, /* file names have six digits */
    IMAGES_DEFAULT = 50000,
    IMAGES_DEMO = 2000,
    BATCH_DEFAULT = 16
};

/* --- options ------------------------------------------------------------------------------------------------------ */

static const char *const samplings[] = {[EVAL_BALANCED] = "balanced", [EVAL_RANDOM] = "random", NULL};

static const mar_param image_rows[] = {
    {.group = "Images",
     OPTION_INT(eval_options, num_images, 2, IMAGES_MAX),
     .help = "number of images; default 50000, of the demo 2000\n"
             "Published numbers are of 50000. FID of fewer images is biased upwards: below 10000 a warning says "
             "so."},
    {OPTION_CHOICE(eval_options, class_sampling, samplings),
     .help = "balanced: equally many of each class; random: any class\n"
             "balanced is MAR's: image i of n has class i times classes over n, rounded down, so the images of a "
             "class follow one another. random draws the class of each image from the seed and its number alone."},
    {OPTION_TEXT(eval_options, class, "LIST"), .help = "classes: 0-9,207,sea_slug or @FILE; default all\n"
                                                       "As for mar generate."},
    {OPTION_TEXT(eval_options, images, "WHAT"),
     .help =
         "judge these images, a directory or .npz, and make none\n"
         "A directory of PNG, JPEG or WebP files, in subdirectories or not, or arr_0 of an npz, uint8. Options of a "
         "model are refused with it."},
    {0},
};

static const mar_param rows[] = {
    {.group = "Judging",
     OPTION_TEXT(eval_options, stats, "FILE.npz"),
     .help = "reference: statistics, images, or demo\n"
             "Statistics have mu and sigma, such as adm_in256_stats.npz, and mu_s and sigma_s for sFID. Images, a "
             "directory or arr_0 of an npz, are judged by the same network. demo is the built-in statistics of "
             "real digits. Without a reference there is only an Inception score."},
    {OPTION_FLAG(eval_options, precision_recall),
     .help = "keep features for it, even if --stats has none now\n"
             "Precision and recall need features or images of the reference, and are computed whenever --stats has "
             "them. The features of an image take 8 KB of memory when ranges are added up."},
    {.name = OPTION("kid_subset_size"),
     .offset = offsetof(eval_options, judge) + offsetof(judge_options, kid_subset),
     .type = MAR_TYPE_INT,
     .min = 2,
     .max = IMAGES_MAX,
     .help = "images of a subset of KID\n"
             "KID is the mean over 100 subsets, drawn as torch-fidelity draws them. Images and reference must have as "
             "many. Like precision and recall it is computed whenever --stats has features or images."},
    {.name = OPTION("vgg"),
     .offset = offsetof(eval_options, judge) + offsetof(judge_options, vgg),
     .type = MAR_TYPE_TEXT,
     .argument = "FILE",
     .help =
         "VGG16's weights: precision and recall on its features\n"
         "torchvision's vgg16-397923af.pth, or its .safetensors. Features are the second linear layer's before its "
         "ReLU, 4096 numbers, of images resized to 224x224 as Pillow's bilinear does it: as in LANTERN. --stats must "
         "be images. Those of an image take 16 KB of memory."},
    {.group = "Run directory",
     OPTION_TEXT(eval_options, out, "RUN"),
     .help = "directory of the run; an existing run is continued\n"
             "Settings that numbers depend on must equal those of the existing run. With --images it gets "
             "report.html and result.json, which replace those there; without --out nothing is written then."},
    {OPTION_TEXT(eval_options, store, "DIR"),
     .help =
         "where tokens and features are kept; default RUN\n"
         "DIR/runs. Commands with one store make no image twice: not that of another mar eval, of mar generate with "
         "as many of each class, or, with one class, of mar fidelity, which numbers images of several classes "
         "otherwise."},
    {OPTION_INT(eval_options, batch, 1, 1024),
     .help = "images to make and judge at a time\n"
             "It is one of the settings: on a GPU the last bits of a number depend on it."},
    {OPTION_INT(eval_options, shard_images, 1, IMAGES_MAX),
     .help = "images of a shard, up to a multiple of --batch\n"
             "Shards are what is dealt out to processes. The default makes 64 of them at most."},
    {OPTION_TEXT(eval_options, shard, "I/N"),
     .help = "make every N-th shard only, as process I\n"
             "From 1/N to N/N, on any machines that share the directory. The last one adds up. Without it, rank "
             "and number come from the variables of Slurm's job arrays and steps, or from mpirun."},
    {OPTION_FLAG(eval_options, merge),
     .help = "make nothing; add up the existing shards\n"
             "It takes settings from the directory and loads no model, but needs --stats and --inception as in the "
             "run."},
    {OPTION_FLAG(eval_options, save_images), .help = "keep all images: RUN/images/000000.png ..."},
    {OPTION_FLAG(eval_options, save_npz),
     .help = "keep all images: arr_0 in RUN/images.npz, shuffled\n"
             "uint8 in the fixed order of numpy.random.RandomState(0).permutation, as ADM's evaluator expects "
             "them."},
    {.group = "Messages",
     OPTION_FLAG(eval_options, json),
     .help = "print the result as one JSON object\n"
             "The same as in RUN/result.json."},
    {OPTION_FLAG(eval_options, quiet), .help = "print only errors"},
    {0},
};

void eval_options_set_up(eval_options *o, option_set *set)
{
    *set = (option_set){
        .command = "eval",
        .about = "usage: mar eval [OPTIONS]\n"
                 "\n"
                 "Makes images of a model, judges them in memory, and prints FID, KID, Inception\n"
                 "score, sFID, precision and recall, with their protocol. With no options: 2000\n"
                 "digits of the demo against real ones.\n"
                 "\n"
                 "It works in a directory and keeps finished work there. The same command\n"
                 "continues a run that was stopped or killed, and ends with the same numbers, bit\n"
                 "for bit. Several processes can share a run: --shard, or mpirun.\n",
        .word = "images",
        .example = "example: mar eval --model mar_base.pth --vae kl16.ckpt --cfg 2.9 \\\n"
                   "             --num_iter 256 --stats adm_in256_stats.npz \\\n"
                   "             --inception weights-inception-2015-12-05-6726825d.pth --out base\n",
    };
    *o = (eval_options){.out = "evaluation", .batch = BATCH_DEFAULT, .judge.kid_subset = KID_SUBSET_DEFAULT};
    run_options_init(&o->run);
    options_add_table(set, image_rows, o, 0);
    options_add_table(set, score_rows, &o->scores, 0);
    options_add_table(set, judge_rows, &o->judge, 0);
    options_add_table(set, rows, o, 0);
    options_add(set, &devices_option, &o->devices, 0);
    run_options_add(&o->run, set);
}

/* --- checks ------------------------------------------------------------------------------------------------------- */

static int eval_option_given(const option_set *set, const char *name)
{
    const option *o = options_find(set, name);
    return o && o->given;
}

static int check_eval_network(eval_options *o, const option_set *set)
{
    const int own_demo = !o->images && run_is_demo(o->run.model);
    if (!o->judge.features && !o->judge.inception && (o->images || !own_demo) &&
        (scores_option(&o->scores) || o->judge.vgg))
        o->judge.features = "none";
    const char *hint = own_demo ? "; or --features demo" : o->images ? "; or --features demo for digits" : "";
    if (judge_options_done(&o->judge, set, own_demo ? "demo" : "inception", hint) != 0) return 1;
    if (judge_is_demo(&o->judge) && !o->stats) o->stats = "demo";
    return 0;
}

/* Rejects options of a model beside images made elsewhere. */
static int check_images_options(const eval_options *o, const option_set *set)
{
    static const char *const of_models[] = {"num_images", "class_sampling", "class",       "merge",
                                            "shard",      "shard_images",   "save_images", "save_npz",
                                            "store",      "head_dtype",     "int8_below",  "devices"};
    if (!o->images) return 0;
    if (eval_option_given(set, "dtype"))
        return tool_error("--dtype: has no effect with --images, which are made already; the arithmetic of the network "
                          "that judges is --features_dtype");
    for (int i = 0; i < set->count; i++) { /* only the machine's options of a run apply */
        const option *q = &set->options[i];
        if (scores_option(&o->scores) && strcmp(q->param->name, "prompts") == 0) continue;
        if (q->given && q->shared && q->fields != &o->run.machine)
            return tool_error("--%s: has no effect with --images, which are made already", q->param->name);
    }
    for (size_t i = 0; i < sizeof of_models / sizeof *of_models; i++)
        if (eval_option_given(set, of_models[i]))
            return tool_error("--%s: has no effect with --images, which are made already", of_models[i]);
    return 0;
}

/* Checks the options of the scores of prompts. */
static int check_score_options(eval_options *o, const option_set *set)
{
    const char *asked = scores_option(&o->scores);
    if (asked && (o->images || o->run.captions)) {
        o->scores.prompts = o->run.prompts; /* of images made, or captions encoded, elsewhere */
        o->run.prompts = NULL;
    }
    if (eval_option_given(set, "num") && !asked)
        return tool_error("--num: has no effect without --clip, --hps or --imagereward");
    if (!asked || o->merge) return 0;
    if (eval_option_given(set, "num") && !o->images)
        return tool_error("--num: has no effect without --images, expected --num_images, of all prompts");
    if (o->images && !o->scores.prompts)
        return tool_error("--prompts is missing, expected the prompts of the images for %s, one a line", asked);
    if (judge_is_none(&o->judge) && !o->judge.vgg && o->stats)
        return tool_error("--stats: has no effect with %s alone; --inception gives FID", asked);
    return 0;
}

int eval_options_done(eval_options *o, const option_set *set)
{
    o->given = set;
    if (run_options_done(&o->run, set) != 0 || check_images_options(o, set) != 0) return 1;
    if (o->merge && o->devices) return tool_error("--devices: has no effect with --merge, which makes nothing");
    if (o->merge && o->shard) return tool_error("--shard: has no effect with --merge, which makes nothing");
    if (o->num_images == 0) o->num_images = run_is_demo(o->run.model) ? IMAGES_DEMO : IMAGES_DEFAULT;
    if (check_eval_network(o, set) != 0) return 1;
    if (eval_option_given(set, "kid_subset_size") && (judge_is_none(&o->judge) || o->judge.vgg || !o->stats))
        return tool_error("--kid_subset_size: has no effect %s", o->judge.vgg               ? "with --vgg"
                                                                 : judge_is_none(&o->judge) ? "with --features none"
                                                                                            : "without --stats");
    if (judge_is_none(&o->judge) && !scores_option(&o->scores) && !o->judge.vgg)
        return tool_error("--features none: expected --clip, --hps, --imagereward or --vgg with it");
    return check_score_options(o, set);
}
