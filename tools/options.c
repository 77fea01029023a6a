#include "tools/options.h"

#include "tools/command.h"
#include "tools/suggest.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

void options_add(option_set *set, const mar_param *param, void *fields, int shared)
{
    assert(set->count < OPTIONS_MAX);
    set->options[set->count++] = (option){param, fields, shared, 0};
}

void options_add_table(option_set *set, const mar_param *table, void *fields, int shared)
{
    for (; table->name; table++) options_add(set, table, fields, shared);
}

mar_param option_at(const mar_param *param, size_t offset, const char *group)
{
    mar_param copy = *param;
    copy.offset = offset;
    copy.group = group;
    return copy;
}

static int find(const option_set *set, const char *name)
{
    for (int i = 0; i < set->count; i++)
        if (strcmp(set->options[i].param->name, name) == 0) return i;
    return -1;
}

const option *options_find(const option_set *set, const char *name)
{
    const int i = find(set, name);
    return i < 0 ? NULL : &set->options[i];
}

/* The name in an argument "--name" or "--name=value", dashes as underscores; cut if absurdly long. */
static void option_name(const char *argument, char *name, size_t size)
{
    size_t n = strcspn(argument + 2, "=");
    if (n >= size) n = size - 1;
    for (size_t i = 0; i < n; i++) name[i] = argument[2 + i] == '-' ? '_' : argument[2 + i];
    name[n] = '\0';
}

static int unknown_option(const option_set *set, const char *name)
{
    const char *names[OPTIONS_MAX + 1] = {0};
    for (int i = 0; i < set->count; i++) names[i] = set->options[i].param->name;
    const char *nearest = suggest_nearest(name, names);
    if (nearest) return tool_error("--%s: unknown option of mar %s, did you mean --%s?", name, set->command, nearest);
    return tool_error("--%s: unknown option, see mar %s --help", name, set->command);
}

/* Stores the value. On MAR_EARG `why` has one line. */
static mar_status store(const option *o, const char *text, char *why, size_t size)
{
    char expected[256];
    if (o->param->type != MAR_TYPE_MODEL) return mar_param_set(o->param, o->fields, text, why, size);
    if (*text)
        *(const char **)o->fields = text;
    else
        snprintf(why, size, "%s (empty): expected %s", o->param->name,
                 mar_param_expects(o->param, expected, sizeof expected));
    return *text ? MAR_OK : MAR_EARG;
}

/* Handles the option at argv[i]. Returns how many arguments it took, or 0 after an error. */
static int take_option(option_set *set, int argc, char **argv, int i)
{
    char name[64], text[1024];
    option_name(argv[i], name, sizeof name);
    const int at = find(set, name);
    if (at < 0) {
        unknown_option(set, name);
        return 0;
    }
    option *o = &set->options[at];
    const int flag = o->param->type == MAR_TYPE_FLAG;
    const char *equals = strchr(argv[i], '=');
    const char *value = equals ? equals + 1 : flag ? "on" : i + 1 < argc ? argv[i + 1] : NULL;
    if (flag && equals) {
        tool_error("--%s: takes no value, found %s", name, equals + 1);
    } else if (!value || (!equals && strncmp(value, "--", 2) == 0)) {
        tool_error("--%s: expected %s, found %s", name, mar_param_expects(o->param, text, sizeof text),
                   value ? value : "nothing");
    } else if (store(o, value, text, sizeof text) != MAR_OK) {
        tool_error("--%s", text);
    } else {
        o->given = 1;
        return equals || flag ? 1 : 2;
    }
    return 0;
}

static int asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return 1;
    return 0;
}

int options_parse(option_set *set, int argc, char **argv)
{
    const operand *next = set->operands;
    int only_operands = 0;
    if (asks_for_help(argc, argv)) return OPTIONS_HELP; /* before a value replaces a default */
    for (int i = 1; i < argc;) {
        const char *argument = argv[i];
        if (!only_operands && strcmp(argument, "--") == 0) {
            only_operands = 1;
            i++;
        } else if (!only_operands && strncmp(argument, "--", 2) == 0) {
            int taken = take_option(set, argc, argv, i);
            if (!taken) return 1;
            i += taken;
        } else if (!only_operands && argument[0] == '-' && argument[1]) {
            return tool_error("%s: unknown option, see mar %s --help", argument, set->command);
        } else if (next && next->name) {
            *next++->value = argument;
            i++;
        } else {
            return tool_error("%s: unexpected argument, see mar %s --help", argument, set->command);
        }
    }
    if (next && next->name) return tool_error("%s is missing, see mar %s --help", next->name, set->command);
    return OPTIONS_RUN;
}
