/* Writes the manual from its template: mar_manual TEMPLATE OUT, at build time. A line "@generate@" becomes the options
 * of mar generate alone, "@shared@" those of every run. */
#include "tools/cli/command.h"
#include "tools/commands.h"
#include "tools/cli/file.h"
#include "tools/cli/run_options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Writes the line, or the list that replaces it. Returns 0, or 1 with the error printed. */
static int write_line(const char *line, FILE *out)
{
    char name[32];
    if (sscanf(line, "@%31[a-z]@", name) != 1) {
        fputs(line, out);
        return 0;
    }
    if (strcmp(name, "shared") == 0) {
        run_options_manual(out);
        return 0;
    }
    for (const command *c = commands; c->name; c++)
        if (strcmp(name, c->name) == 0) {
            c->manual(out);
            return 0;
        }
    return tool_error("@%s@: expected @shared@ or a command", name);
}

/* Writes the manual to memory, then to the file. */
static int write_manual(FILE *template, const char *path)
{
    char line[512], *text = NULL;
    size_t size = 0;
    int failed = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) return tool_error("%s: out of memory for the manual", path);
    while (!failed && fgets(line, sizeof line, template)) failed = write_line(line, out);
    if (!failed && ferror(template)) failed = tool_error("the template: %s", strerror(errno));
    if (fclose(out) != 0 && !failed) failed = tool_error("%s: out of memory for the manual", path);
    if (!failed) failed = tool_write_file(path, text, size);
    free(text);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc != 3) return tool_error("usage: mar_manual TEMPLATE OUT");
    FILE *template = fopen(argv[1], "r");
    if (!template) return tool_error("%s: %s", argv[1], strerror(errno));
    const int status = write_manual(template, argv[2]);
    fclose(template);
    return status;
}
