#include "tools/output.h"

#include "tools/command.h"
#include "tools/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *join(const char *directory, const char *name)
{
    char *path;
    size_t n = strlen(directory);
    if (asprintf(&path, "%s%s%s", directory, n > 0 && directory[n - 1] == '/' ? "" : "/", name) >= 0) return path;
    tool_error("%s: out of memory", directory);
    return NULL;
}

static char *copy(const char *path)
{
    char *own = strdup(path);
    if (!own) tool_error("%s: out of memory", path);
    return own;
}

/* The directory does not exist: can it be made? */
static int check_new_directory(const char *path)
{
    static const char *const pictures[] = {".jpg",  ".jpeg", ".webp", ".gif",  ".bmp",  ".ppm", ".tif",
                                           ".tiff", ".svg",  ".pdf",  ".avif", ".heic", ".jxl", NULL};
    for (int i = 0; pictures[i]; i++)
        if (tool_ends_with(path, pictures[i]))
            return tool_error("%s: pictures are written as PNG, expected a name ending in .png or a directory", path);
    char *name = copy(path);
    if (!name) return 1;
    for (size_t n = strlen(name); n > 1 && name[n - 1] == '/'; n--) name[n - 1] = '\0';
    int failed = tool_can_write(name);
    free(name);
    return failed;
}

static int cannot_look(const char *path)
{
    return tool_error("%s: cannot write there: %s", path, strerror(errno));
}

int output_writes(const output *out, const char *path)
{
    const char *name = tool_base_name(path);
    if (out->is_file) return tool_same_path(out->path, path);
    if (strcmp(name, "grid.png") != 0 && (strspn(name, "0123456789") != 6 || strcmp(name + 6, ".png") != 0)) return 0;
    char *own = join(out->path, name);
    const int same = own && tool_same_path(own, path);
    free(own);
    return same;
}

int output_check(output *out, const char *path)
{
    *out = (output){.path = path, .is_file = tool_ends_with(path, ".png")};
    if (out->is_file) return tool_can_write_as(path, ".png");
    struct stat st;
    int exists = stat(path, &st) == 0;
    if (!exists && errno != ENOENT) return cannot_look(path);
    if (!exists) return check_new_directory(path);
    if (!S_ISDIR(st.st_mode)) return tool_error("%s: is a file, expected a directory or a name ending in .png", path);
    char *probe = output_image_path(out, 0);
    int failed = !probe || tool_can_write(probe);
    free(probe);
    return failed;
}

int output_begin(output *out)
{
    if (out->is_file) return 0;
    if (mkdir(out->path, 0777) == 0) {
        out->created = 1;
        return 0;
    }
    if (errno == EEXIST) return 0;
    return tool_error("%s: cannot make the directory: %s", out->path, strerror(errno));
}

char *output_image_path(const output *out, long index)
{
    char name[32];
    if (out->is_file) return copy(out->path);
    snprintf(name, sizeof name, "%06ld.png", index);
    return join(out->path, name);
}

char *output_grid_path(const output *out)
{
    return out->is_file ? copy(out->path) : join(out->path, "grid.png");
}

void output_abandon(output *out)
{
    if (out->created) rmdir(out->path); /* fails, as it should, when finished images are in it */
}
