/* The list of `mar methods`: the registry of verifiers and that of accelerators, with their options. */
#include "families/families.h"
#include "mar/accel.h"
#include "mar/accel/registry.h"
#include "mar/api/load.h"
#include "mar/core/params.h"
#include "specdec/verifier.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { METHODS_MAX = 64, TEXT_MAX = 96, PARAMETERS_MAX = 8 };

static mar_method_info infos[METHODS_MAX];
static mar_method_parameter parameters[METHODS_MAX][PARAMETERS_MAX];
static char options[METHODS_MAX][TEXT_MAX];
static char guarantees[METHODS_MAX][TEXT_MAX]; /* of exact methods */
static char models[METHODS_MAX][TEXT_MAX];
static char meanings[METHODS_MAX][PARAMETERS_MAX][TEXT_MAX];
static int count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *shapes(int topologies)
{
    static const char *const names[] = {"none",
                                        "chain",
                                        "tree",
                                        "chain, tree",
                                        "tree-chain",
                                        "chain, tree-chain",
                                        "tree, tree-chain",
                                        "chain, tree, tree-chain"};
    return names[topologies & 7];
}

static int is_number(const mar_param *o)
{
    return o->type == MAR_TYPE_INT || o->type == MAR_TYPE_FLOAT;
}

/* Writes "--lazy", "--head_spec N", "--sampler ddim" or "--diff_annealing linear|cosine|two-stage". */
static void write_option(const mar_param *o, const char *value, char *text, size_t size)
{
    const char *argument = value ? value : o->type == MAR_TYPE_MODEL ? o->argument : is_number(o) ? "N" : "";
    size_t used = (size_t)snprintf(text, size, "--%s%s%s", o->name, *argument ? " " : "", argument);
    for (int i = 0, first = 1; !value && o->type == MAR_TYPE_CHOICE && o->choices[i] && used < size; i++) {
        if (i == (int)o->value) continue; /* the default turns the method off */
        used += (size_t)snprintf(text + used, size - used, "%s%s", first ? " " : "|", o->choices[i]);
        first = 0;
    }
}

/* Adds a parameter, if there is room for one more (mar.accel). */
static void add_parameter(mar_method_info *info, const char *name, const char *meaning, double value, double min,
                          double max)
{
    if (info->parameter_count == PARAMETERS_MAX) return;
    parameters[info - infos][info->parameter_count++] = (mar_method_parameter){
        .size = sizeof(mar_method_parameter), .name = name, .meaning = meaning, .value = value, .min = min, .max = max};
}

/* Returns the models for which the method at `count` is: those of engines with such tokens, NULL being any, that let
 * these stages be changed. */
static const char *models_with(const char *tokens, unsigned stages)
{
    models[count][0] = '\0';
    for (const mar_engine *const *e = mar_engines(); *e; e++)
        if ((!tokens || strcmp((*e)->tokens, tokens) == 0) && !(stages & ~(*e)->stages))
            family_add_titles((*e)->order, strcmp((*e)->tokens, "discrete") == 0, models[count], TEXT_MAX);
    return models[count];
}

/* Returns the guarantee of the method at `count`. */
static const char *methods_guarantee_of(int exact, const char *phrase)
{
    if (!exact) return phrase;
    snprintf(guarantees[count], TEXT_MAX, "exact to: plain sampling with the same options%s", phrase);
    return guarantees[count];
}

static void add_verifier(const spec_method *m)
{
    mar_method_info *info = &infos[count];
    const mar_accel *accel = mar_accel_of_verifier(m->name);
    *info = (mar_method_info){.size = sizeof *info,
                              .name = m->name,
                              .kind = "verifier",
                              .tokens = m->tokens & SPEC_CONTINUOUS ? "continuous" : "discrete",
                              .topology = shapes(m->topologies),
                              .exact = m->exact,
                              .guarantee = methods_guarantee_of(m->exact, m->guarantee),
                              .source = m->source,
                              .summary = m->summary,
                              .models =
                                  models_with(m->tokens & SPEC_CONTINUOUS ? "continuous" : "discrete", accel->changes),
                              .codebook = m->neighbours != 0};
    char draft[TEXT_MAX / 3], spec[TEXT_MAX / 2];
    write_option(mar_param_find("draft"), NULL, draft, sizeof draft);
    write_option(mar_param_find("spec"), m->name, spec, sizeof spec);
    if (accel->asks_for)
        snprintf(options[count], TEXT_MAX, "%s %s", draft, spec);
    else if (accel->needs & MAR_STAGE_DRAFT)
        snprintf(options[count], TEXT_MAX, "%s", spec);
    else
        snprintf(options[count], TEXT_MAX, "[%s] %s", draft, spec);
    info->option = options[count];
    for (int i = 0; m->parameters[i].name; i++) {
        const spec_parameter *p = &m->parameters[i];
        const mar_param *o = mar_param_of_method(m->name, p->name);
        add_parameter(info, o ? o->name : p->name, p->meaning, p->value, p->min, p->max);
    }
    count++;
}

static void methods_add_option(mar_method_info *info, const mar_param *o)
{
    if (info->parameter_count == PARAMETERS_MAX) return;
    char *meaning = meanings[info - infos][info->parameter_count];
    snprintf(meaning, TEXT_MAX, "%.*s", (int)strcspn(o->help, "\n"), o->help);
    add_parameter(info, o->name, meaning, o->value, o->min, o->max);
}

static void add_accel(const mar_accel *accel, const mar_accel_method *m)
{
    mar_method_info *info = &infos[count];
    const mar_param *turns_on = mar_param_find(accel->name);
    const mar_param *also = accel->also ? mar_param_find(accel->also) : NULL;
    write_option(turns_on, m->value, options[count], TEXT_MAX);
    if (also) {
        const size_t used = strlen(options[count]);
        snprintf(options[count] + used, TEXT_MAX - used, " ");
        write_option(also, NULL, options[count] + used + 1, TEXT_MAX - used - 1);
    }
    *info = (mar_method_info){.size = sizeof *info,
                              .name = m->name,
                              .kind = "shortcut",
                              .option = options[count],
                              .tokens = "continuous",
                              .exact = accel->exact,
                              .guarantee = methods_guarantee_of(accel->exact, m->guarantee),
                              .source = m->source,
                              .summary = m->summary,
                              .models = models_with("continuous", accel->changes)};
    if (is_number(turns_on)) methods_add_option(info, turns_on);
    if (also) methods_add_option(info, also);
    for (int i = 0; i < mar_param_count(); i++) {
        const mar_param *o = mar_param_get(i);
        if (mar_is_listed(o->method, accel->name)) methods_add_option(info, o);
    }
    count++;
}

/* Adds dtypes int8 and int4, options of the handle for tokens of either kind. */
static void methods_add_low(void)
{
    static const struct {
        const char *name, *option, *guarantee, *source, *summary;
    } dtypes[] = {
        {"int8", "--dtype int8", "none: quantising the transformer's blocks and the head's moves the distribution",
         "vector-wise quantisation, Dettmers et al. 2022 (arXiv:2208.07339) section 2",
         "int8 weights with a scale for each output channel; on a CPU int8 activations, with one for each row"},
        {"int4", "--dtype int4",
         "none: quantising the transformer's blocks moves the distribution, more than int8 does",
         "group-wise quantisation, Dettmers and Zettlemoyer 2023 (arXiv:2212.09720) section 2",
         "int4 weights with a scale for each 32 numbers of a row; on a CPU int8 activations, too"},
    };
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes && count < METHODS_MAX; d++) {
        mar_method_info *info = &infos[count];
        *info = (mar_method_info){.size = sizeof *info,
                                  .name = dtypes[d].name,
                                  .kind = "shortcut",
                                  .option = dtypes[d].option,
                                  .tokens = "continuous, discrete",
                                  .guarantee = dtypes[d].guarantee,
                                  .source = dtypes[d].source,
                                  .summary = dtypes[d].summary,
                                  .models = models_with(NULL, 0)};
        count++;
        for (int i = 0; i < mar_option_count() && d == 0; i++)
            if (strcmp(mar_option_get(i)->name, "int8_below") == 0) methods_add_option(info, mar_option_get(i));
    }
}

static void methods_fill(void)
{
    count = 0; /* after a fork, another thread may have left the list half made */
    for (const spec_method *const *m = spec_methods(); *m && count < METHODS_MAX; m++) add_verifier(*m);
    for (const mar_accel *const *accel = mar_accels(); *accel; accel++)
        for (const mar_accel_method *m = (*accel)->methods; m && m->name && count < METHODS_MAX; m++)
            add_accel(*accel, m);
    if (count < METHODS_MAX) methods_add_low();
}

int mar_method_count(void)
{
    pthread_once(&once, methods_fill);
    return count;
}

const mar_method_info *mar_method_get(int i)
{
    return i >= 0 && i < mar_method_count() ? &infos[i] : NULL;
}

const mar_method_parameter *mar_method_get_parameter(int method, int i)
{
    const mar_method_info *info = mar_method_get(method);
    return info && i >= 0 && i < info->parameter_count ? &parameters[method][i] : NULL;
}
