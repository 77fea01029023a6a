/* The option parser: stored values, and the one line of every error. */
#include "tests/support/command.h"

#include "mar_methods.h"

#include "tools/cli/options.h"
#include "tools/cli/run_options.h"
#include "tools/cli/suggest.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int flag, number, choice, align;
    uint64_t seed;
    float scale;
    const char *text, *method, *out;
    int quiet;
} values_of;
static values_of got, shared;                   /* two structs, both with options of a set */
static const char *in, *out, *draft, *rest[16]; /* one for each argument */
static int rest_count;
static option_set set;

static const char *const choices[] = {"linear", "constant", NULL}, *const switches[] = {"off", "on", NULL};
static const mar_param own_rows[] = {
    {.name = OPTION("flag"), .type = MAR_TYPE_FLAG, .offset = offsetof(values_of, flag)},
    {.name = OPTION("num_iter"), .type = MAR_TYPE_INT, .offset = offsetof(values_of, number), .min = 1, .max = 64},
    {.name = OPTION("choice"), .type = MAR_TYPE_CHOICE, .offset = offsetof(values_of, choice), .choices = choices},
    {.name = OPTION("align"), .type = MAR_TYPE_CHOICE, .offset = offsetof(values_of, align), .choices = switches},
    {.name = OPTION("seed"), .type = MAR_TYPE_UINT64, .offset = offsetof(values_of, seed)},
    {.name = OPTION("cfg"), .type = MAR_TYPE_FLOAT, .offset = offsetof(values_of, scale), .max = 100},
    {.name = OPTION("text"),
     .type = MAR_TYPE_TEXT,
     .offset = offsetof(values_of, text),
     .argument = "FILE",
     .help = "a file"},
    {.name = OPTION("out"),
     .type = MAR_TYPE_TEXT,
     .offset = offsetof(values_of, out),
     .argument = "WHERE",
     .help = "where"},
    {.name = OPTION("quiet"), .type = MAR_TYPE_FLAG, .offset = offsetof(values_of, quiet)},
    {.name = OPTION("method"), .type = MAR_TYPE_NAME, .offset = offsetof(values_of, method), .choices = choices},
    {0},
};
static const mar_param shared_rows[] = {
    {.name = OPTION("first"), .type = MAR_TYPE_INT, .offset = offsetof(values_of, number), .min = 1, .max = 64},
    {.name = OPTION("second"), .type = MAR_TYPE_FLAG, .offset = offsetof(values_of, flag)},
    {.name = OPTION("seed"), .type = MAR_TYPE_UINT64, .offset = offsetof(values_of, seed)}, /* after the other seed */
    {0},
};
static const mar_param model = {
    .name = OPTION("draft"), .type = MAR_TYPE_MODEL, .argument = "FILE", .help = "a model\nmore"};
static const operand operands[] = {{"IN", &in, "read", NULL}, {"OUT", &out, "written", NULL}, {0}};
static const operand any_number[] = {{"IN", &in, "read", NULL}, {"MORE", rest, "read, too", &rest_count}, {0}};
static const operand *taken = operands;

enum { ARGUMENTS = 16 };

/* Parses "test IN OUT" and then the words of `line`, separated by single spaces ("''" is empty). Stores stderr in
 * message. */
static int parse(const char *line, char *message, size_t size)
{
    static char copy[256]; /* got.text points into it afterwards */
    char *argv[ARGUMENTS] = {"test", "a", "b"};
    int argc = 3;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = strcmp(word, "''") == 0 ? "" : word;
    got = shared = (values_of){0};
    in = out = draft = NULL;
    rest_count = 0;
    set = (option_set){.command = "test", .operands = taken, .word = "text"};
    options_add_table(&set, own_rows, &got, 0);
    options_add_table(&set, shared_rows, &shared, 1);
    options_add(&set, &model, &draft, 1);

    capture_begin();
    command_result r = capture_end(options_parse(&set, argc, argv));
    snprintf(message, size, "%s", r.err);
    command_result_free(&r);
    return r.status;
}

static int is_given(const char *name)
{
    return options_find(&set, name)->given;
}

TEST_CASE(values)
{
    char message[512];
    assert_int_equal(parse("--flag --num_iter 64 --choice constant --seed 18446744073709551615 --cfg 2.9 --text x y",
                           message, sizeof message),
                     1); /* y is one operand too many */
    assert_int_equal(parse("--flag --num_iter 64 --choice constant --seed 18446744073709551615 --cfg 2.9 --text x",
                           message, sizeof message),
                     OPTIONS_RUN);
    assert_string_equal(message, "");
    assert_int_equal(got.flag, 1);
    assert_int_equal(got.number, 64);
    assert_int_equal(got.choice, 1);
    assert_true(got.seed == UINT64_MAX && shared.seed == 0); /* the first of two with this name */
    assert_true(got.scale == 2.9f);
    assert_string_equal(got.text, "x");
    assert_string_equal(in, "a");
    assert_string_equal(out, "b");
    assert_true(is_given("flag") && is_given("seed") && !is_given("first") && !is_given("draft"));

    assert_int_equal(parse("--num-iter=3 --text=--flag --text -5", message, sizeof message), OPTIONS_RUN);
    assert_int_equal(got.number, 3);
    assert_int_equal(got.flag, 0);
    assert_string_equal(got.text, "-5"); /* the last one counts */

    assert_int_equal(parse("--first 3 --second --flag --align on", message, sizeof message), OPTIONS_RUN);
    assert_true(shared.number == 3 && shared.flag == 1 && got.number == 0 && got.align == 1);
    assert_true(is_given("first") && is_given("second") && !is_given("num_iter"));
    assert_int_equal(parse("--draft x --method constant --draft=y", message, sizeof message), OPTIONS_RUN);
    assert_string_equal(draft, "y"); /* for a model, the file is kept */
    assert_string_equal(got.method, "constant");
}

/* Tests letters for names: the value follows or is joined, and flags may stand before. */
TEST_CASE(letters)
{
    char message[512];
    static const char *const lines[] = {"-q -s 7 -o x.png", "-qs7 -ox.png", "-s7 -qo x.png", "-o x.png -q -s 07",
                                        "--quiet --out=x.png -s7"};
    for (size_t i = 0; i < LENGTH(lines); i++) {
        if (parse(lines[i], message, sizeof message) != OPTIONS_RUN) fail_msg("%s: %s", lines[i], message);
        assert_int_equal(got.quiet, 1);
        assert_true(got.seed == 7);
        assert_string_equal(got.out, "x.png");
        assert_true(is_given("seed") && is_given("out") && is_given("quiet") && !is_given("flag"));
    }
    assert_int_equal(parse("-o -", message, sizeof message), OPTIONS_RUN); /* standard output, where supported */
    assert_string_equal(got.out, "-");
    assert_int_equal(parse("-o-5", message, sizeof message), OPTIONS_RUN);
    assert_string_equal(got.out, "-5");
    assert_int_equal(parse("-oh", message, sizeof message), OPTIONS_RUN); /* the h is the value */
    assert_string_equal(got.out, "h");
    assert_int_equal(parse("-qh", message, sizeof message), OPTIONS_HELP);
    assert_int_equal(got.quiet, 0);
    assert_int_equal(options_letter("seed"), 's');
    assert_int_equal(options_letter("num_iter"), 0);
}

/* Checks that "--" is followed by operands only, and that the last operand may take any number of words. */
TEST_CASE(operands_of_any_number)
{
    char message[512];
    assert_int_equal(parse("-- -q", message, sizeof message), 1);
    assert_non_null(strstr(message, "mar: -q: unexpected argument, did you mean --text -q?"));
    taken = any_number;
    assert_int_equal(parse("", message, sizeof message), OPTIONS_RUN);
    assert_true(rest_count == 1 && strcmp(rest[0], "b") == 0);
    assert_int_equal(parse("c -q d -- -s --flag --", message, sizeof message), OPTIONS_RUN);
    static const char *const words[] = {"b", "c", "d", "-s", "--flag", "--"};
    assert_int_equal(rest_count, 6);
    for (int i = 0; i < 6; i++) assert_string_equal(rest[i], words[i]);
    assert_true(got.quiet == 1 && got.flag == 0);
    taken = operands;
}

TEST_CASE(errors)
{
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
        {"--draft ''", "--draft (empty)", "FILE, a model"},
        {"--draft", "found nothing", "FILE, a model"},
        {"--method cosine", "--method cosine:", "linear or constant"},
        {"--align 1", "--align 1:", "off or on"},
        {"--num_iter 3 --num_iter 0", "--num_iter 0:", "from 1 to 64"},
        {"--flag=1", "--flag", "no value"},
        {"--flag on", "mar: on: ", "unexpected argument"},
        {"--num_itre 3", "--num_itre", "did you mean --num_iter?"},
        {"--wobble", "--wobble", "unknown option"},
        {"-n 3", "mar: -n: ", "unknown option of mar test, did you mean --num_iter?"},
        {"-d 3", "mar: -d: ", "did you mean --draft?"},
        {"-z 3", "mar: -z: ", "unknown option, see mar test --help"},
        {"--prompt x", "mar: --prompt: unknown option, ", "see mar test --help\n"}, /* mar test has no --class */
        {"--width 512", "mar: --width: unknown option", "see mar test --help\n"},
        {"--guidance_scale 3", "mar: --guidance_scale: ", "did you mean --cfg?"},
        {"--cfg_scale=3", "mar: --cfg_scale: ", "did you mean --cfg?"},
        {"--CFG 3", "mar: --CFG: ", "did you mean --cfg?"},
        {"--checkpoint x", "mar: --checkpoint: unknown option, see mar test --help", "\n"}, /* there is no --model */
        {"c", "mar: c: unexpected argument", ", did you mean --text c?"},
        {"c.png", "mar: c.png: unexpected argument", ", did you mean --out c.png?"},
        {"c.pth", "mar: c.pth: unexpected argument", ", did you mean --text c.pth?"}, /* there is no --model */
        {"-qx", "mar: -qx: ", "unknown option -x, see mar test --help"},
        {"-q\xc3\xa9", "-q\xc3\xa9: ", "unknown option -\xc3\xa9, see"},
        {"-s", "--seed: expected", "found nothing"},
        {"-s --flag", "--seed: expected", "found --flag"},
        {"-o -q", "--out: expected", "found -q"}, /* not a directory of that name */
        {"--out -q", "--out: expected", "found -q"},
        {"-s7x", "--seed 7x:", "from 0 to"},
        {"-s=7", "-s=7: ", "expected --seed=7"},
        {"-o=x.png", "-o=x.png: ", "expected --out=x.png"}, /* not a file of the name =x.png */
        {"-q=on", "-q=on: ", "expected --quiet\n"},
        {"-out x.png", "-out: ", "did you mean --out?"}, /* not -o with ut */
        {"-out=x.png", "-out=x.png: ", "did you mean --out?"},
        {"-num-iter=3", "-num-iter=3: ", "did you mean --num_iter?"},
        {"-1", "mar: -1: ", "unknown option"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
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

TEST_CASE(distances)
{
    assert_int_equal(suggest_distance("", ""), 0);
    assert_int_equal(suggest_distance("kitten", "sitting"), 3);
    assert_int_equal(suggest_distance("abc", ""), 3);
    assert_int_equal(suggest_distance("cgf", "cfg"), 1);
    assert_int_equal(suggest_distance("acb", "Cab"), 1);
    assert_int_equal(suggest_distance("0123456789012345678901234567890123456789012345678901234567890123456789", "0"),
                     INT_MAX);
    static const char *const names[] = {"generate", "inspect", "convert", "bench", NULL};
    assert_string_equal(suggest_nearest("genrate", names), "generate");
    assert_string_equal(suggest_nearest("inspct", names), "inspect");
    assert_string_equal(suggest_nearest("BENCH", names), "bench"); /* in upper or lower case */
    assert_null(suggest_nearest("zzzzzzzz", names));
}
