#include "tools/cli/options_complete.h"

#include "mar_methods.h"

#include "tools/cli/run_options.h"

#include <stdio.h>
#include <string.h>

/* What completes a value. */
typedef enum { NOTHING, FILES, DIRECTORIES } paths_kind;

/* Returns the paths that a placeholder such as "FILE.npz" stands for. */
static paths_kind paths_of(const char *argument)
{
    static const char *const files[] = {"FILE", "WHERE", "WHAT", "RUN", "IN", "OUT", "IMAGES"};
    const size_t n = strcspn(argument, ".");
    if (strcmp(argument, "DIR") == 0) return DIRECTORIES;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (strlen(files[i]) == n && strncmp(files[i], argument, n) == 0) return FILES;
    return NOTHING;
}

static paths_kind paths_of_option(const mar_param *p)
{
    return p->argument ? paths_of(p->argument) : NOTHING;
}

/* Returns word i that the option's value may be; NULL after the last. */
static const char *word_of(const option_set *set, const mar_param *p, int i)
{
    if (strcmp(p->name, "seed") == 0 && set->draws_seed) return i == 0 ? "random" : NULL;
    if (p->choices) return p->choices[i];
    return run_built_in_of(p->name, i);
}

/* Writes the words in one line, separated by spaces. Returns their number. */
static int put_words(const option_set *set, const mar_param *p)
{
    int i = 0;
    for (const char *word; (word = word_of(set, p, i)); i++)
        if (*word) printf("%s%s", i ? " " : "", word);
    return i;
}

/* Writes the values of an operand such as "bash|zsh", separated by spaces, between `before` and `behind`. Returns
 * whether it has any. */
static int put_values(const char *name, const char *before, const char *behind)
{
    if (!strchr(name, '|')) return 0;
    fputs(before, stdout);
    for (; *name; name++) putchar(*name == '|' ? ' ' : *name);
    fputs(behind, stdout);
    return 1;
}

/* Writes text[0..n) for a quoted string: a backslash before the bytes in `special`, and an apostrophe as the shell
 * wants it there. */
static void put_escaped(const char *text, size_t n, const char *special, const char *apostrophe)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\'')
            fputs(apostrophe, stdout);
        else
            printf("%s%c", strchr(special, text[i]) ? "\\" : "", text[i]);
    }
}

void complete_zsh(const char *text)
{
    put_escaped(text, strcspn(text, "\n"), "[]\\", "'\\''");
}

void complete_fish(const char *text)
{
    put_escaped(text, strcspn(text, "\n"), "\\", "\\'");
}

/* Returns whether option i is to be completed: the first of its name. */
static int is_first(const option_set *set, int i)
{
    return options_find(set, set->options[i].param->name) == &set->options[i];
}

static const char *placeholder(const mar_param *p)
{
    return p->argument ? p->argument : p->choices ? "value" : p->type == MAR_TYPE_FLOAT ? "X" : "N";
}

/* --- bash --------------------------------------------------------------------------------------------------------- */

static const char *const kinds[] = {[NOTHING] = "none", [FILES] = "file", [DIRECTORIES] = "directory"};

static void put_bash_option(const option_set *set, const mar_param *p)
{
    const char letter = options_letter(p->name);
    if (p->type == MAR_TYPE_FLAG) return;
    printf("        --%s", p->name);
    if (letter) printf(" | -%c", letter);
    if (options_alias(p->name)) printf(" | --%s", options_alias(p->name));
    printf(") kind=%s", kinds[paths_of_option(p)]);
    if (word_of(set, p, 0)) {
        printf(" words='");
        put_words(set, p);
        putchar('\'');
    }
    puts(" ;;");
}

static void options_complete_put_bash(const option_set *set)
{
    const operand *last = set->operands;
    printf("    1:%s)\n        options='--help", set->command);
    for (int i = 0; i < set->count; i++)
        if (is_first(set, i)) {
            const char *name = set->options[i].param->name, *alias = options_alias(name);
            printf(" --%s%s%s", name, alias ? " --" : "", alias ? alias : "");
        }
    for (int i = 0; set->separators && set->separators[i]; i++) printf(" %s", set->separators[i]);
    puts("'\n        case $prev in\n        --help) kind=none words=all ;;");
    for (int i = 0; i < set->count; i++)
        if (is_first(set, i)) put_bash_option(set, set->options[i].param);
    if (last && last->name) {
        printf("        *) kind=%s", kinds[paths_of(last->name)]);
        put_values(last->name, " words='", "'");
        puts(" ;;");
    }
    puts("        esac\n        ;;");
}

/* --- zsh ---------------------------------------------------------------------------------------------------------- */

/* Writes what completes a value: ":FILE:_files". */
static void put_zsh_value(const option_set *set, const mar_param *p)
{
    static const char *const actions[] = {[NOTHING] = " ", [FILES] = "_files", [DIRECTORIES] = "_files -/"};
    const paths_kind paths = paths_of_option(p);
    putchar(':');
    put_escaped(placeholder(p), strlen(placeholder(p)), ":\\", "'\\''");
    putchar(':');
    if (!word_of(set, p, 0)) {
        fputs(actions[paths], stdout);
        return;
    }
    fputs(paths == NOTHING ? "(" : " _mar_words_or_files ", stdout);
    put_words(set, p);
    if (paths == NOTHING) putchar(')');
}

static void put_zsh_option(const option_set *set, const mar_param *p)
{
    const char letter = options_letter(p->name);
    const int is_flag = p->type == MAR_TYPE_FLAG;
    const char *alias = options_alias(p->name), *equals = is_flag ? "" : "=";
    fputs(" \\\n        '*'", stdout);
    if (letter) printf("{-%c%s,", letter, is_flag ? "" : "+");
    if (alias) printf("{--%s%s,", alias, equals);
    printf("--%s%s%s'[", p->name, equals, letter || alias ? "}" : "");
    complete_zsh(p->help);
    putchar(']');
    if (!is_flag) put_zsh_value(set, p);
    putchar('\'');
}

static void options_complete_put_zsh(const option_set *set)
{
    printf("_mar_%s()\n{\n    _arguments -s :", set->command);
    fputs(" \\\n        '(- *)'{-h,--help}'[describe the options]:which:(all)'", stdout);
    for (int i = 0; i < set->count; i++)
        if (is_first(set, i)) put_zsh_option(set, set->options[i].param);
    for (int i = 0; set->separators && set->separators[i]; i++)
        printf(" \\\n        '*%s[begin the options of another run]'", set->separators[i]);
    for (const operand *o = set->operands; o && o->name; o++) {
        printf(" \\\n        '%s:%s:", o->count ? "*" : "", strchr(o->name, '|') ? "value" : o->name);
        if (!put_values(o->name, "(", ")")) fputs(paths_of(o->name) == FILES ? "_files" : " ", stdout);
        putchar('\'');
    }
    puts("\n}\n");
}

/* --- fish --------------------------------------------------------------------------------------------------------- */

static void put_fish_begin(const option_set *set)
{
    printf("complete -c mar -n '__mar_is %s'", set->command);
}

static void put_fish_option(const option_set *set, const mar_param *p)
{
    const char letter = options_letter(p->name);
    put_fish_begin(set);
    printf(" -l %s", p->name);
    if (letter) printf(" -s %c", letter);
    if (options_alias(p->name)) printf(" -l %s", options_alias(p->name));
    if (p->type != MAR_TYPE_FLAG) {
        const paths_kind paths = paths_of_option(p);
        fputs(paths == FILES ? " -r -F" : " -x", stdout);
        if (paths == DIRECTORIES) fputs(" -a '(__fish_complete_directories)'", stdout);
        if (word_of(set, p, 0)) {
            fputs(" -a '", stdout);
            put_words(set, p);
            putchar('\'');
        }
    }
    fputs(" -d '", stdout);
    complete_fish(p->help);
    puts("'");
}

static void options_complete_put_fish(const option_set *set)
{
    put_fish_begin(set);
    puts(" -l help -s h -d 'describe the options'");
    for (int i = 0; i < set->count; i++)
        if (is_first(set, i)) put_fish_option(set, set->options[i].param);
    for (int i = 0; set->separators && set->separators[i]; i++) {
        put_fish_begin(set);
        printf(" -l %s -d 'begin the options of another run'\n", set->separators[i] + 2);
    }
    const operand *o = set->operands;
    if (!o || !o->name || (!strchr(o->name, '|') && paths_of(o->name) == NOTHING)) return;
    put_fish_begin(set);
    if (!put_values(o->name, " -a '", "'")) fputs(" -F", stdout);
    putchar('\n');
}

/* --- all ---------------------------------------------------------------------------------------------------------- */

void options_complete(const option_set *set, const char *shell)
{
    if (strcmp(shell, "bash") == 0) options_complete_put_bash(set);
    if (strcmp(shell, "zsh") == 0) options_complete_put_zsh(set);
    if (strcmp(shell, "fish") == 0) options_complete_put_fish(set);
}
