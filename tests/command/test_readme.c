/* The commands of README.md, docs/usage.md and docs/fast.md, pasted after demo.sh. Each must parse. Commands that need
 * only the built-in models must work. */
#include "tests/support/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUICK " --num_iter 4 --num_sampling_steps 8"

/* Copies demo.sh into the directory, without anything to install. The build makes a quick command. */
static void make_checkout(const char *directory)
{
    static const char packages[] = "need_packages() { :; }\n", cuda[] = "have_gpu() { return 1; }\n",
                      build[] = "#!/bin/sh\n"
                                "mkdir -p \"build/$1\" && to=\"build/$1/$(basename \"$2\" _command)\"\n"
                                "printf '#!/bin/sh\\nexec \"%s\" \"$@\"" QUICK "\\n' \"$MAR_COMMAND\" >\"$to\"\n"
                                "chmod +x \"$to\"\n";
    size_t size;
    char *demo = read_whole_file(".", "demo.sh", &size);
    sh_ok(directory, "mkdir 'a checkout' 'a checkout/scripts'");
    write_whole_file(directory, "a checkout/demo.sh", demo, size);
    write_whole_file(directory, "a checkout/scripts/packages.sh", packages, sizeof packages - 1);
    write_whole_file(directory, "a checkout/scripts/cuda.sh", cuda, sizeof cuda - 1);
    write_whole_file(directory, "a checkout/scripts/build.sh", build, sizeof build - 1);
    sh_ok(directory, "chmod +x 'a checkout/demo.sh' 'a checkout/scripts/build.sh'");
    free(demo);
}

/* Checks the end of demo.sh's output: the command's place, a line that puts it on the PATH, and an example. Both work
 * when pasted. */
COMMAND_CASE(demo_says_what_is_next)
{
    make_checkout(*state);
    command_result r = command_run(*state, "'a checkout/demo.sh' >said && test -s demo.png && cat said");
    if (r.status != 0) fail_msg("demo.sh: %d, %s%s", r.status, r.out, r.err);
    if (strncmp(r.err, "The first build takes minutes", 29) != 0) fail_msg("does not say at once: %s", r.err);
    const char *at = strstr(r.out, "\nThe command is ");
    if (!at || !strstr(at, "/a checkout/build/release/mar. ")) fail_msg("does not say where the command is: %s", r.out);
    if (strncmp(r.out, "wrote ", 6) != 0) fail_msg("does not begin with the picture: %s", r.out);
    command_result_free(&r);

    r = command_run(*state, "sed -n 's/^    //p' said >pasted && cat pasted && PATH=/usr/bin:/bin sh -eu pasted && "
                            "test -s digits.png");
    if (r.status != 0) fail_msg("pasted: %d, %s%s", r.status, r.out, r.err);
    char *readme = read_whole_file(".", "README.md", NULL), *line = strstr(r.out, "mar generate");
    assert_non_null(line);
    assert_non_null(strstr(r.out, "export PATH=\""));
    line[strcspn(line, "\n") + 1] = '\0';
    if (!strstr(readme, line)) fail_msg("README.md does not have the line %s", line);
    free(readme);
    command_result_free(&r);

    r = command_run(*state, "'a checkout/demo.sh' --class 3 --num 1 --json --out one.png"); /* for a program */
    assert_int_equal(r.status, 0);
    assert_true(*r.out == '{' && strchr(r.out, '\n') && !strchr(r.out, '\n')[1]);
    assert_null(strstr(r.err, "first build")); /* there is one */
    command_result_free(&r);
}

/* Reads the next command of the sh blocks from *at on, in one line and without its comment. Returns 0 at the end. */
static int next_command(char **at, char *line, size_t size)
{
    static const char begin[] = "```sh\n", end[] = "```\n";
    size_t used = 0;
    for (;;) {
        if (**at == '\n' || strncmp(*at, end, strlen(end)) == 0) {
            *at = strstr(*at, begin);
            if (!*at) return 0;
            *at += strlen(begin);
        }
        const size_t whole = strcspn(*at, "\n");
        size_t n = whole;
        for (size_t i = 0; i + 1 < whole; i++)
            if ((*at)[i] == ' ' && (*at)[i + 1] == '#') {
                n = i;
                break;
            }
        while (n && (*at)[n - 1] == ' ') n--;
        const int goes_on = n && (*at)[n - 1] == '\\';
        assert_true(used + n + 1 < size);
        memcpy(line + used, *at, n);
        used += n;
        line[used] = '\0';
        *at += whole + 1;
        if (goes_on)
            line[used - 1] = ' ';
        else if (n)
            return 1;
    }
}

/* Pastes README's Start block into a shell, in a directory without checkpoints. The demos' commands work, each with a
 * file of its own; the others lack a file only. */
COMMAND_CASE(the_start_block)
{
    static const char before[] = "All other commands work after it:\n\n```sh\n",
                      wrapper[] = "#!/bin/sh\n"
                                  "quick='" QUICK "'\n"
                                  "case \"$*\" in serve*) exec echo served >>log ;; esac\n"
                                  "\"$MAR_COMMAND\" \"$@\" $quick 2>err && exec echo \"worked: $*\" >>log\n"
                                  "grep -q 'No such file or directory' err && exec echo \"lacks: $*\" >>log\n"
                                  "exec echo \"failed: $*: $(cat err)\" >>log\n";
    char *readme = read_whole_file(".", "README.md", NULL), *from = strstr(readme, before);
    assert_non_null(from);
    from += strlen(before);
    sh_ok(*state, "mkdir -p build/release");
    write_whole_file(*state, "build/release/mar", wrapper, sizeof wrapper - 1);
    write_whole_file(*state, "pasted", from, (size_t)(strstr(from, "```\n") - from));
    sh_ok(*state, "chmod +x build/release/mar && sh pasted");
    command_result r =
        command_run(*state, "cat log; grep -q ^worked log && test $(grep -c ^served log) = 1 && ! grep ^failed log && "
                            "test -s digits.png && "
                            "! grep -o -e '--out [^ ]*' pasted | sort | uniq -d | grep . && test $(ls | wc -l) = 5");
    if (r.status != 0) fail_msg("%d, %s%s", r.status, r.out, r.err); /* build, err, log, pasted, and the output */
    command_result_free(&r);
    free(readme);
}

/* Checks that no block of a document writes a file twice. */
COMMAND_CASE(no_file_twice)
{
    static const char script[] =
        "for file in README.md docs/*.md; do\n"
        "    awk -v file=$file '/^```sh/ { split(\"\", seen); on = 1; next } /^```/ { on = 0 }\n"
        "        on { sub(/ +#.*/, \"\"); n = split($0, w, \" \"); for (i = 1; i < n; i++)\n"
        "            if (w[i] == \"--out\" && /mar (generate|edit|stats|captions)/ && seen[w[i + 1]]++) print file \": "
        "\" $0 }' "
        "$file\n"
        "done\n";
    char *source = realpath(".", NULL), line[4200];
    write_whole_file(*state, "script", script, strlen(script));
    snprintf(line, sizeof line, "script=$PWD/script; cd '%s' && sh $script", source);
    command_result r = command_run(*state, line);
    if (r.status != 0 || *r.out) fail_msg("these replace what the block has written: %s%s", r.out, r.err);
    command_result_free(&r);
    free(source);
}

/* Counts commands that worked, commands with known options, and commands that lacked only a file. */
typedef struct {
    int worked, known, lack_files;
} tally;

static void try_commands(const char *directory, const char *folder, const char *name, tally *n)
{
    char *text = read_whole_file(folder, name, NULL), *at = strstr(text, "```sh\n"), line[1024];
    for (at += strlen("```sh\n"); next_command(&at, line, sizeof line);) {
        char run[1200];
        const int makes = strncmp(line, "mar generate ", 13) == 0;
        const int is_long = strncmp(line, "mar eval", 8) == 0 || strncmp(line, "mar bench ", 10) == 0 ||
                            strncmp(line, "mar fidelity ", 13) == 0 || strncmp(line, "mar serve", 9) == 0;
        if (strncmp(line, "mar ", 4) != 0) continue;
        /* One digit is enough. A long command gets a wrong last option: it fails once all others are accepted. */
        snprintf(run, sizeof run, "$MAR %s%s", line + 4,
                 is_long                          ? " --threads -1"
                 : !makes || strstr(line, " --v") ? ""
                 : strstr(line, "--prompt")       ? " --num 1"
                 : strstr(line, "demo-discrete")  ? " --class 3 --num 1"
                                                  : " --class 3 --num 1" QUICK);
        command_result r = command_run(directory, run);
        const int lacks = r.status == 1 && strstr(r.err, "No such file or directory") != NULL;
        const int knows = r.status == 1 && strncmp(r.err, "mar: --threads -1: ", 19) == 0;
        if (is_long ? !knows : r.status != 0 && !lacks) fail_msg("%s: %s: %d, %s", name, line, r.status, r.err);
        n->worked += r.status == 0, n->known += knows, n->lack_files += lacks;
        command_result_free(&r);
    }
    free(text);
}

COMMAND_CASE(commands_of_the_documents)
{
    tally n = {0};
    try_commands(*state, ".", "README.md", &n);
    try_commands(*state, "docs", "usage.md", &n);
    try_commands(*state, "docs", "fast.md", &n);
    try_commands(*state, "docs", "serve.md", &n);
    print_message("%d commands worked, %d are known, %d need files\n", n.worked, n.known, n.lack_files);
    assert_true(n.worked >= 10 && n.known >= 10 && n.lack_files >= 5);
}
