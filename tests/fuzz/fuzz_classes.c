/* Lists of classes, as in --class and as in the text of a file, and files of names. The first byte chooses the form and
 * the model's number of classes. The rest is the text. A table with few names replaces the 1000 names of the ImageNet
 * classes. Comparing a word with all real names takes a thousand times as long as everything else here. */
#include "tests/fuzz/fuzz.h"

#include "tools/generate/classes.h"
#include "tools/cli/command.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIX   "\n\n\n\n\n\n"
#define TEN   SIX "\n\n\n\n"
#define FIFTY TEN TEN TEN TEN TEN
/* One line a class. The lines between these are empty: their classes have no name. */
char imagenet_classes[] = "tench, Tinca tinca\n" SIX                                                    /* 0 */
                          "cock\n" FIFTY FIFTY TEN TEN SIX                                              /* 7 */
                          "crane\n" FIFTY TEN TEN "\n\n"                                                /* 134 */
                          "golden retriever\n" FIFTY TEN TEN "\n\n\n\n"                                 /* 207 */
                          "tiger cat\n" FIFTY FIFTY FIFTY FIFTY TEN TEN TEN "\n\n\n\n"                  /* 282 */
                          "crane\n" FIFTY FIFTY TEN TEN                                                 /* 517 */
                          "maillot\n"                                                                   /* 638 */
                          "maillot, tank suit\n" FIFTY FIFTY FIFTY FIFTY FIFTY FIFTY FIFTY SIX "\n\n\n" /* 639 */
                          "toilet tissue, toilet paper, bathroom tissue\n";                             /* 999 */

static char printed[8192];

typedef int parser(const char *list, const class_choices *choices, int **labels, int *count, char *why,
                   size_t why_size);

/* Checks that a list with the same meaning gives the same labels. */
static void check_again(parser *parse, const char *list, const class_choices *choices, const int *labels, int count)
{
    char why[1024] = "";
    int *again = NULL, n = 0;
    if (parse(list, choices, &again, &n, why, sizeof why) != 0) fuzz_fail("\"%s\" is refused: %s", list, why);
    if (n != count || memcmp(labels, again, (size_t)n * sizeof *again) != 0) fuzz_fail("\"%s\" is another list", list);
    free(again);
}

static void check_numbers(const class_choices *choices, const int *labels, int count)
{
    char list[2048], lines[2048]; /* the same numbers, as one list and as lines of a file */
    size_t n = 0;
    for (int i = 0; i < count; i++) {
        if (labels[i] < (choices->no_none ? 0 : -1) || labels[i] >= choices->count)
            fuzz_fail("label %d of %d classes", labels[i], choices->count);
        if (labels[i] < 0) return; /* no number */
        if (sizeof list - n <= 16) continue;
        snprintf(lines + n, sizeof lines - n, "%s%d", i ? "\n" : "", labels[i]);
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%d", i ? "," : "", labels[i]);
    }
    if (sizeof list - n <= 16) return;
    check_again(classes_parse, list, choices, labels, count);
    check_again(classes_parse_text, lines, choices, labels, count);
}

static void check_name(int label, const class_choices *choices)
{
    char name[128], why[1024] = "";
    int *labels = NULL, n = 0;
    class_name(choices->names, label, name, sizeof name);
    if (!*name) return;
    fuzz_check_line("class_name", name);
    if (classes_parse(name, choices, &labels, &n, why, sizeof why) == 0) {
        if (n != 1 || labels[0] != label) fuzz_fail("\"%s\" is class %d, expected %d", name, labels[0], label);
    } else if (!strstr(why, "have this name")) {
        fuzz_fail("\"%s\", the name of class %d: %s", name, label, why);
    }
    free(labels);
}

/* Checks the line that the command prints for a refused list. */
static void check_message(const char *why)
{
    if (!*why) fuzz_fail("refused without a reason");
    tool_error("--class: %s", why);
    fflush(stderr);
    const long n = ftell(stderr);
    if (n < 1 || n > (long)sizeof printed || printed[n - 1] != '\n') fuzz_fail("no whole line: %s", why);
    printed[n - 1] = '\0';
    fuzz_check_line("--class", printed);
    rewind(stderr);
}

/* Checks that the name of each class finds it, or several. Words of a list, numbers and @FILE go before names. */
static void check_table(const class_table *t)
{
    for (int label = 0; label < t->count; label++) {
        char name[128], why[1024] = "";
        int found = -1;
        class_name(t, label, name, sizeof name);
        if (!*name || strlen(name) > CLASS_NAME_MAX || strpbrk(name, ",\n")) fuzz_fail("the name \"%s\"", name);
        if (class_find(t, name, (int)strlen(name), &found, why, sizeof why) == 0) {
            if (found != label) fuzz_fail("\"%s\" is class %d, expected %d", name, found, label);
        } else if (!strstr(why, "have this name") && !strstr(why, "too long")) {
            fuzz_fail("\"%s\", the name of class %d: %s", name, label, why);
        }
        if (!class_has_words(t, label, (const char *const[]){name}, 1)) fuzz_fail("\"%s\" has not its words", name);
    }
}

/* Parses the text of a file of names. */
static void parse_names(const char *text, size_t size)
{
    class_table t;
    char why[256] = "";
    char *copy = malloc(size + 1);
    if (!copy) return;
    memcpy(copy, text, size);
    copy[size] = '\0';
    if (class_table_parse(copy, size, "names", &t, why, sizeof why) == 0) {
        if (*why) fuzz_fail("succeeded, and says %s", why);
        check_table(&t);
        class_table_free(&t);
    } else {
        if (t.lines || t.text || t.count) fuzz_fail("refused, and not empty");
        if (strncmp(why, "line ", 5) != 0 && strncmp(why, "no name in it", 13) != 0) fuzz_fail("no line: %s", why);
        check_message(why);
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    stderr = fmemopen(printed, sizeof printed, "w");
    return stderr ? 0 : 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int numbers[] = {IMAGENET_CLASSES, 10, 1, 100000, INT_MAX};
    char list[512], why[1024] = "";
    int *labels = NULL, count = -1;
    if (size == 0 || size > sizeof list) return -1;
    memcpy(list, data + 1, size - 1);
    list[size - 1] = '\0';
    if ((data[0] & 0xe0) == 0x60) {
        parse_names(list, size - 1);
        return 0;
    }
    const int classes = data[0] < 0xa0 ? IMAGENET_CLASSES : numbers[data[0] % 5];
    const class_choices choices = {classes, class_table_of(classes), data[0] & 1 ? "it is refused" : NULL};
    const int of_file = (data[0] & 0xe0) == 0x40 || data[0] >= 0xf0;
    parser *parse = of_file ? classes_parse_text : classes_parse;
    if (parse(list, &choices, &labels, &count, why, sizeof why) == 0) {
        if (*why) fuzz_fail("succeeded, and says %s", why);
        if (!labels || count < 1) fuzz_fail("%d labels", count);
        check_again(parse, list, &choices, labels, count);
        check_numbers(&choices, labels, count);
        check_name(labels[0], &choices);
        free(labels);
    } else {
        if (labels || count != 0) fuzz_fail("refused, with %d labels", count);
        if (of_file && strncmp(why, "line ", 5) != 0 && strncmp(why, "no class in it", 14) != 0)
            fuzz_fail("no line is named: %s", why);
        check_message(why);
    }
    return 0;
}
