#include "tools/options.h"

#include "tools/command.h"
#include "tools/suggest.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a value must be, as the end of "expected ...". */
static const char *expectation(const option *o, char *text, size_t size)
{
    switch (o->kind) {
    case OPTION_INT:
        snprintf(text, size, "a whole number from %.0f to %.0f", o->min, o->max);
        break;
    case OPTION_UINT64:
        snprintf(text, size, "a whole number from 0 to %llu", (unsigned long long)UINT64_MAX);
        break;
    case OPTION_FLOAT:
        snprintf(text, size, "a number from %g to %g", o->min, o->max);
        break;
    case OPTION_CHOICE: {
        size_t used = 0;
        for (int i = 0; o->choices[i] && used < size; i++) {
            const char *between = i == 0 ? "" : o->choices[i + 1] ? ", " : " or ";
            used += (size_t)snprintf(text + used, size - used, "%s%s", between, o->choices[i]);
        }
        break;
    }
    case OPTION_TEXT:
        return o->expects;
    case OPTION_FLAG:
        return "no value";
    }
    return text;
}

/* Stores the value; 0 if it is not what the option expects. */
static int store(const option *o, const char *text)
{
    char *end;
    errno = 0;
    switch (o->kind) {
    case OPTION_INT: {
        long v = strtol(text, &end, 10);
        if (end == text || *end || errno || (double)v < o->min || (double)v > o->max) return 0;
        *(int *)o->value = (int)v;
        return 1;
    }
    case OPTION_UINT64: {
        unsigned long long v = strtoull(text, &end, 10);
        if (end == text || *end || errno || strchr(text, '-')) return 0; /* strtoull wraps -1 round */
        *(uint64_t *)o->value = v;
        return 1;
    }
    case OPTION_FLOAT: {
        double v = strtod(text, &end);
        if (end == text || *end || !isfinite(v) || v < o->min || v > o->max) return 0;
        *(float *)o->value = (float)v;
        return 1;
    }
    case OPTION_CHOICE:
        for (int i = 0; o->choices[i]; i++)
            if (strcmp(text, o->choices[i]) == 0) {
                *(int *)o->value = i;
                return 1;
            }
        return 0;
    case OPTION_TEXT:
        if (!*text) return 0;
        *(const char **)o->value = text;
        return 1;
    case OPTION_FLAG:
        break; /* has no value */
    }
    return 0;
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
    const char *names[64];
    int n = 0;
    for (const option *o = set->options; o->name && n < 63; o++) names[n++] = o->name;
    for (const option *o = set->shared; o && o->name && n < 63; o++) names[n++] = o->name;
    names[n] = NULL;
    const char *nearest = suggest_nearest(name, names);
    if (nearest) return tool_error("--%s: unknown option of mar %s, did you mean --%s?", name, set->command, nearest);
    return tool_error("--%s: unknown option, see mar %s --help", name, set->command);
}

static const option *find_option(const option *list, const char *name)
{
    while (list && list->name && strcmp(list->name, name) != 0) list++;
    return list && list->name ? list : NULL;
}

/* Handles the option at argv[i]. Returns how many arguments it took, or 0 after an error. */
static int take_option(const option_set *set, int argc, char **argv, int i)
{
    char name[64], expected[160];
    option_name(argv[i], name, sizeof name);
    const option *o = find_option(set->options, name);
    if (!o && (o = find_option(set->shared, name))) *set->given |= UINT64_C(1) << (o - set->shared);
    if (!o) {
        unknown_option(set, name);
        return 0;
    }
    const char *equals = strchr(argv[i], '=');
    if (o->kind == OPTION_FLAG) {
        if (equals) {
            tool_error("--%s: takes no value, found %s", name, equals + 1);
            return 0;
        }
        *(int *)o->value = 1;
        return 1;
    }
    const char *text = equals ? equals + 1 : i + 1 < argc ? argv[i + 1] : NULL;
    if (!text || (!equals && strncmp(text, "--", 2) == 0)) {
        tool_error("--%s: expected %s, found %s", name, expectation(o, expected, sizeof expected),
                   text ? text : "nothing");
        return 0;
    }
    if (!store(o, text)) {
        tool_error("--%s %s: expected %s", name, *text ? text : "(empty)", expectation(o, expected, sizeof expected));
        return 0;
    }
    return equals ? 1 : 2;
}

int options_parse(const option_set *set, int argc, char **argv)
{
    const operand *next = set->operands;
    int only_operands = 0;
    for (int i = 1; i < argc;) {
        const char *argument = argv[i];
        if (!only_operands && (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0)) {
            fputs(set->help, stdout);
            return 0;
        }
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
