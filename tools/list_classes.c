/* mar classes: lists and searches the classes of ImageNet, or those of a file of names. */
#include "tools/generate/class_names.h"
#include "tools/cli/command.h"
#include "tools/cli/json.h"
#include "tools/cli/options.h"
#include "tools/cli/run_options.h"
#include "tools/cli/subcommands.h"
#include "base/printable.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char **words; /* [word_count] */
    int word_count;
    run_options run;     /* --class_names */
    int json;            /* print JSON */
    operand operands[2]; /* the words; ends with a NULL name */
} classes_options;

/* Sets the defaults, and adds the options that set the fields. words: room for all arguments; NULL: not parsed. */
static void classes_set_up(classes_options *o, const char **words, option_set *set)
{
    *o = (classes_options){.words = words};
    o->operands[0] =
        (operand){"WORD", o->words, "part of a name, or a number; a class must have all of them", &o->word_count};
    *set = (option_set){
        .command = "classes",
        .about = "usage: mar classes [WORD...] [OPTIONS]\n"
                 "\n"
                 "Lists the 1000 classes of ImageNet with their numbers and all their names, or\n"
                 "those with every WORD in their names. It ignores case, and spaces, dashes and\n"
                 "underscores are the same. --class takes numbers and names. With --class_names\n"
                 "it lists the classes of that file.\n",
        .example = "example: mar classes retriever\n",
        .operands = o->operands,
    };
    options_add(set, &option_json, &o->json, 0);
    options_add_under(set, option_json.group, run_option("class_names"), &o->run);
}

static cJSON *class_json(const class_table *t, int label)
{
    cJSON *object = cJSON_CreateObject(), *names = cJSON_CreateArray();
    cJSON_AddNumberToObject(object, "class", label);
    tool_json_add(object, "names", names);
    const char *start;
    size_t length;
    for (const char *at = t->lines[label]; (at = class_next_name(at, &start, &length));) {
        char text[CLASS_NAME_MAX + 2];
        snprintf(text, sizeof text, "%.*s", (int)length, start);
        tool_json_append(names, cJSON_CreateString(text));
    }
    return object;
}

/* Checks that each word has a letter or digit; others would match every name. Returns 0, or 1 with the error
 * printed. */
static int check_words(const classes_options *o)
{
    for (int i = 0; i < o->word_count; i++)
        if (!o->words[i][strspn(o->words[i], " \t\n\v\f\r_-")])
            return tool_error("\"%s\": is empty, expected part of a class's name or a number", o->words[i]);
    return 0;
}

static int classes_list(const classes_options *o, const class_table *t)
{
    cJSON *root = o->json ? tool_json() : NULL, *classes = o->json ? cJSON_AddArrayToObject(root, "classes") : NULL;
    char line[8192];
    int found = 0;
    for (int label = 0; label < t->count; label++) {
        if (!class_has_words(t, label, o->words, o->word_count)) continue;
        found++;
        if (o->json)
            tool_json_append(classes, class_json(t, label));
        else
            printf("%3d  %s\n", label, printable(t->lines[label], line, sizeof line));
    }
    if (found) return o->json ? tool_print_json(root, 1) : 0;
    char why[1024];
    cJSON_Delete(root);
    class_explain_none(t, o->words, o->word_count, why, sizeof why);
    return tool_error("%s", why);
}

/* Lists the classes of ImageNet or of the file. */
static int list_table(const classes_options *o)
{
    class_table own;
    if (check_words(o) != 0) return 1;
    if (!o->run.class_names) return classes_list(o, class_table_of(IMAGENET_CLASSES));
    if (class_table_read(o->run.class_names, &own) != 0) return 1;
    const int failed = classes_list(o, &own);
    class_table_free(&own);
    return failed;
}

int cmd_classes(int argc, char **argv)
{
    classes_options o;
    option_set set;
    const char **words = calloc((size_t)argc, sizeof *words);
    if (!words) return tool_error("out of memory for %d words", argc);
    classes_set_up(&o, words, &set);
    int status = options_read(&set, argc, argv);
    if (status == OPTIONS_RUN) status = list_table(&o);
    free(words);
    return status;
}
