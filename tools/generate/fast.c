#include "tools/generate/fast.h"

#include "mar_methods.h"
#include "mar_measure.h"

#include "tools/cli/command.h"
#include "tools/cli/text.h"

#include <string.h>

enum { OPTIONS = 6 };

typedef struct {
    const char *name, *value; /* of the option; a NULL name ends the list */
    int tokens_a_step;        /* not 0: the value is fast_steps of this */
} recipe_option;

/* The options of a level. Distances are energy distances of whole images to plain sampling with the same seeds, on the
 * demo pair, 500 images. `floor`: another seed of plain sampling stays below it 95 times in 100 (bench/RESULTS.md). */
typedef struct {
    int level;
    const char *tokens;             /* "continuous" or "discrete" */
    recipe_option options[OPTIONS]; /* the arithmetic first */
    double distance;
    double floor;
} recipe;

#define INT8                                                                                                           \
    {                                                                                                                  \
        "dtype", "int8", 0                                                                                             \
    }

static const recipe recipes[] = {
    {1, "continuous", {INT8, {"num_iter", NULL, 4}, {"num_sampling_steps", "25", 0}}, 0.0061, 0.0064},
    {2, "continuous", {INT8, {"num_iter", NULL, 8}, {"num_sampling_steps", "25", 0}}, 0.0076, 0.0064},
    {3,
     "continuous",
     {INT8, {"num_iter", NULL, 16}, {"sampler", "dpmpp", 0}, {"num_sampling_steps", "15", 0}},
     0.0411,
     0.0064},
    {1, "discrete", {INT8}, 0.0036, 0.0117},
};

/* Returns the recipe; NULL without --fast, and for a level or kind without one. */
static const recipe *recipe_of(const run_options *o)
{
    const char *tokens = o->tokens ? o->tokens : recipes[0].tokens;
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        if (recipes[i].level == o->fast && strcmp(recipes[i].tokens, tokens) == 0) return &recipes[i];
    return NULL;
}

/* Returns whether the command line has accelerators with which no recipe was measured. */
static int has_own_accelerators(const run_options *o)
{
    return o->gives_accelerators || (o->draft && strcmp(o->tokens, "continuous") == 0);
}

/* --- options ------------------------------------------------------------------------------------------------------ */

/* Returns whether --dtype int8 works with these options on this machine. Cached by backend. */
static int fast_has_int8(const mar_options *machine)
{
    static int known[MAR_BACKEND_CUDA + 1]; /* by backend: 0 unknown, 1 int8 works, -1 it does not */
    int *const answer = &known[machine->backend];
    if (*answer == 0) {
        const mar_options options = {
            .size = sizeof options, .dtype = MAR_DTYPE_INT8, .backend = machine->backend, .threads = 1};
        mar *library = NULL;
        const int opens = mar_open(&options, &library) == MAR_OK; /* on a GPU int8 is for decoders alone */
        *answer = opens && mar_get_device(library)->backend == MAR_BACKEND_CPU ? 1 : -1;
        mar_close(library);
    }
    return *answer > 0;
}

void fast_set_machine(run_options *o)
{
    if (!o->fast || run_was_given(o, recipes[0].options[0].name) || !fast_has_int8(&o->machine)) return;
    o->machine.dtype = MAR_DTYPE_INT8;
    o->fast_set |= 1u; /* the first option of every recipe, for both kinds of tokens */
}

static int index_of(const char *name)
{
    for (int i = 0; i < mar_param_count(); i++)
        if (strcmp(mar_param_get(i)->name, name) == 0) return i;
    return -1;
}

/* Returns whether the session accepts the parameters: it alone knows which accelerators conflict. */
static mar_status try_params(const run_options *o, mar_model *model, mar_vae *vae)
{
    mar_session *session = NULL;
    const mar_status status = mar_session_create(model, vae, &o->params, 1, &session);
    mar_session_free(session);
    return status;
}

/* Returns the image's tokens over this, rounded up. A model whose own steps have more than MAR's 4 tokens (Harmon: 16)
 * has its own steps in the same ratio. */
static int fast_steps(const mar_model_config *c, int tokens_a_step)
{
    const int steps = (c->seq_len + tokens_a_step - 1) / tokens_a_step;
    const int own = (4 * c->num_iter + tokens_a_step - 1) / tokens_a_step;
    return own < steps ? own : steps;
}

/* Sets the option unless it was given, has no effect, or conflicts with those given. */
static mar_status set_param(run_options *o, const recipe_option *p, unsigned bit, mar_model *model, mar_vae *vae)
{
    char text[32];
    const mar_params before = o->params;
    if (run_was_given(o, p->name)) return MAR_OK;
    if (p->tokens_a_step) snprintf(text, sizeof text, "%d", fast_steps(mar_model_get_config(model), p->tokens_a_step));
    mar_status status = mar_params_set(&o->params, p->name, p->tokens_a_step ? text : p->value, NULL, 0);
    if (status != MAR_OK || run_param_unused(o, index_of(p->name)))
        status = MAR_EARG;
    else if (has_own_accelerators(o))
        status = try_params(o, model, vae);
    if (status == MAR_OK)
        o->fast_set |= bit;
    else
        o->params = before;
    return status == MAR_ENOMEM ? status : MAR_OK;
}

int fast_set_params(run_options *o, mar_model *model, mar_vae *vae)
{
    const recipe *r = recipe_of(o);
    for (int i = 1; r && i < OPTIONS && r->options[i].name; i++)
        if (set_param(o, &r->options[i], 1u << i, model, vae) != MAR_OK)
            return tool_error("--fast %d: out of memory for a session", o->fast);
    return 0;
}

/* --- text --------------------------------------------------------------------------------------------------------- */

/* Appends " --num_iter 16", with the current value. */
static void fast_add_option(const run_options *o, const char *name, char *text, size_t size)
{
    char value[64];
    const mar_param *p = run_option(name);
    const void *fields = index_of(name) < 0 ? (const void *)&o->machine : (const void *)&o->params;
    mar_param_text(p, fields, value, sizeof value);
    if (p->type == MAR_TYPE_FLAG)
        text_append(text, size, " --%s", name);
    else
        text_append(text, size, " --%s %s", name, value);
}

/* Appends the recipe's options that are not set, and why. Returns whether there are any. */
static int add_missing(const run_options *o, const recipe *r, char *text, size_t size)
{
    int missing = 0;
    for (int i = 0; i < OPTIONS && r->options[i].name; i++) {
        const recipe_option *p = &r->options[i];
        if (o->fast_set & 1u << i) continue;
        missing = 1;
        text_append(text, size, "; without --%s%s%s, %s", p->name, p->value ? " " : "", p->value ? p->value : "",
                    run_was_given(o, p->name) ? "which was given"
                    : i == 0                  ? "which this machine does not have"
                                              : "which does not go with what was given");
    }
    return missing;
}

const char *fast_describe(const run_options *o, char *text, size_t size)
{
    const recipe *r = recipe_of(o);
    *text = '\0';
    if (!r) return text;
    text_append(text, size, "fast %d:", o->fast);
    for (int i = 0; i < OPTIONS && r->options[i].name; i++)
        if (o->fast_set & 1u << i) fast_add_option(o, r->options[i].name, text, size);
    text_append(text, size, o->fast_set ? " (approximate" : " no option (as it was given");
    if (add_missing(o, r, text, size) || has_own_accelerators(o))
        text_append(text, size, "; not measured like this)");
    else
        text_append(text, size, "; distance to plain sampling %.4f on the demo, another seed %.4f)", r->distance,
                    r->floor);
    return text;
}
