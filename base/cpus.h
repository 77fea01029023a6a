/* How many processors this process may use. */
#ifndef BASE_CPUS_H
#define BASE_CPUS_H

/* The processors of the calling thread's affinity mask; at least 1. */
int cpus_affinity(void);
/* The same, or fewer if the quota of a control group allows less time (a quota of 1.5 processors counts as 2). */
int cpus_available(void);
/* The quota of the control groups of a process in processors, 0 if there is none. `root` stands for "/": it has
 * proc/self/cgroup and the file system of the groups below sys/fs/cgroup, version 1 or 2. */
double cpus_quota(const char *root);

#endif
