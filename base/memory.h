/* The memory that this process may still allocate. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

/* Returns the available bytes of the machine, swap and page cache included. A control group may allow less. Returns 0
 * if unknown. `root` stands for "/": it contains proc/meminfo and the files of base/cgroup.h. */
double memory_available(const char *root);

#endif
