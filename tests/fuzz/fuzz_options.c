/* The command line against the real tables of options: arguments separated by NULs. */
#include "tests/fuzz/fuzz.h"

#include "mar_methods.h"

#include "mar/core/params.h"
#include "tools/cli/options.h"
#include "tools/cli/run_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARGUMENTS = 24, TEXT_SIZE = 1024 };

static char printed[8192];

/* Returns what was printed to stderr since the last call, "" if nothing. */
static const char *what_was_printed(void)
{
    fflush(stderr);
    const long n = ftell(stderr);
    printed[n > 0 && n < (long)sizeof printed ? n : 0] = '\0';
    rewind(stderr);
    return printed;
}

static void check_printed(const char *what, int failed)
{
    const char *text = what_was_printed();
    const size_t n = strlen(text);
    if (!failed && n > 0) fuzz_fail("%s: succeeded, and says %s", what, text);
    if (!failed) return;
    if (n == 0 || text[n - 1] != '\n') fuzz_fail("%s: no whole line: \"%s\"", what, text);
    printed[n - 1] = '\0';
    fuzz_check_line(what, text);
    if (strncmp(text, "mar: ", 5) != 0) fuzz_fail("%s: %s", what, text);
}

/* Checks that value -> text -> value keeps the value, also from one struct to another. */
static void check_round_trip(const mar_param *p, const void *fields, void *other)
{
    char text[4 * TEXT_SIZE], again[4 * TEXT_SIZE], why[TEXT_SIZE] = "";
    if (p->type == MAR_TYPE_MODEL) return;
    mar_param_reset(p, other);
    if (!mar_param_is_default(p, other)) fuzz_fail("%s: its default is none", p->name);
    if (mar_param_check(p, fields, NULL) != MAR_OK && p->value >= p->min) fuzz_fail("%s: out of range", p->name);
    mar_param_text(p, fields, text, sizeof text);
    if (!*text) {
        if (!mar_param_is_default(p, fields)) fuzz_fail("%s: has a value but no text", p->name);
        return;
    }
    if (mar_param_set(p, other, text, why, sizeof why) != MAR_OK) {
        if (mar_param_is_default(p, fields)) return; /* 0: the run decides */
        fuzz_fail("%s: its own text is refused: %s", p->name, why);
    }
    mar_param_text(p, other, again, sizeof again);
    if (strcmp(text, again) != 0) fuzz_fail("%s: \"%s\" became \"%s\"", p->name, text, again);
    if (p->type != MAR_TYPE_TEXT &&
        memcmp(mar_param_field(p, fields), mar_param_field(p, other), mar_param_size(p)) != 0)
        fuzz_fail("%s: \"%s\" is another value", p->name, text);
}

static void check_values(const option_set *set)
{
    static run_options other;
    run_options_init(&other);
    for (int i = 0; i < set->count; i++) {
        const option *o = &set->options[i];
        void *fields = o->fields;
        union { /* large enough for each struct of options */
            run_options run;
            mar_params params;
            mar_options machine;
        } copy;
        memset(&copy, 0, sizeof copy);
        check_round_trip(o->param, fields, &copy);
    }
}

/* Checks that mar_params_set accepts what the command accepts, and changes nothing where it refuses. */
static void check_set_by_name(char *argument)
{
    char why[TEXT_SIZE] = "", text[4 * TEXT_SIZE];
    mar_params p, before;
    char *equals = strchr(argument, '=');
    if (!equals) return;
    mar_params_init(&p, sizeof p);
    before = p;
    *equals = '\0';
    const mar_param *o = mar_param_find(argument);
    const mar_status status = mar_params_set(&p, argument, equals + 1, why, sizeof why);
    if (status != MAR_OK) {
        if (status != MAR_EARG) fuzz_fail("mar_params_set: status %d", (int)status);
        fuzz_check_line("mar_params_set", why);
        if (memcmp(&p, &before, sizeof p) != 0) fuzz_fail("mar_params_set: refused, and changed");
    } else {
        mar_params read;
        mar_err err = {0};
        if (*why) fuzz_fail("mar_params_set: succeeded, and says %s", why);
        if (!o) fuzz_fail("mar_params_set: accepted an unknown option");
        if (mar_params_read(&p, &read, &err) != MAR_OK) fuzz_fail("mar_params_read: %s", err.text);
        if (strcmp(mar_param_text(o, &p, text, sizeof text), mar_param_text(o, &read, why, sizeof why)) != 0)
            fuzz_fail("mar_params_read: %s became %s", text, why);
    }
    *equals = '=';
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
    char text[TEXT_SIZE], *argv[ARGUMENTS + 2] = {"generate"};
    const char *file = NULL;
    const operand operands[] = {{.name = "FILE", .value = &file, .help = "a file"}, {.name = NULL}};
    run_options o;
    static run_options untouched;
    option_set set = {.command = "generate", .operands = size && data[0] & 1 ? operands : NULL};
    int argc = 1;
    if (size == 0 || size > TEXT_SIZE) return -1;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    for (char *at = text; at < text + size && argc <= ARGUMENTS; at += strlen(at) + 1) argv[argc++] = at;
    memset(&o, 0, sizeof o);
    run_options_init(&o);
    untouched = o;
    run_options_add(&o, &set);
    const int result = options_parse(&set, argc, argv);
    if (result != OPTIONS_RUN && result != OPTIONS_HELP && result != 1) fuzz_fail("options_parse: %d", result);
    check_printed("options_parse", result == 1);
    if (result == OPTIONS_HELP && (memcmp(&o, &untouched, sizeof o) != 0 || file))
        fuzz_fail("asking for help changed an option");
    if (result == OPTIONS_RUN) {
        if ((file != NULL) != (set.operands != NULL)) fuzz_fail("the operand was not read");
        check_values(&set);
        const int refused = run_options_done(&o, &set);
        check_printed("run_options_done", refused);
    }
    for (int i = 1; i < argc && i < 4; i++)
        if (strncmp(argv[i], "--", 2) == 0) check_set_by_name(argv[i] + 2);
    return 0;
}
