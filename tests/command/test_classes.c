/* Class lists: numbers, ImageNet names, and what is said of those that are neither. */
#include "tests/support/support.h"

#include "tools/classes.h"

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

/* Refused, with each of the parts in the one line that says why. */
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
}

static void names(void **state)
{
    (void)state;
    expect("golden retriever", 1000, 1, (int[]){207});
    expect("Golden_Retriever,  TENCH,388", 1000, 3, (int[]){207, 0, 388});
    expect("sea slug, ear", 1000, 2, (int[]){115, 998});
    expect("flat coated retriever", 1000, 1, (int[]){205}); /* spelled with a dash in the table */
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
    refuse("retriever", 1000, "did you mean", "(207)"); /* part of several: never guessed */
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

static void table(void **state)
{
    (void)state;
    char name[128];
    for (int i = 0; i < IMAGENET_CLASSES; i++) {
        assert_non_null(imagenet_classes[i]);
        assert_string_not_equal(class_name(i, 1000, name, sizeof name), "");
        assert_true(strlen(imagenet_classes[i]) < 128);
    }
    /* Landmarks of the order: every block of the table would show a slip. */
    static const struct {
        int label;
        const char *name;
    } marks[] = {
        {0, "tench"},          {22, "bald eagle"},   {100, "black swan"},   {207, "golden retriever"},  {281, "tabby"},
        {340, "zebra"},        {388, "giant panda"}, {417, "balloon"},      {508, "computer keyboard"}, {620, "laptop"},
        {737, "pop bottle"},   {817, "sports car"},  {933, "cheeseburger"}, {980, "volcano"},           {985, "daisy"},
        {999, "toilet tissue"}};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        assert_string_equal(class_name(marks[i].label, 1000, name, sizeof name), marks[i].name);
    assert_string_equal(class_name(3, 10, name, sizeof name), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers),    cmocka_unit_test(names), cmocka_unit_test(shared_names),
        cmocka_unit_test(near_names), cmocka_unit_test(table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
