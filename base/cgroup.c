#include "base/cgroup.h"

#include <stdio.h>
#include <string.h>

enum { PATH = 4096 };

int cgroup_read_line(const char *path, char *line, size_t size)
{
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    const int read = fgets(line, (int)size, f) != NULL;
    fclose(f);
    return read;
}

static double smaller_limit(double a, double b)
{
    return a > 0 && (b <= 0 || a < b) ? a : b;
}

/* Returns the smallest limit of a group and its ancestors up to `mount`, or 0 if none has one. In a container the
 * group's path may not exist below the mount. The mount is then the group itself. */
static double min_limit_up(const char *mount, const char *group, cgroup_limit *limit)
{
    char folder[PATH];
    double found = limit(mount);
    const size_t top = strlen(mount);
    if (snprintf(folder, sizeof folder, "%s%s", mount, group) >= (int)sizeof folder) return found;
    for (size_t end = strlen(folder); end > top; folder[end] = 0) {
        found = smaller_limit(limit(folder), found);
        while (end > top && folder[--end] != '/') continue;
    }
    return found;
}

/* Returns 1 if a list such as "cpu,cpuacct" contains the controller. */
static int list_contains(const char *list, const char *controller)
{
    const size_t n = strlen(controller);
    for (const char *c = list; *c; c += strcspn(c, ","), c += *c == ',')
        if (strcspn(c, ",") == n && strncmp(c, controller, n) == 0) return 1;
    return 0;
}

double cgroup_min_limit(const char *root, const char *controller, cgroup_limit *v2, cgroup_limit *v1)
{
    char path[PATH], line[PATH], mount[PATH];
    double found = 0;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    while (fgets(line, sizeof line, f)) { /* "0::/a/b" is version 2, "3:cpu,cpuacct:/a/b" version 1 */
        line[strcspn(line, "\n")] = 0;
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        list++;
        if (!*list && snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root) < (int)sizeof mount)
            found = smaller_limit(min_limit_up(mount, group, v2), found);
        if (list_contains(list, controller) &&
            snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/%s", root, controller) < (int)sizeof mount)
            found = smaller_limit(min_limit_up(mount, group, v1), found);
        if (list_contains(list, controller) &&
            snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/%s", root, list) < (int)sizeof mount)
            found = smaller_limit(min_limit_up(mount, group, v1), found);
    }
    fclose(f);
    return found;
}
