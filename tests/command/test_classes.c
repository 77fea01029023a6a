/* Class lists: numbers, ImageNet names, and the errors for anything else. */
#include "tests/support/support.h"

#include "tests/support/command.h"

#include "tools/generate/classes.h"
#include "tools/images/image.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Choices of a model of ImageNet's or of other classes. */
static class_choices of(int classes)
{
    return (class_choices){.count = classes, .names = class_table_of(classes)};
}

static const class_choices ten = {.count = 10, .no_none = "why"};

static void expect_of(const char *list, const class_choices *choices, int count, const int *wanted)
{
    char why[1024] = "";
    int *labels, n;
    if (classes_parse(list, choices, &labels, &n, why, sizeof why) != 0) fail_msg("%s: %s", list, why);
    assert_int_equal(n, count);
    assert_memory_equal(labels, wanted, (size_t)count * sizeof *wanted);
    free(labels);
}

static void expect(const char *list, int classes, int count, const int *wanted)
{
    const class_choices choices = of(classes);
    expect_of(list, &choices, count, wanted);
}

/* Checks that the list is refused with both parts in one line. */
static void refuse_of(const char *list, const class_choices *choices, const char *part, const char *other_part)
{
    char why[1024] = "";
    int *labels, n;
    if (classes_parse(list, choices, &labels, &n, why, sizeof why) == 0) fail_msg("%s: accepted", list);
    assert_null(labels);
    assert_int_equal(n, 0);
    if (!strstr(why, part)) fail_msg("%s: \"%s\" is not in \"%s\"", list, part, why);
    if (other_part && !strstr(why, other_part)) fail_msg("%s: \"%s\" is not in \"%s\"", list, other_part, why);
    assert_null(strchr(why, '\n'));
}

static void refuse(const char *list, int classes, const char *part, const char *other_part)
{
    const class_choices choices = of(classes);
    refuse_of(list, &choices, part, other_part);
}

TEST_CASE(numbers)
{
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

TEST_CASE(unconditional)
{
    expect("none", 10, 1, (int[]){-1});
    expect("3,None,0-1", 10, 4, (int[]){3, -1, 0, 1});
    expect("tench,none", 1000, 2, (int[]){0, -1});
    refuse_of("3,none", &ten, "class none: why", NULL);
}

/* Parses the text of a file of names. Returns class_table_parse's status. */
static int parse_names(const char *text, size_t size, class_table *t, char why[256])
{
    char *copy = malloc(size + 1);
    memcpy(copy, text, size);
    copy[size] = '\0';
    return class_table_parse(copy, size, "d/my.txt", t, why, 256);
}

TEST_CASE(tables_of_files)
{
    static const char good[] = "\xef\xbb\xbf cat\t\r\nC# , my dog,Hund\n# 3\nall\n\n \r\n";
    char why[256], name[128];
    class_table t;
    assert_int_equal(parse_names(good, sizeof good - 1, &t, why), 0);
    assert_int_equal(t.count, 4);
    static const char *const first[] = {"cat", "C#", "# 3", "all"};
    for (int i = 0; i < 4; i++) assert_string_equal(class_name(&t, i, name, sizeof name), first[i]);
    assert_string_equal(class_name(&t, 4, name, sizeof name), "");
    const class_choices mine = {.count = 4, .names = &t};
    expect_of("my_dog,CAT,hund,c#,# 3,3,0-1", &mine, 8, (int[]){1, 0, 1, 1, 2, 3, 0, 1});
    expect_of("all", &mine, 4, (int[]){0, 1, 2, 3}); /* a word of the list, not a name */
    expect_of("dog", &mine, 1, (int[]){1});          /* a word of one name */
    refuse_of("my dgo", &mine, "class \"my dgo\": not a class of my.txt, expected a number from 0 to 3,",
              "a name such as \"cat\"");
    class_table_free(&t);

    char long_name[CLASS_NAME_MAX + 4];
    memset(long_name, 'x', sizeof long_name);
    assert_int_equal(parse_names(long_name, CLASS_NAME_MAX, &t, why), 0);
    class_table_free(&t);
    static const struct {
        const char *text;
        size_t size;
        const char *why;
    } bad[] = {
        {"", 0, "no name in it, expected the names of a class on each line"},
        {" \n\r\n", 4, "no name in it, expected the names of a class on each line"},
        {"a\n\nb", 4, "line 2: is empty, expected the name of class 1"},
        {"a\nb,\n", 5, "line 2: an empty name, expected names of class 1 separated by commas"},
        {"a\nb, ,c", 7, "line 2: an empty name, expected names of class 1 separated by commas"},
        {"a\nb\0c", 5, "line 2: the byte 0x00, expected text"},
        {"a\rb", 3, "line 1: the byte 0x0d, expected text"},
    };
    for (size_t i = 0; i < LENGTH(bad); i++) {
        assert_int_equal(parse_names(bad[i].text, bad[i].size, &t, why), 1);
        assert_true(!t.lines && !t.text && t.count == 0);
        assert_string_equal(why, bad[i].why);
    }
    assert_int_equal(parse_names(long_name, CLASS_NAME_MAX + 1, &t, why), 1);
    assert_string_equal(why, "line 1: a name of 127 bytes, expected 126 at most");
}

TEST_CASE(names)
{
    expect("golden retriever", 1000, 1, (int[]){207});
    expect("Golden_Retriever,  TENCH,388", 1000, 3, (int[]){207, 0, 388});
    expect("sea slug, ear", 1000, 2, (int[]){115, 998});
    expect("flat coated retriever", 1000, 1, (int[]){205}); /* the table spells it with a dash */
    expect("carassius auratus", 1000, 1, (int[]){1});       /* any synonym */
    expect("crane bird,crane_machine", 1000, 2, (int[]){134, 517});
    expect("toilet tissue", 1000, 1, (int[]){999});
    refuse("golden retriever", 10, "golden retriever", "a number from 0 to 9");
}

TEST_CASE(shared_names)
{
    refuse("crane", 1000, "2 classes", "\"crane bird\" (134), \"crane machine\" (517)");
    refuse("cardigan", 1000, "(264)", "(474)");
    refuse("207,maillot", 1000, "(638)", "(639)");
}

/* Words of a name find the only class that has them. They are not guessed, and a whole name goes before them. */
TEST_CASE(parts_of_names)
{
    expect("labrador", 1000, 1, (int[]){208});
    expect("chesapeake bay,flat-coated", 1000, 2, (int[]){209, 205});
    expect("ear", 1000, 1, (int[]){998}); /* also a part of other names */
    refuse("retriever", 1000, "5 classes have it in a name, expected one of \"flat-coated retriever\" (205), ",
           "(207), ...");
    refuse("labrado", 1000, "\"labrado\": not an ImageNet class", NULL); /* part of a word */
    refuse("goldn retriever", 1000, "not an ImageNet class, expected a number", "mar classes");
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

TEST_CASE(ranges)
{
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
    const class_choices imagenet = of(1000);
    assert_int_equal(classes_parse(list, &imagenet, &labels, &n, why, sizeof why), 0);
    assert_int_equal(n, CLASSES_LIST_MAX);
    free(labels);
    strcat(list, ",7");
    refuse(list, 1000, "more than 1000000 classes", NULL);
    free(list);
}

/* Does what expect and refuse do, for the text of a file. */
TEST_CASE(texts)
{
    char why[1024];
    int *labels, n;
    static const char good[] = "# birds\r\n\r\n  0-2, 7,\n\nsea slug # not a bird\n#\n207";
    const class_choices imagenet = of(1000);
    assert_int_equal(classes_parse_text(good, &imagenet, &labels, &n, why, sizeof why), 0);
    assert_int_equal(n, 6);
    assert_memory_equal(labels, ((int[]){0, 1, 2, 7, 115, 207}), 6 * sizeof *labels);
    free(labels);
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"", "no class in it, expected numbers or names, one a line or separated by commas"},
        {"# 7\n,,\n", "no class in it"},
        {"1\n# x\n2, 3,1000\n", "line 3: class 1000: out of range"},
        {"1\n\ngoldn retriever", "line 3: class \"goldn retriever\": not an ImageNet class"},
        {"7\n@other", "line 2: class \"@other\": expected a class, not a file"},
    };
    for (size_t i = 0; i < LENGTH(bad); i++) {
        assert_int_equal(classes_parse_text(bad[i].text, &imagenet, &labels, &n, why, sizeof why), 1);
        assert_true(labels == NULL && n == 0 && !strchr(why, '\n'));
        if (!strstr(why, bad[i].part)) fail_msg("\"%s\", expected \"%s\"", why, bad[i].part);
    }
}

/* Tests --class @FILE in the command. */
COMMAND_CASE(files)
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

/* Tests --class_names in mar generate and mar classes. */
COMMAND_CASE(own_names)
{
    const char *d = *state;
    sh_ok(d, "printf '%%s\\n' null Eins,one zwei drei vier fuenf sechs sieben acht 'my dog' >ten");
    sh_ok(d, "printf 'a\\n\\nb\\n' >bad; printf 'a\\n' >short");
    static const struct {
        const char *line;
        int status;
        const char *said;
    } cases[] = {
        {"classes --class_names ten eins", 0, "  1  Eins,one\n"},
        {"classes --class_names ten --json 9", 0,
         "{\n\t\"classes\":\t[{\n\t\t\t\"class\":\t9,\n\t\t\t\"names\":\t[\"my dog\"]\n\t\t}]\n}\n"},
        {"classes --class_names ten zwci", 1,
         "mar: \"zwci\": is in no class's name, expected a part of one, such as \"null\"\n"},
        {"classes --class_names ten xyzzyplugh", 1,
         "mar: \"xyzzyplugh\": is in no class's name, expected a part of one, such as \"null\"\n"},
        {"classes --class_names bad", 1, "mar: bad: line 2: is empty, expected the name of class 1\n"},
        {"generate --class_names bad --model absent.pth --vae demo", 1,
         "mar: bad: line 2: is empty, expected the name of class 1\n"}, /* before loading */
        {"generate --class_names absent", 1, "mar: absent: cannot read: No such file or directory\n"},
        {"generate --class_names short", 1,
         "mar: --class_names short: has the names of 1 class, expected those of the 10 of demo\n"},
        {"generate --class_names ten --class 'my god'", 1,
         "mar: --class: class \"my god\": not a class of ten, expected a number from 0 to 9, a range such as 0-9, or a "
         "name such as \"null\" (mar classes lists them)\n"},
        {"generate --class 'my dog'", 1,
         "mar: --class: class \"my dog\": expected a number from 0 to 9 or a range of them (names need a model of "
         "ImageNet's 1000 classes, or --class_names)\n"},
        {"eval --class none --num_images 10", 1, "mar: --class: class none: mar eval judges images of classes\n"},
        {"bench --class_names ten", 1, "mar: --class_names has no effect in mar bench, which shows no class\n"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        command_result r = command_mar(d, "%s", cases[i].line);
        if (r.status != cases[i].status || strcmp(cases[i].status ? r.err : r.out, cases[i].said) != 0)
            fail_msg("%s: %d, %s%s", cases[i].line, r.status, r.out, r.err);
        command_result_free(&r);
    }
#define QUICK "--num 1 --num_iter 2 --num_sampling_steps 4 "
    cJSON *record =
        command_json(d, "generate --class_names ten --class 'My_Dog,none,one' " QUICK "--json --out d --grid");
    assert_true(json_number(record, "classes.0.class") == 9 && json_number(record, "classes.2.class") == 1);
    assert_string_equal(json_text(record, "classes.0.name"), "my dog");
    assert_true(cJSON_IsNull(json_at(record, "classes.1.class")) && !json_find(record, "classes.1.name"));
    assert_string_equal(json_text(record, "classes.2.name"), "Eins");
    assert_true(cJSON_IsNull(json_at(record, "files.1.class")));
    cJSON_Delete(record);
    sh_ok(d, "grep -aq 'class_name.my dog' d/000000.png && grep -aq 'class.none' d/000001.png && "
             "! grep -aq class_name d/000001.png && grep -aq 'class.9,none,1' d/grid.png && "
             "grep -aq 'class_name.my dog,none,Eins' d/grid.png");

    /* Without a class guidance has nothing to guide: both of its branches are the same. */
    command_ok(d, "generate --class none --cfg 1 " QUICK "--out 1.png");
    command_ok(d, "generate --class none --cfg 4 " QUICK "--out 4.png");
    image_file a, b;
    assert_int_equal(image_read_png(path_in(d, "1.png"), 32, 32, &a), 0);
    assert_int_equal(image_read_png(path_in(d, "4.png"), 32, 32, &b), 0);
    assert_memory_equal(a.picture.rgb, b.picture.rgb, 32 * 32 * 3);
    image_file_free(&a), image_file_free(&b);
#undef QUICK
}

/* Tests the output of mar classes, and its message if no class matches. */
COMMAND_CASE(searches)
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
        {"classes retreiver", 1, "",
         "mar: \"retreiver\": is in no class's name, expected a part of one, such as \"golden retriever\"\n"},
        {"classes xyzzyplugh", 1, "",
         "mar: \"xyzzyplugh\": is in no class's name, expected a part of one, such as \"golden retriever\"\n"},
        {"classes retriever zebra", 1, "", "mar: \"retriever zebra\": no class has all these words in its names\n"},
        {"classes 'goldn retriever'", 1, "",
         "mar: \"goldn retriever\": is in no class's name, expected a part of one, such as \"golden retriever\"\n"},
        {"classes retreiver --json", 1, "",
         "mar: \"retreiver\": is in no class's name, expected a part of one, such as \"golden retriever\"\n"},
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

TEST_CASE(table)
{
    char name[128];
    const class_table *t = class_table_of(1000);
    for (int i = 0; i < IMAGENET_CLASSES; i++) {
        assert_non_null(t->lines[i]);
        assert_string_not_equal(class_name(t, i, name, sizeof name), "");
        assert_true(strlen(t->lines[i]) < 128);
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
        assert_string_equal(class_name(t, marks[i].label, name, sizeof name), marks[i].name);
    assert_null(class_table_of(10));
    assert_string_equal(class_name(NULL, 3, name, sizeof name), "");
    assert_string_equal(class_name(t, -1, name, sizeof name), "");
}
