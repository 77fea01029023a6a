/* The option parser: what is stored, and the one line for everything else. */
#include "tests/support/support.h"

#include "tools/options.h"
#include "tools/suggest.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int flag, number, choice;
static uint64_t seed;
static float scale;
static const char *text, *in, *out;

static const char *const choices[] = {"linear", "constant", NULL};
static const option options[] = {
    {.name = "flag", .kind = OPTION_FLAG, .value = &flag},
    {.name = "num_iter", .kind = OPTION_INT, .value = &number, .min = 1, .max = 64},
    {.name = "choice", .kind = OPTION_CHOICE, .value = &choice, .choices = choices},
    {.name = "seed", .kind = OPTION_UINT64, .value = &seed},
    {.name = "cfg", .kind = OPTION_FLOAT, .value = &scale, .min = 0, .max = 100},
    {.name = "text", .kind = OPTION_TEXT, .value = &text, .expects = "a file"},
    {0},
};
static const operand operands[] = {{"IN", &in}, {"OUT", &out}, {0}};
static uint64_t given;
static const option shared[] = {
    {.name = "first", .kind = OPTION_INT, .value = &number, .min = 1, .max = 64},
    {.name = "second", .kind = OPTION_FLAG, .value = &flag},
    {0},
};
static const option_set set = {"test", "the help\n", options, operands, shared, &given};

enum { ARGUMENTS = 16 };

/* Parses "test IN OUT" and then the words of `line`, separated by single spaces ("''" is empty). What goes to
 * stderr is stored in message. */
static int parse(const char *line, char *message, size_t size)
{
    static char copy[256]; /* what `text` points into afterwards */
    char *argv[ARGUMENTS] = {"test", "a", "b"};
    int argc = 3;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = strcmp(word, "''") == 0 ? "" : word;
    flag = number = choice = 0;
    seed = given = 0;
    scale = 0;
    text = in = out = NULL;

    FILE *capture = tmpfile();
    int saved = dup(STDERR_FILENO);
    assert_non_null(capture);
    dup2(fileno(capture), STDERR_FILENO);
    int status = options_parse(&set, argc, argv);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(capture);
    message[fread(message, 1, size - 1, capture)] = '\0';
    fclose(capture);
    return status;
}

static void values(void **state)
{
    (void)state;
    char message[512];
    assert_int_equal(parse("--flag --num_iter 64 --choice constant --seed 18446744073709551615 --cfg 2.9 --text x y",
                           message, sizeof message),
                     1); /* y is one operand too many */
    assert_int_equal(parse("--flag --num_iter 64 --choice constant --seed 18446744073709551615 --cfg 2.9 --text x",
                           message, sizeof message),
                     OPTIONS_RUN);
    assert_string_equal(message, "");
    assert_int_equal(flag, 1);
    assert_int_equal(number, 64);
    assert_int_equal(choice, 1);
    assert_true(seed == UINT64_MAX);
    assert_true(scale == 2.9f);
    assert_string_equal(text, "x");
    assert_string_equal(in, "a");
    assert_string_equal(out, "b");

    assert_int_equal(parse("--num-iter=3 --text=--flag --text -5", message, sizeof message), OPTIONS_RUN);
    assert_int_equal(number, 3);
    assert_int_equal(flag, 0);
    assert_string_equal(text, "-5"); /* the last one counts */
    assert_true(given == 0);

    assert_int_equal(parse("--second --flag", message, sizeof message), OPTIONS_RUN);
    assert_true(given == 2);
    assert_int_equal(parse("--first 3 --second", message, sizeof message), OPTIONS_RUN);
    assert_true(given == 3);
}

static void errors(void **state)
{
    (void)state;
    static const struct {
        const char *line, *found, *expected;
    } cases[] = {
        {"--num_iter 0", "--num_iter 0:", "from 1 to 64"},
        {"--num_iter 65", "--num_iter 65:", "from 1 to 64"},
        {"--num_iter 3x", "--num_iter 3x:", "whole number"},
        {"--num_iter 1e1", "--num_iter 1e1:", "whole number"},
        {"--num_iter 99999999999999999999", "99999999999999999999", "from 1 to 64"},
        {"--num_iter 4294967297", "4294967297", "from 1 to 64"}, /* 1 in 32 bits */
        {"--num_iter ''", "(empty)", "from 1 to 64"},
        {"--num_iter=", "(empty)", "from 1 to 64"},
        {"--num_iter", "found nothing", "from 1 to 64"},
        {"--num_iter --flag", "found --flag", "from 1 to 64"},
        {"--cfg nan", "--cfg nan:", "a number from 0 to 100"},
        {"--cfg inf", "--cfg inf:", "a number from 0 to 100"},
        {"--cfg -0.5", "--cfg -0.5:", "a number from 0 to 100"},
        {"--cfg 1,5", "--cfg 1,5:", "a number from 0 to 100"},
        {"--choice cosine", "--choice cosine:", "linear or constant"},
        {"--seed -1", "--seed -1:", "from 0 to 18446744073709551615"},
        {"--seed 18446744073709551616", "18446744073709551616", "from 0"},
        {"--text ''", "--text (empty)", "a file"},
        {"--flag=1", "--flag", "no value"},
        {"--num_itre 3", "--num_itre", "did you mean --num_iter?"},
        {"--wobble", "--wobble", "unknown option"},
        {"-n 3", "-n", "unknown option"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char message[512];
        assert_int_equal(parse(cases[i].line, message, sizeof message), 1);
        const char *newline = strchr(message, '\n');
        if (!newline || newline[1]) fail_msg("%s: not one line: \"%s\"", cases[i].line, message);
        if (strncmp(message, "mar: ", 5) != 0 || !strstr(message, cases[i].found) ||
            !strstr(message, cases[i].expected))
            fail_msg("%s: \"%s\", expected \"%s\" and \"%s\" in it", cases[i].line, message, cases[i].found,
                     cases[i].expected);
    }
}

static void distances(void **state)
{
    (void)state;
    assert_int_equal(suggest_distance("", ""), 0);
    assert_int_equal(suggest_distance("kitten", "sitting"), 3);
    assert_int_equal(suggest_distance("abc", ""), 3);
    assert_int_equal(suggest_distance("0123456789012345678901234567890123456789012345678901234567890123456789", "0"),
                     INT_MAX);
    static const char *const names[] = {"generate", "inspect", "convert", "bench", NULL};
    assert_string_equal(suggest_nearest("genrate", names), "generate");
    assert_string_equal(suggest_nearest("inspct", names), "inspect");
    assert_null(suggest_nearest("zzzzzzzz", names));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(errors),
        cmocka_unit_test(distances),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
