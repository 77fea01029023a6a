/* mar bench: where the time of an image goes, and how far it is from the machine's matrix rate. */
#include "tools/command.h"
#include "tools/options.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] = //
    "usage: mar bench [OPTIONS]\n"
    "\n"
    "Generates images and prints seconds per image, split into encoder, decoder, head\n"
    "and VAE, with their arithmetic, beside the measured rate of matrix products.\n"
    "tools/random_checkpoint.py writes full-size checkpoints to measure with.\n"
    "\n"
    "  --model FILE            MAR checkpoint, demo or demo-draft [demo]\n"
    "  --vae FILE              KL autoencoder [demo's for a demo model, else none]\n"
    "  --num_iter N            autoregressive steps [64]\n"
    "  --num_sampling_steps N  diffusion steps [100]\n"
    "  --cfg X                 guidance scale [2.9]\n"
    "  --batch N               images at a time [1]\n"
    "  --repeat N              batches measured, the best counts [1]\n"
    "  --dtype T, --threads N, --heads N   as for mar generate\n"
    "  --json                  one JSON object in place of the table\n"
    "\n"
    "example: mar bench --model mar_base.pth --vae kl16.ckpt\n";

typedef struct {
    const char *model, *vae;
    mar_params params;
    int batch, repeat, dtype, threads, heads, json;
} bench_options;

/* Generates one batch and leaves its figures in stats. */
static mar_status run_batch(mar_session *s, int batch, const int *labels, uint8_t *rgb, mar_stats *stats)
{
    mar_status status = mar_session_begin(s, 0, labels, batch);
    while (status == MAR_OK && !mar_session_done(s)) status = mar_session_step(s);
    if (status == MAR_OK && rgb) status = mar_session_images(s, rgb);
    mar_session_get_stats(s, stats);
    return status;
}

static mar_status measure(const bench_options *o, mar_session *s, mar_stats *best)
{
    int width, height;
    mar_session_image_size(s, &width, &height);
    int *labels = calloc((size_t)o->batch, sizeof *labels);
    uint8_t *rgb = width ? malloc((size_t)o->batch * (size_t)width * (size_t)height * 3) : NULL;
    mar_status status = labels && (rgb || !width) ? MAR_OK : MAR_ENOMEM;
    for (int i = 0; status == MAR_OK && i < o->repeat; i++) {
        mar_stats stats;
        status = run_batch(s, o->batch, labels, rgb, &stats);
        if (i == 0 || stats.total_s < best->total_s) *best = stats;
    }
    free(labels);
    free(rgb);
    return status;
}

/* A line of the table: seconds per image, arithmetic, rate, share of the peak. */
static void print_row(const char *name, double seconds, double flop, double peak, int batch)
{
    printf("%-8s %9.3f %9.3f %9.1f %7.1f%%\n", name, seconds / batch, flop / batch / 1e12, flop / seconds / 1e9,
           100 * flop / seconds / peak);
}

static void print_table(const bench_options *o, const mar_stats *t, double peak, const char *backend)
{
    const double flop = t->encoder_flop + t->decoder_flop + t->head_flop + t->vae_flop;
    printf("%s on %s\n", o->model, backend);
    printf("num_iter %d, num_sampling_steps %d, cfg %g, batch %d; working memory %.1f MB\n\n", o->params.num_iter,
           o->params.num_sampling_steps, (double)o->params.cfg, o->batch, (double)t->arena_bytes / 1e6);
    printf("%-8s %9s %9s %9s %8s\n", "", "s/image", "TFLOP", "GFLOP/s", "of peak");
    print_row("encoder", t->encoder_s, t->encoder_flop, peak, o->batch);
    print_row("decoder", t->decoder_s, t->decoder_flop, peak, o->batch);
    print_row("head", t->head_s, t->head_flop, peak, o->batch);
    if (t->vae_flop > 0) print_row("VAE", t->vae_s, t->vae_flop, peak, o->batch);
    print_row("total", t->total_s, flop, peak, o->batch);
    printf("\nmeasured matrix peak %.1f GFLOP/s; arithmetic floor %.3f s per image\n", peak / 1e9,
           flop / peak / o->batch);
}

static int print_json(const bench_options *o, const mar_stats *t, double peak, const char *backend)
{
    const double flop = t->encoder_flop + t->decoder_flop + t->head_flop + t->vae_flop, n = o->batch;
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "model", o->model);
    cJSON_AddStringToObject(root, "backend", backend);
    cJSON_AddNumberToObject(root, "num_iter", o->params.num_iter);
    cJSON_AddNumberToObject(root, "num_sampling_steps", o->params.num_sampling_steps);
    cJSON_AddNumberToObject(root, "cfg", o->params.cfg);
    cJSON_AddNumberToObject(root, "batch", o->batch);
    cJSON_AddNumberToObject(root, "seconds_per_image", t->total_s / n);
    cJSON_AddNumberToObject(root, "encoder_seconds", t->encoder_s / n);
    cJSON_AddNumberToObject(root, "decoder_seconds", t->decoder_s / n);
    cJSON_AddNumberToObject(root, "head_seconds", t->head_s / n);
    cJSON_AddNumberToObject(root, "vae_seconds", t->vae_s / n);
    cJSON_AddNumberToObject(root, "flop_per_image", flop / n);
    cJSON_AddNumberToObject(root, "matrix_peak", peak);
    cJSON_AddNumberToObject(root, "fraction_of_peak", flop / t->total_s / peak);
    cJSON_AddNumberToObject(root, "working_memory_bytes", (double)t->arena_bytes);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    if (!text) return tool_error("out of memory for the report");
    puts(text);
    cJSON_free(text);
    return 0;
}

static int run(const bench_options *o, mar *m)
{
    mar_model *model = NULL;
    mar_vae *vae = NULL;
    mar_session *session = NULL;
    mar_stats stats = {0};
    double peak = 0;
    mar_status status = mar_model_load(m, o->model, o->heads, &model);
    if (status == MAR_OK && o->vae) status = mar_vae_load(m, o->vae, &vae);
    if (status == MAR_OK) {
        mar_params params = o->params;
        if (params.num_iter > mar_model_get_config(model)->seq_len)
            params.num_iter = mar_model_get_config(model)->seq_len;
        status = mar_session_create(model, vae, &params, o->batch, &session);
    }
    if (status == MAR_OK) status = mar_measure_peak(m, &peak);
    if (status == MAR_OK) status = measure(o, session, &stats);
    int exit_status = 0;
    if (status != MAR_OK)
        exit_status = tool_error("%s", status == MAR_ENOMEM && !*mar_error(m) ? "out of memory" : mar_error(m));
    else if (o->json)
        exit_status = print_json(o, &stats, peak, mar_backend_description(m));
    else
        print_table(o, &stats, peak, mar_backend_description(m));
    mar_session_free(session);
    mar_vae_free(vae);
    mar_model_free(model);
    return exit_status;
}

int cmd_bench(int argc, char **argv)
{
    bench_options o = {.model = "demo", .params = MAR_PARAMS_DEFAULT, .batch = 1, .repeat = 1};
    o.params.cfg = 2.9f;
    const option options[] = {
        {.name = "model", .kind = OPTION_TEXT, .value = &o.model, .expects = "a file"},
        {.name = "vae", .kind = OPTION_TEXT, .value = &o.vae, .expects = "a file"},
        {.name = "num_iter", .kind = OPTION_INT, .value = &o.params.num_iter, .min = 1, .max = 65536},
        {.name = "num_sampling_steps",
         .kind = OPTION_INT,
         .value = &o.params.num_sampling_steps,
         .min = 2,
         .max = 1000},
        {.name = "cfg", .kind = OPTION_FLOAT, .value = &o.params.cfg, .min = -1000, .max = 1000},
        {.name = "batch", .kind = OPTION_INT, .value = &o.batch, .min = 1, .max = 65536},
        {.name = "repeat", .kind = OPTION_INT, .value = &o.repeat, .min = 1, .max = 1000},
        {.name = "dtype", .kind = OPTION_CHOICE, .value = &o.dtype, .choices = tool_dtypes},
        {.name = "threads", .kind = OPTION_INT, .value = &o.threads, .min = 0, .max = 1024},
        {.name = "heads", .kind = OPTION_INT, .value = &o.heads, .min = 1, .max = 1024},
        {.name = "json", .kind = OPTION_FLAG, .value = &o.json},
        {0},
    };
    const option_set set = {"bench", help, options, NULL};
    int status = options_parse(&set, argc, argv);
    if (status != OPTIONS_RUN) return status;
    if (!o.vae && (!strcmp(o.model, "demo") || !strcmp(o.model, "demo-draft"))) o.vae = "demo";
    mar *m;
    status = tool_open((mar_dtype)o.dtype, o.threads, &m);
    if (status) return status;
    status = run(&o, m);
    mar_close(m);
    return status;
}
