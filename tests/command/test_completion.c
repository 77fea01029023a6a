/* mar completion: the scripts complete what the tables of options have, in the shells themselves. A shell that is
 * missing is left out. */
#include "tests/support/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Words of a command line, the last to be completed, and what completes it: lines in any order. */
static const struct {
    const char *line, *completions;
} cases[] = {
    {"mar gen", "generate"},
    {"mar help co", "completion convert"},
    {"mar completion ", "bash fish zsh"},
    {"mar generate --cfg_s", "--cfg_schedule"},
    {"mar generate --num 3 --qu", "--quality --quiet"},
    {"mar generate --cfg_schedule ", "auto constant linear"},
    {"mar generate --spec path --temperature 1 --dtype b", "bf16"},
    {"mar generate --format=j", "jpeg"},
    {"mar generate --vae demo", "demo demo-discrete demo-harmon demo-mgpt demo-nextstep demo-sphere demonstration"},
    {"mar generate --draft demo-discrete-e", "demo-discrete-eagle"},
    {"mar generate --seed ", "random"},
    {"mar generate -s r", "random"},
    {"mar bench --seed ", ""},
    {"mar generate -o a", "a_directory a_file.png"},
    {"mar generate --store a", "a_directory"},
    {"mar generate --num ", ""},
    {"mar inspect --heads 12 a_f", "a_file.png"},
    {"mar classes a", ""},
    {"mar fidelity --head_spec 8 --versus --head_spec 16 --ag", "--against"},
    {"mar methods --name dem", ""},
};

static int compare_lines(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Returns the different lines of the text, sorted, with spaces between. The caller frees it. */
static char *sorted(const char *text)
{
    char *copy = strdup(text), *lines[256], *joined = calloc(strlen(text) + 2, 1), *rest = copy;
    size_t n = 0;
    for (char *line; (line = strsep(&rest, "\n"));)
        if (*line && n < LENGTH(lines)) lines[n++] = line;
    qsort(lines, n, sizeof *lines, compare_lines);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(lines[i], lines[i - 1]) != 0) strcat(strcat(joined, *joined ? " " : ""), lines[i]);
    free(copy);
    return joined;
}

static int has_shell(const char *shell)
{
    char line[64];
    snprintf(line, sizeof line, "command -v %s >/dev/null", shell);
    command_result r = command_run("/", line);
    const int found = r.status == 0;
    command_result_free(&r);
    if (!found) print_message("no %s here: its script is not driven\n", shell);
    return found;
}

static void make_files(const char *directory)
{
    sh_ok(directory, "mkdir a_directory && touch a_file.png demonstration && "
                     "$MAR completion bash >mar.bash && $MAR completion zsh >_mar && $MAR completion fish >mar.fish");
}

/* Checks what the script prints for every case; `run` is a shell line with the words as its arguments. */
static void drive(const char *directory, const char *shell, const char *run)
{
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char line[1024];
        snprintf(line, sizeof line, "line='%s'; %s", cases[i].line, run);
        command_result r = command_run(directory, line);
        char *got = sorted(r.out);
        if (r.status != 0 || strcmp(got, cases[i].completions) != 0)
            fail_msg("%s: \"%s\": %d, \"%s\" %s, expected \"%s\"", shell, cases[i].line, r.status, got, r.err,
                     cases[i].completions);
        free(got);
        command_result_free(&r);
    }
}

COMMAND_CASE(bash)
{
    /* As readline does it, "=" is a word of its own. */
    static const char script[] = "source ./mar.bash\n"
                                 "line=$1\n"
                                 "IFS=' ' read -ra COMP_WORDS <<<\"${line//=/ = }\"\n"
                                 "[[ $line == *' ' ]] && COMP_WORDS+=('')\n"
                                 "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
                                 "[[ $(complete -p mar) == 'complete -F _mar mar' ]] || exit 1\n"
                                 "_mar\n"
                                 "printf '%s\\n' \"${COMPREPLY[@]}\"\n";
    if (!has_shell("bash")) return;
    make_files(*state);
    write_whole_file(*state, "drive.bash", script, strlen(script));
    drive(*state, "bash", "bash drive.bash \"$line\"");
}

/* zsh completes in its editor only, so it runs on a terminal of its own. Each match is written to a file. */
COMMAND_CASE(zsh)
{
    static const char outer[] = "zmodload zsh/zpty\n"
                                "zpty z zsh -f -i\n"
                                "zpty -w z 'source ./inner.zsh'\n"
                                "while zpty -r z line; do [[ $line == *is_ready* ]] && break; done\n"
                                "zpty -w -n z \"$1\"$'\\t'\n"
                                "while zpty -r z line; do :; done\n",
                      inner[] =
                          "PROMPT=\n"
                          "fpath=($PWD $fpath)\n"
                          "autoload -Uz compinit\n"
                          "compinit -D -u\n"
                          "bindkey '^I' complete-word\n"
                          "zstyle ':completion:*' insert-tab false\n"
                          "leave() { exit }\n"
                          "comppostfuncs=(leave)\n"
                          "compadd() {\n"
                          "    if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\\ * ]]; then builtin compadd \"$@\"; return; fi\n"
                          "    local -a hits\n"
                          "    builtin compadd -A hits \"$@\"\n"
                          "    (( $#hits )) && print -lr -- $hits >>hits\n"
                          "    builtin compadd \"$@\"\n"
                          "}\n"
                          "print is_ready\n";
    if (!has_shell("zsh")) return;
    make_files(*state);
    write_whole_file(*state, "outer.zsh", outer, sizeof outer - 1);
    write_whole_file(*state, "inner.zsh", inner, sizeof inner - 1);
    drive(*state, "zsh", ": >hits; timeout 60 zsh -f outer.zsh \"$line\" >/dev/null && cat hits");
}

COMMAND_CASE(fish)
{
    if (!has_shell("fish")) return;
    make_files(*state);
    /* It repeats "--name=", and a directory ends with a slash. */
    drive(*state, "fish",
          "HOME=$PWD LC_ALL=C.UTF-8 fish --no-config -c 'source mar.fish; complete -C $argv[1]' \"$line\" | "
          "sed 's/\\t.*//; s/^--[a-z]*=//; s,/$,,'");
}

/* Checks that each option that mar COMMAND --help all lists is in the script of every shell. */
COMMAND_CASE(every_option)
{
    static const char script[] =
        "for shell in bash zsh fish; do\n"
        "    \"$MAR_COMMAND\" completion $shell >script.$shell || exit 1\n"
        "done\n"
        "for command in $(\"$MAR_COMMAND\" --help | sed -n 's/^  \\([a-z]\\{1,\\}\\)  .*/\\1/p'); do\n"
        "    \"$MAR_COMMAND\" $command --help all | sed -n 's/^  \\(-., \\)\\{0,1\\}--\\([a-z0-9_]*\\).*/\\2/p' |\n"
        "        sort >options\n"
        "    cat options >>all\n"
        "    sed -n \"/^    1:$command)/,/ case /s/--/\\\\n--/gp\" script.bash | sed -n "
        "'s/^--\\([a-z0-9_]*\\).*/\\1/p' |\n"
        "        sort | comm -23 options - | sed \"s/^/not in bash: $command /\"\n"
        "    sed -n \"/^_mar_$command()/,/^}/s/^ *'[*]'\\({-[^,]*,\\)*--\\([a-z0-9_]*\\).*/\\2/p\" script.zsh |\n"
        "        sort | comm -23 options - | sed \"s/^/not in zsh: $command /\"\n"
        "    sed -n \"s/.*__mar_is $command' -l \\([a-z0-9_]*\\) .*/\\1/p\" script.fish |\n"
        "        sort | comm -23 options - | sed \"s/^/not in fish: $command /\"\n"
        "done\n"
        "[ $(wc -l <all) -gt 300 ] || wc -l all\n";
    write_whole_file(*state, "script", script, strlen(script));
    command_result r = command_run(*state, "sh ./script");
    if (r.status != 0 || *r.out || *r.err) fail_msg("%d, %s%s", r.status, r.out, r.err);
    command_result_free(&r);
    static const refusal cases_refused[] = {{"completion", "bash|zsh|fish is missing, see mar completion --help"},
                                            {"completion csh", "csh: unknown shell, expected bash, zsh or fish"}};
    command_refuses(*state, cases_refused, LENGTH(cases_refused));
}
