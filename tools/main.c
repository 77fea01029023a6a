/* mar: finds the subcommand and runs it. */
#include "tools/cli/command.h"
#include "tools/cli/interruption.h"
#include "tools/cli/subcommands.h"
#include "tools/cli/suggest.h"
#include "tools/cli/text.h"
#include "tools/page/page.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static void main_print_help(void)
{
    fputs("mar - images by MAR, Harmon, NextStep-1, SphereAR, LlamaGen, Lumina-mGPT, Emu3\n"
          "\n"
          "usage: mar COMMAND [OPTIONS]     (mar COMMAND --help says more)\n"
          "\n",
          stdout);
    for (const tool_command *c = commands; c->name; c++) printf("  %-10s  %s\n", c->name, c->about);
    fputs("\n"
          "  -h, --help     this page; mar COMMAND --help all has every option of it\n"
          "  -V, --version  the version\n"
          "\n"
          "man mar explains every option, mar methods every accelerator.\n"
          "\n"
          "example: mar generate --out digits.png          40 handwritten digits\n",
          stdout);
}

static int unknown_command(const char *word)
{
    static const char *const options[] = {"--version", "-V", "--help", NULL};
    const char *names[16] = {0};
    char list[256];
    for (int i = 0; commands[i].name && i < 15; i++) names[i] = commands[i].name;
    const char *nearest = suggest_nearest(word, names);
    if (!nearest) nearest = suggest_nearest(word, options);
    if (strcmp(word, "tune") == 0) nearest = "bench --tune";
    if (nearest) return tool_error("%s: unknown command, did you mean mar %s?", word, nearest);
    return tool_error("%s: unknown command, expected %s", word, text_list(names, list, sizeof list));
}

static int main_run(int argc, char **argv)
{
    char dash_help[] = "--help";
    char *help_argv[] = {NULL, NULL, dash_help, argc > 3 ? argv[3] : NULL, NULL};
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        main_print_help();
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("mar %s\n", mar_version());
        return 0;
    }
    if (strcmp(argv[1], "help") == 0) { /* mar help generate [GROUP] */
        if (argc < 3) return main_run(1, argv);
        help_argv[1] = argv[2];
        argv = help_argv; /* mar generate --help [GROUP] */
        argc = argc > 3 ? 4 : 3;
    }
    for (const tool_command *c = commands; c->name; c++)
        if (strcmp(argv[1], c->name) == 0) return c->run(argc - 1, argv + 1);
    return unknown_command(argv[1]);
}

int main(int argc, char **argv)
{
    signal(SIGXFSZ, SIG_IGN); /* a file over the size limit is an error to report */
    interruption_ends();      /* until there is work to keep */
    page_set_command(argc, argv);
    completion_set_commands(commands);
    int status = main_run(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        int reason = errno;
        if (status == 0) status = tool_error("standard output: cannot write: %s", strerror(reason));
    }
    return status;
}
