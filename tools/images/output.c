#include "tools/images/output.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *copy(const char *path)
{
    char *own = strdup(path);
    if (!own) tool_error("%s: out of memory", path);
    return own;
}

/* Checks that the missing directory `path` can be made, at its last existing part. Returns 0, or 1. */
static int can_make(const char *path)
{
    struct stat st;
    char *name = copy(path);
    if (!name) return 1;
    for (int exists = 0; !exists;) {
        for (size_t n = strlen(name); n > 1 && name[n - 1] == '/'; n--) name[n - 1] = '\0';
        if (lstat(name, &st) == 0) {
            tool_error("%s: is a link to what is not there, expected a directory or a free name", name);
            free(name);
            return 1;
        }
        char *above = strdup(name);
        char *slash = above ? strrchr(above, '/') : NULL;
        if (slash) slash[slash == above ? 1 : 0] = '\0';
        exists = !slash || stat(above, &st) == 0 || errno != ENOENT;
        if (!exists) strcpy(name, above);
        free(above);
    }
    const int failed = tool_can_write(name);
    free(name);
    return failed;
}

static int check_new_directory(const char *path)
{
    static const char *const pictures[] = {".gif", ".bmp",  ".ppm",  ".tif", ".tiff", ".svg",
                                           ".pdf", ".avif", ".heic", ".jxl", NULL};
    for (int i = 0; pictures[i]; i++)
        if (tool_ends_with(path, pictures[i]))
            return tool_error(
                "%s: pictures are written as PNG, JPEG or WebP, expected a name ending in .png, .jpg or .webp, "
                "or a directory",
                path);
    return can_make(path);
}

/* Checks FILE.png; its directory may be missing. */
static int output_check_file(const char *path)
{
    struct stat st;
    const char *ending = strrchr(path, '.');
    char *directory = tool_directory_of(path);
    if (!directory) return tool_error("%s: out of memory", path);
    const int missing = *directory && stat(directory, &st) != 0 && errno == ENOENT;
    const int failed = missing ? can_make(directory) : tool_can_write_as(path, ending);
    free(directory);
    return failed;
}

/* Returns whether the name is that of a directory's picture. */
static int output_is_picture(const char *name)
{
    return output_is_grid(name) || output_image_index(name) >= 0;
}

int output_writes(const output *out, const char *path)
{
    const char *name = tool_base_name(path);
    if (out->is_file) return tool_same_path(out->path, path);
    if (!output_is_picture(name)) return 0;
    char *own = tool_join(out->path, name);
    const int same = own && tool_same_path(own, path);
    free(own);
    return same;
}

/* Counts the directory's pictures, and with `clears` removes them. Copies the first by name to first, char [32].
 * Returns -1 with the error printed. */
static long go_through(const output *out, int clears, char first[32])
{
    long count = 0;
    DIR *directory = opendir(out->path);
    if (!directory) return errno == ENOENT ? 0 : -tool_error("%s: cannot read: %s", out->path, strerror(errno));
    errno = 0;
    for (const struct dirent *e; (e = readdir(directory)); errno = 0) {
        if (!output_is_picture(e->d_name)) continue;
        if (count++ == 0 || strcmp(e->d_name, first) < 0) snprintf(first, 32, "%.31s", e->d_name);
        if (!clears || unlinkat(dirfd(directory), e->d_name, 0) == 0) continue;
        tool_error("%s/%s: cannot remove: %s", out->path, e->d_name, strerror(errno));
        closedir(directory);
        return -1;
    }
    if (errno) count = -tool_error("%s: cannot read: %s", out->path, strerror(errno));
    closedir(directory);
    return count;
}

int output_check_free(const output *out, int resumes)
{
    char first[32], more[40] = "";
    const long count = out->is_file ? 0 : go_through(out, 0, first);
    if (count <= 0) return count != 0;
    if (count > 1) snprintf(more, sizeof more, " and %ld more", count - 1);
    if (!tool_ends_with(first, image_format_ending(out->format))) resumes = 0;
    return tool_error("%s: has %s%s, expected %s--overwrite to replace it, or another --out", out->path, first, more,
                      resumes ? "--resume to go on with it, " : "");
}

int output_clear(const output *out)
{
    char first[32];
    return go_through(out, 1, first) < 0;
}

int output_check(output *out, const char *path, image_format format)
{
    const int is_stream = strcmp(path, "-") == 0, named = is_stream ? -1 : image_format_of(path);
    *out = (output){.path = path,
                    .is_file = is_stream || named >= 0,
                    .is_stream = is_stream,
                    .format = named >= 0 ? (image_format)named : format};
    if (image_format_lacks(out->format)) return tool_error("%s: %s", path, image_format_lacks(out->format));
    if (is_stream && isatty(STDOUT_FILENO))
        return tool_error("--out -: standard output is a terminal, expected a pipe or a file");
    if (is_stream) return 0;
    if (out->is_file) return output_check_file(path);
    struct stat st;
    int exists = stat(path, &st) == 0;
    if (!exists && errno != ENOENT) return tool_cannot_write(path);
    if (!exists) return check_new_directory(path);
    if (!S_ISDIR(st.st_mode))
        return tool_error("%s: is a file, expected a directory or a name ending in .png, .jpg or .webp", path);
    char *probe = output_image_path(out, 0);
    int failed = !probe || tool_can_write(probe);
    free(probe);
    return failed;
}

/* Makes the directory `name`, the first `length` bytes of the path, if it is missing. */
static int make_directory(output *out, const char *name, size_t length)
{
    struct stat st;
    if (mkdir(name, 0777) == 0) {
        out->made[out->made_count++] = length;
        return 0;
    }
    const int reason = errno;
    if (stat(name, &st) == 0 && S_ISDIR(st.st_mode)) return 0;
    return tool_error("%s: cannot make the directory: %s", name, strerror(reason));
}

/* Makes the directories that end at a slash, and the last one unless the path is a file's. */
static int make_directories(output *out)
{
    const size_t size = strlen(out->path);
    char *name = copy(out->path);
    out->made = malloc((size + 1) * sizeof *out->made);
    if (!out->made && name) tool_error("%s: out of memory", out->path);
    int failed = !name || !out->made;
    for (size_t n = 1; !failed && n <= size; n++) {
        if (name[n - 1] == '/' || (n < size ? name[n] != '/' : out->is_file)) continue;
        const char rest = name[n];
        name[n] = '\0';
        failed = make_directory(out, name, n);
        name[n] = rest;
    }
    free(name);
    return failed;
}

int output_begin(output *out)
{
    if (out->is_stream) return 0;
    if (make_directories(out) != 0) {
        output_abandon(out);
        return 1;
    }
    if (out->is_file) return 0;
    const int fd = open(out->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    out->directory = fd > 0 ? fd : 0; /* a writable directory need not be readable */
    return 0;
}

int output_sync(const output *out)
{
    if (!out->directory || syncfs(out->directory) == 0) return 0;
    if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return 0; /* some file systems have no fsync */
    return tool_error("%s: cannot store the pictures: %s", out->path, strerror(errno));
}

char *output_image_path(const output *out, long index)
{
    char name[32];
    if (out->is_file) return copy(out->path);
    snprintf(name, sizeof name, "%06ld%s", index, image_format_ending(out->format));
    return tool_join(out->path, name);
}

char *output_grid_path(const output *out)
{
    char name[32];
    snprintf(name, sizeof name, "grid%s", image_format_ending(out->format));
    return out->is_file ? copy(out->path) : tool_join(out->path, name);
}

/* Returns whether a directory's pictures have the ending. */
static int is_own_ending(const char *ending)
{
    for (int i = 0; i < IMAGE_FORMATS; i++)
        if (strcmp(ending, image_format_ending((image_format)i)) == 0) return 1;
    return 0;
}

long output_image_index(const char *name)
{
    return strspn(name, "0123456789") == 6 && is_own_ending(name + 6) ? strtol(name, NULL, 10) : -1;
}

int output_is_grid(const char *name)
{
    return strncmp(name, "grid", 4) == 0 && is_own_ending(name + 4);
}

void output_abandon(output *out)
{
    for (; out->made_count > 0; out->made_count--) {
        char *name = strndup(out->path, out->made[out->made_count - 1]);
        if (name) rmdir(name); /* fails if it contains finished images, as it should */
        free(name);
    }
}

void output_free(output *out)
{
    if (out->directory) close(out->directory);
    free(out->made);
    out->made = NULL;
    out->directory = 0;
}
