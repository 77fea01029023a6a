/* Class lists: numbers, ImageNet names, and the errors for anything else. */
#include "tests/support/support.h"

#include "tests/support/command.h"

#include "tools/generate/classes.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(const char *list, int classes, int count, const int *wanted)
{
    char why[1024] = "";
    int *labels, n;
    if (classes_parse(list, classes, &labels, &n, why, sizeof why) != 0) fail_msg("%s: %s", list, why);
    assert_int_equal(n, count);
    assert_memory_equal(labels, wanted, (size_t)count * sizeof *wanted);
    free(labels);
}

/* Checks that the list is refused with both parts in one line. */
static void refuse(const char *list, int classes, const char *part, const char *other_part)
{
    char why[1024] = "";
    int *labels, n;
    if (classes_parse(list, classes, &labels, &n, why, sizeof why) == 0) fail_msg("%s: accepted", list);
    assert_null(labels);
    assert_int_equal(n, 0);
    if (!strstr(why, part)) fail_msg("%s: \"%s\" is not in \"%s\"", list, part, why);
    if (other_part && !strstr(why, other_part)) fail_msg("%s: \"%s\" is not in \"%s\"", list, other_part, why);
    assert_null(strchr(why, '\n'));
}

static void numbers(void **state)
{
    (void)state;
    expect("7", 10, 1, (int[]){7});
    expect("0,9,0", 10, 3, (int[]){0, 9, 0});
    expect(" 3 , 4 ", 10, 2, (int[]){3, 4});
    expect("999", 1000, 1, (int[]){999});
    refuse("10", 10, "class 10: out of range", "0 to 9");
    refuse("-1", 10, "class -1: out of range", "0 to 9");
    refuse("99999999999999999999", 10, "99999999999999999999", "0 to 9");
    refuse("1000", 1000, "class 1000: out of range", "0 to 999");
    refuse("3.5", 10, "\"3.5\"", "a number from 0 to 9");
    refuse("", 10, "empty", NULL);
    refuse("1,,2", 10, "empty", NULL);
    refuse("1,", 10, "empty", NULL);
#define FORTY "abcdefghijklmnopqrstuvwxyzabcdefghijklmn"
    refuse(FORTY, 10, "class \"" FORTY "\": ", NULL);
    refuse(FORTY "o", 10, "class \"" FORTY "...\": ", NULL); /* a cut word ends with dots */
    refuse("x" FORTY "\xc3\xa9", 10, "lm...\": ", NULL);
    refuse("abcdefghijklmnopqrstuvwxyzabcdefghijklm\xc3\xa9", 10, "klm...\": ", NULL); /* no character is cut in half */
}

static void names(void **state)
{
    (void)state;
    expect("golden retriever", 1000, 1, (int[]){207});
    expect("Golden_Retriever,  TENCH,388", 1000, 3, (int[]){207, 0, 388});
    expect("sea slug, ear", 1000, 2, (int[]){115, 998});
    expect("flat coated retriever", 1000, 1, (int[]){205}); /* the table spells it with a dash */
    expect("carassius auratus", 1000, 1, (int[]){1});       /* any synonym */
    expect("crane bird,crane_machine", 1000, 2, (int[]){134, 517});
    expect("toilet tissue", 1000, 1, (int[]){999});
    refuse("golden retriever", 10, "golden retriever", "a number from 0 to 9");
}

static void shared_names(void **state)
{
    (void)state;
    refuse("crane", 1000, "2 classes", "\"crane bird\" (134), \"crane machine\" (517)");
    refuse("cardigan", 1000, "(264)", "(474)");
    refuse("207,maillot", 1000, "(638)", "(639)");
}

static void near_names(void **state)
{
    (void)state;
    refuse("goldn retriever", 1000, "\"goldn retriever\"", "\"golden retriever\" (207)");
    refuse("retriever", 1000, "did you mean", "(207)"); /* matches several names: never guessed */
    refuse("labrador", 1000, "did you mean", "\"Labrador retriever\" (208)");
    refuse("xyzzyplugh", 1000, "a number from 0 to 999", "golden retriever");
    refuse("_", 1000, "\"_\"", NULL);
    refuse("%s%n", 1000, "%s%n", NULL);

    char *endless = malloc(100001);
    memset(endless, 'a', 100000);
    endless[100000] = '\0';
    refuse(endless, 1000, "too long", NULL);
    memset(endless, '1', 100000);
    refuse(endless, 1000, "out of range", NULL);
    free(endless);
}

static void ranges(void **state)
{
    (void)state;
    int all[1000];
    for (int i = 0; i < 1000; i++) all[i] = i;
    expect("0-3", 10, 4, all);
    expect("7,2-4,3", 10, 5, (int[]){7, 2, 3, 4, 3});
    expect(" 2 - 3 ,5-5", 10, 3, (int[]){2, 3, 5});
    expect("all", 10, 10, all);
    expect("all", 1000, 1000, all);
    expect(" ALL ,1", 3, 4, (int[]){0, 1, 2, 1});
    expect("205-207,sea-slug, flat-coated_retriever", 1000, 5, (int[]){205, 206, 207, 115, 205}); /* dashes in names */
    refuse("5-2", 10, "class 5-2: goes downwards", "expected 2-5");
    refuse("5-10", 10, "class 5-10: out of range", "expected 0 to 9");
    refuse("0-99999999999999999999", 10, "out of range", "expected 0 to 9");
    refuse("990-1000", 1000, "class 990-1000: out of range", "expected 0 to 999");
    refuse("3-", 10, "class \"3-\"", "a number from 0 to 9 or a range");
    refuse("3-", 1000, "class \"3-\"", "a range such as 0-9");
    refuse("-3-5", 10, "class \"-3-5\"", "a number from 0 to 9");
    refuse("1-2-3", 10, "class \"1-2-3\"", "a number from 0 to 9");
    refuse("1--3", 10, "class \"1--3\"", "a number from 0 to 9");
    refuse("allall", 10, "class \"allall\"", "a number from 0 to 9");
    refuse("@list", 1000, "class \"@list\"", "not a file"); /* only classes_choose opens files */

    /* The message stays bounded for a list of any length. */
    char *list = calloc(1, 4 * 1001 + 1);
    for (int i = 0; i < 1000; i++) strcat(list, i ? ",all" : "all");
    char why[1024];
    int *labels, n;
    assert_int_equal(classes_parse(list, 1000, &labels, &n, why, sizeof why), 0);
    assert_int_equal(n, CLASSES_LIST_MAX);
    free(labels);
    strcat(list, ",7");
    refuse(list, 1000, "more than 1000000 classes", NULL);
    free(list);
}

/* Does what expect and refuse do, for the text of a file. */
static void texts(void **state)
{
    (void)state;
    char why[1024];
    int *labels, n;
    static const char good[] = "# birds\r\n\r\n  0-2, 7,\n\nsea slug # not a bird\n#\n207";
    assert_int_equal(classes_parse_text(good, 1000, &labels, &n, why, sizeof why), 0);
    assert_int_equal(n, 6);
    assert_memory_equal(labels, ((int[]){0, 1, 2, 7, 115, 207}), 6 * sizeof *labels);
    free(labels);
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"", "no class in it, expected numbers or names, one a line or separated by commas"},
        {"# 7\n,,\n", "no class in it"},
        {"1\n# x\n2, 3,1000\n", "line 3: class 1000: out of range"},
        {"1\n\ngoldn retriever", "line 3: class \"goldn retriever\": not an ImageNet class, did you mean"},
        {"7\n@other", "line 2: class \"@other\": expected a class, not a file"},
    };
    for (size_t i = 0; i < LENGTH(bad); i++) {
        assert_int_equal(classes_parse_text(bad[i].text, 1000, &labels, &n, why, sizeof why), 1);
        assert_true(labels == NULL && n == 0 && !strchr(why, '\n'));
        if (!strstr(why, bad[i].part)) fail_msg("\"%s\", expected \"%s\"", why, bad[i].part);
    }
}

/* Tests --class @FILE in the command. */
static void files(void **state)
{
    const char *d = *state;
    char *large = malloc(70000000);
    write_whole_file(d, "list",
                     "\xef\xbb\xbf"
                     "0-1 # two\r\n,9\n",
                     17);
    write_whole_file(d, "empty", "", 0);
    write_whole_file(d, "bad", "1\n2\n3,x\n", 8);
    write_whole_file(d, "junk", "1\n2\0\n", 5);
    memset(large, '\n', 70000000);
    write_whole_file(d, "large", large, 70000000);
    sh_ok(d, "mkfifo pipe");
    free(large);
    static const struct {
        const char *line;
        int status;
        const char *said;
    } cases[] = {
        {"--class @list", 0, ": 3 images"},
        {"--class 5,@list,7,@list", 0, ": 8 images"},
        {"--class 5,@- <list", 0, ": 4 images"},
        {"--class @absent", 1, "mar: --class: absent: No such file or directory\n"},
        {"--class 1,@absent --model absent.pth --vae demo", 1, "absent: No such file"}, /* before loading */
        {"--class @", 1, "mar: --class: @: expected a file's name"},
        {"--class @.", 1, "mar: --class: .: is not a regular file, expected a list of classes"},
        {"--class @pipe --model absent.pth --vae demo", 1,
         "mar: --class: pipe: is not a regular file, expected a list"},
        {"--class @empty", 1, "mar: --class: empty: no class in it"},
        {"--class @- </dev/null", 1, "mar: --class: standard input: no class in it"},
        {"--class @bad", 1, "mar: --class: bad: line 3: class \"x\": expected a number from 0 to 9"},
        {"--class @- <bad", 1, "mar: --class: standard input: line 3: class \"x\""},
        {"--class @junk", 1, "mar: --class: junk: line 2: the byte 0x00, expected text\n"},
        {"--class @/dev/zero", 1, "mar: --class: /dev/zero: is not a regular file"},
        {"--class @large", 1, "mar: --class: large: more than 64 MB"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char line[256];
        snprintf(line, sizeof line,
                 "timeout 60 $MAR generate --num 1 --num_iter 1 --num_sampling_steps 2 --out x.png %s", cases[i].line);
        command_result r = command_run(d, line);
        if (r.status != cases[i].status || !strstr(cases[i].status ? r.err : r.out, cases[i].said))
            fail_msg("%s: %d, %s%s", cases[i].line, r.status, r.out, r.err);
        command_result_free(&r);
    }
}

/* Tests the output of mar classes, and its message if no class matches. */
static void searches(void **state)
{
    static const struct {
        const char *line;
        int status;
        const char *out, *err;
    } cases[] = {
        {"classes golden retriever", 0, "207  golden retriever\n", ""},
        {"classes RETRIEVER gold", 0, "207  golden retriever\n", ""},
        {"classes sea-slug", 0, "115  sea slug, nudibranch\n", ""},
        {"classes 0", 0, "  0  tench, Tinca tinca\n", ""},
        {"classes nudibranch slug", 0, "115  sea slug, nudibranch\n", ""}, /* from different names */
        {"classes retreiver", 1, "", "mar: \"retreiver\": is in no class's name, did you mean retriever?\n"},
        {"classes xyzzyplugh", 1, "", "mar: \"xyzzyplugh\": is in no class's name, expected words such as retriever\n"},
        {"classes retriever zebra", 1, "", "mar: \"retriever zebra\": no class has all these words in its names\n"},
        {"classes 'goldn retriever'", 1, "",
         "mar: class \"goldn retriever\": not an ImageNet class, did you mean \"golden retriever\" (207)?\n"},
        {"classes retreiver --json", 1, "", "mar: \"retreiver\": is in no class's name, did you mean retriever?\n"},
        {"classes -- --xyzzyplugh", 1, "", "mar: \"--xyzzyplugh\": "},
        {"classes ''", 1, "", "mar: \"\": is empty, expected part of a class's name or a number\n"},
        {"classes zebra ' _'", 1, "", "mar: \" _\": is empty, expected part of a class's name or a number\n"},
        {"classes | head -1", 0, "  0  tench, Tinca tinca\n", ""},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        command_result r = command_mar(*state, "%s", cases[i].line);
        if (r.status != cases[i].status || strcmp(r.out, cases[i].out) != 0 ||
            strncmp(r.err, cases[i].err, strlen(cases[i].err)) != 0 || (!*cases[i].err && *r.err))
            fail_msg("%s: %d, \"%s\", \"%s\"", cases[i].line, r.status, r.out, r.err);
        command_result_free(&r);
    }
    sh_ok(*state, "test $($MAR classes | wc -l) = 1000");
    cJSON *record = command_json(*state, "classes crane --json");
    assert_int_equal(json_count(record, "classes"), 2);
    assert_true(json_number(record, "classes.1.class") == 517);
    assert_string_equal(json_text(record, "classes.0.names.1"), "crane bird");
    cJSON_Delete(record);
}

static void table(void **state)
{
    (void)state;
    char name[128];
    for (int i = 0; i < IMAGENET_CLASSES; i++) {
        assert_non_null(class_names(i));
        assert_string_not_equal(class_name(i, 1000, name, sizeof name), "");
        assert_true(strlen(class_names(i)) < 128);
    }
    /* Landmarks of the order. A shift in any block of the table would show. */
    static const struct {
        int label;
        const char *name;
    } marks[] = {
        {0, "tench"},          {22, "bald eagle"},   {100, "black swan"},   {207, "golden retriever"},  {281, "tabby"},
        {340, "zebra"},        {388, "giant panda"}, {417, "balloon"},      {508, "computer keyboard"}, {620, "laptop"},
        {737, "pop bottle"},   {817, "sports car"},  {933, "cheeseburger"}, {980, "volcano"},           {985, "daisy"},
        {999, "toilet tissue"}};
    for (size_t i = 0; i < LENGTH(marks); i++)
        assert_string_equal(class_name(marks[i].label, 1000, name, sizeof name), marks[i].name);
    assert_string_equal(class_name(3, 10, name, sizeof name), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers),    cmocka_unit_test(names),  cmocka_unit_test(shared_names),
        cmocka_unit_test(near_names), cmocka_unit_test(ranges), cmocka_unit_test(texts),
        COMMAND_TEST(files),          COMMAND_TEST(searches),   cmocka_unit_test(table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
