#include "base/data.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char debian[] = "/usr/share/libmar";

/* Writes the folder of the shared library or program that contains this file. Links are resolved, as the library may be
 * reached by one in another prefix. Returns 0, or -1 if the system does not tell. */
static int own_folder(char folder[PATH_MAX])
{
    static const char anchor = 0;
    Dl_info info;
    struct link_map *map = NULL;
    const int known = dladdr1(&anchor, &info, (void **)&map, RTLD_DL_LINKMAP) && map;
    const char *file = known && *map->l_name ? map->l_name : "/proc/self/exe"; /* the program's name is empty */
    if (!realpath(file, folder)) return -1;
    *strrchr(folder, '/') = '\0';
    return 0;
}

/* Writes FOLDER/BELOW/NAME and returns whether that is there. */
static int is_in(const char *folder, const char *below, const char *name, char path[PATH_MAX])
{
    const int n = snprintf(path, PATH_MAX, "%s%s/%s", folder, below, name);
    return n > 0 && n < PATH_MAX && access(path, F_OK) == 0;
}

mar_status data_find(const char *name, char path[PATH_MAX], mar_err *err)
{
    char folder[PATH_MAX];
    const char *given = secure_getenv("MAR_DATA_DIR");
    if (given && *given) {
        if (is_in(given, "", name, path)) return MAR_OK;
        return err_set(err, MAR_EIO, "%s: not found in %s, which is MAR_DATA_DIR", name, given);
    }
    const int known = own_folder(folder) == 0;
    if (known && (is_in(folder, "/share/libmar", name, path) || is_in(folder, "/../share/libmar", name, path) ||
                  is_in(folder, "/../../share/libmar", name, path)))
        return MAR_OK;
    if (is_in(MAR_DATADIR, "", name, path) || is_in(debian, "", name, path)) return MAR_OK;
    return err_set(err, MAR_EIO,
                   "%s: not found in share/libmar beside or above %s, %s or %s; MAR_DATA_DIR can name the folder", name,
                   known ? folder : "the library, whose place the system does not tell", MAR_DATADIR, debian);
}
