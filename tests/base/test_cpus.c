/* The number of processors and the memory that a process may use: affinity, the machine's own, and control group limits
 * as files of both versions. */
#include "base/cpus.h"
#include "base/memory.h"
#include "tests/support/support.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static void put(const char *path, const char *text)
{
    char full[512];
    for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(full, sizeof full, "%s/%.*s", root, (int)(slash - path), path);
        mkdir(full, 0700);
    }
    snprintf(full, sizeof full, "%s/%s", root, path);
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/cpus.XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

TEST_WITH(none, make_root, remove_root)
{
    assert_true(cpus_quota(root) == 0); /* no files */
    put("proc/self/cgroup", "0::/a/b\n");
    assert_true(cpus_quota(root) == 0);
    put("sys/fs/cgroup/a/cpu.max", "max 100000\n");
    assert_true(cpus_quota(root) == 0);
}

TEST_WITH(version_2, make_root, remove_root)
{
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
    assert_true(cpus_quota(root) == 4);
    put("sys/fs/cgroup/a/cpu.max", "150000 100000\n"); /* the group above allows less */
    assert_true(cpus_quota(root) == 1.5);
    put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_true(cpus_quota(root) == 1.5);
}

/* In a container the group's own path is not below the mount. */
TEST_WITH(container, make_root, remove_root)
{
    put("proc/self/cgroup", "0::/../outside\n");
    put("sys/fs/cgroup/cpu.max", "250000 100000\n");
    assert_true(cpus_quota(root) == 2.5);
}

TEST_WITH(version_1, make_root, remove_root)
{
    put("proc/self/cgroup", "5:memory:/x\n4:cpuset:/x\n3:cpu,cpuacct:/a/b\n0::/\n");
    put("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n");
    assert_true(cpus_quota(root) == 0);
    put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n");
    put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "25000\n");
    assert_true(cpus_quota(root) == 2);
    put("sys/fs/cgroup/cpuset/x/cpu.cfs_quota_us", "1\n"); /* belongs to another controller */
    put("sys/fs/cgroup/cpuset/x/cpu.cfs_period_us", "100000\n");
    assert_true(cpus_quota(root) == 2);
}

/* Returns memory_available in GB. */
static double gigabytes(void)
{
    return memory_available(root) / 1e9;
}

TEST_WITH(memory_of_the_machine, make_root, remove_root)
{
    assert_true(memory_available(root) == 0); /* no file */
    put("proc/meminfo", "MemTotal: 9000000 kB\nSwapFree: 1000000 kB\n");
    assert_true(memory_available(root) == 0); /* swap alone is not enough */
    put("proc/meminfo",
        "MemTotal: 9000000 kB\nMemFree:  1000000 kB\nMemAvailable:    3000000 kB\nSwapFree: 1000000 kB\n");
    assert_true(gigabytes() == 4.096);
    assert_true(memory_available("") > 1e6);
}

TEST_WITH(memory_of_version_2, make_root, remove_root)
{
    put("proc/meminfo", "MemAvailable:    8000000 kB\n");
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/memory.max", "max\n");
    put("sys/fs/cgroup/a/b/memory.current", "6000000000\n");
    assert_true(gigabytes() == 8.192);
    put("sys/fs/cgroup/a/memory.max", "7000000000\n");
    assert_true(gigabytes() == 8.192); /* the group's usage is unknown */
    put("sys/fs/cgroup/a/memory.current", "6000000000\n");
    assert_true(gigabytes() == 1);
    put("sys/fs/cgroup/a/memory.stat", "anon 1\nfile 3000000000\ninactive_file 1500000000\nactive_file 500000000\n");
    assert_true(gigabytes() == 3);
    put("sys/fs/cgroup/a/memory.max", "1000000000\n"); /* lowered below the usage: nothing is left */
    assert_true(memory_available(root) == 1);
}

TEST_WITH(memory_of_version_1, make_root, remove_root)
{
    put("proc/meminfo", "MemAvailable:    8000000 kB\n");
    put("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/a\n");
    put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"); /* no limit */
    put("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "4000000000\n");
    assert_true(gigabytes() == 8.192);
    put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000000000\n");
    put("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 7\ntotal_inactive_file 2000000000\ntotal_active_file 0\n");
    assert_true(gigabytes() == 3);
}

TEST_CASE(affinity)
{
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_in_range(cpus_available(), 1, CPU_COUNT(&all));
    int cpu = 0;
    while (!CPU_ISSET(cpu, &all)) cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    const int available = cpus_available();
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(available, 1);
}
