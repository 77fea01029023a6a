/* Writes the manual from its template: a line "@generate@" becomes the options that only mar generate has, "@shared@"
 * those that every run has, both as the command knows them. Run at build time: mar_manual TEMPLATE OUT. */
#include "tools/command.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* What stands for the line, if it is one to be replaced. Returns -1 if it is not, else the status of the command. */
static int write_list(const char *line)
{
    static char own[] = "--help=manual", shared[] = "--help=manual-shared";
    char name[32];
    if (sscanf(line, "@%31[a-z]@", name) != 1) return -1;
    if (strcmp(name, "shared") == 0) return cmd_generate(2, (char *[]){name, shared, NULL});
    for (const command *c = commands; c->name; c++)
        if (strcmp(name, c->name) == 0) return c->run(2, (char *[]){name, own, NULL});
    return tool_error("@%s@: expected @shared@ or a command", name);
}

static int write_manual(FILE *template)
{
    char line[512];
    while (fgets(line, sizeof line, template)) {
        const int status = write_list(line);
        if (status > 0) return status;
        if (status < 0) fputs(line, stdout);
    }
    return fflush(stdout) != 0 || ferror(stdout) || ferror(template) ? tool_error("%s", strerror(errno)) : 0;
}

int main(int argc, char **argv)
{
    if (argc != 3) return tool_error("usage: mar_manual TEMPLATE OUT");
    FILE *template = fopen(argv[1], "r");
    if (!template) return tool_error("%s: %s", argv[1], strerror(errno));
    const int status =
        freopen(argv[2], "w", stdout) ? write_manual(template) : tool_error("%s: %s", argv[2], strerror(errno));
    fclose(template);
    return status;
}
