/* mar bench: measures where the time of an image goes, and compares it with the machine's matrix rate. */
#include "tools/bench/bench.h"

#include "mar_measure.h"
#include "mar_methods.h"
#include "tools/cli/command.h"
#include "tools/cli/json.h"
#include "tools/generate/models.h"
#include "base/printable.h"
#include "tools/cli/run_options.h"
#include "tools/cli/subcommands.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    run_options run; /* the run to measure */
    int batch;       /* images at a time */
    int repeat;      /* times to make the batch */
    int json;        /* print JSON */
    int micro;       /* measure parts in place of images */
    int tune;        /* time algorithms of products */
} bench_options;

static const mar_param rows[] = {
    {.group = "Measurement", OPTION_INT(bench_options, batch, 1, 65536), .help = "images to make at a time"},
    {OPTION_INT(bench_options, repeat, 1, 1000),
     .help = "times to make the batch; the fastest counts\n"
             "The images are the same each time. For discrete tokens, the machine and single passes are measured as "
             "often, in turns. A pass counts in "
             "its fastest turn, beside the machine as measured right before. On a GPU the second time makes the "
             "recordings that the third replays."},
    {.group = "Parts",
     OPTION_FLAG(bench_options, micro),
     .help =
         "measure the operations of a step\n"
         "Each with its calls and its rate, beside those of memory and of large products. A GPU's operations include "
         "their launches; the passes of the step are measured as they run, from recordings."},
    {OPTION_FLAG(bench_options, tune),
     .help = "time algorithms of products, and add them to --tuning FILE\n"
             "Products that the file has for this GPU and version of cuBLASLt are not timed again. Batch and methods "
             "decide which products there are. --repeat 2 also measures without the timing."},
    {0},
};

/* Prints a row: seconds per image, flop, rate, share of the peak. */
static void bench_print_row(const char *name, double seconds, double flop, double peak, int batch)
{
    char share[16];
    printf("%-11s %9.3f %9.3f %9.1f %8s\n", name, seconds / batch, flop / batch / 1e12, flop / seconds / 1e9,
           bench_share(flop / seconds / peak, share));
}

/* Returns the seconds of the head: drawing, and the part of verifying that compares paths. */
static double head_seconds(const mar_stats *t)
{
    return t->head_s + t->verify_s;
}

/* Returns the highest rate in the table. */
static double highest_rate(const mar_stats *t)
{
    const double parts[][2] = {{t->encoder_flop, t->encoder_s},
                               {t->decoder_flop, t->decoder_s},
                               {t->head_flop, head_seconds(t)},
                               {t->draft_flop, t->draft_s},
                               {t->vae_flop, t->vae_s}};
    double highest = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i][0] > highest * parts[i][1]) highest = parts[i][0] / parts[i][1];
    return highest;
}

static void bench_print_table(const bench_options *o, const mar_stats *t, const bench_machine *machine,
                              const char *backend, const char *how, const char *guarantee)
{
    const double peak = machine->peak;
    const double flop = t->encoder_flop + t->decoder_flop + t->head_flop + t->draft_flop + t->vae_flop;
    char accelerators[2048], path[8192];
    printf("%s on %s\n", printable(o->run.model, path, sizeof path), backend);
    if (*run_options_accelerators(&o->run, accelerators, sizeof accelerators)) printf("%s\n", accelerators);
    printf("num_iter %d, num_sampling_steps %d, cfg %g, batch %d; working memory %.1f MB", o->run.used.num_iter,
           o->run.used.num_sampling_steps, (double)o->run.used.cfg, o->batch, (double)t->arena_bytes / 1e6);
    if (t->recorded_bytes) printf(", and %.1f MB of recorded steps", (double)t->recorded_bytes / 1e6);
    printf("\n%s\n%s\n\n", guarantee, how);
    printf("%-11s %9s %9s %9s %8s\n", "", "s/image", "TFLOP", "GFLOP/s", "of peak");
    if (t->encoder_flop > 0) bench_print_row("encoder", t->encoder_s, t->encoder_flop, peak, o->batch);
    bench_print_row(t->encoder_flop > 0 ? "decoder" : "transformer", t->decoder_s, t->decoder_flop, peak, o->batch);
    bench_print_row("head", head_seconds(t), t->head_flop, peak, o->batch);
    if (t->verify_s > 0) printf("%-11s %9.3f\n", " verify", t->verify_s / o->batch); /* part of the row above */
    if (t->draft_flop > 0) bench_print_row("draft", t->draft_s, t->draft_flop, peak, o->batch);
    if (t->vae_flop > 0) bench_print_row("VAE", t->vae_s, t->vae_flop, peak, o->batch);
    bench_print_row("total", t->total_s, flop, peak, o->batch);
    printf("\ntransformer: %.1f passes in sequence an image, of %.1f contexts", t->passes / o->batch,
           t->contexts / o->batch);
    printf("\nhead: %.1f sequential calls a token (most: %d), %.1f states evaluated", t->head_calls / (double)t->tokens,
           t->head_calls_max, t->head_rows / (double)t->tokens);
    printf("; %.0f calls in sequence an image", t->head_batched / o->batch);
    if (t->draft_calls > 0) printf(", and %.0f of the draft's", t->draft_calls / o->batch);
    printf("\na call, its part of the modulation included: %.1f us; it needs %.1f MB of weights, in %d products one "
           "after another",
           1e6 * head_seconds(t) / t->head_batched, t->head_call_bytes / 1e6, t->head_call_products);
    if (t->drafted)
        printf("\ndraft: %.1f %% of %ld drafted tokens accepted; at the last index draft and target differ by %.2g a "
               "channel",
               100.0 * (double)t->accepted / (double)t->drafted, t->drafted, t->accepted_shift);
    putchar('\n');
    bench_machine_print(machine);
    printf("; arithmetic floor %.3f s per image\n", flop / peak / o->batch);
    if (bench_is_above(highest_rate(t) / peak)) puts(">100%: above the peak, which was measured twice");
}

static int bench_print_json(const bench_options *o, const mar_stats *t, const bench_machine *machine,
                            const run_models *models, const char *how, const char *guarantee)
{
    const double flop = t->encoder_flop + t->decoder_flop + t->head_flop + t->draft_flop + t->vae_flop, n = o->batch;
    cJSON *root = bench_record(&o->run, models, o->batch);
    cJSON_AddStringToObject(root, "guarantee", guarantee);
    cJSON_AddStringToObject(root, "computed", how);
    cJSON_AddNumberToObject(root, "seconds_per_image", t->total_s / n);
    cJSON_AddNumberToObject(root, "encoder_seconds", t->encoder_s / n);
    cJSON_AddNumberToObject(root, "decoder_seconds", t->decoder_s / n);
    cJSON_AddNumberToObject(root, "head_seconds", t->head_s / n);
    cJSON_AddNumberToObject(root, "vae_seconds", t->vae_s / n);
    cJSON_AddNumberToObject(root, "draft_seconds", t->draft_s / n);
    cJSON_AddNumberToObject(root, "verification_seconds", t->verify_s / n);
    cJSON_AddNumberToObject(root, "head_calls_per_token", t->head_calls / (double)t->tokens);
    cJSON_AddNumberToObject(root, "passes_in_sequence", t->passes);
    cJSON_AddNumberToObject(root, "contexts_per_image", t->contexts / n);
    cJSON_AddNumberToObject(root, "head_calls_in_sequence", t->head_batched);
    cJSON_AddNumberToObject(root, "draft_calls_in_sequence", t->draft_calls);
    cJSON_AddNumberToObject(root, "head_evaluations_per_token", t->head_rows / (double)t->tokens);
    cJSON_AddNumberToObject(root, "head_call_seconds", head_seconds(t) / t->head_batched);
    cJSON_AddNumberToObject(root, "head_call_bytes", t->head_call_bytes);
    cJSON_AddNumberToObject(root, "head_call_products", t->head_call_products);
    cJSON_AddNumberToObject(root, "flop_per_image", flop / n);
    bench_machine_record(machine, root);
    cJSON_AddNumberToObject(root, "arithmetic_floor_seconds", flop / machine->peak / n);
    cJSON_AddNumberToObject(root, "fraction_of_peak", flop / t->total_s / machine->peak);
    cJSON_AddNumberToObject(root, "working_memory_bytes", (double)t->arena_bytes);
    cJSON_AddNumberToObject(root, "recorded_bytes", (double)t->recorded_bytes);
    return tool_print_json(root, 1);
}

/* Measures images with the session. Returns the exit status. */
static int bench_measure(const bench_options *o, const run_models *models, mar_session *session, progress *bar)
{
    mar_stats stats;
    bench_machine machine;
    char how[1024];
    int status = bench_machine_measure(models, 0, bar, &machine);
    if (status == 0) status = bench_images(models, &session, 1, o->batch, o->repeat, bar, &stats);
    if (status == 0 && bench_is_above(highest_rate(&stats) / machine.peak))
        status = bench_peak_again(models, bar, &machine);
    if (status != 0) return status;
    const char *guarantee = mar_session_guarantee(session);
    mar_session_description(session, how, sizeof how);
    if (o->json) return bench_print_json(o, &stats, &machine, models, how, guarantee);
    bench_print_table(o, &stats, &machine, mar_backend_description(models->library), how, guarantee);
    return 0;
}

static int bench_run(bench_options *o, const run_models *models, progress *bar)
{
    mar_session *s = NULL;
    if (mar_model_get_config(models->model)->vocabulary > 0 && !o->micro)
        return bench_discrete(&o->run, models, o->batch, o->repeat, o->json, bar);
    int status = models_session(models, &o->run, o->batch, &s);
    if (status == 0)
        status = o->micro ? bench_micro(&o->run, models, s, o->batch, o->json, bar) : bench_measure(o, models, s, bar);
    mar_session_free(s);
    return status;
}

/* Sets the defaults, and adds the options that set the fields. */
static void bench_set_up(bench_options *o, option_set *set)
{
    *o = (bench_options){.batch = 1, .repeat = 1};
    *set = (option_set){
        .command = "bench",
        .about = "usage: mar bench [OPTIONS]\n"
                 "\n"
                 "Generates images and prints seconds per image, split into transformer (for MAR\n"
                 "encoder and decoder), head and VAE, with their arithmetic, beside the measured\n"
                 "rate of matrix products; with --micro, how long each part takes. For discrete\n"
                 "tokens it measures speculation and plain decoding in turns, beside the limits of\n"
                 "memory and arithmetic.\n"
                 "tools/dev/random_checkpoint.py writes full-size checkpoints to measure with.\n",
        .example = "example: mar bench --model mar_base.pth --vae kl16.ckpt\n",
    };
    run_options_init(&o->run);
    options_add_table(set, rows, o, 0);
    options_add_under(set, rows[0].group, &option_json, &o->json);
    run_options_add(&o->run, set);
}

int cmd_bench(int argc, char **argv)
{
    bench_options o;
    option_set set;
    bench_set_up(&o, &set);
    int status = options_read(&set, argc, argv);
    if (status != OPTIONS_RUN) return status;
    if (run_options_done(&o.run, &set) != 0) return 1;
    if (o.run.class_names) return tool_error("--class_names has no effect in mar bench, which shows no class");
    if (o.tune && !o.run.machine.tuning) return tool_error("--tune needs --tuning FILE");
    o.run.machine.tune = o.tune;
    if (o.micro && options_find(&set, "repeat")->given) return tool_error("--repeat has no effect with --micro");
    model_store store = {0};
    run_models models;
    progress bar;
    progress_start(&bar, 0);
    status = models_load(&store, &o.run, &bar, &models);
    if (status == 0) status = bench_run(&o, &models, &bar);
    status = models_status(&store, status);
    models_free(&store);
    return status;
}
