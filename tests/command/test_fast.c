/* --fast: what a level stands for, in which order it gives way, and that it is nothing but those options. */
#include "tests/support/command.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FEW "--num 1 --class 3 --threads 1 "

/* The line that a run with these arguments says. The caller frees it. */
static char *line_of(const char *directory, const char *environment, const char *arguments)
{
    char line[1024];
    snprintf(line, sizeof line, "%s $MAR generate %s " FEW "--out out.png", environment, arguments);
    command_result r = command_run(directory, line);
    if (r.status != 0) fail_msg("%s: status %d, %s", line, r.status, r.err);
    char *said = strdup(r.err);
    command_result_free(&r);
    return said;
}

/* "--dtype int8 --num_iter 16" of "mar: fast 1: --dtype int8 --num_iter 16 (approximate; ...". The caller frees it. */
static char *options_in(const char *line, int level)
{
    char begin[32];
    snprintf(begin, sizeof begin, "mar: fast %d: ", level);
    if (strncmp(line, begin, strlen(begin)) != 0) fail_msg("\"%s\" does not begin with \"%s\"", line, begin);
    const char *options = line + strlen(begin), *end = strstr(options, " (");
    assert_non_null(end);
    assert_non_null(strchr(line, '\n'));
    assert_string_equal(strchr(line, '\n'), "\n"); /* one line */
    return strndup(options, (size_t)(end - options));
}

static int has_int8(const char *directory)
{
    command_result r = command_run(directory, "$MAR generate --dtype int8 " FEW
                                              "--num_iter 1 --num_sampling_steps 2 --out int8.png --quiet");
    const int has = r.status == 0;
    command_result_free(&r);
    return has;
}

static void expect_part(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("\"%s\" is not in \"%s\"", part, text);
}

/* A level makes the same picture, byte for byte, as the options that it says. */
static void levels_are_their_options(void **state)
{
    const char *d = *state;
    const int int8 = has_int8(d);
    char *before = NULL;
    for (int level = 1; level <= 3; level++) {
        char arguments[512];
        snprintf(arguments, sizeof arguments, "--fast %d", level);
        char *line = line_of(d, "", arguments), *options = options_in(line, level);
        expect_part(options, "--num_iter ");
        assert_int_equal(strstr(options, "--dtype int8") != NULL, int8);
        expect_part(line,
                    int8 ? "(approximate; distance 0." : "without --dtype int8, which this machine does not have");
        if (int8) expect_part(line, " on the demo, another seed 0.");
        if (before && strcmp(before, options) == 0) fail_msg("levels %d and %d are both %s", level - 1, level, options);
        size_t of_level, of_options;
        char *picture = read_whole_file(d, "out.png", &of_level);
        snprintf(arguments, sizeof arguments, "generate %s " FEW "--out same.png --quiet", options);
        command_ok(d, arguments);
        char *same = read_whole_file(d, "same.png", &of_options);
        assert_int_equal(of_level, of_options);
        assert_memory_equal(picture, same, of_level);
        free(picture), free(same), free(line), free(before);
        before = options;
    }
    free(before);
}

/* What is given stays. */
static void given_options_win(void **state)
{
    const char *d = *state;
    char *line = line_of(d, "", "--fast 2 --num_iter 3"), *options = options_in(line, 2);
    assert_null(strstr(options, "num_iter"));
    expect_part(line, "without --num_iter, which was given");
    expect_part(line, "; not measured like this)");
    free(line), free(options);
    line = line_of(d, "", "--num_sampling_steps 10 --dtype f32 --fast 3");
    options = options_in(line, 3);
    assert_null(strstr(options, "dtype"));
    assert_null(strstr(options, "num_sampling_steps"));
    expect_part(options, "--num_iter ");
    free(line), free(options);
    /* With gtr, which has steps of its own, num_iter would have no effect. */
    line = line_of(d, "", "--fast 1 --gtr --gtr_generation_steps 2 --num_sampling_steps 4");
    options = options_in(line, 1);
    assert_null(strstr(options, "num_iter"));
    expect_part(line, "without --num_iter, which does not go with what was given");
    free(line), free(options);
}

static void without_int8(void **state)
{
    char *line = line_of(*state, "MAR_ISA=generic", "--fast 2"), *options = options_in(line, 2);
    assert_null(strstr(options, "int8"));
    expect_part(options, "--num_iter ");
    expect_part(line, "without --dtype int8, which this machine does not have; not measured like this)");
    free(line), free(options);
}

/* Discrete tokens have no shortcuts, and relaxed verifiers only with a draft. */
static void discrete_tokens(void **state)
{
    const char *d = *state;
    char *line = line_of(d, "", "--fast 2 --model demo-discrete");
    expect_part(line, has_int8(d) ? "mar: fast 2: --dtype int8 (" : "mar: fast 2: no option (");
    expect_part(line, "the same as a lower level, as there is no --draft");
    assert_null(strstr(line, "num_iter"));
    free(line);
    line = line_of(d, "", "--fast 2 --model demo-discrete --draft demo-discrete-draft");
    expect_part(line, "--spec ");
    free(line);
    line = line_of(d, "", "--fast 3 --model demo-discrete --draft demo-discrete-draft --spec vanilla");
    assert_null(strstr(line, "--spec lantern ("));
    expect_part(line, ", which was given");
    free(line);
}

static void refused(void **state)
{
    static const struct {
        const char *arguments, *says;
    } cases[] = {
        {"generate --fast 4", "mar: --fast 4: expected a whole number from 1 to 3\n"},
        {"generate --fast 0", "mar: --fast 0: expected a whole number from 1 to 3\n"},
        {"bench --fast best", "mar: --fast best: expected a whole number from 1 to 3\n"},
        {"eval --images x --fast 1", "mar: --fast: has no effect with --images, which are made already\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256];
        snprintf(line, sizeof line, "$MAR %s", cases[i].arguments);
        command_result r = command_run(*state, line);
        assert_int_equal(r.status, 1);
        assert_string_equal(r.err, cases[i].says);
        command_result_free(&r);
    }
}

/* Standard output is for the record, and quiet is quiet. */
static void where_it_is_said(void **state)
{
    const char *d = *state;
    command_result r = command_run(d, "$MAR generate --fast 3 " FEW "--json --out out.png");
    assert_int_equal(r.status, 0);
    cJSON *record = cJSON_Parse(r.out);
    assert_non_null(record);
    const cJSON *steps = cJSON_GetObjectItem(cJSON_GetObjectItem(record, "parameters"), "num_iter");
    assert_true(cJSON_IsNumber(steps) && steps->valuedouble < 64);
    cJSON_Delete(record);
    assert_int_equal(strncmp(r.err, "mar: fast 3: ", 13), 0);
    command_result_free(&r);
    r = command_run(d, "$MAR generate --fast 3 " FEW "--quiet --out out.png");
    assert_string_equal(r.err, "");
    command_result_free(&r);
    r = command_run(d, "$MAR bench --fast 3 --threads 1 --json");
    assert_int_equal(r.status, 0);
    assert_int_equal(strncmp(r.err, "mar: fast 3: ", 13), 0);
    command_result_free(&r);
}

/* The reference is not made faster by the run that it is compared with. */
static void fidelity_of_a_level(void **state)
{
    command_result r = command_run(*state, "$MAR fidelity --fast 3 --versus --fast 2 --num_iter 2 --against "
                                           "--num_iter 4 --num_sampling_steps 20 --num 20 --threads 1 --json");
    assert_int_equal(r.status, 0);
    cJSON *record = cJSON_Parse(r.out);
    assert_non_null(record);
    const cJSON *reference = cJSON_GetObjectItem(record, "reference"), *runs = cJSON_GetObjectItem(record, "runs");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(reference, "options")),
                        "plain sampling, 4 autoregressive steps of 20");
    for (int i = 0; i < 2; i++) {
        const char *options = cJSON_GetStringValue(cJSON_GetObjectItem(cJSON_GetArrayItem(runs, i), "options"));
        assert_null(strstr(options, "--fast"));
        if (i == 1) expect_part(options, "--num_iter 2");
    }
    cJSON_Delete(record);
    expect_part(r.err, "mar: fast 3: ");
    expect_part(r.err, "\nmar: fast 2: ");
    command_result_free(&r);
}

/* In a sweep a level is a point like others, which what is in common goes before. */
static void evaluation(void **state)
{
    const char *d = *state;
    write_whole_file(d, "axes.txt", "--fast 1 | --fast 3\n", 20);
    command_result r = command_run(d, "$MAR eval --sweep axes.txt --num_images 10 --num_iter 2 --num_sampling_steps 4 "
                                      "--threads 1 --out sweep");
    if (r.status != 0) fail_msg("%s", r.err);
    expect_part(r.err, "mar: fast 1: ");
    expect_part(r.err, "mar: fast 3: ");
    expect_part(r.err, "without --num_iter, which was given");
    command_result_free(&r);
    char *result = read_whole_file(d, "sweep/fast-3/result.json", NULL);
    assert_int_equal(strstr(result, "int8") != NULL, has_int8(d));
    free(result);
    r = command_run(d, "$MAR eval --fast 3 --num_images 10 --num_sampling_steps 4 --threads 1 --out one");
    assert_int_equal(r.status, 0);
    assert_int_equal(strncmp(r.err, "mar: fast 3: ", 13), 0);
    command_result_free(&r);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, command_setup, command_teardown)
    const struct CMUnitTest tests[] = {
        TEST(levels_are_their_options), TEST(given_options_win), TEST(without_int8),
        TEST(discrete_tokens),          TEST(refused),           TEST(where_it_is_said),
        TEST(fidelity_of_a_level),      TEST(evaluation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
