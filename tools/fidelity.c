/* mar fidelity: is a faster run the same in distribution, and if not, how far off is it? */
#include "tools/fidelity.h"

#include "tools/command.h"
#include "tools/fidelity_compare.h"
#include "tools/fidelity_runs.h"
#include "tools/file.h"
#include "tools/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] = "usage: mar fidelity [OPTIONS] [--versus OPTIONS]... --against OPTIONS\n"
                           "Compares fast runs with a reference run, image by image of the same seed, and\n"
                           "writes a page with speed, distance, acceptance and samples.\n"
                           "  --against OPTIONS  the reference run; without options plain sampling\n"
                           "  --versus OPTIONS   one more fast run, any number of times\n"
                           "A run takes the options of mar generate that make its images: --model, --draft,\n"
                           "--spec, --head_spec, --num_iter ... (mar generate --help, mar methods). Model,\n"
                           "guidance, temperature and arithmetic of the first run hold for the others\n"
                           "unless they say otherwise; steps and shortcuts are each run's own.\n"
                           "For all runs, in any place (and --vae, --seed, --threads, --quiet):\n"
                           "  --num N          images of each run, dealt out to the classes          [200]\n"
                           "  --class LIST     numbers or ImageNet names                  [demo: 0 to 9]\n"
                           "  --out FILE.html  the page                                  [fidelity.html]\n"
                           "  --plot FILE.svg  its plot of distance against time as a picture\n"
                           "  --batch N        images made at a time                                [16]\n"
                           "  --json           print the figures as JSON\n"
                           "Printed: seconds per image, sequential head calls per token, drafts accepted,\n"
                           "energy distance to the reference and what another seed makes of it, p-value of\n"
                           "\"same law\" (permuted within pairs), digits that a classifier recognises.\n"
                           "example: mar fidelity --head_spec 8 --versus --sampler ddim \\\n"
                           "             --num_sampling_steps 20 --against --num 500\n";

enum { NUM_MAX = 10000 };

/* --- what was asked for --------------------------------------------------------------------------------- */

static const char *const separators[] = {"--against", "--versus"};

static int is_separator(const char *argument)
{
    return strcmp(argument, separators[0]) == 0 || strcmp(argument, separators[1]) == 0;
}

/* What the first run says for all: what is sampled and with which arithmetic, not how it is made faster. */
static void inherit(run_options *o, const run_options *first)
{
    run_options_init(o);
    o->model = first->model;
    o->heads = first->heads;
    o->backend = first->backend;
    o->device = first->device;
    o->dtype = first->dtype;
    o->cfg_schedule = first->cfg_schedule;
    o->params.cfg = first->params.cfg;
    o->params.temperature = first->params.temperature;
}

/* argv[0] stands for the command, argv[1..] are the options of one run. */
static int parse_run(fidelity *f, run_options *o, int argc, char **argv)
{
    option shared[RUN_OPTIONS_MAX];
    run_options_list(o, shared);
    const option options[] = {
        /* for all runs: found before those of the same name that a run has */
        {"num", OPTION_INT, .value = &f->num, .min = FIDELITY_NUM_MIN, .max = NUM_MAX},
        {"class", OPTION_TEXT, .value = &f->class_list, .expects = "class numbers or names, separated by commas"},
        {"vae", OPTION_TEXT, .value = &f->vae, .expects = "a file or demo"},
        {"seed", OPTION_UINT64, .value = &f->seed},
        {"threads", OPTION_INT, .value = &f->threads, .min = 1, .max = 1024},
        {"out", OPTION_TEXT, .value = &f->out, .expects = "FILE.html"},
        {"plot", OPTION_TEXT, .value = &f->plot, .expects = "FILE.svg"},
        {"batch", OPTION_INT, .value = &f->batch, .min = 1, .max = 1024},
        {"json", OPTION_FLAG, .value = &f->json},
        {"quiet", OPTION_FLAG, .value = &f->quiet},
        {0},
    };
    const option_set set = {"fidelity", help, options, NULL, shared, &o->given};
    int status = options_parse(&set, argc, argv);
    if (status == OPTIONS_RUN && run_options_done(o) != 0) return 1;
    return status;
}

/* The options from argv[0], "fidelity" or a separator, to the next separator: their number, with argv[0]. */
static int group_length(int argc, char **argv)
{
    int n = 1;
    while (n < argc && !is_separator(argv[n])) n++;
    return n;
}

/* Adds the fast run of one group. In front of the first separator none needs to be: options for all runs may stand
 * there alone. */
static int parse_fast(fidelity *f, int argc, char **argv, int is_first)
{
    run_options o;
    if (f->run_count == FIDELITY_RUNS_MAX)
        return tool_error("--versus: expected %d runs at most", FIDELITY_RUNS_MAX - 1);
    if (f->run_count == 1)
        run_options_init(&o);
    else
        inherit(&o, &f->runs[1].options);
    int status = parse_run(f, &o, argc, argv);
    if (status == OPTIONS_RUN && (!is_first || o.given)) f->runs[f->run_count++].options = o;
    return status;
}

/* Fast runs go to runs[1..] in order, the one behind --against to runs[0]. */
static int parse(fidelity *f, int argc, char **argv)
{
    int against = -1;
    *f = (fidelity){.num = 200, .batch = 16, .out = "fidelity.html", .run_count = 1};
    for (int i = 0; i < argc; i += group_length(argc - i, argv + i)) {
        if (strcmp(argv[i], "--against") != 0) {
            int status = parse_fast(f, group_length(argc - i, argv + i), argv + i, i == 0);
            if (status != OPTIONS_RUN) return status;
        } else if (against >= 0) {
            return tool_error("--against: given twice, expected one reference run");
        } else {
            against = i;
        }
    }
    if (against < 0)
        return tool_error("--against is missing, expected the options of the reference run behind it, or none for "
                          "plain sampling");
    inherit(&f->runs[0].options, &f->runs[1].options);
    int status = parse_run(f, &f->runs[0].options, group_length(argc - against, argv + against), argv + against);
    if (status != OPTIONS_RUN) return status;
    if (f->run_count == 1)
        return tool_error("the fast run is missing, expected its options in front of --against, or --versus");
    for (int i = 0; i < f->run_count; i++) {
        run_options *o = &f->runs[i].options;
        o->vae = f->vae;
        o->threads = f->threads;
        o->params.seed = f->seed;
    }
    return OPTIONS_RUN;
}

/* --- names ---------------------------------------------------------------------------------------------- */

/* What of a run's options is not as in `base`. */
static void write_differences(FILE *out, const run_options *o, const run_options *base)
{
    static const char *const schedules[] = {"linear", "constant"};
    const mar_params *p = &o->params, *q = &base->params;
    char text[1024];
    if (strcmp(o->model, base->model) != 0) fprintf(out, " --model %s", tool_base_name(o->model));
    if (!p->gtr && p->num_iter != q->num_iter) fprintf(out, " --num_iter %d", p->num_iter);
    if (!p->diff_annealing && p->num_sampling_steps != q->num_sampling_steps)
        fprintf(out, " --num_sampling_steps %d", p->num_sampling_steps);
    if (p->cfg != q->cfg) fprintf(out, " --cfg %g", (double)p->cfg);
    if (p->cfg_schedule != q->cfg_schedule) fprintf(out, " --cfg_schedule %s", schedules[p->cfg_schedule]);
    if (p->temperature != q->temperature) fprintf(out, " --temperature %g", (double)p->temperature);
    if (o->backend != base->backend) fprintf(out, " --backend %s", tool_backends[o->backend]);
    if (o->device != base->device) fprintf(out, " --device %d", o->device);
    if (o->dtype != base->dtype) fprintf(out, " --dtype %s", tool_dtypes[o->dtype]);
    if (*run_options_text(o, text, sizeof text)) fprintf(out, " %s", text);
}

/* What sets a run apart from the reference, or the reference from its own model with the default steps. */
static void name_run(const fidelity *f, fidelity_run *r)
{
    const run_options *o = &r->options;
    run_options base = f->runs[0].options;
    char text[1024];
    FILE *out = fmemopen(r->name, sizeof r->name, "w");
    if (!out) return;
    if (r == f->runs) {
        base.params.num_iter = f->positions < 64 ? f->positions : 64;
        base.params.num_sampling_steps = 100;
    }
    if (r == f->runs && !*run_options_text(o, text, sizeof text))
        fprintf(out, " plain sampling, %d autoregressive steps of %d", o->params.num_iter,
                o->params.num_sampling_steps);
    else
        write_differences(out, o, &base);
    if (ftell(out) == 0) fprintf(out, " the same options");
    fclose(out);
    r->name[sizeof r->name - 1] = '\0';
    memmove(r->name, r->name + 1, strlen(r->name));
}

/* --- the command ---------------------------------------------------------------------------------------- */

static int check_files(const fidelity *f)
{
    if (tool_can_write_as(f->out, NULL) != 0) return 1;
    if (f->plot && strcmp(f->plot, f->out) == 0)
        return tool_error("--plot %s: --out writes there, expected another file", f->plot);
    return f->plot ? tool_can_write_as(f->plot, ".svg") : 0;
}

static int make_images(fidelity *f, progress *bar)
{
    fidelity_sessions open = {0};
    int status = fidelity_open(f, bar, &open);
    for (int i = 0; status == 0 && i < f->run_count; i++) name_run(f, &f->runs[i]);
    if (status == 0) status = fidelity_make_images(f, bar, &open);
    fidelity_close(&open);
    return status;
}

static int run(fidelity *f, progress *bar)
{
    int status = check_files(f);
    if (status == 0) status = make_images(f, bar);
    if (status == 0) status = fidelity_time(f);
    if (status == 0) status = fidelity_compare(f, bar);
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
    status = run(&f, &bar);
    for (int i = 0; i < f.run_count; i++) {
        free(f.runs[i].turn_seconds);
        free(f.runs[i].tokens);
        free(f.runs[i].maps);
        acceptance_free(&f.runs[i].accepted);
        free(f.runs[i].rgb);
        free(f.runs[i].ks);
        free(f.runs[i].ks_p);
    }
    free(f.classes);
    return status;
}
