/* mar completion: writes the completion script of a shell, from the tables of options. */
#include "tools/cli/command.h"
#include "tools/cli/options_complete.h"
#include "tools/cli/subcommands.h"
#include "tools/cli/text.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const char *shell;
    operand operands[2]; /* the shell; ends with a NULL name */
} completion_options;

static const tool_command *listed; /* the commands that the scripts complete */

void completion_set_commands(const tool_command *list)
{
    listed = list;
}

static const char *const shells[] = {"bash", "zsh", "fish", NULL};

/* Sets the defaults, and adds the options that set the fields. */
static void completion_set_up(completion_options *o, option_set *set)
{
    *o = (completion_options){0};
    o->operands[0] = (operand){"bash|zsh|fish", &o->shell, "the shell", NULL};
    *set = (option_set){
        .command = "completion",
        .about = "usage: mar completion bash|zsh|fish\n"
                 "\n"
                 "Writes a script that completes commands, options and their values in that\n"
                 "shell. An installed mar has it where the shell looks for it.\n",
        .example = "example: source <(mar completion bash)\n"
                   "         mar completion zsh >~/.zfunc/_mar\n"
                   "         mar completion fish >~/.config/fish/completions/mar.fish\n",
        .operands = o->operands,
    };
}

static const char bash_begin[] =
    "# bash completion of mar, written by mar completion bash\n"
    "_mar()\n"
    "{\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} options= words= kind=\n"
    "    COMPREPLY=()\n"
    "    if [[ $cur == = ]]; then # --name=value is three words\n"
    "        cur=\n"
    "    elif [[ $prev == = && COMP_CWORD -gt 2 ]]; then\n"
    "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
    "    fi\n"
    "    case $((COMP_CWORD > 1)):${COMP_WORDS[1]} in\n",
                  bash_end[] =
                      "    esac\n"
                      "    if [[ $cur == -* ]]; then\n"
                      "        words=$options kind=none\n"
                      "    elif [[ -z $kind$words ]]; then\n"
                      "        words=$options\n"
                      "    fi\n"
                      "    mapfile -t COMPREPLY < <(\n"
                      "        compgen -W \"$words\" -- \"$cur\"\n"
                      "        if [[ $kind == file ]]; then compgen -f -- \"$cur\"; fi\n"
                      "        if [[ $kind == directory ]]; then compgen -d -- \"$cur\"; fi\n"
                      "    )\n"
                      "    if [[ $kind == file || $kind == directory ]]; then compopt -o filenames 2>/dev/null; fi\n"
                      "}\n"
                      "complete -F _mar mar\n";

static const char zsh_begin[] = "#compdef mar\n"
                                "# zsh completion of mar, written by mar completion zsh\n"
                                "_mar_words_or_files()\n"
                                "{\n"
                                "    _alternative \"words:built in:($*)\" files:file:_files\n"
                                "}\n\n",
                  zsh_end[] = "_mar()\n"
                              "{\n"
                              "    local curcontext=$curcontext state line\n"
                              "    _arguments -C '(- *)'{-h,--help}'[describe the commands]' \\\n"
                              "        '(- *)'{-V,--version}'[print the version]' \\\n"
                              "        ':command:_mar_commands' '*::options:->options'\n"
                              "    [[ $state == options ]] || return\n"
                              "    curcontext=${curcontext%:*:*}:mar-$words[1]:\n"
                              "    if (( $+functions[_mar_$words[1]] )); then _mar_$words[1]; fi\n"
                              "}\n"
                              "\n"
                              "if [[ $funcstack[1] == _mar ]]; then _mar \"$@\"; else compdef _mar mar; fi\n";

static const char fish_begin[] = "# fish completion of mar, written by mar completion fish\n"
                                 "function __mar_is\n"
                                 "    set -l words (commandline -opc)\n"
                                 "    test (count $words) -gt 1; and test $words[2] = $argv[1]\n"
                                 "end\n"
                                 "function __mar_begins\n"
                                 "    test (count (commandline -opc)) -eq 1\n"
                                 "end\n"
                                 "complete -c mar -f\n"
                                 "complete -c mar -n __mar_begins -l help -s h -d 'describe the commands'\n"
                                 "complete -c mar -n __mar_begins -l version -s V -d 'print the version'\n";

/* Writes "generate inspect ..." */
static void put_names(void)
{
    for (const tool_command *c = listed; c->name; c++) printf("%s%s", c == listed ? "" : " ", c->name);
}

/* Writes the part of each command, by its own table. Returns 0, or 1 with the error printed. */
static int put_parts(const char *shell)
{
    char name[32], ask[32];
    snprintf(ask, sizeof ask, "--help=completion-%s", shell);
    for (const tool_command *c = listed; c->name; c++) {
        snprintf(name, sizeof name, "%s", c->name);
        if (c->run(2, (char *[]){name, ask, NULL}) != 0) return 1;
    }
    return 0;
}

static int completion_put_bash(void)
{
    fputs(bash_begin, stdout);
    fputs("    0:*) kind=none words='", stdout);
    put_names();
    fputs(" help' options='--help --version' ;;\n    1:help)\n        words='", stdout);
    put_names();
    puts("' ;;");
    if (put_parts("bash") != 0) return 1;
    fputs(bash_end, stdout);
    return 0;
}

static int completion_put_zsh(void)
{
    fputs(zsh_begin, stdout);
    if (put_parts("zsh") != 0) return 1;
    fputs("_mar_commands()\n{\n    local -a list=(\n", stdout);
    for (const tool_command *c = listed; c->name; c++) {
        printf("        '%s:", c->name);
        complete_zsh(c->about);
        puts("'");
    }
    fputs("        'help:describe the options of a command'\n    )\n    _describe command list\n}\n\n"
          "_mar_help()\n{\n    _arguments ':command:_mar_commands'\n}\n\n",
          stdout);
    fputs(zsh_end, stdout);
    return 0;
}

static int completion_put_fish(void)
{
    fputs(fish_begin, stdout);
    for (const tool_command *c = listed; c->name; c++) {
        printf("complete -c mar -n __mar_begins -a %s -d '", c->name);
        complete_fish(c->about);
        puts("'");
    }
    fputs("complete -c mar -n __mar_begins -a help -d 'describe the options of a command'\n"
          "complete -c mar -n '__mar_is help' -a '",
          stdout);
    put_names();
    puts("'");
    return put_parts("fish");
}

int cmd_completion(int argc, char **argv)
{
    completion_options o;
    option_set set;
    char list[64];
    completion_set_up(&o, &set);
    const int status = options_read(&set, argc, argv);
    if (status != OPTIONS_RUN) return status;
    if (strcmp(o.shell, "bash") == 0) return completion_put_bash();
    if (strcmp(o.shell, "zsh") == 0) return completion_put_zsh();
    if (strcmp(o.shell, "fish") == 0) return completion_put_fish();
    return tool_error("%s: unknown shell, expected %s", o.shell, text_list(shells, list, sizeof list));
}
