/* Writes the manual from its template: mar_manual TEMPLATE OUT, at build time. A line "@generate@" becomes the options
 * of mar generate alone, "@shared@" those of every run. */
#include "tools/cli/command.h"
#include "tools/cli/subcommands.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Writes the line, or the list that replaces it, to standard output. Returns 0, or 1 with the error printed. */
static int manual_write_line(const char *line)
{
    char name[32], own[] = "--help=mdoc", shared[] = "--help=mdoc-shared";
    if (sscanf(line, "@%31[a-z]@", name) != 1) return fputs(line, stdout) < 0;
    const int is_shared = strcmp(name, "shared") == 0;
    char *arguments[] = {name, is_shared ? shared : own, NULL};
    for (const tool_command *c = commands; c->name; c++)
        if (strcmp(is_shared ? "generate" : name, c->name) == 0) return c->run(2, arguments);
    return tool_error("@%s@: expected @shared@ or a command", name);
}

int main(int argc, char **argv)
{
    char line[512];
    int failed = 0;
    if (argc != 3) return tool_error("usage: mar_manual TEMPLATE OUT");
    FILE *template = fopen(argv[1], "r");
    if (!template) return tool_error("%s: %s", argv[1], strerror(errno));
    if (!freopen(argv[2], "w", stdout)) failed = tool_error("%s: %s", argv[2], strerror(errno));
    while (!failed && fgets(line, sizeof line, template)) failed = manual_write_line(line);
    if (!failed && ferror(template)) failed = tool_error("%s: %s", argv[1], strerror(errno));
    if (!failed && fflush(stdout) != 0) failed = tool_error("%s: %s", argv[2], strerror(errno));
    if (failed) remove(argv[2]); /* a part of it would pass for the manual */
    fclose(template);
    return failed;
}
