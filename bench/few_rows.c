/* Products of few rows, whose weights come from memory: a share of the measured bandwidth, and the seconds of some rows
 * over those of one.
 *
 *     ninja -C build/release few_rows && build/release/few_rows [THREADS [TURNS [TYPE...]]]
 *
 * Multiplies a stack of layers 4096 x 11008, a 7B decoder's, of random weights in f32, bf16, int8 and int4, each layer
 * once a run. The best of TURNS runs counts, with the bandwidth measured in every turn. */
#include "include/mar.h"

#include "mar_measure.h"
#include "kernels/int4.h"
#include "kernels/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { IN = 4096, OUT = 11008, LAYERS_MAX = 96, ROWS_MAX = 38, COUNTS = 4 };
static const int counts[COUNTS] = {1, 2, 17, 38};
static const double stack_bytes = 2e9; /* several times a large cache */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(mar_status s, const mar_err *err)
{
    if (s == MAR_OK) return;
    fprintf(stderr, "few_rows: %s\n", err->text);
    exit(1);
}

static uint32_t next(uint32_t *x)
{
    return *x = *x * 1664525u + 1013904223u;
}

static mar_status read_f32(void *user, int first, int n, float *weight, mar_err *err)
{
    (void)first, (void)err;
    for (size_t i = 0; i < (size_t)n * IN; i++) weight[i] = (float)(int32_t)next(user) * 0x1p-36f;
    return MAR_OK;
}

static mar_status read_int8(void *user, int first, int n, int8_t *q, float *scale, mar_err *err)
{
    (void)first, (void)err;
    for (size_t i = 0; i < (size_t)n * IN; i++) q[i] = (int8_t)((int)(next(user) >> 24) % 127);
    for (int i = 0; i < n; i++) scale[i] = 1e-3f;
    return MAR_OK;
}

static mar_status read_int4(void *user, int first, int n, uint8_t *q, uint16_t *scale, mar_err *err)
{
    (void)first, (void)err;
    for (size_t i = 0; i < (size_t)n * IN / 2; i++) q[i] = (uint8_t)(next(user) >> 24);
    for (size_t i = 0; i < (size_t)n * IN / KERN_INT4_GROUP; i++) scale[i] = 0x3a83; /* 1e-3 */
    return MAR_OK;
}

static void measure(mar *library, mar_dtype dtype, const char *name, double bytes_of_weight, int threads, int turns)
{
    kern_device *d;
    kern_queue *k;
    mar_err err = {0};
    kern_linear *layer[LAYERS_MAX] = {NULL};
    void *x, *y;
    uint32_t seed = 1;
    const double bytes = bytes_of_weight * IN * OUT;
    const int layers = (int)fmin(LAYERS_MAX, ceil(stack_bytes / bytes));
    double best[COUNTS], bandwidth = 0;
    check(kern_cpu_open(dtype, threads, NULL, &d, &err), &err);
    check(d->core->queue_create(d, &k, &err), &err);
    k->core->bind(k);
    const kern_linear_rows rows = {read_f32, read_int8, read_int4, &seed};
    for (int i = 0; i < layers; i++) {
        const kern_linear_spec spec = {
            .out = OUT, .in = IN, .flags = KERN_LOW, .rows = &rows, .previous = i ? layer[i - 1] : NULL};
        check(k->core->linear_create(k, &spec, &layer[i], &err), &err);
        check(k->core->linear_plan(k, layer[i], ROWS_MAX, &err), &err);
    }
    check(d->core->alloc(d, (size_t)ROWS_MAX * IN * 4, &x, &err), &err);
    check(d->core->alloc(d, (size_t)ROWS_MAX * OUT * 4, &y, &err), &err);
    float *values = malloc(sizeof *values * ROWS_MAX * IN);
    if (!values) exit(1);
    for (int i = 0; i < ROWS_MAX * IN; i++) values[i] = (float)(int32_t)next(&seed) * 0x1p-31f;
    k->core->upload(k, y, values, sizeof *values * ROWS_MAX * IN);
    k->core->to_act(k, y, (size_t)ROWS_MAX * IN, x);
    for (int c = 0; c < COUNTS; c++) best[c] = INFINITY;
    for (int t = 0; t < turns; t++) {
        double rate;
        if (mar_measure_bandwidth(library, &rate) == MAR_OK) bandwidth = fmax(bandwidth, rate);
        for (int c = -1; c < COUNTS; c++) { /* the first round, behind another use of memory, does not count */
            const double begin = now();
            for (int i = 0; i < layers; i++) k->core->linear(k, layer[i], x, counts[c < 0 ? 0 : c], y);
            if (c >= 0) best[c] = fmin(best[c], (now() - begin) / layers);
        }
    }
    printf("%s (%s), %.1f GB/s:", name, d->unit, bandwidth / 1e9);
    for (int c = 0; c < COUNTS; c++)
        printf("  %d rows %.2f ms (%.0f %%, %.2f)", counts[c], 1e3 * best[c], 100 * bytes / best[c] / bandwidth,
               best[c] / best[0]);
    printf("\n");
    for (int i = layers; i-- > 0;) k->core->linear_free(d, layer[i]);
    d->core->free(d, x), d->core->free(d, y), free(values);
    k->core->queue_free(k);
    d->core->close(d);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        mar_dtype dtype;
        double bytes; /* of a weight, with its share of scales */
    } types[] = {{"f32", MAR_DTYPE_F32, 4},
                 {"bf16", MAR_DTYPE_BF16, 2},
                 {"int8", MAR_DTYPE_INT8, 1 + 4.0 / IN},
                 {"int4", MAR_DTYPE_INT4, 0.5 + 2.0 / KERN_INT4_GROUP}};
    const int threads = argc > 1 ? atoi(argv[1]) : 0, turns = argc > 2 ? atoi(argv[2]) : 9;
    const mar_options options = {.size = sizeof options, .threads = threads, .backend = MAR_BACKEND_CPU};
    mar *m;
    if (mar_open(&options, &m) != MAR_OK) return 1;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        int wanted = argc <= 3;
        for (int a = 3; a < argc; a++) wanted |= strcmp(argv[a], types[i].name) == 0;
        if (wanted) measure(m, types[i].dtype, types[i].name, types[i].bytes, threads, turns);
    }
    mar_close(m);
    return 0;
}
