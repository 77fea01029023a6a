
#include "tools/bench/bench.h"

#include "mar_measure.h"
#include "tools/cli/command.h"
#include "tools/cli/json.h"
#include "base/printable.h"
#include "tools/generate/stats.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PLAIN, ASKED, RUNS, PASSES_MAX = 1024 };

/* A pass over a chain of drafts, or an EAGLE drafter's over the drafts of one depth, in its fastest turn. */
typedef struct {
    int is_draft;      /* 1: of the draft model */
    int drafts, depth; /* depth: that of the last draft */
    int rows;
    double seconds, bytes, flop;
    bench_machine machine; /* as measured in that turn */
} pass;

typedef struct {
    const run_options *run;
    int batch;
    mar_stats best[RUNS];       /* of plain decoding, and of the requested run; equal without speculation */
    int runs;                   /* 1: no speculation, and best[ASKED] is not set */
    pass passes[PASSES_MAX];    /* [pass_count] in the order in which each turn measures them */
    int pass_count, measured;   /* measured: passes of this turn */
    bench_machine now, machine; /* in this turn, and the best of all turns */
    const char *guarantee;
    char how[1024]; /* of the requested run's session: mar_session_description */
} bench;

/* --- measurement -------------------------------------------------------------------------------------------------- */

/* Adds a pass: "target, 16 drafts" or "draft, 10 drafts at depth 2". */
static void take_pass(void *user, const mar_measurement *m)
{
    bench *b = user;
    int drafts, depth;
    char role[16];
    if (strcmp(m->group, "pass") != 0) return;
    const int n = sscanf(m->name, "%15[a-z], %d drafts at depth %d", role, &drafts, &depth);
    if (n < 2) return;
    if (n == 2) depth = drafts;
    const int is_draft = strcmp(role, "target") != 0;
    const pass found = {is_draft, drafts, depth, m->rows, m->seconds, m->bytes, m->flop, b->now};
    const int i = b->measured++;
    if (i >= PASSES_MAX) return;
    if (i == b->pass_count) b->passes[b->pass_count++] = found;
    if (found.seconds < b->passes[i].seconds) b->passes[i] = found;
}

/* Returns whether a pass computed faster than the peak allows. */
static int is_above_peak(const bench *b)
{
    for (const pass *p = b->passes; p < b->passes + b->pass_count; p++)
        if (bench_is_above(p->flop / p->machine.peak / p->seconds)) return 1;
    return 0;
}

/* Measures the peak again. Passes measured with a lower one take it over. */
static int measure_peak_again(bench *b, const run_models *models, progress *bar)
{
    bench_machine again = {0};
    const int status = bench_peak_again(models, bar, &again);
    b->machine.peak = fmax(b->machine.peak, again.peak);
    for (pass *p = b->passes; p < b->passes + b->pass_count; p++) p->machine.peak = fmax(p->machine.peak, again.peak);
    return status;
}

/* Measures the machine and, right after it, the passes, in turns: a shared machine soon changes. */
static int discrete_measure_passes(bench *b, const run_models *models, mar_session *session, int repeat, progress *bar)
{
    for (int i = 0; i < repeat; i++) {
        const int status = bench_machine_measure(models, 1, bar, &b->now);
        if (status != 0) return status;
        b->machine.peak = fmax(b->machine.peak, b->now.peak);
        b->machine.bandwidth = fmax(b->machine.bandwidth, b->now.bandwidth);
        b->measured = 0;
        progress_note(bar, "measuring passes");
        if (mar_session_measure(session, take_pass, b) != MAR_OK) return tool_error("%s", mar_session_error(session));
        progress_clear(bar);
    }
    return is_above_peak(b) ? measure_peak_again(b, models, bar) : 0;
}

/* --- lower bounds ------------------------------------------------------------------------------------------------- */

/* Returns the least time for these bytes and flop. */
static double floor_of(const bench_machine *m, double bytes, double flop)
{
    return fmax(bytes / m->bandwidth, flop / m->peak);
}

static double floor_of_pass(const pass *p)
{
    return floor_of(&p->machine, p->bytes, p->flop);
}

/* Returns the least time of a batch's passes, the target's and the draft's in sequence. */
static double floor_of_run(const bench *b, const mar_stats *s)
{
    const bench_machine *m = &b->machine;
    return floor_of(m, s->decoder_bytes, s->decoder_flop) + floor_of(m, s->draft_bytes, s->draft_flop);
}

/* Returns the tokens of an image that a call of the target commits. */
static double compression(const mar_stats *s)
{
    return s->rounds ? (double)s->tokens / (double)s->rounds : 1;
}

/* Returns the speed-up over plain decoding that the lower bounds of both runs' passes allow. */
static double speed_by_floors(const bench *b)
{
    return floor_of_run(b, &b->best[PLAIN]) / floor_of_run(b, &b->best[ASKED]);
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

static void print_passes(const bench *b, int is_draft)
{
    for (const pass *p = b->passes; p < b->passes + b->pass_count; p++) {
        char share[16];
        if (p->is_draft != is_draft) continue;
        printf("%-7s %6d %6d %6d %9.3f %9.3f %9.3f %7s\n", is_draft ? "draft" : "target", p->drafts, p->depth, p->rows,
               1e3 * p->seconds, 1e3 * p->bytes / p->machine.bandwidth, 1e3 * p->flop / p->machine.peak,
               bench_share(floor_of_pass(p) / p->seconds, share));
    }
}

/* Returns whether a pass was faster than memory allows. */
static int is_cached(const bench *b)
{
    for (const pass *p = b->passes; p < b->passes + b->pass_count; p++)
        if (bench_is_above(p->bytes / p->machine.bandwidth / p->seconds)) return 1;
    return 0;
}

/* Returns the seconds of a token, without the image decoder. */
static double token_seconds(const bench *b, const mar_stats *s)
{
    return (s->total_s - s->vae_s) / b->batch / b->run->used.num_iter;
}

/* Returns the seconds that reading the bytes of all passes takes at the measured bandwidth, for a token. */
static double token_memory_floor(const bench *b, const mar_stats *s)
{
    return (s->decoder_bytes + s->draft_bytes) / b->machine.bandwidth / b->batch / b->run->used.num_iter;
}

static void discrete_print_table(const bench *b, const char *backend)
{
    const mar_stats *plain = &b->best[PLAIN], *s = &b->best[b->runs - 1];
    char path[8192], accelerators[2048];
    printf("%s on %s\n", printable(b->run->model, path, sizeof path), backend);
    if (b->runs > 1) printf("%s\n", run_options_accelerators(b->run, accelerators, sizeof accelerators));
    printf("%d tokens, cfg %g, batch %d; working memory %.1f MB\n%s\n%s\n\n", b->run->used.num_iter,
           (double)b->run->used.cfg, b->batch, (double)s->arena_bytes / 1e6, b->guarantee, b->how);
    print_run(b, s);
    printf("\ntarget: %.1f passes in sequence an image, distributions of %.1f tokens", s->passes / b->batch,
           s->contexts / b->batch);
    if (s->draft_calls > 0) printf("; draft: %.1f passes", s->draft_calls / b->batch);
    putchar('\n');
    if (b->runs > 1) {
        print_lengths(s);
        stats_print_choice(s, stdout);
        printf("plain decoding: %.4f s/image; speed %.2fx, step compression %.2fx, the floors of all passes allow "
               "%.2fx\n",
               plain->total_s / b->batch, plain->total_s / s->total_s, compression(s), speed_by_floors(b));
    }
    printf("all passes read %.3f GB and compute %.3f TFLOP an image: at least %.4f s\n",
           (s->decoder_bytes + s->draft_bytes) / 1e9 / b->batch, (s->decoder_flop + s->draft_flop) / 1e12 / b->batch,
           floor_of_run(b, s) / b->batch);
    printf("a token takes %.3f ms, reading the bytes of its passes at least %.3f ms\n\n", 1e3 * token_seconds(b, s),
           1e3 * token_memory_floor(b, s));
    bench_machine_print(&b->machine);
    puts("; a pass takes at least the larger, as measured right before it");
    printf("%-7s %6s %6s %6s %9s %9s %9s %7s\n", "pass of", "drafts", "depth", "rows", "ms", "memory", "products",
           "floor");
    print_passes(b, 0);
    print_passes(b, 1);
    if (is_cached(b))
        puts(">100%: the pass read faster than memory did right before it; a small model stays in the processor's "
             "cache");
    if (is_above_peak(b)) puts(">100%: the pass was above the matrix peak, which was measured again");
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

/* Adds the list of the model's passes, unless there are none. */
static void add_passes(cJSON *record, const bench *b, int is_draft)
{
    cJSON *list = NULL;
    for (const pass *p = b->passes; p < b->passes + b->pass_count; p++) {
        if (p->is_draft != is_draft) continue;
        if (!list) list = cJSON_AddArrayToObject(record, is_draft ? "draft_passes" : "target_passes");
        cJSON *o = cJSON_CreateObject();
        cJSON_AddNumberToObject(o, "drafts", p->drafts);
        cJSON_AddNumberToObject(o, "depth", p->depth);
        cJSON_AddNumberToObject(o, "rows", p->rows);
        cJSON_AddNumberToObject(o, "seconds", p->seconds);
        cJSON_AddNumberToObject(o, "bytes", p->bytes);
        cJSON_AddNumberToObject(o, "flop", p->flop);
        bench_machine_record(&p->machine, o);
        cJSON_AddNumberToObject(o, "memory_floor_seconds", p->bytes / p->machine.bandwidth);
        cJSON_AddNumberToObject(o, "arithmetic_floor_seconds", p->flop / p->machine.peak);
        cJSON_AddNumberToObject(o, "fraction_of_floor", floor_of_pass(p) / p->seconds);
        tool_json_append(list, o);
    }
}

/* Adds the bytes and flop of a run's passes, per image. */
static void discrete_add_work(const bench *b, cJSON *record, const char *name, const mar_stats *s)
{
    cJSON *o = cJSON_AddObjectToObject(record, name);
    cJSON_AddNumberToObject(o, "target_bytes", s->decoder_bytes / b->batch);
    cJSON_AddNumberToObject(o, "target_flop", s->decoder_flop / b->batch);
    cJSON_AddNumberToObject(o, "draft_bytes", s->draft_bytes / b->batch);
    cJSON_AddNumberToObject(o, "draft_flop", s->draft_flop / b->batch);
    cJSON_AddNumberToObject(o, "floor_seconds", floor_of_run(b, s) / b->batch);
}

static int discrete_print_json(const bench *b, const run_models *models)
{
    const mar_stats *plain = &b->best[PLAIN], *s = &b->best[b->runs - 1];
    const double n = b->batch;
    cJSON *root = bench_record(b->run, models, b->batch);
    cJSON_AddStringToObject(root, "guarantee", b->guarantee);
    cJSON_AddStringToObject(root, "computed", b->how);
    cJSON_AddNumberToObject(root, "seconds_per_image", s->total_s / n);
    cJSON_AddNumberToObject(root, "seconds_per_token", token_seconds(b, s));
    cJSON_AddNumberToObject(root, "memory_floor_seconds_per_token", token_memory_floor(b, s));
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
        cJSON_AddNumberToObject(root, "speed_by_floors", speed_by_floors(b));
        cJSON_AddNumberToObject(root, "mean_accepted_length", mean_length(s));
        cJSON_AddNumberToObject(root, "acceptance_rate", s->drafted ? (double)s->accepted / (double)s->drafted : 0);
        stats_record_lengths(s, root);
        stats_record_choice(s, root);
    }
    discrete_add_work(b, root, "passes", s);
    discrete_add_work(b, root, "plain_passes", plain);
    bench_machine_record(&b->machine, root);
    add_passes(root, b, 0);
    add_passes(root, b, 1);
    cJSON_AddNumberToObject(root, "working_memory_bytes", (double)s->arena_bytes);
    return tool_print_json(root, 1);
}

/* --- command ------------------------------------------------------------------------------------------------------ */

/* Opens a session of plain decoding with the run's sampling options and models. */
static int open_plain(const run_options *run, const run_models *models, int batch, mar_session **out)
{
    run_options plain;
    run_options_inherit(&plain, run);
    plain.tokens = run->tokens;
    return models_session(models, &plain, batch, out);
}

int bench_discrete(run_options *run, const run_models *models, int batch, int repeat, int json, progress *bar)
{
    static bench b; /* results of one command */
    mar_session *sessions[RUNS] = {NULL};
    b = (bench){.run = run, .batch = batch, .runs = run_draft(run) ? 2 : 1};
    int status = open_plain(run, models, batch, &sessions[PLAIN]);
    if (status == 0) status = models_session(models, run, batch, &sessions[ASKED]);
    if (status == 0) status = bench_images(models, sessions, b.runs, batch, repeat, bar, b.best);
    if (status == 0) status = discrete_measure_passes(&b, models, sessions[ASKED], repeat, bar);
    if (status == 0) {
        b.guarantee = mar_session_guarantee(sessions[ASKED]);
        mar_session_description(sessions[ASKED], b.how, sizeof b.how);
        if (json)
            status = discrete_print_json(&b, models);
        else
            discrete_print_table(&b, mar_backend_description(models->library));
    }
    mar_session_free(sessions[PLAIN]);
    mar_session_free(sessions[ASKED]);
    return status;
}
