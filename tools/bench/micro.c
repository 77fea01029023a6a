
#include "tools/bench/bench.h"

#include "mar_measure.h"
#include "tools/cli/command.h"
#include "tools/cli/json.h"
#include "base/printable.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *group; /* static */
    char name[96];
    double rows, count, seconds, bytes, flop;
} measurement;

typedef struct {
    measurement *row; /* [count] */
    int count, capacity;
    int failed; /* 1: out of memory */
} measurements;

static void take_row(void *user, const mar_measurement *m)
{
    measurements *all = user;
    if (all->count == all->capacity) {
        const int capacity = 2 * all->capacity + 64;
        measurement *rows = realloc(all->row, (size_t)capacity * sizeof *rows);
        if (!rows) {
            all->failed = 1;
            return;
        }
        all->row = rows;
        all->capacity = capacity;
    }
    measurement *r = &all->row[all->count++];
    *r = (measurement){m->group, "", m->rows, m->count, m->seconds, m->bytes, m->flop};
    snprintf(r->name, sizeof r->name, "%s", m->name);
}

/* Returns the row; NULL if there is none. rows -1: any. */
static const measurement *micro_find(const measurements *all, const char *group, const char *name, int rows)
{
    for (int i = 0; i < all->count; i++) {
        const measurement *m = &all->row[i];
        if (strcmp(m->group, group) == 0 && strcmp(m->name, name) == 0 && (rows < 0 || m->rows == rows)) return m;
    }
    return NULL;
}

static double rate(double work, double seconds)
{
    return seconds > 0 ? work / seconds : 0;
}

/* Constants of the machine that bench/gpu_model.py reads (--json). */
enum { MEMORY_RATE, MATRIX_RATE, CLOCK, PROCESSORS, CACHE, CONSTANTS };
static const struct {
    const char *name, *measured; /* name in "constants"; name in the group "machine" */
} constants[CONSTANTS] = {
    [MEMORY_RATE] = {"memory_bytes_per_second", "memory"},
    [MATRIX_RATE] = {"flop_per_second", "matrix product"},
    [CLOCK] = {"clock_hz", "clock"},
    [PROCESSORS] = {"multiprocessors", "processors"},
    [CACHE] = {"cache_bytes", "cache bytes"},
};

/* Returns 0 if it was not measured. */
static double constant(const measurements *all, int id)
{
    const measurement *m = micro_find(all, "machine", constants[id].measured, -1);
    if (!m) return 0;
    return m->seconds > 0 ? rate(m->bytes + m->flop, m->seconds) : m->count; /* one of the two is 0 */
}

/* --- measurement -------------------------------------------------------------------------------------------------- */

/* Returns the rate as a share of another; 0 if that was not measured. */
static double micro_share_of(double work, double seconds, double of)
{
    return of > 0 ? rate(work, seconds) / of : 0;
}

/* Returns whether the row computed faster than `peak`. */
static int is_above(const measurement *m, double peak)
{
    return bench_is_above(micro_share_of(m->flop, m->seconds, peak));
}

static int any_above(const measurements *all)
{
    const double peak = constant(all, MATRIX_RATE);
    for (int i = 0; i < all->count; i++)
        if (is_above(&all->row[i], peak)) return 1;
    return 0;
}

/* Returns whether a row moved more bytes than memory can. */
static int any_cached(const measurements *all)
{
    const double memory = constant(all, MEMORY_RATE);
    for (int i = 0; i < all->count; i++)
        if (bench_is_above(micro_share_of(all->row[i].bytes, all->row[i].seconds, memory))) return 1;
    return 0;
}

static int measure_once(mar_session *s, progress *bar, const char *note, measurements *out)
{
    progress_note(bar, "%s", note);
    const mar_status status = mar_session_measure(s, take_row, out);
    progress_clear(bar);
    if (status != MAR_OK) return tool_error("%s", mar_session_error(s));
    return out->failed ? tool_error("out of memory for the measurements") : 0;
}

/* Keeps the more plausible of two measurements: the faster of the machine's rows, the slower of rows above its first
 * peak. Another program ran during one of the two. */
static void keep_likelier(measurements *all, const measurements *again)
{
    const double peak = constant(all, MATRIX_RATE);
    for (int i = 0; i < all->count; i++) {
        measurement *m = &all->row[i];
        const measurement *other = micro_find(again, m->group, m->name, (int)m->rows);
        if (!other || other->flop != m->flop) continue;
        if (strcmp(m->group, "machine") == 0 ? other->seconds < m->seconds
                                             : is_above(m, peak) && other->seconds > m->seconds)
            *m = *other;
    }
}

static int micro_measure(mar_session *s, progress *bar, measurements *out)
{
    measurements again = {0};
    int status = measure_once(s, bar, "measuring the parts", out);
    if (status == 0 && any_above(out)) {
        status = measure_once(s, bar, "measuring the parts again: a rate is above the peak", &again);
        if (status == 0) keep_likelier(out, &again);
    }
    free(again.row);
    return status;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

static void print_number(double x, const char *format, const char *blank)
{
    if (x > 0)
        printf(format, x);
    else
        printf("%s", blank);
}

/* Prints the share of a measured rate, or `above`, or blanks. */
static void print_share(double share, const char *above)
{
    char text[16];
    if (share > 0)
        printf(" %7s", bench_is_above(share) ? above : bench_share(share, text));
    else
        printf("        ");
}

static void micro_print_row(const measurement *m, double memory, double peak)
{
    printf("  %-40s", m->name);
    print_number(m->rows, " %6.0f", "       ");
    if (m->seconds > 0) {
        printf(" %6.0f %11.2f", m->count, 1e6 * m->seconds);
        print_number(m->bytes / 1e6, " %9.3f", "          ");
        print_number(rate(m->bytes, m->seconds) / 1e9, " %9.1f", "          ");
        print_share(micro_share_of(m->bytes, m->seconds, memory), "cache");
        print_number(rate(m->flop, m->seconds) / 1e9, " %10.1f", "           ");
        print_share(micro_share_of(m->flop, m->seconds, peak), ">100%");
    } else {
        printf(" %18.0f", m->count);
    }
    printf("\n");
}

/* Returns the seconds of a group's rows. */
static double sum_seconds(const measurements *all, const char *group)
{
    double sum = 0;
    for (int i = 0; i < all->count; i++)
        if (strcmp(all->row[i].group, group) == 0) sum += all->row[i].count * all->row[i].seconds;
    return sum;
}

static void micro_print_table(const measurements *all, const run_options *run, const char *backend, int batch)
{
    const double memory = constant(all, MEMORY_RATE), peak = constant(all, MATRIX_RATE);
    char path[8192];
    printf("%s on %s, batch %d\n", printable(run->model, path, sizeof path), backend, batch);
    printf("\n%-42s %6s %6s %11s %9s %9s %7s %10s %7s\n", "", "rows", "calls", "us", "MB", "GB/s", "of peak", "GFLOP/s",
           "of peak");
    const char *group = "";
    for (int i = 0; i < all->count; i++) {
        if (strcmp(all->row[i].group, group) != 0) printf("%s\n", group = all->row[i].group);
        micro_print_row(&all->row[i], memory, peak);
    }
    putchar('\n');
    if (any_cached(all)) puts("cache: faster than memory: what it moves stayed in the processor's cache");
    if (any_above(all)) puts(">100%: above the peak, in both of two measurements");
    const measurement *step = micro_find(all, "pass", "autoregressive step", -1);
    printf("operations: %.1f us in sum; the step took %.1f us\n", 1e6 * sum_seconds(all, "operation"),
           step ? 1e6 * step->seconds : 0);
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

static int micro_print_json(const measurements *all, const run_options *run, const run_models *models, int batch)
{
    const mar_model_config *c = mar_model_get_config(models->model);
    cJSON *root = bench_record(run, models, batch);
    cJSON_AddNumberToObject(root, "head_width", c->head_width);
    cJSON_AddNumberToObject(root, "head_depth", c->head_depth);
    cJSON *machine = cJSON_AddObjectToObject(root, "constants");
    for (int i = 0; i < CONSTANTS; i++) {
        const double value = constant(all, i);
        if (value > 0) cJSON_AddNumberToObject(machine, constants[i].name, value);
    }
    cJSON *rows = cJSON_AddArrayToObject(root, "measurements");
    for (int i = 0; i < all->count; i++) {
        const measurement *m = &all->row[i];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "group", m->group);
        cJSON_AddStringToObject(row, "name", m->name);
        cJSON_AddNumberToObject(row, "rows", m->rows);
        cJSON_AddNumberToObject(row, "count", m->count);
        cJSON_AddNumberToObject(row, "seconds", m->seconds);
        cJSON_AddNumberToObject(row, "bytes", m->bytes);
        cJSON_AddNumberToObject(row, "flop", m->flop);
        tool_json_append(rows, row);
    }
    return tool_print_json(root, 1);
}

int bench_micro(const run_options *run, const run_models *models, mar_session *s, int batch, int json, progress *bar)
{
    measurements all = {0};
    int exit_status = micro_measure(s, bar, &all);
    if (exit_status == 0 && json)
        exit_status = micro_print_json(&all, run, models, batch);
    else if (exit_status == 0)
        micro_print_table(&all, run, mar_backend_description(models->library), batch);
    free(all.row);
    return exit_status;
}
