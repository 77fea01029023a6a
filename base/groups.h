/* Control groups of Linux, versions 1 and 2: what they allow this process. */
#ifndef BASE_GROUPS_H
#define BASE_GROUPS_H

#include <stddef.h>

/* What the group at `folder` allows by its files; 0 if it sets no limit. */
typedef double group_limit(const char *folder);

/* Reads the first line of a file; returns 0 if there is none. */
int group_read_line(const char *path, char *line, size_t size);

/* The least limit of the process's groups and of those above them, 0 if there is none. `controller` is version 1's name
 * of it, "cpu". `root` stands for "/": it has proc/self/cgroup, and the file system of the groups below sys/fs/cgroup.
 */
double group_least(const char *root, const char *controller, group_limit *v2, group_limit *v1);

#endif
