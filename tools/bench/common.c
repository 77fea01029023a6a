#include "tools/bench/bench.h"

#include "mar_measure.h"

#include "tools/cli/command.h"
#include "tools/generate/images.h"
#include "tools/cli/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int bench_machine_measure(const run_models *models, int memory, progress *bar, bench_machine *out)
{
    *out = (bench_machine){0};
    progress_note(bar, "measuring the machine");
    mar_status status = mar_measure_peak(models->library, &out->peak);
    if (status == MAR_OK && memory) status = mar_measure_bandwidth(models->library, &out->bandwidth);
    progress_clear(bar);
    return status == MAR_OK ? 0 : tool_error("%s", mar_error(models->library));
}

int bench_peak_again(const run_models *models, progress *bar, bench_machine *m)
{
    double peak = 0;
    progress_note(bar, "measuring the machine again");
    const mar_status status = mar_measure_peak(models->library, &peak);
    progress_clear(bar);
    if (status != MAR_OK) return tool_error("%s", mar_error(models->library));
    if (peak > m->peak) m->peak = peak;
    return 0;
}

int bench_is_above(double share)
{
    return share >= 1.0005; /* a smaller share prints as 100.0% */
}

const char *bench_share(double share, char text[16])
{
    if (bench_is_above(share))
        strcpy(text, ">100%");
    else
        snprintf(text, 16, "%.1f%%", 100 * share);
    return text;
}

void bench_machine_print(const bench_machine *m)
{
    printf("measured ");
    if (m->bandwidth > 0) printf("memory bandwidth %.1f GB/s, ", m->bandwidth / 1e9);
    printf("matrix peak %.1f GFLOP/s", m->peak / 1e9);
}

void bench_machine_record(const bench_machine *m, cJSON *record)
{
    if (m->bandwidth > 0) cJSON_AddNumberToObject(record, "memory_bandwidth", m->bandwidth);
    cJSON_AddNumberToObject(record, "matrix_peak", m->peak);
}

cJSON *bench_record(const run_options *run, const run_models *models, int batch)
{
    cJSON *root = tool_json();
    cJSON_AddStringToObject(root, "model", run->model);
    if (run_draft(run)) cJSON_AddStringToObject(root, "draft", run_draft(run));
    cJSON_AddStringToObject(root, "backend", mar_backend_description(models->library));
    params_record(run, cJSON_AddObjectToObject(root, "parameters"));
    cJSON_AddNumberToObject(root, "batch", batch);
    return root;
}

typedef struct {
    mar_stats *best; /* [count] of each session; all 0 before its first batch */
    int count;
} best_batches;

static int take_best(void *self, const image_batch *batch)
{
    const best_batches *b = self;
    mar_stats *best = &b->best[batch->run % b->count];
    if (best->total_s == 0 || batch->stats->total_s < best->total_s) *best = *batch->stats;
    return 0;
}

int bench_images(const run_models *models, mar_session *const *sessions, int count, int batch, int repeat,
                 progress *bar, mar_stats *best)
{
    const int label = 0, run_count = count * repeat;
    best_batches b = {best, count};
    image_run *runs = malloc((size_t)run_count * sizeof *runs);
    if (!runs) return tool_error("out of memory for %d batches", run_count);
    for (int i = 0; i < run_count; i++)
        runs[i] = (image_run){.model = models->model, .session = sessions[i % count], .captions = models->captions};
    memset(best, 0, (size_t)count * sizeof *best);
    const image_plan plan = {.runs = runs,
                             .run_count = run_count,
                             .images = batch,
                             .batch = batch,
                             .classes = &label,
                             .class_count = 1,
                             .class_images = 1,
                             .bar = bar,
                             .kept = "nothing is reported"};
    const int status = run_images(&plan, &(image_sink){take_best, &b, 0, 1, 0}, 1);
    free(runs);
    return status;
}
