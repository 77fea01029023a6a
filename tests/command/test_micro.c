/* mar bench --micro and --model_time: what they print, that their sums agree, and what they refuse. Times decide
 * nothing but by being positive. */
#include "tests/support/command.h"
#include "tools/bench/model.h"
#include "tools/subcommands.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the formulas ------------------------------------------------------------------------------------------------- */

static model_constants assumed(void)
{
    model_constants c;
    model_constants_init(&c);
    return c;
}

/* As assumed, but for so many clusters of so many blocks. */
static model_constants with_clusters(int clusters, int blocks)
{
    model_constants c = assumed();
    c.value[MODEL_CLUSTER] = blocks;
    c.value[MODEL_CLUSTERS] = clusters;
    return c;
}

static void assert_between(const char *what, double x, double least, double most)
{
    if (!(x >= least && x <= most)) fail_msg("%s: %g, expected %g to %g", what, x, least, most);
}

/* Larger clusters read and normalise less, and nothing but the head depends on them. */
static void larger_clusters_take_less(void **state)
{
    (void)state;
    const model_constants none = with_clusters(132, 1), eight = assumed();
    assert_true(model_step(&eight, 1024, 6, 8) < model_step(&none, 1024, 6, 8));
    assert_true(model_step(&eight, 1024, 6, 64) < model_step(&none, 1024, 6, 64) / 1.5);
    const model_times before = model_image(&none, &model_shapes[0], 1, 64, 0);
    const model_times after = model_image(&eight, &model_shapes[0], 1, 64, 0);
    assert_true(after.head < before.head && after.transformer == before.transformer);
}

/* Steps of MAR-B's head, from counts made by hand from the kernel: barriers; then elements a thread normalises, and MB
 * that the grid reads from the L2 cache, of a block. */
static void a_step_is_its_counts(void **state)
{
    (void)state;
    static const struct {
        int clusters, blocks, rows;
        double barriers, meetings, elements, reads;
    } cases[] = {
        {16, 8, 8, 14, 18, 16, 16 * 8 * 6},
        {16, 8, 64, 14, 18, 32, 16 * 64 * 6},
        {132, 1, 8, 14, 0, 32, 128 * 8 * 6},
        {132, 1, 16, 14, 0, 64, 128 * (16 * 6 + 8 * 8)}, /* 8 rows of 16 are kept */
        {66, 2, 16, 14, 18, 32, 64 * 16 * 6},
        {33, 4, 64, 14, 42, 64, 32 * (64 * 6 + 32 * 8)}, /* in two chunks, by the form: 7 meetings a block */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const model_constants c = with_clusters(cases[i].clusters, cases[i].blocks);
        const double cycles = 14 * 650 + 6 * 2 * (123 + 13.625 * cases[i].elements);
        const double want = cases[i].barriers * 1.2e-6 + cases[i].meetings * 0.3e-6 + cycles / 1.9e9 +
                            6 * 1024 * cases[i].reads / 5.5e12;
        const double got = model_step(&c, 1024, 6, cases[i].rows);
        if (!(fabs(got / want - 1) < 1e-9))
            fail_msg("%d clusters of %d, %d rows: %g us, expected %g", cases[i].clusters, cases[i].blocks,
                     cases[i].rows, 1e6 * got, 1e6 * want);
    }
}

/* docs/persistent.md: all of MAR-B's weights stay on chip with 16 clusters of 8, 8 products of 12 with 15. */
static void products_on_chip(void **state)
{
    (void)state;
    const model_constants c = assumed(), fewer = with_clusters(15, 8);
    assert_int_equal(model_resident(&c, 1024, 6), 12);
    assert_int_equal(model_resident(&fewer, 1024, 6), 8);
    assert_int_equal(model_resident(&c, 1280, 8), 16 - 11);
    assert_int_equal(model_resident(&c, 1536, 12), 24 - 22);
    assert_true(model_step(&fewer, 1024, 6, 8) < model_step(&c, 1024, 6, 8)); /* by what 15 read in place of 16 */
}

/* The ranges that a reading of the sources and the machine code gave for an H200, part by part by hand, of the parts
 * that are as they were then: all but the head's persistent kernel. */
static void agrees_with_the_estimate_by_hand(void **state)
{
    (void)state;
    const model_constants c = assumed();
    const model_shape *b = &model_shapes[0], *l = &model_shapes[1], *h = &model_shapes[2];
    assert_between("MAR-B, batch 256", model_image(&c, b, 256, 64, 0).total, 0.8 * 0.034, 1.2 * 0.034);
    assert_between("MAR-L, batch 256", model_image(&c, l, 256, 64, 0).total, 0.8 * 0.067, 1.2 * 0.067);
    assert_between("MAR-H, batch 256", model_image(&c, h, 256, 64, 0).total, 0.8 * 0.13, 1.2 * 0.13);
    assert_between("MAR-B, transformer", model_image(&c, b, 1, 64, 0).transformer, 0.8 * 0.058, 1.2 * 0.058);
    assert_between("MAR-H, transformer", model_image(&c, h, 1, 64, 0).transformer, 0.8 * 0.16, 1.2 * 0.16);
    assert_between("MAR-B, modulation and VAE", model_image(&c, b, 1, 64, 0).modulation, 0.8 * 0.008, 1.2 * 0.008);
    assert_between("MAR-H, modulation and VAE", model_image(&c, h, 1, 64, 0).modulation, 0.8 * 0.018, 1.2 * 0.018);
    /* The head took 0.24 and 0.52 by that reading; another division of its products was to save 0.06 to 0.15. */
    assert_between("MAR-B, head", model_image(&c, b, 1, 64, 0).head, 0.24 - 0.15, 0.24);
    assert_between("MAR-H, head", model_image(&c, h, 1, 64, 0).head, 0.52 - 0.30, 0.52);
}

/* A constant changes the parts that depend on it, in its direction, and no other. */
static void constants_change_what_depends_on_them(void **state)
{
    (void)state;
    static const struct {
        model_constant which;
        int batch, window;
        int transformer, modulation, head; /* signs of the change as the constant doubles */
    } cases[] = {
        {MODEL_BARRIER, 1, 0, 0, 0, 1},
        {MODEL_BARRIER, 256, 0, 0, 0, 0},
        {MODEL_LAUNCH, 1, 0, 1, 1, 0},
        {MODEL_LAUNCH, 256, 0, 1, 1, 1},
        {MODEL_RAMP, 1, 0, 1, 1, 0},
        {MODEL_L2_RATE, 1, 0, -1, 0, -1},
        {MODEL_MEMORY_RATE, 256, 0, -1, -1, -1},
        {MODEL_MATRIX_RATE, 256, 0, -1, -1, -1},
        {MODEL_CLOCK, 1, 0, 0, 0, -1},
        {MODEL_CLOCK, 256, 0, 0, 0, 0},
        {MODEL_REJECTION, 1, 0, 0, 0, 0},
        {MODEL_REJECTION, 1, 8, 0, 0, 1},
        {MODEL_CALLS, 1, 0, 0, 0, 0},
        {MODEL_CALLS, 1, 8, 0, 0, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_constants c = assumed();
        const model_times before = model_image(&c, &model_shapes[0], cases[i].batch, 64, cases[i].window);
        c.value[cases[i].which] *= 2;
        const model_times after = model_image(&c, &model_shapes[0], cases[i].batch, 64, cases[i].window);
        const double changes[] = {after.transformer - before.transformer, after.modulation - before.modulation,
                                  after.head - before.head};
        const int signs[] = {cases[i].transformer, cases[i].modulation, cases[i].head};
        for (int j = 0; j < 3; j++)
            if ((changes[j] > 0) - (changes[j] < 0) != signs[j])
                fail_msg("%s doubled, batch %d, window %d: part %d changes by %g",
                         model_constant_infos[cases[i].which].name, cases[i].batch, cases[i].window, j, changes[j]);
        assert_true(fabs(after.total - (after.transformer + after.modulation + after.head)) < 1e-12);
    }
}

/* 2 * depth + 2 barriers of the grid a step, and depth more above 16 rows a block of a cluster; of clusters of several
 * blocks 3 * depth, and 4 * depth more for each further chunk of the rows, which small clusters have. */
static void counts_barriers(void **state)
{
    (void)state;
    static const struct {
        int clusters, blocks, rows, depth, barriers, meetings;
    } cases[] = {{132, 1, 8, 6, 14, 0},  {132, 1, 16, 6, 14, 0}, {132, 1, 17, 6, 20, 0},
                 {132, 1, 64, 6, 20, 0}, {66, 2, 32, 6, 14, 42}, {66, 2, 33, 6, 20, -1},
                 {33, 4, 64, 6, 14, 42}, {16, 8, 64, 6, 14, 18}, {16, 8, 8, 3, 8, 9}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int depth = cases[i].depth, rows = cases[i].rows;
        model_constants c = with_clusters(cases[i].clusters, cases[i].blocks);
        const double before = model_step(&c, 1024, depth, rows);
        c.value[MODEL_BARRIER] += 1e-6;
        const double with = model_step(&c, 1024, depth, rows);
        c.value[MODEL_CLUSTER_BARRIER] += 1e-6;
        const double barriers = (with - before) / 1e-6, meetings = (model_step(&c, 1024, depth, rows) - with) / 1e-6;
        assert_true(fabs(barriers - cases[i].barriers) < 1e-6);
        if (cases[i].meetings >= 0 && fabs(meetings - cases[i].meetings) > 1e-6)
            fail_msg("%d clusters of %d, %d rows: %g meetings", cases[i].clusters, cases[i].blocks, rows, meetings);
    }
}

/* --- speculation across tokens -------------------------------------------------------------------------------------
 */

enum { MOST_STEPS = 256 };

/* Step i of so many tokens at a time. */
static void even_schedule(int tokens, int steps, int *known)
{
    for (int i = 0; i <= steps; i++) known[i] = i * tokens;
}

/* How many passes an image of the demo has, from the acceptance of its late conditions alone: beside what was counted
 * (bench/results/path_figures.json: one image at a time, and rounds of 16 steps and one pass more). */
static void passes_of_the_demo(void **state)
{
    (void)state;
    static const struct {
        int tokens, steps, gamma;
        double counted;
    } cases[] = {{1, 64, 1, 64},    {1, 64, 2, 34.0}, {1, 64, 4, 18.8}, {1, 64, 8, 12.3},
                 {1, 64, 16, 10.1}, {1, 64, 32, 9.7}, {4, 16, 8, 8.0}};
    const model_constants c = assumed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int known[MOST_STEPS + 1];
        even_schedule(cases[i].tokens, cases[i].steps, known);
        const double passes =
            model_path_image(&c, &model_shapes[0], known, cases[i].steps, cases[i].gamma, 8, 0).passes;
        assert_between("passes / counted", passes / cases[i].counted, 0.9, 1.15);
    }
    assert_between("late by 1", model_path_accepted(&c, 1, 64), 0.949 - 1e-9, 0.949 + 1e-9);
    assert_between("late by 8", model_path_accepted(&c, 32, 256), 0.816 - 1e-9, 0.816 + 1e-9);
    assert_between("late by 3", model_path_accepted(&c, 3, 64), 0.871, 0.930);
    assert_between("late by half a step", model_path_accepted(&c, 0.5, 64), 0.949, 1);
}

static model_times path_with_power(double power, const model_shape *s, const int *known, int steps, int gamma)
{
    model_constants c = assumed();
    c.value[MODEL_POWER] = power;
    return model_path_image(&c, s, known, steps, gamma, 8, 0);
}

/* Where everything is accepted a round has gamma steps, and where nothing is one. */
static void the_ends_of_acceptance(void **state)
{
    (void)state;
    int known[MOST_STEPS + 1];
    const model_constants c = assumed();
    model_schedule(64, known);
    for (int gamma = 1; gamma <= 64; gamma *= 2) {
        const model_times all = path_with_power(1e-12, &model_shapes[0], known, 64, gamma);
        const model_times none = path_with_power(1e6, &model_shapes[0], known, 64, gamma);
        assert_between("passes", all.passes, 64 / gamma + (gamma > 1 ? 1 : 0) - 1e-6, 64 / gamma + 1 + 1e-6);
        assert_between("passes", none.passes, 64 - 1e-6, 64 + 1e-6);
        double transformer =
            model_pass(&c, &model_shapes[0], known, 1, 1); /* the first step's, and the round's others */
        if (gamma > 1) transformer += model_pass(&c, &model_shapes[0], known + 1, gamma - 1, 1);
        for (int first = gamma; first < 64; first += gamma)
            transformer += model_pass(&c, &model_shapes[0], known + first, gamma, 1);
        assert_between("transformer", all.transformer / transformer, 1 - 1e-6, 1 + 1e-6);
        assert_true(all.waiting / c.value[MODEL_WAIT] > all.passes - 1 - 1e-6);
        assert_true(none.waiting > all.waiting && none.judging > all.judging && none.total > all.total);
    }
    for (int steps = 1; steps <= 2; steps++) { /* no round, and one */
        model_schedule(steps, known);
        const model_times t = path_with_power(1, &model_shapes[0], known, steps, 8);
        assert_between("passes", t.passes, steps, steps);
        assert_true(isfinite(t.total) && t.total > 0);
    }
}

/* More acceptance is fewer passes and less time; a pass over several contexts takes less than as many passes; a head in
 * f32 takes more than one in bf16. */
static void acceptance_decides(void **state)
{
    (void)state;
    int known[MOST_STEPS + 1];
    model_schedule(256, known);
    model_times before = path_with_power(0.25, &model_shapes[0], known, 256, 8);
    for (double power = 0.5; power <= 8; power *= 2) {
        const model_times t = path_with_power(power, &model_shapes[0], known, 256, 8);
        assert_true(t.passes > before.passes && t.total > before.total && t.calls > before.calls);
        before = t;
    }
    const model_constants c = assumed();
    const double one = model_pass(&c, &model_shapes[0], known + 100, 1, 1);
    assert_between("pass of 8 contexts", model_pass(&c, &model_shapes[0], known + 100, 8, 1), one, 8 * one);
    const model_times bf16 = model_path_image(&c, &model_shapes[0], known, 256, 8, 8, 0);
    const model_times f32 = model_path_image(&c, &model_shapes[0], known, 256, 8, 8, 1);
    assert_true(f32.transformer == bf16.transformer && f32.passes == bf16.passes);
    assert_true(f32.head > bf16.head && f32.judging > bf16.judging && f32.modulation > bf16.modulation);
}

/* --- the command -------------------------------------------------------------------------------------------------- */

static double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!cJSON_IsNumber(item)) fail_msg("no number %s", name);
    return item->valuedouble;
}

static const char *string(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    if (!text) fail_msg("no string %s", name);
    return text;
}

static cJSON *run_json(const char *directory, const char *line)
{
    command_result r = command_run(directory, line);
    if (r.status != 0) fail_msg("%s: status %d: %s", line, r.status, r.err);
    assert_string_equal(r.err, "");
    cJSON *json = cJSON_Parse(r.out);
    if (!json) fail_msg("%s: no JSON: %s", line, r.out);
    command_result_free(&r);
    return json;
}

static const cJSON *measurement(const cJSON *json, const char *group, const char *name)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(json, "measurements"))
    {
        if (strcmp(string(row, "group"), group) == 0 && strcmp(string(row, "name"), name) == 0) return row;
    }
    fail_msg("no %s %s", group, name);
    return NULL;
}

/* Of all percentages in a text. */
static void no_share_is_above_100(const char *text)
{
    for (const char *end = text; (end = strchr(end, '%')) != NULL; end++) {
        const char *begin = end;
        while (begin > text && (isdigit((unsigned char)begin[-1]) || begin[-1] == '.')) begin--;
        if (strtod(begin, NULL) > 100) fail_msg("%.*s in \"%s\"", (int)(end - begin), begin, text);
    }
}

static void micro_lists_the_parts(void **state)
{
    const char *directory = *state;
    cJSON *json = run_json(directory, "$MAR bench --micro --json --backend cpu --threads 1 --num_iter 8 "
                                      "--num_sampling_steps 8 --batch 2");
    assert_string_equal(string(json, "model"), "demo");
    assert_true(strncmp(string(json, "backend"), "cpu ", 4) == 0);
    assert_true(number(json, "batch") == 2 && number(json, "head_width") == 128 && number(json, "head_depth") == 2);
    assert_true(number(cJSON_GetObjectItemCaseSensitive(json, "parameters"), "num_iter") == 8);
    static const char *const parts[][2] = {
        {"machine", "matrix product"},
        {"machine", "memory copy"},
        {"machine", "least operation"},
        {"phase", "barrier"},
        {"phase", "fc1"},
        {"phase", "fc2"},
        {"step", "chain step"},
        {"speculation", "rejection"},
        {"speculation", "round, window 8"},
        {"pass", "encoder"},
        {"pass", "decoder"},
        {"pass", "head"},
        {"pass", "image decoder"},
        {"operation", "layer norm 64"},
        {"image decoder", "group norm 64, silu"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_true(number(measurement(json, parts[i][0], parts[i][1]), "seconds") > 0);
    const cJSON *row, *constants = cJSON_GetObjectItemCaseSensitive(json, "constants");
    double operations = 0, passes = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(json, "measurements"))
    {
        const char *group = string(row, "group");
        const double flop = number(row, "count") * number(row, "flop");
        assert_true(number(row, "count") > 0 && number(row, "rows") >= 0 && number(row, "bytes") >= 0);
        if (strcmp(group, "operation") == 0) operations += flop;
        if (strcmp(group, "pass") == 0 && strcmp(string(row, "name"), "image decoder") != 0) passes += flop;
    }
    assert_between("flop of the operations beside the passes", operations / passes, 0.98, 1.02);
    const cJSON *product = measurement(json, "machine", "matrix product");
    assert_between("flop_per_second",
                   number(constants, "flop_per_second") * number(product, "seconds") / number(product, "flop"),
                   1 - 1e-9, 1 + 1e-9);
    cJSON_Delete(json);

    char *argv[] = {"mar", "bench", "--micro", "--backend", "cpu", "--num_iter", "4", "--num_sampling_steps",
                    "4",   NULL};
    char *shown = command_on_terminal(directory, argv);
    assert_non_null(strstr(shown, "\rmeasuring the parts\033[K\r\033[K"));
    assert_non_null(strstr(shown, "chain 2 x 128, 4 steps"));
    assert_non_null(strstr(shown, "us in sum; the step took"));
    no_share_is_above_100(shown);
    free(shown);
}

/* --- rates above what was measured -------------------------------------------------------------------------------- */

/* Measurements in place of the library's: the link has --wrap for both functions. `machine`: a product's flop/s in the
 * first and in any further measurement, as mar_measure_peak and mar_session_measure find it; 0: the library measures.
 */
static struct {
    double machine[2];
    double operation[2]; /* flop/s of an operation, as mar_session_measure finds it */
    int calls;           /* of either function */
} fake;

mar_status __real_mar_measure_peak(mar *m, double *flop_per_second);
mar_status __wrap_mar_measure_peak(mar *m, double *flop_per_second);
mar_status __real_mar_session_measure(mar_session *s, mar_measurement_function *f, void *user);
mar_status __wrap_mar_session_measure(mar_session *s, mar_measurement_function *f, void *user);

mar_status __wrap_mar_measure_peak(mar *m, double *flop_per_second)
{
    if (fake.machine[0] == 0) return __real_mar_measure_peak(m, flop_per_second);
    *flop_per_second = fake.machine[fake.calls++ > 0];
    return MAR_OK;
}

mar_status __wrap_mar_session_measure(mar_session *s, mar_measurement_function *f, void *user)
{
    if (fake.machine[0] == 0) return __real_mar_session_measure(s, f, user);
    const int i = fake.calls++ > 0;
    const mar_measurement rows[] = {{"machine", "matrix product", 1024, 1, 1e9 / fake.machine[i], 0, 1e9},
                                    {"machine", "memory copy", 1024, 1, 1e-3, 1e6, 0},
                                    {"operation", "linear", 8, 1, 1e9 / fake.operation[i], 0, 1e9},
                                    {"operation", "copy rows", 8, 1, 1e-3, 7.36e6, 0}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) f(user, &rows[k]);
    return MAR_OK;
}

/* What mar bench prints, run in this process with such measurements. The caller frees it. */
static char *bench_with(const char *directory, const char *option, const double machine[2], const double operation[2])
{
    char path[1024], *argv[] = {"bench", "--num_iter", "2",   "--num_sampling_steps",
                                "2",     "--backend",  "cpu", (char *)(uintptr_t)option,
                                NULL};
    snprintf(path, sizeof path, "%s/out", directory);
    memcpy(fake.machine, machine, sizeof fake.machine);
    memcpy(fake.operation, operation, sizeof fake.operation);
    fake.calls = 0;
    fflush(stdout);
    const int before = dup(STDOUT_FILENO), out = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(before >= 0 && out >= 0 && dup2(out, STDOUT_FILENO) >= 0);
    const int status = cmd_bench(option ? 8 : 7, argv);
    fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    close(out);
    fake.machine[0] = 0;
    assert_int_equal(status, 0);
    return read_whole_file(directory, "out", NULL);
}

/* A peak that another program slowed is measured again, and so is a rate that was too high. What stays above the peak
 * is shown as that, and what was in a cache, too. */
static void rates_above_the_peak(void **state)
{
    static const struct {
        const char *option;
        double machine[2], operation[2];
        int calls;         /* measurements */
        const char *shown; /* NULL: no row is above */
    } cases[] = {
        {"--micro", {1000e9, 1000e9}, {736e9, 736e9}, 1, NULL},
        {"--micro", {100e9, 1000e9}, {736e9, 736e9}, 2, NULL},
        {"--micro", {1000e9, 900e9}, {7360e9, 736e9}, 2, NULL},
        {"--micro", {100e9, 100e9}, {736e9, 736e9}, 2, ">100%: above the peak, in both of two measurements\n"},
        {NULL, {1e16, 1}, {0}, 1, NULL},
        {NULL, {1, 1e16}, {0}, 2, NULL},
        {NULL, {1, 2}, {0}, 2, ">100%: above the peak, which was measured twice\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = bench_with(*state, cases[i].option, cases[i].machine, cases[i].operation);
        no_share_is_above_100(text);
        assert_int_equal(fake.calls, cases[i].calls);
        const char *above = strstr(text, " >100%");
        if (!above != !cases[i].shown || (above && !strstr(text, cases[i].shown))) fail_msg("case %zu: %s", i, text);
        if (cases[i].option && !above) assert_non_null(strstr(text, " 736.0   73.6%\n"));
        if (cases[i].option) assert_non_null(strstr(text, "   cache"));
        if (cases[i].option) assert_non_null(strstr(text, "\ncache: faster than a copy in memory"));
        free(text);
    }
}

static const cJSON *image(const cJSON *json, const char *model, int batch, int window)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(json, "images"))
    {
        if (strcmp(string(row, "model"), model) == 0 && number(row, "batch") == batch &&
            number(row, "head_spec") == window)
            return row;
    }
    fail_msg("no %s, batch %d, window %d", model, batch, window);
    return NULL;
}

static void model_time_reads_constants(void **state)
{
    const char *directory = *state;
    static const char measured[] =
        "{\"backend\": \"cuda bf16\", \"head_width\": 1024, \"head_depth\": 6, \"constants\": {\"barrier_seconds\": "
        "2.4e-6},"
        " \"measurements\": [{\"group\": \"step\", \"name\": \"chain step\", \"rows\": 8, \"seconds\": 5e-5},"
        " {\"group\": \"step\", \"name\": \"another\", \"rows\": 8, \"seconds\": 5e-5}, 7]}";
    write_whole_file(directory, "gpu.json", measured, strlen(measured));
    cJSON *plain = run_json(directory, "$MAR bench --model_time --json");
    cJSON *slow = run_json(directory, "$MAR bench --model_time --constants gpu.json --json");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(plain, "images")), 9);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(plain, "measured")), 0);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(plain, "compared")), 0);
    const cJSON *path, *paths = cJSON_GetObjectItemCaseSensitive(plain, "paths");
    assert_int_equal(cJSON_GetArraySize(paths), 3 * 3 * (2 * 5 + 1) * 4); /* shapes, steps, gammas or none, windows */
    cJSON_ArrayForEach(path, paths)
    {
        const double parts = number(path, "transformer_seconds") + number(path, "modulation_and_vae_seconds") +
                             number(path, "head_seconds") + number(path, "judging_seconds") +
                             number(path, "waiting_seconds");
        assert_between("sum of parts", parts / number(path, "total_seconds"), 1 - 1e-9, 1 + 1e-9);
        assert_true(number(path, "passes_in_sequence") <= number(path, "num_iter") + 1e-9);
        assert_true((number(path, "gamma") == 0) == (number(path, "judging_seconds") == 0));
    }
    const cJSON *names = cJSON_GetObjectItemCaseSensitive(slow, "measured");
    assert_int_equal(cJSON_GetArraySize(names), 1);
    assert_string_equal(cJSON_GetArrayItem(names, 0)->valuestring, "barrier_seconds");
    const cJSON *a = image(plain, "MAR-B", 1, 0), *b = image(slow, "MAR-B", 1, 0);
    assert_true(number(a, "transformer_seconds") == number(b, "transformer_seconds"));
    assert_true(number(a, "head_seconds") < number(b, "head_seconds"));
    assert_true(number(a, "target_seconds") == 0.2);
    const cJSON *compared = cJSON_GetObjectItemCaseSensitive(slow, "compared");
    assert_int_equal(cJSON_GetArraySize(compared), 1);
    const cJSON *step = cJSON_GetArrayItem(compared, 0);
    model_constants c;
    model_constants_init(&c);
    c.value[MODEL_BARRIER] = 2.4e-6;
    assert_between("model", number(step, "model_seconds") / model_step(&c, 1024, 6, 8), 1 - 1e-9, 1 + 1e-9);
    assert_between("ratio", number(step, "ratio") * number(step, "model_seconds"), 5e-5 - 1e-12, 5e-5 + 1e-12);
    cJSON_Delete(plain);
    cJSON_Delete(slow);

    command_result r = command_run(directory, "$MAR bench --model_time --constants gpu.json");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "2.4 us       measured"));
    assert_non_null(strstr(r.out, "5.5 TB/s     assumed"));
    assert_non_null(strstr(r.out, "MAR-H, batch 1, --head_spec 8"));
    assert_non_null(strstr(r.out, "chain step"));
    assert_non_null(strstr(r.out, "MAR-L, 256 steps"));
    command_result_free(&r);
}

static void mistakes_are_one_line(void **state)
{
    const char *directory = *state;
    static const struct {
        const char *file, *arguments, *says;
    } cases[] = {
        {NULL, "--model_time --constants none.json", "none.json: cannot read: No such file"},
        {"text", "--model_time --constants f", "f: is no JSON object"},
        {"[1]", "--model_time --constants f", "f: is no JSON object"},
        {"{\"constants\": 1}", "--model_time --constants f", "f: has no object \"constants\""},
        {"{\"constants\": {\"speed\": 1}}", "--model_time --constants f", "f: constant speed: there is none"},
        {"{\"constants\": {\"clock_hz\": 0}}", "--model_time --constants f",
         "f: constant clock_hz: expected a number above 0"},
        {"{\"constants\": {\"clock_hz\": \"x\"}}", "--model_time --constants f",
         "f: constant clock_hz: expected a number"},
        {"{\"constants\": {\"multiprocessors\": 131.5}}", "--model_time --constants f",
         "f: constant multiprocessors: expected a whole number"},
        {"{\"constants\": {\"multiprocessors\": 0.5}}", "--model_time --constants f",
         "f: constant multiprocessors: expected a whole number"},
        {"{\"constants\": {\"clusters_at_once\": 0.5}}", "--model_time --constants f",
         "f: constant clusters_at_once: expected a whole number"},
        {"{\"constants\": {\"cluster_blocks\": 3}}", "--model_time --constants f",
         "f: constant cluster_blocks: expected 1, 2, 4 or 8"},
        {"{\"backend\": \"cpu f32\", \"constants\": {}}", "--model_time --constants f",
         "f: was measured on a CPU (cpu f32)"},
        {"{\"constants\": {}}", "--constants f", "--constants needs --model_time"},
        {NULL, "--micro --model_time", "expected one of them"},
        {NULL, "--micro --repeat 2", "--repeat has no effect with --micro"},
        {NULL, "--model_time --repeat 2", "--repeat has no effect with --model_time"},
        {NULL, "--model_time --num_iter 2", "--model_time: expected no other options"},
        {NULL, "--model_time --batch 2", "--model_time: expected no other options"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256];
        if (cases[i].file) write_whole_file(directory, "f", cases[i].file, strlen(cases[i].file));
        snprintf(line, sizeof line, "$MAR bench %s", cases[i].arguments);
        command_result r = command_run(directory, line);
        if (r.status != 1 || !strstr(r.err, cases[i].says) || strchr(r.err, '\n') != r.err + strlen(r.err) - 1)
            fail_msg("%s: status %d, \"%s\", expected \"%s\"", line, r.status, r.err, cases[i].says);
        assert_string_equal(r.out, "");
        command_result_free(&r);
    }
}

/* A file of 4 MB is read, one byte more is too much. */
static void large_files_are_refused(void **state)
{
    const char *directory = *state;
    const size_t most = 4 << 20;
    char *text = malloc(most + 1);
    assert_non_null(text);
    memset(text, ' ', most + 1);
    memcpy(text, "{\"constants\": {}}", 17);
    write_whole_file(directory, "f", text, most);
    command_result r = command_run(directory, "$MAR bench --model_time --constants f");
    assert_int_equal(r.status, 0);
    command_result_free(&r);
    write_whole_file(directory, "f", text, most + 1);
    r = command_run(directory, "$MAR bench --model_time --constants f");
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "f: has more than 4 MB, expected"));
    command_result_free(&r);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_estimate_by_hand),
        cmocka_unit_test(constants_change_what_depends_on_them),
        cmocka_unit_test(counts_barriers),
        cmocka_unit_test(passes_of_the_demo),
        cmocka_unit_test(the_ends_of_acceptance),
        cmocka_unit_test(acceptance_decides),
        cmocka_unit_test(larger_clusters_take_less),
        cmocka_unit_test(a_step_is_its_counts),
        cmocka_unit_test(products_on_chip),
        cmocka_unit_test_setup_teardown(micro_lists_the_parts, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(rates_above_the_peak, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(model_time_reads_constants, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(mistakes_are_one_line, command_setup, command_teardown),
        cmocka_unit_test_setup_teardown(large_files_are_refused, command_setup, command_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
