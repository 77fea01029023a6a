#include "tools/generate/prompt_folder.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/cli/text.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PROMPT_FILES_MAX = 1000000 };

int prompt_folder_is(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int compare_file_names(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    const int order = text_compare_names(x, y);
    return order != 0 ? order : strcmp(x, y);
}

static int add_prompt_file(prompt_folder *f, const char *path, const char *name)
{
    const char *dot = strrchr(name, '.');
    if (!dot || strcmp(dot, ".txt") != 0 || *name == '.')
        return tool_error("%s/%s: expected files NAME.txt in a folder of prompts, one prompt each", path, name);
    if (f->count == PROMPT_FILES_MAX)
        return tool_error("%s: has more than %d files, expected that many prompts at most", path, PROMPT_FILES_MAX);
    if ((f->count & (f->count - 1)) == 0) { /* full: its room is the next power of two */
        char **names = realloc(f->names, 2 * (size_t)(f->count + 1) * sizeof *names);
        if (!names) return tool_error("%s: out of memory for its names", path);
        f->names = names;
    }
    f->names[f->count] = strdup(name);
    if (!f->names[f->count]) return tool_error("%s: out of memory for its names", path);
    f->count++;
    return 0;
}

int prompt_folder_list(const char *path, prompt_folder *out)
{
    int failed = 0;
    *out = (prompt_folder){0};
    DIR *directory = opendir(path);
    if (!directory) return tool_error("%s: cannot read: %s", path, strerror(errno));
    errno = 0;
    for (const struct dirent *e; !failed && (e = readdir(directory)); errno = 0)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) failed = add_prompt_file(out, path, e->d_name);
    if (!failed && errno) failed = tool_error("%s: cannot read: %s", path, strerror(errno));
    closedir(directory);
    if (!failed && out->count == 0) failed = tool_error("%s: has no file, expected prompts, a NAME.txt each", path);
    if (failed)
        prompt_folder_free(out);
    else
        qsort(out->names, (size_t)out->count, sizeof *out->names, compare_file_names);
    return failed;
}

void prompt_folder_free(prompt_folder *f)
{
    for (int i = 0; i < f->count; i++) free(f->names[i]);
    free(f->names);
    *f = (prompt_folder){0};
}
