/* How much memory this process may still take. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

/* Bytes: what the machine has left, swap included, or less if a control group allows less. Counts page cache as
 * available. Returns 0 if unknown. `root` stands for "/": it has proc/meminfo, and what base/groups.h reads. */
double memory_available(const char *root);

#endif
