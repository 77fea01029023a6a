/* mar fidelity: is a faster run the same in distribution, and if not, how far off is it? */
#include "tools/fidelity.h"

#include "eval/classifier.h"
#include "tools/classes.h"
#include "tools/command.h"
#include "tools/image.h"
#include "tools/progress.h"
#include "tools/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NUM_MAX = 10000,
    SHOWN_PIXELS = 100000, /* of a run's samples on the page */
    SHOWN_MIN = 8,
    SHOWN_MAX = 60
};

/* --- what was asked for --------------------------------------------------------------------------------- */

static const char *const separators[] = {"--against", "--versus"};

static int is_separator(const char *argument)
{
    return strcmp(argument, separators[0]) == 0 || strcmp(argument, separators[1]) == 0;
}

static const char about[] = "usage: mar fidelity [OPTIONS] [--versus OPTIONS]... --against OPTIONS\n"
                            "\n"
                            "Compares fast runs with a reference run, image by image of the same seed, and\n"
                            "writes a page with speed, distance, acceptance and samples. Behind --against are\n"
                            "the options of the reference run, none for plain sampling; --versus begins one\n"
                            "more fast run. What the first run says of model, sampling and machine holds for\n"
                            "the others, unless they say otherwise; steps and ways to be faster are each\n"
                            "run's own.\n"
                            "\n"
                            "Printed: seconds per image, sequential head calls per token, drafts accepted,\n"
                            "energy distance to the reference and what another seed makes of it, p-value of\n"
                            "\"same law\" (permuted within pairs), digits that a classifier recognises.\n";

static const char for_all[] = "For all runs, in any place";
static const mar_param rows[] = {
    {.name = "num",
     .offset = offsetof(fidelity, num),
     .group = for_all,
     .type = MAR_TYPE_INT,
     .min = FIDELITY_NUM_MIN,
     .max = NUM_MAX,
     .help = "images of each run, dealt out to the classes\n"
             "Image i is of class i modulo the number of classes."},
    {.name = "class",
     .offset = offsetof(fidelity, class_list),
     .group = for_all,
     .type = MAR_TYPE_TEXT,
     .argument = "LIST",
     .help = "numbers or ImageNet names; demo: 0 to 9\nAs for mar generate."},
    {.name = "out",
     .offset = offsetof(fidelity, out),
     .group = for_all,
     .type = MAR_TYPE_TEXT,
     .argument = "FILE.html",
     .help = "the page; it needs no other file"},
    {.name = "batch",
     .offset = offsetof(fidelity, batch),
     .group = for_all,
     .type = MAR_TYPE_INT,
     .min = 1,
     .max = 1024,
     .help = "images made at a time"},
    {.name = "json",
     .offset = offsetof(fidelity, json),
     .group = for_all,
     .type = MAR_TYPE_FLAG,
     .help = "print all figures as one JSON object"},
    {.name = "quiet",
     .offset = offsetof(fidelity, quiet),
     .group = for_all,
     .type = MAR_TYPE_FLAG,
     .help = "print only errors"},
    {0},
};

/* argv[0] stands for the command, argv[1..] are the options of one run. */
static int parse_run(fidelity *f, run_options *o, int argc, char **argv)
{
    const mar_param all[] = {option_at(run_option("vae"), offsetof(fidelity, vae), for_all),
                             option_at(run_option("seed"), offsetof(fidelity, seed), for_all),
                             option_at(run_option("threads"), offsetof(fidelity, threads), for_all),
                             {0}}; /* found before the run's own */
    option_set set = {
        .command = "fidelity",
        .about = about,
        .example = "example: mar fidelity --head_spec 8 --versus --sampler ddim \\\n"
                   "             --num_sampling_steps 20 --against --num 500\n",
    };
    options_add_table(&set, rows, f, 0);
    options_add_table(&set, all, f, 0);
    run_options_add(o, &set);
    int status = options_parse(&set, argc, argv);
    if (status == OPTIONS_RUN && run_options_done(o, &set) != 0) return 1;
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
        run_options_inherit(&o, &f->runs[1].options);
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
    run_options_inherit(&f->runs[0].options, &f->runs[1].options);
    int status = parse_run(f, &f->runs[0].options, group_length(argc - against, argv + against), argv + against);
    if (status != OPTIONS_RUN) return status;
    if (f->run_count == 1)
        return tool_error("the fast run is missing, expected its options in front of --against, or --versus");
    for (int i = 0; i < f->run_count; i++) {
        run_options *o = &f->runs[i].options;
        o->vae = f->vae;
        o->machine.threads = f->threads;
        o->params.seed = f->seed;
    }
    return OPTIONS_RUN;
}

/* --- names ---------------------------------------------------------------------------------------------- */

/* What sets a run apart from the reference, or the reference from plain sampling. */
static void name_run(const fidelity *f, fidelity_run *r)
{
    const run_options *o = &r->options;
    run_options plain;
    if (r != f->runs) {
        if (!*run_options_differences(o, &f->runs[0].options, r->name, sizeof r->name))
            snprintf(r->name, sizeof r->name, "the same options");
    } else if (!*run_options_ways(o, r->name, sizeof r->name)) {
        snprintf(r->name, sizeof r->name, "plain sampling, %d autoregressive steps of %d", o->params.num_iter,
                 o->params.num_sampling_steps);
    } else {
        run_options_inherit(&plain, o);
        run_options_differences(o, &plain, r->name, sizeof r->name);
    }
}

/* --- one run -------------------------------------------------------------------------------------------- */

typedef struct {
    run_models models;
    mar_session *session;
} workshop;

static void close_workshop(workshop *w)
{
    mar_session_free(w->session);
    run_unload(&w->models);
}

static int open_workshop(const fidelity *f, fidelity_run *r, progress *bar, workshop *w)
{
    *w = (workshop){0};
    if (run_load(&r->options, bar, &w->models) == 0) {
        if (run_session(&r->options, &w->models, f->batch, &w->session) == MAR_OK) return 0;
        tool_error("%s", mar_error(w->models.library));
    }
    close_workshop(w);
    return 1;
}

static int resolve_classes(fidelity *f, const mar_model_config *model)
{
    f->class_total = model->classes;
    if (f->class_list) {
        char why[1024];
        if (classes_parse(f->class_list, f->class_total, &f->classes, &f->class_count, why, sizeof why) != 0)
            return tool_error("--class: %s", why);
        return 0;
    }
    if (!run_is_demo(f->runs[0].options.model) && f->class_total > 10)
        return tool_error("--class is missing, expected numbers from 0 to %d", f->class_total - 1);
    f->class_count = f->class_total;
    f->classes = malloc((size_t)f->class_count * sizeof *f->classes);
    if (!f->classes) return tool_error("out of memory for %d classes", f->class_count);
    for (int i = 0; i < f->class_count; i++) f->classes[i] = i;
    return 0;
}

/* Takes sizes from the reference. */
static int resolve(fidelity *f, const workshop *w)
{
    const mar_model_config *model = mar_model_get_config(w->models.model);
    f->positions = model->seq_len;
    f->channels = model->token_dim;
    f->side = (int)lround(sqrt(f->positions));
    mar_session_image_size(w->session, &f->width, &f->height);
    f->judged = model->classes == EVAL_DIGITS && f->width == EVAL_DIGIT_SIDE && f->height == EVAL_DIGIT_SIDE;
    if (f->width) {
        f->shown = SHOWN_PIXELS / (f->width * f->height);
        if (f->shown < SHOWN_MIN) f->shown = SHOWN_MIN;
        if (f->shown > SHOWN_MAX) f->shown = SHOWN_MAX;
        if (f->shown > f->num) f->shown = f->num;
    }
    snprintf(f->backend, sizeof f->backend, "%s", mar_backend_description(w->models.library));
    return resolve_classes(f, model);
}

static int same_shape(const fidelity *f, const fidelity_run *r, const workshop *w)
{
    const mar_model_config *model = mar_model_get_config(w->models.model);
    int width, height;
    mar_session_image_size(w->session, &width, &height);
    if (model->seq_len != f->positions || model->token_dim != f->channels || model->classes != f->class_total)
        return tool_error(
            "%s: %d tokens of %d channels and %d classes, expected %d of %d and %d as in the reference %s",
            r->options.model, model->seq_len, model->token_dim, model->classes, f->positions, f->channels,
            f->class_total, f->runs[0].options.model);
    if (width != f->width || height != f->height)
        return tool_error("--vae: images of %dx%d, expected %dx%d as in the reference", width, height, f->width,
                          f->height);
    return 0;
}

/* A mistake in the last run's options must not cost the time of the first: every run is opened once and closed. */
static int check_runs(fidelity *f, progress *bar)
{
    if (f->batch > f->num) f->batch = f->num;
    for (int i = 0; i < f->run_count; i++) {
        workshop w;
        if (open_workshop(f, &f->runs[i], bar, &w) != 0) return 1;
        int failed = i == 0 ? resolve(f, &w) : same_shape(f, &f->runs[i], &w);
        close_workshop(&w);
        if (failed) return 1;
        name_run(f, &f->runs[i]);
    }
    return 0;
}

static int allocate_run(const fidelity *f, fidelity_run *r)
{
    const size_t image_size = (size_t)f->positions * (size_t)f->channels;
    r->tokens = malloc((size_t)f->num * image_size * sizeof *r->tokens);
    r->maps = malloc(3 * FIDELITY_MAPS * (size_t)f->side * (size_t)f->side);
    r->rgb = malloc((size_t)f->shown * (size_t)f->width * (size_t)f->height * 3 + 1);
    r->ks = malloc((size_t)f->channels * sizeof *r->ks);
    r->ks_p = malloc((size_t)f->channels * sizeof *r->ks_p);
    if (r->tokens && r->maps && r->rgb && r->ks && r->ks_p &&
        acceptance_create(f->positions, r->options.params.num_iter, f->batch, &r->accepted) == 0)
        return 0;
    return tool_error("out of memory for the tokens of %d images; a smaller --num needs less", f->num);
}

static long count_recognised(eval_classifier *judge, const uint8_t *rgb, const int *labels, int n)
{
    long right = 0;
    for (int i = 0; i < n; i++) {
        float logits[EVAL_DIGITS];
        int best = 0;
        eval_classify(judge, rgb + (size_t)i * EVAL_DIGIT_SIDE * EVAL_DIGIT_SIDE * 3, logits);
        for (int k = 1; k < EVAL_DIGITS; k++)
            if (logits[k] > logits[best]) best = k;
        right += best == labels[i];
    }
    return right;
}

/* Keeps what the finished batch says of its images. */
static mar_status keep_batch(fidelity *f, fidelity_run *r, mar_session *session, int n)
{
    mar_stats stats;
    const size_t map = 3 * (size_t)f->side * (size_t)f->side;
    mar_session_get_stats(session, &stats);
    stats_add(&r->stats, &stats);
    mar_status status = acceptance_add(&r->accepted, session, n);
    for (int i = 0; status == MAR_OK && i < n && r->map_count < FIDELITY_MAPS; i++)
        acceptance_draw(&r->accepted, i, f->side, f->side, r->maps + map * (size_t)r->map_count++);
    return status;
}

/* Images first..first+n-1 of run number `index`; rgb has room for a batch. */
static int make_batch(fidelity *f, int index, workshop *w, int first, int n, int *labels, uint8_t *rgb,
                      eval_classifier *judge, progress *bar)
{
    fidelity_run *r = &f->runs[index];
    const size_t at = (size_t)first * (size_t)f->positions, pixels = (size_t)f->width * (size_t)f->height * 3;
    const double all = (double)f->num * f->run_count;
    const long finished = (long)index * f->num + first;
    for (int i = 0; i < n; i++) labels[i] = f->classes[(first + i) % f->class_count];
    mar_status status = mar_session_begin(w->session, (uint64_t)first, labels, n);
    const double steps = mar_session_steps_left(w->session) + 1; /* the image decoder counts as one more */
    while (status == MAR_OK && !mar_session_done(w->session)) {
        const double left = mar_session_steps_left(w->session) + 1;
        progress_update(bar, ((double)finished + n * (1 - left / steps)) / all, finished, (long)all);
        status = mar_session_step(w->session);
    }
    if (status == MAR_OK) status = mar_session_tokens(w->session, r->tokens + at * (size_t)f->channels);
    if (status == MAR_OK && f->width) status = mar_session_images(w->session, rgb);
    if (status == MAR_OK) status = keep_batch(f, r, w->session, n);
    if (status != MAR_OK) return tool_error("%s", mar_error(w->models.library));
    for (int i = 0; i < n && first + i < f->shown; i++)
        memcpy(r->rgb + (size_t)(first + i) * pixels, rgb + (size_t)i * pixels, pixels);
    if (judge) r->recognised += count_recognised(judge, rgb, labels, n);
    progress_update(bar, (double)(finished + n) / all, finished + n, (long)all);
    return 0;
}

static int finite_tokens(const fidelity *f, const fidelity_run *r)
{
    const size_t size = (size_t)f->positions * (size_t)f->channels;
    for (size_t i = 0; i < (size_t)f->num * size; i++)
        if (!isfinite(r->tokens[i]))
            return tool_error("%s: image %zu has a token that is no number, expected finite ones", r->name, i / size);
    return 0;
}

static int make_run(fidelity *f, int index, eval_classifier *judge, progress *bar)
{
    fidelity_run *r = &f->runs[index];
    workshop w;
    if (allocate_run(f, r) != 0 || open_workshop(f, r, bar, &w) != 0) return 1;
    snprintf(r->guarantee, sizeof r->guarantee, "%s", mar_session_guarantee(w.session));
    uint8_t *rgb = malloc((size_t)f->batch * (size_t)f->width * (size_t)f->height * 3 + 1);
    int *labels = malloc((size_t)f->batch * sizeof *labels);
    int failed = !rgb || !labels ? tool_error("out of memory for %d images", f->batch) : 0;
    for (int first = 0; first < f->num && !failed; first += f->batch) {
        const int n = f->num - first < f->batch ? f->num - first : f->batch;
        failed = make_batch(f, index, &w, first, n, labels, rgb, judge, bar);
    }
    free(rgb);
    free(labels);
    close_workshop(&w);
    return failed || finite_tokens(f, r);
}

/* --- comparison ----------------------------------------------------------------------------------------- */

static int compare(const fidelity *f, fidelity_run *r)
{
    const eval_pairs pairs = {f->num, f->positions, f->channels, r->tokens, f->runs[0].tokens};
    const size_t size = (size_t)f->positions * (size_t)f->channels;
    mar_err err = {0};
    mar_status status = eval_energy(&pairs, FIDELITY_PERMUTATIONS, &r->image, &r->token, &err);
    if (status == MAR_OK) status = eval_ks(&pairs, FIDELITY_PERMUTATIONS, r->ks, r->ks_p, &err);
    if (status == MAR_OK) status = eval_moment_gaps(&pairs, &r->mean_gap, &r->covariance_gap, &err);
    if (status != MAR_OK) return tool_error("%s", err.text);
    for (int i = 0; i < f->num; i++)
        r->differing +=
            memcmp(r->tokens + (size_t)i * size, f->runs[0].tokens + (size_t)i * size, size * sizeof *r->tokens) != 0;
    r->identical = r->differing == 0;
    for (int c = 1; c < f->channels; c++)
        if (r->ks_p[c] < r->ks_p[r->ks_channel] ||
            (r->ks_p[c] == r->ks_p[r->ks_channel] && r->ks[c] > r->ks[r->ks_channel]))
            r->ks_channel = c;
    double p[] = {r->image.p, r->token.p, r->ks_p[r->ks_channel]};
    eval_holm(p, 3);
    r->p = fmin(p[0], fmin(p[1], p[2]));
    return 0;
}

/* The reference against itself: image i of a class against the next of that class, swapped at random. Halves of num/2
 * images lie twice as far apart as runs of num. */
static int measure_floor(fidelity *f)
{
    const int turns = f->num / f->class_count / 2, half = turns * f->class_count;
    const size_t turn = (size_t)f->class_count * (size_t)f->positions * (size_t)f->channels;
    f->has_floor = half >= 2;
    if (!f->has_floor) return 0;
    float *a = malloc((size_t)turns * turn * sizeof *a), *b = malloc((size_t)turns * turn * sizeof *b);
    eval_energy_test whole, single;
    mar_err err = {0};
    mar_status status = a && b ? MAR_OK : err_set(&err, MAR_ENOMEM, "out of memory for the noise floor");
    for (size_t i = 0; status == MAR_OK && i < (size_t)turns; i++) {
        memcpy(a + i * turn, f->runs[0].tokens + 2 * i * turn, turn * sizeof *a);
        memcpy(b + i * turn, f->runs[0].tokens + (2 * i + 1) * turn, turn * sizeof *b);
    }
    const eval_pairs pairs = {half, f->positions, f->channels, a, b};
    if (status == MAR_OK) status = eval_energy(&pairs, FIDELITY_PERMUTATIONS, &whole, &single, &err);
    free(a);
    free(b);
    if (status != MAR_OK) return tool_error("%s", err.text);
    const double share = (double)half / f->num;
    f->image_floor = share * whole.null_95;
    f->token_floor = share * single.null_95;
    return 0;
}

static int compare_all(fidelity *f, progress *bar)
{
    progress_note(bar, "comparing");
    int failed = measure_floor(f);
    for (int i = 1; i < f->run_count && !failed; i++) {
        char note[64];
        snprintf(note, sizeof note, "comparing run %d of %d", i, f->run_count - 1);
        progress_note(bar, note);
        failed = compare(f, &f->runs[i]);
    }
    progress_clear(bar);
    return failed;
}

/* --- what it says --------------------------------------------------------------------------------------- */

double fidelity_seconds(const fidelity *f, const fidelity_run *r)
{
    return r->stats.total_s / f->num;
}

double fidelity_head_calls(const fidelity_run *r)
{
    return r->stats.tokens ? r->stats.head_calls / (double)r->stats.tokens : 0;
}

double fidelity_calls_in_sequence(const fidelity *f, const fidelity_run *r)
{
    return (r->stats.head_batched + r->stats.draft_calls) / f->num;
}

double fidelity_token_acceptance(const fidelity_run *r)
{
    return r->stats.drafted ? (double)r->stats.accepted / (double)r->stats.drafted : -1;
}

double fidelity_head_acceptance(const fidelity_run *r)
{
    return r->stats.proposals ? (double)r->stats.proposals_accepted / (double)r->stats.proposals : -1;
}

double fidelity_least_p(int differing)
{
    const double repeats = FIDELITY_PERMUTATIONS * fmin(1, ldexp(1, 1 - differing));
    return fmin(1, 3 * (1 + repeats + 3 * sqrt(repeats)) / (1 + FIDELITY_PERMUTATIONS));
}

fidelity_finding fidelity_find(const fidelity *f, const fidelity_run *r)
{
    const int could_differ = fidelity_least_p(r->differing) <= FIDELITY_LEVEL;
    if (r->identical) return FIDELITY_SAME;
    if (r->p > FIDELITY_LEVEL) return could_differ && f->has_floor ? FIDELITY_SAME : FIDELITY_UNSURE;
    const int below = f->has_floor && r->image.distance <= f->image_floor && r->token.distance <= f->token_floor;
    return below ? FIDELITY_CLOSE : FIDELITY_OFF;
}

const char *fidelity_verdict(const fidelity *f, const fidelity_run *r, char *text, size_t size)
{
    const fidelity_finding finding = fidelity_find(f, r);
    if (r->identical)
        snprintf(text, size, "identical: the same tokens to the last bit");
    else if (finding == FIDELITY_UNSURE && fidelity_least_p(r->differing) > FIDELITY_LEVEL)
        snprintf(text, size, "too few images to tell: %d of %d differ at all", r->differing, f->num);
    else if (finding == FIDELITY_UNSURE)
        snprintf(text, size, "indistinguishable at %d images (p = %.3f), too few for the difference of another seed",
                 f->num, r->p);
    else if (finding == FIDELITY_SAME)
        snprintf(text, size, "indistinguishable at %d images (p = %.3f)", f->num, r->p);
    else if (finding == FIDELITY_CLOSE)
        snprintf(text, size, "differs (p = %.3f), by less than another seed does", r->p);
    else if (!f->has_floor)
        snprintf(text, size, "differs (p = %.3f)", r->p);
    else
        snprintf(text, size, "differs (p = %.3f), %.1f times what another seed makes", r->p,
                 fmax(r->image.distance / f->image_floor, r->token.distance / f->token_floor));
    return text;
}

static int run(fidelity *f, progress *bar)
{
    eval_classifier *judge = NULL;
    mar_err err = {0};
    if (image_can_write(f->out) != 0 || check_runs(f, bar) != 0) return 1;
    if (f->judged && eval_classifier_open(&judge, &err) != MAR_OK) return tool_error("%s", err.text);
    progress_begin(bar);
    int failed = 0;
    for (int i = 0; i < f->run_count && !failed; i++) failed = make_run(f, i, judge, bar);
    progress_clear(bar);
    eval_classifier_close(judge);
    if (failed || compare_all(f, bar) != 0 || report_write_html(f, f->out) != 0) return 1;
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
