/* The number of processors that this process may use. */
#ifndef BASE_CPUS_H
#define BASE_CPUS_H

/* Returns the number of processors in the calling thread's affinity mask, at least 1. */
int cpus_affinity(void);
/* Returns the same, or less if a control group's quota allows less time. A quota of 1.5 processors counts as 2. */
int cpus_available(void);
/* Returns the quota of this process's control groups in processors, or 0 if there is none. `root` stands for "/": it
 * contains proc/self/cgroup, and the groups, version 1 or 2, in sys/fs/cgroup. */
double cpus_quota(const char *root);

#endif
