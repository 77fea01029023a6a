#include "base/cpus.h"

#include "base/cgroup.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH = 4096 };

/* Returns the quota that one group sets, or 0 if it sets none. */
static double quota_v2(const char *folder)
{
    char path[PATH + 64], line[64];
    long long quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (!cgroup_read_line(path, line, sizeof line)) return 0;
    return sscanf(line, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0 ? (double)quota / (double)period
                                                                                      : 0; /* "max 100000" */
}

static double quota_v1(const char *folder)
{
    char path[PATH + 64], quota[64], period[64];
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (!cgroup_read_line(path, quota, sizeof quota)) return 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (!cgroup_read_line(path, period, sizeof period)) return 0;
    const double q = atof(quota), p = atof(period); /* -1: none */
    return q > 0 && p > 0 ? q / p : 0;
}

double cpus_quota(const char *root)
{
    return cgroup_min_limit(root, "cpu", quota_v2, quota_v1);
}

/* A machine may have more processors than one cpu_set_t holds. The array is on the stack: an allocation could fail and
 * change the answer. */
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
