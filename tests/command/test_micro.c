/* mar bench --micro: its parts, its sums, its errors. Times must only be positive. */
#include "tests/support/command.h"

#include "mar_measure.h"
#include "tools/cli/subcommands.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void assert_between(const char *what, double x, double least, double most)
{
    if (!(x >= least && x <= most)) fail_msg("%s: %g, expected %g to %g", what, x, least, most);
}

/* --- the command -------------------------------------------------------------------------------------------------- */

static const cJSON *measurement(const cJSON *json, const char *group, const char *name)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(json, "measurements"))
    {
        if (strcmp(json_text(row, "group"), group) == 0 && strcmp(json_text(row, "name"), name) == 0) return row;
    }
    fail_msg("no %s %s", group, name);
    return NULL;
}

/* Checks all percentages in a text. */
static void no_share_is_above_100(const char *text)
{
    for (const char *end = text; (end = strchr(end, '%')) != NULL; end++) {
        const char *begin = end;
        while (begin > text && (isdigit((unsigned char)begin[-1]) || begin[-1] == '.')) begin--;
        if (strtod(begin, NULL) > 100) fail_msg("%.*s in \"%s\"", (int)(end - begin), begin, text);
    }
}

COMMAND_CASE(micro_lists_the_parts)
{
    const char *directory = *state;
    cJSON *json = command_json(directory, "bench --micro --json --backend cpu --threads 1 --num_iter 8 "
                                          "--num_sampling_steps 8 --batch 2");
    assert_string_equal(json_text(json, "model"), "demo");
    assert_true(strncmp(json_text(json, "backend"), "cpu ", 4) == 0);
    assert_true(json_number(json, "batch") == 2 && json_number(json, "head_width") == 128 &&
                json_number(json, "head_depth") == 2);
    assert_true(json_number(json, "parameters.num_iter") == 8);
    static const char *const parts[][2] = {
        {"machine", "matrix product"},
        {"machine", "memory"},
        {"pass", "encoder"},
        {"pass", "decoder"},
        {"pass", "head"},
        {"pass", "image decoder"},
        {"operation", "layer norm 64"},
        {"image decoder", "group norm 64, silu"},
    };
    for (size_t i = 0; i < LENGTH(parts); i++)
        assert_true(json_number(measurement(json, parts[i][0], parts[i][1]), "seconds") > 0);
    const cJSON *row;
    double operations = 0, passes = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(json, "measurements"))
    {
        const char *group = json_text(row, "group");
        const double flop = json_number(row, "count") * json_number(row, "flop");
        assert_true(json_number(row, "count") > 0 && json_number(row, "rows") >= 0 && json_number(row, "bytes") >= 0);
        if (strcmp(group, "operation") == 0) operations += flop;
        if (strcmp(group, "pass") == 0 && strcmp(json_text(row, "name"), "image decoder") != 0) passes += flop;
    }
    assert_between("flop of the operations beside the passes", operations / passes, 0.98, 1.02);
    const cJSON *product = measurement(json, "machine", "matrix product");
    assert_between("flop_per_second",
                   json_number(json, "constants.flop_per_second") * json_number(product, "seconds") /
                       json_number(product, "flop"),
                   1 - 1e-9, 1 + 1e-9);
    cJSON_Delete(json);

    char *argv[] = {"mar", "bench", "--micro", "--backend", "cpu", "--num_iter", "4", "--num_sampling_steps",
                    "4",   NULL};
    char *shown = command_on_terminal(directory, argv);
    assert_has(shown, "\rmeasuring the parts\033[K\r\033[K");
    assert_has(shown, "chain 2 x 128, 4 steps");
    assert_has(shown, "us in sum; the step took");
    no_share_is_above_100(shown);
    free(shown);
}

/* --- rates above the measured peak -------------------------------------------------------------------------------- */

/* Replaces the library's measurements: the link has --wrap for both functions. `machine`: flop/s of a product in the
 * first and in any further measurement, for mar_measure_peak and mar_session_measure. 0: the library measures. */
static struct {
    double machine[2];
    double operation[2]; /* flop/s of an operation, for mar_session_measure */
    int calls;           /* of both functions */
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
    enum { SIZE = sizeof(mar_measurement) };
    const mar_measurement rows[] = {{SIZE, "machine", "matrix product", 1024, 1, 1e9 / fake.machine[i], 0, 1e9},
                                    {SIZE, "machine", "memory", 0, 1, 1e-3, 1e6, 0},
                                    {SIZE, "operation", "linear", 8, 1, 1e9 / fake.operation[i], 0, 1e9},
                                    {SIZE, "operation", "copy rows", 8, 1, 1e-3, 7.36e6, 0}};
    for (size_t k = 0; k < LENGTH(rows); k++) f(user, &rows[k]);
    return MAR_OK;
}

/* Returns the output of mar bench, run in this process with these measurements. The caller frees it. */
static char *bench_with(const char *option, const double machine[2], const double operation[2])
{
    char *argv[] = {
        "bench", "--num_iter", "2", "--num_sampling_steps", "2", "--backend", "cpu", (char *)(uintptr_t)option, NULL};
    memcpy(fake.machine, machine, sizeof fake.machine);
    memcpy(fake.operation, operation, sizeof fake.operation);
    fake.calls = 0;
    capture_begin();
    command_result r = capture_end(cmd_bench(option ? 8 : 7, argv));
    fake.machine[0] = 0;
    assert_int_equal(r.status, 0);
    free(r.err);
    return r.out;
}

/* Checks that a peak that another program slowed is measured again, and so is a rate that was too high. Rates that stay
 * above the peak are marked. So are those from a cache. */
TEST_CASE(rates_above_the_peak)
{
    static const struct {
        const char *option;
        double machine[2], operation[2];
        int calls;         /* measurements */
        const char *shown; /* NULL: no row is above the peak */
    } cases[] = {
        {"--micro", {1000e9, 1000e9}, {736e9, 736e9}, 1, NULL},
        {"--micro", {100e9, 1000e9}, {736e9, 736e9}, 2, NULL},
        {"--micro", {1000e9, 900e9}, {7360e9, 736e9}, 2, NULL},
        {"--micro", {100e9, 100e9}, {736e9, 736e9}, 2, ">100%: above the peak, in both of two measurements\n"},
        {NULL, {1e16, 1}, {0}, 1, NULL},
        {NULL, {1, 1e16}, {0}, 2, NULL},
        {NULL, {1, 2}, {0}, 2, ">100%: above the peak, which was measured twice\n"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char *text = bench_with(cases[i].option, cases[i].machine, cases[i].operation);
        no_share_is_above_100(text);
        assert_int_equal(fake.calls, cases[i].calls);
        const char *above = strstr(text, " >100%");
        if (!above != !cases[i].shown || (above && !strstr(text, cases[i].shown))) fail_msg("case %zu: %s", i, text);
        if (cases[i].option && !above) assert_non_null(strstr(text, " 736.0   73.6%\n"));
        if (cases[i].option) assert_non_null(strstr(text, "   cache"));
        if (cases[i].option) assert_non_null(strstr(text, "\ncache: faster than memory"));
        free(text);
    }
}

COMMAND_CASE(repeat_has_no_effect)
{
    command_refused(*state, "$MAR bench --micro --repeat 2", "--repeat has no effect with --micro\n", "");
}
