#include "base/cpus.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH = 4096 };

/* Reads the first line of a file; returns 0 if there is none. */
static int read_line(const char *path, char *line, size_t size)
{
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    const int read = fgets(line, (int)size, f) != NULL;
    fclose(f);
    return read;
}

/* The quota that one group sets itself, 0 if none. */
static double quota_v2(const char *folder)
{
    char path[PATH + 64], line[64];
    long long quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (!read_line(path, line, sizeof line)) return 0;
    return sscanf(line, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0 ? (double)quota / (double)period
                                                                                      : 0; /* "max 100000" */
}

static double quota_v1(const char *folder)
{
    char path[PATH + 64], quota[64], period[64];
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (!read_line(path, quota, sizeof quota)) return 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (!read_line(path, period, sizeof period)) return 0;
    const double q = atof(quota), p = atof(period); /* -1: none */
    return q > 0 && p > 0 ? q / p : 0;
}

static double least(double a, double b)
{
    return a > 0 && (b <= 0 || a < b) ? a : b;
}

/* The least quota of a group and of those above it, up to `mount`. In a container the group's path may not exist below
 * the mount; the mount is then the group itself. */
static double quota_up(const char *mount, const char *group, double (*quota)(const char *folder))
{
    char folder[PATH];
    double found = quota(mount);
    const size_t top = strlen(mount);
    if (snprintf(folder, sizeof folder, "%s%s", mount, group) >= (int)sizeof folder) return found;
    for (size_t end = strlen(folder); end > top; folder[end] = 0) {
        found = least(quota(folder), found);
        while (end > top && folder[--end] != '/') continue;
    }
    return found;
}

/* Whether a list "cpu,cpuacct" names the controller. */
static int lists_cpu(const char *list)
{
    for (const char *c = list; *c; c += strcspn(c, ","), c += *c == ',')
        if (strcspn(c, ",") == 3 && strncmp(c, "cpu", 3) == 0) return 1;
    return 0;
}

double cpus_quota(const char *root)
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
            found = least(quota_up(mount, group, quota_v2), found);
        if (lists_cpu(list) && snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/cpu", root) < (int)sizeof mount)
            found = least(quota_up(mount, group, quota_v1), found);
        if (lists_cpu(list) && snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/%s", root, list) < (int)sizeof mount)
            found = least(quota_up(mount, group, quota_v1), found);
    }
    fclose(f);
    return found;
}

/* Machines have more processors than a cpu_set_t has room for. No memory is allocated, so that nothing can fail and
 * make the answer another. */
int cpus_affinity(void)
{
    cpu_set_t set[64]; /* 65536 processors, more than any kernel counts */
    memset(set, 0, sizeof set);
    const int count = sched_getaffinity(0, sizeof set, set) == 0 ? CPU_COUNT_S(sizeof set, set) : 0;
    if (count > 0) return count;
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

int cpus_available(void)
{
    const int cpus = cpus_affinity();
    const double quota = cpus_quota("");
    return quota > 0 && ceil(quota) < cpus ? (int)ceil(quota) : cpus;
}
