#include "tools/bench_discrete.h"

#include "tools/command.h"
#include "tools/images.h"
#include "tools/printable.h"
#include "tools/stats.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PLAIN, ASKED, RUNS, PASSES_MAX = 16 };

/* A pass over a chain of drafts, as the library measured it. */
typedef struct {
    int drafts, rows;
    double seconds, bytes, flop;
} pass;

/* Passes of a model, by rising number of drafts. */
typedef struct {
    pass pass[PASSES_MAX];
    int count;
} passes;

typedef struct {
    const run_options *run;
    int batch;
    mar_stats best[RUNS]; /* of plain decoding, and of the run asked for; the same without speculation */
    int runs;             /* 1: there is no speculation, best[ASKED] is not set */
    passes target, draft;
    double peak, bandwidth; /* flop and bytes per second */
    const char *backend, *guarantee;
} bench;

/* --- measuring ---------------------------------------------------------------------------------------------------- */

static int take_best(void *self, const image_batch *batch)
{
    bench *b = self;
    mar_stats *best = &b->best[batch->run];
    if (best->total_s == 0 || batch->stats->total_s < best->total_s) *best = *batch->stats;
    return 0;
}

/* The same images by plain decoding and by the run asked for, in turns. */
static int measure_images(bench *b, const run_models *models, mar_session *const *sessions, int repeat)
{
    image_run runs[RUNS];
    const int label = 0;
    for (int i = 0; i < b->runs; i++) runs[i] = (image_run){models->model, sessions[i], models->captions};
    const image_plan plan = {.runs = runs,
                             .run_count = b->runs,
                             .images = (long)b->batch * repeat,
                             .batch = b->batch,
                             .classes = &label,
                             .class_count = 1,
                             .class_images = 1,
                             .kept = "nothing is reported"};
    const image_sink sink = {take_best, b, 0, 1};
    return run_images(&plan, &sink, 1);
}

/* "target, 16 drafts" */
static void take_pass(void *user, const mar_measurement *m)
{
    bench *b = user;
    int drafts, end = 0;
    char whose[16];
    if (strcmp(m->group, "pass") != 0 || sscanf(m->name, "%15[a-z], %d drafts%n", whose, &drafts, &end) != 2) return;
    passes *p = strcmp(whose, "target") == 0 ? &b->target : &b->draft;
    if (m->name[end] || p->count == PASSES_MAX) return;
    p->pass[p->count++] = (pass){drafts, m->rows, m->seconds, m->bytes, m->flop};
}

static int measure_machine(bench *b, const run_models *models, mar_session *session)
{
    mar_status status = mar_measure_peak(models->library, &b->peak);
    if (status == MAR_OK) status = mar_measure_bandwidth(models->library, &b->bandwidth);
    if (status != MAR_OK) return tool_error("%s", mar_error(models->library));
    if (mar_session_measure(session, take_pass, b) != MAR_OK) return tool_error("%s", mar_session_error(session));
    return 0;
}

/* --- floors ------------------------------------------------------------------------------------------------------- */

/* What a pass takes at least. */
static double floor_of(const bench *b, double bytes, double flop)
{
    return fmax(bytes / b->bandwidth, flop / b->peak);
}

/* Bytes and arithmetic of a pass over so many drafts: between those measured, or beyond them, in proportion. */
static double floor_at(const bench *b, const passes *p, double drafts)
{
    const pass *low = &p->pass[0], *high = low;
    if (p->count == 0) return 0;
    for (int i = 1; i < p->count; i++) {
        if (high->drafts >= drafts && i > 1) break;
        low = high, high = &p->pass[i];
    }
    const double share = high == low ? 0 : (drafts - low->drafts) / (high->drafts - low->drafts);
    return floor_of(b, low->bytes + share * (high->bytes - low->bytes), low->flop + share * (high->flop - low->flop));
}

/* Tokens of an image that a call of the target settles. */
static double compression(const mar_stats *s)
{
    return s->rounds ? (double)s->tokens / (double)s->rounds : 1;
}

/* How much faster than plain decoding the floors of its passes let the run be: the target's over its drafts, and those
 * of the draft, as if each of these computed one token. */
static double speed_by_floors(const bench *b)
{
    const mar_stats *s = &b->best[ASKED];
    const double rounds = (double)s->rounds / b->batch, tokens = (double)s->tokens / b->batch;
    const double drafts = s->contexts / (double)s->rounds - 1;
    const double target = rounds * floor_at(b, &b->target, drafts), draft = s->draft_calls * floor_at(b, &b->draft, 0);
    return tokens * floor_at(b, &b->target, 0) / (target + draft);
}

/* Whether those are all: the passes of an EAGLE drafter are not measured by themselves. */
static int has_floors(const bench *b)
{
    return b->best[ASKED].draft_calls == 0 || b->draft.count > 0;
}

static double mean_length(const mar_stats *s)
{
    return s->rounds ? (double)s->accepted / (double)s->rounds : 0;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

static void print_part(const bench *b, const char *name, double seconds)
{
    if (seconds > 0) printf("%-14s %9.4f\n", name, seconds / b->batch);
}

static void print_run(const bench *b, const mar_stats *s)
{
    const double other = s->total_s - s->decoder_s - s->draft_s - s->verify_s - s->vae_s;
    printf("%-14s %9s\n", "", "s/image");
    print_part(b, "target", s->decoder_s);
    if (s->draft_calls > 0) print_part(b, "draft", s->draft_s);
    print_part(b, "verification", s->verify_s);
    print_part(b, "image decoder", s->vae_s);
    print_part(b, "other", other);
    print_part(b, "total", s->total_s);
}

static void print_lengths(const mar_stats *s)
{
    int n = 0;
    for (int i = 0; i < STATS_LENGTHS; i++)
        if (s->accepted_lengths[i]) n = i + 1;
    printf("accepted length %.2f of a round; rounds that accepted 0, 1, ...:", mean_length(s));
    for (int i = 0; i < n; i++) printf(" %ld", s->accepted_lengths[i]);
    putchar('\n');
}

static void print_passes(const bench *b, const char *whose, const passes *p)
{
    for (int i = 0; i < p->count; i++) {
        const pass *q = &p->pass[i];
        const double least = floor_of(b, q->bytes, q->flop);
        printf("%-7s %6d %6d %9.3f %9.3f %9.3f %6.0f%%\n", whose, q->drafts, q->rows, 1e3 * q->seconds,
               1e3 * q->bytes / b->bandwidth, 1e3 * q->flop / b->peak, 100 * least / q->seconds);
    }
}

/* Whether a pass was faster than memory and products allow. */
static int is_cached(const bench *b)
{
    const passes *all[] = {&b->target, &b->draft};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < all[k]->count; i++)
            if (all[k]->pass[i].seconds < floor_of(b, all[k]->pass[i].bytes, all[k]->pass[i].flop)) return 1;
    return 0;
}

static void print_table(const bench *b)
{
    const mar_stats *plain = &b->best[PLAIN], *s = &b->best[b->runs - 1];
    char path[8192], ways[2048];
    printf("%s on %s\n", printable(b->run->model, path, sizeof path), b->backend);
    if (b->runs > 1) printf("%s\n", run_options_ways(b->run, ways, sizeof ways));
    printf("%d tokens, cfg %g, batch %d; working memory %.1f MB\n%s\n\n", b->run->used.num_iter,
           (double)b->run->used.cfg, b->batch, (double)s->arena_bytes / 1e6, b->guarantee);
    print_run(b, s);
    printf("\ntarget: %.1f passes in sequence an image, laws of %.1f tokens", s->passes / b->batch,
           s->contexts / b->batch);
    if (s->draft_calls > 0) printf("; draft: %.1f passes", s->draft_calls / b->batch);
    putchar('\n');
    if (b->runs > 1) {
        print_lengths(s);
        printf("plain decoding: %.4f s/image; speed %.2fx, step compression %.2fx, the floors below allow %.2fx%s\n",
               plain->total_s / b->batch, plain->total_s / s->total_s, compression(s), speed_by_floors(b),
               has_floors(b) ? "" : " without the drafter");
    }
    printf("\nmeasured memory bandwidth %.1f GB/s, matrix peak %.1f GFLOP/s; a pass takes at least the larger of the "
           "two\n",
           b->bandwidth / 1e9, b->peak / 1e9);
    printf("%-7s %6s %6s %9s %9s %9s %7s\n", "pass of", "drafts", "rows", "ms", "memory", "products", "floor");
    print_passes(b, "target", &b->target);
    print_passes(b, "draft", &b->draft);
    if (is_cached(b)) puts("above 100 %: what the passes read stayed in the processor's cache, which is faster");
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

static void add_passes(const bench *b, cJSON *record, const char *name, const passes *p)
{
    if (p->count == 0) return;
    cJSON *list = cJSON_AddArrayToObject(record, name);
    for (int i = 0; i < p->count; i++) {
        const pass *q = &p->pass[i];
        cJSON *o = cJSON_CreateObject();
        cJSON_AddNumberToObject(o, "drafts", q->drafts);
        cJSON_AddNumberToObject(o, "rows", q->rows);
        cJSON_AddNumberToObject(o, "seconds", q->seconds);
        cJSON_AddNumberToObject(o, "bytes", q->bytes);
        cJSON_AddNumberToObject(o, "flop", q->flop);
        cJSON_AddNumberToObject(o, "memory_floor_seconds", q->bytes / b->bandwidth);
        cJSON_AddNumberToObject(o, "arithmetic_floor_seconds", q->flop / b->peak);
        cJSON_AddNumberToObject(o, "fraction_of_floor", floor_of(b, q->bytes, q->flop) / q->seconds);
        tool_json_append(list, o);
    }
}

static int print_json(const bench *b)
{
    const mar_stats *plain = &b->best[PLAIN], *s = &b->best[b->runs - 1];
    const double n = b->batch;
    cJSON *root = tool_json();
    cJSON_AddStringToObject(root, "model", b->run->model);
    if (run_draft(b->run)) cJSON_AddStringToObject(root, "draft", run_draft(b->run));
    cJSON_AddStringToObject(root, "backend", b->backend);
    params_record(b->run, cJSON_AddObjectToObject(root, "parameters"));
    cJSON_AddStringToObject(root, "guarantee", b->guarantee);
    cJSON_AddNumberToObject(root, "batch", n);
    cJSON_AddNumberToObject(root, "seconds_per_image", s->total_s / n);
    cJSON_AddNumberToObject(root, "target_seconds", s->decoder_s / n);
    cJSON_AddNumberToObject(root, "draft_seconds", s->draft_s / n);
    cJSON_AddNumberToObject(root, "verification_seconds", s->verify_s / n);
    cJSON_AddNumberToObject(root, "vae_seconds", s->vae_s / n);
    cJSON_AddNumberToObject(root, "passes_in_sequence", s->passes / n);
    cJSON_AddNumberToObject(root, "contexts_per_image", s->contexts / n);
    cJSON_AddNumberToObject(root, "draft_calls_in_sequence", s->draft_calls / n);
    cJSON_AddNumberToObject(root, "plain_seconds_per_image", plain->total_s / n);
    if (b->runs > 1) {
        cJSON_AddNumberToObject(root, "speed", plain->total_s / s->total_s);
        cJSON_AddNumberToObject(root, "step_compression", compression(s));
        if (has_floors(b))
            cJSON_AddNumberToObject(root, "speed_by_floors", speed_by_floors(b));
        else
            cJSON_AddNullToObject(root, "speed_by_floors");
        cJSON_AddNumberToObject(root, "mean_accepted_length", mean_length(s));
        cJSON_AddNumberToObject(root, "acceptance_rate", s->drafted ? (double)s->accepted / (double)s->drafted : 0);
        stats_record_lengths(s, root);
    }
    cJSON_AddNumberToObject(root, "memory_bandwidth", b->bandwidth);
    cJSON_AddNumberToObject(root, "matrix_peak", b->peak);
    add_passes(b, root, "target_passes", &b->target);
    add_passes(b, root, "draft_passes", &b->draft);
    cJSON_AddNumberToObject(root, "working_memory_bytes", (double)s->arena_bytes);
    return tool_print_json(root, 1);
}

/* --- */

/* Plain decoding with what is sampled in the run, and on its models. */
static int open_plain(const run_options *run, const run_models *models, int batch, mar_session **out)
{
    run_options plain;
    run_options_inherit(&plain, run);
    plain.tokens = run->tokens;
    return models_session(models, &plain, batch, out);
}

int bench_discrete(run_options *run, const run_models *models, int batch, int repeat, int json)
{
    static bench b; /* results of one command */
    mar_session *sessions[RUNS] = {NULL};
    b = (bench){.run = run, .batch = batch, .runs = run_draft(run) ? 2 : 1};
    int status = open_plain(run, models, batch, &sessions[PLAIN]);
    if (status == 0) status = models_session(models, run, batch, &sessions[ASKED]);
    if (status == 0) status = measure_images(&b, models, sessions, repeat);
    if (status == 0) status = measure_machine(&b, models, sessions[ASKED]);
    if (status == 0) {
        b.backend = mar_backend_description(models->library);
        b.guarantee = mar_session_guarantee(sessions[ASKED]);
        if (json)
            status = print_json(&b);
        else
            print_table(&b);
    }
    mar_session_free(sessions[PLAIN]);
    mar_session_free(sessions[ASKED]);
    return status;
}
