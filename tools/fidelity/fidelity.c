/* mar fidelity: tests whether a faster run has the same distribution, and measures the difference. */
#include "tools/generate/classes.h"

#include "mar_methods.h"
#include "tools/cli/command.h"
#include "tools/fidelity/compare.h"
#include "tools/fidelity/job.h"
#include "tools/cli/file.h"
#include "tools/cli/options.h"
#include "tools/cli/subcommands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_MAX = 10000 };

/* --- options ------------------------------------------------------------------------------------------------------ */

static const char about[] = "usage: mar fidelity [OPTIONS] [--versus OPTIONS]... --against OPTIONS\n"
                            "\n"
                            "Compares fast runs with a reference run, image by image of the same seed, and\n"
                            "writes a page with speed, distance, acceptance and samples. The options after\n"
                            "--against are those of the reference run; none means plain sampling. --versus\n"
                            "begins another fast run. All runs share the first run's model, sampling and\n"
                            "machine unless they say otherwise. Steps and accelerators are each run's own.\n"
                            "\n"
                            "It prints seconds per image, sequential head calls per token, drafts accepted,\n"
                            "energy distance to the reference and that of another seed, the p-value of\n"
                            "\"same distribution\" (permuted within pairs), and digits recognised.\n";

static const char for_all[] = "For all runs, in any place";
static const mar_param rows[] = {
    {.group = for_all,
     OPTION_INT(fidelity, num, FIDELITY_NUM_MIN, NUM_MAX),
     .help = "images of each run, divided among the classes\n"
             "Image i has class i modulo the number of classes."},
    {OPTION_TEXT(fidelity, class, "LIST"), .help = "numbers, names, all or @FILE; demo: 0 to 9\nAs for mar generate."},
    {OPTION_TEXT(fidelity, out, "FILE.html"), .help = "the page; it needs no other file"},
    {OPTION_TEXT(fidelity, store, "DIR"),
     .help =
         "keep tokens in DIR/runs, and take what is there\n"
         "Images that are there, of this command or, with one class, of mar generate or mar eval, are not made again; "
         "their times are those of when they were made. Times are compared best of runs that are made side by side."},
    {OPTION_TEXT(fidelity, plot, "FILE.svg"), .help = "its plot of distance against time, as a picture"},
    {OPTION_INT(fidelity, batch, 1, 1024), .help = "images to make at a time"},
    {OPTION_FLAG(fidelity, quiet), .help = "print only errors"},
    {0},
};

/* Arguments that begin the options of another run. */
static const char *const separators[] = {"--versus", "--against", NULL};

/* Adds the options of one run and of all. */
static void set_up_run(fidelity *f, run_options *o, option_set *set)
{
    *set = (option_set){
        .command = "fidelity",
        .about = about,
        .separators = separators,
        .example = "example: mar fidelity --head_spec 8 --versus --sampler ddim \\\n"
                   "             --num_sampling_steps 20 --against --num 500\n",
    };
    options_add_table(set, rows, f, 0);
    options_add_under(set, for_all, &option_json, &f->json);
    options_add_under(set, for_all, run_option("vae"), &f->shared); /* found before the run's own */
    options_add_under(set, for_all, run_option("seed"), &f->shared.params);
    options_add_under(set, for_all, run_option("threads"), &f->shared.machine);
    run_options_add(o, set);
}

/* Returns the number of options from argv[0], "fidelity" or a separator, to the next separator, with argv[0]. */
static int group_length(int argc, char **argv)
{
    int n = 1;
    while (n < argc && strcmp(argv[n], "--against") != 0 && strcmp(argv[n], "--versus") != 0) n++;
    return n;
}

/* Parses the options of one run, argv[1..] up to the next separator. argv[0] stands for the command. */
static int parse_run(fidelity *f, run_options *o, int argc, char **argv)
{
    option_set set;
    set_up_run(f, o, &set);
    const int status = options_read(&set, group_length(argc, argv), argv);
    if (status != OPTIONS_RUN) return status;
    return run_options_done(o, &set) ? 1 : OPTIONS_RUN;
}

/* Adds the fast run of one group. The group in front of the first separator may have only options for all runs, and
 * then adds none. */
static int parse_fast_run(fidelity *f, int argc, char **argv, int is_first)
{
    run_options o;
    if (f->run_count == FIDELITY_RUNS_MAX)
        return tool_error("--versus: expected %d runs at most", FIDELITY_RUNS_MAX - 1);
    if (f->run_count == 1)
        run_options_init(&o);
    else
        run_options_inherit(&o, &f->runs[1].options);
    const int status = parse_run(f, &o, argc, argv);
    if (status == OPTIONS_RUN && (!is_first || o.given)) f->runs[f->run_count++].options = o;
    return status;
}

/* Copies the shared options to all runs. */
static void share_options(fidelity *f)
{
    for (int i = 0; i < f->run_count; i++) {
        run_options *o = &f->runs[i].options;
        o->vae = f->shared.vae;
        o->machine.threads = f->shared.machine.threads;
        o->params.seed = f->shared.params.seed;
    }
}

/* Parses all groups. Fast runs go to runs[1..] in order, the one behind --against to runs[0]. */
static int parse_runs(fidelity *f, int argc, char **argv)
{
    int against = -1, status = OPTIONS_RUN;
    *f = (fidelity){.num = 200, .batch = 16, .out = "fidelity.html", .run_count = 1};
    for (int i = 0; i < argc; i += group_length(argc - i, argv + i)) {
        if (strcmp(argv[i], "--against") != 0)
            status = parse_fast_run(f, argc - i, argv + i, i == 0);
        else if (against >= 0)
            return tool_error("--against: given twice, expected one reference run");
        else
            against = i;
        if (status != OPTIONS_RUN) return status;
    }
    if (against < 0)
        return tool_error("--against is missing, expected the options of the reference run behind it, or none for "
                          "plain sampling");
    run_options_inherit(&f->runs[0].options, &f->runs[1].options);
    status = parse_run(f, &f->runs[0].options, argc - against, argv + against);
    if (status != OPTIONS_RUN) return status;
    if (f->run_count == 1)
        return tool_error("the fast run is missing, expected its options in front of --against, or --versus");
    share_options(f);
    return OPTIONS_RUN;
}

/* --- the command ---------------------------------------------------------------------------------------- */

static int fidelity_execute(fidelity *f)
{
    if (classes_check_files(f->class) != 0 || tool_can_write_as(f->out, ".html") != 0 ||
        (f->plot && tool_can_write_as(f->plot, ".svg") != 0))
        return 1;
    int status = fidelity_open(f);
    if (status == 0) status = fidelity_open_stores(f);
    if (status == 0) status = fidelity_make_images(f);
    fidelity_close(f);
    if (status == 0) status = fidelity_time(f);
    if (status == 0) status = fidelity_compare(f);
    if (status == 0) status = report_write_html(f, f->out);
    if (status == 0 && f->plot) status = report_write_plot(f, f->plot);
    if (status != 0) return status;
    if (f->json) return report_print_json(f);
    if (!f->quiet) report_print_table(f);
    return 0;
}

int cmd_fidelity(int argc, char **argv)
{
    static fidelity f; /* too large for the stack */
    progress bar;
    int status = parse_runs(&f, argc, argv);
    if (status != OPTIONS_RUN) return status;
    progress_start(&bar, f.quiet);
    f.bar = &bar;
    status = fidelity_execute(&f);
    for (int i = 0; i < f.run_count; i++) fidelity_free_run(&f.runs[i]);
    free(f.classes);
    return status;
}
