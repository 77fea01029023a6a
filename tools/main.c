/* mar - the command: finds the subcommand and runs it. */
#include "tools/command.h"
#include "tools/suggest.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static const char help[] = //
    "mar - images from masked autoregressive models, on an NVIDIA GPU or a plain CPU\n"
    "\n"
    "usage: mar COMMAND [OPTIONS]     (mar COMMAND --help says more)\n"
    "\n"
    "  generate   make images of given classes and write them as PNG\n"
    "  inspect    say what a checkpoint contains and what is wrong with it\n"
    "  convert    write a checkpoint as safetensors: f32, bf16 or f16\n"
    "  bench      measure seconds per image and where they go\n"
    "  methods    list the ways to be faster: parameters, source, whether exact\n"
    "  fidelity   compare a faster run with a reference: speed, distance, a page\n"
    "\n"
    "  --help     this page\n"
    "  --version  the version\n"
    "\n"
    "example: mar generate --out digits.png\n"
    "         40 handwritten digits from the demo model that is built in\n";

static int unknown_command(const char *word)
{
    const char *names[16] = {0};
    for (int i = 0; commands[i].name && i < 15; i++) names[i] = commands[i].name;
    const char *nearest = suggest_nearest(word, names);
    if (nearest) return tool_error("%s: unknown command, did you mean mar %s?", word, nearest);
    return tool_error("%s: unknown command, expected generate, inspect, convert, bench, methods or fidelity", word);
}

static int run(int argc, char **argv)
{
    char dash_help[] = "--help";
    char *help_argv[] = {NULL, NULL, dash_help, NULL};
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        fputs(help, stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("mar %s\n", mar_version());
        return 0;
    }
    if (strcmp(argv[1], "help") == 0) { /* mar help generate */
        if (argc < 3) return run(1, argv);
        help_argv[1] = argv[2];
        argv = help_argv; /* mar generate --help */
        argc = 3;
    }
    for (const command *c = commands; c->name; c++)
        if (strcmp(argv[1], c->name) == 0) return c->run(argc - 1, argv + 1);
    return unknown_command(argv[1]);
}

int main(int argc, char **argv)
{
    signal(SIGXFSZ, SIG_IGN); /* a file over the size limit is an error to report, not a death */
    int status = run(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        int reason = errno;
        if (status == 0) status = tool_error("standard output: cannot write: %s", strerror(reason));
    }
    return status;
}
