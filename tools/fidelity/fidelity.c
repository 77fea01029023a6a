/* mar fidelity: tests whether a faster run has the same distribution, and measures the difference. */
#include "tools/generate/classes.h"

#include "mar_methods.h"
#include "tools/cli/command.h"
#include "tools/fidelity/compare.h"
#include "tools/fidelity/job.h"
#include "tools/fidelity/search.h"
#include "tools/cli/file.h"
#include "tools/cli/options.h"
#include "tools/cli/subcommands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_MAX = 10000 };

/* --- options ------------------------------------------------------------------------------------------------------ */

static const char about[] = "usage: mar fidelity [OPTIONS] [--versus OPTIONS]... --against OPTIONS\n"
                            "       mar fidelity --search [OPTIONS]\n"
                            "\n"
                            "Compares fast runs with a reference run, image by image of the same seed, and\n"
                            "writes a page with speed, distance, acceptance and samples. The options after\n"
                            "--against are those of the reference run; none means plain sampling. --versus\n"
                            "begins another fast run. All runs share the first run's model, sampling and\n"
                            "machine unless they say otherwise. Steps and accelerators are each run's own.\n"
                            "\n"
                            "It prints seconds per image, sequential head calls per token, drafts accepted,\n"
                            "energy distance to the reference and that of another seed, the p-value of\n"
                            "\"same distribution\" (permuted within pairs), and digits recognised.\n"
                            "\n"
                            "With --search the options are the reference's. It tries combinations of\n"
                            "accelerators on this machine and prints the front of speed against distance,\n"
                            "with a command line for each level of closeness. It continues where it was\n"
                            "stopped, from the images and times in --store.\n";

static const char for_all[] = "For all runs, in any place";
static const char for_search[] = "For a search";
static const mar_param rows[] = {
    {.name = OPTION("num"),
     .offset = offsetof(fidelity, num),
     .group = for_all,
     .type = MAR_TYPE_INT,
     .min = FIDELITY_NUM_MIN,
     .max = NUM_MAX,
     .help = "images of each run, divided among the classes\n"
             "Image i has class i modulo the number of classes."},
    {.name = OPTION("class"),
     .offset = offsetof(fidelity, class_list),
     .type = MAR_TYPE_TEXT,
     .argument = "LIST",
     .help = "numbers, names, all or @FILE; demo: 0 to 9\nAs for mar generate."},
    {.name = OPTION("out"),
     .offset = offsetof(fidelity, out),
     .type = MAR_TYPE_TEXT,
     .argument = "FILE.html",
     .help = "the page; it needs no other file"},
    {.name = OPTION("store"),
     .offset = offsetof(fidelity, store),
     .type = MAR_TYPE_TEXT,
     .argument = "DIR",
     .help =
         "keep tokens in DIR/runs, and take what is there\n"
         "Images that are there, of this command or, with one class, of mar generate or mar eval, are not made again; "
         "their times are "
         "those of when they were made. Times are compared best of runs that are made side by side. The default of a "
         "search is the page's name without .html, else nothing is kept."},
    {.name = OPTION("plot"),
     .offset = offsetof(fidelity, plot),
     .type = MAR_TYPE_TEXT,
     .argument = "FILE.svg",
     .help = "its plot of distance against time, as a picture"},
    {.name = OPTION("batch"),
     .offset = offsetof(fidelity, batch),
     .type = MAR_TYPE_INT,
     .min = 1,
     .max = 1024,
     .help = "images to make at a time"},
    {.name = OPTION("quiet"), .offset = offsetof(fidelity, quiet), .type = MAR_TYPE_FLAG, .help = "print only errors"},
    {.name = OPTION("search"),
     .offset = offsetof(fidelity, search),
     .group = for_search,
     .type = MAR_TYPE_FLAG,
     .help = "find the fastest options at each distance\n"
             "Tries autoregressive steps, the head's chain, caches, int8 and, with --draft, speculation, alone and "
             "together. It proposes the fastest options that are as near to the reference as another seed, twice "
             "as far, and four times as far. The default of --out is then search.html."},
    {.name = OPTION("points"),
     .offset = offsetof(fidelity, points),
     .type = MAR_TYPE_INT,
     .min = 1,
     .max = SEARCH_POINTS_MAX,
     .help = "combinations to try, at most\n"
             "With --screen, up to 12 of them are measured with all images."},
    {.name = OPTION("screen"),
     .offset = offsetof(fidelity, screen),
     .type = MAR_TYPE_INT,
     .min = FIDELITY_NUM_MIN,
     .max = NUM_MAX,
     .help = "images of such a trial; the default is --num\n"
             "Fewer images take less time. Their distances scatter by more than accelerators differ, so a far one "
             "may look near and be the only one measured with all images."},
    {0},
};

/* Arguments that begin the options of another run. */
static const char *const separators[] = {"--versus", "--against", NULL};

/* Adds the options of one run and of all. */
static void set_up(fidelity *f, run_options *o, option_set *set)
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

static const char default_page[] = "fidelity.html", default_search_page[] = "search.html";

/* Rejects options that exclude --search, or need it. `separator`: the first one on the command line; NULL: none. */
static int check_search(const fidelity *f, const option_set *set, const char *separator)
{
    if (f->search && separator)
        return tool_error("%s: has no place with --search, whose options are the reference's", separator);
    for (int i = 0; i < set->count; i++) {
        const option *q = &set->options[i];
        const char *name = q->param->name;
        if (!q->given) continue;
        if (!f->search && (strcmp(name, "points") == 0 || strcmp(name, "screen") == 0))
            return tool_error("--%s: needs --search", name);
        if (!f->search) continue;
        if (strcmp(name, "plot") == 0) return tool_error("--plot: has no place with --search, whose page has a plot");
        if (strcmp(name, "fast") == 0 || run_is_accelerator(q->param))
            return tool_error("--%s: has no place with --search, which tries the accelerators itself", name);
    }
    return 0;
}

/* Returns the number of options from argv[0], "fidelity" or a separator, to the next separator, with argv[0]. */
static int group_length(int argc, char **argv)
{
    int n = 1;
    while (n < argc && strcmp(argv[n], "--against") != 0 && strcmp(argv[n], "--versus") != 0) n++;
    return n;
}

/* Parses the options of one run, argv[1..] up to the next separator. argv[0] stands for the command. `separator` as in
 * check_search. */
static int parse_run(fidelity *f, run_options *o, int argc, char **argv, const char *separator)
{
    option_set set;
    set_up(f, o, &set);
    const int status = options_read(&set, group_length(argc, argv), argv);
    if (status != OPTIONS_RUN) return status;
    return check_search(f, &set, separator) || run_options_done(o, &set) ? 1 : OPTIONS_RUN;
}

/* Takes the options of a search as the reference's. The draft is for the points. */
static int take_search(fidelity *f, const run_options *o)
{
    if (o->self_is_path)
        return tool_error("--draft self: has no place with --search, which tries the accelerators itself");
    f->runs[0].options = *o;
    f->search_draft = o->draft;
    f->runs[0].options.draft = NULL;
    if (f->out == default_page) f->out = default_search_page;
    return OPTIONS_RUN;
}

/* Adds the fast run of one group. The group in front of the first separator may have only options for all runs, and
 * then adds none. */
static int parse_fast(fidelity *f, int argc, char **argv, const char *separator, int is_first)
{
    run_options o;
    if (f->run_count == FIDELITY_RUNS_MAX)
        return tool_error("--versus: expected %d runs at most", FIDELITY_RUNS_MAX - 1);
    if (f->run_count == 1)
        run_options_init(&o);
    else
        run_options_inherit(&o, &f->runs[1].options);
    const int status = parse_run(f, &o, argc, argv, separator);
    if (status == OPTIONS_RUN && f->search) return take_search(f, &o);
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
static int parse(fidelity *f, int argc, char **argv)
{
    const int first = group_length(argc, argv);
    const char *separator = first < argc ? argv[first] : NULL;
    int against = -1, status = OPTIONS_RUN;
    *f = (fidelity){.num = 200, .batch = 16, .out = default_page, .run_count = 1, .points = 40};
    for (int i = 0; i < argc; i += group_length(argc - i, argv + i)) {
        if (strcmp(argv[i], "--against") != 0)
            status = parse_fast(f, argc - i, argv + i, separator, i == 0);
        else if (against >= 0)
            return tool_error("--against: given twice, expected one reference run");
        else
            against = i;
        if (status != OPTIONS_RUN) return status;
    }
    if (!f->search && against < 0)
        return tool_error("--against is missing, expected the options of the reference run behind it, or none for "
                          "plain sampling");
    if (against >= 0) {
        run_options_inherit(&f->runs[0].options, &f->runs[1].options);
        status = parse_run(f, &f->runs[0].options, argc - against, argv + against, separator);
        if (status != OPTIONS_RUN) return status;
        if (f->run_count == 1)
            return tool_error("the fast run is missing, expected its options in front of --against, or --versus");
    }
    share_options(f);
    return OPTIONS_RUN;
}

/* --- the command ---------------------------------------------------------------------------------------- */

static int check_files(const fidelity *f)
{
    if (classes_check_files(f->class_list) != 0 || tool_can_write_as(f->out, ".html") != 0) return 1;
    return f->plot ? tool_can_write_as(f->plot, ".svg") : 0;
}

static int make_images(fidelity *f)
{
    int status = fidelity_open(f);
    if (status == 0) status = fidelity_open_stores(f, 0, f->run_count);
    for (int i = 0; status == 0 && i < f->run_count; i++) fidelity_name_run(f, &f->runs[i]);
    if (status == 0) status = fidelity_make_images(f);
    fidelity_close(f);
    return status;
}

static int run(fidelity *f)
{
    int status = check_files(f);
    if (status == 0) status = make_images(f);
    if (status == 0) status = fidelity_time(f, f->num);
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
    int status = parse(&f, argc, argv);
    if (status != OPTIONS_RUN) return status;
    progress_start(&bar, f.quiet);
    f.bar = &bar;
    status = f.search ? fidelity_search(&f) : run(&f);
    for (int i = 0; i < f.run_count; i++) fidelity_free_run(&f.runs[i]);
    free(f.classes);
    return status;
}
