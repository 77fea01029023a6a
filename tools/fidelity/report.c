/* Output of `mar fidelity`: a table, JSON, and the page. */
#include "tools/cli/command.h"

#include "mar_measure.h"
#include "tools/cli/json.h"
#include "tools/fidelity/compare.h"
#include "base/printable.h"
#include "tools/generate/stats.h"
#include "tools/page/page.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- the table ------------------------------------------------------------------------------------------ */

static void print_share_column(long part, long of)
{
    if (of == 0)
        printf(" %6s", "-");
    else
        printf(" %5.1f%%", 100 * ((double)part / (double)of));
}

static void print_run_row(const fidelity *f, const fidelity_run *r)
{
    const mar_stats *t = &r->stats;
    char speed[32];
    snprintf(speed, sizeof speed, "%.2fx", r->speed.median);
    if (r == f->runs)
        printf("%-9s", "reference");
    else
        printf("run %-5d", (int)(r - f->runs));
    printf(" %8.4f %6s", r->seconds.median, speed);
    if (!f->vocabulary) printf(" %7.1f", t->tokens ? t->head_calls / (double)t->tokens : 0);
    printf(" %7.1f", ((f->vocabulary ? t->passes : t->head_batched) + t->draft_calls) / f->num);
    if (t->drafted)
        print_share_column(t->accepted, t->drafted);
    else
        print_share_column(t->proposals_accepted, t->proposals);
    if (r == f->runs)
        printf(" %8s %8s %5s", "-", "-", "-");
    else
        printf(" %8.5f %8.5f %5.3f", r->image.distance, r->token.distance, r->p);
    if (f->judged) print_share_column(r->recognised, f->num);
    putchar('\n');
}

/* Prints the guarantee of a run, its times, and their spread. */
static void print_facts(const fidelity *f, const fidelity_run *r)
{
    const int spread = fidelity_has_spread(f);
    printf("           %s\n", r->guarantee);
    printf("           %.4f s per image", r->seconds.median);
    if (spread) printf(" (%.4f to %.4f)", r->seconds.low, r->seconds.high);
    if (r != f->runs) printf(", speed %.2fx", r->speed.median);
    if (r != f->runs && spread) printf(" (%.2f to %.2f)", r->speed.low, r->speed.high);
    printf("\n           %.1f passes of the transformer in sequence, of %.1f contexts, an image\n",
           r->stats.passes / f->num, r->stats.contexts / f->num);
}

/* Prints the comparison of the frequencies of discrete tokens and neighbours with the reference's. */
static void print_counts(const fidelity_run *r)
{
    static const char *const names[] = {"tokens", "tokens by place", "neighbours"};
    for (int i = 0; i < FIDELITY_COUNTS; i++)
        printf("           %s: total variation %.4f (same distribution: below %.4f), chi-square p = %.3f\n", names[i],
               r->counts[i].tv, r->counts[i].tv_95, r->counts[i].p);
}

void report_print_table(const fidelity *f)
{
    double lowest = 0;
    const run_options *o = &f->runs[0].options;
    char verdict[160], path[8192];
    printf("%s on %s\n", printable(o->model, path, sizeof path), f->runs[0].backend);
    printf("%d images of %d class%s, seed %" PRIu64 ", guidance %g, batch %d; the page is %s\n\n", f->num,
           f->class_count, f->class_count > 1 ? "es" : "", f->shared.params.seed, (double)o->used.cfg, f->batch,
           printable(f->out, path, sizeof path));
    printf("%9s %8s %6s%s %7s %6s %8s %8s %5s%s\n", "", "s/image", "speed", f->vocabulary ? "" : " c/token", "c/image",
           "accept", "image", "token", "p", f->judged ? " digits" : "");
    for (int i = 0; i < f->run_count; i++) print_run_row(f, &f->runs[i]);
    for (int i = 1; i < f->run_count; i++)
        lowest = fmin(lowest, fmin(f->runs[i].image.distance, f->runs[i].token.distance));
    if (f->floor.measured)
        printf("%-9s %*s %8.5f %8.5f\n", "seed", f->vocabulary ? 30 : 38, "", f->floor.image, f->floor.token);
    putchar('\n');
    printf("reference  %s\n", f->runs[0].name);
    print_facts(f, &f->runs[0]);
    for (int i = 1; i < f->run_count; i++) {
        printf("run %-6d %s\n", i, f->runs[i].name);
        printf("           %s\n", fidelity_verdict(f, &f->runs[i], verdict, sizeof verdict));
        print_facts(f, &f->runs[i]);
        if (f->vocabulary) print_counts(&f->runs[i]);
    }
    if (fidelity_has_spread(f))
        printf("\ns/image, speed: medians of %d turns that the runs made one after another; in\n"
               "brackets %s.\n",
               f->timed_turns,
               f->timed_turns >= FIDELITY_QUARTILES_MIN ? "the quartiles" : "the least and the largest");
    else
        puts("\ns/image, speed: one turn, no spread; a smaller --batch makes more turns.");
    puts(f->vocabulary ? "c/image: calls in sequence of target and draft for an image (a batch shares them).\n"
                         "accept: drafts. image, token: energy distance to the reference of what the codebook\n"
                         "has for tokens, of whole images and of single tokens; seed: what two reference\n"
                         "runs with other seeds stay below (95 %). p: least of image, token and the three\n"
                         "chi-squares for \"the same distribution\", corrected."
                       : "c/token, c/image: head calls in sequence of a token, and of target and draft for\n"
                         "an image (a batch shares them). accept: drafts, else proposals in the head.\n"
                         "image, token: energy distance to the reference, of whole images and of single\n"
                         "tokens; seed: what two reference runs with other seeds stay below (95 %).\n"
                         "p: least of image, token and channels (KS) for \"the same distribution\", corrected.");
    if (lowest < 0)
        puts("A distance below 0 means indistinguishable: the estimate is unbiased, so it scatters\n"
             "around 0 if both have the same distribution.");
}

/* --- JSON ----------------------------------------------------------------------------------------------- */

static void add_energy(cJSON *record, const char *name, const eval_energy_test *t)
{
    cJSON *o = cJSON_AddObjectToObject(record, name);
    cJSON_AddNumberToObject(o, "distance", t->distance);
    cJSON_AddNumberToObject(o, "p", t->p);
    cJSON_AddNumberToObject(o, "null_95", t->null_95);
}

static void add_counts(cJSON *record, const char *name, const eval_counts_test *t)
{
    cJSON *o = cJSON_AddObjectToObject(record, name);
    cJSON_AddNumberToObject(o, "cells", (double)t->cells);
    cJSON_AddNumberToObject(o, "chi2", t->chi2);
    cJSON_AddNumberToObject(o, "p", t->p);
    cJSON_AddNumberToObject(o, "total_variation", t->tv);
    cJSON_AddNumberToObject(o, "total_variation_95", t->tv_95);
}

/* Adds an end of a spread; null if there is no spread. */
static void add_end(cJSON *record, const char *name, const fidelity *f, double value)
{
    if (fidelity_has_spread(f))
        cJSON_AddNumberToObject(record, name, value);
    else
        cJSON_AddNullToObject(record, name);
}

static cJSON *run_record(const fidelity *f, const fidelity_run *r)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "options", r->name);
    cJSON_AddStringToObject(o, "model", r->options.model);
    if (run_draft(&r->options)) cJSON_AddStringToObject(o, "draft", run_draft(&r->options));
    params_record(&r->options, cJSON_AddObjectToObject(o, "parameters"));
    cJSON_AddStringToObject(o, "guarantee", r->guarantee);
    cJSON_AddStringToObject(o, "backend", r->backend);
    cJSON_AddNumberToObject(o, "seconds_per_image", r->seconds.median);
    add_end(o, "seconds_low", f, r->seconds.low);
    add_end(o, "seconds_high", f, r->seconds.high);
    tool_json_add(o, "turn_seconds", cJSON_CreateDoubleArray(r->turn_seconds, f->turns));
    cJSON_AddNumberToObject(o, "speed", r->speed.median);
    add_end(o, "speed_low", f, r->speed.low);
    add_end(o, "speed_high", f, r->speed.high);
    stats_record(&r->stats, f->num, o);
    if (run_verifies_drafts(&r->options)) acceptance_record(&r->accepted, o);
    if (f->judged) cJSON_AddNumberToObject(o, "classifier_accuracy", (double)r->recognised / f->num);
    return o;
}

static void add_comparison(cJSON *o, const fidelity *f, const fidelity_run *r)
{
    char verdict[160];
    add_energy(o, "energy_image", &r->image);
    add_energy(o, "energy_token", &r->token);
    if (f->vocabulary) {
        static const char *const names[] = {"tokens", "places", "neighbours"}; /* FIDELITY_TOKENS, ... */
        for (int i = 0; i < FIDELITY_COUNTS; i++) add_counts(o, names[i], &r->counts[i]);
    } else {
        tool_json_add(o, "ks", cJSON_CreateDoubleArray(r->ks, f->channels));
        tool_json_add(o, "ks_p", cJSON_CreateDoubleArray(r->ks_p, f->channels));
    }
    cJSON_AddNumberToObject(o, "mean_gap", r->mean_gap);
    cJSON_AddNumberToObject(o, "covariance_gap", r->covariance_gap);
    cJSON_AddNumberToObject(o, "p", r->p);
    cJSON_AddBoolToObject(o, "identical", r->differing == 0);
    cJSON_AddStringToObject(o, "verdict", fidelity_verdict(f, r, verdict, sizeof verdict));
}

static cJSON *report_record(const fidelity *f)
{
    char seed[32];
    cJSON *record = tool_json(), *list;
    cJSON_AddStringToObject(record, "version", mar_version());
    cJSON_AddStringToObject(record, "backend", f->runs[0].backend);
    cJSON_AddNumberToObject(record, "images", f->num);
    tool_json_add(record, "classes", cJSON_CreateIntArray(f->classes, f->class_count));
    snprintf(seed, sizeof seed, "%" PRIu64, f->shared.params.seed); /* wider than a double's 53 bits */
    cJSON_AddRawToObject(record, "seed", seed);
    cJSON_AddNumberToObject(record, "batch", f->batch);
    cJSON_AddNumberToObject(record, "turns", f->turns);
    cJSON_AddNumberToObject(record, "turns_timed", f->timed_turns);
    if (fidelity_has_spread(f))
        cJSON_AddStringToObject(record, "spread", f->timed_turns >= FIDELITY_QUARTILES_MIN ? "quartiles" : "extremes");
    else
        cJSON_AddNullToObject(record, "spread");
    cJSON_AddNumberToObject(record, "permutations", FIDELITY_PERMUTATIONS);
    if (f->floor.measured) {
        cJSON *o = cJSON_AddObjectToObject(record, "floor");
        cJSON_AddNumberToObject(o, "image_95", f->floor.image);
        cJSON_AddNumberToObject(o, "token_95", f->floor.token);
    }
    tool_json_add(record, "reference", run_record(f, &f->runs[0]));
    list = cJSON_AddArrayToObject(record, "runs");
    for (int i = 1; i < f->run_count; i++) {
        cJSON *o = run_record(f, &f->runs[i]);
        add_comparison(o, f, &f->runs[i]);
        tool_json_append(list, o);
    }
    cJSON_AddStringToObject(record, "page", f->out);
    if (f->plot) cJSON_AddStringToObject(record, "plot", f->plot);
    return record;
}

int report_print_json(const fidelity *f)
{
    return tool_print_json(report_record(f), 0);
}

/* --- the page ----------------------------------------------------------------------------------------------- */

/* Adds `count` pictures that are contiguous in memory. */
static void add_pictures(cJSON *run, const char *name, uint8_t *rgb, int count, int width, int height)
{
    cJSON *list = cJSON_AddArrayToObject(run, name);
    const size_t size = (size_t)width * (size_t)height * 3;
    for (int i = 0; i < count; i++) page_add_picture(list, &(image){width, height, rgb + (size_t)i * size});
}

int report_write_html(const fidelity *f, const char *path)
{
    static const char *const kinds[] = {
        [FIDELITY_SAME] = "same", [FIDELITY_UNSURE] = "unsure", [FIDELITY_CLOSE] = "close", [FIDELITY_OFF] = "off"};
    cJSON *record = report_record(f), *extras = page_add_extras(record, "fidelity");
    cJSON_AddBoolToObject(extras, "discrete", f->vocabulary > 0);
    cJSON_AddBoolToObject(extras, "judged", f->judged);
    cJSON_AddNumberToObject(extras, "channels", f->channels);
    cJSON_AddNumberToObject(extras, "positions", f->positions);
    cJSON_AddNumberToObject(extras, "tests", fidelity_tests(f));
    cJSON_AddNumberToObject(extras, "level", FIDELITY_LEVEL);
    cJSON *runs = cJSON_AddArrayToObject(extras, "runs"); /* the reference first */
    for (int i = 0; i < f->run_count; i++) {
        const fidelity_run *r = &f->runs[i];
        cJSON *o = cJSON_CreateObject();
        if (i > 0) cJSON_AddStringToObject(o, "finding", kinds[fidelity_find(f, r)]);
        add_pictures(o, "samples", r->rgb, f->shown, f->width, f->height);
        add_pictures(o, "maps", r->maps, r->stats.drafted > 0 ? r->map_count : 0, f->columns, f->rows);
        tool_json_append(runs, o);
    }
    return page_write(record, path);
}
