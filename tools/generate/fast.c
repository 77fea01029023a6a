#include "tools/generate/fast.h"

#include "mar_methods.h"
#include "mar_measure.h"

#include "tools/cli/command.h"
#include "tools/cli/text.h"

#include <string.h>

/* Returns whether the command line has accelerators with which no preset was measured. */
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
    if (!o->fast || run_was_given(o, "dtype") || !fast_has_int8(&o->machine)) return;
    o->machine.dtype = MAR_DTYPE_INT8;
    o->fast_set |= 1u; /* the first option of every preset */
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

/* Sets option i of the preset unless it was given, has no effect, or conflicts with those given. */
static mar_status set_param(run_options *o, int i, mar_model *model, mar_vae *vae)
{
    char text[32];
    const char *name = o->preset->options[i];
    const mar_params before = o->params;
    if (run_was_given(o, name)) return MAR_OK;
    mar_preset_value(o->preset, i, mar_model_get_config(model), text, sizeof text);
    mar_status status = mar_params_set(&o->params, name, text, NULL, 0);
    if (status != MAR_OK || run_param_unused(o, index_of(name)))
        status = MAR_EARG;
    else if (has_own_accelerators(o))
        status = try_params(o, model, vae);
    if (status == MAR_OK)
        o->fast_set |= 1u << i;
    else
        o->params = before;
    return status == MAR_ENOMEM ? status : MAR_OK;
}

int fast_set_params(run_options *o, mar_model *model, mar_vae *vae)
{
    o->preset = mar_preset_get(o->fast, mar_model_get_config(model));
    for (int i = 1; o->preset && o->preset->options[i]; i++)
        if (set_param(o, i, model, vae) != MAR_OK) return tool_error("--fast %d: out of memory for a session", o->fast);
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

/* Appends the preset's options that are not set, and why. Returns whether there are any. */
static int add_missing(const run_options *o, char *text, size_t size)
{
    int missing = 0;
    for (int i = 0; o->preset->options[i]; i++) {
        const char *name = o->preset->options[i];
        if (o->fast_set & 1u << i) continue;
        missing = 1;
        text_append(text, size, "; without --%s%s, %s", name, i == 0 ? " int8" : "",
                    run_was_given(o, name) ? "which was given"
                    : i == 0               ? "which this machine does not have"
                                           : "which does not go with what was given");
    }
    return missing;
}

const char *fast_describe(const run_options *o, char *text, size_t size)
{
    const mar_preset *p = o->preset;
    *text = '\0';
    if (!p) return text;
    text_append(text, size, "fast %d:", o->fast);
    for (int i = 0; p->options[i]; i++)
        if (o->fast_set & 1u << i) fast_add_option(o, p->options[i], text, size);
    text_append(text, size, o->fast_set ? " (approximate" : " no option (as it was given");
    if (add_missing(o, text, size) || has_own_accelerators(o))
        text_append(text, size, "; not measured like this)");
    else
        text_append(text, size, "; distance to plain sampling %.4f on the demo, another seed %.4f)", p->distance,
                    p->floor);
    return text;
}
