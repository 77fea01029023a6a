/* Limits of this process's control groups on Linux, versions 1 and 2. */
#ifndef BASE_CGROUP_H
#define BASE_CGROUP_H

#include <stddef.h>

/* Returns the limit that the files in `folder` set, or 0 if they set none. */
typedef double cgroup_limit(const char *folder);

/* Reads the first line of a file. Returns 0 if there is none. */
int cgroup_read_line(const char *path, char *line, size_t size);

/* Returns the smallest limit of the process's groups and their ancestors, or 0 if none has one. `controller` is its
 * version 1 name, such as "cpu". `root` stands for "/": it contains proc/self/cgroup, and the groups below
 * sys/fs/cgroup. */
double cgroup_min_limit(const char *root, const char *controller, cgroup_limit *v2, cgroup_limit *v1);

#endif
