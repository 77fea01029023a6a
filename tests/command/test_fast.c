/* --fast: the options of each level, which given options win, and that a level equals its options. */
#include "tests/support/command.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FEW "--num 1 --class 3 --threads 1 "

/* Returns the line on stderr of a run with these arguments. The caller frees it. */
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

/* Returns "--dtype int8 --num_iter 16" of "mar: fast 1: --dtype int8 --num_iter 16 (approximate; ...". The caller frees
 * it. */
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

/* Checks that a level makes the same picture, byte for byte, as the options in its line. */
static void levels_are_their_options(void **state)
{
    const char *d = *state;
    char *before = NULL;
    for (int level = 1; level <= 3; level++) {
        char arguments[512];
        snprintf(arguments, sizeof arguments, "--fast %d", level);
        char *line = line_of(d, "", arguments), *options = options_in(line, level);
        assert_has(options, "--num_iter ");
        assert_has(options, "--dtype int8");
        assert_has(line, "(approximate; distance to plain sampling 0.");
        assert_has(line, " on the demo, another seed 0.");
        if (before && strcmp(before, options) == 0) fail_msg("levels %d and %d are both %s", level - 1, level, options);
        command_ok(d, "generate %s " FEW "--out same.png --quiet", options);
        assert_same_file(d, "out.png", "same.png");
        free(line), free(before);
        before = options;
    }
    free(before);
}

/* Checks that given options override those of the level. */
static void given_options_win(void **state)
{
    const char *d = *state;
    char *line = line_of(d, "", "--fast 2 --num_iter 3"), *options = options_in(line, 2);
    assert_null(strstr(options, "num_iter"));
    assert_has(line, "without --num_iter, which was given");
    assert_has(line, "; not measured like this)");
    free(line), free(options);
    line = line_of(d, "", "--num_sampling_steps 10 --dtype f32 --fast 3");
    options = options_in(line, 3);
    assert_null(strstr(options, "dtype"));
    assert_null(strstr(options, "num_sampling_steps"));
    assert_has(options, "--num_iter ");
    free(line), free(options);
    /* gtr has its own number of steps: with it, num_iter would have no effect. */
    line = line_of(d, "", "--fast 1 --gtr --gtr_generation_steps 2 --num_sampling_steps 4");
    options = options_in(line, 1);
    assert_null(strstr(options, "num_iter"));
    assert_has(line, "without --num_iter, which does not go with what was given");
    free(line), free(options);
}

/* Checks that no level makes more steps than the model's own: 64 for 400 tokens. */
static void levels_keep_large_steps(void **state)
{
    static const char *const steps[] = {"--num_iter 64 ", "--num_iter 32 ", "--num_iter 16 "};
    for (int level = 1; level <= 3; level++) {
        char line[256];
        snprintf(line, sizeof line,
                 "$MAR generate --model demo-harmon --prompt \"a bold seven\" --size 80x80 --num_sampling_steps 2 "
                 "--fast %d --out large%d.png",
                 level, level);
        command_result r = command_run(*state, line);
        assert_int_equal(r.status, 0);
        assert_has(r.err, steps[level - 1]);
        command_result_free(&r);
    }
}

/* Checks that discrete tokens have level 1 only, which is int8. */
static void discrete_tokens(void **state)
{
    char *line = line_of(*state, "", "--fast 1 --model demo-discrete");
    assert_has(line, "mar: fast 1: --dtype int8 (");
    assert_null(strstr(line, "num_iter"));
    free(line);
}

static void refused(void **state)
{
    static const refusal cases[] = {
        {"generate --fast 4", "--fast 4: expected a whole number from 1 to 3"},
        {"generate --fast 0", "--fast 0: expected a whole number from 1 to 3"},
        {"bench --fast best", "--fast best: expected a whole number from 1 to 3"},
        {"generate --fast 2 --model demo-discrete",
         "--fast 2: the model's tokens are discrete, which have level 1 only: expected --fast 1"},
        {"bench --fast 3 --model demo-discrete --draft demo-discrete-draft",
         "--fast 3: the model's tokens are discrete"},
        {"eval --images x --fast 1", "--fast: has no effect with --images, which are made already"},
    };
    command_refuses(*state, cases, LENGTH(cases));
}

/* Checks that the line goes to stderr, and that --quiet suppresses it. Standard output is for the record. */
static void where_it_is_said(void **state)
{
    const char *d = *state;
    command_result r = command_run(d, "$MAR generate --fast 3 " FEW "--json --out out.png");
    assert_int_equal(r.status, 0);
    cJSON *record = cJSON_Parse(r.out);
    assert_non_null(record);
    assert_true(json_number(record, "parameters.num_iter") < 64);
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

/* Checks that the level of a run does not apply to its reference. */
static void fidelity_of_a_level(void **state)
{
    command_result r = command_run(*state, "$MAR fidelity --fast 3 --versus --fast 2 --num_iter 2 --against "
                                           "--num_iter 4 --num_sampling_steps 20 --num 20 --threads 1 --json");
    assert_int_equal(r.status, 0);
    cJSON *record = cJSON_Parse(r.out);
    assert_non_null(record);
    assert_string_equal(json_text(record, "reference.options"), "plain sampling, 4 autoregressive steps of 20");
    assert_null(strstr(json_text(record, "runs.0.options"), "--fast"));
    assert_null(strstr(json_text(record, "runs.1.options"), "--fast"));
    assert_has(json_text(record, "runs.1.options"), "--num_iter 2");
    cJSON_Delete(record);
    assert_has(r.err, "mar: fast 3: ");
    assert_has(r.err, "\nmar: fast 2: ");
    command_result_free(&r);
}

/* Checks that an evaluation takes a level, and that given options override those of the level. */
static void evaluation(void **state)
{
    const char *d = *state;
    command_result r =
        command_run(d, "$MAR eval --fast 3 --num_images 10 --num_iter 2 --num_sampling_steps 4 --threads 1 --out one");
    if (r.status != 0) fail_msg("%s", r.err);
    assert_int_equal(strncmp(r.err, "mar: fast 3: ", 13), 0);
    assert_has(r.err, "without --num_iter, which was given");
    command_result_free(&r);
    char *result = read_whole_file(d, "one/result.json", NULL);
    assert_has(result, "int8");
    free(result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        COMMAND_TEST(levels_are_their_options), COMMAND_TEST(given_options_win), COMMAND_TEST(levels_keep_large_steps),
        COMMAND_TEST(discrete_tokens),          COMMAND_TEST(refused),           COMMAND_TEST(where_it_is_said),
        COMMAND_TEST(fidelity_of_a_level),      COMMAND_TEST(evaluation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
