#include "tools/cli/options.h"

#include "mar_methods.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/cli/suggest.h"
#include "tools/cli/text.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static void cli_options_add(option_set *set, const char *group, const mar_param *param, void *fields, int shared)
{
    assert(set->count < OPTIONS_MAX);
    set->options[set->count++] = (option){.param = param, .fields = fields, .group = group, .shared = shared};
}

void options_add(option_set *set, const mar_param *param, void *fields, int shared)
{
    const char *before = set->count > 0 ? set->options[set->count - 1].group : NULL;
    cli_options_add(set, param->group ? param->group : before, param, fields, shared);
}

void options_add_table(option_set *set, const mar_param *table, void *fields, int shared)
{
    for (; table->name; table++) options_add(set, table, fields, shared);
}

const mar_param option_json = {
    .name = OPTION("json"), .group = "Options", .type = MAR_TYPE_FLAG, .help = "print one JSON object instead of text"};

const mar_param option_overwrite = {
    .name = OPTION("overwrite"), .group = "Options", .type = MAR_TYPE_FLAG, .help = "replace an existing output"};

void options_add_under(option_set *set, const char *group, const mar_param *param, void *fields)
{
    cli_options_add(set, group, param, fields, 0);
}

/* Options with two names. */
static const char *const aliases[][2] = {{"vae", "vq"}, {"t5", "text"}};

const char *options_alias(const char *name)
{
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(aliases[i][0], name) == 0) return aliases[i][1];
    return NULL;
}

/* Returns the place of an option with this name, its own or its other one; -1 if there is none. */
static int cli_options_find(const option_set *set, const char *name)
{
    for (int i = 0; i < set->count; i++)
        if (strcmp(set->options[i].param->name, name) == 0) return i;
    for (int i = 0; i < set->count; i++) {
        const char *other = options_alias(set->options[i].param->name);
        if (other && strcmp(other, name) == 0) return i;
    }
    return -1;
}

void options_keep_all(option_set *set, const char *name, int *count, int most)
{
    option *o = &set->options[cli_options_find(set, name)];
    o->count = count;
    o->most = most;
}

const option *options_find(const option_set *set, const char *name)
{
    const int i = cli_options_find(set, name);
    return i < 0 ? NULL : &set->options[i];
}

/* Options with a letter, their first, in any set that has an option of the name. asks_for_help handles -h. */
static const char *const lettered[] = {"out", "seed", "quiet", NULL};

char options_letter(const char *name)
{
    for (int i = 0; lettered[i]; i++)
        if (strcmp(lettered[i], name) == 0) return *name;
    return 0;
}

/* Returns the option's index; -1 if there is none, also for a letter of another command. */
static int find_letter(const option_set *set, char letter)
{
    for (int i = 0; lettered[i]; i++)
        if (*lettered[i] == letter) return cli_options_find(set, lettered[i]);
    return -1;
}

static int is_flag(const option *o)
{
    return o->param->type == MAR_TYPE_FLAG;
}

/* Copies the name at the beginning of "name" or "name=value", dashes as underscores; a long one is cut. */
static void option_name(const char *argument, char *name, size_t size)
{
    size_t n = strcspn(argument, "=");
    if (n >= size) n = size - 1;
    for (size_t i = 0; i < n; i++) name[i] = argument[i] == '-' ? '_' : argument[i];
    name[n] = '\0';
}

/* Returns whether the argument is the next option, not a value: "--num", or "-o" alone. Other text behind a single dash
 * may be a value, as in "-5". */
static int is_option(const option_set *set, const char *argument)
{
    if (strncmp(argument, "--", 2) == 0) return 1;
    return argument[0] == '-' && argument[1] && !argument[2] && find_letter(set, argument[1]) >= 0;
}

/* Returns whether the option's name ends in these words, separated by underscores. */
static int ends_in_word(const char *name, const char *words)
{
    const size_t n = strlen(name), m = strlen(words);
    return m > 0 && n > m && name[n - m - 1] == '_' && strcmp(name + n - m, words) == 0;
}

/* Returns the command's option that another program calls `name`, and *advice; NULL if there is none. */
static const char *meant_by(const option_set *set, const char *name, const char **advice)
{
    const other_name *other = suggest_option(name);
    for (int i = 0; other && i < 2 && other->options[i]; i++) {
        if (cli_options_find(set, other->options[i]) < 0) continue;
        *advice = other->advice;
        return other->options[i];
    }
    return NULL;
}

/* `given`: the argument, whose name has dashes where it has. */
static int unknown_option(const option_set *set, const char *name, const char *given)
{
    const char *names[OPTIONS_MAX + 1] = {0};
    const char *advice = NULL, *meant = meant_by(set, name, &advice);
    const int shown = (int)strcspn(given, "=");
    if (strcmp(name, "version") == 0) advice = "mar --version prints it";
    if (advice) return tool_error("%.*s: unknown option of mar %s, %s", shown, given, set->command, advice);
    for (int i = 0; i < set->count; i++) names[i] = set->options[i].param->name;
    const char *nearest = meant ? meant : suggest_nearest(name, names);
    for (int i = 0; i < set->count && !nearest; i++) /* "dtype" for "features_dtype" */
        if (ends_in_word(names[i], name)) nearest = names[i];
    if (nearest)
        return tool_error("%.*s: unknown option of mar %s, did you mean --%s?", shown, given, set->command, nearest);
    return tool_error("%.*s: unknown option, see mar %s --help", shown, given, set->command);
}

/* Returns the name by which the option was given. */
static const char *cli_options_name(const option *o)
{
    return o->named ? o->named : o->param->name;
}

/* Appends the value to those of the option. As store. */
static mar_status append_value(const option *o, const char *text, char *why, size_t size)
{
    const char **values = (const char **)(void *)((char *)o->fields + o->param->offset);
    if (*o->count < o->most) {
        values[(*o->count)++] = text;
        return MAR_OK;
    }
    snprintf(why, size, "--%s: is given more than %d times", o->param->name, o->most);
    return MAR_EARG;
}

/* Stores the value. On MAR_EARG writes one line to `why`. */
static mar_status options_store(const option *o, const char *text, char *why, size_t size)
{
    char expected[256];
    if (o->count) return append_value(o, text, why, size);
    mar_param as_given = *o->param;
    as_given.name = cli_options_name(o);
    if (o->param->type != MAR_TYPE_MODEL) return mar_param_set(&as_given, o->fields, text, why, size);
    if (*text)
        *(const char **)o->fields = text;
    else
        snprintf(why, size, "--%s (empty): expected %s", o->param->name,
                 mar_param_expects(o->param, expected, sizeof expected));
    return *text ? MAR_OK : MAR_EARG;
}

/* Sets --cfg_low and --cfg_high to the two numbers of --cfg_interval LOW,HIGH. */
static mar_status store_interval(option_set *set, const option *o, const char *text, char *why, size_t size)
{
    static const char *const ends[] = {"cfg_low", "cfg_high"};
    const mar_status status = mar_params_set(o->fields, o->param->name, text, why, size);
    for (int i = 0; status == MAR_OK && i < 2; i++) set->options[cli_options_find(set, ends[i])].given = 1;
    return status;
}

static const char seed_name[] = "seed", random_word[] = "random";

/* Draws a seed from the system. It has 53 bits, so that it is the same number in JSON readers that use doubles. Returns
 * 0, or 1 with the error printed. */
static int draw_seed(option_set *set, const option *o)
{
    uint64_t drawn;
    char text[32];
    if (getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn)
        return tool_error("--seed random: the system gives no random number: %s", strerror(errno));
    snprintf(text, sizeof text, "%" PRIu64, drawn >> 11);
    mar_param_set(o->param, o->fields, text, NULL, 0);
    set->seed_is_drawn = 1;
    return 0;
}

/* Sets the option to its value: `joined` from the same argument, or `next`, the next argument or NULL. Returns the
 * number of arguments used; 0 after an error. */
static int options_give(option_set *set, option *o, const char *joined, const char *next)
{
    char text[1024];
    const char *name = cli_options_name(o), *value = is_flag(o) ? "on" : joined ? joined : next;
    if (is_flag(o) && joined) {
        tool_error("--%s: takes no value, found %s", name, joined);
    } else if (!value || (value == next && is_option(set, next))) {
        tool_error("--%s: expected %s, found %s", name, mar_param_expects(o->param, text, sizeof text),
                   value ? value : "nothing");
    } else if (strcmp(name, "cfg_interval") == 0 && strchr(value, ',')) {
        if (store_interval(set, o, value, text, sizeof text) == MAR_OK) return value == next ? 2 : 1;
        tool_error("%s", text);
    } else if (set->draws_seed && strcmp(name, seed_name) == 0 && strcmp(value, random_word) == 0) {
        if (draw_seed(set, o) != 0) return 0;
        o->given = 1;
        return value == next ? 2 : 1;
    } else if (options_store(o, value, text, sizeof text) != MAR_OK) {
        tool_error("%s%s", text, set->draws_seed && strcmp(name, seed_name) == 0 ? ", or random" : "");
    } else {
        if (strcmp(name, seed_name) == 0) set->seed_is_drawn = 0;
        o->given = 1;
        return value == next ? 2 : 1;
    }
    return 0;
}

/* Parses "--name" or "--name=value"; `next` is the next argument or NULL. Returns as give. */
static int take_option(option_set *set, const char *argument, const char *next)
{
    char name[64];
    option_name(argument + 2, name, sizeof name);
    const int at = cli_options_find(set, name);
    const char *equals = strchr(argument, '=');
    if (at >= 0) {
        option *o = &set->options[at];
        o->named = strcmp(o->param->name, name) == 0 ? NULL : options_alias(o->param->name);
        return options_give(set, o, equals ? equals + 1 : NULL, next);
    }
    unknown_option(set, name, argument);
    return 0;
}

/* Returns the first option, common ones first, whose name begins with the letter; NULL if there is none. */
static const char *options_begins_with(const option_set *set, char letter)
{
    for (const char *const *name = set->common; name && *name; name++)
        if (**name == letter) return *name;
    for (int i = 0; i < set->count; i++)
        if (*set->options[i].param->name == letter) return set->options[i].param->name;
    return NULL;
}

static int unknown_letter(const option_set *set, const char *argument, const char *at)
{
    const char letter[] = {*at, '\0'}, *advice;
    const char *rest = at > argument + 1 ? at : "", *name = *rest ? NULL : meant_by(set, letter, &advice);
    if (!name && !*rest) name = options_begins_with(set, *at);
    if (name) return tool_error("%s: unknown option of mar %s, did you mean --%s?", argument, set->command, name);
    return tool_error("%s: unknown option%s%s, see mar %s --help", argument, *rest ? " -" : "", rest, set->command);
}

/* Parses letters: flags, and one with a value behind them: "-q", "-qs7", "-o" and then the next argument. Returns as
 * give. */
static int take_letters(option_set *set, const char *argument, const char *next)
{
    char name[64];
    option_name(argument + 1, name, sizeof name);
    if (argument[2] && cli_options_find(set, name) >= 0) { /* -out does not mean -o with the value "ut" */
        tool_error("%s: unknown option, did you mean --%s?", argument, name);
        return 0;
    }
    for (const char *c = argument + 1; *c; c++) {
        const int at = find_letter(set, *c);
        if (at < 0) {
            unknown_letter(set, argument, c);
            return 0;
        }
        option *o = &set->options[at];
        if (c[1] == '=') {
            tool_error("%s: expected --%s%s", argument, o->param->name, is_flag(o) ? "" : c + 1);
            return 0;
        }
        if (!is_flag(o)) return options_give(set, o, c[1] ? c + 1 : NULL, next);
        if (!options_give(set, o, NULL, NULL)) return 0;
    }
    return 1;
}

/* Returns whether 'h' is among the letters, excluding the value of one of them. */
static int has_help_letter(const option_set *set, const char *argument)
{
    if (argument[0] != '-') return 0;
    for (const char *c = argument + 1; *c; c++) {
        const int at = find_letter(set, *c);
        if (*c == 'h') return 1;
        if (at < 0 || !is_flag(&set->options[at])) return 0;
    }
    return 0;
}

static int asks_for_help(const option_set *set, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strncmp(argv[i], "--help=", 7) == 0 || has_help_letter(set, argv[i]))
            return 1;
    return 0;
}

/* Stores an operand. Returns the operand of the next argument. */
static const operand *take_operand(const operand *o, const char *argument)
{
    if (o->count) {
        o->value[(*o->count)++] = argument;
        return o;
    }
    *o->value = argument;
    return o + 1;
}

/* Reports an argument that is neither an option nor a value; a file's ending suggests the option meant. Returns 1. */
static int unexpected_argument(const option_set *set, const char *argument)
{
    static const char *const endings[][2] = {{".png", "out"},           {".jpg", "out"},   {".webp", "out"},
                                             {".safetensors", "model"}, {".pth", "model"}, {".pt", "model"},
                                             {".npz", "images"}};
    char value[1024] = "", prompt[1024] = "";
    const char *name = set->word;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (tool_ends_with(argument, endings[i][0]) && cli_options_find(set, endings[i][1]) >= 0) name = endings[i][1];
    /* a picture where the command reads one: as --out it would be overwritten */
    if (name && strcmp(name, "out") == 0 && cli_options_find(set, "image") >= 0) name = "image";
    if (!name || cli_options_find(set, name) < 0)
        return tool_error("%s: unexpected argument, see mar %s --help", argument, set->command);
    text_append_file(value, sizeof value, name, argument);
    if (strcmp(name, "class") == 0 && cli_options_find(set, "prompt") >= 0 && !isdigit((unsigned char)*argument))
        text_append_file(prompt, sizeof prompt, "prompt", argument);
    return tool_error("%s: unexpected argument, did you mean %s%s%s?", argument, value,
                      *prompt ? ", or of a text-to-image model " : "", prompt);
}

int options_parse(option_set *set, int argc, char **argv)
{
    const operand *next = set->operands;
    int only_operands = 0;
    if (asks_for_help(set, argc, argv)) return OPTIONS_HELP; /* before a value replaces a default */
    for (int i = 1; i < argc;) {
        const char *argument = argv[i], *following = i + 1 < argc ? argv[i + 1] : NULL;
        if (!only_operands && strcmp(argument, "--") == 0) {
            only_operands = 1;
            i++;
        } else if (!only_operands && argument[0] == '-' && argument[1]) {
            const int taken =
                argument[1] == '-' ? take_option(set, argument, following) : take_letters(set, argument, following);
            if (!taken) return 1;
            i += taken;
        } else if (next && next->name) {
            next = take_operand(next, argument);
            i++;
        } else {
            return unexpected_argument(set, argument);
        }
    }
    if (next && next->name && !next->count)
        return tool_error("%s is missing, see mar %s --help", next->name, set->command);
    return OPTIONS_RUN;
}
