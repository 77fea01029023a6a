/* Output of --help and the manual for a set of options. */
#include "tools/cli/options.h"

#include "mar_methods.h"
#include "tools/cli/command.h"
#include "tools/cli/options_complete.h"
#include "tools/cli/text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    COLUMNS = 80,
    HELP_COLUMN = 27, /* column behind " --num_sampling_steps N" */
    MANUAL_COLUMNS = 78
};

/* A selection of a set's options. */
typedef enum { OWN = 0, SHARED = 1, ALL } selection;

static int is_selected(const option_set *set, int i, selection scope)
{
    const option *o = &set->options[i];
    return options_find(set, o->param->name) == o && (scope == ALL || o->shared == (int)scope);
}

/* Returns the first option of that group from number i on; -1 if there is none. */
static int next_of_group(const option_set *set, int i, const char *group, selection scope)
{
    for (; i < set->count; i++)
        if (is_selected(set, i, scope) && strcmp(set->options[i].group, group) == 0) return i;
    return -1;
}

static int begins_group(const option_set *set, int i, selection scope)
{
    return next_of_group(set, 0, set->options[i].group, scope) == i;
}

static int has_choices(const mar_param *p)
{
    return p->type == MAR_TYPE_CHOICE || p->type == MAR_TYPE_NAME;
}

/* Writes the placeholder of the value: "N", "auto|N", "FILE", "chain|N,N", "linear|constant"; "" for a flag. Returns
 * text. */
static const char *argument_of(const mar_param *p, const char *between, const char *last, char *text, size_t size)
{
    const char *number = has_choices(p) || p->type == MAR_TYPE_FLAG ? ""
                         : p->argument                              ? p->argument
                         : p->type == MAR_TYPE_FLOAT                ? "X"
                                                                    : "N";
    size_t used = 0;
    if (!p->choices) return number;
    for (int i = 0; p->choices[i] && used < size; i++)
        if (*p->choices[i]) /* a value without a name is not one to give */
            used += (size_t)snprintf(text + used, size - used, "%s%s", i ? between : "", p->choices[i]);
    if (*number && used < size) snprintf(text + used, size - used, "%s%s", last, number);
    return text;
}

/* Writes the default value; "" if there is none, or if only the help can describe it. Returns text. */
static const char *default_of(const option *o, char *text, size_t size)
{
    const mar_param *p = o->param;
    if (p->type == MAR_TYPE_FLAG || p->type == MAR_TYPE_MODEL) return "";
    mar_param_text(p, o->fields, text, size);
    const int is_named = p->choices != NULL && !isdigit((unsigned char)*text);
    return p->type == MAR_TYPE_INT && !is_named && atof(text) < p->min ? "" : text; /* below the range: "not given" */
}

/* Prints a word behind a space or a line break. Returns the column behind it. */
static int print_word(const char *word, int length, int column, int first_column, int last_column)
{
    if (column > first_column && column + 1 + length > last_column)
        column = first_column, printf("\n%*s", first_column, "");
    else if (column > first_column)
        column++, putchar(' ');
    printf("%.*s", length, word);
    return column + length;
}

/* Prints the words from `first_column` on, broken into lines, and ends the last. */
static void print_words(const char *words, int first_column)
{
    int column = first_column;
    for (const char *word = words; *word; word += strspn(word, " ")) {
        const int length = (int)strcspn(word, " ");
        column = print_word(word, length, column, first_column, COLUMNS);
        word += length;
    }
    putchar('\n');
}

/* --- --help ----------------------------------------------------------------------------------------------- */

/* Prints, from `column` on, the first line of `help` and `value` in brackets. */
static void print_explanation(int column, const char *help, const char *value)
{
    char text[1024];
    if (column > HELP_COLUMN - 2) {
        putchar('\n');
        column = 0;
    }
    printf("%*s", HELP_COLUMN - column, "");
    snprintf(text, sizeof text, *value ? "%.*s [%s]" : "%.*s", (int)strcspn(help, "\n"), help, value);
    print_words(text, HELP_COLUMN);
}

/* Returns whether the first line of the help explains 0, as in "0: one per core". */
static int explains_zero(const char *help)
{
    const char *zero = strstr(help, "0:");
    return zero && zero < help + strcspn(help, "\n") && (zero == help || zero[-1] == ' ');
}

static void print_option(const option *o)
{
    char text[256];
    const char *help = o->param->help, *argument = o->param->argument; /* replaces choices too long for a line */
    if (!argument || !has_choices(o->param)) argument = argument_of(o->param, "|", "|", text, sizeof text);
    const char letter = options_letter(o->param->name), *before = letter ? (char[]){'-', letter, ',', ' ', 0} : "";
    const char *alias = options_alias(o->param->name);
    const int column = printf("  %s--%s%s%s%s%s", before, o->param->name, alias ? ", --" : "", alias ? alias : "",
                              *argument ? " " : "", argument);
    const char *value = default_of(o, text, sizeof text);
    print_explanation(column, help, strcmp(value, "0") == 0 && explains_zero(help) ? "" : value);
}

/* Prints the options of --help: the common ones, all, or the groups that match a word. */
static const char all[] = "all";

/* Returns whether the word is in the group's heading, in either case, or names one of its options. */
static int is_about(const option_set *set, const char *group, const char *word)
{
    for (const char *at = group; *at; at++)
        if (strncasecmp(at, word, strlen(word)) == 0) return 1;
    const option *o = options_find(set, word);
    return o && strcmp(o->group, group) == 0;
}

/* Prints the groups that match the word, each under its heading. Returns their number. */
static int print_groups(const option_set *set, const char *word)
{
    int n = 0;
    for (int first = 0; first < set->count; first++) {
        const char *group = set->options[first].group;
        if (!begins_group(set, first, ALL) || (strcmp(word, all) != 0 && !is_about(set, group, word))) continue;
        printf("%s%s:\n", n++ || strcmp(word, all) == 0 ? "\n" : "", group);
        for (int i = first; i >= 0; i = next_of_group(set, i + 1, group, ALL)) print_option(&set->options[i]);
    }
    return n;
}

/* Writes "Images, Model, ... or Messages", each heading up to its comma. Returns text. */
static const char *list_groups(const option_set *set, char *text, size_t size)
{
    *text = '\0';
    for (int i = 0; i < set->count; i++) {
        const char *group = set->options[i].group;
        if (begins_group(set, i, ALL))
            text_append(text, size, "%s%.*s", *text ? ", " : "", (int)strcspn(group, ","), group);
    }
    return text;
}

static void print_common(const option_set *set)
{
    char groups[512], text[700];
    putchar('\n');
    for (const char *const *name = set->common; *name; name++) print_option(options_find(set, *name));
    snprintf(text, sizeof text, "--help all has every option, --help GROUP those of a group: %s.",
             list_groups(set, groups, sizeof groups));
    putchar('\n');
    print_words(text, 0);
}

/* Prints the page; `word` is the word behind --help, or NULL. Returns the exit status. */
static int options_help_print_help(const option_set *set, const char *word)
{
    char groups[512];
    if (word && strcmp(word, all) != 0) {
        if (print_groups(set, word) > 0) return 0;
        if (set->common)
            return tool_error("--help %s: expected all, an option's name, or a word of a group: %s", word,
                              list_groups(set, groups, sizeof groups));
    }
    fputs(set->about, stdout);
    for (const operand *o = set->operands; o && o->name; o++) {
        if (o == set->operands) putchar('\n');
        print_explanation(printf(o->count ? "  [%s...]" : "  %s", o->name), o->help, "");
    }
    if (set->common && !word)
        print_common(set);
    else
        print_groups(set, all);
    printf("\n%s", set->example);
    return 0;
}

/* Returns the word behind --help or -h, or joined to it; NULL if there is none. */
static const char *help_word(int argc, char **argv)
{
    static const char joined[] = "--help=";
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], joined, strlen(joined)) == 0) return argv[i] + strlen(joined);
        if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
        return i + 1 < argc && argv[i + 1][0] != '-' ? argv[i + 1] : NULL;
    }
    return NULL;
}

/* --- the manual ------------------------------------------------------------------------------------------- */

static int ends_sentence(const char *word, int length)
{
    return word[length - 1] == '.' || (length > 1 && word[length - 1] == ')' && word[length - 2] == '.');
}

/* Writes text as mdoc: each sentence begins a line, and a leading dot or apostrophe is escaped. The first sentence is
 * the help's first line, without capital and full stop. */
static void write_sentences(const char *help)
{
    char escaped[512];
    const char *line_end = help + strcspn(help, "\n");
    int column = 0;
    for (const char *word = help; *word; word += strspn(word, " \n")) {
        const int length = (int)strcspn(word, " \n"), last = word + length == line_end;
        int n = 0;
        if (*word == '.' || *word == '\'') n += sprintf(escaped, "\\&");
        for (int i = 0; i < length && n < (int)sizeof escaped - 4; i++) {
            if (word[i] == '\\')
                n += sprintf(escaped + n, "\\e");
            else if (i < 2 && strncmp(word, "--", 2) == 0) /* an option: no hyphenation */
                n += sprintf(escaped + n, "\\-");
            else
                n += sprintf(escaped + n, "%c", word == help && i == 0 ? toupper(*word) : word[i]);
        }
        if (last) n += sprintf(escaped + n, ".");
        column = print_word(escaped, n, column, 0, MANUAL_COLUMNS);
        if (ends_sentence(escaped, n)) putchar('\n'), column = 0;
        word += length;
    }
    if (column) putchar('\n');
}

/* Writes "A number from 0 to 100; the default is 2.9." */
static void write_range(const option *o)
{
    char expects[256], text[256];
    const mar_param *p = o->param;
    const char *value = default_of(o, text, sizeof text);
    if (p->type == MAR_TYPE_INT || p->type == MAR_TYPE_UINT64 || p->type == MAR_TYPE_FLOAT) {
        mar_param_expects(p, expects, sizeof expects);
        if (p->choices)
            printf("It is %s", expects); /* the first word is a value */
        else
            printf("%c%s", toupper(expects[0]), expects + 1);
        if (*value) printf("; the default is %s", value);
        puts(".");
    } else if (*value) {
        printf("The default is %s.\n", value);
    }
}

static void write_item(const option *o)
{
    char text[256];
    const char *argument = argument_of(o->param, " | ", " | Ar ", text, sizeof text);
    const char *before = o->param->choices ? " Cm " : *argument ? " Ar " : "";
    fputs(".It ", stdout);
    if (options_letter(o->param->name)) printf("Fl %c , ", options_letter(o->param->name));
    if (options_alias(o->param->name)) printf("Fl -%s , ", options_alias(o->param->name));
    printf("Fl -%s%s%s\n", o->param->name, before, argument);
    write_sentences(o->param->help);
    write_range(o);
}

/* Writes the manual's list, as mdoc: operands and options that are not shared, or with `shared` the shared ones. */
static void write_manual(const option_set *set, int shared)
{
    static const char list[] = ".Bl -tag -width Ds";
    const selection scope = shared ? SHARED : OWN;
    if (!shared) printf("%s\n", list);
    for (const operand *o = set->operands; !shared && o && o->name; o++) {
        printf(o->count ? ".It Op Ar %s ...\n" : ".It Ar %s\n", o->name);
        write_sentences(o->help);
    }
    for (int first = 0; first < set->count; first++) {
        const char *group = set->options[first].group;
        if (!begins_group(set, first, scope)) continue;
        if (shared) printf(".Pp\n.Sy %s\n%s\n", group, list);
        for (int i = first; i >= 0; i = next_of_group(set, i + 1, group, scope)) write_item(&set->options[i]);
        if (shared) puts(".El");
    }
    if (!shared) puts(".El");
}

/* --- all --------------------------------------------------------------------------------------------------- */

static const char completion[] = "completion-";

int options_read(option_set *set, int argc, char **argv)
{
    const int status = options_parse(set, argc, argv);
    if (status != OPTIONS_HELP) return status;
    const char *word = help_word(argc, argv);
    const int shared = word && strcmp(word, "mdoc-shared") == 0;
    if (word && strncmp(word, completion, strlen(completion)) == 0) {
        options_complete(set, word + strlen(completion));
        return 0;
    }
    if (!shared && (!word || strcmp(word, "mdoc") != 0)) return options_help_print_help(set, word);
    write_manual(set, shared);
    return 0;
}
