#include "tools/images/folder.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/images/kind.h"
#include "tools/images/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LEVELS_MAX = 16 };

/* Names, which grow. Initialise with {0}. */
typedef struct {
    char **name; /* [count] */
    int64_t count, capacity;
} name_list;

typedef struct {
    const char *path; /* of the directory that is listed */
    name_list files;  /* found so far */
} listing;

static void free_names(name_list *l)
{
    for (int64_t i = 0; i < l->count; i++) free(l->name[i]);
    free(l->name);
    *l = (name_list){.count = 0};
}

/* Adds PREFIX/NAME, or NAME without a prefix. */
static int add_name(name_list *l, const char *path, const char *prefix, const char *name)
{
    if (l->count == l->capacity) {
        char **grown = realloc(l->name, (size_t)(l->capacity = 2 * l->capacity + 64) * sizeof *grown);
        if (!grown) return tool_error("%s: out of memory for its files' names", path);
        l->name = grown;
    }
    char *joined = NULL;
    if (asprintf(&joined, "%s%s%s", prefix, *prefix ? "/" : "", name) < 0)
        return tool_error("%s: out of memory for its files' names", path);
    l->name[l->count++] = joined;
    return 0;
}

/* Returns whether the entry is a directory, links followed; -1 with errno if its link leads nowhere. */
static int is_folder(int fd, const struct dirent *e)
{
    struct stat st;
    if (e->d_type != DT_UNKNOWN && e->d_type != DT_LNK) return e->d_type == DT_DIR;
    return fstatat(fd, e->d_name, &st, 0) == 0 ? S_ISDIR(st.st_mode) : -1;
}

static int is_of_another_kind(const char *name)
{
    static const char *const endings[] = {".bmp", ".gif",  ".tif",  ".tiff", ".ppm", ".pgm",
                                          ".pnm", ".avif", ".heic", ".jxl",  ".jp2", ".jfif"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (tool_ends_with(name, endings[i])) return 1;
    const int format = image_format_of(name);
    return format >= 0 && image_format_lacks((image_format)format) != NULL;
}

/* Returns whether the file may have images that are still packed, such as the n01440764.tar of ImageNet's archive. */
static int is_archive(const char *name)
{
    static const char *const endings[] = {".tar", ".tgz", ".tar.gz", ".zip", ".7z"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (tool_ends_with(name, endings[i])) return 1;
    return 0;
}

/* Adds an entry of the directory l->path/PREFIX to the files or the folders. Returns 0, or 1 with the error printed. */
static int folder_add_entry(listing *l, name_list *folders, int fd, const char *prefix, const struct dirent *e)
{
    const char *name = e->d_name, *slash = *prefix ? "/" : "";
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return 0;
    const int folder = is_folder(fd, e);
    if (folder < 0) return tool_error("%s/%s%s%s: cannot read: %s", l->path, prefix, slash, name, strerror(errno));
    if (folder) return add_name(folders, l->path, prefix, name);
    if (is_archive(name))
        return tool_error("%s/%s%s%s: is an archive, expected it unpacked, or elsewhere", l->path, prefix, slash, name);
    if (is_of_another_kind(name))
        return tool_error("%s/%s%s%s: is an image of a kind that is not read here, expected %s", l->path, prefix, slash,
                          name, image_kind_expected());
    return image_format_of(name) < 0 ? 0 : add_name(&l->files, l->path, prefix, name);
}

/* Leaves out the grid of the numbered images beside it (mar generate --grid): of the files from `first` on. */
static void skip_grid(name_list *l, int64_t first)
{
    int64_t grid = -1;
    int numbered = 0;
    for (int64_t i = first; i < l->count; i++) {
        if (output_is_grid(tool_base_name(l->name[i]))) grid = i;
        numbered |= output_image_index(tool_base_name(l->name[i])) >= 0;
    }
    if (grid < 0 || !numbered) return;
    free(l->name[grid]);
    l->name[grid] = l->name[--l->count];
}

/* Lists the files and folders of l->path/PREFIX itself. */
static int list_entries(listing *l, name_list *folders, const char *prefix)
{
    char *path = NULL;
    if (asprintf(&path, "%s%s%s", l->path, *prefix ? "/" : "", prefix) < 0)
        return tool_error("%s: out of memory", l->path);
    DIR *dir = opendir(path);
    int failed = dir ? 0 : tool_error("%s: cannot read the directory: %s", path, strerror(errno));
    errno = 0;
    for (struct dirent *e; !failed && (e = readdir(dir)); errno = 0)
        failed = folder_add_entry(l, folders, dirfd(dir), prefix, e);
    if (!failed && errno) failed = tool_error("%s: cannot read the directory: %s", path, strerror(errno));
    if (dir) closedir(dir);
    free(path);
    return failed;
}

static int folder_compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b); /* bytes compare as unsigned */
}

/* Refuses images of a folder below PREFIX that other tools would leave out. has_own: 1 if PREFIX itself has images. */
static int check_below(const listing *l, const char *prefix, const char *below, int has_own)
{
    const char *name = tool_base_name(below);
    if (*name == '.')
        return tool_error("%s/%s: has images, expected none in a directory whose name begins with a dot", l->path,
                          below);
    if (!has_own) return 0;
    return tool_error("%s%s%s: has images, and so has its directory %s, expected images in one of them only", l->path,
                      *prefix ? "/" : "", prefix, name);
}

/* Lists l->path/PREFIX and the folders below it. */
static int list_folder(listing *l, const char *prefix, int level)
{
    const int64_t first = l->files.count;
    name_list folders = {.count = 0};
    if (level > LEVELS_MAX)
        return tool_error("%s/%s: is more than %d directories deep, expected fewer, and no link to one above", l->path,
                          prefix, LEVELS_MAX);
    int failed = list_entries(l, &folders, prefix);
    if (!failed) skip_grid(&l->files, first);
    if (!failed && folders.count)
        qsort(folders.name, (size_t)folders.count, sizeof *folders.name, folder_compare_names);
    const int64_t own = l->files.count;
    for (int64_t i = 0; i < folders.count && !failed; i++) {
        const int64_t before = l->files.count;
        failed = list_folder(l, folders.name[i], level + 1);
        if (!failed && l->files.count > before) failed = check_below(l, prefix, folders.name[i], own > first);
    }
    free_names(&folders);
    return failed;
}

int image_folder_list(const char *path, char ***names, int64_t *count)
{
    listing l = {.path = path};
    const int failed = list_folder(&l, "", 0);
    *names = l.files.name;
    *count = l.files.count;
    if (failed) return 1;
    if (*count == 0)
        return tool_error("%s: has no %s files, neither directly nor in subfolders", path,
                          image_format_lacks(IMAGE_WEBP) ? "PNG or JPEG" : "PNG, JPEG or WebP");
    qsort(*names, (size_t)*count, sizeof **names, folder_compare_names);
    return 0;
}
