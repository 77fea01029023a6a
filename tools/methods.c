/* mar methods: lists every accelerator and its effect on the output. */
#include "tools/cli/command.h"

#include "mar_methods.h"
#include "tools/cli/json.h"
#include "tools/cli/run_options.h"
#include "tools/cli/subcommands.h"
#include "tools/cli/suggest.h"
#include "tools/cli/text.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const char *name; /* NULL: all methods */
    int json;
} methods_options;

static const mar_param method = {
    .group = "Options", OPTION_TEXT(methods_options, name, "METHOD"), .help = "this method only"};

/* Returns whether an option has no effect with the verifier, with or without a draft model. */
static int is_unused(const mar_method_info *m, const char *name, int with_draft)
{
    mar_params p;
    int i = 0;
    mar_params_init(&p, sizeof p);
    p.spec = m->name;
    p.draft = with_draft ? (mar_model *)&p : NULL; /* never dereferenced */
    while (strcmp(mar_param_get(i)->name, name) != 0) i++;
    return mar_params_unused(&p, i) != NULL;
}

/* Prints the options of a verifier, and those it takes only with a draft model. */
static void print_options(const mar_method_info *m)
{
    const int does_without = !is_unused(m, "spec", 0);
    const char *before = "  with:       ";
    for (int i = 0; i < mar_param_count(); i++) {
        const mar_param *p = mar_param_get(i);
        if (!p->method || is_unused(m, p->name, 1)) continue;
        printf("%s--%s%s", before, p->name, does_without && is_unused(m, p->name, 0) ? " (of a --draft)" : "");
        before = ", ";
    }
    puts(" (man mar)");
}

static void print_method(int at)
{
    const mar_method_info *m = mar_method_get(at);
    printf("%s  (%s, %s tokens%s%s)\n", m->name, m->kind, m->tokens, m->topology ? ", " : "",
           m->topology ? m->topology : "");
    printf("  %s\n", m->summary);
    printf("  models:     %s\n", m->models);
    if (m->option) printf("  option:     %s\n", m->option);
    printf("  guarantee:  %s\n", m->guarantee);
    printf("  source:     %s\n", m->source);
    if (m->option && m->topology) print_options(m);
    for (int i = 0; i < m->parameter_count; i++) {
        const mar_method_parameter *n = mar_method_get_parameter(at, i);
        const mar_param *p = run_option(n->name);
        printf("  %s = ", n->name);
        if (p && p->type == MAR_TYPE_CHOICE)
            printf("%s (%s or %s)", p->choices[(int)n->value], p->choices[0], p->choices[1]);
        else
            printf("%g (%g..%g)", n->value, n->min, n->max);
        printf(": %s\n", n->meaning);
    }
}

static void methods_add_text(cJSON *object, const char *name, const char *text)
{
    if (text)
        cJSON_AddStringToObject(object, name, text);
    else
        cJSON_AddNullToObject(object, name);
}

static cJSON *method_json(int at)
{
    const mar_method_info *m = mar_method_get(at);
    cJSON *object = cJSON_CreateObject();
    methods_add_text(object, "name", m->name);
    methods_add_text(object, "kind", m->kind);
    methods_add_text(object, "tokens", m->tokens);
    methods_add_text(object, "models", m->models);
    methods_add_text(object, "topology", m->topology);
    methods_add_text(object, "option", m->option);
    cJSON_AddBoolToObject(object, "exact", m->exact);
    methods_add_text(object, "guarantee", m->guarantee);
    methods_add_text(object, "source", m->source);
    methods_add_text(object, "summary", m->summary);
    cJSON *parameters = cJSON_AddArrayToObject(object, "parameters");
    for (int i = 0; i < m->parameter_count; i++) {
        const mar_method_parameter *n = mar_method_get_parameter(at, i);
        cJSON *parameter = cJSON_CreateObject();
        methods_add_text(parameter, "name", n->name);
        cJSON_AddNumberToObject(parameter, "default", n->value);
        cJSON_AddNumberToObject(parameter, "min", n->min);
        cJSON_AddNumberToObject(parameter, "max", n->max);
        methods_add_text(parameter, "meaning", n->meaning);
        tool_json_append(parameters, parameter);
    }
    return object;
}

/* Compares names; "head_spec", as its option is written, is "head-spec". */
static int is_same(const char *a, const char *b)
{
    while (*a && (*a == *b || (*a == '-' && *b == '_') || (*a == '_' && *b == '-'))) a++, b++;
    return *a == *b;
}

static int is_shown(const mar_method_info *m, const char *name)
{
    return !name || is_same(m->name, name);
}

static int methods_print_json(const char *name)
{
    cJSON *root = tool_json();
    cJSON *methods = cJSON_AddArrayToObject(root, "methods");
    for (int i = 0; i < mar_method_count(); i++)
        if (is_shown(mar_method_get(i), name)) tool_json_append(methods, method_json(i));
    return tool_print_json(root, 1);
}

static int unknown_method(const char *name)
{
    const char *names[128] = {0};
    for (int i = 0; i < mar_method_count() && i < 127; i++) names[i] = mar_method_get(i)->name;
    const char *nearest = suggest_nearest(name, names);
    if (nearest) return tool_error("--name %s: unknown method, did you mean %s?", name, nearest);
    char list[1024];
    return tool_error("--name %s: unknown method, expected %s", name, text_list(names, list, sizeof list));
}

/* Sets the defaults, and adds the options that set the fields. */
static void methods_set_up(methods_options *o, option_set *set)
{
    *o = (methods_options){0};
    *set = (option_set){
        .command = "methods",
        .about = "usage: mar methods [OPTIONS]\n"
                 "\n"
                 "Lists the accelerators of generation: verifiers, which test a draft against the\n"
                 "target, and shortcuts. Exact ones keep the distribution of plain sampling with\n"
                 "the same options. For the others it prints the known bound; mar fidelity\n"
                 "measures them.\n",
        .example = "example: mar methods --name cspd\n",
        .word = "name",
    };
    options_add(set, &method, o, 0);
    options_add(set, &option_json, &o->json, 0);
}

int cmd_methods(int argc, char **argv)
{
    methods_options o;
    option_set set;
    int found = 0;
    methods_set_up(&o, &set);
    const int status = options_read(&set, argc, argv);
    if (status != OPTIONS_RUN) return status;
    for (int i = 0; i < mar_method_count(); i++) found += is_shown(mar_method_get(i), o.name);
    if (!found) return unknown_method(o.name);
    if (o.json) return methods_print_json(o.name);
    for (int i = 0, first = 1; i < mar_method_count(); i++) {
        if (!is_shown(mar_method_get(i), o.name)) continue;
        if (!first) putchar('\n');
        first = 0;
        print_method(i);
    }
    return 0;
}
