#include "tools/bench/common.h"

#include "tools/cli/command.h"
#include "tools/cli/json.h"

#include <stdio.h>
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

void bench_take_best(mar_stats *best, const mar_stats *stats)
{
    if (best->total_s == 0 || stats->total_s < best->total_s) *best = *stats;
}
