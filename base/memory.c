#include "base/memory.h"

#include "base/cgroup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH = 4096 + 64 };

/* Returns the sum over the lines "NAME number ..." whose name is in `names`, a list that ends with NULL. Returns -1 if
 * there is no such line. */
static double sum_of(const char *path, const char *const *names)
{
    char line[256];
    double sum = -1;
    FILE *f = fopen(path, "re");
    if (!f) return -1;
    while (fgets(line, sizeof line, f)) {
        const size_t n = strcspn(line, ": ");
        for (const char *const *name = names; *name; name++)
            if (strlen(*name) == n && strncmp(line, *name, n) == 0)
                sum = (sum < 0 ? 0 : sum) + atof(line + n + strspn(line + n, ": "));
    }
    fclose(f);
    return sum;
}

/* Returns the bytes a group has left of its limit, at least 1, or 0 if it has no limit. File caches count as free. */
static double bytes_left(const char *folder, const char *limit_name, const char *used_name, const char *const *caches)
{
    char path[PATH], limit[64], used[64];
    snprintf(path, sizeof path, "%s/%s", folder, limit_name);
    if (!cgroup_read_line(path, limit, sizeof limit) || !(atof(limit) > 0)) return 0; /* "max" */
    snprintf(path, sizeof path, "%s/%s", folder, used_name);
    if (!cgroup_read_line(path, used, sizeof used)) return 0;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    const double cached = sum_of(path, caches), n = atof(limit) - atof(used) + (cached > 0 ? cached : 0);
    return n > 1 ? n : 1;
}

static double left_v2(const char *folder)
{
    return bytes_left(folder, "memory.max", "memory.current",
                      (const char *const[]){"active_file", "inactive_file", NULL});
}

static double left_v1(const char *folder)
{
    return bytes_left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes",
                      (const char *const[]){"total_active_file", "total_inactive_file", NULL});
}

double memory_available(const char *root)
{
    char path[PATH];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    const double free_kb = sum_of(path, (const char *const[]){"MemAvailable", NULL}); /* since Linux 3.14 */
    const double swap_kb = sum_of(path, (const char *const[]){"SwapFree", NULL});
    const double machine = free_kb > 0 ? 1024 * (free_kb + (swap_kb > 0 ? swap_kb : 0)) : 0;
    const double group = cgroup_min_limit(root, "memory", left_v2, left_v1);
    if (machine > 0 && (group <= 0 || machine < group)) return machine;
    return group;
}
