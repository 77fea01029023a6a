/* The memory that this process may still allocate. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

/* Returns the bytes that the machine has left, swap and page cache included, or less if a control group allows less.
 * Returns 0 if that is unknown. `root` stands for "/": it contains proc/meminfo, and what base/cgroup.h reads. */
double memory_available(const char *root);

#endif
